"""DLRM in lower precisions: what each arm reaches in FP32, BF16 and FP8's products, per device and dataset."""

from typing import Any

import pandas as pd

from figures.arms import COMERA
from figures.artifact import Artifact
from figures.artifacts import fig14
from figures.artifacts.table_dlrm import ACCURACY, AUC, MARGINS, NCE, between
from figures.claims.claims import Claim, Finding, Judgement, untested
from figures.claims.rule import Rule
from figures.draw import training
from figures.stats.precisions import Precisions, select
from figures.stats.seeds import score_of, with_estimates


def table(page: Precisions) -> pd.DataFrame:
    """Return a line per arm and precision: each metric, and its difference to FP32."""
    rows = page.rows.drop(columns=training.ends(page.metric.name))
    for metric in (NCE, ACCURACY, AUC):
        less, scores = page.less(metric), [score_of(metric, runs) for runs in rows["finished"]]
        rows = with_estimates(rows, {metric.name: scores, f"{metric.name}_less_fp32": map(less.get, rows.index)})
    columns = training.ends("nce", "accuracy", "auc", "nce_less_fp32", "accuracy_less_fp32")
    return rows[[*fig14.LINE, *columns, "remarks"]].reset_index(drop=True)


def shown(page: Precisions, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with a line per arm and precision, as people read it."""
    columns = {metric.name: training.metric_format(metric) for metric in (NCE, ACCURACY, AUC)}
    for metric in (NCE, ACCURACY):
        words = f"{metric.short} less FP32"
        columns[f"{metric.name}_less_fp32"] = training.difference_format(metric, words, unit=False)
    return fig14.read_by_precision(page, table, columns)


def judge(_: Claim, page: Precisions, __: Any) -> Judgement:
    """Judge whether both bounds lie at most the margin of accuracy below FP32."""
    less = page.less(ACCURACY).get(f"{COMERA}, fp8")
    if less is None:
        return untested("No pair of runs of comera in FP8 and in FP32 with one seed.")
    found = [Finding(f"accuracy of comera in FP8 less FP32, {less.seeds_text}", less.text(sign=True))]
    margin = MARGINS["accuracy"]
    return between(page.dataset, less, -margin, 100.0, f"above -{margin:g} points", found)


ARTIFACT: Artifact[Precisions] = Artifact(
    name="table_dlrm_fp8",
    summary="what DLRM's arms reach in FP32, BF16 and FP8's products; a table per device and log",
    experiments=("table_dlrm_fp8",),
    measure="train",
    made_by="make reproduce-table-dlrm-fp8",
    order=155,
    select=select,
    table=table,
    shown=shown,
    about=fig14.about,
    rules=(
        Rule(
            "fp8-dlrm",
            "accuracy of comera in FP8 less that in FP32",
            ">= -tolerance",
            tolerance=MARGINS["accuracy"],
            unit="points",
            judge=judge,
        ),
    ),
)
