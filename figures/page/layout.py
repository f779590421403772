"""The geometry of every page, in inches: filled from top to bottom, of a height that follows from what is on it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures.page.style import FAINT, INK

WIDTH, MARGIN = 9.0, 0.1

#: Between the margins.
INNER = WIDTH - 2 * MARGIN

#: Height of a line of text.
LINE = 0.15

_TITLE = 0.26
_WRAP = 152  # characters to a line


def wrapped(lines: Sequence[str], width: int = _WRAP) -> list[str]:
    """Lines broken to the page's width."""
    return [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="   ")]


class Page:
    """A page with its title and facts on top and its footnotes at the end of what is put between.

    Args:
        title, facts, footnotes: what is written above and below.
        body, lines: inches of the parts that stand between, and the lines of text that these have besides.
        gap: inches below the facts.

    ``y`` is how far from the bottom of the page, in inches, the filling has got.
    """

    def __init__(
        self,
        title: str,
        facts: Sequence[str],
        footnotes: Sequence[str],
        *body: float,
        lines: int = 1,
        gap: float = LINE,
    ) -> None:
        above, self._below = wrapped(facts), wrapped(footnotes)
        self.height = 2 * MARGIN + _TITLE + LINE * (len(above) + lines + len(self._below))
        for part in body:
            self.height += part
        self.y = self.height - MARGIN
        self.figure = Figure(figsize=(WIDTH, self.height))
        self.text(title, _TITLE, fontsize=11, fontweight="bold")
        for line in above:
            self.text(line, LINE, fontsize=7.5)
        self.y -= gap

    def finish(self) -> Figure:
        """Write the footnotes."""
        for line in self._below:
            self.text(line, LINE, fontsize=7, color=INK)
        return self.figure

    def text(self, line: str, drop: float = 0.0, left: float = 0.0, **style: Any) -> None:
        """A line of text whose top is at ``y``; then go down by ``drop``."""
        at = ((MARGIN + left) / WIDTH, self.y / self.height)
        self.figure.text(*at, line, **{"va": "top", "ha": "left", **style})
        self.y -= drop

    def legend(self, handles: Sequence[Any], columns: int, left: float = 0.0, length: float = 2.2) -> None:
        """A legend whose top is at ``y``, with so many entries on a line; ``length`` is that of a line in it."""
        anchor = ((MARGIN + left) / WIDTH, self.y / self.height)
        self.figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=anchor, ncol=columns, borderpad=0.0, borderaxespad=0.0,
            labelspacing=0.35, handlelength=length,
        )  # fmt: skip

    def rule(self, above: float) -> None:
        """A thin line across the page, so much above ``y``."""
        at = (MARGIN / WIDTH, (self.y + above) / self.height)
        self.figure.add_artist(Rectangle(at, INNER / WIDTH, 0, color=FAINT, linewidth=0.6))

    def axes(self, left: float, width: float, height: float) -> Any:
        """Axes from ``y`` downward."""
        box = ((MARGIN + left) / WIDTH, (self.y - height) / self.height, width / WIDTH, height / self.height)
        return self.figure.add_axes(box)

    def panel(self, left: float, width: float, height: float, title: str) -> Any:
        """Axes with a title that stand on ``y``, so far from the left edge of the page."""
        box = (left / WIDTH, self.y / self.height, width / WIDTH, height / self.height)
        axes: Any = self.figure.add_axes(box)
        if title:
            axes.set_title(title, loc="left", fontweight="bold")
        return axes

    def canvas(self, left: float, width: float, height: float) -> Any:
        """Bare axes from ``y`` downward, one unit of which is an inch."""
        axes = self.axes(left, width, height)
        axes.set_xlim(0, width)
        axes.set_ylim(0, height)
        axes.set_axis_off()
        return axes


# Panels side by side: the room around them.
_PANEL_TITLE, _BELOW, _GAP = 0.24, 0.44, 0.1
_LEFT, _BETWEEN, _RIGHT = 0.52, 0.62, 0.12


def panel_page(
    title: str,
    facts: Sequence[str],
    rows: Sequence[Sequence[str]],
    footnotes: Sequence[str],
    height: float,
    legend: Sequence[Any],
    legend_columns: int,
) -> tuple[Figure, list[list[Any]]]:
    """A page of panels side by side, and their axes: row by row from top to bottom, from left to right.

    Args:
        title, facts, footnotes: what is written above and below.
        rows: the titles of the panels of each row; an empty title leaves its line blank.
        height: of a panel, in inches.
        legend: handles with labels, shared by all panels.
        legend_columns: how many of them stand beside one another.
    """
    lines = -(-len(legend) // legend_columns)
    body = [2 * _GAP, *([_PANEL_TITLE, height, _BELOW] * len(rows))]
    page = Page(title, facts, footnotes, *body, lines=lines, gap=_GAP)
    if legend:
        page.legend(legend, legend_columns, length=3.2)
    axes, above = [], LINE * lines + _GAP
    for panels in rows:
        page.y -= above + _PANEL_TITLE + height
        axes.append(_row(page, panels, height))
        above = _BELOW
    page.y -= _BELOW
    return page.finish(), axes


def _row(page: Page, panels: Sequence[str], height: float) -> list[Any]:
    """Axes beside one another, from ``y`` upward."""
    width = (WIDTH - _LEFT - _RIGHT - _BETWEEN * (len(panels) - 1)) / len(panels)
    axes = []
    for number, name in enumerate(panels):
        axes.append(page.panel(_LEFT + number * (width + _BETWEEN), width, height, name))
        axes[-1].grid(visible=True, axis="both")
    return axes
