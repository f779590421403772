"""Validation accuracy with its interval, and the difference between two models on the same validation examples.

One seed: what varies is the choice of validation examples alone. An accuracy gets Wilson's interval, a difference a
paired bootstrap over the examples. Several seeds: both are resampled, the seeds and, the same for all of them, the
examples. With two or three seeds the spread over seeds is still underestimated, as with any bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from bench.core.intervals import CONFIDENCE, mean_over_examples
from bench.core.samples import Values


@dataclass(frozen=True)
class Percent:
    """An accuracy in percent, or a difference of two in points, with its interval."""

    value: float
    low: float
    high: float
    examples: int
    seeds: int

    def __str__(self) -> str:
        return f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"

    @property
    def signed(self) -> str:
        """As a difference, such as ``-1.2 [-3.0, +0.6]``."""
        return f"{self.value:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"

    @property
    def seeds_text(self) -> str:
        """``one seed`` or ``3 seeds``."""
        return "one seed" if self.seeds == 1 else f"{self.seeds} seeds"


def wilson(right: int, examples: int) -> Percent:
    """Accuracy of one model with Wilson's score interval.

    >>> print(wilson(5, 10))
    50.0 [23.7, 76.3]
    """
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    share = right / examples
    centre = share + z * z / (2 * examples)
    spread = z * math.sqrt(share * (1 - share) / examples + (z / (2 * examples)) ** 2)
    scale = 100 / (1 + z * z / examples)
    return Percent(100 * share, scale * (centre - spread), scale * (centre + spread), examples, 1)


def _resampled_mean(values: NDArray[np.float64]) -> Percent:
    """The mean of ``values`` (seed, example), in percent; resampled are examples and, if several, seeds."""
    seeds, examples = values.shape
    return Percent(*mean_over_examples(100 * values), examples, seeds)


def _stacked(answers: Mapping[int, Values], seeds: list[int]) -> NDArray[np.float64]:
    lengths = {len(answers[seed]) for seed in seeds}
    if len(lengths) != 1:
        raise ValueError(f"validation examples differ in number: {', '.join(map(str, sorted(lengths)))}.")
    return np.stack([answers[seed] for seed in seeds]).astype(np.float64)


def accuracy(answers: Mapping[int, Values]) -> Percent:
    """Mean accuracy over seeds.

    Args:
        answers: by seed, which validation examples were answered rightly.

    Raises:
        ValueError: no seed, or different numbers of examples.
    """
    seeds = sorted(answers)
    if not seeds:
        raise ValueError("no seed to estimate an accuracy from.")
    if len(seeds) == 1:
        [one] = answers.values()
        return wilson(int(one.sum()), len(one))
    return _resampled_mean(_stacked(answers, seeds))


def difference(ours: Mapping[int, Values], theirs: Mapping[int, Values]) -> Percent | None:
    """Mean accuracy of ours less theirs, in points, paired by seed and by validation example.

    >>> right, wrong = np.array([True, True, True, True]), np.array([True, True, True, False])
    >>> print(difference({0: right}, {0: wrong}).signed)
    +25.0 [+0.0, +75.0]

    Returns:
        None where no seed has both.

    Raises:
        ValueError: different numbers of examples.
    """
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    above, below = _stacked(ours, seeds), _stacked(theirs, seeds)
    if above.shape != below.shape:
        raise ValueError(f"validation examples differ in number: {above.shape[1]} and {below.shape[1]}.")
    return _resampled_mean(above - below)
