"""Ranges and intervals of a mean and of ratios over launches and blocks; and bootstrap bounds over examples.

A block is one round in which every arm had its turn. Blocks of one launch share what differs from launch to launch,
such as where the processes lie in memory and what else the machine does in those minutes. Launches repeat
independently; blocks and steps do not.

Fewer than :data:`MIN_LAUNCHES` launches give a *range*: the least and the greatest value over launches, or over the
blocks of a single launch. A range is no confidence interval. From :data:`MIN_LAUNCHES` on the bounds are a 95 %
*interval*, the percentile bootstrap that draws launches first and then blocks within each. Its seed is fixed and values
are sorted before drawing, so the same blocks give the same interval in any order.

Launches of one call lie minutes apart and share what the machine did in that time. Where launches are of several calls
(commands, hours or days apart), calls take the place of launches, and launches that of blocks: a range is over calls,
and an interval draws calls first.

A block is named by its launch and its number there, or by its call, launch and number; one named otherwise belongs to
the only launch.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

SEED = 0
RESAMPLES = 4000
CONFIDENCE = 0.95

#: Fewest launches, or seeds, of an interval. The range of n independent values holds their median with probability
#: 1 - 2**(1 - n): 0.75 for three, 0.94 for five, 0.97 for six. Fewer than six cannot bound it with :data:`CONFIDENCE`.
MIN_LAUNCHES = 6

_FEW_PATTERNS = 500  # above this many, drawing counts of patterns takes longer than drawing examples

Array = NDArray[np.float64]


#: Kind of ``low`` and ``high``: nothing, least and greatest measured value, or an interval; of one call or of several.
Kind = Literal["", "range", "interval", "range over calls", "interval over calls"]


@dataclass(frozen=True)
class Estimate:
    """A value with its bounds; ``low`` and ``high`` are None where fewer than two blocks support it."""

    value: float
    low: float | None
    high: float | None
    blocks: int  # the fewest blocks on either side of a ratio; 0 for a computed value that does not vary
    paired: bool | None = None  # None where nothing is compared
    launches: int = 1  # the fewest that these blocks are of
    kind: Kind = ""  # of the bounds; empty without bounds and for a computed value

    @property
    def span(self) -> tuple[float, float]:
        """The bounds, or the value twice where there are none."""
        return (self.value, self.value) if self.low is None or self.high is None else (self.low, self.high)

    @property
    def bounds_are(self) -> str:
        """Name what the bounds are; empty where there are none.

        >>> mean_estimate([1.0, 2.0]).bounds_are
        'range over blocks'
        """
        over = "launches" if self.launches > 1 else "blocks"
        names = {"range": f"range over {over}", "interval": f"{CONFIDENCE:.0%} interval over launches and blocks"}
        names |= {"interval over calls": f"{CONFIDENCE:.0%} interval over calls and launches"}
        return names.get(self.kind, self.kind)

    @classmethod
    def exact(cls, value: float) -> Self:
        """Return a computed value that does not vary, such as a predicted size."""
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


@dataclass(frozen=True)
class _Measured:
    """The blocks of one side of an estimate.

    Args:
        units: what repeats independently: launches, each with the sorted values of its blocks, or where these are of
            several calls the calls, each with the sorted statistics of its launches.
        blocks, launches: how many there are.
        calls: whether the units are calls.
    """

    units: list[Array]
    blocks: int
    launches: int
    calls: bool


def _measured(statistic: Callable[..., Any], values: Mapping[Any, float] | Sequence[float], what: str) -> _Measured:
    named = values if isinstance(values, Mapping) else dict(enumerate(values))
    found: dict[tuple[int, ...], list[float]] = {}
    for block, value in named.items():
        found.setdefault(block[:-1] if isinstance(block, tuple) else (0,), []).append(value)
    launches = {launch: _positive(found[launch], what) for launch in sorted(found)} or {(0,): _positive((), what)}
    calls: dict[int, list[float]] = {}
    for launch, blocks in launches.items():
        calls.setdefault(launch[0] if len(launch) > 1 else 0, []).append(float(statistic(blocks)))
    several = len(calls) > 1
    units = [np.sort(np.asarray(of_call)) for of_call in calls.values()] if several else list(launches.values())
    return _Measured(units, len(named), len(launches), several)


def _resampled(statistic: Callable[..., Any], launches: Sequence[Array], generator: np.random.Generator) -> Array:
    """Return the statistic over launches of the statistic over blocks, of resampled ones of both: (RESAMPLES,)."""
    draws = [
        [
            statistic(blocks[generator.integers(0, blocks.size, size=(RESAMPLES, blocks.size))], axis=-1)
            for blocks in launches
        ]
        for _ in launches
    ]
    if len(launches) == 1:
        return np.asarray(draws[0][0])
    chosen = generator.integers(0, len(launches), size=(len(launches), 1, RESAMPLES))
    return np.asarray(statistic(np.take_along_axis(np.asarray(draws), chosen, axis=1)[:, 0], axis=0))


def _ends(statistic: Callable[..., Any], launches: Sequence[Array]) -> tuple[float, float]:
    """Return the least and the greatest statistic of a launch, or block of the only launch."""
    values = launches[0] if len(launches) == 1 else [float(statistic(blocks)) for blocks in launches]
    return float(min(values)), float(max(values))


def _estimate(statistic: Callable[..., Any], sides: Sequence[_Measured], paired: bool | None = None) -> Estimate:
    """Estimate the statistic of the only side, or the ratio of those of two sides.

    An interval resamples each side on its own. A range of two sides reaches from the least quotient of a launch above
    and a launch below to the greatest, which is the widest range that the launches allow.
    """
    units = [side.units for side in sides]
    value = float(functools.reduce(np.divide, [statistic([statistic(one) for one in side]) for side in units]))
    blocks, launches = min(side.blocks for side in sides), min(side.launches for side in sides)
    if blocks < 2:
        return Estimate(value, None, None, blocks, paired, launches)
    calls = any(side.calls for side in sides)
    if min(map(len, units)) < MIN_LAUNCHES:
        (low, high), *below = (_ends(statistic, side) for side in units)
        for least, greatest in below:
            low, high = low / greatest, high / least
        return Estimate(value, low, high, blocks, paired, launches, "range over calls" if calls else "range")
    generator = np.random.default_rng(SEED)
    distribution = functools.reduce(np.divide, [_resampled(statistic, side, generator) for side in units])
    kind: Kind = "interval over calls" if calls else "interval"
    return Estimate(value, *_percentiles(distribution), blocks, paired, launches, kind)


def mean_estimate(values: Mapping[Any, float] | Sequence[float]) -> Estimate:
    """Return the mean over launches of the means over blocks, with its range or interval.

    >>> mean_estimate([2.0, 2.5, 3.0])
    Estimate(value=2.5, low=2.0, high=3.0, blocks=3, paired=None, launches=1, kind='range')
    """
    return _estimate(np.mean, [_measured(np.mean, values, "mean")])


def paired_ratio(numerator: Mapping[Any, float], denominator: Mapping[Any, float]) -> Estimate:
    """Return the median of the ratios of blocks with the same name, with its range or interval.

    Other blocks do not count. Of several launches it is the median of their medians, of several calls that of theirs.

    Raises ValueError: no common block, or a value that is not above zero.
    """
    common = sorted(set(numerator) & set(denominator))
    for side, name in ((numerator, "numerator"), (denominator, "denominator")):
        _positive([side[block] for block in common], f"{name} of a paired ratio")
    ratios = {block: numerator[block] / denominator[block] for block in common}
    return _estimate(np.median, [_measured(np.median, ratios, "paired ratio")], paired=True)


def unpaired_ratio(
    numerator: Mapping[Any, float] | Sequence[float], denominator: Mapping[Any, float] | Sequence[float]
) -> Estimate:
    """Return the ratio of the two medians over blocks, with its range or interval.

    Of several launches it is the ratio of the medians of medians. A range holds every quotient of a launch above and a
    launch below.

    Raises ValueError: a side without blocks, or a value that is not above zero.

    >>> found = unpaired_ratio({(0, 0): 2.0, (1, 0): 3.0}, {(0, 0): 1.0, (1, 0): 2.0})
    >>> found.low, found.high, found.kind
    (1.0, 3.0, 'range')
    """
    above = _measured(np.median, numerator, "numerator of an unpaired ratio")
    below = _measured(np.median, denominator, "denominator of an unpaired ratio")
    return _estimate(np.median, [above, below], paired=False)


def mean_over_examples(values: Array) -> tuple[float, float, float]:
    """Return the mean of ``values`` (seed, example) and its bootstrap bounds over examples and, if several, seeds.

    The bounds are a 95 % interval of one seed, which then leaves out what another seed changes, and of at least
    :data:`MIN_LAUNCHES` seeds; of two to five seeds they are too narrow for that.

    Examples with the same values for all seeds are exchangeable, so how often each pattern of values is drawn follows a
    multinomial distribution: the same as drawing examples one by one, and independent of their order. Real numbers
    have about as many patterns as examples; there, drawing one by one is quicker.

    >>> mean_over_examples(np.array([[1.0, 1.0, 1.0, 1.0]]))
    (1.0, 1.0, 1.0)
    """
    return _over_examples(values.shape, np.ascontiguousarray(values, np.float64).tobytes())


@functools.lru_cache(maxsize=2048)  # several figures show the same score
def _over_examples(shape: tuple[int, int], content: bytes) -> tuple[float, float, float]:
    values = np.frombuffer(content).reshape(shape)
    seeds, examples = shape
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
