"""Fig. 10's curves: the held-out loss by step and by training time, dense against CoMERA through both phases."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.core.record import RecordError
from figures.arms import COMERA
from figures.artifact import Artifact
from figures.artifacts import fig6
from figures.artifacts.fig10 import FULL_SIZE, WORKLOAD
from figures.claims.claims import Claim, Finding, Judgement, by_bounds, untested
from figures.claims.rule import Rule
from figures.draw import training
from figures.draw.captions import Caption
from figures.draw.layout import panel_page
from figures.draw.style import stroke_handle
from figures.frame import each
from figures.stats.studies import PROBES, Study, studies
from figures.stats.training import curves

#: How far above dense's, in nats, CoMERA's loss may surely lie at the end and still count as comparable.
TOLERANCE = 0.05


def draw(study: Study, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the held-out loss by step and by time, a curve per arm.

    Raises RecordError where a curve has no times.
    """
    metric, strokes, points = study.metric, fig6.looks(study), curves(study.finished, "slot")
    for run in points.loc[points["seconds"].isna(), "record"]:
        raise RecordError(f"record {run.cell_id}: its learning curve has no times.")
    found, rows = fig6.bands(table, metric.name), study.rows[study.rows["status"] == "ok"]
    handles = [stroke_handle(strokes[row.run], row.label) for row in each(rows)]
    paper, [panels] = panel_page(caption, [["by step", "by training time"]], 3.0, handles, 4)
    for row in each(rows):
        line = found[found["run"] == row.run]
        minutes = points[points["slot"] == row.slot].groupby("step")["seconds"].mean() / 60
        for axes, x in zip(panels, (line["step"], line["step"].map(minutes)), strict=True):
            fig6.draw_run(axes, x, line, metric.name, strokes[row.run], markersize=3)
    for axes, words in zip(panels, ("steps", "minutes"), strict=True):
        training.label(axes, words, metric.axis, rows.empty)
        if rows.empty:
            continue
        if metric.probe is not None:
            axes.axhline(metric.probe, color="0.4", linewidth=0.9, linestyle=":")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    return paper.finish()


def _judge(_: Claim, study: Study, __: Any) -> Judgement:
    rows = study.rows
    rows = rows[(rows["arm"] == COMERA) & rows["has_target"] & rows["apart"].notna()]
    apart = {row.run: row.apart.text(sign=True, unit=True) for row in each(rows)}
    found = [Finding(f"{run} less dense", words) for run, words in apart.items()]
    if not found:
        return untested("No run through both phases beside dense.")
    if study.dense_parameters != FULL_SIZE:
        why = "These runs are of a small preset, not of the paper's model."
        return untested(why, found)
    outcome = by_bounds([score.span for score in rows["apart"]], most=TOLERANCE)
    words = {
        "reproduced": f"Surely at most {TOLERANCE:g} nats above dense.",
        "not reproduced": f"Surely more than {TOLERANCE:g} nats above dense.",
        "partly": f"Not surely within {TOLERANCE:g} nats of dense.",
    }
    return Judgement(outcome, words[outcome], found)


ARTIFACT = Artifact(
    name="fig10_loss",
    summary="held-out loss by step and by time, dense against CoMERA in two phases; an image per device and dataset",
    experiments=("code_phases",),
    lenders=PROBES,
    measure="train",
    made_by="make reproduce-fig10-loss",
    order=46,
    select=studies,
    table=fig6.table,
    shown=fig6.shown,
    about=training.about_study,
    draw=draw,
    rules=(
        Rule(
            "codebert-curve",
            "held-out loss of comera less that of dense at the end of phase 2, full model",
            "<= tolerance",
            tolerance=TOLERANCE,
            unit="nats",
            judge=_judge,
            workload=WORKLOAD,
        ),
    ),
)
