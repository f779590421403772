"""What stands in a figure where a cell has nothing to draw."""

from __future__ import annotations

from typing import Protocol

from figures.tables import NOT_RECORDED


class Missing(Protocol):
    """A cell of a figure; ``status`` is empty where the cell is outside the grid."""

    @property
    def status(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def marks(self) -> str: ...


class Reasons:
    """Numbers the distinct reasons of cells that have no bar, in the order in which they are met."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def instead(self, cell: Missing) -> str:
        """The words in place of the cell's bar, with the number of their reason."""
        if cell.status in ("", NOT_RECORDED) or not cell.message:
            return f"{cell.status or 'not in the grid'} {cell.marks}".strip()
        reason = f"{cell.status}: {' '.join(cell.message.split())}"
        number = self.numbers.setdefault(reason, len(self.numbers) + 1)
        return f"{cell.status} ({number}) {cell.marks}".strip()

    def lines(self) -> list[str]:
        """The reasons by number, for the foot of the page."""
        return [f"({number}) {reason}" for reason, number in self.numbers.items()]
