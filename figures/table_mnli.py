"""The paper's table on MNLI: accuracy, size and compression of dense training and of CoMERA's stages, per dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from bench.core.record import Record
from figures.claims.claims import Claim
from figures.page.drawn import Drawn
from figures.page.table import NOT_ASKED, REMARKS
from figures.runs import DENSE, DENSE_RUN, EARLY, PAPER_TARGETS, Slot, Study, studies
from figures.training_claims import CLAIMED_DATASET, MARGIN, late, late_name, verdicts
from figures.training_page import (
    SIZE_WORDS,
    STAGE,
    WISHED_WORDS,
    absences,
    accuracy_words,
    bounds,
    drawn,
    notes,
    or_dash,
    reached,
)
from figures.training_rows import Row, Spread, rows_of

_LATE = tuple(late_name(target) for target in PAPER_TARGETS)
CLAIMS = (
    "mnli-dense-size",
    "mnli-early-size",
    "mnli-early-ratio",
    "mnli-late02-size",
    *(f"{name}-{quantity}" for quantity in ("ratio", "layers") for name in _LATE),
    "mnli-dense-acc",
    "mnli-early-acc",
    *(f"{name}-acc" for name in _LATE),
    "mnli-same-accuracy",
)

#: How the ledger names the published numbers of a row.
_PUBLISHED: dict[Slot, str] = {
    DENSE_RUN: "mnli-dense",
    EARLY: "mnli-early",
    **{late(target): name for target, name in zip(PAPER_TARGETS, _LATE, strict=True)},
}


def title(study: Study) -> str:
    """On MNLI the paper's table; on other data the same columns, said to be about these data."""
    where = "MNLI" if study.dataset == CLAIMED_DATASET else f"{study.dataset!r}, after the paper's table on MNLI"
    return f"Accuracy and size of dense training and CoMERA's stages: {where}"


def _published(row: Row, claims: dict[str, Claim]) -> dict[str, str]:
    """Published numbers of a row; those transcribed from memory carry a question mark."""
    name = _PUBLISHED.get(row.slot)
    cells = {}
    for column, quantity in (
        ("paper, MNLI: %", "acc"),
        ("paper: MiB", "size"),
        ("paper: total", "ratio"),
        ("paper: layers", "layers"),
    ):
        claim = claims.get(f"{name}-{quantity}")
        doubt = "?" if claim is not None and claim.status == "recalled" else ""
        cells[column] = f"{claim.published.removesuffix('%').removesuffix(' MiB')}{doubt}" if claim else NOT_ASKED
    return cells


def _times(spread: Spread | None) -> str:
    return NOT_ASKED if spread is None else f"{spread}x"


def _tensorized(row: Row) -> str:
    if row.tensorized is not None and row.tensorized.high == 0:
        return "0 (all cut)"
    return or_dash(row.tensorized)


def text_table(study: Study, rows: Sequence[Row], claims: dict[str, Claim]) -> pd.DataFrame:
    """The table a person reads; published numbers stand in it only for the model that they are about."""
    weights = [run.dense_tensorized_mib for row in rows for run in row.finished.values()]
    replaced = Spread.of({mib for mib in weights if mib is not None})
    lines = []
    for row in rows:
        dense = row.slot.arm == DENSE and row.status == "ok"
        line = {
            STAGE: row.label,
            "accuracy, %": str(row.accuracy) if row.accuracy else row.status,
            "dense then, %": or_dash(row.dense_then),
            "less dense, points": row.difference.signed if row.difference else NOT_ASKED,
            "total, MiB": or_dash(row.stored),
            "total ratio": "1" if dense else _times(row.ratio),
            "layers, MiB": or_dash(replaced) if dense else _tensorized(row),
            "layers ratio": "1" if dense and replaced else _times(row.tensorized_ratio),
            "S": or_dash(row.size),
            "S0": or_dash(row.wished),
            "S <= S0": reached(row.size_met),
        }
        if study.is_full_size:
            ours = line
            theirs = _published(row, claims)
            line = {}
            for column, value in ours.items():
                line[column] = value
                beside = {"accuracy, %": "paper, MNLI: %", "total, MiB": "paper: MiB", "total ratio": "paper: total",
                          "layers ratio": "paper: layers"}.get(column)  # fmt: skip
                if beside:
                    line[beside] = theirs[beside]
        line[REMARKS] = "; ".join(row.remarks)
        lines.append(line)
    return pd.DataFrame(lines)


def tidy_table(study: Study, rows: Sequence[Row]) -> pd.DataFrame:
    """The table a program reads: percent, points and MiB; bounds are intervals of accuracies, else least and greatest
    over seeds.
    """
    return pd.DataFrame(
        {
            "device": study.device,
            "dataset": study.dataset,
            "arm": row.slot.arm,
            "stage": row.slot.stage,
            "target_ratio": row.slot.target,
            "target_mib": row.slot.target_mib,
            "status": row.status,
            "remarks": "; ".join(row.remarks),
            "seeds": " ".join(map(str, row.finished)),
            "train_steps": row.steps,
            "validation_examples": row.accuracy.examples if row.accuracy else None,
            **bounds("accuracy", row.accuracy),
            **bounds("dense_accuracy_then", row.dense_then),
            **bounds("less_dense_points", row.difference),
            **bounds("stored_mib", row.stored),
            **bounds("total_ratio", row.ratio),
            **bounds("tensorized_mib", row.tensorized),
            **bounds("tensorized_ratio", row.tensorized_ratio),
            "size_fraction": row.size.value if row.size else None,
            "size_target": row.wished.value if row.wished else None,
            "size_met": row.size_met,
            "older_code": bool(row.mark),
        }
        for row in rows
    )


def _notes(study: Study, rows: Sequence[Row]) -> list[str]:
    several = len(study.seeds) > 1
    interval = "hierarchical bootstrap over seeds and examples" if several else "Wilson's interval, over examples alone"
    lines = [
        accuracy_words(interval),
        "dense then: dense after as many steps. less dense: the difference to it in points, by paired bootstrap over "
        f"the same validation examples{' and over seeds' if several else ''}; comparable within {MARGIN:g} points.",
        "layers: the tensorized layers, and in dense the weights they stand in for. ratio: dense size over this size.",
        f"{SIZE_WORDS}; {WISHED_WORDS}.",
    ]
    if not several:
        lines.append("One seed: the intervals do not hold what another seed would change.")
    else:
        lines.append("Sizes are means over seeds; the least and the greatest stand in the CSV.")
    if study.is_full_size:
        lines.append("paper: published for MNLI and FP32; ? marks what is recalled, an unconfirmed transcription.")
    else:
        lines.append("The model is not the paper's size, so no published number stands beside it.")
    return [*lines, *notes(study, rows)]


def of_study(study: Study, claims: dict[str, Claim]) -> Drawn:
    """The table of one device and dataset."""
    rows = rows_of(study)
    judged = verdicts(study, rows, claims, CLAIMS)
    lines = _notes(study, rows)
    below = [*absences(rows), *lines]
    table = text_table(study, rows, claims)
    left = frozenset({STAGE, REMARKS})
    drawing = drawn(
        "table_mnli", title(study), study, table, tidy_table(study, rows), lines, judged, below=below, left_aligned=left
    )
    cut = list(table.columns).index("total, MiB")
    parts = table.columns[:cut], [STAGE, *table.columns[cut:]]
    return replace(drawing, narrow=tuple(table[list(part)] for part in parts))


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:
    """One table per device and dataset."""
    return [of_study(study, claims) for study in studies(records)]
