"""Time per epoch as a cell of a figure: from a record to its bar, its columns and what is to be said about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from bench.core.intervals import Estimate
from bench.core.record import Record
from bench.core.samples import disturbed_blocks
from figures.bars import Bar, value_label
from figures.reasons import Reasons
from figures.tables import (
    DISTURBED,
    NOT_ASKED,
    NOT_RECORDED,
    OLDER,
    OLDER_WORDS,
    UNPAIRED,
    bounds,
    pairing,
    significant,
    with_interval,
)
from figures.timing import EXAMPLES_PER_EPOCH, EpochTime, epoch_time, time_ratio

#: The whole of the paper's epoch, as a sentence.
EPOCH_WORDS = f"An epoch is the paper's whatever the data: {EXAMPLES_PER_EPOCH:,} examples padded to 128 tokens."

MARK_WORDS = {
    OLDER: OLDER_WORDS,
    UNPAIRED: "ratio unpaired: the two arms were not timed block by block together",
    DISTURBED: "every block was disturbed: the record's own epoch time, without interval",
}


@dataclass(frozen=True)
class TimeCell:
    """Time of one cell; ``status`` is empty where the cell is outside the grid."""

    status: str
    message: str = ""
    epoch: EpochTime | None = None
    ratio: Estimate | None = None  # to the reference, of epoch times
    disturbed: int = 0
    marks: str = ""


class Timed(Protocol):
    """A row of a figure with the time of its cell."""

    @property
    def time(self) -> TimeCell: ...


def time_cell(record: Record | None, reference: Record | None, older: str) -> TimeCell:
    """The time in a record of the grid, if there is one, and its ratio to the reference's, if that is another.

    Args:
        record: of the cell.
        reference: what it is compared with; None for the reference itself.
        older: the mark of a record that older code made, or nothing.
    """
    if record is None:
        return TimeCell(NOT_RECORDED)
    epoch = epoch_time(record)
    if epoch is None:
        return TimeCell("no time" if record.status == "ok" else record.status, record.message, marks=older)
    ratio = time_ratio(record, reference) if reference is not None else None
    marks = older
    if ratio is not None and ratio.paired is False:
        marks += UNPAIRED
    if epoch.total.blocks == 0:
        marks += DISTURBED
    return TimeCell("ok", record.message, epoch, ratio, disturbed_blocks(record), marks)


def time_unit(rows: Iterable[Timed]) -> tuple[str, float]:
    """The unit that suits the longest epoch: its name, and how many of it a second is."""
    longest = max((row.time.epoch.total.value for row in rows if row.time.epoch), default=0.0)
    if longest >= 2 * 3600:
        return "hours", 1 / 3600
    return ("minutes", 1 / 60) if longest >= 120 else ("seconds", 1.0)


def time_bar(cell: TimeCell, fill: str, scale: float, reasons: Reasons) -> Bar:
    """The steps as a bar of ``fill``, then the amortised rare events; ``scale`` is how many of the unit a second is."""
    epoch = cell.epoch
    if epoch is None:
        return Bar(instead=reasons.instead(cell))
    total, rare = epoch.total, epoch.rare * scale
    parts = [(fill, total.value * scale - rare), *([("rare", rare)] if rare else [])]
    interval = None if total.low is None or total.high is None else (total.low * scale, total.high * scale)
    label = value_label(total.value * scale, cell.ratio.value if cell.ratio else None, cell.marks)
    return Bar(tuple(parts), interval, label=label)


def time_text(cell: TimeCell, scale: float) -> str:
    """The time with its interval, or what stands in its place."""
    return with_interval(cell.epoch.total, scale) if cell.epoch else cell.status or NOT_ASKED


def time_columns(cell: TimeCell, over: str = "comera") -> dict[str, object]:
    """The cell as columns of a tidy table, in seconds; ``over`` is what the ratio is to."""
    epoch = cell.epoch
    return {
        "time_status": cell.status or "not in the grid",
        "time_message": cell.message,
        **bounds("epoch_time_s", epoch.total if epoch else None),
        "epoch_rare_s": epoch.rare if epoch else None,
        **bounds(f"time_over_{over}", cell.ratio),
        "time_pairing": pairing(cell.ratio),
        "blocks": epoch.total.blocks if epoch else None,
        "disturbed_blocks": cell.disturbed if epoch else None,
    }


def disagreement(name: str, cell: TimeCell, record: Record | None) -> list[str]:
    """What to say about a record, called ``name``, whose own epoch time is not what its blocks give."""
    said = record.epoch_time_s if record else None
    if cell.epoch is None or said is None or abs(said / cell.epoch.total.value - 1) <= 0.01:
        return []
    return [
        f"{name}: the record's epoch time of {significant(said)} s differs from the "
        f"{significant(cell.epoch.total.value)} s that its undisturbed blocks give, which is what is shown."
    ]
