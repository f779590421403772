"""The time columns of a record, as the runner writes it: by undisturbed blocks, and by the batch of all ranks."""

from typing import Any

import pytest
from small_cells import a_cell

from bench.core.record import Record
from bench.protocol import Data, Outcome
from bench.runner.results import Results

#: Columns that tell of every block, disturbed or not.
OF_ALL_BLOCKS = {"launches", "calibration_drift"}

TIMES = ("step_time_median_ms", "step_time_p20_ms", "step_time_p80_ms", "compute_time_ms", "epoch_time_s")


def block(number: int, ms: list[float], disturbed: bool = False, launch: int = 0) -> dict[str, Any]:
    """A block of two ranks, or of one: step times with the exchange and without it."""
    alone = [0.5 * each for each in ms]
    known = {"launch": launch, "block": number, "disturbed": disturbed, "calibration_ms": 1.0}
    return {**known, "ms": ms, "compute_ms": alone}


@pytest.fixture
def recorded(tmp_path, pairs):
    """Return a function that makes a record of blocks as the runner does."""

    def record_of(blocks: list[dict[str, Any]], **changes: Any) -> Record:
        data = Data(data_folder=str(pairs))
        outcome = Outcome(a_cell(**changes), "ok", columns={"samples": {"blocks": blocks}})
        [record] = Results(tmp_path, "exact").record([outcome], "hash", data)
        return record

    return record_of


QUIET = [block(0, [10.0, 12.0, 11.0]), block(1, [13.0, 10.0, 12.0]), block(0, [9.0, 11.0, 14.0], launch=1)]


@pytest.mark.parametrize(
    "disturbed",
    [
        [block(2, [500.0, 900.0, 700.0], disturbed=True)],
        [block(2, [0.1, 0.2], disturbed=True), block(1, [40.0], disturbed=True, launch=1)],
        [block(number, [100.0] * 50, disturbed=True) for number in range(2, 9)],
    ],
)
def test_disturbed_blocks_change_no_time(disturbed, recorded) -> None:
    without, with_them = recorded(QUIET), recorded([*QUIET, *disturbed])
    names = set(vars(without)) - OF_ALL_BLOCKS - {"samples", "recorded_at"}
    assert {name: getattr(with_them, name) for name in names} == {name: getattr(without, name) for name in names}
    assert with_them.steps_measured == 9
    assert None not in [getattr(with_them, name) for name in TIMES]


def test_where_every_block_was_disturbed_all_of_them_count(recorded) -> None:
    alike = recorded([{**each, "disturbed": True} for each in QUIET])
    quiet = recorded(QUIET)
    assert {name: getattr(alike, name) for name in TIMES} == pytest.approx({n: getattr(quiet, n) for n in TIMES})
    assert alike.steps_measured == 9


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("exchange", ["ddp", "fsdp2"])
def test_ranks_share_the_steps_of_an_epoch(ranks, exchange, recorded) -> None:
    """With the same batch on each rank and the same time of a step, an epoch takes one part per rank of that of one."""
    alone = recorded(QUIET)
    shared = recorded(QUIET, world_size=ranks, exchange=exchange)
    assert shared.step_time_median_ms == alone.step_time_median_ms
    assert alone.epoch_time_s > 0
    assert shared.epoch_time_s == pytest.approx(alone.epoch_time_s / ranks, rel=1e-12)
    doubled = recorded(QUIET, batch_size=2 * alone.batch_size)
    assert doubled.epoch_time_s == pytest.approx(alone.epoch_time_s / 2, rel=1e-12)


def test_the_columns_are_of_all_steps_of_undisturbed_blocks(recorded) -> None:
    slow = {**block(2, [99.0], disturbed=True), "calibration_ms": 1.5}
    record = recorded([*QUIET, slow])
    assert (record.steps_measured, record.launches) == (9, 2)
    found = (record.step_time_p20_ms, record.step_time_median_ms, record.step_time_p80_ms)
    assert found == (10, 11, 12)  # of 9 10 10 11 11 12 12 13 14
    assert record.compute_time_ms == pytest.approx(record.step_time_median_ms / 2)
    assert record.calibration_drift == pytest.approx(0.5)


def test_an_epoch_by_hand(recorded) -> None:
    """Means of launches: (11 + 35/3) / 2 and 34/3 ms; the epoch's examples in batches of 3 on each of two ranks."""
    record = recorded(QUIET, world_size=2, exchange="ddp", batch_size=3)
    examples = record.workload_words["examples_per_epoch"]
    step_ms = ((11 + 35 / 3) / 2 + 34 / 3) / 2
    assert record.epoch_time_s == pytest.approx(step_ms / 1e3 * examples / 6)
