"""When a slowdown counts: significant by a rank test, as large as the tolerance, and found again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.core.intervals import Estimate, paired_ratio

#: Probability, without any slowdown, of a rank test that says otherwise.
SIGNIFICANCE = 0.01

#: Rounds with which the rank test can reach that at all: 2^-7 < 0.01.
FEWEST_ROUNDS = 7

Kind = Literal["unchanged", "inconclusive", "regression"]


def signed_rank_p(differences: Sequence[float]) -> float:
    """One-sided p-value of Wilcoxon's signed-rank test, exact, that the differences tend to be above zero.

    Zeros are left out and equal magnitudes share their mean rank; the distribution is over all signs of the ranks that
    are there.

    >>> signed_rank_p([1, 2, 3, 4, 5])  # one of 2^5 assignments of signs
    0.03125
    """
    magnitudes = sorted(abs(value) for value in differences if value)
    doubled = {  # twice the mean rank, which is whole
        size: 2 * magnitudes.index(size) + magnitudes.count(size) + 1 for size in set(magnitudes)
    }
    observed = sum(doubled[value] for value in differences if value > 0)
    ways = [1]  # number of assignments of signs, by the sum of the doubled ranks above zero
    for size in magnitudes:
        rank = doubled[size]
        longer = [*ways, *[0] * rank]
        for total, count in enumerate(ways):
            longer[total + rank] += count
        ways = longer
    return sum(ways[observed:]) / 2 ** len(magnitudes)


@dataclass(frozen=True)
class Slowdown:
    """A measurement's result: how many times slower than the base, with its interval, and the rank test's p-value."""

    estimate: Estimate
    p: float

    @classmethod
    def between(cls, tree: Sequence[float], base: Sequence[float]) -> Slowdown:
        """From one ratio per round and tree; the rounds pair them."""
        differences = [math.log(own / other) for own, other in zip(tree, base, strict=True)]
        return cls(paired_ratio(dict(enumerate(tree)), dict(enumerate(base))), signed_rank_p(differences))

    @property
    def significant(self) -> bool:
        return self.p < SIGNIFICANCE

    def counts(self, tolerance: float) -> bool:
        """Whether it is significant and at least the tolerance."""
        return self.significant and self.estimate.value >= 1 + tolerance

    def __str__(self) -> str:
        interval = f"[{self.estimate.low:.3f}, {self.estimate.high:.3f}]" if self.estimate.low is not None else ""
        return f"{self.estimate.value:.3f}x {interval} of the base, p = {self.p:.2g}"

    def numbers(self) -> Mapping[str, float | None]:
        """For records."""
        return {
            "slowdown": self.estimate.value,
            "low": self.estimate.low,
            "high": self.estimate.high,
            "p": self.p,
        }


@dataclass(frozen=True)
class Decision:
    """What the measurements of a benchmark amount to; ``second`` is None where the first one settled it."""

    kind: Kind
    why: str
    first: Slowdown
    second: Slowdown | None = None

    def __str__(self) -> str:
        again = "" if self.second is None else f"; measured again {self.second}"
        return f"{self.kind}, {self.why}: {self.first}{again}"


def decide(first: Slowdown, tolerance: float, measure_again: Callable[[], Slowdown]) -> Decision:
    """Judge a measurement; a slowdown that counts is measured again, independently, before it is called a regression.

    Args:
        first: the measurement.
        tolerance: slowdown that is accepted; 0.25 is a quarter.
        measure_again: called only where needed.
    """
    large = first.estimate.value >= 1 + tolerance
    if not first.counts(tolerance):
        if first.significant:
            return Decision("inconclusive", f"slower by less than {tolerance:.0%}", first)
        if large:
            return Decision("inconclusive", "not significant", first)
        return Decision("unchanged", "no slowdown", first)
    second = measure_again()
    if second.counts(tolerance):
        return Decision("regression", f"slower by {tolerance:.0%} or more, twice", first, second)
    return Decision("inconclusive", "not confirmed", first, second)
