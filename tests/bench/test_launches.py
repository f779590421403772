"""Launches added to a record by later calls: numbered on, paired with what ran beside them, and never across codes."""

import dataclasses
import json

import pytest
from small_cells import a_cell, a_record

from bench.core.launches import calls_of, extended, paired_launches, pairing_by_launch
from bench.core.record import Record
from bench.protocol import Data, Outcome
from bench.runner.results import Results
from bench.step.timing import calls_per_block


def timed(record: Record, launches: range, pairing: str, ms: float = 1.0) -> Record:
    """A record with a block per launch."""
    blocks = [{"launch": one, "block": 0, "ms": [ms], "calibration_ms": 1.0, "disturbed": False} for one in launches]
    return dataclasses.replace(record, samples={"blocks": blocks}, pairing=pairing)


@pytest.fixture
def plain() -> Record:
    return a_record(method="comera", machine="m")


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


def test_reuse_extend_adds_launches_to_the_records_of_this_code(tmp_path):
    """As a sweep records its outcomes."""
    cell = a_cell()
    blocks = timed(a_record(), range(2), "").samples

    def recorded(reuse: str) -> Record:
        outcome = Outcome(cell, "ok", columns={"samples": {"blocks": [dict(one) for one in blocks["blocks"]]}})
        [record] = Results(tmp_path, reuse).record([outcome], "hash", Data("synthetic"))
        return record

    first, second = recorded("exact"), recorded("extend")
    assert (first.launches, second.launches, second.steps_measured) == (2, 4, 4)
    assert second.cell_id == first.cell_id
    results = Results(tmp_path, "extend")
    assert not results.is_done(cell, "hash")  # it is to be measured once more
    [path] = tmp_path.rglob(f"{first.cell_id}.json")
    assert Results(tmp_path, "extend", {path}).is_done(cell, "hash")  # by this sweep, just now
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code_id": "older"}))
    assert recorded("extend").launches == 2
