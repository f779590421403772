"""Times of steps and epochs as values, by the definition of :mod:`bench.core.times`, and ratios of two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

import pandas as pd

from bench.core.intervals import Estimate, paired_ratio, unpaired_ratio
from bench.core.launches import calls_by_launch, pairing_by_launch
from bench.core.record import Record
from bench.core.samples import Block, Machine, best_calibrations_ms, calibrations_ms, disturbed_blocks
from bench.core.times import rare_estimate_ms, step_means_ms, step_time_ms, steps_per_epoch

Per = Literal["epoch", "step"]


@dataclass(frozen=True)
class Time:
    """A time per epoch in s, or per step in ms; ``rare`` is its part in rare events, which its bounds cover too.

    The part has bounds of its own where rare events were timed in several launches; it is 0 where there are none.
    """

    total: Estimate
    rare: Estimate


@dataclass(frozen=True, kw_only=True, eq=False)
class StepTimes:
    """The times of one finished record.

    Args:
        by: the mean step and the mean epoch with their bounds, where there is one. Of a record without blocks, it is
            the column: its median step and its epoch time, without bounds.
        means: the mean step in ms of each undisturbed block.
        disturbed: number of blocks that are left out.
        calls: by launch the place of its call, the earliest being 0.
        pairings: by launch the name that arms share which took turns in it; empty where it ran alone.
        examples: examples that all ranks together take in a step.
        calibrations: by launch the machine, and the calibration products in ms of the blocks that the times are of.
        quickest: the least time in ms that a calibration product took, by machine.
    """

    by: Mapping[Per, Time]
    means: Mapping[Block, float]
    disturbed: int
    calls: Mapping[int, int]
    pairings: Mapping[int, str]
    examples: int
    calibrations: list[tuple[Machine, list[float]]]
    quickest: Mapping[Machine, float]

    @classmethod
    def of(cls, record: Record) -> Self | None:
        """Return the times of a record; None where it did not finish."""
        if record.status != "ok":
            return None
        means, step, steps = step_means_ms(record), step_time_ms(record), steps_per_epoch(record)
        rare = rare_estimate_ms(record, {launch for launch, _ in means})
        own = {"step": record.step_time_median_ms, "epoch": record.epoch_time_s}
        factors: dict[Per, float] = {"step": 1.0} if steps is None else {"step": 1.0, "epoch": steps / 1e3}
        by: dict[Per, Time] = {}
        for per, factor in factors.items():
            column = own[per]
            total = _times(step, factor) if step else None if column is None else Estimate(column, None, None, 0)
            if total is not None:
                by[per] = Time(total, _times(rare, factor))
        return cls(
            by=by,
            means=means,
            disturbed=disturbed_blocks(record),
            calls=calls_by_launch(record),
            pairings=pairing_by_launch(record),
            examples=record.global_batch,
            calibrations=calibrations_ms(record),
            quickest=best_calibrations_ms([record]),
        )

    @property
    def step(self) -> Estimate | None:
        """The time of a step in ms; None where there is none."""
        time = self.by.get("step")
        return time.total if time else None

    def together(self, other: StepTimes) -> set[int]:
        """Return the launches in which both arms took turns."""
        return {launch for launch, name in self.pairings.items() if name and other.pairings.get(launch) == name}

    def over(self, other: StepTimes) -> Estimate | None:
        """Return the ratio of epoch times: paired by block where both were timed together; None without blocks."""
        if not self.means or not other.means:
            return None
        scale = other.examples / self.examples  # steps per epoch differ where batches do
        scaled = {block: ms * scale for block, ms in self.means.items()}
        together = self.together(other)
        common = {block for block in self.means.keys() & other.means.keys() if block[0] in together}
        if common:
            sides = ({block: side[block] for block in common} for side in (scaled, other.means))
            return paired_ratio(*(self._by_call(side) for side in sides))
        return unpaired_ratio(self._by_call(scaled), other._by_call(other.means))

    def _by_call(self, means: Mapping[Block, float]) -> dict[tuple[int, int, int], float]:
        return {(self.calls.get(launch, 0), launch, block): ms for (launch, block), ms in means.items()}


def _times(estimate: Estimate, factor: float) -> Estimate:
    low, high = (None if bound is None else bound * factor for bound in (estimate.low, estimate.high))
    return replace(estimate, value=estimate.value * factor, low=low, high=high)


def known(times: pd.Series) -> list[StepTimes | None]:
    """Return the times of a column, None where one is missing."""
    return [one if isinstance(one, StepTimes) else None for one in times]


def steps(times: pd.Series) -> list[Estimate | None]:
    """Return the step times in ms of a column of times, None where there is none."""
    return [one.step if one else None for one in known(times)]


def ratios(above: pd.Series, below: pd.Series) -> list[Estimate | None]:
    """Return the ratios of two columns of times, None where either is missing or has no blocks."""
    pairs = zip(known(above), known(below), strict=True)
    return [one.over(other) if one and other else None for one, other in pairs]
