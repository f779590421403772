"""A page with panels side by side, in one row or several: title and facts on top, a legend, the panels, footnotes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from figures.bars import wrapped
from figures.style import INK

# The page, in inches.
_WIDTH, _MARGIN = 9.0, 0.1
_TITLE, _LINE, _GAP = 0.26, 0.15, 0.1
_PANEL_TITLE, _BELOW = 0.24, 0.44
_LEFT, _BETWEEN, _RIGHT = 0.52, 0.62, 0.12


def sheet(
    title: str,
    facts: Sequence[str],
    panels: Sequence[str],
    footnotes: Sequence[str],
    height: float,
    legend: Sequence[Any],
    legend_columns: int,
) -> tuple[Figure, list[Any]]:
    """An empty page with one row of panels: :func:`sheet_of_rows` with the axes of that row."""
    figure, [axes] = sheet_of_rows(title, facts, [panels], footnotes, height, legend, legend_columns)
    return figure, axes


def sheet_of_rows(
    title: str,
    facts: Sequence[str],
    rows: Sequence[Sequence[str]],
    footnotes: Sequence[str],
    height: float,
    legend: Sequence[Any],
    legend_columns: int,
) -> tuple[Figure, list[list[Any]]]:
    """An empty page and its axes, row by row from top to bottom, each one axes per panel title from left to right.

    Args:
        title, facts, footnotes: what is written above and below.
        rows: the titles of the panels of each row; an empty title leaves its line blank.
        height: of a panel, in inches.
        legend: handles with labels, shared by all panels.
        legend_columns: how many of them stand beside one another.
    """
    above, below = wrapped(facts), wrapped(footnotes)
    legend_lines = -(-len(legend) // legend_columns)
    total = 2 * _MARGIN + _TITLE + _LINE * (len(above) + len(below) + legend_lines) + 2 * _GAP
    for _ in rows:
        total = total + _PANEL_TITLE + height + _BELOW
    figure = Figure(figsize=(_WIDTH, total))
    y = total - _MARGIN
    figure.text(_MARGIN / _WIDTH, y / total, title, va="top", ha="left", fontsize=11, fontweight="bold")
    y -= _TITLE
    for line in above:
        figure.text(_MARGIN / _WIDTH, y / total, line, va="top", ha="left", fontsize=7.5)
        y -= _LINE
    y -= _GAP
    if legend:
        figure.legend(
            handles=legend, loc="upper left", bbox_to_anchor=(_MARGIN / _WIDTH, y / total), ncol=legend_columns,
            borderpad=0.0, borderaxespad=0.0, labelspacing=0.35, handlelength=3.2,
        )  # fmt: skip
    axes, above_row = [], _LINE * legend_lines + _GAP
    for panels in rows:
        y -= above_row + _PANEL_TITLE + height
        axes.append(_row(figure, panels, y / total, height / total))
        above_row = _BELOW
    y -= _BELOW
    for line in below:
        figure.text(_MARGIN / _WIDTH, y / total, line, va="top", ha="left", fontsize=7, color=INK)
        y -= _LINE
    return figure, axes


def _row(figure: Figure, panels: Sequence[str], bottom: float, height: float) -> list[Any]:
    """Axes beside one another; ``bottom`` and ``height`` as parts of the page."""
    width = (_WIDTH - _LEFT - _RIGHT - _BETWEEN * (len(panels) - 1)) / len(panels)
    axes = []
    for number, name in enumerate(panels):
        left = _LEFT + number * (width + _BETWEEN)
        one: Any = figure.add_axes((left / _WIDTH, bottom, width / _WIDTH, height))
        one.grid(visible=True, axis="both")
        if name:
            one.set_title(name, loc="left", fontweight="bold")
        axes.append(one)
    return axes
