"""DLRM in lower precisions: what each arm reaches in FP32, BF16 and FP8's products, per device and dataset."""

from collections.abc import Sequence

from figures.artifact import Artifact
from figures.artifacts import fig14
from figures.artifacts.tables.dlrm import ACCURACY, AUC, MARGINS, NCE, SEEDS_NEEDED
from figures.claims.claims import Claim, Finding, Judgement, Outcome
from figures.claims.rule import Rule
from figures.page.drawn import Caption
from figures.records.metric import Metric
from figures.records.precisions import PrecisionLine, Precisions, select
from figures.records.select import COMERA
from figures.text import Column, bounds


def columns(page: Precisions, _: Sequence[PrecisionLine]) -> list[Column[PrecisionLine]]:
    def reached(metric: Metric) -> Column[PrecisionLine]:
        return Column(
            metric.heading, lambda line: line.reached(metric), lambda line: bounds(metric.name, line.reached(metric))
        )

    def less(metric: Metric) -> Column[PrecisionLine]:
        def text(line: PrecisionLine) -> str | None:
            apart = page.less(line, metric)
            return apart.text(sign=True) if apart else None

        return Column(
            f"{metric.short} less FP32", text, lambda line: bounds(f"{metric.name}_less_fp32", page.less(line, metric))
        )

    return fig14.framed(page, *map(reached, (NCE, ACCURACY, AUC)), *map(less, (NCE, ACCURACY)))


def caption(page: Precisions, lines: Sequence[PrecisionLine]) -> Caption:
    shared = fig14.caption(page, lines)
    return Caption(
        title=f"DLRM in lower precisions on {page.dataset!r}",
        facts=shared.facts,
        notes=shared.notes,
        remarks=shared.remarks,
    )


def judge(_: Claim, page: Precisions, lines: Sequence[PrecisionLine]) -> Judgement:
    """Equal is at most the margin of accuracy below FP32, with both bounds."""
    line = next((line for line in lines if (line.arm, line.precision) == (COMERA, "fp8")), None)
    less = page.less(line, ACCURACY) if line else None
    if less is None:
        return Judgement("not tested here", "No pair of runs of comera in FP8 and in FP32 with one seed.")
    found = [Finding(f"accuracy of comera in FP8 less FP32, {less.seeds_text}", less.text(sign=True))]
    if page.dataset != "criteo":
        why = f"The claim is about Criteo's log; these runs are on {page.dataset}."
        return Judgement("not tested here", why, found)
    if less.seeds < SEEDS_NEEDED:
        return Judgement("not tested here", f"Inconclusive: fewer than {SEEDS_NEEDED} seeds.", found)
    low, high = less.span
    margin = MARGINS["accuracy"]
    if low >= -margin:
        return Judgement("reproduced", f"Both bounds lie above -{margin:g} points.", found)
    outcome: Outcome = "not reproduced" if high < -margin else "partly"
    return Judgement(outcome, f"Not both bounds lie above -{margin:g} points.", found)


ARTIFACT: Artifact[Precisions] = Artifact(
    name="table_dlrm_fp8",
    heading="DLRM in lower precisions",
    summary="what DLRM's arms reach in FP32, BF16 and FP8's products; a table per device and log",
    experiments=("table_dlrm_fp8",),
    measure="train",
    made_by="make reproduce-table-dlrm-fp8",
    order=155,
    select=select,
    rows=fig14.rows_of,
    columns=columns,
    caption=caption,
    rules=(
        Rule(
            "fp8-dlrm",
            "accuracy of comera in FP8 less that in FP32",
            ">= -tolerance",
            "any",
            MARGINS["accuracy"],
            "points",
            judge=judge,
        ),
    ),
)
