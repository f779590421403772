"""Fig. 6: the leading metric per epoch, dense against CoMERA's first stage and each later one that continues it."""

from itertools import accumulate, cycle
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from bench.core.cell import Arm
from figures.arms import COMERA, DENSE
from figures.artifact import Artifact
from figures.claims.training import LTE_CONVERGENCE, SAME_ACCURACY
from figures.columns import readable
from figures.draw import metrics
from figures.draw.captions import Caption
from figures.draw.layout import panel_page
from figures.draw.lines import banded_line
from figures.draw.style import DENSE_STROKE, EARLY_STROKE, INK, STROKES, Stroke, note, stroke_handle
from figures.frame import column, each
from figures.stats.curves import curves
from figures.stats.metric import score
from figures.stats.seeds import with_estimates
from figures.stats.studies import Study
from figures.text import NOT_ASKED


def table(study: Study) -> pd.DataFrame:
    """Return a line per run, step and seed, for the steps that all seeds of a run have.

    Of a stage with a target the line begins at the point that it starts from. The band is the interval of a single
    seed, or lies between the least and the greatest of several.
    """
    metric, rows, points = study.metric, study.rows, curves(study.finished, "slot")
    slots = points["slot"]
    is_last = points["stage"] == slots.map(lambda slot: slot.stage)
    begins = points["place"].where(is_last)
    begins = begins.groupby([slots, points["seed"]], sort=False).transform("min")
    continues = slots.map(lambda slot: slot.arm != DENSE and slot.has_target).astype(bool)
    points = points[~(continues & (points["place"] < begins - 1))]
    points = points.drop_duplicates(["slot", "seed", "step"], keep="last")
    points["order"] = points["slot"].map({slot: order for order, slot in enumerate(rows["slot"])})
    points["seeds"] = points.groupby("order")["seed"].transform("nunique")
    points = points[points.groupby(["order", "step"])["seed"].transform("size") == points["seeds"]]
    points = points.sort_values(["order", "step", "seed"])
    scores = [score(metric, {0: point}) for point in points["point"]]
    points = with_estimates(points, {metric.name: scores})
    points[metric.name] = points["value"]
    values, single = points.groupby(["order", "step"])[metric.name], points["seeds"] == 1
    for end, of_seeds in (("low", values.transform("min")), ("high", values.transform("max"))):
        points[f"band_{end}"] = points[f"{metric.name}_{end}"].astype(float).where(single, of_seeds)
    points["band_bounds"] = points[f"{metric.name}_bounds"].where(single, "range")
    points = points.assign(status="ok", run=points["order"].map(rows["run"].reset_index(drop=True)))
    unfinished = rows.loc[rows["status"] != "ok", ["run", "status"]]
    found = pd.concat([points, unfinished], ignore_index=True)
    found = found.assign(device=study.device, dataset=study.dataset)
    columns = ["device", "dataset", "run", "status", "seed", "epoch", "step", "stage"]
    return found[[*columns, *metrics.ends(metric.name), "band_low", "band_high", "band_bounds"]]


def bands(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a line per run and step: the mean of a metric over seeds, with the band as its bounds."""
    points = table.assign(**{f"{name}_{end}": table[f"band_{end}"] for end in ("low", "high")})
    first = dict.fromkeys(["epoch", "stage", "status", f"{name}_low", f"{name}_high"], "first")
    return points.groupby(["run", "step"], sort=False).agg({**first, name: "mean"}).reset_index()


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per epoch or end of a stage, with the value of every run."""
    metric, found = study.metric, bands(table, study.metric.name)
    formats = {metric.name: metrics.metric_format(metric)}
    written = readable(found, [metric.name], formats)[metric.heading]
    cells = found.assign(written=written).pivot(index="step", columns="run", values="written")
    cells = cells.reindex(columns=study.rows["run"]).astype(object).fillna(NOT_ASKED)
    points = found.drop_duplicates("step", keep="last").sort_values("step")
    lines = readable(points, ["epoch", *(["step"] if by_step(study) else []), "stage"])
    if points.empty:
        lines = pd.DataFrame([{"epoch": NOT_ASKED, "stage": NOT_ASKED}])
    for row in each(study.rows):
        lines[row.label] = list(cells[row.run]) if row.finished else row.status
    return lines


def by_step(study: Study) -> bool:
    """Return whether the curve has points between epochs."""
    return bool(column(study.df, "training.curve_steps").notna().iloc[0])


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return whether the curve is by step, what the band is, and the first slot whose stage aims at a size."""
    shares_stages = study.searched is None  # else each run has a rate, and so a first stage, of its own
    later = next((slot for slot in study.slots if slot.has_target and shares_stages), None)
    more = {"by_step": by_step(study), "band": band_words(study), "later": later}
    return {**metrics.about_study(study, table), **more}


def band_words(study: Study) -> str:
    """Name what the band is, for a legend; empty where a single seed has no bounds."""
    if len(study.seeds) > 1:
        return f"lowest to highest of {len(study.seeds)} seeds"
    words = f"95 % interval over {metrics.examples_words(study)} (one seed)"
    return words if study.has_values else ""


def looks(study: Study) -> dict[str, Stroke]:
    """Return a stroke for every run: dense and CoMERA's first stage have their own, in all figures."""
    found, others = {}, cycle(STROKES)
    for row in each(study.rows):
        is_early = row.arm == COMERA and row.slot.ratio is None and not row.has_target
        found[row.run] = DENSE_STROKE if row.is_whole_dense else EARLY_STROKE if is_early else next(others)
    return found


def draw(study: Study, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the validation accuracy by epoch, a curve per arm."""
    metric, steps = study.metric, by_step(study)
    strokes, per_epoch = looks(study), study.steps_per_epoch
    found, rows = bands(table, metric.name), study.rows[study.rows["status"] == "ok"]
    handles: list[Any] = [stroke_handle(strokes[row.run], row.label) for row in each(rows)]
    if words := band_words(study):
        handles.append(Patch(facecolor=INK, alpha=0.14, label=words))
    paper, [[axes]] = panel_page(caption, [[""]], 3.2, handles, 4)
    for row in each(rows):
        line = found[found["run"] == row.run]
        # what continues another curve begins at a marker that is there already
        continues = Arm.parse(row.arm).method == COMERA and row.has_target and study.searched is None
        style = {"markersize": 4.5, "markevery": slice(int(continues), None)}
        x = line["step" if steps else "epoch"]
        banded_line(axes, x, line, metric.name, strokes[row.run], **style)
    axes.margins(y=0.1)
    names, lengths = zip(*study.stages, strict=True)
    for number, end in enumerate(list(accumulate(lengths))[:-1] if per_epoch else []):
        epoch = end if steps else end / (per_epoch or 1)
        axes.axvline(epoch, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        sides = ((names[number], "right", -4), (names[number + 1], "left", 4))
        for stage, side, dx in sides[number > 0 :]:
            look: dict[str, Any] = {"ha": side, "va": "bottom", "fontsize": 7.5, "color": INK}
            look["xycoords"] = ("data", "axes fraction")
            note(axes, f"{stage} stage", (epoch, 1.0), (dx, 3), **look)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=steps or found["epoch"].max() > 2))
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    length = f", {per_epoch:,} {'steps an epoch' if steps else 'steps each'}" if per_epoch else ""
    epochs = f"{'steps on' if steps else 'epochs of'} {study.dataset!r}{length}"
    metrics.label(axes, epochs, metric.axis, rows.empty)
    return paper.finish()


ARTIFACT = Artifact(
    name="fig6",
    summary="validation accuracy per epoch, dense against CoMERA; an image per device and dataset",
    order=30,
    **metrics.OF_STUDIES_AND_BED,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
    rules=(SAME_ACCURACY, LTE_CONVERGENCE),
)
