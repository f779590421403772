"""A cell of a figure or table that has nothing to show, and why."""

import re
from dataclasses import dataclass
from typing import Literal

from figures.text import NOT_ASKED, NOT_RECORDED

#: Stands for the memory of steps with CUDA Graph or torch.compile, since predictions are of plain ones.
NOT_MODELLED = "not modelled"

#: Stands in a table where the grid has no cell.
NOT_IN_GRID = "not in the grid"

_LIMIT = re.compile(r"^ratio=\S+ is out of reach .*; the (largest|smallest) within reach is ([\d.]+(?:e\+\d+)?),")


@dataclass(frozen=True)
class RatioLimit:
    """A method's compression ratios go at most to this one, or begin at it."""

    side: Literal["most", "least"]
    ratio: float

    def __str__(self) -> str:
        return f"at {self.side} {self.ratio:.3g}x"


def limit_of(message: str) -> RatioLimit | None:
    """The limit that the message of a record tells of, whose ratio lies beyond it; None for other messages.

    >>> sentence = "ratio=200 is out of reach for the whole model, where …; the largest within reach is 145.07, with …"
    >>> str(limit_of(sentence))
    'at most 145x'
    """
    found = _LIMIT.match(message)
    return RatioLimit("most" if found[1] == "largest" else "least", float(found[2])) if found else None


@dataclass(frozen=True)
class Missing:
    """A cell of a figure or table that may hold nothing; ``status`` is empty where the cell is outside the grid."""

    status: str
    message: str = ""
    marks: str = ""

    @property
    def failed(self) -> bool:
        """Whether there is a record without the value that it should have."""
        return self.status not in ("", "ok", NOT_IN_GRID, NOT_RECORDED, NOT_MODELLED)

    @property
    def in_words(self) -> str:
        """What a table shows in place of a number: the status, or the end of the ratios that the method can reach."""
        return str(limit_of(self.message) or self.status or NOT_ASKED)

    @property
    def in_full(self) -> str:
        return f"{self.status}: {' '.join(self.message.split())}" if self.message else self.status
