"""Times as figures show them: of an epoch or, where a workload has none, of a step; and ratios of times.

The time of a step and of an epoch is that of :mod:`bench.core.times`, which records hold as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from bench.core.intervals import Estimate, paired_ratio, unpaired_ratio
from bench.core.launches import paired_launches
from bench.core.record import Record
from bench.core.samples import disturbed_blocks
from bench.core.times import by_call, rare_estimate_ms, step_means_ms, step_time_ms, steps_per_epoch
from bench.core.vocabulary import MNLI_TRAIN_ROWS
from figures.columns import time_column
from figures.frame import known
from figures.text import NOT_IN_GRID, NOT_RECORDED, bounds, pairing

#: The paper's epoch: all of MNLI's training pairs.
PAPER_EXAMPLES = MNLI_TRAIN_ROWS

Per = Literal["epoch", "step"]


def workload_words(record: Record) -> Mapping[str, Any]:
    """Return the names of a record's model and batches, and what an epoch is.

    ``model`` names the model, ``example`` what batches are counted in, ``validated`` what a value of the metric is of
    where that is no example; ``epoch`` is a sentence, ``examples_per_epoch`` a number or None.
    """
    default = {"model": record.workload, "epoch": "", "example": "example", "validated": ""}
    return {**default, "examples_per_epoch": None, **record.workload_words}


@dataclass(frozen=True)
class Time:
    """A time per epoch in s, or per step in ms; ``rare`` is its part in rare events, which its bounds cover too.

    The part has bounds of its own where rare events were timed in several launches; it is 0 where there are none.
    """

    total: Estimate
    rare: Estimate


def time_of(record: Record | None, per: Per = "epoch") -> Time | None:
    """Return the mean step, or epoch, of :mod:`bench.core.times` with its bounds; None where the cell has no time.

    Of a record without blocks, the column stands: its epoch time or its median step, without bounds.
    """
    if record is None or record.status != "ok":
        return None
    factor = 1.0
    if per == "epoch":
        steps = steps_per_epoch(record)
        assert steps is not None, f"record {record.cell_id}: its workload has no epoch"
        factor = steps / 1e3
    rare = _times(rare_estimate_ms(record, {launch for launch, _ in step_means_ms(record)}), factor)
    step = step_time_ms(record)
    if step is None:
        own = record.epoch_time_s if per == "epoch" else record.step_time_median_ms
        return None if own is None else Time(Estimate(own, None, None, 0), rare)
    return Time(_times(step, factor), rare)


def _times(estimate: Estimate, factor: float) -> Estimate:
    low, high = (None if bound is None else bound * factor for bound in (estimate.low, estimate.high))
    return replace(estimate, value=estimate.value * factor, low=low, high=high)


def step_of(record: Record | None) -> Estimate | None:
    """Return the time of a step in ms; None where there is none."""
    time = time_of(record, "step")
    return time.total if time else None


def time_ratio(numerator: Record | None, denominator: Record | None) -> Estimate | None:
    """Return the ratio of epoch times: paired by block where both were timed together; None without blocks."""
    if numerator is None or denominator is None or {numerator.status, denominator.status} != {"ok"}:
        return None
    above, below = step_means_ms(numerator), step_means_ms(denominator)
    if not above or not below:
        return None
    scale = denominator.global_batch / numerator.global_batch  # steps per epoch differ where batches do
    together = paired_launches(numerator, denominator)
    common = {block for block in above.keys() & below.keys() if block[0] in together}
    scaled = {block: ms * scale for block, ms in above.items()}
    if common:
        sides = ({block: side[block] for block in common} for side in (scaled, below))
        return paired_ratio(*(by_call(numerator, side) for side in sides))
    return unpaired_ratio(by_call(numerator, scaled), by_call(denominator, below))


def time_columns(
    records: pd.Series, references: pd.Series, per: Per, over: str, asked: pd.Series, rare: bool = True
) -> pd.DataFrame:
    """Return the columns of a table on times: epochs in seconds, steps in ms, the ratio ``over`` a reference.

    Args:
        records, references: of the cells, and of what they are compared with; missing where there is none.
        per: what the times are of.
        over: the name of the reference.
        asked: which cells the grid has.
        rare: whether the part in rare events has columns of its own.
    """
    name = time_column(per)
    rare_name, ratio_name = name.replace("time", "rare"), f"time_over_{over}"
    names = ["time_status", "time_message", *bounds(name, None)]
    names += [*(bounds(rare_name, None) if rare else ()), *bounds(ratio_name, None)]
    names += ["time_pairing", "launches", "blocks", "disturbed_blocks"]
    lines = []
    for record, reference, is_asked in zip(known(records), known(references), asked, strict=True):
        time = time_of(record, per) if is_asked else None
        ratio = time_ratio(record, reference) if time else None
        if not is_asked or record is None:
            status = NOT_RECORDED if is_asked else NOT_IN_GRID
        else:
            status = "no time" if record.status == "ok" and not time else record.status
        lines.append(
            {
                "time_status": status,
                "time_message": record.message if record and is_asked else "",
                **bounds(name, time and time.total),
                **(bounds(rare_name, time and time.rare) if rare else {}),
                **bounds(ratio_name, ratio),
                "time_pairing": pairing(ratio),
                "launches": time and time.total.launches,
                "blocks": time and time.total.blocks,
                "disturbed_blocks": disturbed_blocks(record) if record and time else None,
            }
        )
    return pd.DataFrame(lines, index=records.index, columns=names)


def step_columns(records: pd.Series) -> pd.DataFrame:
    """Return the times of steps in ms as the four columns of an estimate, ``step_ms``, and their launches."""
    steps = map(step_of, known(records))
    lines = [{**bounds("step_ms", step), "launches": step and step.launches} for step in steps]
    columns = [*bounds("step_ms", None), "launches"]
    return pd.DataFrame(lines, index=records.index, columns=columns).astype({"launches": "Int64"})


def ratio_columns(name: str, above: pd.Series, below: pd.Series) -> pd.DataFrame:
    """Return the ratios of the times of records as the four columns of an estimate, then their ``pairing``."""
    ratios = [time_ratio(*pair) for pair in zip(known(above), known(below), strict=True)]
    lines = [{**bounds(name, ratio), "pairing": pairing(ratio)} for ratio in ratios]
    return pd.DataFrame(lines, index=above.index, columns=[*bounds(name, None), "pairing"])
