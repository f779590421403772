"""The numbered reasons at the foot of a page, why cells have nothing to show."""

from figures.text import NOT_IN_GRID, NOT_MODELLED, NOT_RECORDED


def has_failed(status: str) -> bool:
    """Return whether a cell has a record without the value that it should have, by its status."""
    return status not in ("", "ok", NOT_IN_GRID, NOT_RECORDED, NOT_MODELLED)


class Footnotes:
    """Numbers the distinct reasons of cells that have no value, in the order in which they are met."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def words(self, status: str, message: str, marks: str = "") -> str:
        """Return what stands in place of a bar, by the status of its cell, with the number of its reason."""
        numbered = f" ({self.number(status, message)})" if has_failed(status) and message else ""
        return f"{status or NOT_IN_GRID}{numbered} {marks}".strip()

    def number(self, status: str, message: str = "") -> int:
        """Return the number of a reason."""
        reason = f"{status}: {' '.join(message.split())}" if message else status
        return self.numbers.setdefault(reason, len(self.numbers) + 1)

    def lines(self) -> list[str]:
        """Return the reasons by number, for the foot of the page."""
        return [f"({number}) {reason}" for reason, number in self.numbers.items()]
