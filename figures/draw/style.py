"""How every figure looks, and how it is written so that the same input gives the same bytes."""

import io
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import matplotlib
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, Locator, NullLocator
from PIL import Image

from figures.draw.plotted import plotted_digest

T = TypeVar("T", bound=Hashable)

INK = "#222222"
FAINT = "#6f6f6f"
DPI = 180

_RC = Path(__file__).with_name("house.mplstyle")


@dataclass(frozen=True)
class Fill:
    """A colour and a hatch; lightness and hatch alone tell the fills of one set apart in grey."""

    colour: str
    hatch: str = ""
    edge: str = INK

    @property
    def look(self) -> dict[str, str]:
        return {"facecolor": self.colour, "edgecolor": self.edge, "hatch": self.hatch}


#: Categories of peak memory, from dark to light.
MEMORY_FILLS = {
    "parameters": Fill("#1d2f4f", edge="#ffffff"),
    "gradients": Fill("#7d4468", "////", edge="#ffffff"),
    "optimizer": Fill("#cf6f33", edge="#ffffff"),
    "activations": Fill("#8fc1d4", "\\\\", edge="#4f8396"),
    "temporaries": Fill("#f3e9bd", "xxx", edge="#8a7d45"),
    "unsplit": Fill("#ffffff", edge=INK),
}

#: Parts of an epoch's time; the arm in question stands out from its rivals.
TIME_FILLS = {
    "steps": Fill("#9db4c8", edge="#ffffff"),
    "steps, CoMERA": Fill("#1d2f4f", edge="#ffffff"),
    "rare": Fill("#ffffff", "//////", edge="#b3541e"),
}


def fill_handle(fill: Fill, words: str) -> Patch:
    """Return the entry of a legend for a fill."""
    edge = INK if fill.edge == "#ffffff" and not fill.hatch else fill.edge
    return Patch(facecolor=fill.colour, edgecolor=edge, hatch=fill.hatch * 2, linewidth=0.4, label=words)


@dataclass(frozen=True)
class Stroke:
    """A line and its marker; dashes and markers alone tell the strokes apart in grey."""

    colour: str
    dashes: str | tuple[float, tuple[float, ...]]
    marker: str
    filled: bool = True

    @property
    def dots(self) -> dict[str, Any]:
        face = self.colour if self.filled else "white"
        return {"color": self.colour, "marker": self.marker, "markerfacecolor": face}

    @property
    def look(self) -> dict[str, Any]:
        return {"linestyle": self.dashes, **self.dots}


DENSE_STROKE = Stroke("#c0561b", "-", "s", filled=False)
EARLY_STROKE = Stroke("#1d2f4f", "-", "o")

#: For whatever else is drawn, one after another.
STROKES = (
    Stroke("#6fa0cf", (0, (5, 1.5)), "^"),
    Stroke("#7d4468", (0, (5, 1.5, 1, 1.5)), "D"),
    Stroke("#0f4d3a", (0, (1.2, 1.2)), "v"),
    Stroke("#222222", (0, (3, 1, 1, 1, 1, 1)), "P", filled=False),
    Stroke("#6f6f6f", (0, (8, 2)), "X", filled=False),
    Stroke("#8a7d45", (0, (2, 2)), "<"),
    Stroke("#4f8396", (0, (6, 1, 1, 1)), ">", filled=False),
    Stroke("#a05a7c", (0, (1, 2.5)), "*"),
    Stroke("#3c3c78", (0, (4, 1, 1, 1, 1, 1)), "p"),
    Stroke("#5f8a3c", (0, (3, 3)), "d", filled=False),
    Stroke("#a8763e", (0, (7, 1.5, 2, 1.5)), "h"),
    Stroke("#222222", (0, (1, 1.6)), "x"),
)


def strokes(names: Sequence[T]) -> dict[T, Stroke]:
    """Return a stroke per name, the first one's the most prominent."""
    return dict(zip(names, cycle((EARLY_STROKE, *STROKES)), strict=False))


def stroke_handle(stroke: Stroke, words: str, **style: Any) -> Line2D:
    """Return the entry of a legend for a stroke."""
    return Line2D([], [], label=words, **{"markersize": 4, **stroke.look, **style})


#: How a vertical range or interval is drawn.
WHISKER: dict[str, Any] = {"color": INK, "linewidth": 1, "marker": "_", "markersize": 5}


def whiskers(axes: Any, places: Iterable[float], lows: Iterable[float], highs: Iterable[float]) -> None:
    """Draw a vertical range or interval at each place."""
    for place, low, high in zip(places, lows, highs, strict=True):
        axes.plot([place, place], [low, high], **WHISKER)


def whisker_handles(kinds: Sequence[str]) -> list[Line2D]:
    """Return the entry of a legend for whiskers that are of these kinds; none without any."""
    return [Line2D([], [], **WHISKER, label=" or ".join(kinds))] if kinds else []


def note(axes: Any, words: str, at: tuple[float, float], shift: tuple[float, float], **style: Any) -> None:
    """Words that stand so many points beside a place."""
    axes.annotate(words, at, xytext=shift, textcoords="offset points", **style)


def nothing_drawn(axes: Any, words: str) -> None:
    """Say on axes why they are empty."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", style="italic", color=FAINT)


def number_axis(axis: Any, locator: Locator | None = None, form: str = ",.10g") -> None:
    """Numbers in full on an axis, a logarithmic one too; with a locator, at its ticks alone."""
    if locator is not None:
        axis.set_major_locator(locator)
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:{form}}"))


def with_room(lows: pd.Series, highs: pd.Series, below: float, above: float) -> tuple[float, float]:
    """Return the ends of an axis for these bounds, with room at both ends as shares of their range."""
    low, high = lows.min(), highs.max()
    room = high - low or abs(high) or 1.0  # one point without bounds has no extent
    return low - below * room, high + above * room


@contextmanager
def house_style() -> Iterator[None]:
    """Draw with the house's settings and nobody's own; what was set before comes back."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(_RC, use_default_template=False))
        yield


def compact(svg: bytes) -> bytes:
    """Return an SVG without indentation, with short names of glyphs, and coordinates to a hundredth of a point.

    Text is most of a figure: each letter refers to a glyph and is moved to its place.
    """
    svg = re.sub(rb"^ +", b"", svg, flags=re.MULTILINE)
    svg = re.sub(rb"\bDejaVuSans(?:-([BO])[a-z]+)?-", rb"d\1", svg)
    svg = re.sub(rb'(<use [^>]*)transform="translate\(([\d.]+) 0\)"/>', rb'\1x="\2"/>', svg)
    return re.sub(rb"(\b[1-9]\d*\.\d\d)\d+", rb"\1", svg)


def to_bytes(figure: Figure, form: str) -> bytes:
    """Return a ``png`` or ``svg`` without date or program; an SVG has a digest of its data and is compact.

    A PNG has a palette of 256 colours: it is a third as large, and looks the same.
    """
    FigureCanvasAgg(figure)
    metadata: dict[str, Any] = {"Software": None}
    if form == "svg":
        digest = f"plotted data {plotted_digest(figure)}"
        metadata = {"Date": None, "Creator": None, "Description": digest}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, dpi=DPI, metadata=metadata, facecolor="white")
    if form == "svg":
        return compact(buffer.getvalue())
    picture, buffer = Image.open(buffer).convert("RGB").quantize(256), io.BytesIO()
    picture.save(buffer, "png", optimize=True, dpi=(DPI, DPI))
    return buffer.getvalue()
