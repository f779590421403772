"""Horizontal stacked bars in small multiples: bands of panels on one page, rows shared by all of them.

A :class:`Sheet` makes bars of times and of peak memory from the lines of a table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from figures.columns import bounds_are, lines_of, unit_of
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes
from figures.page.layout import Page, legend
from figures.page.style import FAINT, INK, MEMORY_FILLS, TIME_FILLS, Fill, fill_handle, note, number_axis
from figures.records.cells import CATEGORIES, parts_of_peak
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
    """Panels of a band stand beside one another; each has one bar per row of the page."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Band:
    """Panels under one heading and legend, whose entries are a fill's or marker's name and words."""

    heading: str
    panels: tuple[BarPanel, ...]
    fills: Mapping[str, Fill]
    legend: tuple[tuple[str, str], ...]  # "bounds" is the whisker


def value_label(value: float, ratio: float | None, marks: str = "") -> str:
    """Return the words beside a bar: its value, its ratio to what it is compared with, its marks."""
    compared = "" if ratio is None or pd.isna(ratio) else f"  {significant(ratio)}x"
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
        line: of a table, with the columns of :func:`figures.records.time_values.time_columns`.
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
    label = value_label(value * scale, line[f"time_over_{over}"], marks)
    return Bar(tuple(parts), bounds, bounds_are(line[f"{name}_bounds"], line["launches"]), label=label)


def memory(line: Line, target: str, over: str, footnotes: Footnotes, measured: bool = False) -> Bar:
    """Return the bar of a predicted peak by category, with the measured peaks marked on it where asked.

    Args:
        line: of a table, with the columns of a :class:`figures.records.cells.TimesAndMemory`.
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
    parts = parts_of_peak(peak, {name: line[f"{target}_{name}_mib"] for name in CATEGORIES})
    return Bar(tuple(parts.items()), marks=at, label=value_label(peak, line[f"{target}_over_{over}"], marks))


def by_batch(
    table: pd.DataFrame, bar_of: Callable[[Line], Bar], column: str = "batch_size", title: str = "batch {:,}"
) -> tuple[BarPanel, ...]:
    """Return a panel per value of a column, with a bar for each line of the table that has it."""
    panels = table.groupby(column, sort=False)
    return tuple(BarPanel(title.format(value), tuple(map(bar_of, lines_of(part)))) for value, part in panels)


@dataclass
class Sheet:
    """A page of bars from a table of times and peak memory, all compared with one arm.

    Args:
        kind: of the device, ``cpu`` or ``cuda``.
        over: the arm that ratios are to.
        title: of a panel, by its batch size.
    """

    kind: str
    over: str
    title: str = "batch {:,}"
    bands: list[Band] = field(default_factory=list)
    footnotes: Footnotes = field(default_factory=Footnotes)

    def times(self, table: pd.DataFrame, per: str, legend: Mapping[str, str], words: str = "") -> None:
        """Add a band of times.

        Args:
            table: with a panel per batch size.
            per: ``epoch`` or ``step``.
            legend: the words of the legend by fill.
            words: what follows in the heading.
        """
        unit, scale = unit_of(table, per)
        panels = by_batch(table, lambda line: time(line, per, self.over, scale, self.footnotes), title=self.title)
        whiskers = bounds_words(bar for panel in panels for bar in panel.bars)
        where = {"cuda": "on the GPU", "cpu": "on the CPU"}[self.kind]
        entries = (*legend.items(), *([("bounds", whiskers)] if whiskers else []))
        self.bands.append(Band(f"Time per {per} {where}, in {unit}{words}", panels, TIME_FILLS, entries))

    def memory(
        self,
        table: pd.DataFrame,
        target: str,
        measured: bool,
        words: str = "",
        label: Callable[[Line, Bar], str] | None = None,
    ) -> None:
        """Add a band of predicted peaks.

        Args:
            table: with a panel per batch size.
            target: the device that they are predicted for.
            measured: whether the allocator's peaks are marked on them.
            words: what follows in the heading.
            label: the words beside a bar, where these are others.
        """

        def bar_of(line: Line) -> Bar:
            bar = memory(line, target, self.over, self.footnotes, measured)
            return replace(bar, label=label(line, bar)) if label else bar

        panels = by_batch(table, bar_of, title=self.title)
        shown = [("optimizer", "optimizer state") if name == "optimizer" else (name, name) for name in CATEGORIES]
        if any(name == "unsplit" for panel in panels for bar in panel.bars for name, _ in bar.parts):
            shown.append(("unsplit", "not split"))
        shown += [("allocated", "allocated, measured"), ("reserved", "reserved, measured")] if measured else []
        device = {"cuda": "a CUDA device", "cpu": "a CPU"}[target]
        here = ", and measured on this one" * measured
        heading = f"Peak memory predicted for {device}, in MiB{here}{words}"
        self.bands.append(Band(heading, panels, MEMORY_FILLS, tuple(shown)))

    def draw(self, caption: Caption, rows: Sequence[str], references: int = 1, more: Sequence[str] = ()) -> Figure:
        """Draw all bands; ``more`` follows the notes on the picture, the rest is as :func:`draw_bars` has it."""
        foot = (*self.footnotes.lines(), *caption.of_picture, *more, *caption.notes)
        return draw_bars(caption.title, caption.facts, rows, self.bands, foot, references)


def _bands_by_line(bands: Sequence[Band]) -> list[Band]:
    """Split a band with more panels than fit beside one another."""
    return [
        replace(band, panels=band.panels[start : start + _COLUMNS], heading=band.heading + " (continued)" * (start > 0))
        for band in bands
        for start in range(0, len(band.panels), _COLUMNS)
    ]


def _legend_handle(name: str, words: str, fills: Mapping[str, Fill]) -> Any:
    if name == "bounds":
        return Line2D([], [], **_WHISKER, label=words)
    if name in MARKERS:
        return Line2D([], [], linestyle="", **MARKERS[name], label=words)
    return fill_handle(fills[name], words)


def _draw_bar(axes: Any, row: int, bar: Bar, fills: Mapping[str, Fill]) -> None:
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


def _draw_panel(axes: Any, share: float, panel: BarPanel, fills: Mapping[str, Fill]) -> None:
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
    """Draw a page of bands from top to bottom.

    Args:
        title, facts, footnotes: of the page.
        rows: the names of the rows that all panels share.
        bands: from top to bottom.
        references: how many of the rows at the top ratios are to; their names are bold.
        below: draws what follows, on the part of the page of that number.
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
