"""Percentile bootstrap intervals over blocks: of a mean, of a paired ratio, of an unpaired ratio; and over examples.

A block is one round in which every arm had its turn, so blocks, not steps, are what repeats independently. The seed is
fixed and values are sorted before they are drawn from, so the same blocks give the same interval in any order.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

SEED = 0
RESAMPLES = 4000
CONFIDENCE = 0.95
_FEW_PATTERNS = 500  # above this many, drawing counts of patterns takes longer than drawing examples

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; ``low`` and ``high`` are None where fewer than two blocks stand behind it."""

    value: float
    low: float | None
    high: float | None
    blocks: int  # the fewest blocks on either side of a ratio; 0 for a computed value that does not vary
    paired: bool | None = None  # None where nothing is compared

    @classmethod
    def exact(cls, value: float) -> Self:
        """A computed value that does not vary, such as a predicted size."""
        return cls(value, value, value, 0)


def _positive(values: Sequence[float], what: str) -> Array:
    array = np.sort(np.asarray(values, dtype=np.float64))
    if array.size == 0:
        raise ValueError(f"{what}: no block to estimate from.")
    if not np.all(np.isfinite(array)) or array[0] <= 0:
        raise ValueError(f"{what}: block values must be finite and above zero.")
    return array


def _percentiles(distribution: Array) -> tuple[float, float]:
    low, high = np.quantile(distribution, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _estimate(statistic: Callable[..., Any], sides: Sequence[Array], paired: bool | None = None) -> Estimate:
    """A statistic of the only side, or the ratio of those of two; each side is resampled on its own."""
    value = float(functools.reduce(np.divide, [statistic(side) for side in sides]))
    blocks = min(side.size for side in sides)
    if blocks < 2:
        return Estimate(value, None, None, blocks, paired)
    generator = np.random.default_rng(SEED)
    drawn = [side[generator.integers(0, side.size, size=(RESAMPLES, side.size))] for side in sides]
    distribution = functools.reduce(np.divide, [statistic(resamples, axis=-1) for resamples in drawn])
    return Estimate(value, *_percentiles(distribution), blocks, paired)


def mean_interval(values: Sequence[float]) -> Estimate:
    """The mean over blocks with its interval.

    >>> mean_interval([2.0, 2.0, 2.0])
    Estimate(value=2.0, low=2.0, high=2.0, blocks=3, paired=None)
    """
    return _estimate(np.mean, [_positive(values, "mean")])


def paired_ratio(numerator: Mapping[int, float], denominator: Mapping[int, float]) -> Estimate:
    """The median of the ratios of blocks with the same number, with its interval; other blocks do not count.

    Raises ValueError: no common block, or a value that is not above zero.
    """
    common = sorted(set(numerator) & set(denominator))
    for side, name in ((numerator, "numerator"), (denominator, "denominator")):
        _positive([side[block] for block in common], f"{name} of a paired ratio")
    ratios = _positive([numerator[block] / denominator[block] for block in common], "paired ratio")
    return _estimate(np.median, [ratios], paired=True)


def unpaired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """The ratio of the two medians over blocks, with its interval.

    Raises ValueError: a side without blocks, or a value that is not above zero.
    """
    above = _positive(numerator, "numerator of an unpaired ratio")
    below = _positive(denominator, "denominator of an unpaired ratio")
    return _estimate(np.median, [above, below], paired=False)


def mean_over_examples(values: Array) -> tuple[float, float, float]:
    """The mean of ``values`` (seed, example) and its interval; resampled are examples and, if several, seeds.

    Examples with the same values for all seeds are exchangeable, so how often each pattern of values is drawn follows a
    multinomial distribution: the same as drawing examples one by one, and independent of their order. Real numbers
    have about as many patterns as examples; there, drawing one by one is quicker.

    >>> mean_over_examples(np.array([[1.0, 1.0, 1.0, 1.0]]))
    (1.0, 1.0, 1.0)
    """
    seeds, examples = values.shape
    patterns, counts = np.unique(values, axis=1, return_counts=True)
    generator = np.random.default_rng(SEED)
    if counts.size <= _FEW_PATTERNS:
        drawn = generator.multinomial(examples, counts / examples, size=RESAMPLES)  # (resample, pattern)
        means = drawn @ patterns.T / examples  # (resample, seed)
    else:
        in_order = np.repeat(patterns, counts, axis=1)
        draws = (in_order[:, generator.integers(0, examples, examples)].mean(axis=1) for _ in range(RESAMPLES))
        means = np.stack(list(draws))
    if seeds > 1:
        means = np.take_along_axis(means, generator.integers(0, seeds, size=means.shape), axis=1)
    return float(values.mean()), *_percentiles(means.mean(axis=1))
