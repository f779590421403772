"""A page with panels side by side: title and facts on top, a legend, the panels, footnotes."""

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
    """An empty page and its axes, one per panel title, ``height`` inches tall, from left to right.

    Args:
        title, facts, footnotes: what is written above and below.
        panels: their titles; an empty one leaves its line blank.
        height: of a panel, in inches.
        legend: handles with labels, shared by all panels.
        legend_columns: how many of them stand beside one another.
    """
    above, below = wrapped(facts), wrapped(footnotes)
    legend_lines = -(-len(legend) // legend_columns)
    fixed = 2 * _MARGIN + _TITLE + _LINE * (len(above) + len(below) + legend_lines) + 2 * _GAP
    total = fixed + _PANEL_TITLE + height + _BELOW
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
    y -= _LINE * legend_lines + _GAP + _PANEL_TITLE + height
    width = (_WIDTH - _LEFT - _RIGHT - _BETWEEN * (len(panels) - 1)) / len(panels)
    axes = []
    for number, name in enumerate(panels):
        left = _LEFT + number * (width + _BETWEEN)
        box = (left / _WIDTH, y / total, width / _WIDTH, height / total)
        one: Any = figure.add_axes(box)
        one.grid(visible=True, axis="both")
        if name:
            one.set_title(name, loc="left", fontweight="bold")
        axes.append(one)
    y -= _BELOW
    for line in below:
        figure.text(_MARGIN / _WIDTH, y / total, line, va="top", ha="left", fontsize=7, color=INK)
        y -= _LINE
    return figure, axes
