"""Accuracy against the model's costs: CoMERA, low_rank and dense after the same steps, with Pareto fronts.

Size, work and predicted memory are those of the training's own records. Times are of steps that were timed apart, arms
in turns, since trainings run beside each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from figures import frame
from figures.arms import COMERA, DENSE, SIZE_RIVAL
from figures.artifact import Artifact
from figures.columns import Format, readable
from figures.draw import facts, training
from figures.draw.captions import Caption
from figures.draw.layout import panel_page
from figures.draw.style import (
    DENSE_STROKE,
    FAINT,
    INK,
    Stroke,
    note,
    number_axis,
    stroke_handle,
    strokes,
    whisker_handles,
    with_room,
)
from figures.frame import each
from figures.stats.metric import LeadingMetric, Score
from figures.stats.seeds import less, with_estimates
from figures.stats.sizes import equal_size, reach_of
from figures.stats.studies import PROBES, Study, studies
from figures.stats.time_values import step_of
from figures.text import bounds_kinds_of, listed

#: Models count as equally large within the tolerance of the solvers that gave them their ratio.
_SAME_SIZE = 1.02

_FRONT: dict[str, Any] = {"color": FAINT, "linewidth": 3.5, "alpha": 0.35, "solid_capstyle": "butt"}
_LIMIT: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (1, 1.5))}

#: Costs by their columns, with their headings in the table and on axes.
SIZE, WORK = "stored_mib", "gflop_per_step"
MEMORY, STEP = "peak_memory_predicted_mib", "step_time_ms"
HEADINGS = {WORK: "GFLOP per step", MEMORY: "peak MiB, predicted", STEP: "step, ms"}
AXES = {
    SIZE: "size of the stored model, MiB",
    WORK: "work of a training step, GFLOP",
    MEMORY: "predicted peak memory of a step, MiB",
    STEP: "time of a training step, ms",
}


Strokes = Mapping[str, Stroke]


def points_of(metric: LeadingMetric, table: pd.DataFrame, cost: str = SIZE) -> pd.DataFrame:
    """Return the lines that have both a cost and the metric, the least cost first."""
    return table[(table[cost] > 0) & table[metric.name].notna()].sort_values(cost, kind="stable")


def dominators(metric: LeadingMetric, points: pd.DataFrame, cost: str = SIZE) -> pd.Series:
    """Return for each point the line of the best one that beats it; missing where none does.

    A point beats another by value: better and no larger, or as good and smaller. Sizes within the tolerance of the
    solvers are equal.
    """
    size, value = points[cost].to_numpy(float), points[metric.name].to_numpy(float)
    ahead = (value[None, :] - value[:, None]) * (1 if metric.higher_is_better else -1)
    better = (ahead > 0) & (size[None, :] <= _SAME_SIZE * size[:, None])
    smaller = (ahead == 0) & (_SAME_SIZE * size[None, :] < size[:, None])
    gains = np.where(better | smaller, ahead, -1.0)
    found = [points.index[row.argmax()] if row.max() >= 0 else None for row in gains]
    return pd.Series(found, index=points.index, dtype=object)


def _less_low_rank(study: Study) -> list[Score | None]:
    """Return how far each row of CoMERA is apart from low rank of the same ratio, form and number of parameters."""
    rivals = {(row.arm, row.ratio): row for row in reversed(each(study.rows))}
    found = []
    for row in each(study.rows):
        method, _, form = row.arm.partition(":")
        arm = f"{SIZE_RIVAL}:{form}" if form else SIZE_RIVAL
        rival: Any = rivals.get((arm, row.ratio)) if method == COMERA and pd.notna(row.ratio) else None
        is_alike = rival is not None and equal_size(row.parameters, rival.parameters)
        found.append(less(study.metric, row.finished, rival.finished) if is_alike else None)
    return found


def timed_steps(study: Study) -> pd.DataFrame:
    """Return the records that time steps apart, on the study's model and batch; those of dense have no ratio."""
    same = ("device", "dataset", *frame.MODEL, "batch_size", "precision")
    alike = frame.settings(study.timed, same) == frame.settings(study.df.head(1), same).iloc[0]
    steps = study.timed[alike & study.timed["arm"].isin(study.rows["arm"])]
    return steps.assign(ratio=steps["ratio"].where(steps["arm"] != DENSE))


def _median_step(records: pd.Series) -> Any:
    times = sorted(filter(None, map(step_of, records)), key=lambda time: time.value)
    return times[len(times) // 2] if times else None


def table(study: Study) -> pd.DataFrame:
    """Return a line per run: size, metric, costs that any model beside dense has, and the run that beats it."""
    metric, rows = study.metric, study.rows.reset_index(drop=True)
    steps = timed_steps(study).groupby(["arm", "ratio"], dropna=False)["record"].agg(_median_step)
    steps = rows.merge(steps.rename("step").reset_index(), "left", ["arm", "ratio"])["step"].astype(object)
    estimates: dict[str, Any] = {
        metric.less_column("low_rank"): _less_low_rank(study),
        STEP: steps.where(steps.notna(), None),
    }
    rows = with_estimates(rows, estimates)
    rows = rows.assign(stage=rows["goal"], gflop_per_step=rows["flops_per_step"] / 1e9)
    points = points_of(metric, rows)
    beaten = dominators(metric, points).reindex(rows.index)
    rows["on_front"] = beaten.isna().astype(object).where(rows.index.isin(points.index), None)
    rows["dominated_by"] = beaten.map(rows["run"]).fillna("")
    columns = ["device", "dataset", "arm", "ratio", "stage", *training.RUN]
    columns += training.ends(SIZE, "total_ratio", metric.name)
    columns += training.ends(metric.less_column("dense"), metric.less_column("low_rank"))
    for cost in (WORK, MEMORY, STEP):
        if (rows.loc[rows["arm"] != DENSE, cost].astype(float) > 0).any():
            columns += training.ends(STEP) if cost == STEP else [cost]
    return rows[[*columns, "on_front", "dominated_by", "older_code"]]


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the costs that any model beside dense has."""
    metric = study.metric
    more = {metric.name: training.metric_format(metric), "on_front": Format("on the front")}
    more |= {cost: Format(heading, bare=True) for cost, heading in HEADINGS.items()}
    differences = [metric.less_column(other) for other in ("dense", "low_rank")]
    for column, other in zip(differences, ("dense", "low_rank"), strict=True):
        more[column] = training.difference_format(metric, f"less {other}")
    costs = [cost for cost in HEADINGS if cost in table]
    columns = ["run", SIZE, "total_ratio", metric.name, *differences, *costs, "on_front"]
    return readable(table.assign(run=study.rows["run"].array), columns, more)


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return which runs do not surely beat guessing or the probe, and whose timed steps a busy machine lengthened."""
    rows, metric = study.rows, study.metric
    scores = dict(zip(rows["run"], rows["score"], strict=True))
    return {
        **training.about_study(study, table),
        "superseded": study.experiment in ("code_ratios", "code_ratios_long"),
        "beside_guess": training.standing(scores, metric.guess),
        "beside_probe": training.standing(scores, metric.probe),
        "busy_steps": facts.busy(list(timed_steps(study)["record"])),
        "forms": bool(rows["arm"].str.contains(":").any()),
    }


def _limits(study: Study) -> pd.DataFrame:
    """Return a line per arm that was asked for a smaller model than it reaches: the size of that, and words for it."""
    asked = study.df.dropna(subset="ratio").drop_duplicates("slot")
    asked = asked.loc[asked["slot"].map(study.slots.index).sort_values().index]
    asked["reach"] = asked["record"].map(reach_of)
    asked, lines = asked.dropna(subset="reach"), []
    for arm, runs in asked.groupby("arm", sort=False):
        reach = runs["reach"].iloc[0]
        if reach.side == "most":
            words = f"{arm}: {reach}, asked for {listed(list(runs['ratio']))}"
            lines.append((arm, study.df["dense_mib"].max() / reach.ratio, words))
    found = pd.DataFrame(lines, columns=["arm", "size", "words"])
    return found.dropna(subset="size").sort_values("size")


def draw(study: Study, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the value against each cost, with the front of each."""
    metric, limits, named = study.metric, _limits(study), table.assign(run=study.rows["run"].array)
    arms = dict.fromkeys([COMERA, *table.loc[table["arm"] != DENSE, "arm"]])
    style = strokes(list(arms)) | {DENSE: DENSE_STROKE}
    drawn = {*points_of(metric, table)["arm"]}
    handles = [
        stroke_handle(stroke, arm, markersize=4.5, linestyle="" if arm == DENSE else stroke.dashes)
        for arm, stroke in style.items()
        if arm in drawn
    ]
    handles += whisker_handles(bounds_kinds_of(study.rows["score"]))
    handles.append(Line2D([], [], **_FRONT, label="Pareto front, by value"))
    if len(limits):
        handles.append(Line2D([], [], color=INK, **_LIMIT, label="smallest within reach"))
    costs = [cost for cost in AXES if cost in table]
    grid = [["" for _ in costs[first : first + 2]] for first in range(0, len(costs), 2)]
    paper, panels = panel_page(caption, grid, 3.4, handles, 6)
    for cost, axes in zip(costs, itertools.chain(*panels), strict=True):
        training.label(axes, AXES[cost], metric.axis, not drawn)
        if drawn:
            _panel(axes, metric, named, cost, style, limits if cost == SIZE else limits[:0])
    return paper.finish()


def _panel(
    axes: Any, metric: LeadingMetric, table: pd.DataFrame, cost: str, style: Strokes, limits: pd.DataFrame
) -> None:
    """Draw the points and their front, those that none beats, and the smallest sizes within reach."""
    points = points_of(metric, table, cost)
    low, high = training.bounds_of(points, metric.name)
    points = points.assign(low=low, high=high)
    axes.set_xscale("log")
    sizes = [*points[cost], *limits["size"]]
    axes.set_xlim(min(sizes) / 1.25, 1.15 * max(sizes))
    number_axis(axes.xaxis, LogLocator(10, subs=(1, 2, 5)))
    axes.set_ylim(with_room(low, high, 0.06, 0.12))
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    front = points[dominators(metric, points, cost).isna()]
    end = axes.get_xlim()[1], front[metric.name].iloc[-1]
    x, y = [*front[cost], end[0]], [*front[metric.name], end[1]]
    axes.step(x, y, where="post", zorder=2, **_FRONT)
    drawn = {*points_of(metric, table)["arm"]}
    # forms that stand beside the plain arm
    forms = {arm for arm in drawn if arm != arm.partition(":")[0] in drawn}
    for arm, stroke in style.items():
        some = points[points["arm"] == arm]
        # points of equal size stand side by side, forms of an arm farther than itself
        shift = {COMERA: -3.0, DENSE: 0.0}.get(arm.partition(":")[0], 3.0)
        shift *= 2.5 if arm in forms else 1
        place = axes.transData + ScaledTranslation(shift / 72, 0, axes.figure.dpi_scale_trans)
        words: dict[str, Any] = {"xycoords": place, "fontsize": 6.5}
        words["va"] = "top" if shift > 0 else "bottom"
        words["ha"] = "left" if shift < 0 else "right" if shift > 0 else "center"
        for point in some.to_dict("records"):
            look = {"transform": place, "linewidth": 0.9, "solid_capstyle": "projecting"}
            training.whisker(axes, point[cost], point["low"], point["high"], **look, zorder=3)
            # with forms, the ratios of the other arms are the same, in the same order
            if not forms or arm in (COMERA, DENSE):
                name = point["run"].removeprefix(arm).lstrip(", ") or arm
                at, dy = (point["low"], -3) if shift > 0 else (point["high"], 3)
                note(axes, name, (point[cost], at), (0, dy), **words)
        if len(some):
            look = {"linewidth": 1.2, "markersize": 5, "transform": place, "zorder": 4}
            axes.plot(some[cost], some[metric.name], **stroke.look, **look)
    for number, limit in enumerate(each(limits)):
        axes.axvline(limit.size, color=style[limit.arm].colour, zorder=1, **_LIMIT)
        side, dx = ("right", -2) if number % 2 == 0 else ("left", 2)
        look = {"xycoords": axes.get_xaxis_transform(), "rotation": 90, "fontsize": 6.5}
        note(axes, limit.words, (limit.size, 0.02), (dx, 0), va="bottom", ha=side, **look)


ARTIFACT = Artifact(
    name="pareto",
    summary="accuracy against size, work, memory and time, with Pareto fronts; an image per device and dataset",
    experiments=("ratios_accuracy", "code_ratios", "code_ratios_long"),
    also=("ratios_accuracy_small",),
    measure="train",
    lenders=(*PROBES, "code_ratios_time"),
    order=120,
    select=studies,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
)
