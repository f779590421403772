"""Accuracy against size, work, memory and time: CoMERA, low_rank and dense after the same steps, with Pareto fronts.

Size, work and predicted memory are those of the training's own records. Times are of steps that were timed apart, arms
in turns, since trainings run beside each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from figures.artifact import Artifact
from figures.columns import Format, frame, lines_of, readable
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
from figures.records.metric import Metric, Score
from figures.records.missing import RatioLimit, limit_of
from figures.records.select import COMERA, DENSE, SIZE_RIVAL
from figures.records.sizes import equal_size
from figures.records.studies import PROBES, Study, StudyRow, studies
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


@dataclass(frozen=True)
class Cost:
    """A cost of a model: a panel of the figure and a column of the table."""

    name: str  # in the CSV
    heading: str
    axis: str
    of: Callable[[StudyRow], float | None]


def _step_ms(row: StudyRow) -> float | None:
    return row.step.value if row.step else None


def _gflop(row: StudyRow) -> float | None:
    flops = row.mean("flops_per_step")
    return flops / 1e9 if flops else None


SIZE = Cost("stored_mib", "total, MiB", "size of the stored model, MiB", lambda row: row.mean("stored_mib"))
_PEAK = "peak_memory_predicted_mib"
COSTS = (
    SIZE,
    Cost("gflop_per_step", "GFLOP per step", "work of a training step, GFLOP", _gflop),
    Cost(_PEAK, "peak MiB, predicted", "predicted peak memory of a step, MiB", lambda row: row.mean(_PEAK)),
    Cost("step_time_ms", "step, ms", "time of a training step, ms", _step_ms),
)


def _named(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the names of its runs."""
    return table.assign(run=[row.name for row in study.rows])


def points_of(metric: Metric, table: pd.DataFrame, cost: str = SIZE.name) -> pd.DataFrame:
    """Return the lines that have both a cost and the metric, the least cost first."""
    if not {cost, metric.name} <= {*table}:
        return table[:0]
    return table[(table[cost] > 0) & table[metric.name].notna()].sort_values(cost, kind="stable")


def dominators(metric: Metric, points: pd.DataFrame, cost: str = SIZE.name) -> list[int | None]:
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


def front_of(metric: Metric, points: pd.DataFrame, cost: str = SIZE.name) -> pd.DataFrame:
    """Return the points that none beats."""
    return points[[other is None for other in dominators(metric, points, cost)]]


def _method(arm: str) -> str:
    return arm.partition(":")[0]


def _same_size(one: StudyRow, other: StudyRow) -> bool:
    """Return whether two rows were trained from equally many parameters within 2 %."""
    counts = [next((run.parameters for run in row.finished.values() if run.parameters), None) for row in (one, other)]
    return equal_size(*counts)


def rival_of(row: StudyRow) -> StudyRow | None:
    """Return low rank of the size of a row of CoMERA, in the same form."""
    arm, ratio = row.slot.arm, row.slot.ratio
    if _method(arm) != COMERA or ratio is None:
        return None
    other = SIZE_RIVAL + arm.removeprefix(COMERA)
    found = next((one for one in row.study.rows if (one.slot.arm, one.slot.ratio) == (other, ratio)), None)
    return found if found and _same_size(found, row) else None


def less_low_rank(row: StudyRow) -> Score | None:
    """Return the difference of CoMERA to low_rank at the same ratio, both in the same form."""
    rival = rival_of(row)
    return row.less(rival) if rival else None


def limits_of(study: Study) -> dict[str, tuple[RatioLimit, list[float]]]:
    """Return by arm the end of its ratios and those asked for that lie beyond."""
    found: dict[str, tuple[RatioLimit, list[float]]] = {}
    for row in study.rows:
        messages = [run.message for run in row.runs.values() if run is not None]
        limit = next(filter(None, map(limit_of, messages)), None)
        if limit is not None and row.slot.ratio is not None:
            found.setdefault(row.slot.arm, (limit, []))[1].append(row.slot.ratio)
    return found


def _known(rows: Sequence[StudyRow]) -> list[Cost]:
    """Return size, and those costs that any model beside dense has, which are shown."""
    return [SIZE, *(cost for cost in COSTS[1:] if any(cost.of(row) for row in rows if row.slot.arm != DENSE))]


def table(study: Study) -> pd.DataFrame:
    """Return a line per run: size, metric, costs, and the run that beats it at its size."""
    metric, lines, costs = study.metric, [], _known(study.rows)[1:]
    for row in study.rows:
        line = training.run_columns(study, row, ratio=row.slot.ratio, stage=row.slot.goal)
        line |= training.spread_columns(row, "stored_mib", "total_ratio")
        line |= bounds(metric.name, row.score)
        line |= bounds(training.less_column(metric, "dense"), row.less_dense)
        line |= bounds(training.less_column(metric, "low_rank"), less_low_rank(row))
        for cost in costs:
            line |= bounds(cost.name, row.step) if cost is COSTS[-1] else {cost.name: cost.of(row)}
        lines.append({**line, "on_front": None, "dominated_by": "", "older_code": bool(row.mark)})
    found = frame(lines)
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
    costs = [cost.name for cost in _known(study.rows)[1:]]
    columns = ["run", "stored_mib", "total_ratio", metric.name, *less, *costs, "on_front"]
    return readable(_named(study, table), columns, more)


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return which runs do not surely beat guessing or the probe, and whose timed steps a busy machine lengthened."""
    metric, scores = study.metric, {row.name: row.score for row in study.rows}
    timed = {one.cell_id: one for row in study.rows for one in row.timed}
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
    handles += bounds_handles(row.score for row in study.rows)
    handles.append(Line2D([], [], **_FRONT, label="Pareto front, by value"))
    if limits:
        handles.append(Line2D([], [], color=INK, linewidth=1, linestyle=_LIMIT_DASHES, label="smallest within reach"))
    costs = _known(study.rows)
    grid = [["" for _ in costs[first : first + 2]] for first in range(0, len(costs), 2)]
    foot = (*caption.of_picture, *caption.notes)
    paper, panels = panel_page(caption.title, caption.facts, grid, foot, 3.4, handles, 6)
    for cost, axes in zip(costs, [axes for line in panels for axes in line], strict=True):
        axes.set_xlabel(cost.axis, fontsize=8)
        axes.set_ylabel(metric.axis, fontsize=8)
        if drawn:
            _panel(axes, metric, points_of(metric, named, cost.name), cost, style, forms, limits)
        else:
            training.nothing_finished(axes)
    return paper.finish()


def _panel(
    axes: Any,
    metric: Metric,
    points: pd.DataFrame,
    cost: Cost,
    style: Mapping[str, Stroke],
    forms: Collection[str],
    limits: Sequence[tuple[float, str, str]],
) -> None:
    """Draw the points and their front, and in the panel of sizes the smallest ones within reach."""
    limits = limits if cost is SIZE else []
    spans = [training.span_of(point, metric.name) for point in lines_of(points)]
    _scale(axes, [*points[cost.name], *(size for size, _, _ in limits)], spans)
    front = front_of(metric, points, cost.name)
    corners = list(zip(front[cost.name], front[metric.name], strict=True))
    corners.append((axes.get_xlim()[1], corners[-1][1]))
    axes.step(*zip(*corners, strict=True), where="post", zorder=2, **_FRONT)
    for arm, stroke in style.items():
        some = points[points["arm"] == arm]
        if len(some):
            shift = {COMERA: -3.0, DENSE: 0.0}.get(_method(arm), 3.0)
            named = not forms or arm in (COMERA, DENSE)  # the ratios of the others are the same, in the same order
            shift = _FARTHER * shift if arm in forms else shift
            _draw_arm(axes, some, cost.name, metric.name, stroke, shift, named)
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
