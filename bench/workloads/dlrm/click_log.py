"""Interface of a click log, real or synthetic: lines of counts, categories and a click, in three splits."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

SPLITS = ("train", "validation", "test")

Counts = NDArray[np.float32]
Categories = NDArray[np.int64]
Clicks = NDArray[np.bool_]


class Lines(NamedTuple):
    """Consecutive lines: ln(1 + count), zero where a count is missing or negative; row numbers by table; clicks."""

    counts: Counts  # (lines, 13)
    categories: Categories  # (26, lines)
    clicks: Clicks  # (lines,)


class ClickLog(Protocol):
    """Lines by split and position. ``ceiling`` is the best possible score, where it is known."""

    name: str
    content_hash: str

    @property
    def ceiling(self) -> dict[str, float]: ...
    def size(self, split: str) -> int: ...
    def lines(self, split: str, first: int, last: int) -> Lines: ...
