"""Fig. 6: the leading metric per epoch, dense against CoMERA's first stage and each later one that continues it."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from figures.arms import COMERA, DENSE
from figures.artifact import Artifact
from figures.claims.training import SAME_ACCURACY
from figures.columns import readable
from figures.frame import settings_of
from figures.page import training
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.style import DENSE_STROKE, EARLY_STROKE, INK, STROKES, Stroke, note, stroke_handle
from figures.records.metric import score
from figures.records.studies import Study, StudyRow
from figures.records.training import CurvePoint, curve_of
from figures.text import NOT_ASKED


def _part(row: StudyRow, curve: Sequence[CurvePoint]) -> dict[int, CurvePoint]:
    """Return what of a curve is drawn, by step: of a stage with a target itself and the point that it starts from."""
    start = 0
    if row.slot.arm != DENSE and row.slot.has_target:
        last = next((i for i, point in enumerate(curve) if point.stage == row.slot.stage), len(curve))
        start = max(last - 1, 0)
    return {point.step: point for point in curve[start:]}


def table(study: Study) -> pd.DataFrame:
    """Return a line per run, seed and point, for the steps that all seeds of a run have.

    The band is the interval of a single seed, or lies between the least and the greatest of several.
    """
    name = study.metric.name
    lines: list[dict[str, Any]] = []
    for row in sorted(study.rows, key=lambda row: not row.finished):
        about = {"device": study.device, "dataset": study.dataset, "run": row.name}
        if not row.finished:
            lines.append({**about, "status": row.status})
            continue
        curves = {seed: _part(row, curve_of(run)) for seed, run in row.finished.items()}
        for step in sorted(set.intersection(*map(set, curves.values()))):
            found = {seed: score(study.metric, {seed: curve[step]}) for seed, curve in curves.items()}
            values = [curve[step].value for curve in curves.values()]
            for seed, one in found.items():
                point = curves[seed][step]
                single = len(found) == 1
                lines.append(
                    {
                        **about,
                        "status": "ok",
                        "seed": seed,
                        "epoch": point.epoch,
                        "step": point.step,
                        "stage": point.stage,
                        name: point.value,
                        f"{name}_low": one.low,
                        f"{name}_high": one.high,
                        f"{name}_bounds": one.kind,
                        "band_low": one.low if single else min(values),
                        "band_high": one.high if single else max(values),
                        "band_bounds": one.kind if single else "range",
                    }
                )
    return pd.DataFrame(lines)


def bands(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a line per run and step: the mean of a metric over seeds, with the band as its bounds."""
    if name not in table:
        return pd.DataFrame(columns=["run", "step", "epoch", "stage", "status", name])
    of_step = table[table["status"] == "ok"].groupby(["run", "step"], sort=False)
    columns = {"epoch": "first", "stage": "first", "status": "first", name: "mean"}
    found = of_step.agg({**columns, "band_low": "first", "band_high": "first"}).reset_index()
    found = found.astype({"band_low": float, "band_high": float})  # which are objects where no run has bounds
    return found.rename(columns={"band_low": f"{name}_low", "band_high": f"{name}_high"})


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per epoch or end of a stage, with the value of every run."""
    metric = study.metric
    found = bands(table, metric.name)
    written = readable(found, [metric.name], {metric.name: training.metric_format(metric)})[metric.heading]
    points = found.drop_duplicates("step", keep="last").sort_values("step")
    lines = readable(points, ["epoch", *(["step"] if by_step(study) else []), "stage"])
    if points.empty:
        lines = pd.DataFrame([{"epoch": NOT_ASKED, "stage": NOT_ASKED}])
    for row in study.rows:
        mine = found["run"] == row.name
        cells = dict(zip(found.loc[mine, "step"], written[mine], strict=True))
        lines[row.label] = [cells.get(step, NOT_ASKED) for step in points["step"]] if row.finished else row.status
    return lines


def by_step(study: Study) -> bool:
    """Return whether the curve has points between epochs."""
    return "curve_steps" in settings_of(study.shown[0], "training")


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return whether the curve is by step, what the band is, and the first slot whose stage aims at a size."""
    later = next((slot for slot in study.slots if slot.has_target), None)
    return {
        **training.about_study(study, table),
        "by_step": by_step(study),
        "band": band_words(study),
        "later": later,
    }


def band_words(study: Study) -> str:
    """Name what the band is, for a legend; empty where a single seed has no bounds."""
    if len(study.seeds) > 1:
        return f"lowest to highest of {len(study.seeds)} seeds"
    return "" if study.values_are == "none" else f"95 % interval over {training.examples_words(study)} (one seed)"


def looks(study: Study) -> dict[str, Stroke]:
    """Return a stroke for every run: dense and CoMERA's first stage have their own, in all figures."""
    found, others = {}, 0
    for row in study.rows:
        slot = row.slot
        if row.is_whole_dense:
            found[row.name] = DENSE_STROKE
        elif slot.arm == COMERA and slot.ratio is None and not slot.has_target:
            found[row.name] = EARLY_STROKE
        else:
            found[row.name], others = STROKES[others % len(STROKES)], others + 1
    return found


def _draw_run(axes: Any, line: pd.DataFrame, at: str, name: str, stroke: Stroke, continues: bool) -> None:
    """Draw a curve and its band; one that continues another has no marker where it starts."""
    low, high = (line[f"{name}_{end}"].fillna(line[name]) for end in ("low", "high"))
    axes.fill_between(line[at], low, high, color=stroke.colour, alpha=0.1, linewidth=0)
    if len(line) == 1:  # a band without width would not show
        axes.plot([*line[at]] * 2, [*low, *high], color=stroke.colour, linewidth=0.8, alpha=0.5)
    style = {"linewidth": 1.4, "markersize": 4.5, "markevery": slice(int(continues), None), **stroke.look}
    axes.plot(line[at], line[name], **style)


def _draw_stages(axes: Any, study: Study) -> None:
    names, steps = zip(*study.stages, strict=True)
    for number, end in enumerate(list(accumulate(steps))[:-1] if study.steps_per_epoch else []):
        epoch = end if by_step(study) else end / (study.steps_per_epoch or 1)
        axes.axvline(epoch, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        for name, side, dx in ((names[number], "right", -4), (names[number + 1], "left", 4))[number > 0 :]:
            place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": side, "va": "bottom"}
            note(axes, f"{name} stage", (epoch, 1.0), (dx, 3), fontsize=7.5, color=INK, **place)


def draw(study: Study, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the validation accuracy by epoch, a curve per arm."""
    name, found = study.metric.name, bands(table, study.metric.name)
    at, strokes = "step" if by_step(study) else "epoch", looks(study)
    rows: Mapping[str, StudyRow] = {row.name: row for row in study.rows if row.finished}
    handles: list[Any] = [stroke_handle(strokes[one], row.label) for one, row in rows.items()]
    if words := band_words(study):
        handles.append(Patch(facecolor=INK, alpha=0.14, label=words))
    paper, [[axes]] = panel_page(caption, [[""]], 3.2, handles, 4)
    for one, row in rows.items():
        continues = row.slot.arm.startswith(COMERA) and row.slot.has_target
        _draw_run(axes, found[found["run"] == one], at, name, strokes[one], continues)
    axes.margins(y=0.1)
    _draw_stages(axes, study)
    if by_step(study):
        label, each = f"steps on {study.dataset!r}", "steps an epoch"
    else:
        label, each = f"epochs of {study.dataset!r}", "steps each"
    per_epoch = f", {study.steps_per_epoch:,} {each}" if study.steps_per_epoch else ""
    axes.set_xlabel(label + per_epoch, fontsize=8)
    axes.set_ylabel(study.metric.axis, fontsize=8)
    axes.set_xlim(left=0)
    longest = max(found["epoch"], default=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=by_step(study) or longest > 2))
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    if not rows:
        training.nothing_finished(axes)
    return paper.finish()


ARTIFACT = Artifact(
    name="fig6",
    heading="Fig. 6: validation accuracy per epoch",
    summary="validation accuracy per epoch, dense against CoMERA; an image per device and dataset",
    order=30,
    **training.OF_STUDIES,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
    rules=(SAME_ACCURACY,),
)
