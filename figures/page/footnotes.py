"""The numbered reasons at the foot of a page, why cells have nothing to show."""

from figures.records.missing import Missing


class Footnotes:
    """Numbers the distinct reasons of cells that have no bar, in the order in which they are met."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def instead(self, cell: Missing) -> str:
        """The words in place of the cell's bar, with the number of their reason."""
        numbered = f" ({self.number(cell.in_full)})" if cell.failed and cell.message else ""
        return f"{cell.status or 'not in the grid'}{numbered} {cell.marks}".strip()

    def number(self, reason: str) -> int:
        return self.numbers.setdefault(reason, len(self.numbers) + 1)

    def lines(self) -> list[str]:
        """The reasons by number, for the foot of the page."""
        return [f"({number}) {reason}" for reason, number in self.numbers.items()]
