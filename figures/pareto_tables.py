"""Accuracy against size as tables: the one a person reads and the one a program reads."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from figures.page.table import NOT_ASKED, REMARKS
from figures.pareto_points import Entry, name_of
from figures.runs import Study
from figures.training_page import STAGE, bounds, or_dash


def text_table(entries: Sequence[Entry]) -> pd.DataFrame:
    """The table a person reads."""
    lines = []
    for entry in entries:
        row, rival = entry.row, entry.less_low_rank
        lines.append(
            {
                STAGE: f"{name_of(row)} {row.mark}".rstrip(),
                "total, MiB": str(row.stored or row.status),
                "total ratio": f"{row.ratio}x" if row.ratio else NOT_ASKED,
                "accuracy, %": str(row.accuracy or row.status),
                "less dense, points": row.difference.signed if row.difference else NOT_ASKED,
                "less low_rank, points": rival.signed if rival else NOT_ASKED,
                "on the front": {None: NOT_ASKED, True: "yes", False: "no"}[entry.on_front],
                "dominated by": or_dash(entry.beaten_by and name_of(entry.beaten_by.row)),
                REMARKS: "; ".join(row.remarks),
            }
        )
    return pd.DataFrame(lines)


def tidy_table(study: Study, entries: Sequence[Entry]) -> pd.DataFrame:
    """The table a program reads: MiB, percent and points; bounds of sizes are least and greatest over seeds."""
    lines = []
    for entry in entries:
        row = entry.row
        lines.append(
            {
                "device": study.device,
                "dataset": study.dataset,
                "arm": row.slot.arm,
                "ratio": row.slot.ratio,
                "stage": row.slot.goal,
                "status": row.status,
                "remarks": "; ".join(row.remarks),
                "seeds": " ".join(map(str, row.finished)),
                "train_steps": row.steps,
                "validation_examples": row.accuracy.examples if row.accuracy else None,
                **bounds("stored_mib", row.stored),
                **bounds("total_ratio", row.ratio),
                **bounds("accuracy", row.accuracy),
                **bounds("less_dense_points", row.difference),
                **bounds("less_low_rank_points", entry.less_low_rank),
                "on_front": entry.on_front,
                "dominated_by": name_of(entry.beaten_by.row) if entry.beaten_by else "",
                "older_code": bool(row.mark),
            }
        )
    return pd.DataFrame(lines)
