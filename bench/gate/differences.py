"""What sets the numbers of a benchmark apart from its baseline, in sentences and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from bench.gate.errors import Regression
from bench.gate.exact import Numbers

#: What a change to a word is called.
_CHANGES = {"present": "new", "absent": "vanished", "supported": "won", "unsupported": "lost"}


@dataclass(frozen=True)
class Difference:
    """One quantity that is not what it was; numbers, or words for whether there is a benchmark or support of an arm."""

    benchmark: str
    quantity: str
    old: int | str
    new: int | str

    @property
    def change(self) -> str:
        """The change in percent, or in a word.

        Example:
            >>> Difference("layer", "flops_per_step", 200, 201).change
            '+0.5 %'
        """
        if isinstance(self.old, int) and isinstance(self.new, int):
            return f"{100 * (self.new - self.old) / self.old:+.3g} %" if self.old else "from nothing"
        return _CHANGES[str(self.new)]

    @property
    def better(self) -> bool:
        """Whether there is less of the quantity, or support where there was none."""
        if isinstance(self.old, int) and isinstance(self.new, int):
            return self.new < self.old
        return self.new == "supported"

    def __str__(self) -> str:
        sentence = (
            f"{self.benchmark}: {self.quantity} was {_written(self.old)}, is {_written(self.new)} ({self.change})"
        )
        if self.quantity == "benchmark":
            return f"{sentence}: accept with make gate-accept"
        if self.better:
            return f"{sentence}, better than the baseline: accept with make gate-accept"
        return f"{sentence}, worse than the baseline"


def differences(name: str, old: Numbers | None, new: Numbers | None) -> list[Difference]:
    """All quantities of a benchmark that are not what they were; None where there was no such benchmark, or is none.

    Example:
        >>> for difference in differences("layer", {"parameters": 7}, {"parameters": 6}):
        ...     print(difference)
        layer: parameters was 7, is 6 (-14.3 %), better than the baseline: accept with make gate-accept
        >>> print(*differences("layer", None, {"parameters": 6}))
        layer: benchmark was absent, is present (new): accept with make gate-accept
    """
    if old is None or new is None:
        presence = ["absent" if numbers is None else "present" for numbers in (old, new)]
        return [Difference(name, "benchmark", *presence)] if presence[0] != presence[1] else []
    if isinstance(old, str) or isinstance(new, str):
        support = ["unsupported" if isinstance(numbers, str) else "supported" for numbers in (old, new)]
        return [Difference(name, "arm", *support)] if support[0] != support[1] else []
    return [
        Difference(name, quantity, old[quantity], new[quantity]) for quantity in old if old[quantity] != new[quantity]
    ]


def refuse(found: Sequence[Difference]) -> None:
    """Raise Regression over any difference, with a line for each."""
    if found:
        raise Regression("\n".join(map(str, found)))


def as_table(found: Iterable[Difference]) -> Table:
    """Old, new and change of each."""
    table = Table(box=box.SIMPLE)
    table.add_column("benchmark", overflow="fold")
    table.add_column("quantity", overflow="fold")
    for heading in ("old", "new", "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in found:
        table.add_row(one.benchmark, one.quantity, _written(one.old), _written(one.new), one.change)
    return table


def _written(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value
