"""The table of DLRM: what CoMERA and its rivals reach on a click log, and their sizes, per device and dataset.

Differences are to dense tables with sparse gradients, the strongest uncompressed ones, paired by seed and by group of
validation lines. Synthetic logs are called so and decide no claim.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from figures.arms import COMERA, DENSE
from figures.artifact import Artifact
from figures.claims.claims import Claim, Finding, Judgement, Outcome
from figures.claims.rule import Rule
from figures.columns import readable
from figures.draw import training
from figures.draw.captions import beside
from figures.stats.metric import Metric, Score
from figures.stats.seeds import Finished, less, score_of, with_estimates
from figures.stats.studies import Study, studies

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


def _runs_of(study: Study, arm: str) -> Finished:
    """Return the finished runs of an arm by seed."""
    return next((runs for runs in study.rows.loc[study.rows["arm"] == arm, "finished"] if runs), {})


def table(study: Study) -> pd.DataFrame:
    """Return a line per arm: its metrics, their differences to dense with sparse gradients, and its size."""
    rows, rival = study.rows, _runs_of(study, RIVAL)
    rows = rows.drop(columns=training.ends(study.metric.name))
    rows = with_estimates(rows, {one.name: [score_of(one, runs) for runs in rows["finished"]] for one in METRICS})
    apart = {one: [less(one, runs, rival) for runs in rows["finished"]] for one in (NCE, AUC)}
    rows = with_estimates(rows, {f"{one.name}_less_sparse": of for one, of in apart.items()})
    columns = ["device", "dataset", "arm", "ratio", *training.RUN, *training.ends(*(one.name for one in METRICS))]
    columns += training.ends("nce_less_sparse", "auc_less_sparse", "stored_mib", "total_ratio")
    return rows[[*columns, "older_code"]].reset_index(drop=True)


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without log losses, of which normalised cross entropies are a multiple."""
    own = table.assign(run=study.rows["run"].array)
    differences = {one: f"{one.name}_less_sparse" for one in (NCE, AUC)}
    own.loc[own["arm"] == RIVAL, list(differences.values())] = None  # it differs from itself by nothing
    more = {metric.name: training.metric_format(metric) for metric in METRICS}
    for metric, column in differences.items():
        more[column] = training.difference_format(metric, f"{metric.short} less {RIVAL}", unit=False)
    columns = ["run", "nce", "accuracy", "auc", "nce_less_sparse", "auc_less_sparse", "stored_mib", "total_ratio"]
    return readable(own, columns, more)


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return what the caption says of runs, whether the log is synthetic, and what its teacher reaches."""
    ends = [run.samples["curve"][-1]["metrics"] for run in study.finished["record"]]
    teacher = {}
    if ends and "teacher_auc" in ends[0]:
        teacher = {"nce": ends[0]["teacher_nce"], "auc": ends[0]["teacher_auc"]}
    synthetic = study.dataset.startswith("synthetic")
    return {**training.about_study(study, table), "synthetic": synthetic, "teacher": teacher}


def between(dataset: str, apart: Score, low: float, high: float, words: str, found: Sequence[Finding]) -> Judgement:
    """Judge whether both bounds of a difference, of three seeds on Criteo's log, lie between two numbers."""
    if dataset != "criteo":
        why = f"The claim is about Criteo's log; these runs are on {dataset}."
        return Judgement("not tested here", why, found)
    if apart.seeds < SEEDS_NEEDED:
        why = f"Inconclusive: {apart.seeds} seed(s), {SEEDS_NEEDED} are needed."
        return Judgement("not tested here", why, found)
    bottom, top = apart.span
    if low <= bottom and top <= high:
        return Judgement("reproduced", f"Both bounds lie {words}.", found)
    outcome: Outcome = "not reproduced" if top < low or bottom > high else "partly"
    return Judgement(outcome, f"Not both bounds lie {words}.", found)


def _rule(claim_id: str, metric: Metric, low: float, high: float, words: str) -> Rule:
    """Return the rule for a difference to dense whose bounds both lie between two numbers."""

    def judge(_: Claim, study: Study, __: object) -> Judgement:
        ours, dense = _runs_of(study, COMERA), _runs_of(study, DENSE)
        apart = less(metric, ours, dense)
        if apart is None:
            return Judgement("not tested here", "No pair of runs of comera and dense with one seed.")
        heading = f"{metric.text} on {study.dataset}, {apart.seeds_text}, comera / dense / comera less dense"
        mine, theirs = score_of(metric, ours), score_of(metric, dense)
        numbers = (Finding(heading, f"{mine} / {theirs} / {apart.text(sign=True)}"),)
        parameters = study.dense_parameters or 0
        if study.dataset == "criteo" and parameters < 5e8:
            why = f"The claim is about full tables; the dense model of these runs has {parameters:,} parameters."
            return Judgement("not tested here", why, numbers)
        return between(study.dataset, apart, low, high, words, numbers)

    unit = "points" if metric.unit == "%" else ""
    quantity = f"{metric.text} of comera less that of dense, {SEEDS_NEEDED} seeds, {words}"
    return Rule(claim_id, quantity, tolerance=MARGINS.get(metric.name, 0.0), unit=unit, judge=judge)


CURVE = _rule("dlrm-curve", NCE, 0.0, SLIGHTLY, f"between 0 and {SLIGHTLY:g}")

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
    rules=(
        _rule("dlrm-accuracy", ACCURACY, -MARGINS["accuracy"], 100.0, f"above -{MARGINS['accuracy']:g} points"),
        _rule("dlrm-nce", NCE, -1.0, MARGINS["nce"], f"below {MARGINS['nce']:g}"),
    ),
)
