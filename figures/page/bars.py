"""Horizontal stacked bars in small multiples: bands of panels on one page, rows shared by all of them.

Bars of times and of peak memory are made from the lines of a table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from figures.columns import bounds_are
from figures.page.footnotes import Footnotes
from figures.page.layout import Page, legend
from figures.page.style import FAINT, INK, MEMORY_FILLS, TIME_FILLS, Fill, fill_handle, note, number_axis
from figures.records.cells import CATEGORIES
from figures.text import DISTURBED, OLDER, UNPAIRED, bounds_words, significant

#: A line of a table, by the names of its columns.
Line = Mapping[str, Any]

_ROW = 0.185  # inches of a row
_LABEL_ROOM, _MARK_ROOM = 0.12, 0.01  # of the width of all panels, for the label behind the longest bar of one
_COLUMNS = 4
_LEGEND, _HANDLE = 170, 7  # characters that a line of a legend holds, and that an entry takes beside its words

#: Peaks marked on top of a bar, by name.
MARKERS: dict[str, dict[str, Any]] = {
    "allocated": {"marker": "v", "markersize": 4, "color": INK, "markerfacecolor": INK},
    "reserved": {"marker": "D", "markersize": 4, "color": INK, "markerfacecolor": "white"},
}
_WHISKER: dict[str, Any] = {"color": INK, "linewidth": 1, "marker": "|", "markersize": 5}


@dataclass(frozen=True)
class Bar:
    """One bar: its parts from left to right, or, where there is nothing to draw, the word that says why."""

    parts: tuple[tuple[str, float], ...] = ()  # (fill name, length)
    bounds: tuple[float, float] | None = None
    bounds_are: str = ""  # such as "range over launches"
    marks: tuple[tuple[str, float], ...] = ()  # (marker name, position)
    label: str = ""
    instead: str = ""  # such as "unsupported (1)"

    @property
    def reach(self) -> float:
        marks = (position for _, position in self.marks)
        return max([sum(length for _, length in self.parts), *(self.bounds or ()), *marks])


@dataclass(frozen=True)
class BarPanel:
    title: str
    bars: tuple[Bar, ...]  # one per row of the page


@dataclass(frozen=True)
class Band:
    heading: str
    panels: tuple[BarPanel, ...]
    fills: dict[str, Fill]
    legend: tuple[tuple[str, str], ...]  # (fill or marker name, words); "bounds" is the whisker


def value_label(value: float, ratio: float | None, marks: str) -> str:
    """The words beside a bar: its value, its ratio to what it is compared with, its marks."""
    compared = "" if ratio is None else f"  {significant(ratio)}x"
    return f"{significant(value)}{compared} {marks}".rstrip()


def marks_of(line: Line, of_time: bool = False) -> str:
    """Return the marks of a line of a table, those of its time too where asked."""
    unpaired, undisturbed = line.get("time_pairing") == "unpaired", line.get("blocks") == 0
    return OLDER * bool(line["older_code"]) + (UNPAIRED * unpaired + DISTURBED * undisturbed) * of_time


def _number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def time(line: Line, per: str, over: str, scale: float, footnotes: Footnotes) -> Bar:
    """Return the bar of a time: the steps, then the amortised rare events.

    Args:
        line: of a table, with the columns of :func:`figures.records.time_values.time_fields`.
        per: ``epoch`` or ``step``.
        over: what the ratio is to; the line of that arm has a fill of its own.
        scale: how many of the unit shown the table's own is.
        footnotes: numbers the reasons of bars that are missing.
    """
    name, rare_name = {"epoch": ("epoch_time_s", "epoch_rare_s"), "step": ("step_time_ms", "step_rare_ms")}[per]
    marks, value = marks_of(line, of_time=True), _number(line[name])
    if value is None:
        return Bar(instead=footnotes.words(line["time_status"], line["time_message"], marks))
    low, high = _number(line[f"{name}_low"]), _number(line[f"{name}_high"])
    rare = (_number(line.get(rare_name)) or 0.0) * scale
    fill = "steps, CoMERA" if over in (line.get("arm"), line.get("variant")) else "steps"
    parts = [(fill, value * scale - rare), *([("rare", rare)] if rare else [])]
    bounds = None if low is None or high is None else (low * scale, high * scale)
    label = value_label(value * scale, _number(line[f"time_over_{over}"]), marks)
    return Bar(tuple(parts), bounds, bounds_are(line[f"{name}_bounds"], line["launches"]), label=label)


def memory(line: Line, target: str, over: str, footnotes: Footnotes, measured: bool = False) -> Bar:
    """Return the bar of a predicted peak by category, with the measured peaks marked on it where asked.

    Args:
        line: of a table, with the columns of :func:`figures.records.cells.memory_fields`.
        target: the device that was predicted for, ``cuda`` or ``cpu``.
        over: what the ratio is to.
        footnotes: numbers the reasons of bars that are missing.
        measured: whether the allocator's peaks are marked.
    """
    sizes = {name: _number(line[f"{name}_mib"]) for name in MARKERS} if measured else {}
    at = tuple((name, size) for name, size in sizes.items() if size is not None)
    marks, peak = marks_of(line), _number(line[f"{target}_peak_mib"])
    if peak is None:
        words = footnotes.words(line[f"{target}_status"], line[f"{target}_message"], marks)
        return Bar(marks=at, label=f"prediction {words}") if at else Bar(instead=words)
    found = {name: _number(line[f"{target}_{name}_mib"]) or 0.0 for name in CATEGORIES}
    rest = peak - sum(found.values())
    parts = [(name, size) for name, size in found.items() if size]
    parts += [("unsplit", rest)] if rest > 0.005 * peak else []
    return Bar(tuple(parts), marks=at, label=value_label(peak, _number(line[f"{target}_over_{over}"]), marks))


def lines(table: pd.DataFrame) -> list[Line]:
    """Return the lines of a table, each by the names of its columns."""
    return cast(list[Line], table.to_dict("records"))


def by_batch(
    table: pd.DataFrame, bar_of: Callable[[Line], Bar], column: str = "batch_size", title: str = "batch {:,}"
) -> tuple[BarPanel, ...]:
    """Return a panel per value of a column, with a bar for each line of the table that has it."""
    found = []
    for value in dict.fromkeys(table[column]):
        here = lines(table[table[column] == value])
        found.append(BarPanel(title.format(value), tuple(map(bar_of, here))))
    return tuple(found)


def time_band(heading: str, kind: str, bars: tuple[BarPanel, ...], words: Mapping[str, str]) -> Band:
    """A band of times; ``heading`` says where, ``{}``, on a ``kind`` of device; ``words`` are the legend's, by fill."""
    whiskers = bounds_words(bar for panel in bars for bar in panel.bars)
    where = {"cuda": "on the GPU", "cpu": "on the CPU"}[kind]
    legend = (*words.items(), *([("bounds", whiskers)] if whiskers else []))
    return Band(heading.format(where), bars, TIME_FILLS, legend)


def band_of_memory(target: str, bars: tuple[BarPanel, ...], measured: bool, words: str = "") -> Band:
    """Return a band of predicted peaks.

    Args:
        target: the device that they are predicted for.
        bars: made by :func:`memory`.
        measured: whether the allocator's peaks are marked on them.
        words: that follow in the heading.
    """
    shown = [("optimizer", "optimizer state") if name == "optimizer" else (name, name) for name in CATEGORIES]
    if any(name == "unsplit" for panel in bars for bar in panel.bars for name, _ in bar.parts):
        shown.append(("unsplit", "not split"))
    if measured:
        shown += [("allocated", "allocated, measured"), ("reserved", "reserved, measured")]
    device = {"cuda": "a CUDA device", "cpu": "a CPU"}[target]
    heading = f"Peak memory predicted for {device}, in MiB{', and measured on this one' if measured else ''}{words}"
    return Band(heading, bars, MEMORY_FILLS, tuple(shown))


def _bands_by_line(bands: Sequence[Band]) -> list[Band]:
    """A band with more panels than fit beside one another becomes several."""
    return [
        replace(band, panels=band.panels[start : start + _COLUMNS], heading=band.heading + " (continued)" * (start > 0))
        for band in bands
        for start in range(0, len(band.panels), _COLUMNS)
    ]


def _legend_handle(name: str, words: str, fills: dict[str, Fill]) -> Any:
    if name == "bounds":
        return Line2D([], [], **_WHISKER, label=words)
    if name in MARKERS:
        return Line2D([], [], linestyle="", **MARKERS[name], label=words)
    return fill_handle(fills[name], words)


def _draw_bar(axes: Any, row: int, bar: Bar, fills: dict[str, Fill]) -> None:
    if bar.instead:
        note(axes, bar.instead, (0.0, row), (3, 0), va="center", fontsize=7, style="italic", color=FAINT)
        return
    left = 0.0
    for name, length in bar.parts:
        axes.barh(row, length, left=left, height=0.74, linewidth=0.4, **fills[name].look)
        left += length
    axes.barh(row, left, height=0.74, facecolor="none", edgecolor=INK, linewidth=0.5)
    if bar.bounds:
        axes.plot(bar.bounds, [row, row], **_WHISKER, solid_capstyle="butt")
    for name, position in bar.marks:
        axes.plot([position], [row], **MARKERS[name], zorder=4)
    note(axes, bar.label, (bar.reach, row), (4 + 4 * bool(bar.marks), 0), va="center", fontsize=7)


def _draw_panel(axes: Any, share: float, panel: BarPanel, fills: Any) -> None:
    """Fill the axes of one panel, which has this share of the page's width."""
    axes.set_title(panel.title, loc="left", fontweight="bold")
    longest = max((bar.reach for bar in panel.bars), default=0.0)
    marked = any(bar.marks for bar in panel.bars)
    limit = (longest or 1.0) / (1 - (_LABEL_ROOM + marked * _MARK_ROOM) / share)
    axes.set_xlim(0, limit)
    axes.set_ylim(len(panel.bars) - 0.45, -0.55)
    axes.set_yticks([])
    intervals = 2 if longest >= 10_000 else 3  # long labels need room
    ticks = MaxNLocator(intervals, steps=[1, 2, 5, 10]).tick_values(0, longest) if longest else []
    axes.set_xticks([tick for tick in ticks if 0 <= tick <= 0.88 * limit])  # none so far right that it meets the next
    number_axis(axes.xaxis)
    for row, bar in enumerate(panel.bars):
        _draw_bar(axes, row, bar, fills)


def draw_bars(
    title: str,
    facts: Sequence[str],
    rows: Sequence[str],
    bands: Sequence[Band],
    footnotes: Sequence[str],
    references: int = 1,
    below: Callable[[Page, int], None] | None = None,
) -> Figure:
    """A page of bands from top to bottom, whose panels share the ``rows`` of these names; bold are those of so many
    ``references`` at the top, which ratios are to. ``below`` draws what follows, on the part of the page of that
    number.
    """
    stacked = _bands_by_line(bands)
    page = Page(title, facts, footnotes, len(stacked) + (below is not None))
    for part, band in enumerate(stacked):
        handles = [_legend_handle(name, words, band.fills) for name, words in band.legend]
        lengths = [len(words) + _HANDLE for _, words in band.legend]
        legend(page.parts[part], handles, -(-len(handles) // (1 + sum(lengths) // _LEGEND)), band.heading)
        [panels] = page.panels(part, _ROW * len(rows), len(band.panels))
        for axes, panel in zip(panels, band.panels, strict=True):
            _draw_panel(axes, 1 / len(panels), panel, band.fills)
        panels[0].set_yticks(range(len(rows)), rows)
        for name in panels[0].get_yticklabels()[:references]:
            name.set_fontweight("bold")
    if below:
        below(page, len(stacked))
    return page.finish()
