"""The table of DLRM: what CoMERA and its rivals reach on a click log, and their sizes, per device and dataset.

Differences are to dense tables with sparse gradients, the strongest uncompressed ones, paired by seed and by group of
validation lines. Synthetic logs are called so and decide no claim.
"""

from typing import Any

import pandas as pd

from figures.arms import COMERA, DENSE
from figures.artifact import Artifact
from figures.claims.claims import Claim, Finding, Judgement, Outcome
from figures.claims.rule import Rule
from figures.columns import readable, table_of
from figures.page import training
from figures.page.captions import beside
from figures.records.metric import Metric
from figures.records.studies import Study, StudyRow, studies
from figures.text import bounds

#: The claims' experiment, whose records serve Fig. 9 as well.
EXPERIMENT = "fig9"

METRICS = (
    Metric("nce", "normalised cross entropy", "", higher_is_better=False),
    Metric("accuracy", "accuracy", "%"),
    Metric("auc", "AUC"),
    Metric("log_loss", "log loss", "nats", higher_is_better=False),
)
NCE, ACCURACY, AUC, _ = METRICS
RIVAL = "dense:sparse"

#: How far below dense still counts as equal, in points of accuracy and in normalised cross entropy; and the seeds.
MARGINS = {"accuracy": 0.1, "nce": 0.002}
SEEDS_NEEDED = 3

#: How much higher a final loss may be and still be slightly higher.
SLIGHTLY = 0.01


def _row_of(study: Study, arm: str) -> StudyRow | None:
    return next((row for row in study.rows if row.slot.arm == arm and row.finished), None)


def table(study: Study) -> pd.DataFrame:
    """Return a line per arm: its metrics, their differences to dense with sparse gradients, and its size."""
    rival, lines = _row_of(study, RIVAL), []
    for row in study.rows:
        line = training.run_columns(study, row, ratio=row.slot.ratio)
        for metric in METRICS:
            line |= bounds(metric.name, row.score(metric))
        for metric in (NCE, AUC):
            line |= bounds(f"{metric.name}_less_sparse", row.less(rival, metric))
        line |= training.spread_columns(row, "stored_mib", "total_ratio")
        lines.append({**line, "older_code": bool(row.mark)})
    return table_of(lines)


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without log losses, of which normalised cross entropies are a multiple."""
    rival = _row_of(study, RIVAL)
    own = table.assign(run=[row.name for row in study.rows])
    if rival is not None:  # which differs from itself by nothing
        own.loc[own["run"] == rival.name, [f"{one.name}_less_sparse" for one in (NCE, AUC)]] = None
    more = {metric.name: training.metric_format(metric) for metric in METRICS}
    more |= {
        f"{one.name}_less_sparse": training.difference_format(one, f"{one.short} less {RIVAL}", unit=False)
        for one in (NCE, AUC)
    }
    columns = ["run", "nce", "accuracy", "auc", "nce_less_sparse", "auc_less_sparse", "stored_mib", "total_ratio"]
    return readable(own, columns, more)


def about_log(study: Study) -> dict[str, Any]:
    """Return whether a click log is synthetic, and what the teacher reaches that drew the clicks of such a one."""
    ends = [run.samples["curve"][-1]["metrics"] for run in study.finished_runs]
    teacher = {}
    if ends and "teacher_auc" in ends[0]:
        teacher = {"nce": ends[0]["teacher_nce"], "auc": ends[0]["teacher_auc"]}
    return {"synthetic": study.dataset.startswith("synthetic"), "teacher": teacher}


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return what the caption says of arms, probes and seeds."""
    return {**training.about_study(study, table), **about_log(study)}


def _undecided(study: Study, seeds: int) -> str:
    if study.dataset != "criteo":
        return f"The claim is about Criteo's log; these runs are on {study.dataset}."
    parameters = study.dense_parameters or 0
    if parameters < 5e8:
        return f"The claim is about full tables; the dense model of these runs has {parameters:,} parameters."
    if seeds < SEEDS_NEEDED:
        return f"Inconclusive: {seeds} seed(s), {SEEDS_NEEDED} are needed."
    return ""


def _rule(claim_id: str, metric: Metric, low: float, high: float, words: str) -> Rule:
    """Return the rule for a difference to dense whose bounds both lie between two numbers."""

    def judge(_: Claim, study: Study, __: object) -> Judgement:
        ours, dense = _row_of(study, COMERA), _row_of(study, DENSE)
        less = ours.less(dense, metric) if ours else None
        if less is None or ours is None or dense is None:
            return Judgement("not tested here", "No pair of runs of comera and dense with one seed.")
        mine, theirs = ours.score(metric), dense.score(metric)
        heading = f"{metric.text} on {study.dataset}, {less.seeds_text}, comera / dense / comera less dense"
        numbers = (Finding(heading, f"{mine} / {theirs} / {less.text(sign=True)}"),)
        if why := _undecided(study, less.seeds):
            return Judgement("not tested here", why, numbers)
        bottom, top = less.span
        holds, refuted = low <= bottom and top <= high, top < low or bottom > high
        which = "Both bounds lie" if holds else "Not both bounds lie"
        outcome: Outcome = "reproduced" if holds else "not reproduced" if refuted else "partly"
        return Judgement(outcome, f"{which} {words}.", numbers)

    unit = "points" if metric.unit == "%" else ""
    quantity = f"{metric.text} of comera less that of dense, {SEEDS_NEEDED} seeds, {words}"
    return Rule(claim_id, quantity, tolerance=MARGINS.get(metric.name, 0.0), unit=unit, judge=judge)


CURVE = _rule("dlrm-curve", NCE, 0.0, SLIGHTLY, f"between 0 and {SLIGHTLY:g}")
RULES = (
    _rule("dlrm-accuracy", ACCURACY, -MARGINS["accuracy"], 100.0, f"above -{MARGINS['accuracy']:g} points"),
    _rule("dlrm-nce", NCE, -1.0, MARGINS["nce"], f"below {MARGINS['nce']:g}"),
)

ARTIFACT: Artifact[Study] = Artifact(
    name="table_dlrm",
    heading="DLRM: accuracy and size",
    summary="accuracy, AUC, normalised cross entropy and size of DLRM's arms; a table per device and log",
    experiments=(EXPERIMENT,),
    measure="train",
    made_by="make reproduce-table-dlrm",
    order=150,
    select=studies,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    rules=RULES,
)
