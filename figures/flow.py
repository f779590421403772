"""A page that is filled from top to bottom, in inches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures.bars import wrapped
from figures.style import FAINT, INK

WIDTH, MARGIN = 9.0, 0.1

#: Between the margins.
INNER = WIDTH - 2 * MARGIN

_TITLE, _LINE = 0.26, 0.15


class Flow:
    """A page of known height with its title and facts on top and its footnotes at the end of what is put between.

    Args:
        title, facts, footnotes: what is written above and below.
        body: inches that everything between takes.

    ``y`` is how far from the bottom of the page, in inches, the filling has got.
    """

    def __init__(self, title: str, facts: Sequence[str], footnotes: Sequence[str], body: float) -> None:
        above, self._below = wrapped(facts), wrapped(footnotes)
        self.height = 2 * MARGIN + _TITLE + _LINE * (len(above) + 1 + len(self._below)) + body
        self.y = self.height - MARGIN
        self.figure = Figure(figsize=(WIDTH, self.height))
        self.text(title, _TITLE, fontsize=11, fontweight="bold")
        for line in above:
            self.text(line, _LINE, fontsize=7.5)
        self.y -= _LINE

    def finish(self) -> Figure:
        """Write the footnotes."""
        for line in self._below:
            self.text(line, _LINE, fontsize=7, color=INK)
        return self.figure

    def text(self, line: str, drop: float = 0.0, left: float = 0.0, **style: Any) -> None:
        """A line of text whose top is at ``y``; then go down by ``drop``."""
        at = ((MARGIN + left) / WIDTH, self.y / self.height)
        self.figure.text(*at, line, **{"va": "top", "ha": "left", **style})
        self.y -= drop

    def legend(self, handles: Sequence[Any], columns: int, left: float = 0.0) -> None:
        """A legend whose top is at ``y``, with so many entries on a line."""
        anchor = ((MARGIN + left) / WIDTH, self.y / self.height)
        self.figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=anchor, ncol=columns, borderpad=0.0, borderaxespad=0.0,
            labelspacing=0.35, handlelength=2.2,
        )  # fmt: skip

    def rule(self, above: float) -> None:
        """A thin line across the page, so much above ``y``."""
        at = (MARGIN / WIDTH, (self.y + above) / self.height)
        self.figure.add_artist(Rectangle(at, INNER / WIDTH, 0, color=FAINT, linewidth=0.6))

    def axes(self, left: float, width: float, height: float) -> Any:
        """Axes from ``y`` downward."""
        box = ((MARGIN + left) / WIDTH, (self.y - height) / self.height, width / WIDTH, height / self.height)
        return self.figure.add_axes(box)

    def canvas(self, left: float, width: float, height: float) -> Any:
        """Bare axes from ``y`` downward, one unit of which is an inch."""
        axes = self.axes(left, width, height)
        axes.set_xlim(0, width)
        axes.set_ylim(0, height)
        axes.set_axis_off()
        return axes
