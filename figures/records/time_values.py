"""Times as figures show them: of an epoch or, where a workload has none, of a step; and ratios of times.

The time of a step and of an epoch is that of :mod:`bench.core.times`, which records hold as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from bench.core.intervals import Estimate, paired_ratio, unpaired_ratio
from bench.core.launches import paired_launches
from bench.core.record import Record
from bench.core.samples import disturbed_blocks
from bench.core.times import rare_estimate_ms, step_means_ms, step_time_ms, steps_per_epoch
from bench.core.vocabulary import MNLI_TRAIN_ROWS
from figures.records.missing import Missing
from figures.text import (
    DISTURBED,
    NOT_RECORDED,
    UNPAIRED,
    bounds,
    pairing,
    unpaired,
)

#: The paper's epoch: all of MNLI's training pairs.
PAPER_EXAMPLES = MNLI_TRAIN_ROWS

Per = Literal["epoch", "step"]


#: What a value of the validation metric is of, by workload, where that is no example: of records whose words lack it.
_VALIDATED = {"code": "held-out file"}


def workload_words(record: Record) -> Mapping[str, Any]:
    """What figures call the record's model (``model``), what its batches are counted in (``example``), what a value of
    the validation metric is of where that is no example (``validated``), and what an epoch is (``epoch``,
    ``examples_per_epoch``).
    """
    default = {"model": record.workload, "epoch": "", "example": "example", "examples_per_epoch": None}
    return {**default, "validated": _VALIDATED.get(record.workload, ""), **record.workload_words}


@dataclass(frozen=True)
class Time:
    """A time per epoch in s, or per step in ms; ``rare`` is its part in rare events, which its bounds cover too.

    The part has bounds of its own where rare events were timed in several launches; it is 0 where there are none.
    """

    total: Estimate
    rare: Estimate
    per: Per = "epoch"


def time_of(record: Record, per: Per = "epoch") -> Time | None:
    """Return the mean step, or epoch, of :mod:`bench.core.times` with its bounds; None where the cell has no time.

    Of a record without blocks, the column stands: its epoch time or its median step, without bounds.
    """
    if record.status != "ok":
        return None
    factor = 1.0
    if per == "epoch":
        steps = steps_per_epoch(record)
        assert steps is not None, f"record {record.cell_id}: its workload has no epoch"
        factor = steps / 1e3
    rare = _times(rare_estimate_ms(record, {launch for launch, _ in step_means_ms(record)}), factor)
    step = step_time_ms(record)
    if step is None:
        own = record.epoch_time_s if per == "epoch" else record.step_time_median_ms
        return None if own is None else Time(Estimate(own, None, None, 0), rare, per)
    return Time(_times(step, factor), rare, per)


def _times(estimate: Estimate, factor: float) -> Estimate:
    low, high = (None if bound is None else bound * factor for bound in (estimate.low, estimate.high))
    return replace(estimate, value=estimate.value * factor, low=low, high=high)


def time_ratio(numerator: Record | None, denominator: Record | None) -> Estimate | None:
    """Ratio of epoch times: paired by block where both were timed together, else unpaired; None without blocks."""
    if numerator is None or denominator is None or {numerator.status, denominator.status} != {"ok"}:
        return None
    above, below = step_means_ms(numerator), step_means_ms(denominator)
    if not above or not below:
        return None
    scale = denominator.global_batch / numerator.global_batch  # steps per epoch differ where batches do
    together = paired_launches(numerator, denominator)
    common = {block for block in above.keys() & below.keys() if block[0] in together}
    if common:
        return paired_ratio({n: above[n] * scale for n in common}, {n: below[n] for n in common})
    return unpaired_ratio({n: ms * scale for n, ms in above.items()}, below)


@dataclass(frozen=True)
class TimeCell(Missing):
    """Time of one cell, and its ratio to the reference's."""

    time: Time | None = None
    ratio: Estimate | None = None
    disturbed: int = 0


def time_cell(record: Record | None, reference: Record | None, older: str, per: Per = "epoch") -> TimeCell:
    """The time in a record of the grid, if there is one, and its ratio to that of ``reference``, if there is one.

    ``older`` is the mark of a record that older code made, or nothing.
    """
    if record is None:
        return TimeCell(NOT_RECORDED)
    time, ratio = time_of(record, per), time_ratio(record, reference)
    if time is None:
        return TimeCell("no time" if record.status == "ok" else record.status, record.message, older)
    marks = older + UNPAIRED * unpaired(ratio) + DISTURBED * (time.total.blocks == 0)
    return TimeCell("ok", record.message, marks, time, ratio, disturbed_blocks(record))


def time_fields(cell: TimeCell, per: Per, over: str, rare: bool = True) -> dict[str, Any]:
    """Return the columns of a table on a time: epochs are in seconds, steps in ms; the ratio is ``over`` another arm.

    Args:
        cell: what stands there.
        per: what the time is of.
        over: the arm that ``cell.ratio`` is to.
        rare: whether the part in rare events has columns of its own.
    """
    assert cell.time is None or cell.time.per == per, f"this time is not per {per}"
    name, rare_name = {"epoch": ("epoch_time_s", "epoch_rare_s"), "step": ("step_time_ms", "step_rare_ms")}[per]
    total, part = (cell.time.total, cell.time.rare) if cell.time else (None, None)
    return {
        "time_status": cell.status or "not in the grid",
        "time_message": cell.message,
        **bounds(name, total),
        **(bounds(rare_name, part) if rare else {}),
        **bounds(f"time_over_{over}", cell.ratio),
        "time_pairing": pairing(cell.ratio),
        "launches": total and total.launches,
        "blocks": total and total.blocks,
        "disturbed_blocks": cell.disturbed if cell.time else None,
    }
