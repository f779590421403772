"""Launches that two records share, also where an older record holds those of several calls."""

import dataclasses

import pytest
from small_cells import a_record

from bench.core.launches import calls_of, paired_launches, pairing_by_launch
from bench.core.record import Record
from bench.step.timing import calls_per_block


def timed(record: Record, launches: int, pairing: str, earlier: dict[str, str] | None = None) -> Record:
    """A record with a block per launch; the first were measured by an earlier call, paired as ``earlier`` says."""
    blocks = [{"launch": one, "block": 0, "ms": [1.0], "calibration_ms": 1.0} for one in range(launches)]
    samples = {"blocks": blocks}
    if earlier:
        call = {"recorded_at": "2001-01-01T02:00:00+00:00", "machine": "other", "launches": len(earlier)}
        samples |= {"pairings": earlier, "earlier_calls": [call]}
    return dataclasses.replace(record, samples=samples, pairing=pairing)


FIRST = {"0": "first", "1": "first", "2": "first"}


@pytest.fixture
def plain() -> Record:
    return a_record(method="comera", machine="m")


def test_launches_of_an_earlier_call_keep_their_pairing_and_machine(plain):
    record = timed(plain, 5, "second", FIRST)
    assert pairing_by_launch(record) == {0: "first", 1: "first", 2: "first", 3: "second", 4: "second"}
    assert [(call["launches"], call["machine"]) for call in calls_of(record)] == [(3, "other"), (2, "m")]


def test_records_are_paired_in_the_launches_of_one_name(plain):
    once, twice = timed(plain, 3, "first"), timed(plain, 5, "second", FIRST)
    assert paired_launches(once, twice) == paired_launches(twice, once) == {0, 1, 2}
    assert paired_launches(twice, timed(plain, 5, "elsewhere", FIRST)) == {0, 1, 2}
    assert paired_launches(twice, twice) == {0, 1, 2, 3, 4}
    assert paired_launches(timed(plain, 3, ""), timed(plain, 3, "")) == set()


def test_a_block_has_its_fewest_steps_however_long_they_take():
    timing = {"block_seconds": 0.1, "max_steps": 20, "min_steps": 3}
    assert [calls_per_block(ms, timing) for ms in (1000.0, 20.0, 0.1)] == [3, 5, 20]
