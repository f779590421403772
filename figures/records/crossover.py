"""Where a curve over the compression ratio crosses another one: as numbers and in words."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from bench.core.intervals import Estimate
from figures.text import significant

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


def undecided(curve: Quotients) -> list[float]:
    """Ratios at which the bounds leave open on which side of 1 the quotient lies, or at which there is none."""
    return [
        ratio for ratio, one in sorted(curve.items()) if one.low is None or one.high is None or one.low <= 1 <= one.high
    ]


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


def standing(curve: Quotients) -> str:
    """How a curve stands to the one it is compared with, in words.

    >>> standing({2.0: Estimate.exact(2.0), 8.0: Estimate.exact(0.5)})
    'more below about 4 (measured at 2 and 8), less above it'
    >>> standing({2.0: Estimate.exact(0.5), 8.0: Estimate.exact(0.3)})
    'less at every ratio from 2 to 8, no crossover'
    """
    crossed, first, last = crossings(curve), min(curve), max(curve)
    start, end = ("less" if curve[ratio].value < 1 else "more" for ratio in (first, last))
    if len(crossed) == 1:
        left = max(ratio for ratio in curve if ratio <= crossed[0])
        right = min(ratio for ratio in curve if ratio > left)
        words = f"{start} below about {listed(crossed)} (measured at {left:g} and {right:g}), {end} above it"
    elif crossed:
        words = f"{start} at ratio {first:g}, {end} at {last:g}, crossovers at {listed(crossed)}"
    elif first < last:
        words = f"{start} at every ratio from {first:g} to {last:g}, no crossover"
    else:
        words = f"{start} at ratio {first:g}"
    open_ones = undecided(curve)
    return words + (f" (not sure at {listed(open_ones)})" if open_ones else "")


def sides(curve: Quotients) -> str:
    """At which ratios a curve surely lies above 1, at which below, and at which neither, with the extremes.

    >>> sides({2.0: Estimate.exact(1.25), 4.0: Estimate.exact(1.1), 8.0: Estimate.exact(0.5)})
    'more at 2 and 4 (up to 1.25x), less at 8 (down to 0.500x)'
    >>> sides({2.0: Estimate.exact(1.25), 4.0: Estimate.exact(1.1)})
    'more at every ratio measured (up to 1.25x)'
    """
    groups: dict[str, list[float]] = {"more": [], "less": [], "not sure": []}
    open_ones = undecided(curve)
    for ratio, one in sorted(curve.items()):
        groups["not sure" if ratio in open_ones else "more" if one.value > 1 else "less"].append(ratio)
    parts = []
    for side, ratios in groups.items():
        if not ratios:
            continue
        values = [curve[ratio].value for ratio in ratios]
        far = {"more": f" (up to {significant(max(values))}x)", "less": f" (down to {significant(min(values))}x)"}
        where = "every ratio measured" if len(ratios) == len(curve) else listed(ratios)
        parts.append(f"{side} at {where}{far.get(side, '')}")
    return ", ".join(parts)
