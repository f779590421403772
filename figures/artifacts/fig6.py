"""Fig. 6: the leading metric per epoch, dense against CoMERA's first stage and each later one that continues it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from figures.artifact import Artifact
from figures.claims.training import SAME_ACCURACY
from figures.page import training as shared
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.notes import closing_notes, first_upper
from figures.page.style import DENSE_STROKE, EARLY_STROKE, INK, STROKES, Stroke, note, stroke_handle
from figures.records.metric import Score, score
from figures.records.select import COMERA, DENSE, config_of
from figures.records.studies import EXPERIMENT, Study, StudyRow
from figures.records.training import CurvePoint, curve_of
from figures.text import Column


@dataclass(frozen=True)
class ShapePoint:
    """What a slot reached after some steps: by seed, and together as a band."""

    band: Score
    by_seed: Mapping[int, CurvePoint]

    @property
    def end(self) -> CurvePoint:
        """Of the first seed, for epoch, step and stage."""
        return next(iter(self.by_seed.values()))


@dataclass(frozen=True)
class ShapeLine:
    row: StudyRow
    stroke: Stroke
    points: Mapping[int, ShapePoint]  # by step; of a stage that continues another run, from the end of that one on


def _part(row: StudyRow, curve: Sequence[CurvePoint]) -> dict[int, CurvePoint]:
    """What of a curve a slot draws, by step: of a stage with a target only itself and the point that it starts from."""
    start = 0
    if row.slot.arm != DENSE and row.slot.has_target:
        last = next((i for i, point in enumerate(curve) if point.stage == row.slot.stage), len(curve))
        start = max(last - 1, 0)
    return {point.step: point for point in curve[start:]}


def _points(row: StudyRow) -> dict[int, ShapePoint]:
    """One point per step that every seed has. One seed: its interval; several: from the least to the greatest."""
    curves = {seed: _part(row, curve_of(run)) for seed, run in row.finished.items()}
    points = {}
    for step in sorted(set.intersection(*map(set, curves.values()))):
        by_seed = {seed: curve[step] for seed, curve in curves.items()}
        band, values = score(row.study.metric, by_seed), [point.value for point in by_seed.values()]
        if len(values) > 1:
            mean = sum(values) / len(values)
            band = Score(band.metric, mean, min(values), max(values), None, len(values), "range")
        points[step] = ShapePoint(band, by_seed)
    return points


def lines_of(study: Study) -> list[ShapeLine]:
    """A line per slot that has a finished run, the same stroke for the same slot."""
    lines, others = [], 0
    for row in study.rows:
        slot = row.slot
        if row.is_whole_dense:
            stroke = DENSE_STROKE
        elif slot.arm == COMERA and slot.ratio is None and not slot.has_target:
            stroke = EARLY_STROKE
        else:
            stroke, others = STROKES[others % len(STROKES)], others + 1
        if row.finished:
            lines.append(ShapeLine(row, stroke, _points(row)))
    return lines


#: A line of the table that people read, or of the CSV.
Cells = Mapping[str, Any]


def rows_of(study: Study) -> list[Cells]:
    """A line per epoch or end of a stage, with a cell per slot."""
    lines, absent = lines_of(study), {row.label: row.status for row in study.rows if not row.finished}
    ends = {step: point.end for line in lines for step, point in line.points.items()}
    table: list[Cells] = []
    for step, end in sorted(ends.items()):
        bands = {line.row.label: line.points[step].band if step in line.points else None for line in lines}
        at = {"step": f"{end.step:,}"} if _by_step(study) else {}
        table.append({"epoch": f"{end.epoch:.2f}", **at, "stage": end.stage, **bands, **absent})
    return table or [{"epoch": None, "stage": None, **absent}]


def tidy_rows(study: Study, _: Any) -> list[Cells]:
    """A line per slot, seed and point."""
    name = study.metric.name
    table: list[Cells] = []
    for line in lines_of(study):
        for point in line.points.values():
            for seed, one in point.by_seed.items():
                alone = score(study.metric, {seed: one})
                table.append(
                    {
                        "run": line.row.name,
                        "status": "ok",
                        "seed": seed,
                        "epoch": one.epoch,
                        "step": one.step,
                        "stage": one.stage,
                        name: one.value,
                        f"{name}_low": alone.low,
                        f"{name}_high": alone.high,
                        f"{name}_bounds": alone.kind,
                        "band_low": point.band.low,
                        "band_high": point.band.high,
                        "band_bounds": point.band.kind,
                    }
                )
    return [*table, *({"run": row.name, "status": row.status} for row in study.rows if not row.finished)]


def columns(study: Study, table: Sequence[Cells]) -> list[Column[Cells]]:
    about = {"device": study.device, "dataset": study.dataset}
    shown = [Column[Cells](name, itemgetter(name), left=name == "stage") for name in table[0]]
    return [*shown, Column(tidy=lambda cells: {**about, **cells})]


def _band_words(study: Study) -> str:
    if len(study.seeds) > 1:
        return f"lowest to highest of {len(study.seeds)} seeds"
    if study.values_are == "none":
        return f"none, since {study.metric.short} is no mean over {shared.examples_words(study)} and there is one seed"
    return f"95 % interval over {shared.validation_words(study)} (one seed)"


def caption(study: Study, _: Any) -> Caption:
    per = "step" if _by_step(study) else "epoch"
    title = f"{study.metric.text} per {per} on {study.dataset!r}, dense against CoMERA"
    band, later = (
        f"Band and brackets: {_band_words(study)}.",
        next((slot for slot in study.slots if slot.has_target), None),
    )
    if later:
        band += f" The {later.stage} stages continue the same {later.stages[0]} stage, one per target; dense trains on."
    return Caption(
        title=f"Fig. 6: {title}" if study.is_papers and study.experiment == EXPERIMENT else first_upper(title),
        facts=shared.facts(study),
        notes=(band, *shared.dense_note(study), *shared.absences(study.rows), *closing_notes(study)),
    )


def _by_step(study: Study) -> bool:
    """Whether the curve has points between epochs."""
    return "curve_steps" in config_of(study.shown[0])["training"]


def _draw_line(axes: Any, line: ShapeLine) -> None:
    stroke, points = line.stroke, line.points.values()
    epochs = [point.end.step if _by_step(line.row.study) else point.end.epoch for point in points]
    low, high = zip(*(point.band.span for point in points), strict=True)
    axes.fill_between(epochs, low, high, color=stroke.colour, alpha=0.1, linewidth=0)
    if len(epochs) == 1:  # a band without width would not show
        axes.plot(epochs * 2, [low[0], high[0]], color=stroke.colour, linewidth=0.8, alpha=0.5)
    skip = int(line.row.slot.arm.startswith(COMERA) and line.row.slot.has_target)
    style = {"linewidth": 1.4, "markersize": 4.5, "markevery": slice(skip, None), **stroke.look}
    axes.plot(epochs, [point.band.value for point in points], **style)


def _draw_stages(axes: Any, study: Study) -> None:
    names, steps = zip(*study.stages, strict=True)
    for number, end in enumerate(list(accumulate(steps))[:-1] if study.steps_per_epoch else []):
        epoch = end if _by_step(study) else end / (study.steps_per_epoch or 1)
        axes.axvline(epoch, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        for name, side, dx in ((names[number], "right", -4), (names[number + 1], "left", 4))[number > 0 :]:
            place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": side, "va": "bottom"}
            note(axes, f"{name} stage", (epoch, 1.0), (dx, 3), fontsize=7.5, color=INK, **place)


def draw(study: Study, _: Any, caption: Caption) -> Figure:
    lines = lines_of(study)
    handles: list[Any] = [stroke_handle(line.stroke, line.row.label) for line in lines]
    if len(study.seeds) > 1 or study.values_are != "none":
        handles.append(Patch(facecolor=INK, alpha=0.14, label=_band_words(study)))
    paper, [[axes]] = panel_page(caption.title, caption.facts, [[""]], caption.notes, 3.2, handles, 4)
    for line in lines:
        _draw_line(axes, line)
    axes.margins(y=0.1)
    _draw_stages(axes, study)
    steps = "steps an epoch" if _by_step(study) else "steps each"
    per_epoch = f", {study.steps_per_epoch:,} {steps}" if study.steps_per_epoch else ""
    what = "steps on" if _by_step(study) else "epochs of"
    axes.set_xlabel(f"{what} {study.dataset!r}{per_epoch}", fontsize=8)
    axes.set_ylabel(study.metric.axis, fontsize=8)
    axes.set_xlim(left=0)
    longest = max((point.end.epoch for line in lines for point in line.points.values()), default=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=_by_step(study) or longest > 2))
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    if not lines:
        shared.nothing_finished(axes)
    return paper.finish()


ARTIFACT = Artifact(
    name="fig6",
    heading="Fig. 6: validation accuracy per epoch",
    summary="validation accuracy per epoch, dense against CoMERA; an image per device and dataset",
    order=30,
    **shared.OF_STUDIES,
    rows=rows_of,
    columns=columns,
    tidy_rows=tidy_rows,
    caption=caption,
    draw=draw,
    rules=(SAME_ACCURACY,),
)
