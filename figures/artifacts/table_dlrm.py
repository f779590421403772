"""DLRM on a click log: Fig. 9, the table of what CoMERA and its rivals reach and their sizes, and that of precisions.

Each has a page per device and dataset. Differences in the table of rivals are to dense tables with sparse gradients,
the strongest uncompressed ones, paired by seed and by group of validation lines. Synthetic logs are called so and
decide no claim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from figures.arms import COMERA, DENSE
from figures.artifact import Artifact
from figures.artifacts import fig6, fig14
from figures.claims.claims import Claim, Finding, Judgement, by_bounds, undecided, untested
from figures.claims.rule import Rule
from figures.columns import readable
from figures.draw import metrics
from figures.stats import precisions
from figures.stats.metric import LeadingMetric, Score
from figures.stats.seeds import Finished, less, score_of, with_estimates
from figures.stats.studies import Study, studies

#: The experiment of Fig. 9 and of the table of rivals.
EXPERIMENT = "fig9"

METRICS = (
    LeadingMetric("nce", "normalised cross entropy", "", higher_is_better=False),
    LeadingMetric("accuracy", "accuracy", "%"),
    LeadingMetric("auc", "AUC"),
    LeadingMetric("log_loss", "log loss", "nats", higher_is_better=False),
)
NCE, ACCURACY, AUC, _ = METRICS
RIVAL = "dense:sparse"

#: How far below dense still counts as equal, in points of accuracy and in normalised cross entropy; and the seeds.
MARGINS = {"accuracy": 0.1, "nce": 0.002}
SEEDS_NEEDED = 3

#: How much higher a final loss may be and still be slightly higher.
SLIGHTLY = 0.01


def _runs_of(study: Study, arm: str) -> Finished:
    return next((runs for runs in study.rows.loc[study.rows["arm"] == arm, "finished"] if runs), {})


def table(study: Study) -> pd.DataFrame:
    """Return a line per arm: its metrics, their differences to dense with sparse gradients, and its size."""
    rows, rival = study.rows.drop(columns=metrics.ends(study.metric.name)), _runs_of(study, RIVAL)
    found = {one.name: [score_of(one, runs) for runs in rows["finished"]] for one in METRICS}
    columns = ["device", "dataset", "arm", "ratio", *metrics.RUN, *metrics.ends(*found)]
    for one in (NCE, AUC):
        found[f"{one.name}_less_sparse"] = [less(one, runs, rival) for runs in rows["finished"]]
    rows = with_estimates(rows, found)
    columns += metrics.ends("nce_less_sparse", "auc_less_sparse", "stored_mib", "total_ratio")
    return rows[[*columns, "older_code"]].reset_index(drop=True)


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without log losses, of which normalised cross entropies are a multiple."""
    own = table.assign(run=study.rows["run"].array)
    own.loc[own["arm"] == RIVAL, ["nce_less_sparse", "auc_less_sparse"]] = None  # it differs from itself by nothing
    more = {metric.name: metrics.metric_format(metric) for metric in METRICS}
    for metric in (NCE, AUC):
        words = f"{metric.short} less {RIVAL}"
        more[f"{metric.name}_less_sparse"] = metrics.difference_format(metric, words, unit=False)
    columns = ["run", "nce", "accuracy", "auc", "nce_less_sparse", "auc_less_sparse"]
    return readable(own, [*columns, "stored_mib", "total_ratio"], more)


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return what the caption says of runs, whether the log is synthetic, and what its teacher reaches."""
    end: Mapping[str, float] = next((run.curve[-1]["metrics"] for run in study.finished["training"]), {})
    teacher = {name: end[f"teacher_{name}"] for name in ("nce", "auc") if f"teacher_{name}" in end}
    synthetic = study.dataset.startswith("synthetic")
    return {**metrics.about_study(study, table), "synthetic": synthetic, "teacher": teacher}


def between(dataset: str, apart: Score, low: float, high: float, words: str, found: Sequence[Finding]) -> Judgement:
    """Judge whether both bounds of a difference, of three seeds on Criteo's log, lie between two numbers."""
    other = f"The claim is about Criteo's log; these runs are on {dataset}."
    few = f"Inconclusive: {apart.seeds} seed(s), {SEEDS_NEEDED} are needed."
    reasons = (other * (dataset != "criteo"), few * (apart.seeds < SEEDS_NEEDED))
    if reason := undecided(reasons, found):
        return reason
    outcome = by_bounds([apart.span], low, high)
    return Judgement(outcome, f"{'Both' if outcome == 'reproduced' else 'Not both'} bounds lie {words}.", found)


def _rule(claim_id: str, metric: LeadingMetric, low: float, high: float, words: str) -> Rule:
    """Return the rule for a difference to dense whose bounds both lie between two numbers."""

    def judge(_: Claim, study: Study, __: object) -> Judgement:
        ours, dense = _runs_of(study, COMERA), _runs_of(study, DENSE)
        apart, parameters = less(metric, ours, dense), study.dense_parameters or 0
        if apart is None:
            return untested("No pair of runs of comera and dense with one seed.")
        heading = f"{metric.text} on {study.dataset}, {apart.seeds_text}, comera / dense / comera less dense"
        both = f"{score_of(metric, ours)} / {score_of(metric, dense)}"
        found = (Finding(heading, f"{both} / {apart.text(sign=True)}"),)
        if study.dataset == "criteo" and parameters < 5e8:
            why = f"The claim is about full tables; the dense model of these runs has {parameters:,} parameters."
            return untested(why, found)
        return between(study.dataset, apart, low, high, words, found)

    unit = "points" if metric.unit == "%" else ""
    quantity = f"{metric.text} of comera less that of dense, {SEEDS_NEEDED} seeds, {words}"
    return Rule(claim_id, quantity, tolerance=MARGINS.get(metric.name, 0.0), unit=unit, judge=judge)


_POINTS, _NCE = MARGINS.values()

RIVALS: Artifact[Study] = Artifact(
    name="table_dlrm",
    summary="accuracy, AUC, normalised cross entropy and size of DLRM's arms, also in FP8; a table per device and log",
    experiments=(EXPERIMENT,),
    measure="train",
    made_by="make reproduce-table-dlrm",
    order=150,
    select=studies,
    table=table,
    shown=shown,
    about=about,
    rules=(
        _rule("dlrm-accuracy", ACCURACY, -_POINTS, 100.0, f"above -{_POINTS:g} points"),
        _rule("dlrm-nce", NCE, -1.0, _NCE, f"below {_NCE:g}"),
    ),
)

CURVES = replace(
    fig6.ARTIFACT,
    name="fig9",
    summary="normalised cross entropy of DLRM's arms per step; an image per device and click log",
    experiments=(EXPERIMENT,),
    made_by="make reproduce-fig9",
    order=60,
    about=lambda study, table: {**fig6.about(study, table), **about(study, table)},
    rules=(_rule("dlrm-curve", NCE, 0.0, SLIGHTLY, f"between 0 and {SLIGHTLY:g}"),),
)


def precision_table(page: precisions.Precisions) -> pd.DataFrame:
    """Return a line per arm and precision: each metric, and its difference to FP32."""
    rows = page.rows.drop(columns=metrics.ends(page.metric.name))
    for metric in (NCE, ACCURACY, AUC):
        less, scores = page.less(metric), [score_of(metric, runs) for runs in rows["finished"]]
        rows = with_estimates(rows, {metric.name: scores, f"{metric.name}_less_fp32": map(less.get, rows.index)})
    columns = metrics.ends("nce", "accuracy", "auc", "nce_less_fp32", "accuracy_less_fp32")
    return rows[[*fig14.LINE, *columns, "remarks"]].reset_index(drop=True)


def precision_shown(page: precisions.Precisions, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with a line per arm and precision, as people read it."""
    columns = {metric.name: metrics.metric_format(metric) for metric in (NCE, ACCURACY, AUC)}
    for metric in (NCE, ACCURACY):
        words = f"{metric.short} less FP32"
        columns[f"{metric.name}_less_fp32"] = metrics.difference_format(metric, words, unit=False)
    return fig14.read_by_precision(page, table, columns)


def judge_fp8(_: Claim, page: precisions.Precisions, __: Any) -> Judgement:
    """Judge whether both bounds lie at most the margin of accuracy below FP32."""
    less = page.less(ACCURACY).get(f"{COMERA}, fp8")
    if less is None:
        return untested("No pair of runs of comera in FP8 and in FP32 with one seed.")
    found = [Finding(f"accuracy of comera in FP8 less FP32, {less.seeds_text}", less.text(sign=True))]
    margin = MARGINS["accuracy"]
    return between(page.dataset, less, -margin, 100.0, f"above -{margin:g} points", found)


PRECISIONS: Artifact[precisions.Precisions] = Artifact(
    name="table_dlrm_fp8",
    part_of="table_dlrm",
    summary="what DLRM's arms reach in FP32, BF16 and FP8's products; a table per device and log",
    experiments=("table_dlrm_fp8",),
    measure="train",
    made_by="make reproduce-table-dlrm-fp8",
    order=155,
    select=precisions.select,
    table=precision_table,
    shown=precision_shown,
    about=fig14.about,
    rules=(
        Rule(
            "fp8-dlrm",
            "accuracy of comera in FP8 less that in FP32",
            ">= -tolerance",
            tolerance=MARGINS["accuracy"],
            unit="points",
            judge=judge_fp8,
        ),
    ),
)

ARTIFACTS = (CURVES, RIVALS, PRECISIONS)
