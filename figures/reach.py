"""Ratios that a method cannot reach, as the sentence of a record tells them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_SENTENCE = re.compile(r"^ratio=\S+ is out of reach .*; the (largest|smallest) within reach is ([\d.]+(?:e\+\d+)?),")


@dataclass(frozen=True)
class Reach:
    """How far a method's ratios go: at most or at least this one."""

    side: Literal["most", "least"]
    ratio: float

    def __str__(self) -> str:
        return f"at {self.side} {self.ratio:.3g}x"


def reach_of(message: str) -> Reach | None:
    """The end of a method's reach, where that is what a record is about.

    >>> sentence = "ratio=200 is out of reach for the whole model, where …; the largest within reach is 145.07, with …"
    >>> str(reach_of(sentence))
    'at most 145x'
    """
    found = _SENTENCE.match(message)
    if found is None:
        return None
    return Reach("most" if found[1] == "largest" else "least", float(found[2]))
