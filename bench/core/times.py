"""The time of a step and of an epoch, from a record's samples: one definition for records, figures and the explorer.

A time is the mean over calls of the mean over launches of the mean over undisturbed blocks of the mean over steps, plus
the amortised cost of rare events of the launch. An epoch takes that times the steps that the record's workload has in
one.
"""

import statistics
from collections.abc import Collection, Mapping

from bench.core.intervals import Estimate, mean_estimate
from bench.core.launches import calls_by_launch
from bench.core.record import Record
from bench.core.samples import Block, block_means_ms


def rare_ms_per_step(record: Record, launch: int | None = None) -> float:
    """Return the amortised cost of rare events (GaLore's SVD, LTE's merge) in ms per step; 0 where there are none.

    The cost is that of one launch, where they were timed in it, else the record's.
    """
    if record.rare_time_ms is None or not record.rare_period_steps:
        return 0.0
    per_step, times = record.rare_time_ms / record.rare_period_steps, list((record.samples.get("rare") or {}).values())
    if launch is None or not times or any(launch >= len(of_launch) for of_launch in times):
        return per_step
    return per_step * sum(of_launch[launch] for of_launch in times) / sum(map(statistics.median, times))


def rare_estimate_ms(record: Record, launches: Collection[int]) -> Estimate:
    """Return the amortised cost of rare events per step in ms, with bounds if these launches timed them."""
    whole = rare_ms_per_step(record)
    if whole == 0:
        return Estimate.exact(0.0)
    if len(launches) < 2 or not record.samples.get("rare"):
        return Estimate(whole, None, None, 0)
    return mean_estimate(by_call(record, {(launch, 0): rare_ms_per_step(record, launch) for launch in launches}))


def step_means_ms(record: Record, disturbed: bool = False) -> dict[Block, float]:
    """Return the mean step time in ms of each undisturbed block, with the rare events of its launch.

    Where ``disturbed`` blocks count too, it is that of every block.
    """
    return {block: ms + rare_ms_per_step(record, block[0]) for block, ms in block_means_ms(record, disturbed).items()}


def by_call(record: Record, means: Mapping[Block, float]) -> dict[tuple[int, int, int], float]:
    """Return values of blocks by call, launch and block, as estimates over several calls need them."""
    calls = calls_by_launch(record)
    return {(calls.get(launch, 0), launch, block): value for (launch, block), value in means.items()}


def step_time_ms(record: Record) -> Estimate | None:
    """Return the mean step time in ms with its bounds; None where no step was timed.

    Where every block was disturbed, all of them count and the time has no bounds.
    """
    if means := step_means_ms(record):
        return mean_estimate(by_call(record, means))
    if means := step_means_ms(record, disturbed=True):
        return Estimate(mean_estimate(by_call(record, means)).value, None, None, 0)
    return None


def steps_per_epoch(record: Record) -> float | None:
    """Return the steps of the workload's epoch, whatever data was at hand; None where the workload has no epoch."""
    examples = record.workload_words.get("examples_per_epoch")
    return None if examples is None else examples / record.global_batch


def epoch_time_s(record: Record) -> float | None:
    """Return the time of an epoch in s: steps per epoch times :func:`step_time_ms`; None where either is missing."""
    step, steps = step_time_ms(record), steps_per_epoch(record)
    return None if step is None or steps is None else step.value * steps / 1e3
