"""Fig. 6: the leading metric per epoch, dense against CoMERA's first stage and each later one that continues it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from figures.artifact import Artifact
from figures.claims.training import SAME_ACCURACY
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.notes import closing_notes
from figures.page.style import DENSE_STROKE, EARLY_STROKE, INK, STROKES, Stroke, stroke_handle
from figures.page.table import NOT_ASKED, Column
from figures.page.training import absences, examples_words, facts, nothing_finished
from figures.records.metric import Score
from figures.records.select import COMERA, DENSE
from figures.records.studies import EXPERIMENT, Row, Study, studies
from figures.records.training import CurvePoint, curve_of, score_of


@dataclass(frozen=True)
class Point:
    """What a slot reached after ``step`` steps: mean over seeds, with the band around it."""

    epoch: float
    step: int
    stage: str
    band: Score
    by_seed: Mapping[int, CurvePoint]


@dataclass(frozen=True)
class Line:
    row: Row
    stroke: Stroke
    points: tuple[Point, ...]  # of a stage that continues another run: from the end of that one on


@dataclass(frozen=True)
class Step:
    """A line of the table: after so many steps, the point of every slot that has one, by its label."""

    epoch: str
    stage: str
    cells: Mapping[str, str]


def _parts(row: Row, curve: Sequence[CurvePoint]) -> list[CurvePoint]:
    """What of a curve a slot draws: of a stage with a target only itself and the point that it starts from."""
    if row.slot.arm == DENSE or not row.slot.has_target:
        return list(curve)
    last = next((i for i, point in enumerate(curve) if point.stage == row.slot.stage), len(curve))
    return list(curve[max(last - 1, 0) :])


def _points(row: Row) -> tuple[Point, ...]:
    """One point per step that every seed has. One seed: its interval; several: from the least to the greatest."""
    curves = {seed: {p.step: p for p in _parts(row, curve_of(run))} for seed, run in row.finished.items()}
    steps = sorted(set.intersection(*(set(curve) for curve in curves.values()))) if curves else []
    points = []
    for step in steps:
        by_seed = {seed: curve[step] for seed, curve in curves.items()}
        first, values = next(iter(by_seed.values())), [point.value for point in by_seed.values()]
        mean = Score(row.study.metric, sum(values) / len(values), min(values), max(values), None, len(values))
        band = score_of(row.study.metric, by_seed) if len(values) == 1 else mean
        assert band is not None
        points.append(Point(first.epoch, step, first.stage, band, by_seed))
    return tuple(points)


def lines_of(study: Study) -> list[Line]:
    """A line per slot that has a finished run, the same stroke for the same slot."""
    lines, others = [], 0
    depth = max(len(slot.stages) for slot in study.slots)
    for row in study.rows:
        slot = row.slot
        if slot.arm == DENSE and len(slot.stages) == depth:
            stroke = DENSE_STROKE
        elif slot.arm == COMERA and len(slot.stages) == 1 and slot.ratio is None:
            stroke = EARLY_STROKE
        else:
            stroke, others = STROKES[others % len(STROKES)], others + 1
        if row.finished:
            lines.append(Line(row, stroke, _points(row)))
    return lines


def _band_words(study: Study) -> str:
    if len(study.seeds) > 1:
        return f"lowest to highest of {len(study.seeds)} seeds"
    if study.values_are == "none":
        return f"none, since {study.metric.short} is no mean over {examples_words(study)} and there is one seed"
    return f"95 % interval over validation {examples_words(study)} (one seed)"


def rows_of(study: Study) -> list[Step]:
    """A line of the table per epoch or end of a stage."""
    lines, absent = lines_of(study), {row.label: row.status for row in study.rows if not row.finished}
    by_label = {line.row.label: {point.step: point for point in line.points} for line in lines}
    ends = {point.step: point for line in lines for point in line.points}
    steps = []
    for step, end in sorted(ends.items()):
        cells = {name: str(points[step].band) if step in points else NOT_ASKED for name, points in by_label.items()}
        steps.append(Step(f"{end.epoch:.2f}", end.stage, cells | absent))
    return steps or [Step(NOT_ASKED, NOT_ASKED, absent)]


#: A line of the CSV: a point of a line with one of its seeds, or a slot without any.
Tidy = tuple[Row, Point | None, int]


def tidy_rows(study: Study, steps: Sequence[Step]) -> list[Tidy]:  # noqa: ARG001 - as every artifact
    """A line per slot, seed and point."""
    found = [(one.row, point, seed) for one in lines_of(study) for point in one.points for seed in point.by_seed]
    return [*found, *((row, None, 0) for row in study.rows if not row.finished)]


def columns(study: Study, steps: Sequence[Step]) -> list[Column[Any]]:
    name = study.metric.name

    def tidy(line: Tidy) -> dict[str, object]:
        row, point, seed = line
        cells: dict[str, object] = {"device": study.device, "dataset": study.dataset, "run": row.name}
        cells["status"] = "ok" if point else row.status
        if point is None:
            return cells
        one = point.by_seed[seed]
        alone = score_of(study.metric, {seed: one})
        return cells | {
            "seed": seed, "epoch": one.epoch, "step": one.step, "stage": one.stage, name: one.value,
            f"{name}_low": alone and alone.low, f"{name}_high": alone and alone.high,
            "band_low": point.band.low, "band_high": point.band.high,
        }  # fmt: skip

    return [
        Column("epoch", lambda step: step.epoch, tidy),
        Column("stage", lambda step: step.stage, left=True),
        *(Column(label, lambda step, label=label: step.cells[label]) for label in steps[0].cells),
    ]


def caption(study: Study, steps: Sequence[Step]) -> Caption:  # noqa: ARG001 - as every artifact
    title = f"{study.metric.text} per epoch on {study.dataset!r}, dense against CoMERA"
    targets = [slot for slot in study.slots if slot.has_target]
    first, last = study.slots[0].stages[0], targets[0].stage if targets else ""
    continued = f" The {last} stages continue the same {first} stage, one per target; dense trains on."
    papers = study.is_papers and study.experiment == EXPERIMENT
    return Caption(
        title=f"Fig. 6: {title}" if papers else title[0].upper() + title[1:],
        facts=facts(study),
        notes=(
            f"Band: {_band_words(study)}.{continued if targets else ''}",
            *absences(study.rows),
            *closing_notes(study),
        ),
    )


def _draw_line(axes: Any, line: Line) -> None:
    stroke, epochs = line.stroke, [point.epoch for point in line.points]
    low, high = zip(*(point.band.span for point in line.points), strict=True)
    if low != high:
        axes.fill_between(epochs, low, high, color=stroke.colour, alpha=0.1, linewidth=0)
        if len(epochs) == 1:  # a band without width would not show
            axes.plot(epochs * 2, [low[0], high[0]], color=stroke.colour, linewidth=0.8, alpha=0.5)
    skip = 1 if line.row.slot.arm.startswith(COMERA) and line.row.slot.has_target else 0
    axes.plot(
        epochs, [point.band.value for point in line.points], color=stroke.colour, linestyle=stroke.dashes,
        linewidth=1.4, marker=stroke.marker, markersize=4.5, markerfacecolor=stroke.face, markevery=slice(skip, None),
    )  # fmt: skip


def _draw_stages(axes: Any, study: Study) -> None:
    """A line between one stage and the next."""
    names = [name for name, _ in study.stages]
    ends = list(accumulate(steps for _, steps in study.stages))[:-1] if study.steps_per_epoch else []
    for number, end in enumerate(ends):
        epoch = end / (study.steps_per_epoch or 1)
        axes.axvline(epoch, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        words = [(names[number + 1], "left", 4), *([(names[0], "right", -4)] if number == 0 else [])]
        for name, side, dx in reversed(words):
            axes.annotate(
                f"{name} stage", (epoch, 1.0), xycoords=("data", "axes fraction"), xytext=(dx, 3),
                textcoords="offset points", ha=side, va="bottom", fontsize=7.5, color=INK,
            )  # fmt: skip


def draw(study: Study, steps: Sequence[Step], caption: Caption) -> Figure:  # noqa: ARG001 - as every artifact
    lines = lines_of(study)
    handles: list[Any] = [stroke_handle(line.stroke, line.row.label) for line in lines]
    if len(study.seeds) > 1 or study.values_are != "none":
        handles.append(Patch(facecolor=INK, alpha=0.14, label=_band_words(study)))
    page, [[axes]] = panel_page(caption.title, caption.facts, [[""]], caption.notes, 3.2, handles, 4)
    for line in lines:
        _draw_line(axes, line)
    axes.margins(y=0.1)
    _draw_stages(axes, study)
    per_epoch = f", {study.steps_per_epoch:,} steps each" if study.steps_per_epoch else ""
    axes.set_xlabel(f"epochs of {study.dataset!r}{per_epoch}", fontsize=8)
    axes.set_ylabel(study.metric.axis, fontsize=8)
    axes.set_xlim(left=0)
    longest = max((point.epoch for line in lines for point in line.points), default=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=longest > 2))
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    if not lines:
        nothing_finished(axes, ticks=True)
    return page


ARTIFACT = Artifact(
    name="fig6",
    heading="Fig. 6: validation accuracy per epoch",
    summary="validation accuracy per epoch, dense against CoMERA; an image per device and dataset",
    experiments=(EXPERIMENT,),
    measure="train",
    order=30,
    select=studies,
    rows=rows_of,
    columns=columns,
    tidy_rows=tidy_rows,
    caption=caption,
    draw=draw,
    rules=(SAME_ACCURACY,),
)
