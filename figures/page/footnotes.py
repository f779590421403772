"""What stands in a figure or table where a cell has nothing to show, and the numbered reasons below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from figures.page.table import NOT_ASKED, NOT_RECORDED
from figures.records.ratio_limits import limit_of


class Missing(Protocol):
    """A cell of a figure; ``status`` is empty where the cell is outside the grid."""

    @property
    def status(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def marks(self) -> str: ...


def in_words(cell: Missing) -> str:
    """What a table shows in place of a number: the status, or the end of the ratios that the method can reach."""
    return str(limit_of(cell.message) or "") or cell.status or NOT_ASKED


def in_full(cell: Missing) -> str:
    """The status with its message, if it has one."""
    return f"{cell.status}: {' '.join(cell.message.split())}" if cell.message else cell.status


class Footnotes:
    """Numbers the distinct reasons of cells that have no bar, in the order in which they are met."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def instead(self, cell: Missing) -> str:
        """The words in place of the cell's bar, with the number of their reason."""
        if cell.status in ("", NOT_RECORDED) or not cell.message:
            return f"{cell.status or 'not in the grid'} {cell.marks}".strip()
        return f"{cell.status} ({self.number(in_full(cell))}) {cell.marks}".strip()

    def number(self, reason: str) -> int:
        """The number of a reason."""
        return self.numbers.setdefault(reason, len(self.numbers) + 1)

    def lines(self) -> list[str]:
        """The reasons by number, for the foot of the page."""
        return [f"({number}) {reason}" for reason, number in self.numbers.items()]


def remarks(time: Missing, memory: Mapping[str, Missing], disturbed: int, message: str = "") -> str:
    """What a table says about a row: every failure with its reason once, however many of its cells share it.

    Args:
        time, memory: the row's cells; memory by the device that it is predicted for.
        disturbed: how many of the row's blocks are left out.
        message: what its record says although it did not fail.
    """
    seen: dict[str, list[str]] = {}
    for what, cell in {"time": time, **{f"memory for {target}": cell for target, cell in memory.items()}}.items():
        if cell.status not in ("", "ok", NOT_RECORDED):
            seen.setdefault(f"{cell.status}: {cell.message}" if cell.message else cell.status, []).append(what)
    parts = [f"{reason} ({', '.join(what)})" for reason, what in seen.items()]
    if message:
        parts.append(message)
    if disturbed:
        parts.append(f"{disturbed} disturbed block(s) left out")
    return "; ".join(parts)
