"""Runs that differ in their seed alone: what they reached, their sizes, and the times of their steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from bench.core.intervals import Estimate, paired_ratio
from bench.core.record import Record, RecordError
from figures.records.cells import parts_of_peak, quotient, sizes_of
from figures.records.metric import Metric, Reached, Score, difference, score
from figures.records.training import curve_of, metric_of, ranks_before, reached
from figures.text import NOT_RECORDED, significant

#: How many times smaller a trained model is than the dense one, and its layers than the weights they stand in for.
RATIOS = {"total_ratio": ("dense_mib", "stored_mib"), "tensorized_ratio": ("dense_tensorized_mib", "tensorized_mib")}

#: S may exceed S0 by this factor and still count as reached: both are quotients of whole numbers.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Spread:
    """A mean over seeds with the least and the greatest of them."""

    value: float
    low: float
    high: float
    kind: ClassVar = "range"

    @classmethod
    def of(cls, values: Collection[float | None]) -> Spread | None:
        """Return the spread of values; None without any, or where a seed lacks it."""
        numbers = [value for value in values if value is not None]
        if not numbers or len(numbers) < len(values):
            return None
        return cls(sum(numbers) / len(numbers), min(numbers), max(numbers))

    def text(self, unit: str) -> str:
        """Return the mean with its unit and, where rounding leaves a difference, the least and the greatest."""
        low, high = significant(self.low), significant(self.high)
        return f"{significant(self.value)}{unit}" + (f" ({low} to {high})" if low != high else "")


class StepTimes(NamedTuple):
    """Step time at the trained ranks and at the full ones, in ms; ``ratio`` is paired block by block."""

    trained: float
    full: float
    ratio: Estimate


def _block_means(record: Record, name: str) -> list[float]:
    """Return the mean step time in ms of each block at the ``trained`` or at the ``full`` ranks."""
    times = record.samples["step_ms"]
    blocks = times.get(name) if isinstance(times, dict) else None
    good = isinstance(blocks, list) and all(isinstance(block, list) and block for block in blocks)
    if not blocks or not good or not all(isinstance(ms, int | float) and ms > 0 for block in blocks for ms in block):
        raise RecordError(f"record {record.cell_id}: samples.step_ms.{name} must be blocks of times above 0.")
    return [sum(block) / len(block) for block in blocks]


def size_met(run: Record) -> bool | None:
    """Return whether S <= S0; None where the run aimed at no size."""
    size, target = run.size_fraction, run.size_target
    return None if size is None or target is None else size <= target * _ROUNDING


@dataclass(frozen=True, eq=False)
class Seeds:
    """Runs by seed; unknown values are None.

    Args:
        metric: the one that leads on their page.
        runs: by seed, failed ones too; None where a seed was never run.
    """

    metric: Metric
    runs: Mapping[int, Record | None]

    @cached_property
    def finished(self) -> dict[int, Record]:
        """Return the finished runs by seed."""
        return {seed: run for seed, run in self.runs.items() if run is not None and run.status == "ok"}

    @property
    def status(self) -> str:
        """Return ``ok`` where at least one seed finished, else what became of them."""
        found = [run.status for run in self.runs.values() if run is not None]
        return "ok" if self.finished else " / ".join(dict.fromkeys(found)) or NOT_RECORDED

    @property
    def steps(self) -> int | None:
        """Return after how many steps the runs ended."""
        return max((curve_of(run)[-1].step for run in self.finished.values()), default=None)

    def ends(self, metric: Metric | None = None) -> dict[int, Reached]:
        """Return a metric at the end of the finished runs, by seed; by default the one that leads."""
        name = (metric or self.metric).name
        return {
            seed: curve_of(run)[-1] if metric_of(run).name == name else reached(run.samples["curve"][-1], name)
            for seed, run in self.finished.items()
        }

    def score(self, metric: Metric | None = None) -> Score | None:
        """Return a metric over seeds; None without a finished run."""
        metric = metric or self.metric
        if metric.name not in self._scores:
            ends = self.ends(metric)
            self._scores[metric.name] = score(metric, ends) if ends else None
        return self._scores[metric.name]

    @cached_property
    def _scores(self) -> dict[str, Score | None]:
        return {}

    def less(self, other: Seeds | None, metric: Metric | None = None) -> Score | None:
        """Return the difference to others in a metric, paired by seed and example; None where no seed has both."""
        metric = metric or self.metric
        return None if other is None else difference(metric, self.ends(metric), other.ends(metric))

    def spread(self, column: str) -> Spread | None:
        """Return a column of the records, or one of :data:`RATIOS`, over seeds."""
        above, below = RATIOS.get(column, (column, ""))
        values = [(getattr(run, above), getattr(run, below) if below else 1.0) for run in self.finished.values()]
        return Spread.of([quotient(*pair) if below else pair[0] for pair in values])

    def mean(self, column: str) -> float | None:
        """Return the mean of a column over seeds."""
        spread = self.spread(column)
        return spread.value if spread else None

    @property
    def size_met(self) -> bool | None:
        """Return whether S <= S0 for every seed."""
        met = {size_met(run) for run in self.finished.values()}
        return None if met <= {None} else False not in met

    @property
    def nothing_cut(self) -> bool:
        """Return whether the ranks are still the full ones."""
        pairs = [(ranks_before(run), curve_of(run)[-1].ranks) for run in self.finished.values()]
        return any(before for before, _ in pairs) and all(before == after for before, after in pairs)

    @cached_property
    def times(self) -> StepTimes | None:
        """Return step times over the blocks of all seeds; raises RecordError where these cannot be paired."""
        pairs: list[tuple[float, float]] = []
        for run in self.finished.values():
            if run.samples.get("step_ms"):
                trained, full = _block_means(run, "trained"), _block_means(run, "full")
                if len(trained) != len(full):
                    blocks = f"{len(trained)} and {len(full)} blocks"
                    raise RecordError(f"record {run.cell_id}: samples.step_ms has {blocks}.")
                pairs += zip(trained, full, strict=True)
        if not pairs:
            return None
        above, below = zip(*pairs, strict=True)
        ratio = paired_ratio(dict(enumerate(above)), dict(enumerate(below)))
        return StepTimes(sum(above) / len(pairs), sum(below) / len(pairs), ratio)

    @property
    def peak_parts(self) -> dict[str, float]:
        """Return the mean predicted peak memory in MiB, by category."""
        peaks = [(run, run.peak_memory_predicted_mib) for run in self.finished.values()]
        known = [(run, peak) for run, peak in peaks if peak is not None]
        split: dict[str, float] = {}
        for name, mib in (part for run, peak in known for part in parts_of_peak(peak, sizes_of(run)).items()):
            split[name] = split.get(name, 0.0) + mib / len(known)
        return split
