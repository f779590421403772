"""Launches added to a record by later calls: numbered on, paired with what ran beside them, and never across codes."""

from __future__ import annotations

import dataclasses
import json

import pytest
from small_cells import run_bench, small

from bench.core.launches import calls_of, extended, paired_launches, pairing_by_launch
from bench.core.record import Record, read_all
from bench.step.timing import calls_per_block


def timed(record: Record, launches: range, pairing: str, ms: float = 1.0) -> Record:
    """A record with a block per launch."""
    blocks = [{"launch": one, "block": 0, "ms": [ms], "calibration_ms": 1.0, "disturbed": False} for one in launches]
    return dataclasses.replace(record, samples={"blocks": blocks}, pairing=pairing)


@pytest.fixture
def plain() -> Record:
    return Record(
        cell_id="c",
        code_id="a",
        recorded_at="2001-01-01T00:00:00+00:00",
        experiment="e",
        workload="w",
        dataset="d",
        data_hash="",
        method="comera",
        variant="",
        measure="run",
        batch_size=1,
        sequence_length=1,
        precision="fp32",
        cuda_graph=False,
        compile=False,
        seed=0,
        status="ok",
        device="CPU",
        threads=1,
        torch_version="",
        git_commit="",
        git_dirty=False,
        config_json="{}",
        machine="m",
    )


def added(record: Record, pairing: str, launches: int = 2) -> Record:
    samples = extended(record, timed(record, range(launches), "").samples)
    later = {"pairing": pairing, "recorded_at": "2001-01-01T02:00:00+00:00", "machine": "other"}
    return dataclasses.replace(record, samples=samples, **later)


def test_launches_are_numbered_on_and_keep_their_pairing(plain):
    record = added(timed(plain, range(3), "first"), "second")
    assert [block["launch"] for block in record.samples["blocks"]] == [0, 1, 2, 3, 4]
    assert pairing_by_launch(record) == {0: "first", 1: "first", 2: "first", 3: "second", 4: "second"}
    thrice = added(record, "third", 1)
    assert pairing_by_launch(thrice) == {**pairing_by_launch(record), 5: "third"}
    assert [(call["launches"], call["machine"]) for call in calls_of(thrice)] == [(3, "m"), (2, "other"), (1, "other")]


def test_an_arm_that_was_extended_stays_paired_with_one_that_was_not(plain):
    once = timed(plain, range(3), "first")
    twice = added(once, "second")
    assert paired_launches(once, twice) == paired_launches(twice, once) == {0, 1, 2}
    assert paired_launches(twice, added(once, "elsewhere")) == {0, 1, 2}
    assert paired_launches(twice, added(once, "second")) == {0, 1, 2, 3, 4}
    assert paired_launches(timed(plain, range(3), ""), timed(plain, range(3), "")) == set()


def test_times_of_rare_events_are_added(plain):
    record = timed(plain, range(1), "x")
    record.samples["rare"] = {"svd": [5.0]}
    later = {**timed(plain, range(1), "").samples, "rare": {"svd": [7.0]}}
    assert extended(record, later)["rare"] == {"svd": [5.0, 7.0]}


def test_a_block_has_its_fewest_steps_however_long_they_take():
    timing = {"block_seconds": 0.1, "max_steps": 20, "min_steps": 3}
    assert [calls_per_block(ms, timing) for ms in (1000.0, 20.0, 0.1)] == [3, 5, 20]


#: What of a block no later call changes.
MEASURED = ("launch", "block", "ms", "calibration_ms", "calibration_cpu_ms")


@pytest.mark.usefixtures("cell_processes")
def test_reuse_extend_adds_launches_to_the_records_of_this_code(tmp_path, pairs):
    def sweep(*more: str) -> dict[str, Record]:
        arguments = ("experiment=fig1", *small(pairs, tmp_path / "results"), "batch_size=2", *more)
        assert run_bench(tmp_path, *arguments).status == 0
        return {record.arm: record for record in read_all(tmp_path / "results")}

    first = sweep("methods=[comera,dense,low_rank]")
    second = sweep("methods=[comera,dense]", "reuse=extend")
    assert {arm: record.launches for arm, record in first.items()} == {"comera": 1, "dense": 1, "low_rank@rank": 1}
    assert {arm: record.launches for arm, record in second.items()} == {"comera": 2, "dense": 2, "low_rank@rank": 1}
    blocks = {arm: record.samples["blocks"] for arm, record in second.items()}
    kept = first["comera"].samples["blocks"]
    for block, of_first in zip(blocks["comera"], kept, strict=False):  # a quicker call can lower the machine's best
        assert {name: block[name] for name in MEASURED} == {name: of_first[name] for name in MEASURED}
    assert len(blocks["comera"]) > len(kept)
    assert second["comera"].steps_measured == sum(len(block["ms"]) for block in blocks["comera"])
    assert second["comera"].cell_id == first["comera"].cell_id
    assert paired_launches(second["comera"], second["dense"]) == {0, 1}
    assert paired_launches(second["comera"], second["low_rank@rank"]) == {0}

    for path in (tmp_path / "results").rglob("*.json"):  # as if older code had measured them
        path.write_text(json.dumps(json.loads(path.read_text()) | {"code_id": "older"}))
    third = sweep("methods=[comera,dense]", "reuse=extend")
    assert {arm: record.launches for arm, record in third.items()} == {"comera": 1, "dense": 1, "low_rank@rank": 1}
