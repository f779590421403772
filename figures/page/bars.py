"""Horizontal stacked bars in small multiples: bands of panels on one page, rows shared by all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from figures.page.layout import Page, legend
from figures.page.style import FAINT, INK, Fill, fill_handle
from figures.page.table import significant

_ROW = 0.185  # inches of a row
_LABEL_ROOM, _MARK_ROOM = 0.12, 0.01  # of the width of all panels, for the label behind the longest bar of one
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


def _write(axes: Any, row: int, x: float, gap: float, words: str, **style: Any) -> None:
    """Words so many points behind ``x``."""
    axes.annotate(words, (x, row), xytext=(gap, 0), textcoords="offset points", va="center", fontsize=7, **style)


def _draw_bar(axes: Any, row: int, bar: Bar, fills: dict[str, Fill]) -> None:
    if bar.instead:
        _write(axes, row, 0.0, 3, bar.instead, style="italic", color=FAINT)
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
    _write(axes, row, bar.reach, 4 + 4 * bool(bar.marks), bar.label)


def _draw_panel(axes: Any, share: float, panel: Panel, fills: Any) -> None:
    """Fill the axes of one panel, which has this share of the page's width."""
    axes.set_title(panel.title, loc="left", fontweight="bold")
    longest = max((bar.reach for bar in panel.bars), default=0.0) or 1.0
    marked = any(bar.marks for bar in panel.bars)
    limit = longest / (1 - (_LABEL_ROOM + marked * _MARK_ROOM) / share)
    axes.set_xlim(0, limit)
    axes.set_ylim(len(panel.bars) - 0.45, -0.55)
    axes.set_yticks([])
    drawn = any(bar.reach for bar in panel.bars)
    intervals = 2 if longest >= 10_000 else 3  # long labels need room
    ticks = MaxNLocator(intervals, steps=[1, 2, 5, 10]).tick_values(0, longest) if drawn else []
    axes.set_xticks([tick for tick in ticks if 0 <= tick <= 0.88 * limit])  # none so far right that it meets the next
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    for row, bar in enumerate(panel.bars):
        _draw_bar(axes, row, bar, fills)


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
    page = Page(title, facts, footnotes, len(lines))
    for part, band in enumerate(lines):
        handles = [_legend_handle(name, words, band.fills) for name, words in band.legend]
        legend(page.parts[part], handles, len(handles), band.heading)
        [panels] = page.panels(part, _ROW * len(rows), len(band.panels))
        for axes, panel in zip(panels, band.panels, strict=True):
            _draw_panel(axes, 1 / len(panels), panel, band.fills)
        panels[0].set_yticks(range(len(rows)), rows)
        for name in panels[0].get_yticklabels()[:references]:
            name.set_fontweight("bold")
    return page.finish()
