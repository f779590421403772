"""The numbered reasons at the foot of a page, why cells have nothing to show."""

from figures.records.missing import NOT_MODELLED, Missing
from figures.text import NOT_RECORDED


class Footnotes:
    """Numbers the distinct reasons of cells that have no bar, in the order in which they are met."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def instead(self, cell: Missing) -> str:
        """The words in place of the cell's bar, with the number of their reason."""
        numbered = f" ({self.number(cell.in_full)})" if cell.failed and cell.message else ""
        return f"{cell.status or 'not in the grid'}{numbered} {cell.marks}".strip()

    def words(self, status: str, message: str, marks: str = "") -> str:
        """Return what stands in place of a bar, by the status of its cell, with the number of its reason."""
        failed = status not in ("", "ok", "not in the grid", NOT_RECORDED, NOT_MODELLED) and message
        reason = f"{status}: {' '.join(message.split())}"
        numbered = f" ({self.number(reason)})" if failed else ""
        return f"{status or 'not in the grid'}{numbered} {marks}".strip()

    def number(self, reason: str) -> int:
        return self.numbers.setdefault(reason, len(self.numbers) + 1)

    def lines(self) -> list[str]:
        """The reasons by number, for the foot of the page."""
        return [f"({number}) {reason}" for reason, number in self.numbers.items()]
