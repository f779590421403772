"""Horizontal stacked bars in small multiples: bands of panels on one page, rows shared by all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, MaxNLocator

from figures.page.layout import LINE, MARGIN, WIDTH, Page
from figures.page.style import FAINT, INK, Fill, fill_handle
from figures.page.table import significant

# A band, in inches; left of the panels there is room for the longest name of a row.
_LEFT, _RIGHT, _GAP = 1.08, 0.06, 0.1
_ROW, _TICKS = 0.185, 0.24
_HEADING, _LEGEND, _PANEL_TITLE, _BELOW_BAND = 0.18, 0.16, 0.22, 0.14
_LABEL_ROOM, _MARK_ROOM = 0.86, 0.08
_COLUMNS = 4

#: Peaks marked on top of a bar, by name.
MARKERS = {"allocated": "v", "reserved": "D"}


@dataclass(frozen=True)
class Bar:
    """One bar: its parts from left to right, or, where there is nothing to draw, the word that says why."""

    parts: tuple[tuple[str, float], ...] = ()  # (fill name, length)
    interval: tuple[float, float] | None = None
    marks: tuple[tuple[str, float], ...] = ()  # (marker name, position)
    label: str = ""
    instead: str = ""  # such as "unsupported (1)"

    @property
    def length(self) -> float:
        return sum(length for _, length in self.parts)

    @property
    def reach(self) -> float:
        """How far anything drawn for this bar goes."""
        return max([self.length, *(self.interval or ()), *(position for _, position in self.marks)])


@dataclass(frozen=True)
class Panel:
    title: str
    bars: tuple[Bar, ...]  # one per row of the page


@dataclass(frozen=True)
class Band:
    heading: str
    panels: tuple[Panel, ...]
    fills: dict[str, Fill]
    legend: tuple[tuple[str, str], ...]  # (fill or marker name, words); "interval" is the whisker


def value_label(value: float, ratio: float | None, marks: str) -> str:
    """The words beside a bar: its value, its ratio to what it is compared with, its marks."""
    compared = "" if ratio is None else f"  {significant(ratio)}x"
    return f"{significant(value)}{compared} {marks}".rstrip()


def _bands_by_line(bands: Sequence[Band]) -> list[Band]:
    """A band with more panels than fit beside one another becomes several."""
    lines = []
    for band in bands:
        for start in range(0, len(band.panels), _COLUMNS):
            heading = band.heading if start == 0 else f"{band.heading} (continued)"
            lines.append(Band(heading, band.panels[start : start + _COLUMNS], band.fills, band.legend))
    return lines


def _legend_handle(name: str, words: str, fills: dict[str, Fill]) -> Any:
    if name == "interval":
        return Line2D([], [], color=INK, linewidth=1, marker="|", markersize=5, label=words)
    if name in MARKERS:
        face = INK if name == "allocated" else "white"
        return Line2D(
            [], [], linestyle="", marker=MARKERS[name], markersize=4, color=INK, markerfacecolor=face, label=words
        )
    return fill_handle(fills[name], words)


def _draw_bar(axes: Any, row: int, bar: Bar, fills: dict[str, Fill], room: float) -> None:
    """``room`` is the width of one point of space, in data units."""
    if bar.instead:
        axes.text(3 * room, row, bar.instead, va="center", ha="left", fontsize=7, style="italic", color=FAINT)
        return
    left = 0.0
    for name, length in bar.parts:
        fill = fills[name]
        axes.barh(
            row, length, left=left, height=0.74, facecolor=fill.colour, edgecolor=fill.edge, hatch=fill.hatch,
            linewidth=0.4,
        )  # fmt: skip
        left += length
    axes.barh(row, left, height=0.74, facecolor="none", edgecolor=INK, linewidth=0.5)
    if bar.interval:
        axes.plot(bar.interval, [row, row], color=INK, linewidth=1, marker="|", markersize=5, solid_capstyle="butt")
    for name, position in bar.marks:
        face = INK if name == "allocated" else "white"
        axes.plot([position], [row], marker=MARKERS[name], markersize=4, color=INK, markerfacecolor=face, zorder=4)
    gap = 4 + 4 * bool(bar.marks)
    axes.text(bar.reach + gap * room, row, bar.label, va="center", ha="left", fontsize=7)


def _room_for_names(rows: Sequence[str], references: int) -> float:
    """The width left of the panels, in inches."""
    room = _LEFT
    for number, name in enumerate(rows):
        weight = "bold" if number < references else "normal"
        font = FontProperties(family=rcParams["font.family"], weight=weight, size=rcParams["ytick.labelsize"])
        room = max(room, TextPath((0, 0), name, prop=font).get_extents().width / 72 + 2 * MARGIN)
    return room


def _draw_panel(axes: Any, width: float, panel: Panel, names: Sequence[str], references: int, fills: Any) -> None:
    """Fill the axes, so many inches wide, of one panel; ``names`` are those of the rows, empty ones for none."""
    longest = max((bar.reach for bar in panel.bars), default=0.0) or 1.0
    marked = any(bar.marks for bar in panel.bars)
    limit = longest * width / (width - _LABEL_ROOM - marked * _MARK_ROOM)
    axes.set_xlim(0, limit)
    axes.set_ylim(len(panel.bars) - 0.45, -0.55)
    axes.set_yticks(range(len(panel.bars)), names)
    drawn = any(bar.reach for bar in panel.bars)
    intervals = 2 if longest >= 10_000 else 3  # long labels need room
    ticks = MaxNLocator(intervals, steps=[1, 2, 5, 10]).tick_values(0, longest) if drawn else []
    axes.set_xticks([tick for tick in ticks if 0 <= tick <= 0.88 * limit])  # none so far right that it meets the next
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    for name in axes.get_yticklabels()[:references]:
        name.set_fontweight("bold")
    for row, bar in enumerate(panel.bars):
        _draw_bar(axes, row, bar, fills, room=limit / (width * 72))


def draw_bars(
    title: str,
    facts: Sequence[str],
    rows: Sequence[str],
    bands: Sequence[Band],
    footnotes: Sequence[str],
    references: int = 1,
) -> Figure:
    """A page of bands.

    Args:
        title, facts, footnotes: what is written above and below.
        rows: the names of the rows, which all panels share.
        bands: from top to bottom.
        references: how many rows at the top are what ratios are to; their names are bold.
    """
    lines = _bands_by_line(bands)
    band_height = _HEADING + _LEGEND + _PANEL_TITLE + _ROW * len(rows) + _TICKS + _BELOW_BAND
    page = Page(title, facts, footnotes, band_height * len(lines), LINE, lines=0)
    room = _room_for_names(rows, references)
    for band in lines:
        page.text(band.heading, _HEADING, fontsize=8.5, fontweight="bold")
        handles = [_legend_handle(name, words, band.fills) for name, words in band.legend]
        page.legend(handles, len(handles), length=1.6)
        page.y -= _LEGEND + _PANEL_TITLE + _ROW * len(rows)
        width = (WIDTH - room - _RIGHT - _GAP * (len(band.panels) - 1)) / len(band.panels)
        for column, panel in enumerate(band.panels):
            axes = page.panel(room + column * (width + _GAP), width, _ROW * len(rows), panel.title)
            names = list(rows) if column == 0 else [""] * len(rows)
            _draw_panel(axes, width, panel, names, references if column == 0 else 0, band.fills)
        page.y -= _TICKS + _BELOW_BAND
    return page.finish()
