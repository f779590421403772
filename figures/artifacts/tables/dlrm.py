"""The table of DLRM: what CoMERA and its rivals reach on a click log, and their sizes, per device and dataset.

Differences are to dense tables with sparse gradients, the strongest uncompressed ones, paired by seed and by group of
validation lines. Synthetic logs are called so and decide no claim.
"""

from collections.abc import Sequence

from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.claims import Claim, Finding, Judgement, Outcome
from figures.claims.rule import Rule
from figures.page import training as shared
from figures.page.drawn import Caption
from figures.page.notes import closing_notes
from figures.records.metric import Metric, Reached, Score, difference, score
from figures.records.select import COMERA, DENSE
from figures.records.studies import Study, StudyRow, studies
from figures.records.training import reached
from figures.text import Column, bounds

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


def _ends(row: StudyRow, name: str) -> dict[int, Reached]:
    """What the finished runs of a row reached at their end, by seed."""
    return {seed: reached(_last(run), name) for seed, run in row.finished.items()}


def _last(run: Record) -> dict[str, object]:
    curve: list[dict[str, object]] = run.samples["curve"]
    return curve[-1]


def found(row: StudyRow, metric: Metric) -> Score | None:
    """What a row reached in a metric, over its seeds; None without a finished run."""
    return score(metric, ends) if (ends := _ends(row, metric.name)) else None


def apart(row: StudyRow, other: StudyRow | None, metric: Metric) -> Score | None:
    """By how much a row exceeds another in a metric, paired; None where no seed has both."""
    return None if other is None else difference(metric, _ends(row, metric.name), _ends(other, metric.name))


def _row_of(study: Study, arm: str) -> StudyRow | None:
    return next((row for row in study.rows if row.slot.arm == arm and row.finished), None)


def columns(study: Study, _: Sequence[StudyRow]) -> list[Column[StudyRow]]:
    rival = _row_of(study, RIVAL)

    def reached_in(metric: Metric) -> Column[StudyRow]:
        def text(row: StudyRow) -> str:
            one = found(row, metric)
            return str(one) if one else row.status

        return Column(metric.heading, text, lambda row: bounds(metric.name, found(row, metric)))

    def less(metric: Metric) -> Column[StudyRow]:
        def text(row: StudyRow) -> str | None:
            one = apart(row, rival, metric) if row is not rival else None
            return one.text(sign=True) if one else None

        return Column(
            f"{metric.short} less {RIVAL}",
            text,
            lambda row: bounds(f"{metric.name}_less_sparse", apart(row, rival, metric)),
        )

    def times(row: StudyRow) -> str | None:
        spread = row.spread("total_ratio")
        return spread.text("x") if spread else None

    return [
        shared.head_column(study, lambda row: {"ratio": row.slot.ratio}),
        *map(reached_in, METRICS),
        less(NCE),
        less(AUC),
        shared.spread_column("model, MiB", "stored_mib"),
        shared.spread_column("ratio", "total_ratio", times),
        shared.remarks_column(),
    ]


def is_synthetic(study: Study) -> bool:
    return study.dataset.startswith("synthetic")


def log_words(study: Study) -> str:
    """The click log of a page, for its title."""
    return f"the synthetic log {study.dataset!r}" if is_synthetic(study) else repr(study.dataset)


def log_notes(study: Study) -> list[str]:
    """The ceiling of a synthetic log, the probe, and what a synthetic log is good for."""
    ends = [_last(run)["metrics"] for run in study.finished_runs]
    lines = []
    if ends and isinstance(ends[0], dict) and "teacher_auc" in ends[0]:
        nce, auc = ends[0]["teacher_nce"], ends[0]["teacher_auc"]
        lines.append(f"Synthetic log: the teacher that drew the clicks reaches {nce:.4f} and an AUC of {auc:.4f}.")
    if study.metric.probe is not None:
        lines.append(f"Probe ({study.metric.probe_text}): {study.metric.probe:.4f}; base rate: 1.")
    return [*lines, *(["Records of a synthetic log decide no claim of the paper."] if is_synthetic(study) else [])]


def caption(study: Study, rows: Sequence[StudyRow]) -> Caption:
    seeds = (len(row.finished) for row in rows)
    in_brackets = shared.brackets_words(seeds, "groups of consecutive validation lines")
    return Caption(
        title=f"DLRM on {log_words(study)}: what is reached, and sizes",
        facts=shared.facts(study),
        notes=(
            f"Differences are paired; {in_brackets}.",
            "normalised cross entropy: log loss over that of the base rate; lower is better.",
            *log_notes(study),
            *shared.dense_note(study),
            *closing_notes(study),
        ),
        remarks=shared.absences(rows),
    )


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
    """A difference of CoMERA's to dense whose bounds both lie between two numbers."""

    def judge(_: Claim, study: Study, __: object) -> Judgement:
        ours, dense = _row_of(study, COMERA), _row_of(study, DENSE)
        less = apart(ours, dense, metric) if ours else None
        if less is None or ours is None or dense is None:
            return Judgement("not tested here", "No pair of runs of comera and dense with one seed.")
        mine, theirs = found(ours, metric), found(dense, metric)
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
    rows=lambda study: study.rows,
    columns=columns,
    caption=caption,
    rules=RULES,
    keys=(shared.RUN,),
)
