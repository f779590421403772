"""Horizontal stacked bars in small multiples: bands of panels on one page, rows shared by all of them.

The bars of a panel are the lines of a frame. Columns named as fills have the lengths of their parts, ``low`` and
``high`` the bounds, ``allocated`` and ``reserved`` the peaks marked on them, ``label`` the words beside a bar,
``instead`` those in its place. Only ``instead`` must be there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from figures.arms import COMERA
from figures.columns import bounds_kinds, time_column, unit_of
from figures.draw.captions import Caption
from figures.draw.footnotes import Footnotes
from figures.draw.layout import Paper, legend
from figures.draw.style import FAINT, INK, MEMORY_FILLS, TIME_FILLS, Fill, fill_handle, note, number_axis
from figures.stats.cells import CATEGORIES, by_category
from figures.text import DISTURBED, NOT_RECORDED, OLDER, UNPAIRED, significant

_ROW = 0.185  # inches of a row
# of the width of all panels, for the label behind the longest bar of one
_LABEL_ROOM, _MARK_ROOM = 0.12, 0.01
_COLUMNS = 4
# characters that a line of a legend holds, and that an entry takes beside its words
_LEGEND, _HANDLE = 170, 7

#: Peaks marked on top of a bar, by name.
MARKERS: dict[str, dict[str, Any]] = {
    "allocated": {"marker": "v", "markersize": 4, "color": INK, "markerfacecolor": INK},
    "reserved": {"marker": "D", "markersize": 4, "color": INK, "markerfacecolor": "white"},
}
_WHISKER: dict[str, Any] = {"color": INK, "linewidth": 1, "marker": "|", "markersize": 5}


Fills = Mapping[str, Fill]


@dataclass(frozen=True)
class Band:
    """Panels under one heading and legend: bars by title, words by fill or marker, or by ``bounds``."""

    heading: str
    panels: Mapping[str, pd.DataFrame]
    fills: Mapping[str, Fill]
    legend: Mapping[str, str]


def labels(values: pd.Series, ratios: pd.Series, marks: pd.Series) -> pd.Series:
    """Return the words beside bars: value, ratio to what it is compared with, marks; missing where the value is."""
    values, ratios = map(pd.to_numeric, (values, ratios))  # a column without any number holds None
    words = []
    for value, ratio, mark in zip(values, ratios, marks, strict=True):
        over = f"  {significant(ratio)}x" if ratio > 0 else ""
        words.append(f"{significant(value)}{over} {mark}".rstrip() if value > 0 else None)
    return pd.Series(words, values.index, "str")


def marks(table: pd.DataFrame, of_time: bool = False) -> pd.Series:
    """Return the marks of each line of a table, those of its time too where asked."""
    found = table["older_code"].map({True: OLDER, False: ""})
    if of_time:
        found += (table["time_pairing"] == "unpaired").map({True: UNPAIRED, False: ""})
        found += (table["blocks"] == 0).map({True: DISTURBED, False: ""})
    return found


@dataclass
class BarPage:
    """A page of bars from a table of times and peak memory, all compared with one arm.

    Args:
        kind: of the device, ``cpu`` or ``cuda``.
        over: what ratios are to, as it is called in their columns.
        own: the arm that is drawn as CoMERA's.
        title: of a panel, by its batch size.
    """

    kind: str
    over: str
    own: str = COMERA
    title: str = "batch {:,}"
    bands: list[Band] = field(default_factory=list)
    footnotes: Footnotes = field(default_factory=Footnotes)

    def times(self, table: pd.DataFrame, per: str, legend: Mapping[str, str], words: str = "") -> None:
        """Add a band of times, the steps and then the amortised rare events, with a panel per batch size.

        Nothing is added where no time is recorded.

        Args:
            table: with the columns of :func:`figures.stats.time_values.time_columns`.
            per: ``epoch`` or ``step``.
            legend: the words of the legend by fill.
            words: what follows in the heading.
        """
        if (table["time_status"] == NOT_RECORDED).all():
            return
        name, (unit, scale) = time_column(per), unit_of(table, per)
        is_own = table["arm" if "arm" in table else "variant"] == self.own
        rare = table.get(name.replace("time", "rare"), pd.Series(0.0, table.index)).fillna(0.0) * scale
        steps, found = table[name] * scale - rare, marks(table, of_time=True)
        bars = pd.DataFrame(
            {
                "steps, CoMERA": steps.where(is_own),
                "steps": steps.where(~is_own),
                "rare": rare.where(rare > 0),
                "low": table[f"{name}_low"] * scale,
                "high": table[f"{name}_high"] * scale,
                "label": labels(table[name] * scale, table[f"time_over_{self.over}"], found),
                "instead": self._reasons(table, "time", found),
            }
        )
        whiskers = " or ".join(bounds_kinds(table, name))
        entries = {**legend, **({"bounds": whiskers} if whiskers else {})}
        where = {"cuda": "on the GPU", "cpu": "on the CPU"}[self.kind]
        self._add(f"Time per {per} {where}, in {unit}{words}", table, bars, TIME_FILLS, entries)

    def memory(
        self,
        table: pd.DataFrame,
        target: str,
        measured: bool,
        words: str = "",
        words_beside: pd.Series | None = None,
    ) -> None:
        """Add a band of predicted peaks by category, with a panel per batch size.

        Args:
            table: with the columns of :meth:`figures.stats.cells.TimesAndMemory.memory`.
            target: the device that they are predicted for.
            measured: whether the allocator's peaks are marked on them.
            words: what follows in the heading.
            words_beside: those beside bars, where these are others.
        """
        peak, found = table[f"{target}_peak_mib"], marks(table)
        bars = by_category(table, target)
        reasons = self._reasons(table, target, found)
        if measured:
            bars = bars.assign(allocated=table["allocated_mib"], reserved=table["reserved_mib"])
        is_marked = measured & table[["allocated_mib", "reserved_mib"]].notna().any(axis=1)
        known = labels(peak, table[f"{target}_over_{self.over}"], found)
        bars["label"] = known.fillna("prediction " + reasons)
        bars["instead"] = reasons.mask(is_marked, "")
        if words_beside is not None:
            bars["label"] = words_beside.fillna(bars["label"])
        entries = {name: name for name in CATEGORIES} | {"optimizer": "optimizer state"}
        if bars["unsplit"].notna().any():
            entries["unsplit"] = "not split"
        if measured:
            entries |= {"allocated": "allocated, measured", "reserved": "reserved, measured"}
        device = {"cuda": "a CUDA device", "cpu": "a CPU"}[target]
        heading = f"Peak memory predicted for {device}, in MiB{', and measured on this one' * measured}{words}"
        self._add(heading, table, bars, MEMORY_FILLS, entries)

    def _reasons(self, table: pd.DataFrame, kind: str, marks: pd.Series) -> pd.Series:
        """Return why lines have no value; reasons are numbered on this page as they are met."""
        lines = zip(table[f"{kind}_status"], table[f"{kind}_message"], marks, strict=True)
        words = ["" if line[0] == "ok" else self.footnotes.words(*line) for line in lines]
        return pd.Series(words, table.index, dtype=object)

    def _add(
        self, heading: str, table: pd.DataFrame, bars: pd.DataFrame, fills: Fills, words: Mapping[str, str]
    ) -> None:
        by_batch = bars.groupby(table["batch_size"], sort=False)
        panels = {self.title.format(batch): part for batch, part in by_batch}
        self.bands.append(Band(heading, panels, fills, words))

    def draw(
        self, caption: Caption, rows: Sequence[str], references: Sequence[str], more: Sequence[str] = ()
    ) -> Figure:
        """Draw all bands; ``more`` follows the notes on the picture, the rest is as :func:`draw_bars` has it."""
        notes = (*self.footnotes.lines(), *caption.of_picture, *more)
        return draw_bars(caption, rows, self.bands, notes, references)


def draw_bars(
    caption: Caption,
    rows: Sequence[str],
    bands: Sequence[Band],
    footnotes: Sequence[str] = (),
    references: Sequence[str] = (),
    below: Any = None,
) -> Figure:
    """Draw a page of bands from top to bottom.

    Args:
        caption: of the page.
        rows: the names of the rows that all panels share.
        bands: from top to bottom; one with more panels than fit beside one another is continued.
        footnotes: what stands before the notes.
        references: the rows that ratios are to; their names are bold.
        below: draws what follows, given the page and the number of its part.
    """
    stacked = [
        (band, start, list(band.panels)[start : start + _COLUMNS])
        for band in bands
        for start in range(0, len(band.panels), _COLUMNS)
    ]
    foot = (*footnotes, *caption.notes)
    page = Paper(caption.title, caption.facts, foot, len(stacked) + (below is not None))
    for part, (band, start, titles) in enumerate(stacked):
        handles = [_handle(name, words, band.fills) for name, words in band.legend.items()]
        characters = sum(len(words) + _HANDLE for words in band.legend.values())
        heading = band.heading + " (continued)" * (start > 0)
        legend(page.parts[part], handles, -(-len(handles) // (1 + characters // _LEGEND)), heading)
        [panels] = page.panels(part, _ROW * len(rows), len(titles))
        for axes, title in zip(panels, titles, strict=True):
            axes.set_title(title, loc="left", fontweight="bold")
            _draw_panel(axes, 1 / len(panels), band.panels[title], band.fills)
        panels[0].set_yticks(range(len(rows)), rows)
        for label in panels[0].get_yticklabels():
            if label.get_text() in references:
                label.set_fontweight("bold")
    if below:
        below(page, len(stacked))
    return page.finish()


def _handle(name: str, words: str, fills: Mapping[str, Fill]) -> Any:
    if name == "bounds":
        return Line2D([], [], **_WHISKER, label=words)
    if name in MARKERS:
        return Line2D([], [], linestyle="", **MARKERS[name], label=words)
    return fill_handle(fills[name], words)


def _draw_panel(axes: Any, share: float, bars: pd.DataFrame, fills: Mapping[str, Fill]) -> None:
    """Fill the axes of one panel, which has this share of the page's width."""
    parts = bars[[name for name in fills if name in bars]]
    marked = [name for name in MARKERS if name in bars and bars[name].notna().any()]
    ends = bars[["high", *marked] if "high" in bars else marked]
    reach = pd.concat([parts.sum(axis=1), ends], axis=1).max(axis=1)
    limit = (reach.max() or 1.0) / (1 - (_LABEL_ROOM + bool(marked) * _MARK_ROOM) / share)
    axes.set_xlim(0, limit)
    axes.set_ylim(len(bars) - 0.45, -0.55)
    axes.set_yticks([])
    intervals = 2 if reach.max() >= 10_000 else 3  # long labels need room
    locator = MaxNLocator(intervals, steps=[1, 2, 5, 10])
    ticks = locator.tick_values(0, reach.max()) if reach.max() else []
    # none so far right that it meets the next panel's
    axes.set_xticks([tick for tick in ticks if 0 <= tick <= 0.88 * limit])
    number_axis(axes.xaxis)
    for row, (end, bar) in enumerate(zip(reach, bars.to_dict("records"), strict=True)):
        if bar["instead"]:
            look = {"style": "italic", "color": FAINT}
            note(axes, bar["instead"], (0.0, row), (3, 0), va="center", fontsize=7, **look)
            continue
        left = 0.0
        for name in parts:
            if bar[name] > 0:
                axes.barh(row, bar[name], left=left, height=0.74, linewidth=0.4, **fills[str(name)].look)
                left += bar[name]
        axes.barh(row, left, height=0.74, facecolor="none", edgecolor=INK, linewidth=0.5)
        if pd.notna(bar.get("low")):
            axes.plot([bar["low"], bar["high"]], [row, row], **_WHISKER, solid_capstyle="butt")
        on_bar = [name for name in marked if pd.notna(bar[name])]
        for name in on_bar:
            axes.plot([bar[name]], [row], **MARKERS[name], zorder=4)
        note(axes, bar["label"], (end, row), (4 + 4 * bool(on_bar), 0), va="center", fontsize=7)
