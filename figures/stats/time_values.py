"""Columns of tables on times: of an epoch or, where a workload has none, of a step; and ratios of times."""

from typing import Any

import pandas as pd

from bench.core.vocabulary import MNLI_TRAIN_ROWS
from figures.columns import time_column
from figures.text import NOT_IN_GRID, NOT_RECORDED, bounds, pairing
from figures.times import Per, known, ratios, steps

#: The paper's epoch: all of MNLI's training pairs.
PAPER_EXAMPLES = MNLI_TRAIN_ROWS


def time_columns(
    found: pd.DataFrame, references: pd.Series, per: Per, over: str, asked: pd.Series, rare: bool = True
) -> pd.DataFrame:
    """Return the columns of a table on times: epochs in seconds, steps in ms, the ratio ``over`` a reference.

    Args:
        found: ``times``, ``status`` and ``message`` of the cells, missing where there is no record.
        references: the times that they are compared with; missing where there are none.
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
    recorded = found["status"].notna() & asked
    lines = []
    sides = known(found["times"].where(asked)), known(references)
    for times, reference, is_asked, one in zip(
        *sides, asked, found.assign(is_known=recorded).itertuples(), strict=True
    ):
        time = times and times.by.get(per)
        ratio = times.over(reference) if times and time and reference else None
        status: Any = one.status
        if not one.is_known:
            status = NOT_RECORDED if is_asked else NOT_IN_GRID
        elif one.status == "ok" and not time:
            status = "no time"
        lines.append(
            {
                "time_status": status,
                "time_message": one.message if one.is_known else "",
                **bounds(name, time and time.total),
                **(bounds(rare_name, time and time.rare) if rare else {}),
                **bounds(ratio_name, ratio),
                "time_pairing": pairing(ratio),
                "launches": time and time.total.launches,
                "blocks": time and time.total.blocks,
                "disturbed_blocks": times.disturbed if times and time else None,
            }
        )
    return pd.DataFrame(lines, index=found.index, columns=names)


def step_columns(times: pd.Series) -> pd.DataFrame:
    """Return the times of steps in ms as the four columns of an estimate, ``step_ms``, and their launches."""
    lines = [{**bounds("step_ms", step), "launches": step and step.launches} for step in steps(times)]
    columns = [*bounds("step_ms", None), "launches"]
    return pd.DataFrame(lines, index=times.index, columns=columns).astype({"launches": "Int64"})


def ratio_columns(name: str, above: pd.Series, below: pd.Series) -> pd.DataFrame:
    """Return the ratios of times as the four columns of an estimate, then their ``pairing``."""
    lines = [{**bounds(name, ratio), "pairing": pairing(ratio)} for ratio in ratios(above, below)]
    return pd.DataFrame(lines, index=above.index, columns=[*bounds(name, None), "pairing"])
