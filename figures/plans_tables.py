"""The grid of contraction plans as tables: a row per shape for a person, a row per candidate for a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from figures.contractions import Candidate
from figures.page.table import NOT_ASKED, OLDER, REMARKS, bounds, significant, with_interval
from figures.plan_grid import Grid
from figures.plans_rows import Row


def _time(row: Row, candidate: Candidate | None) -> str:
    if row.planned is None or candidate is None or candidate.time is None:
        return NOT_ASKED
    return f"{significant(candidate.time)} {row.planned.mark(candidate)}".strip()


def text_table(rows: Sequence[Row]) -> pd.DataFrame:
    """The table a person reads."""
    lines = []
    for row in rows:
        planned = row.planned
        chosen, best = (planned.chosen, planned.best) if planned else (None, None)
        estimated = chosen.estimated_ms / chosen.time if chosen and chosen.time else None
        lines.append(
            {
                "layer": row.slot.layer,
                "cores": str(row.slot.cores),
                "ranks": str(row.slot.ranks),
                "tokens": f"{row.slot.tokens:,}",
                "chosen": f"{chosen.name if chosen else row.status} {row.mark}".strip(),
                "best": best.name if best else NOT_ASKED,
                "chosen, ms": _time(row, chosen),
                "best, ms": _time(row, best),
                "chosen / best": with_interval(row.ratio) if row.ratio else NOT_ASKED,
                "chosen / nn.Linear": with_interval(row.over_dense) if row.over_dense else NOT_ASKED,
                "estimated / measured": significant(estimated) if estimated else NOT_ASKED,
                REMARKS: row.message,
            }
        )
    return pd.DataFrame(lines)


def tidy_table(grid: Grid, rows: Sequence[Row]) -> pd.DataFrame:
    """The table a program reads: a row per candidate, a single one where a shape has none. Times in ms."""
    lines: list[dict[str, Any]] = []
    for row in rows:
        planned = row.planned
        shape = {
            "device": grid.device,
            "in_features": row.slot.in_features,
            "out_features": row.slot.out_features,
            "cores": row.slot.cores,
            "ranks_cap": row.slot.ranks,
            "ranks": " ".join(map(str, planned.ranks)) if planned else "",
            "tokens": row.slot.tokens,
            "status": row.status,
            "message": row.message,
            "chosen": planned.chosen.name if planned else "",
            "best": planned.best.name if planned and planned.best else "",
            **bounds("chosen_over_best", row.ratio),
            **bounds("chosen_over_dense", row.over_dense),
            "dense_ms": planned.dense_time if planned else None,
            "older_code": row.mark == OLDER,
        }
        lines += [shape | _described(candidate) for candidate in (planned.candidates if planned else (None,))]
    return pd.DataFrame(lines)


def _described(candidate: Candidate | None) -> dict[str, Any]:
    names = ("name", "flops", "saved_mib", "largest_mib", "estimated_ms")
    return {
        **{f"plan_{name}": getattr(candidate, name, None) for name in names},
        "plan_measured_ms": candidate.time if candidate else None,
        "plan_blocks": len(candidate.ms) if candidate else None,
        "plan_message": candidate.message if candidate else None,
    }
