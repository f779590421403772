"""What Fig. 12 shows against the ratio: time, peak memory and FLOPs, each as values and as quotients to dense's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.core.intervals import Estimate
from figures.crossover import Quotients, sides, standing
from figures.fig12_rows import Row
from figures.fig12_selection import LOW_RANK, Sweep
from figures.reasons import Missing
from figures.runs import COMERA, DENSE
from figures.tables import NOT_RECORDED, significant


@dataclass(frozen=True)
class Quantity:
    """How a row is read: its value on the panel's axis, and quotients of it."""

    name: str  # in a sentence
    title: str  # of a panel
    axis: str
    batches: tuple[int, ...]  # that there is a panel for
    value: Callable[[Row], Estimate | None]  # dense's bounds are the lowest and the highest of its jobs
    over_dense: Callable[[Row], Estimate | None]
    over_low_rank: Callable[[Row, Row], Estimate | None]  # of CoMERA's row and low_rank's
    cell: Callable[[Row], Missing]  # what tells why there is no value
    dense_words: Callable[[Row], str]
    measured: bool = False  # whether the allocator's peaks are of the same quantity


def _exact(value: float | None) -> Estimate | None:
    return Estimate.exact(value) if value else None


def _quotient(above: float | None, below: float | None) -> Estimate | None:
    return Estimate.exact(above / below) if above and below else None


def time_per_epoch(sweep: Sweep, unit: str, scale: float) -> Quantity:
    """Epoch times as quotients to dense's in the same job; ``scale`` is how many of the unit a second is."""

    def value(row: Row) -> Estimate | None:
        if row.arm != DENSE or row.time.epoch is None:
            return row.time.ratio
        middle = row.time.epoch.total.value
        jobs = [cell.epoch.total.value / middle for cell in row.timings.values() if cell.epoch is not None]
        return Estimate(1.0, min(jobs), max(jobs), len(jobs))

    return Quantity(
        name="Time per epoch",
        title="time",
        axis="time per epoch / dense",
        batches=tuple(sweep.time_batches),
        value=value,
        over_dense=lambda row: row.time.ratio,
        over_low_rank=lambda row, _: row.over_low_rank,
        cell=lambda row: row.time,
        dense_words=lambda row: f"{significant(row.time.epoch.total.value * scale)} {unit}" if row.time.epoch else "",
    )


def peak_memory(sweep: Sweep, target: str) -> Quantity:
    """Predicted peaks in MiB."""
    name = {"cuda": "CUDA", "cpu": "a CPU"}[target]
    return Quantity(
        name=f"Peak memory for {name}",
        title="memory",
        axis=f"peak predicted for {name}, MiB",
        batches=tuple(sweep.memory_batches(target)),
        value=lambda row: _exact(row.memory[target].peak),
        over_dense=lambda row: _exact(row.memory[target].ratio),
        over_low_rank=lambda row, other: _quotient(row.memory[target].peak, other.memory[target].peak),
        cell=lambda row: row.memory[target],
        dense_words=lambda row: f"{significant(row.memory[target].peak or 0.0, 4)} MiB",
        measured=target == sweep.kind == "cuda",
    )


def work_per_step(sweep: Sweep) -> Quantity:
    """FLOPs of one step, at the batch sizes that were timed or, where none was, predicted."""

    def failed(row: Row) -> Missing:
        return next((cell for cell in row.cells if cell.status not in ("", "ok", NOT_RECORDED)), row.time)

    return Quantity(
        name="FLOPs per step",
        title="FLOPs",
        axis="GFLOP per step",
        batches=tuple(sweep.time_batches or sorted({batch for _, batch, _ in sweep.slots})),
        value=lambda row: _exact((row.flops or 0) / 1e9),
        over_dense=lambda row: _exact(row.flops_over_dense),
        over_low_rank=lambda row, other: _quotient(row.flops, other.flops),
        cell=failed,
        dense_words=lambda row: f"{significant((row.flops or 0) / 1e9, 4)} GFLOP",
    )


def rows_of_arm(rows: Sequence[Row], arm: str, batch: int) -> list[Row]:
    """The rows of one arm at one batch size, by ratio."""
    return sorted((row for row in rows if (row.arm, row.batch_size) == (arm, batch)), key=lambda row: row.ratio)


def values(rows: Sequence[Row], value: Callable[[Row], Estimate | None]) -> Quotients:
    """By ratio, what is known of the rows."""
    return {row.ratio: one for row in rows if (one := value(row)) is not None}


def _by_words(words: dict[int, str]) -> str:
    """Words about batch sizes, each once with all of those that it is true of."""
    gathered: dict[str, list[str]] = {}
    for batch, said in words.items():
        gathered.setdefault(said, []).append(str(batch))
    return "; ".join(f"{said} [batch {', '.join(batches)}]" for said, batches in gathered.items())


def against_dense(rows: Sequence[Row], arm: str, quantity: Quantity) -> list[str]:
    """A sentence on where the arm's curve crosses dense's, if there is a curve."""
    curves = {batch: values(rows_of_arm(rows, arm, batch), quantity.over_dense) for batch in quantity.batches}
    words = {batch: standing(curve) for batch, curve in curves.items() if curve}
    return [f"{quantity.name}, {arm} against dense: {_by_words(words)}."] if words else []


def against_low_rank(rows: Sequence[Row], quantity: Quantity) -> list[str]:
    """A sentence on where CoMERA takes more than low_rank at the same ratio, if both are there."""
    words = {}
    for batch in quantity.batches:
        rivals = {row.ratio: row for row in rows_of_arm(rows, LOW_RANK, batch)}
        pairs = [(row, rivals[row.ratio]) for row in rows_of_arm(rows, COMERA, batch) if row.ratio in rivals]
        quotients = {row.ratio: quantity.over_low_rank(row, rival) for row, rival in pairs}
        if curve := {ratio: one for ratio, one in quotients.items() if one is not None}:
            words[batch] = sides(curve)
    return [f"{quantity.name}, comera against low_rank of the same size: {_by_words(words)}."] if words else []
