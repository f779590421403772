"""Fig. 10's curves: the held-out loss by step and by training time, dense against CoMERA through both phases."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.core.record import Record, RecordError
from figures.arms import COMERA
from figures.artifact import Artifact
from figures.artifacts import fig6
from figures.artifacts.fig10 import FULL_SIZE, WORKLOAD
from figures.claims.claims import Claim, Finding, Judgement, undecided
from figures.claims.rule import Rule
from figures.page import training
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.style import stroke_handle
from figures.records.studies import PROBES, Study, studies

#: How far above dense's, in nats, CoMERA's loss may surely lie at the end and still count as comparable.
TOLERANCE = 0.05


def minutes_of(run: Record) -> dict[int, float]:
    """Return the minutes of training by step, evaluations apart; raises RecordError where its curve does not say."""
    try:
        return {int(row["step"]): float(row["seconds"]) / 60 for row in run.samples["curve"]}
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"record {run.cell_id}: its learning curve has no times ({error!r}).") from None


def draw(study: Study, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the held-out loss by step and by time, a curve per arm."""
    name, strokes = study.metric.name, fig6.looks(study)
    found = fig6.bands(table, name)
    rows = [row for row in study.rows if row.finished]
    handles = [stroke_handle(strokes[row.name], row.label) for row in rows]
    titles = ["by step", "by training time"]
    paper, [panels] = panel_page(caption, [titles], 3.0, handles, 4)
    for axes, words in zip(panels, ("steps", "minutes"), strict=True):
        axes.set_xlabel(words, fontsize=8)
        axes.set_ylabel(study.metric.axis, fontsize=8)
        if not rows:
            training.nothing_finished(axes)
    for row in rows:
        line, stroke = found[found["run"] == row.name], strokes[row.name]
        times = [minutes_of(run) for run in row.finished.values()]
        minutes = [sum(by_step[step] for by_step in times) / len(times) for step in line["step"]]
        low, high = (line[f"{name}_{end}"].fillna(line[name]) for end in ("low", "high"))
        for axes, places in zip(panels, (line["step"], minutes), strict=True):
            axes.fill_between(places, low, high, color=stroke.colour, alpha=0.1, linewidth=0)
            axes.plot(places, line[name], linewidth=1.4, markersize=3, **stroke.look)
    for axes in panels if rows else ():
        if study.metric.probe is not None:
            axes.axhline(study.metric.probe, color="0.4", linewidth=0.9, linestyle=":")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    return paper.finish()


def _judge(claim: Claim, study: Study, _: Any) -> Judgement:  # noqa: ARG001 - it is a statement
    """Judge whether CoMERA ends at most the tolerance above dense."""
    rows = [row for row in study.rows if row.slot.arm == COMERA and row.slot.has_target and row.finished]
    less = {row.name: row.less_dense for row in rows if row.less_dense}
    found = [Finding(f"{name} less dense", one.text(sign=True, unit=True)) for name, one in less.items()]
    other = "" if study.dense_parameters == FULL_SIZE else "These runs are of a small preset, not of the paper's model."
    if untested := undecided(["" if less else "No run through both phases beside dense.", other], found):
        return untested
    apart = less.values()
    if all(one.span[1] <= TOLERANCE for one in apart):
        return Judgement("reproduced", f"Surely at most {TOLERANCE:g} nats above dense.", found)
    if all(one.span[0] > TOLERANCE for one in apart):
        return Judgement("not reproduced", f"Surely more than {TOLERANCE:g} nats above dense.", found)
    return Judgement("partly", f"Not surely within {TOLERANCE:g} nats of dense.", found)


ARTIFACT = Artifact(
    name="fig10_loss",
    heading="Fig. 10: held-out loss through both phases",
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
    caption=beside(__file__),
    draw=draw,
    rules=(
        Rule(
            "codebert-curve",
            "held-out loss of comera less that of dense at the end of phase 2, full model",
            "<= tolerance",
            "any",
            TOLERANCE,
            "nats",
            judge=_judge,
            workload=WORKLOAD,
        ),
    ),
)
