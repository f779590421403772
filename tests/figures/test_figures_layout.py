"""Where things stand on a drawn page: inside it, apart from one another, and at the heights that were asked for."""

import io
import itertools
import re
from typing import Any

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.transforms import Bbox

from figures.draw import bars
from figures.draw.captions import Caption
from figures.draw.layout import WIDTH, panel_page
from figures.draw.style import DPI, TIME_FILLS, compact, house_style
from figures.text import NOT_RECORDED

LINES = ("A fact. " * 40, "another fact")


def _places(figure: Any, renderer: Any) -> list[Bbox]:
    """Of all texts and legends of the figure and its subfigures, and of all axes with what belongs to them."""
    found = [text.get_window_extent(renderer) for text in figure.texts if text.get_text()]
    found += [legend.get_window_extent(renderer) for legend in figure.legends]
    found += [axes.get_tightbbox(renderer) for axes in figure.get_children() if hasattr(axes, "get_yticklabels")]
    return [*found, *(box for one in figure.subfigs for box in _places(one, renderer))]


def _check(figure: Figure, axes: int, texts: int) -> None:
    """That nothing is cut off and no two things overlap."""
    boxes = _places(figure, FigureCanvasAgg(figure).get_renderer())
    assert len(boxes) == axes + texts
    for box in boxes:
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.width + 0.5
        assert box.y1 <= figure.bbox.height + 0.5
    assert not [pair for pair in itertools.combinations(boxes, 2) if Bbox.intersection(*pair) and _area(*pair) > 1]


def _area(one: Bbox, other: Bbox) -> float:
    both = Bbox.intersection(one, other)
    return both.width * both.height if both else 0.0


@pytest.mark.parametrize(
    "title", ["A title", "A title that is longer than the page is wide, as one with a result. " * 3]
)
@pytest.mark.parametrize("footnotes", [(), LINES])
@pytest.mark.parametrize(("rows", "entry"), [([[""]], "entry"), ([["a", "b", "c"], ["d"]], "an entry of many words")])
def test_panels_have_their_height_and_nothing_overlaps(
    rows: list[list[str]], entry: str, footnotes: tuple[str, ...], title: str
) -> None:
    with house_style():
        handles = [Patch(label=f"{entry * 2} {number}") for number in range(7)]
        page, found = panel_page(Caption(title, LINES, footnotes), rows, 2.0, handles, 4)
        axes = [one for line in found for one in line]
        for one in axes:
            one.set(xlabel="x", ylabel="a long label of an axis", ylim=(0, 1_000_000))
        figure = page.finish()
        _check(figure, axes=len(axes), texts=4 if footnotes else 3)
        assert figure.get_figwidth() == WIDTH
        assert [one.bbox.height / DPI for one in axes] == pytest.approx([2.0] * len(axes), abs=0.03)


def test_a_compact_svg_has_its_glyphs_and_their_places() -> None:
    with house_style():
        figure = Figure()
        figure.text(0.123456, 0.5, "plain Text 0123456789")
        figure.text(0.5, 0.25, "bold", weight="bold")
        figure.text(0.5, 0.75, "oblique", style="italic")
        FigureCanvasAgg(figure)
        figure.savefig(written := io.BytesIO(), format="svg")
    before, after = written.getvalue(), compact(written.getvalue())
    glyphs = dict(re.findall(rb'<path id="([^"]+)"(?: d="([^"]+)")?', after))
    original = dict(re.findall(rb'<path id="([^"]+)"(?: d="([^"]+)")?', before))
    assert len(original) == len(glyphs) > 20
    letters = re.findall(rb'<use xlink:href="#([^"]+)"(?: transform="translate\(([\d.]+) 0\)")?/>', before)
    short = re.findall(rb'<use xlink:href="#([^"]+)"(?: x="([\d.]+)")?/>', after)
    assert len(letters) == len(short) == len("plainText0123456789boldoblique") + 2  # with spaces
    for (old, at), (new, x) in zip(letters, short, strict=True):
        assert float(x or 0) == pytest.approx(float(at or 0), abs=0.01)
        ours, theirs = ([float(one) for one in re.findall(rb"-?[\d.]+", path)] for path in (glyphs[new], original[old]))
        assert ours == pytest.approx(theirs, abs=0.01)
    assert compact(after) == after


def test_where_nothing_is_timed_no_panel_is_empty() -> None:
    sheet = bars.BarPage("cpu", "comera")
    sheet.times(pd.DataFrame({"time_status": [NOT_RECORDED] * 2}), "step", {})
    assert sheet.bands == []


@pytest.mark.slow
@pytest.mark.parametrize("panels", [1, 4, 6])
@pytest.mark.parametrize("label", ["3.00", "12,345  123.45x †‡§"])
def test_bars_have_room_for_labels_and_nothing_overlaps(panels: int, label: str) -> None:
    bar = pd.DataFrame({"steps": [3.0] * 5, "low": 2.0, "high": 4.0, "label": label, "instead": ""})
    shown = {f"batch {number}": bar for number in range(panels)}
    band = bars.Band("made up", shown, TIME_FILLS, {"steps": "steps"})
    with house_style():
        rows = [f"row {number}" for number in range(5)]
        figure = bars.draw_bars(Caption("A title", LINES, LINES), rows, (band, band))
        lines = 2 * -(-panels // 4)
        _check(figure, axes=2 * panels, texts=3 + lines)
        heights = [axes.bbox.height / DPI for axes in figure.axes]
        assert heights == pytest.approx([heights[0]] * len(heights), abs=0.02)
