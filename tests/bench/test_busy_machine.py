"""A busy machine: the calibration product against the best known one, when sweeps end and when records are read."""

import dataclasses
import itertools
import json

import pytest
from small_cells import a_record, run_bench, small

import bench.runner.progress
from bench.core.record import Record, read_all
from bench.core.samples import BUSY, best_calibrations_ms, busy, slowdown, with_best

HERE = {"machine": "abc", "device": "Some Processor, 1 thread", "torch_version": "2.0"}


def timed(*launches: list[float], steps: float = 10.0, more: dict[str, float] | None = None, **columns) -> Record:
    """A record whose blocks have these calibrations, launch by launch."""
    blocks = [
        {"launch": launch, "block": block, "ms": [steps], "calibration_ms": ms, "disturbed": False, **(more or {})}
        for launch, found in enumerate(launches)
        for block, ms in enumerate(found)
    ]
    return a_record(**({**HERE, "samples": {"blocks": blocks}} | columns))


def best_of(*records: Record) -> list[float]:
    return sorted(best_calibrations_ms(records).values())


@pytest.mark.parametrize(
    ("launches", "factor"),
    [
        (([1.0] * 5, [1.0] * 5, [1.0] * 5), 1.0),
        (([2.0] * 5, [2.0] * 5, [2.0] * 5), 2.0),  # busy all the time, which no median within the record shows
        (([1.0] * 5, [2.0] * 5, [1.0] * 5), 2.0),  # for a launch
        (([1.0, 1.0, 1.0, 9.0, 9.0],), 1.0),  # blocks beyond 1.25 of the median are disturbed, and left out
        (([1.0], [2.0], [1.0]), 1.0),  # a launch of one block decides nothing by itself
        (([2.0], [2.0], [1.0]), 2.0),
        (([1.2] * 3, [1.3] * 3), 1.3),
    ],
)
def test_slowness_that_lasts_shows_against_the_best_of_the_machine(launches, factor):
    one, quick = timed(*launches), timed([1.0] * 3)
    best = best_calibrations_ms([one, quick])
    assert slowdown(one, best) == pytest.approx(factor)
    assert busy(one, best) == (factor > BUSY)
    assert not busy(quick, best)


def test_a_record_alone_knows_by_the_processor_s_time():
    """Every product waited for another job; the time of the processor does not count that."""
    assert not busy(timed([2.0] * 3), best_calibrations_ms([timed([2.0] * 3)]))
    alone = timed([2.0] * 3, more={"calibration_cpu_ms": 1.0})
    assert slowdown(alone, best_calibrations_ms([alone])) == pytest.approx(2)


@pytest.mark.parametrize(
    "changes",
    [{"machine": "other"}, {"device": "Some Processor, 2 threads"}, {"torch_version": "2.1"}, {"world_size": 2}],
)
def test_machines_threads_versions_and_ranks_are_not_compared(changes):
    one, other = timed([2.0] * 3), timed([1.0] * 3, **changes)
    assert best_of(one, other) == [1.0, 2.0]
    assert not busy(one, best_calibrations_ms([one, other]))


def test_launches_of_two_machines_are_each_compared_with_their_own():
    first = timed([1.0] * 3)
    later = [{**block, "launch": 1} for block in timed([2.0] * 3).samples["blocks"]]
    earlier = [{"recorded_at": first.recorded_at, "machine": first.machine, "launches": 1}]
    samples = {"blocks": [*first.samples["blocks"], *later], "pairings": {"0": ""}, "earlier_calls": earlier}
    joined = dataclasses.replace(first, machine="slower", samples=samples)
    best = best_calibrations_ms([joined])
    assert sorted(best.values()) == [1.0, 2.0]
    assert slowdown(joined, best) == pytest.approx(1)
    quick = best_calibrations_ms([joined, timed([0.8] * 3, machine="slower")])
    assert slowdown(joined, quick) == pytest.approx(2.5)
    assert [block["best_calibration_ms"] for block in with_best(joined, quick)] == [1.0] * 3 + [0.8] * 3


def test_what_was_not_calibrated_is_not_judged():
    record = timed([1.0] * 3)
    for block in record.samples["blocks"]:
        del block["calibration_ms"]
    assert slowdown(record, best_calibrations_ms([record])) is None
    assert with_best(record, {}) == record.samples["blocks"]
    assert slowdown(a_record(), {}) is None


# Sweeps.

SMALL = ("experiment=fig1", "methods=[dense,low_rank]")


@pytest.fixture
def swept(tmp_path, pairs, cell_processes):  # noqa: ARG001
    """A function that runs a small sweep of two cells; it returns the last line that it printed."""

    def sweep(*arguments):
        ended = run_bench(tmp_path, SMALL[0], *small(pairs, tmp_path / "results"), SMALL[1], *arguments)
        assert ended.status == 0
        return ended.error.splitlines()[-1]

    return sweep


@pytest.mark.slow
def test_a_sweep_knows_the_best_of_its_machine_from_all_records_of_the_folder(swept, tmp_path, monkeypatch):
    monkeypatch.setattr(bench.runner.progress, "BUSY", 100.0)
    swept()
    records = {record.arm: record for record in read_all(tmp_path / "results")}
    blocks = [block for record in records.values() for block in record.samples["blocks"]]
    own = min(block[name] for block in blocks for name in ("calibration_ms", "calibration_cpu_ms"))
    assert {block["best_calibration_ms"] for block in blocks} == {own}
    path = next((tmp_path / "results" / "fig1").glob("*/*.json"))
    earlier = path.parents[2] / "other" / path.parent.name / "quiet.json"
    earlier.parent.mkdir(parents=True)
    content = json.loads(path.read_text()) | {"experiment": "other", "cell_id": "quiet"}
    for number, block in enumerate(content["samples"]["blocks"]):
        block["calibration_ms"] = own / (1000 + number)
    earlier.write_text(json.dumps(content))
    earlier.with_name("damaged.json").write_text('{"calibration_ms"')
    assert "busy" in swept("reuse=never")
    earlier_best = min(block["calibration_ms"] for block in content["samples"]["blocks"])
    found = itertools.chain(*(one.samples["blocks"] for one in read_all(tmp_path / "results", "fig1")))
    assert {block["best_calibration_ms"] for block in found} == {earlier_best}
