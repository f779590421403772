"""Where a curve over the compression ratio crosses another one; and lists of numbers in words."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from bench.core.intervals import Estimate

#: A curve as quotients to what it is compared with, by whole-model ratio.
Quotients = Mapping[float, Estimate]


def crossings(curve: Quotients) -> list[float]:
    """Ratios at which the quotient passes 1, interpolated between neighbours on logarithmic axes.

    >>> crossings({1.5: Estimate.exact(2.0), 6.0: Estimate.exact(0.5)})
    [3.0]
    """
    found = []
    for (left, above), (right, below) in pairwise(sorted(curve.items())):
        start, end = math.log(above.value), math.log(below.value)
        if (start < 0) != (end < 0):
            found.append(round(left * (right / left) ** (start / (start - end)), 12))
    return found


def listed(numbers: Sequence[float]) -> str:
    """Numbers in a sentence.

    >>> listed([1.5, 2, 100]), listed([2])
    ('1.5, 2 and 100', '2')
    """
    return joined([f"{number:.3g}" for number in numbers])


def joined(words: Sequence[str]) -> str:
    """Words in a sentence.

    >>> joined(["1.5x", "2.1x", "2.6x"]), joined(["4x"])
    ('1.5x, 2.1x and 2.6x', '4x')
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
