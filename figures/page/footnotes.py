"""What stands in a figure or table where a cell has nothing to show, and the numbered reasons below."""

from __future__ import annotations

from dataclasses import dataclass

from figures.page.table import NOT_ASKED, NOT_RECORDED
from figures.records.ratio_limits import limit_of

#: Stands for the memory of steps with CUDA Graph or torch.compile, since predictions are of plain ones.
NOT_MODELLED = "not modelled"


@dataclass(frozen=True)
class Missing:
    """A cell of a figure or table that may hold nothing; ``status`` is empty where the cell is outside the grid."""

    status: str
    message: str = ""
    marks: str = ""

    @property
    def failed(self) -> bool:
        """Whether there is a record without the value that it should have."""
        return self.status not in ("", "ok", NOT_RECORDED, NOT_MODELLED)


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
        numbered = f" ({self.number(in_full(cell))})" if cell.failed and cell.message else ""
        return f"{cell.status or 'not in the grid'}{numbered} {cell.marks}".strip()

    def number(self, reason: str) -> int:
        """The number of a reason."""
        return self.numbers.setdefault(reason, len(self.numbers) + 1)

    def lines(self) -> list[str]:
        """The reasons by number, for the foot of the page."""
        return [f"({number}) {reason}" for reason, number in self.numbers.items()]
