"""Fig. 6: the leading metric per epoch, dense against CoMERA's first stage and each later one that continues it."""

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
from figures.draw import training
from figures.draw.captions import Caption, beside
from figures.draw.layout import panel_page
from figures.draw.style import DENSE_STROKE, EARLY_STROKE, INK, STROKES, Stroke, note, stroke_handle
from figures.frame import each, settings_of
from figures.stats.metric import score
from figures.stats.seeds import with_estimates
from figures.stats.studies import Study
from figures.stats.training import curve_of
from figures.text import NOT_ASKED


def table(study: Study) -> pd.DataFrame:
    """Return a line per run, step and seed, for the steps that all seeds of a run have.

    Of a stage with a target the line begins at the point that it starts from. The band is the interval of a single
    seed, or lies between the least and the greatest of several.
    """
    metric, lines = study.metric, list[dict[str, Any]]()
    for row in each(study.rows):
        for seed, run in row.finished.items():
            curve = curve_of(run)
            if row.arm != DENSE and row.has_target:
                last = next((i for i, point in enumerate(curve) if point.stage == row.stage), len(curve))
                curve = curve[max(last - 1, 0) :]
            for point in curve:
                about = {"run": row.run, "seed": seed, "epoch": point.epoch, "step": point.step, "stage": point.stage}
                lines.append({**about, "point": point, "seeds": len(row.finished), "place": len(lines)})
    columns = ["run", "seed", "epoch", "step", "stage", "point", "seeds", "place"]
    points = pd.DataFrame(lines, columns=columns).drop_duplicates(["run", "seed", "step"], keep="last")
    points = points[points.groupby(["run", "step"])["seed"].transform("size") == points["seeds"]]
    runs = points["run"].map({run: place for place, run in enumerate(study.rows["run"])})
    points = points.assign(of=runs).sort_values(["of", "step", "place"])
    points = with_estimates(points, {metric.name: [score(metric, {0: point}) for point in points["point"]]})
    points[metric.name] = [point.value for point in points["point"]]
    values = points.groupby(["run", "step"])[metric.name]
    single = points["seeds"] == 1
    for end, of_seeds in (("low", values.transform("min")), ("high", values.transform("max"))):
        points[f"band_{end}"] = points[f"{metric.name}_{end}"].astype(float).where(single, of_seeds)
    points["band_bounds"] = points[f"{metric.name}_bounds"].where(single, "range")
    unfinished = study.rows.loc[study.rows["status"] != "ok", ["run", "status"]]
    found = pd.concat([points.assign(status="ok"), unfinished], ignore_index=True)
    found = found.assign(device=study.device, dataset=study.dataset)
    columns = ["device", "dataset", "run", "status", "seed", "epoch", "step", "stage"]
    return found[[*columns, *training.ends(metric.name), "band_low", "band_high", "band_bounds"]]


def bands(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a line per run and step: the mean of a metric over seeds, with the band as its bounds."""
    points = table.assign(**{f"{name}_{end}": table[f"band_{end}"] for end in ("low", "high")})
    first = dict.fromkeys(["epoch", "stage", "status", f"{name}_low", f"{name}_high"], "first")
    return points.groupby(["run", "step"], sort=False).agg({**first, name: "mean"}).reset_index()


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per epoch or end of a stage, with the value of every run."""
    metric, found = study.metric, bands(table, study.metric.name)
    written = readable(found, [metric.name], {metric.name: training.metric_format(metric)})[metric.heading]
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
    return "curve_steps" in settings_of(study.shown[0], "training")


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return whether the curve is by step, what the band is, and the first slot whose stage aims at a size."""
    later = next((slot for slot in study.slots if slot.has_target), None)
    more = {"by_step": by_step(study), "band": band_words(study), "later": later}
    return {**training.about_study(study, table), **more}


def band_words(study: Study) -> str:
    """Name what the band is, for a legend; empty where a single seed has no bounds."""
    if len(study.seeds) > 1:
        return f"lowest to highest of {len(study.seeds)} seeds"
    return f"95 % interval over {training.examples_words(study)} (one seed)" if study.has_values else ""


def looks(study: Study) -> dict[str, Stroke]:
    """Return a stroke for every run: dense and CoMERA's first stage have their own, in all figures."""
    found: dict[str, Stroke] = {}
    others = 0
    for row in each(study.rows):
        if row.is_whole_dense:
            found[row.run] = DENSE_STROKE
        elif row.arm == COMERA and row.slot.ratio is None and not row.has_target:
            found[row.run] = EARLY_STROKE
        else:
            found[row.run], others = STROKES[others % len(STROKES)], others + 1
    return found


def draw_run(axes: Any, x: Any, line: pd.DataFrame, name: str, stroke: Stroke, **style: Any) -> None:
    """Draw a curve and its band."""
    low, high = training.bounds_of(line, name)
    axes.fill_between(x, low, high, color=stroke.colour, alpha=0.1, linewidth=0)
    if len(line) == 1:  # a band without width would not show
        axes.plot([*x] * 2, [*low, *high], color=stroke.colour, linewidth=0.8, alpha=0.5)
    axes.plot(x, line[name], linewidth=1.4, **stroke.look, **style)


def draw(study: Study, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the validation accuracy by epoch, a curve per arm."""
    name, found, steps = study.metric.name, bands(table, study.metric.name), by_step(study)
    strokes, per_epoch = looks(study), study.steps_per_epoch
    rows = study.rows[study.rows["status"] == "ok"]
    handles: list[Any] = [stroke_handle(strokes[row.run], row.label) for row in each(rows)]
    if words := band_words(study):
        handles.append(Patch(facecolor=INK, alpha=0.14, label=words))
    paper, [[axes]] = panel_page(caption, [[""]], 3.2, handles, 4)
    for row in each(rows):
        line = found[found["run"] == row.run]
        continues = row.arm.startswith(COMERA) and row.has_target  # another curve, whose marker is there already
        style = {"markersize": 4.5, "markevery": slice(int(continues), None)}
        draw_run(axes, line["step" if steps else "epoch"], line, name, strokes[row.run], **style)
    axes.margins(y=0.1)
    names, lengths = zip(*study.stages, strict=True)
    for number, end in enumerate(list(accumulate(lengths))[:-1] if per_epoch else []):
        epoch = end if steps else end / (per_epoch or 1)
        axes.axvline(epoch, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        for stage, side, dx in ((names[number], "right", -4), (names[number + 1], "left", 4))[number > 0 :]:
            place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": side, "va": "bottom"}
            note(axes, f"{stage} stage", (epoch, 1.0), (dx, 3), fontsize=7.5, color=INK, **place)
    length = f", {per_epoch:,} {'steps an epoch' if steps else 'steps each'}" if per_epoch else ""
    axes.set_xlabel(f"{'steps on' if steps else 'epochs of'} {study.dataset!r}{length}", fontsize=8)
    axes.set_ylabel(study.metric.axis, fontsize=8)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=steps or found["epoch"].max() > 2))
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    if rows.empty:
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
