"""Accuracy against the size of the model: CoMERA, low_rank and dense after the same steps, with the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from bench.core.intervals import CONFIDENCE
from bench.core.record import Record
from figures.claims.claims import Claim
from figures.page.drawn import Drawn
from figures.page.layout import panel_page
from figures.page.style import DENSE_STROKE, FAINT, INK, Stroke, house_style, strokes, to_bytes
from figures.page.table import REMARKS
from figures.pareto_points import Point, entries_of, front_of, guessing, losses, name_of, points_of, reaches
from figures.pareto_tables import text_table, tidy_table
from figures.records.crossover import listed
from figures.runs import COMERA, DENSE, Study, studies
from figures.training_page import STAGE, absences, accuracy_words, drawn, facts, notes
from figures.training_rows import Row, rows_of

#: The experiment that is shown unless another is asked for.
EXPERIMENT = "ratios_accuracy"
_PANEL_HEIGHT, _LEGEND_COLUMNS = 3.4, 6
_FRONT: dict[str, Any] = {"color": FAINT, "linewidth": 3.5, "alpha": 0.35, "solid_capstyle": "butt"}
_LIMIT_DASHES = (0, (1, 1.5))


def _title(study: Study) -> str:
    early, late = study.stage_steps
    steps = "" if late else f" after {early:,} steps"
    other = ", small preset" if study.experiment.endswith("_small") else ", not the paper's model"
    known = study.is_full_size or study.dense_parameters is None
    return f"Accuracy against the model's size on {study.dataset!r}{steps}{'' if known else other}"


def _strokes(rows: Sequence[Row]) -> dict[str, Stroke]:
    """CoMERA's, low_rank's and so on as in Fig. 12."""
    arms = list(dict.fromkeys([COMERA, *(row.slot.arm for row in rows if row.slot.arm != DENSE)]))
    return strokes(arms) | {DENSE: DENSE_STROKE}


def _legend(points: Sequence[Point], style: dict[str, Stroke], limits: bool) -> list[Any]:
    handles: list[Any] = [
        Line2D(
            [], [], color=style[arm].colour, linestyle="" if arm == DENSE else style[arm].dashes,
            marker=style[arm].marker, markersize=4.5, markerfacecolor=style[arm].face, label=arm,
        )
        for arm in style
        if any(point.arm == arm for point in points)
    ]  # fmt: skip
    handles.append(Line2D([], [], color=INK, marker="_", markersize=5, linewidth=1, label=f"{CONFIDENCE:.0%} interval"))
    handles.append(Line2D([], [], **_FRONT, label="Pareto front, by value"))
    if limits:
        handles.append(Line2D([], [], color=INK, linewidth=1, linestyle=_LIMIT_DASHES, label="smallest within reach"))
    return handles


def _draw_arm(axes: Any, points: Sequence[Point], stroke: Stroke, shift: float) -> None:
    """The points of an arm, ``shift`` points of space to the right, so that equal sizes stand side by side."""
    place = axes.transData + ScaledTranslation(shift / 72, 0, axes.figure.dpi_scale_trans)
    for point in points:
        low, high = point.accuracy.low, point.accuracy.high
        axes.plot(
            [point.size] * 2, [low, high], color=INK, linewidth=0.9, marker="_", markersize=5, transform=place, zorder=3
        )
        name = name_of(point.row).removeprefix(point.arm).lstrip(", ") or point.arm
        axes.annotate(
            name, (point.size, high), xycoords=place, xytext=(0, 3),
            textcoords="offset points", ha="right" if shift < 0 else "left" if shift > 0 else "center", va="bottom",
            fontsize=6.5,
        )  # fmt: skip
    axes.plot(
        [point.size for point in points], [point.accuracy.value for point in points], color=stroke.colour,
        linestyle=stroke.dashes, linewidth=1.2, marker=stroke.marker, markersize=5, markerfacecolor=stroke.face,
        transform=place, zorder=4,
    )  # fmt: skip


def _limits(study: Study) -> list[tuple[float, str, str]]:
    """The smallest size of each arm that was asked for a smaller one, in MiB, and words for it."""
    dense = max((run.dense_mib or 0.0 for run in study.shown), default=0.0)
    ends = [
        (dense / reach.ratio, arm, f"{arm}: {reach}, asked for {listed(ratios)}")
        for arm, (reach, ratios) in reaches(study).items()
        if reach.side == "most"
    ]
    return sorted(ends) if dense else []


def _draw_limits(axes: Any, limits: Sequence[tuple[float, str, str]], style: dict[str, Stroke]) -> None:
    for number, (size, arm, words) in enumerate(limits):
        axes.axvline(size, color=style[arm].colour, linewidth=1, linestyle=_LIMIT_DASHES, zorder=1)
        axes.annotate(
            words, (size, 0.02), xycoords=axes.get_xaxis_transform(), rotation=90, va="bottom",
            xytext=(-2 if number % 2 == 0 else 2, 0), textcoords="offset points", fontsize=6.5,
            ha="right" if number % 2 == 0 else "left",
        )  # fmt: skip


def _size_axis(axes: Any, sizes: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(min(sizes) / 1.25, 1.15 * max(sizes))
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _draw(study: Study, title: str, rows: Sequence[Row], points: Sequence[Point], footnotes: Sequence[str]) -> Any:
    style, limits = _strokes(rows), _limits(study)
    page, [[axes]] = panel_page(
        title, facts(study), [[""]], footnotes, _PANEL_HEIGHT, _legend(points, style, bool(limits)), _LEGEND_COLUMNS
    )
    axes.set_xlabel("size of the stored model, MiB", fontsize=8)
    axes.set_ylabel("validation accuracy, %", fontsize=8)
    if not points:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no finished run", transform=axes.transAxes, ha="center", style="italic", color=FAINT)
        return page
    _size_axis(axes, [*(point.size for point in points), *(size for size, _, _ in limits)])
    low, high = min(point.accuracy.low for point in points), max(point.accuracy.high for point in points)
    axes.set_ylim(low - 0.06 * (high - low), high + 0.12 * (high - low))
    front = front_of(points)
    corners = [(point.size, point.accuracy.value) for point in front]
    corners.append((axes.get_xlim()[1], corners[-1][1]))
    axes.step(*zip(*corners, strict=True), where="post", zorder=2, **_FRONT)
    arms = [arm for arm in style if any(point.arm == arm for point in points)]
    for arm in arms:
        shift = {COMERA: -3.0, DENSE: 0.0}.get(arm, 3.0)
        _draw_arm(axes, [point for point in points if point.arm == arm], style[arm], shift)
    _draw_limits(axes, limits, style)
    axes.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    return page


def _notes(study: Study, rows: Sequence[Row], points: Sequence[Point]) -> list[str]:
    several = len(study.seeds) > 1
    interval = "hierarchical bootstrap over seeds and examples" if several else "Wilson's, over examples alone"
    lines = [
        accuracy_words(interval),
        "Sizes within 2 % count as equal; points of equal size stand side by side, not one upon the other.",
    ]
    if not several:
        lines.append("One seed: the intervals do not hold what another seed would change.")
    if study.dataset == "synthetic":
        lines.append("The text is generated: these accuracies tell nothing about real data.")
    lines += guessing(points, study)
    if points:
        lines.append(f"Pareto front, by value: {', '.join(point.words for point in front_of(points))}.")
    lines += losses(points)
    return [*lines, *notes(study, rows)]


def of_study(study: Study) -> Drawn:
    """The figure of one device and dataset."""
    rows = rows_of(study)
    points, entries = points_of(rows), entries_of(rows)
    said, title = _notes(study, rows, points), _title(study)
    with house_style():
        page = _draw(study, title, rows, points, said)
        images = {form: to_bytes(page, form) for form in ("png", "svg")}
    tables = text_table(entries), tidy_table(study, entries)
    below, left = [*absences(rows), *said], frozenset({STAGE, "dominated by", REMARKS})
    return drawn("pareto", title, study, *tables, said, (), images, below, left)


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:  # noqa: ARG001 - it touches none
    """One figure per device and dataset."""
    return [of_study(study) for study in studies(records)]
