"""Fig. 6: validation accuracy per epoch, dense against CoMERA's early stage and each late one that continues it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from bench.core.record import Record
from figures.accuracy import wilson
from figures.claims.claims import Claim
from figures.curve import CurvePoint, curve_of
from figures.page.drawn import Drawn
from figures.page.layout import panel_page
from figures.page.style import DENSE_STROKE, EARLY_STROKE, FAINT, INK, STROKES, Stroke, house_style, to_bytes
from figures.page.table import NOT_ASKED
from figures.runs import COMERA, DENSE, EARLY, Study, studies
from figures.training_claims import verdicts
from figures.training_page import STAGE, absences, drawn, facts, notes
from figures.training_rows import Row, rows_of

CLAIMS = ("mnli-same-accuracy",)
_PANEL_HEIGHT = 3.2
_LEGEND_COLUMNS = 4


@dataclass(frozen=True)
class Point:
    """Accuracy in percent at one point of the curves of a slot: mean over seeds, with the band around it."""

    epoch: float
    step: int
    stage: str
    value: float
    low: float
    high: float
    by_seed: dict[int, CurvePoint]


@dataclass(frozen=True)
class Line:
    row: Row
    stroke: Stroke
    points: tuple[Point, ...]  # of a late stage: from the end of the early one on


def _parts(row: Row, curve: Sequence[CurvePoint]) -> list[CurvePoint]:
    """What of a curve a slot draws: a late stage of CoMERA only itself and the point that it starts from."""
    if row.slot.arm == DENSE or row.slot.stage == "early" or row.slot.target is row.slot.target_mib is None:
        return list(curve)
    late = next((i for i, point in enumerate(curve) if point.stage == "late"), len(curve))
    return list(curve[max(late - 1, 0) :])


def _points(row: Row) -> tuple[Point, ...]:
    """One point per step that every seed has. One seed: Wilson's interval; several: from the least to the greatest."""
    curves = {seed: {p.step: p for p in _parts(row, curve_of(run))} for seed, run in row.finished.items()}
    steps = sorted(set.intersection(*(set(curve) for curve in curves.values()))) if curves else []
    points = []
    for step in steps:
        by_seed = {seed: curve[step] for seed, curve in curves.items()}
        first = next(iter(by_seed.values()))
        values = [point.accuracy for point in by_seed.values()]
        mean, low, high = sum(values) / len(values), min(values), max(values)
        if len(values) == 1:
            interval = wilson(int(first.answers.sum()), len(first.answers))
            low, high = interval.low, interval.high
        points.append(Point(first.epoch, step, first.stage, mean, low, high, by_seed))
    return tuple(points)


def lines_of(rows: Sequence[Row]) -> list[Line]:
    """A line per slot that has a finished run, the same stroke for the same slot."""
    lines, others = [], 0
    for row in rows:
        if row.slot.arm == DENSE and row.slot.stage == "late":
            stroke = DENSE_STROKE
        elif row.slot == EARLY:
            stroke = EARLY_STROKE
        else:
            stroke, others = STROKES[others % len(STROKES)], others + 1
        if row.finished:
            lines.append(Line(row, stroke, _points(row)))
    return lines


def _boundary(study: Study) -> float | None:
    """The epoch at which the late stage begins."""
    early, late = study.stage_steps
    return early / study.steps_per_epoch if late and study.steps_per_epoch else None


def _band_words(study: Study) -> str:
    if len(study.seeds) > 1:
        return f"lowest to highest of {len(study.seeds)} seeds"
    return "95 % interval over validation examples (one seed)"


def _draw(study: Study, title: str, lines: Sequence[Line], footnotes: Sequence[str]) -> Any:
    handles: list[Any] = [
        Line2D(
            [], [], color=line.stroke.colour, linestyle=line.stroke.dashes, marker=line.stroke.marker, markersize=4,
            markerfacecolor=line.stroke.face, label=line.row.label,
        )
        for line in lines
    ]  # fmt: skip
    handles.append(Patch(facecolor=INK, alpha=0.14, label=_band_words(study)))
    page, [[axes]] = panel_page(title, facts(study), [[""]], footnotes, _PANEL_HEIGHT, handles, _LEGEND_COLUMNS)
    for line in lines:
        stroke, epochs = line.stroke, [point.epoch for point in line.points]
        bounds = [point.low for point in line.points], [point.high for point in line.points]
        axes.fill_between(epochs, *bounds, color=stroke.colour, alpha=0.1, linewidth=0)
        if len(epochs) == 1:  # a band without width would not show
            axes.plot(epochs * 2, [bounds[0][0], bounds[1][0]], color=stroke.colour, linewidth=0.8, alpha=0.5)
        skip = 1 if line.row.slot.arm.startswith(COMERA) and line.row.slot.stage == "late" else 0
        axes.plot(
            epochs, [point.value for point in line.points], color=stroke.colour, linestyle=stroke.dashes, linewidth=1.4,
            marker=stroke.marker, markersize=4.5, markerfacecolor=stroke.face, markevery=slice(skip, None),
        )  # fmt: skip
    boundary = _boundary(study)
    axes.margins(y=0.1)
    if boundary is not None:
        axes.axvline(boundary, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        for words, side, dx in (("early stage", "right", -4), ("late stage", "left", 4)):
            axes.annotate(
                words, (boundary, 1.0), xycoords=("data", "axes fraction"), xytext=(dx, 3), textcoords="offset points",
                ha=side, va="bottom", fontsize=7.5, color=INK,
            )  # fmt: skip
    per_epoch = f", {study.steps_per_epoch:,} steps each" if study.steps_per_epoch else ""
    axes.set_xlabel(f"epochs of {study.dataset!r}{per_epoch}", fontsize=8)
    axes.set_ylabel("validation accuracy, %", fontsize=8)
    axes.set_xlim(left=0)
    longest = max((point.epoch for line in lines for point in line.points), default=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=longest > 2))
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    if not lines:
        axes.text(0.5, 0.5, "no finished run", transform=axes.transAxes, ha="center", style="italic", color=FAINT)
    return page


def text_table(lines: Sequence[Line], absent: Sequence[Row]) -> pd.DataFrame:
    """The table a person reads: a line per epoch or stage end, a column per slot."""
    columns = {line.row.label: {point.step: point for point in line.points} for line in lines}
    steps = {point.step: point for line in lines for point in line.points}
    table = []
    for step in sorted(steps):
        cells = {"epoch": f"{steps[step].epoch:.2f}", "stage": steps[step].stage}
        for name, points in columns.items():
            point = points.get(step)
            cells[name] = f"{point.value:.1f} [{point.low:.1f}, {point.high:.1f}]" if point else NOT_ASKED
        table.append(cells | {row.label: row.status for row in absent})
    return pd.DataFrame(table or [{"epoch": NOT_ASKED, "stage": NOT_ASKED} | {row.label: row.status for row in absent}])


def tidy_table(study: Study, lines: Sequence[Line], absent: Sequence[Row]) -> pd.DataFrame:
    """The table a program reads: a line per slot, seed and point, with Wilson's interval of that run alone."""
    table: list[dict[str, Any]] = []
    for line in lines:
        for point in line.points:
            for seed, one in point.by_seed.items():
                alone = wilson(int(one.answers.sum()), len(one.answers))
                table.append(
                    {"run": line.row.slot.label, "status": "ok", "seed": seed, "epoch": one.epoch, "step": one.step,
                     "stage": one.stage, "accuracy": one.accuracy, "accuracy_low": alone.low,
                     "accuracy_high": alone.high, "band_low": point.low, "band_high": point.high}
                )  # fmt: skip
    table += [{"run": row.slot.label, "status": row.status} for row in absent]
    frame = pd.DataFrame(table)
    frame.insert(0, "dataset", study.dataset)
    frame.insert(0, "device", study.device)
    return frame


def of_study(study: Study, claims: dict[str, Claim]) -> Drawn:
    """The figure of one device and dataset."""
    rows = rows_of(study)
    lines = lines_of(rows)
    absent = [row for row in rows if not row.finished]
    judged = verdicts(study, rows, claims, CLAIMS)
    title = f"Fig. 6: validation accuracy per epoch on {study.dataset!r}, dense against CoMERA"
    said = [
        f"Band: {_band_words(study)}. The late stages continue the same early stage, one per target; dense trains on.",
        *absences(rows),
        *notes(study, rows),
    ]
    with house_style():
        page = _draw(study, title, lines, said)
        images = {form: to_bytes(page, form) for form in ("png", "svg")}
    tables = text_table(lines, absent), tidy_table(study, lines, absent)
    return drawn("fig6", title, study, *tables, said, judged, images, left_aligned=frozenset({"stage", STAGE}))


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:
    """One figure per device and dataset."""
    return [of_study(study, claims) for study in studies(records)]
