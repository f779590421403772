"""Fig. 12 as rows: one per batch size, whole-model ratio and arm, from which panels and tables are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from bench.core.intervals import Estimate
from bench.core.record import Record
from figures.epochs import TimeCell, time_cell
from figures.fig12_selection import LOW_RANK, Slot, Sweep
from figures.memory import Measured, MemoryCell, measured_peaks, memory_cell
from figures.reach import Reach, reach_of
from figures.runs import COMERA, DENSE
from figures.selection import TARGETS
from figures.tables import NOT_RECORDED
from figures.timing import EpochTime, time_ratio


@dataclass(frozen=True)
class Row:
    """One arm at one batch size and ratio; dense has one row per batch size, at ratio 1."""

    arm: str
    batch_size: int
    ratio: float
    time: TimeCell  # over dense in the same job; of dense itself the median over its jobs
    memory: dict[str, MemoryCell]  # by target; over dense
    measured: Measured
    flops: int | None  # per step
    parameters: int | None
    flops_over_dense: float | None = None
    size_ratio: float | None = None  # what became of the wished-for ratio
    over_low_rank: Estimate | None = None  # CoMERA's time over that of low_rank at the same ratio
    timings: Mapping[float, TimeCell] = field(default_factory=dict)  # of dense, by the ratio that it was timed beside

    @property
    def cells(self) -> list[TimeCell | MemoryCell]:
        return [self.time, *self.memory.values()]

    @property
    def reach(self) -> Reach | None:
        """The end of the method's reach, where the ratio lies beyond it."""
        return next((reach for cell in self.cells if (reach := reach_of(cell.message))), None)


def _memory_cell(sweep: Sweep, target: str, slot: Slot) -> MemoryCell:
    """A cell that was to be timed and failed before its memory was predicted says so here as well."""
    arm, batch, _ = slot
    record = sweep.predicted.get((target, slot)) or (sweep.timed.get(slot) if target == sweep.kind else None)
    if record is None:
        return MemoryCell(NOT_RECORDED if batch in sweep.memory_batches(target) else "")
    dense = sweep.predicted.get((target, (DENSE, batch, 1.0))) if arm != DENSE else None
    return memory_cell(record, dense.peak_memory_predicted_mib if dense else None, sweep.older(record))


def _known(sweep: Sweep, slot: Slot, runs: list[Record]) -> tuple[int | None, int | None]:
    """FLOPs per step and parameters, from whichever record knows them."""
    plans = (sweep.predicted.get((target, slot)) for target in TARGETS)
    known = (record for record in [*runs, *plans] if record is not None and record.flops_per_step is not None)
    record = next(known, None)
    return (record.flops_per_step, record.parameters) if record else (None, None)


def _quotient(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def _dense_time(timings: Mapping[float, TimeCell], timed: bool) -> TimeCell:
    good = {ratio: cell.epoch for ratio, cell in timings.items() if cell.epoch is not None}
    if not good:
        return next(iter(timings.values()), TimeCell(NOT_RECORDED if timed else ""))
    middle = median(epoch.total.value for epoch in good.values())
    marks = "".join(dict.fromkeys(mark for ratio in good for mark in timings[ratio].marks))
    disturbed = sum(timings[ratio].disturbed for ratio in good)
    return TimeCell("ok", "", EpochTime(Estimate(middle, None, None, len(good)), 0.0), None, disturbed, marks)


def _dense_row(sweep: Sweep, batch: int) -> Row:
    slot = (DENSE, batch, 1.0)
    runs = {ratio: run for (arm, size, ratio), run in sorted(sweep.timed.items()) if (arm, size) == slot[:2]}
    timings = {ratio: time_cell(run, None, sweep.older(run)) for ratio, run in runs.items()}
    measured = next((run for run in runs.values() if run.peak_memory_allocated_mib is not None), None)
    memory = {target: _memory_cell(sweep, target, slot) for target in TARGETS}
    flops, parameters = _known(sweep, slot, list(runs.values()))
    time = _dense_time(timings, batch in sweep.time_batches)
    return Row(DENSE, batch, 1.0, time, memory, measured_peaks(measured), flops, parameters, timings=timings)


def _row(sweep: Sweep, slot: Slot, dense: Row) -> Row:
    arm, batch, ratio = slot
    run, beside = sweep.timed.get(slot), sweep.timed.get((DENSE, batch, ratio))
    rival = sweep.timed.get((LOW_RANK, batch, ratio)) if arm == COMERA else None
    flops, parameters = _known(sweep, slot, [run] if run else [])
    return Row(
        arm=arm,
        batch_size=batch,
        ratio=ratio,
        time=time_cell(run, beside, sweep.older(run)) if batch in sweep.time_batches else TimeCell(""),
        memory={target: _memory_cell(sweep, target, slot) for target in TARGETS},
        measured=measured_peaks(run),
        flops=flops,
        parameters=parameters,
        flops_over_dense=_quotient(flops, dense.flops),
        size_ratio=_quotient(dense.parameters, parameters),
        over_low_rank=time_ratio(run, rival) if run and rival else None,
    )


def rows_of(sweep: Sweep) -> list[Row]:
    """Dense, then every arm at every ratio, for each batch size that is timed or predicted."""
    rows = []
    for batch in sorted({batch for _, batch, _ in sweep.slots}):
        dense = _dense_row(sweep, batch)
        arms = (_row(sweep, (arm, batch, ratio), dense) for ratio in sweep.ratios(batch) for arm in sweep.arms)
        rows += [dense, *arms]
    return rows


def speed_up(sweep: Sweep, arm: str, batch: int, ratio: float) -> Estimate | None:
    """Dense's time per epoch over the arm's, paired by block where both were timed together."""
    above, below = sweep.timed.get((DENSE, batch, ratio)), sweep.timed.get((arm, batch, ratio))
    return time_ratio(above, below) if above and below else None
