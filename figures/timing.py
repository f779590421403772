"""From one timed record, or two, to epoch times and ratios."""

from __future__ import annotations

from dataclasses import dataclass

from bench.core.intervals import Estimate, mean_interval, paired_ratio, unpaired_ratio
from bench.core.record import Record
from bench.core.samples import block_means_ms

#: The paper's epoch (all of MNLI's training pairs), whatever data the timed batches came from.
EXAMPLES_PER_EPOCH = 392_702


@dataclass(frozen=True)
class EpochTime:
    """Time per epoch in seconds. ``rare`` is the part of ``total`` spent in rare events; the interval is the steps'."""

    total: Estimate
    rare: float


def rare_ms_per_step(record: Record) -> float:
    """The amortised cost of rare events (GaLore's SVD, LTE's merge) in ms per step; 0 where the arm has none."""
    if record.rare_time_ms is None or not record.rare_period_steps:
        return 0.0
    return record.rare_time_ms / record.rare_period_steps


def epoch_time(record: Record) -> EpochTime | None:
    """Mean step × examples / batch, plus Σ rare cost / period; None where the cell has no time.

    The interval resamples blocks. Without an undisturbed block the record's own epoch time stands, without interval.
    """
    if record.status != "ok":
        return None
    steps = EXAMPLES_PER_EPOCH / record.batch_size
    rare_s = rare_ms_per_step(record) * steps / 1000
    means = list(block_means_ms(record).values())
    if not means:
        if record.epoch_time_s is None:
            return None
        return EpochTime(Estimate(record.epoch_time_s, None, None, 0), rare_s)
    step = mean_interval(means)

    def seconds(ms: float) -> float:
        return ms * steps / 1000 + rare_s

    low = None if step.low is None else seconds(step.low)
    high = None if step.high is None else seconds(step.high)
    return EpochTime(Estimate(seconds(step.value), low, high, step.blocks), rare_s)


def time_ratio(numerator: Record, denominator: Record) -> Estimate | None:
    """Ratio of epoch times: paired by block where both were timed together, else unpaired; None without blocks."""
    if numerator.status != "ok" or denominator.status != "ok":
        return None
    above = {n: ms + rare_ms_per_step(numerator) for n, ms in block_means_ms(numerator).items()}
    below = {n: ms + rare_ms_per_step(denominator) for n, ms in block_means_ms(denominator).items()}
    if not above or not below:
        return None
    scale = denominator.batch_size / numerator.batch_size  # steps per epoch differ where batches do
    together = numerator.pairing != "" and numerator.pairing == denominator.pairing
    if together and set(above) & set(below):
        return paired_ratio({n: ms * scale for n, ms in above.items()}, below)
    return unpaired_ratio([ms * scale for ms in above.values()], list(below.values()))
