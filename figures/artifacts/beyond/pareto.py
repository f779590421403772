"""Accuracy against size, work, memory and time: CoMERA, low_rank and dense after the same steps, with Pareto fronts.

Size, work and predicted memory are those of the training's own records. Times are of steps that were timed apart, arms
in turns, since trainings run beside each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from figures.artifact import Artifact
from figures.page import training as shared
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.notes import busy_note, closing_notes, first_upper
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
from figures.records.crossover import joined, listed
from figures.records.metric import Score
from figures.records.missing import RatioLimit, limit_of
from figures.records.select import COMERA, DENSE, SIZE_RIVAL
from figures.records.sizes import equal_size
from figures.records.studies import PROBES, Study, StudyRow, studies
from figures.text import Column, bounds, significant

#: Models count as equally large within the tolerance of the solvers that gave them their ratio.
_SAME_SIZE = 1.02

#: By how much farther than an arm a form of it is drawn from its place.
_FARTHER = 2.5

_FRONT: dict[str, Any] = {"color": FAINT, "linewidth": 3.5, "alpha": 0.35, "solid_capstyle": "butt"}
_LIMIT_DASHES = (0, (1, 1.5))


#: Experiments whose models were compared on a plateau, and what says so on their pages.
SUPERSEDED = ("code_ratios", "code_ratios_long")
_SUPERSEDED_BY = (
    "Superseded by the figure formats: most of these models lie on the plateau of a unigram model, at rates that were "
    "chosen there, so that the page ranks who leaves it first."
)

#: Steps of the models of ``code_ratios``, timed apart.
TIMES = "code_ratios_time"


@dataclass(frozen=True)
class Cost:
    """What a model takes: a panel of the figure and a column of the table."""

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


@dataclass(frozen=True)
class ParetoPoint:
    """A row that finished; the cost is its size in MiB unless another one was asked for."""

    row: StudyRow
    size: float
    score: Score

    @property
    def arm(self) -> str:
        return self.row.slot.arm

    @property
    def words(self) -> str:
        return f"{self.row.name} ({significant(self.size)} MiB, {self.score.metric.written(self.score.value)})"

    def ahead(self, other: ParetoPoint) -> float:
        """By how much it is better."""
        return self.score.metric.gain(self.score.value, other.score.value)

    def beats(self, other: ParetoPoint) -> bool:
        """By value: better and no larger, or as good and smaller; sizes within the solvers' tolerance are equal."""
        better = self.ahead(other) > 0 and self.size <= _SAME_SIZE * other.size
        return better or (self.ahead(other) == 0 and _SAME_SIZE * self.size < other.size)


def points_of(rows: Sequence[StudyRow], cost: Cost = SIZE) -> list[ParetoPoint]:
    """The rows that have both a cost and a score, the least first."""
    found = [ParetoPoint(row, size, row.score) for row in rows if (size := cost.of(row)) and row.score]
    return sorted(found, key=lambda point: point.size)


def dominator(point: ParetoPoint, points: Sequence[ParetoPoint]) -> ParetoPoint | None:
    """The best of the points that beat this one."""
    return max((one for one in points if one.beats(point)), key=lambda one: one.ahead(point), default=None)


def front_of(points: Sequence[ParetoPoint]) -> list[ParetoPoint]:
    """The points that none beats."""
    return [point for point in points if dominator(point, points) is None]


def _method(arm: str) -> str:
    return arm.partition(":")[0]


def _same_size(one: StudyRow, other: StudyRow) -> bool:
    """Whether two rows were trained from equally many parameters within 2 %, by their records."""
    counts = [next((run.parameters for run in row.finished.values() if run.parameters), None) for row in (one, other)]
    return equal_size(*counts)


def rival_of(row: StudyRow) -> StudyRow | None:
    """Low rank of the size of a row of CoMERA, in the same form."""
    arm, ratio = row.slot.arm, row.slot.ratio
    if _method(arm) != COMERA or ratio is None:
        return None
    other = SIZE_RIVAL + arm.removeprefix(COMERA)
    found = next((one for one in row.study.rows if (one.slot.arm, one.slot.ratio) == (other, ratio)), None)
    return found if found and _same_size(found, row) else None


def less_low_rank(row: StudyRow) -> Score | None:
    """What CoMERA reached less what low_rank did at the same ratio, both in the same form."""
    rival = rival_of(row)
    return row.less(rival) if rival else None


def limits_of(study: Study) -> dict[str, tuple[RatioLimit, list[float]]]:
    """By arm, the end of its ratios and those asked for that lie beyond."""
    found: dict[str, tuple[RatioLimit, list[float]]] = {}
    for row in study.rows:
        messages = [run.message for run in row.runs.values() if run is not None]
        limit = next(filter(None, map(limit_of, messages)), None)
        if limit is not None and row.slot.ratio is not None:
            found.setdefault(row.slot.arm, (limit, []))[1].append(row.slot.ratio)
    return found


def _known(rows: Sequence[StudyRow]) -> list[Cost]:
    """Size, and those costs that any model beside dense has, which are shown."""
    return [SIZE, *(cost for cost in COSTS[1:] if any(cost.of(row) for row in rows if row.slot.arm != DENSE))]


def _text(cost: Cost) -> Callable[[StudyRow], str | None]:
    return lambda row: significant(value) if (value := cost.of(row)) else None


def _tidy(cost: Cost) -> Callable[[StudyRow], dict[str, object]]:
    def tidy(row: StudyRow) -> dict[str, object]:
        return {**bounds(cost.name, row.step)} if cost is COSTS[-1] else {cost.name: cost.of(row)}

    return tidy


def columns(study: Study, rows: Sequence[StudyRow]) -> list[Column[StudyRow]]:
    points = {point.row.slot: point for point in points_of(rows)}
    beaten = {slot: dominator(point, list(points.values())) for slot, point in points.items()}

    def on_front(row: StudyRow) -> bool | None:
        return beaten[row.slot] is None if row.slot in points else None

    def beaten_by(row: StudyRow) -> str | None:
        other = beaten.get(row.slot)
        return other.row.name if other else None

    def ratio(row: StudyRow) -> str | None:
        spread = row.spread("total_ratio")
        return f"{spread}x" if spread else None

    front = {None: None, True: "yes", False: "no"}
    return [
        shared.head_column(study, lambda row: {"ratio": row.slot.ratio, "stage": row.slot.goal}),
        shared.spread_column("total, MiB", "stored_mib", lambda row: row.spread("stored_mib") or row.status),
        shared.spread_column("total ratio", "total_ratio", ratio),
        shared.score_column(study.metric),
        shared.less_column(study.metric, "dense", lambda row: row.less_dense),
        shared.less_column(study.metric, "low_rank", less_low_rank),
        *(Column(cost.heading, _text(cost), _tidy(cost)) for cost in _known(rows)[1:]),
        Column("on the front", lambda row: front[on_front(row)], lambda row: {"on_front": on_front(row)}),
        Column("dominated by", beaten_by, lambda row: {"dominated_by": beaten_by(row) or ""}, left=True),
        shared.remarks_column(),
    ]


def _guessing(study: Study, points: Sequence[ParetoPoint]) -> list[str]:
    """A sentence on the runs that have not surely learnt anything."""
    guess, classes = study.metric.guess, study.model.get("classes")
    names = ", ".join(point.row.name for point in points if guess is not None and not point.score.beats(guess))
    if not names or guess is None:
        return []
    how = f"guessing one of {classes} classes" if classes else f"guessing ({study.metric.written(guess)})"
    return [f"Not surely better than {how}: {names}."]


def _below_probe(study: Study, points: Sequence[ParetoPoint]) -> list[str]:
    """A sentence on the runs that do not surely beat the probe, whose sizes say nothing."""
    probe, text = study.metric.probe, study.metric.probe_text
    names = ", ".join(point.row.name for point in points if probe is not None and not point.score.beats(probe))
    if not names or probe is None:
        return []
    return [f"Not surely better than the {text} ({study.metric.written(probe)}), so that size says nothing: {names}."]


def losses(study: Study, points: Sequence[ParetoPoint]) -> list[str]:
    """Where tensorizing loses: runs of CoMERA that another arm's beats, and those that are worse than dense."""
    ours = [point for point in points if _method(point.arm) == COMERA]
    others = [point for point in points if _method(point.arm) != COMERA]
    better, worse = ("more accurate", "less accurate") if study.metric.name == "accuracy" else ("better", "worse")
    beaten = [(point, other) for point in ours if (other := dominator(point, others))]
    lines = []
    for point, other in beaten:
        apart = point.row.less(other.row)
        words = f", {apart.text(sign=True, unit=True)}" if apart else ""
        lines.append(f"Tensorizing loses: {point.words} is dominated by {other.words}{words}.")
    if ours and not beaten:
        lines.append(f"No run of CoMERA is dominated: by value, no other arm's is {better} and no larger.")
    below = [point.words for point in ours if (apart := point.row.less_dense) and apart.trails(0)]
    if below:
        lines.append(f"Surely {worse} than dense after as many steps: {', '.join(below)}.")
    return lines


def _equal_sizes(study: Study) -> dict[StudyRow, Score]:
    """CoMERA less low_rank of equal size, plain arms alone, by row of CoMERA."""
    found = {row: less_low_rank(row) for row in study.rows if row.slot.arm == COMERA}
    return {row: apart for row, apart in found.items() if apart is not None}


def _ratios(rows: Sequence[StudyRow]) -> str:
    """Their ratios, with a digit behind the point at most."""
    return joined([f"{row.slot.ratio:.1f}".removesuffix(".0") + "x" for row in rows])


def _standing(apart: Score) -> str:
    """On which side of 0 both bounds of a difference lie."""
    if apart.low is None:
        return "undecided"
    return "better" if apart.beats(0) else "worse" if apart.trails(0) else "undecided"


def _below_with_rival(row: StudyRow) -> bool:
    """Whether neither CoMERA nor low_rank of equal size surely beats the probe."""
    probe, scores = row.study.metric.probe, [one.score for one in (row, rival_of(row)) if one]
    return probe is not None and not any(score and score.beats(probe) for score in scores)


def _which_way(pairs: Mapping[StudyRow, Score]) -> str:
    """At which ratios CoMERA is better than low_rank of equal size, at which worse, and what the probe makes of it."""
    found: dict[str, list[StudyRow]] = {}
    for row, apart in pairs.items():
        found.setdefault(_standing(apart), []).append(row)
    words = ", ".join(f"{how} at {_ratios(rows)}" for how, rows in found.items())
    below = [row for row in pairs if _below_with_rival(row)]
    if len(below) == len(pairs):
        return f"{words}; none surely beats the probe"
    return f"{words}; neither surely beats the probe at {_ratios(below)}" if below else words


def _title_notes(study: Study) -> list[str]:
    """What the title is formed from, where it names a winner."""
    pairs = {} if study.is_papers else _equal_sizes(study)
    if not pairs:
        return []
    lines = [f"Title: by comera less {SIZE_RIVAL}, plain arms alone; undecided where the bounds hold 0."]
    single = [row for row, apart in pairs.items() if apart.seeds == 1]
    if single and len(study.seeds) > 1:
        lines.append(
            f"At {_ratios(single)} it has one seed to go by: there the interval is over "
            f"{shared.examples_words(study)} alone and does not hold what another seed would change."
        )
    return [" ".join(lines)]


def _other_forms(study: Study) -> list[str]:
    """What forms of arms change beside the plain ones, and where CoMERA then stands against low_rank in its form."""
    rows = {(row.slot.arm, row.slot.ratio): row for row in study.rows}
    apart: dict[str, list[str]] = {}
    for (arm, ratio), row in rows.items():
        plain = rows.get((_method(arm), ratio))
        if arm == _method(arm) or plain is None or ratio is None:
            continue
        rival = f"{SIZE_RIVAL}{arm.removeprefix(COMERA)}"
        for other, less in ((plain.slot.arm, row.less(plain)), (rival, less_low_rank(row))):
            if less is not None:
                apart.setdefault(f"{arm} less {other}", []).append(f"{less.text(sign=True)} at {ratio:g}x")
    sentences = [f"{names}, {study.metric.unit_apart}: {', '.join(found)}." for names, found in apart.items()]
    if sentences:
        sentences.append("Ratios are written at CoMERA's points alone; those of the other arms are the same.")
    return sentences


def _title(study: Study) -> str:
    metric, steps = first_upper(study.metric.short), study.stages[0][1]
    after = f" after {steps:,} steps" if len(study.stages) == 1 else ""
    other = ", small preset" if study.experiment.endswith("_small") else ", not the paper's model"
    if not study.is_papers and (pairs := _equal_sizes(study)):
        return f"Tensor trains against low rank of equal size: {_which_way(pairs)}"
    known = study.is_full_size or study.dense_parameters is None or not study.is_papers
    return f"{metric} against the model's size on {study.dataset!r}{after}{'' if known else other}"


def caption(study: Study, rows: Sequence[StudyRow]) -> Caption:
    points = points_of(rows)
    notes = [
        *([_SUPERSEDED_BY] if study.experiment in SUPERSEDED else []),
        shared.metric_words(study, rows),
        "Sizes within 2 % count as equal; points of equal size stand side by side, not one upon the other.",
        *shared.one_seed_note(study),
        *_title_notes(study),
    ]
    if study.dataset == "synthetic" and study.is_papers:
        notes.append("The text is generated: these accuracies tell nothing about real data.")
    notes += [*_other_forms(study), *_guessing(study, points), *_below_probe(study, points)]
    if points:
        notes.append(f"Pareto front, by value: {', '.join(point.words for point in front_of(points))}.")
    timed = {one.cell_id: one for row in rows for one in row.timed}
    notes += [*losses(study, points), *busy_note(timed.values()), *closing_notes(study)]
    return Caption(title=_title(study), facts=shared.facts(study), notes=notes, remarks=shared.absences(rows))


def _draw_arm(axes: Any, points: Sequence[ParetoPoint], stroke: Stroke, shift: float, named: bool) -> None:
    """The points of an arm, ``shift`` points of space to the right, so that equal sizes stand side by side.

    What is shifted to the right has its names below, the rest above, so that those of two arms do not meet; only
    ``named`` points have any.
    """
    place = axes.transData + ScaledTranslation(shift / 72, 0, axes.figure.dpi_scale_trans)
    style: dict[str, Any] = {"transform": place, "linewidth": 0.9, "solid_capstyle": "projecting", "zorder": 3}
    below = shift > 0
    name: dict[str, Any] = {"xycoords": place, "va": "top" if below else "bottom", "fontsize": 6.5}
    name["ha"] = "left" if shift < 0 else "right" if below else "center"
    for point in points:
        shared.whisker(axes, point.size, point.score.span, **style)
        words = point.row.name.removeprefix(point.arm).lstrip(", ") or point.arm
        if named:
            note(axes, words, (point.size, point.score.span[not below]), (0, -3 if below else 3), **name)
    sizes, values = [point.size for point in points], [point.score.value for point in points]
    axes.plot(sizes, values, **stroke.look, linewidth=1.2, markersize=5, transform=place, zorder=4)


def _limits(study: Study) -> list[tuple[float, str, str]]:
    """The smallest size, in MiB, of each arm that was asked for a smaller one, the arm, and words for it."""
    dense = max(run.dense_mib or 0.0 for run in study.shown)
    ends = [
        (dense / limit.ratio, arm, f"{arm}: {limit}, asked for {listed(ratios)}")
        for arm, (limit, ratios) in limits_of(study).items()
        if limit.side == "most"
    ]
    return sorted(ends) if dense else []


def _scale(axes: Any, sizes: Sequence[float], points: Sequence[ParetoPoint]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(min(sizes) / 1.25, 1.15 * max(sizes))
    number_axis(axes.xaxis, LogLocator(10, subs=(1, 2, 5)))
    low, high = min(point.score.span[0] for point in points), max(point.score.span[1] for point in points)
    room = high - low or abs(high) or 1.0  # one point without bounds has no extent
    axes.set_ylim(low - 0.06 * room, high + 0.12 * room)
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))


def draw(study: Study, rows: Sequence[StudyRow], caption: Caption) -> Figure:
    points, limits = points_of(rows), _limits(study)
    arms = dict.fromkeys([COMERA, *(row.slot.arm for row in rows if row.slot.arm != DENSE)])
    style = strokes(list(arms)) | {DENSE: DENSE_STROKE}  # as in Fig. 12
    drawn = {point.arm for point in points}
    forms = {arm for arm in drawn if arm != _method(arm) in drawn}  # that stand beside the plain arm
    handles = [
        stroke_handle(style[arm], arm, markersize=4.5, linestyle="" if arm == DENSE else style[arm].dashes)
        for arm in style
        if arm in drawn
    ]
    handles += bounds_handles(point.score for point in points)
    handles.append(Line2D([], [], **_FRONT, label="Pareto front, by value"))
    if limits:
        handles.append(Line2D([], [], color=INK, linewidth=1, linestyle=_LIMIT_DASHES, label="smallest within reach"))
    costs = _known(rows)
    grid = [[cost.axis for cost in costs[first : first + 2]] for first in range(0, len(costs), 2)]
    title, facts, footnotes = caption.title, caption.facts, caption.notes
    paper, panels = panel_page(title, facts, [["" for _ in line] for line in grid], footnotes, 3.4, handles, 6)
    for cost, axes in zip(costs, [axes for line in panels for axes in line], strict=True):
        axes.set_xlabel(cost.axis, fontsize=8)
        axes.set_ylabel(study.metric.axis, fontsize=8)
        if points:
            _panel(axes, points_of(rows, cost), style, forms, limits if cost is SIZE else [])
        else:
            shared.nothing_finished(axes)
    return paper.finish()


def _panel(
    axes: Any,
    points: Sequence[ParetoPoint],
    style: Mapping[str, Stroke],
    forms: Collection[str],
    limits: Sequence[tuple[float, str, str]],
) -> None:
    """The points and their front, and the smallest sizes within reach."""
    _scale(axes, [*(point.size for point in points), *(size for size, _, _ in limits)], points)
    corners = [(point.size, point.score.value) for point in front_of(points)]
    corners.append((axes.get_xlim()[1], corners[-1][1]))
    axes.step(*zip(*corners, strict=True), where="post", zorder=2, **_FRONT)
    for arm, stroke in style.items():
        some = [point for point in points if point.arm == arm]
        if some:
            shift = {COMERA: -3.0, DENSE: 0.0}.get(_method(arm), 3.0)
            named = not forms or arm in (COMERA, DENSE)  # the ratios of the others are the same, in the same order
            _draw_arm(axes, some, stroke, _FARTHER * shift if arm in forms else shift, named)
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
    rows=lambda study: study.rows,
    columns=columns,
    caption=caption,
    draw=draw,
)
