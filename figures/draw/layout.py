"""A page: title and facts on top, parts below one another, footnotes; matplotlib's constrained layout places them."""

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import Bbox

from figures.draw.captions import Caption
from figures.draw.style import DPI, INK

WIDTH, _PAD = 9.0, 0.07  # inches; the latter around everything that is placed

#: The width, in inches, of a panel that has its line for itself and nothing beside its axes.
INNER = WIDTH - 2 * _PAD

_WRAP, _TITLE_WRAP = 152, 98  # characters to a line
_DIGITS = 5


def wrapped(lines: Sequence[str]) -> str:
    """Break lines to the page's width: matplotlib's own wrapping neither indents nor leaves a margin."""
    return "\n".join(part for line in lines for part in textwrap.wrap(line, _WRAP, subsequent_indent="   "))


class Paper:
    """A page with its title and facts on top, so many parts below one another, and its footnotes at the end.

    ``body`` is the subfigure of all parts, ``parts`` those of single ones. The page becomes as high as it takes for the
    axes to have the heights that :meth:`panels` was given.
    """

    def __init__(self, title: str, facts: Sequence[str], footnotes: Sequence[str], parts: int = 1) -> None:
        engine = ConstrainedLayoutEngine(w_pad=_PAD, h_pad=_PAD, wspace=0, hspace=0)
        self.figure = Figure(figsize=(WIDTH, WIDTH), dpi=DPI, layout=engine)
        style: dict[str, Any] = {"x": _PAD / WIDTH, "ha": "left", "linespacing": 1.35}
        self.figure.suptitle(textwrap.fill(title, _TITLE_WRAP), fontsize=11, fontweight="bold", **style)
        self.figure.supxlabel(wrapped(footnotes), fontsize=7, color=INK, **style)
        below_title: Any = self.figure.subfigures()
        below_title.suptitle(wrapped(facts), fontsize=7.5, **style)
        self.body: Any = below_title.subfigures()
        self._grid = GridSpec(max(parts, 1), 1, figure=self.body)
        self.parts = [self.body.add_subfigure(self._grid[part]) for part in range(self._grid.nrows)]
        self._heights: dict[int, tuple[Any, float, int]] = {}

    def panels(self, part: int, height: float, columns: int = 1, rows: int = 1, widths: Any = None) -> list[list[Any]]:
        """Return the axes of a part, row by row, each ``height`` inches high and of these relative ``widths``."""
        axes = self.parts[part].subplots(rows, columns, squeeze=False, width_ratios=widths)
        self._heights[part] = (axes[0, 0], height, rows)
        return [list(row) for row in axes]

    def finish(self) -> Figure:
        """Lay out what is on the page, then once more with the height that the axes lack or have too much."""
        texts = (*self.figure.texts, *self.figure.subfigs[0].texts)
        lines = sum(text.get_text().count("\n") for text in texts)
        axes_heights = sum((height + 1) * rows for _, height, rows in self._heights.values())
        self.figure.set_figheight(3 + 0.16 * lines + axes_heights)
        self._lay_out()
        old = [part.bbox.height / DPI for part in self.parts]
        new = [_PAD] * len(old)
        for part, (axes, height, rows) in self._heights.items():
            new[part] = round(old[part] + rows * (height - axes.bbox.height / DPI), _DIGITS)
        self._grid.set_height_ratios(new)
        self.figure.set_figheight(round(self.figure.get_figheight() + sum(new) - sum(old), 2))
        self._lay_out()
        self.figure.set_layout_engine("none")
        _round_places(self.figure)
        for axes in self.figure.axes:
            axes.set_position(Bbox(axes.get_position(original=True).get_points().round(_DIGITS)))
        return self.figure

    def _lay_out(self) -> None:
        engine = self.figure.get_layout_engine()
        assert engine is not None
        engine.execute(self.figure)


def _round_places(figure: Any) -> None:
    """Round places, since the solver of the layout may differ in the last bits from run to run."""
    for text in figure.texts:
        text.set_position([round(place, _DIGITS) for place in text.get_position()])
    for one in figure.subfigs:
        one.bbox_relative.set_points(one.bbox_relative.get_points().round(_DIGITS))
        _round_places(one)


def legend(
    figure: Any, handles: Sequence[Any], columns: int, title: str = "", side: str = "left", **style: Any
) -> None:
    """Draw a legend above the axes of a subfigure, with the heading as its title.

    On a line are so many entries, or as many as fit.
    """
    for fewer in range(columns, 0, -1):
        drawn = figure.legend(
            handles=handles,
            loc=f"outside upper {side}",
            ncols=fewer,
            title=title,
            alignment="left",
            borderpad=0,
            title_fontproperties={"weight": "bold", "size": 8.5},
            borderaxespad=_PAD * 72 / 7,
            labelspacing=0.35,
            **style,
        )
        if fewer == 1 or drawn.get_window_extent().width <= INNER * DPI:
            return
        drawn.remove()


def panel_page(
    caption: Caption,
    rows: Sequence[Sequence[str]],
    height: float,
    handles: Sequence[Any],
    columns: int,
    reasons: Sequence[str] = (),
) -> tuple[Paper, list[list[Any]]]:
    """Return a page of panels, and their axes by row.

    Args:
        caption: of the page.
        rows: the titles of the panels, row by row.
        height: of a panel in inches.
        handles, columns: the legend that all panels share, with so many entries on a line.
        reasons: why values are missing, numbered.
    """
    footnotes = (*reasons, *caption.of_picture, *caption.notes)
    page = Paper(caption.title, caption.facts, footnotes, len(rows))
    if handles:
        legend(page.body, handles, columns, handlelength=3.2)
    found = [page.panels(part, height, len(names))[0] for part, names in enumerate(rows)]
    for axes, names in zip(found, rows, strict=True):
        for one, name in zip(axes, names, strict=True):
            one.set_title(name, loc="left", fontweight="bold")
            one.grid(visible=True, axis="both")
    return page, found
