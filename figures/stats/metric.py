"""The metric that leads a workload, what models reach in it, and how far two of them are apart, with bounds.

One seed: what varies is the choice of validation examples alone. A share of right answers gets Wilson's interval, a
mean of numbers and every difference a (paired) bootstrap over the examples. Several seeds: both are resampled, the
seeds and, the same for all of them, the examples. Fewer than six seeds are too few for a 95 % interval, since the
bootstrap underestimates their spread: such bounds are called a bootstrap over seeds and examples and no interval. A
metric that is no mean over examples has no bounds, or where it asks for that the range over seeds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.core.intervals import CONFIDENCE, MIN_LAUNCHES, mean_over_examples
from figures.text import rounded, significant

Values = NDArray[np.float64]


@dataclass(frozen=True)
class LeadingMetric:
    """The leading metric of a record; the fields are those of :class:`bench.protocol.Metric`, and ``by_seed``.

    ``by_seed``: whether several seeds have their range as bounds where no example has a value of its own.

    >>> accuracy = LeadingMetric("accuracy", "validation accuracy", "%")
    >>> accuracy.heading, accuracy.axis, accuracy.written(79.44), accuracy.unit_apart
    ('accuracy, %', 'validation accuracy, %', '79.4 %', 'points')
    """

    name: str
    text: str
    unit: str = ""
    higher_is_better: bool = True
    guess: float | None = None
    probe: float | None = None
    probe_text: str = ""
    by_seed: bool = False

    @property
    def short(self) -> str:
        return self.text.removeprefix("validation ")

    @property
    def heading(self) -> str:
        return f"{self.short}, {self.unit}" if self.unit else self.short

    @property
    def axis(self) -> str:
        unit = f", {self.unit}" if self.unit else ""
        return f"{self.text}{unit}{'' if self.higher_is_better else ' (lower is better)'}"

    @property
    def unit_apart(self) -> str:
        return "points" if self.unit == "%" else self.unit

    def less_column(self, other: str) -> str:
        """Return the column of the difference to another arm, such as ``less_dense_points``."""
        return re.sub(r"\W+", "_", f"less {other} {self.unit_apart}").strip("_")

    def number(self, value: float, sign: bool = False) -> str:
        """Write a value without its unit; with ``sign`` a difference."""
        text = rounded(value, 1) if self.unit == "%" else significant(value, 3 if sign else 4)
        return f"+{text}" if sign and not text.startswith("-") else text

    def written(self, value: float) -> str:
        """Write a value with its unit."""
        return f"{self.number(value)} {self.unit}".rstrip()

    def gain(self, value: float, other: float) -> float:
        """Return by how much a value is better than another one; below zero where it is worse."""
        return value - other if self.higher_is_better else other - value


@dataclass(frozen=True)
class MetricValue:
    """A model's metric, with its value for each validation example where it is their mean.

    In place of examples there may be groups of them, of one size.
    """

    value: float
    per_example: Values | None = None
    examples: int | None = None


#: What a score's bounds are: none, a 95 % interval, a bootstrap over too few seeds for one, or the range over seeds.
ScoreKind = Literal["", "interval", "bootstrap", "range"]


@dataclass(frozen=True)
class Score:
    """A metric as the mean over seeds, or a difference of two such means, with its bounds."""

    metric: LeadingMetric
    value: float
    low: float | None
    high: float | None
    examples: int | None
    seeds: int
    kind: ScoreKind = ""

    @property
    def bounds_are(self) -> str:
        """Name what the bounds are; empty where there are none."""
        interval = f"{CONFIDENCE:.0%} interval"
        words = {"bootstrap": "bootstrap over seeds", "range": "range over seeds"}
        return {"": "", "interval": interval, **words}[self.kind]

    def text(self, sign: bool = False, unit: bool = False) -> str:
        """Write the value with its bounds, such as ``79.4 [76.5, 81.9]``; with ``sign`` as a difference."""
        numbers = [one for one in (self.value, self.low, self.high) if one is not None]
        value, *ends = (self.metric.number(one, sign) for one in numbers)
        bounds = f" [{', '.join(ends)}]" if ends else ""
        name = (self.metric.unit_apart if sign else self.metric.unit) if unit else ""
        return f"{value}{bounds} {name}".rstrip()

    __str__ = text

    @property
    def seeds_text(self) -> str:
        return "one seed" if self.seeds == 1 else f"{self.seeds} seeds"

    @property
    def span(self) -> tuple[float, float]:
        """Return the bounds, or the value twice where there are none."""
        if self.low is None or self.high is None:
            return self.value, self.value
        return self.low, self.high

    def beats(self, bound: float) -> bool:
        """Return whether both bounds are better than ``bound``."""
        return all(self.metric.gain(end, bound) > 0 for end in self.span)


def _stacked(models: Sequence[MetricValue]) -> Values | None:
    """Return the values (seed, example); None where a model has none."""
    values = [one.per_example for one in models if one.per_example is not None]
    if len(values) < len(models):
        return None
    if len(lengths := {len(one) for one in values}) != 1:
        raise ValueError(f"validation examples differ in number: {', '.join(map(str, sorted(lengths)))}.")
    return np.stack(values)


def _bootstrapped(metric: LeadingMetric, means: Sequence[float], values: Values | None, examples: int | None) -> Score:
    """Return the mean over seeds, with bootstrap bounds where there are ``values`` (seed, example)."""
    seeds = len(means)
    if values is None and metric.by_seed and seeds > 1:
        return Score(metric, sum(means) / seeds, min(means), max(means), examples, seeds, "range")
    if values is None:
        return Score(metric, sum(means) / seeds, None, None, examples, seeds)
    kind: ScoreKind = "bootstrap" if 1 < seeds < MIN_LAUNCHES else "interval"
    return Score(metric, *mean_over_examples(values), examples or values.shape[1], seeds, kind)


def score(metric: LeadingMetric, models: Mapping[int, MetricValue]) -> Score | None:
    """Return the mean of a metric over seeds; None without any. Raises ValueError where examples differ in number.

    >>> accuracy = LeadingMetric("accuracy", "validation accuracy", "%")
    >>> print(score(accuracy, {0: MetricValue(50.0, np.array([100.0, 0.0] * 5))}))
    50.0 [23.7, 76.3]
    """
    if not models:
        return None
    seeds = [models[seed] for seed in sorted(models)]
    values, right = _stacked(seeds), 100.0 if metric.unit == "%" else 1.0
    if values is None or len(seeds) > 1 or not np.isin(values, (0.0, right)).all():
        return _bootstrapped(metric, [one.value for one in seeds], values, seeds[0].examples)
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    share, examples = float((values > 0).mean()), values.size
    centre = share + z * z / (2 * examples)
    spread = z * math.sqrt(share * (1 - share) / examples + (z / (2 * examples)) ** 2)
    scale = right / (1 + z * z / examples)  # Wilson's score interval
    low, high = scale * (centre - spread), scale * (centre + spread)
    return Score(metric, right * share, low, high, examples, 1, "interval")


def difference(
    metric: LeadingMetric, ours: Mapping[int, MetricValue], theirs: Mapping[int, MetricValue]
) -> Score | None:
    """Return the mean of ours less theirs, paired by seed and by validation example; None where no seed has both.

    Raises ValueError where examples differ in number.

    >>> right, wrong = np.array([100.0, 100.0, 100.0, 100.0]), np.array([100.0, 100.0, 100.0, 0.0])
    >>> ours, theirs = MetricValue(100.0, right), MetricValue(75.0, wrong)
    >>> difference(LeadingMetric("accuracy", "validation accuracy", "%"), {0: ours}, {0: theirs}).text(sign=True)
    '+25.0 [+0.0, +75.0]'
    """
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    values = _stacked([side[seed] for seed in seeds for side in (ours, theirs)])
    apart = None if values is None else values[::2] - values[1::2]
    means = [ours[seed].value - theirs[seed].value for seed in seeds]
    return _bootstrapped(metric, means, apart, ours[seeds[0]].examples)
