"""Accuracy against size, work, memory and time: CoMERA, low_rank and dense after the same steps, with Pareto fronts.

Size, work and predicted memory are those of the training's own records. Times are of steps that were timed apart, arms
in turns, since trainings run beside each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from bench.core.intervals import Estimate
from bench.core.record import Record
from figures import frame
from figures.arms import COMERA, DENSE, SIZE_RIVAL
from figures.artifact import Artifact
from figures.columns import Format, lines_of, readable, table_of
from figures.page import facts, training
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.style import (
    DENSE_STROKE,
    FAINT,
    INK,
    Stroke,
    bounds_handles,
    note,
    number_axis,
    stroke_handle,
    strokes,
)
from figures.records.crossover import listed
from figures.records.metric import Metric
from figures.records.reach import Reach, reach_of
from figures.records.sizes import equal_size
from figures.records.studies import PROBES, Study, StudyRow, studies
from figures.records.time_values import step_of
from figures.text import bounds

#: Models count as equally large within the tolerance of the solvers that gave them their ratio.
_SAME_SIZE = 1.02

#: By how much farther than an arm a form of it is drawn from its place.
_FARTHER = 2.5

_FRONT: dict[str, Any] = {"color": FAINT, "linewidth": 3.5, "alpha": 0.35, "solid_capstyle": "butt"}
_LIMIT_DASHES = (0, (1, 1.5))


#: Experiments whose models were compared on the plateau of a unigram model.
SUPERSEDED = ("code_ratios", "code_ratios_long")

#: Steps of the models of ``code_ratios``, timed apart.
TIMES = "code_ratios_time"


class Cost(NamedTuple):
    """A cost of a model: a panel of the figure and a column of the table."""

    name: str  # in the CSV
    heading: str
    axis: str


SIZE, WORK, STEP = "stored_mib", "gflop_per_step", "step_time_ms"
COSTS = (
    Cost(SIZE, "total, MiB", "size of the stored model, MiB"),
    Cost(WORK, "GFLOP per step", "work of a training step, GFLOP"),
    Cost("peak_memory_predicted_mib", "peak MiB, predicted", "predicted peak memory of a step, MiB"),
    Cost(STEP, "step, ms", "time of a training step, ms"),
)


def _named(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the names of its runs."""
    return table.assign(run=[row.name for row in study.rows])


def points_of(metric: Metric, table: pd.DataFrame, cost: str = SIZE) -> pd.DataFrame:
    """Return the lines that have both a cost and the metric, the least cost first."""
    if not {cost, metric.name} <= {*table}:
        return table[:0]
    return table[(table[cost] > 0) & table[metric.name].notna()].sort_values(cost, kind="stable")


def dominators(metric: Metric, points: pd.DataFrame, cost: str = SIZE) -> list[int | None]:
    """Return for each point the place of the best one that beats it; None where none does.

    A point beats another by value: better and no larger, or as good and smaller. Sizes within the tolerance of the
    solvers are equal.
    """
    pairs = list(zip(points[cost], points[metric.name], strict=True))
    found: list[int | None] = []
    for size, value in pairs:
        ahead = {place: metric.gain(other, value) for place, (_, other) in enumerate(pairs)}
        beating = [
            place
            for place, (other, _) in enumerate(pairs)
            if (ahead[place] > 0 and other <= _SAME_SIZE * size) or (ahead[place] == 0 and _SAME_SIZE * other < size)
        ]
        found.append(max(beating, key=ahead.__getitem__, default=None))
    return found


def _method(arm: str) -> str:
    return arm.partition(":")[0]


def _parameters(row: StudyRow) -> int | None:
    """Return the parameters that a row was trained from."""
    return next((run.parameters for run in row.finished.values() if run.parameters), None)


def rival_of(study: Study, row: StudyRow) -> StudyRow | None:
    """Return low rank of the size of a row of CoMERA within 2 %, at the same ratio and in the same form."""
    slot = (SIZE_RIVAL + row.slot.arm.removeprefix(COMERA), row.slot.ratio)
    if _method(row.slot.arm) != COMERA or row.slot.ratio is None:
        return None
    found = next((one for one in study.rows if (one.slot.arm, one.slot.ratio) == slot), None)
    return found if found and equal_size(_parameters(found), _parameters(row)) else None


def limits_of(study: Study) -> dict[str, tuple[Reach, list[float]]]:
    """Return by arm the end of its ratios and those asked for that lie beyond."""
    found: dict[str, tuple[Reach, list[float]]] = {}
    for row in study.rows:
        reach = reach_of(*row.runs.values())
        if reach is not None and row.slot.ratio is not None:
            found.setdefault(row.slot.arm, (reach, []))[1].append(row.slot.ratio)
    return found


def timed_steps(study: Study, row: StudyRow) -> list[Record]:
    """Return the records that time a step of an arm apart, on the study's model and batch."""
    same = (*frame.MODEL, "batch_size", "precision")
    own = frame.settings(study.df.head(1), same).iloc[0]
    alike = study.timed[(frame.settings(study.timed, same) == own) & (study.timed["arm"] == row.slot.arm)]
    return list(alike["record"] if row.slot.ratio is None else alike.loc[alike["ratio"] == row.slot.ratio, "record"])


def _step(study: Study, row: StudyRow) -> Estimate | None:
    """Return the time of a step in ms, the median of several."""
    times = sorted((time for one in timed_steps(study, row) if (time := step_of(one))), key=lambda time: time.value)
    return times[len(times) // 2] if times else None


def table(study: Study) -> pd.DataFrame:
    """Return a line per run: size, metric, costs that any model beside dense has, and the run that beats it."""
    metric, lines = study.metric, []
    for row in study.rows:
        rival, flops = rival_of(study, row), row.mean("flops_per_step")
        line = training.run_columns(study, row, ratio=row.slot.ratio, stage=row.slot.goal)
        line |= training.spread_columns(row, "stored_mib", "total_ratio")
        line |= bounds(metric.name, row.score())
        line |= bounds(training.less_column(metric, "dense"), row.less_dense)
        line |= bounds(training.less_column(metric, "low_rank"), row.less(rival))
        line |= {WORK: flops and flops / 1e9, COSTS[2].name: row.mean(COSTS[2].name)}
        line |= bounds(STEP, _step(study, row))
        lines.append({**line, "on_front": None, "dominated_by": "", "older_code": bool(row.mark)})
    found = table_of(lines)
    others = found[found["arm"] != DENSE]
    unknown = tuple(cost.name for cost in COSTS[1:] if not (others[cost.name].astype(float) > 0).any())
    found = found.drop(columns=[name for name in found if unknown and str(name).startswith(unknown)])
    points = points_of(metric, _named(study, found))
    names = list(points["run"])
    for place, other in zip(points.index, dominators(metric, points), strict=True):
        found.loc[place, "on_front"] = other is None
        found.loc[place, "dominated_by"] = "" if other is None else names[other]
    return found


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the costs that any model beside dense has."""
    metric = study.metric
    less = {training.less_column(metric, other): f"less {other}" for other in ("dense", "low_rank")}
    more = {metric.name: training.metric_format(metric), "on_front": Format("on the front")}
    more |= {column: training.difference_format(metric, heading) for column, heading in less.items()}
    more |= {cost.name: Format(cost.heading, bare=True) for cost in COSTS[1:]}
    costs = [cost.name for cost in COSTS[1:] if cost.name in table]
    columns = ["run", "stored_mib", "total_ratio", metric.name, *less, *costs, "on_front"]
    return readable(_named(study, table), columns, more)


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return which runs do not surely beat guessing or the probe, and whose timed steps a busy machine lengthened."""
    metric, scores = study.metric, {row.name: row.score() for row in study.rows}
    timed = {one.cell_id: one for row in study.rows for one in timed_steps(study, row)}
    return {
        **training.about_study(study, table),
        "superseded": study.experiment in SUPERSEDED,
        "beside_guess": training.standing(scores, metric.guess),
        "beside_probe": training.standing(scores, metric.probe),
        "busy_steps": facts.busy(list(timed.values())),
        "forms": any(row.slot.arm != _method(row.slot.arm) for row in study.rows),
    }


def _draw_arm(axes: Any, points: pd.DataFrame, cost: str, name: str, stroke: Stroke, shift: float, named: bool) -> None:
    """Draw the points of an arm, ``shift`` points of space to the right, so that equal sizes stand side by side.

    What is shifted to the right has its names below, the rest above, so that those of two arms do not meet; only
    ``named`` points have any.
    """
    place = axes.transData + ScaledTranslation(shift / 72, 0, axes.figure.dpi_scale_trans)
    style: dict[str, Any] = {"transform": place, "linewidth": 0.9, "solid_capstyle": "projecting", "zorder": 3}
    below = shift > 0
    words: dict[str, Any] = {"xycoords": place, "va": "top" if below else "bottom", "fontsize": 6.5}
    words["ha"] = "left" if shift < 0 else "right" if below else "center"
    for point in lines_of(points):
        span = training.span_of(point, name)
        training.whisker(axes, point[cost], span, **style)
        label = point["run"].removeprefix(point["arm"]).lstrip(", ") or point["arm"]
        if named:
            note(axes, label, (point[cost], span[not below]), (0, -3 if below else 3), **words)
    axes.plot(points[cost], points[name], **stroke.look, linewidth=1.2, markersize=5, transform=place, zorder=4)


def _limits(study: Study) -> list[tuple[float, str, str]]:
    """Return the smallest size in MiB of each arm that was asked for a smaller one, the arm, and words for it."""
    dense = max(run.dense_mib or 0.0 for run in study.shown)
    ends = [
        (dense / limit.ratio, arm, f"{arm}: {limit}, asked for {listed(ratios)}")
        for arm, (limit, ratios) in limits_of(study).items()
        if limit.side == "most"
    ]
    return sorted(ends) if dense else []


def _scale(axes: Any, sizes: Sequence[float], spans: Sequence[tuple[float, float]]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(min(sizes) / 1.25, 1.15 * max(sizes))
    number_axis(axes.xaxis, LogLocator(10, subs=(1, 2, 5)))
    low, high = min(low for low, _ in spans), max(high for _, high in spans)
    room = high - low or abs(high) or 1.0  # one point without bounds has no extent
    axes.set_ylim(low - 0.06 * room, high + 0.12 * room)
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))


def draw(study: Study, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the value against each cost, with the front of each."""
    named, limits, metric = _named(study, table), _limits(study), study.metric
    arms = dict.fromkeys([COMERA, *(row.slot.arm for row in study.rows if row.slot.arm != DENSE)])
    style = strokes(list(arms)) | {DENSE: DENSE_STROKE}  # as in Fig. 12
    drawn = set(points_of(metric, named)["arm"])
    forms = {arm for arm in drawn if arm != _method(arm) in drawn}  # that stand beside the plain arm
    handles = [
        stroke_handle(style[arm], arm, markersize=4.5, linestyle="" if arm == DENSE else style[arm].dashes)
        for arm in style
        if arm in drawn
    ]
    handles += bounds_handles(row.score() for row in study.rows)
    handles.append(Line2D([], [], **_FRONT, label="Pareto front, by value"))
    if limits:
        handles.append(Line2D([], [], color=INK, linewidth=1, linestyle=_LIMIT_DASHES, label="smallest within reach"))
    costs = [cost for cost in COSTS if cost.name in table]
    grid = [["" for _ in costs[first : first + 2]] for first in range(0, len(costs), 2)]
    paper, panels = panel_page(caption, grid, 3.4, handles, 6)
    for cost, axes in zip(costs, [axes for line in panels for axes in line], strict=True):
        axes.set_xlabel(cost.axis, fontsize=8)
        axes.set_ylabel(metric.axis, fontsize=8)
        if drawn:
            own = limits if cost.name == SIZE else []
            _panel(axes, metric, points_of(metric, named, cost.name), cost.name, style, forms, own)
        else:
            training.nothing_finished(axes)
    return paper.finish()


def _panel(
    axes: Any,
    metric: Metric,
    points: pd.DataFrame,
    cost: str,
    style: Mapping[str, Stroke],
    forms: Collection[str],
    limits: Sequence[tuple[float, str, str]],
) -> None:
    """Draw the points and their front, those that none beats, and the smallest sizes within reach."""
    spans = [training.span_of(point, metric.name) for point in lines_of(points)]
    _scale(axes, [*points[cost], *(size for size, _, _ in limits)], spans)
    front = points[[other is None for other in dominators(metric, points, cost)]]
    corners = list(zip(front[cost], front[metric.name], strict=True))
    corners.append((axes.get_xlim()[1], corners[-1][1]))
    axes.step(*zip(*corners, strict=True), where="post", zorder=2, **_FRONT)
    for arm, stroke in style.items():
        some = points[points["arm"] == arm]
        if len(some):
            shift = {COMERA: -3.0, DENSE: 0.0}.get(_method(arm), 3.0)
            named = not forms or arm in (COMERA, DENSE)  # the ratios of the others are the same, in the same order
            shift = _FARTHER * shift if arm in forms else shift
            _draw_arm(axes, some, cost, metric.name, stroke, shift, named)
    for number, (size, arm, words) in enumerate(limits):
        axes.axvline(size, color=style[arm].colour, linewidth=1, linestyle=_LIMIT_DASHES, zorder=1)
        side, dx = ("right", -2) if number % 2 == 0 else ("left", 2)
        look = {"xycoords": axes.get_xaxis_transform(), "rotation": 90, "va": "bottom", "fontsize": 6.5, "ha": side}
        note(axes, words, (size, 0.02), (dx, 0), **look)


ARTIFACT = Artifact(
    name="pareto",
    heading="Accuracy against size, work, memory and time",
    summary="accuracy against size, work, memory and time, with Pareto fronts; an image per device and dataset",
    experiments=("ratios_accuracy", "code_ratios", "code_ratios_long"),
    also=("ratios_accuracy_small",),
    measure="train",
    lenders=(*PROBES, TIMES),
    order=120,
    select=studies,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
)
