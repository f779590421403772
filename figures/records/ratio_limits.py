"""How far the compression ratios of a method go, read from the message of a record whose ratio lies beyond."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_SENTENCE = re.compile(r"^ratio=\S+ is out of reach .*; the (largest|smallest) within reach is ([\d.]+(?:e\+\d+)?),")


@dataclass(frozen=True)
class RatioLimit:
    """A method's ratios go at most to this one, or begin at it."""

    side: Literal["most", "least"]
    ratio: float

    def __str__(self) -> str:
        return f"at {self.side} {self.ratio:.3g}x"


def limit_of(message: str) -> RatioLimit | None:
    """The limit that a record's message tells of; None for other messages.

    >>> sentence = "ratio=200 is out of reach for the whole model, where …; the largest within reach is 145.07, with …"
    >>> str(limit_of(sentence))
    'at most 145x'
    """
    found = _SENTENCE.match(message)
    if found is None:
        return None
    return RatioLimit("most" if found[1] == "largest" else "least", float(found[2]))
