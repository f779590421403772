"""Panels of a quantity against the compression ratio: a curve per arm, the dense line, and where curves cross it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, LogLocator

from bench.core.intervals import Estimate
from figures.page import style
from figures.page.layout import INNER
from figures.page.style import DENSE_STROKE, INK, Stroke, stroke_handle, strokes
from figures.records.crossover import Quotients, crossings
from figures.records.reach import Reach

#: Height of a line at the foot of a panel that says why values are missing, as a part of the panel's.
_FOOT_LINE = 0.085

#: Inches of a panel that the labels beside its axes take at most.
_BESIDE = 0.75

_CROSSING: dict[str, Any] = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "color": INK, "linestyle": ""}
_MISSING: dict[str, Any] = {"marker": "x", "markersize": 4.5, "markeredgewidth": 1.2, "linestyle": ""}
_ALLOCATED: dict[str, Any] = {"marker": "+", "markersize": 6, "linestyle": ""}


@dataclass(frozen=True)
class Curve:
    """One arm in one panel, by ratio. Values in the panel's unit."""

    arm: str
    values: Quotients
    over_dense: Quotients
    missing: Mapping[float, Reach | int]  # where there is no value: the limit, or the number of the reason
    allocated: Mapping[float, float]  # measured


@dataclass(frozen=True)
class RatioPanel:
    """One panel over the ratio: a curve per arm, and dense training as a line."""

    title: str
    axis: str
    curves: tuple[Curve, ...]
    dense: Estimate | None  # its bounds are the lowest and the highest of its jobs
    dense_words: str  # how much that is
    dense_allocated: float | None


def legend(panels: Sequence[RatioPanel], arms: Sequence[str]) -> list[Any]:
    """Return a handle for everything that the panels show."""
    handles: list[Any] = [stroke_handle(stroke, arm) for arm, stroke in strokes(arms).items()]
    handles.append(stroke_handle(DENSE_STROKE, "dense"))
    curves = [curve for panel in panels for curve in panel.curves]
    if any(panel.dense is not None and panel.dense.low != panel.dense.high for panel in panels):
        handles.append(Patch(facecolor=DENSE_STROKE.colour, alpha=0.18, label="dense, lowest to highest of its jobs"))
    handles += style.bounds_handles(one for curve in curves for one in curve.values.values())
    if any(crossings(curve.over_dense) for curve in curves):
        handles.append(Line2D([], [], **_CROSSING, label="crossover with dense: ratio beside it"))
    if any(curve.missing for curve in curves):
        handles.append(Line2D([], [], **_MISSING, color=INK, label="no value: out of reach, or reason below"))
    if any(curve.allocated for curve in curves):
        handles.append(Line2D([], [], **_ALLOCATED, color=INK, label="allocated, measured"))
    return handles


def draw_panel(axes: Any, panel: RatioPanel, arms: Sequence[str], ratios: Sequence[float]) -> None:
    """Fill one panel; ``ratios`` are those of the whole figure, so that all panels have one axis."""
    _ratio_axis(axes, ratios)
    axes.set_ylabel(panel.axis, fontsize=7.5, labelpad=2)
    axes.tick_params(axis="y", labelsize=7, pad=2)
    if panel.dense is None and not any(curve.values for curve in panel.curves):
        axes.set_yticks([])
        axes.text(
            0.5, 0.5, "nothing recorded", transform=axes.transAxes, ha="center", style="italic", color=style.FAINT
        )
    else:
        _value_axis(axes, panel)
    _draw_dense(axes, panel)
    for number, curve in enumerate(panel.curves):
        stroke = strokes(arms)[curve.arm]
        _draw_curve(axes, curve, stroke)
        _draw_crossings(axes, panel, curve, _BESIDE_RING[min(number, len(_BESIDE_RING) - 1)])
        _draw_missing(axes, curve, stroke.colour, (number + 0.5) * _FOOT_LINE)


def _ratio_axis(axes: Any, ratios: Sequence[float]) -> None:
    first, last = 1.0, max([2.0, *ratios])
    axes.set_xscale("log")
    axes.set_xlim(first / 1.12, last * 1.12)
    columns = axes.get_subplotspec().get_gridspec().ncols
    inches = (INNER / columns - _BESIDE) / math.log(last / first * 1.12**2)

    def fit(ratio: float, other: float) -> bool:
        """Return whether the labels of two ratios find room beside one another."""
        return abs(math.log(ratio / other)) * inches >= 0.05 + 0.03 * len(f"{ratio:g}{other:g}")

    ticks = [last]
    for ratio in sorted({first, *ratios} - {last}, key=lambda one: (one != first, -one)):
        ticks += [ratio] if all(fit(ratio, other) for other in ticks) else []
    style.number_axis(axes.xaxis, FixedLocator(sorted(ticks)), "g")
    axes.set_xlabel("dense parameters / parameters", fontsize=7.5)


def _value_axis(axes: Any, panel: RatioPanel) -> None:
    drawn = [panel.dense, *(one for curve in panel.curves for one in curve.values.values())]
    sizes = [panel.dense_allocated, *(size for curve in panel.curves for size in curve.allocated.values())]
    bounds = [bound for one in drawn if one is not None for bound in (one.low, one.value, one.high)]
    values = [value for value in [*bounds, *sizes] if value is not None]
    low, high = min(values), max(values)
    low, high = min(low, high / 4), max(high, low * 4)
    foot = _FOOT_LINE * max((number + 1 for number, curve in enumerate(panel.curves) if curve.missing), default=0)
    axes.set_yscale("log")
    axes.set_ylim(low / (high / low) ** (0.06 + 1.5 * foot), high * (high / low) ** 0.16)
    style.number_axis(axes.yaxis, LogLocator(10, subs=(1, 2, 5)))


def _draw_dense(axes: Any, panel: RatioPanel) -> None:
    dense, stroke = panel.dense, DENSE_STROKE
    if dense is None:
        return
    axes.axhspan(dense.low, dense.high, color=stroke.colour, alpha=0.18, linewidth=0)
    axes.axhline(dense.value, color=stroke.colour, linewidth=1.2, zorder=2)
    axes.plot([1.0], [dense.value], **stroke.dots, markersize=4.5, zorder=4)
    if panel.dense_allocated is not None:
        axes.plot([1.0], [panel.dense_allocated], **_ALLOCATED, color=stroke.colour, zorder=4)
    axes.text(1.0, 0.98, f"dense: {panel.dense_words}", transform=axes.transAxes, ha="right", va="top", fontsize=6.5)


def _draw_curve(axes: Any, curve: Curve, stroke: Stroke) -> None:
    ratios = sorted(curve.values)
    for ratio in ratios:
        one = curve.values[ratio]
        if one.low is not None and one.high is not None and one.low < one.high:
            axes.plot([ratio] * 2, [one.low, one.high], color=INK, linewidth=0.9, marker="_", markersize=4, zorder=3)
    values = [curve.values[ratio].value for ratio in ratios]
    axes.plot(ratios, values, linewidth=1.3, markersize=4, zorder=4, **stroke.look)
    axes.plot(list(curve.allocated), list(curve.allocated.values()), **_ALLOCATED, color=stroke.colour, zorder=4)


#: Where a curve's ratio is written beside its ring, by the curve's number: where falling curves and other ratios leave
#: room. A shift in points, and what of the text is put there.
_BESIDE_RING = (((4.5, 3.5), "left", "bottom"), ((-4.5, -3.5), "right", "top"), ((4.5, -3.5), "left", "top"))


def _draw_crossings(axes: Any, panel: RatioPanel, curve: Curve, place: tuple[tuple[float, float], str, str]) -> None:
    """Draw a ring on the dense line, with the ratio beside it."""
    if panel.dense is None:
        return
    for ratio in crossings(curve.over_dense):
        axes.plot([ratio], [panel.dense.value], **_CROSSING, zorder=5)
        shift, ha, va = place
        look = {"ha": ha, "va": va, "fontsize": 7, "fontweight": "bold", "zorder": 6}
        style.note(axes, f"{ratio:.3g}", (ratio, panel.dense.value), shift, **look)


def _draw_missing(axes: Any, curve: Curve, colour: str, height: float) -> None:
    """Draw a cross at the foot for every ratio without a value, with the limit or the number of the reason."""
    place = axes.get_xaxis_transform()
    axes.plot(list(curve.missing), [height] * len(curve.missing), **_MISSING, color=colour, transform=place, zorder=5)

    def write(words: str, ratio: float, side: int) -> None:
        look = {"xycoords": place, "ha": "left" if side > 0 else "right", "va": "center", "fontsize": 6.5, "zorder": 5}
        style.note(axes, words, (ratio, height), (5 * side, 0), **look)

    for ratio, why in curve.missing.items():
        if isinstance(why, int):
            write(f"({why})", ratio, 1)
    beyond = {ratio: why for ratio, why in curve.missing.items() if isinstance(why, Reach)}
    first, last = axes.get_xlim()
    for side, pick in (("most", min), ("least", max)):
        ratios = [ratio for ratio, limit in beyond.items() if limit.side == side]
        if ratios:
            at_right = math.log(pick(ratios) / first) > 0.6 * math.log(last / first)
            write(f"{curve.arm}: {beyond[pick(ratios)]}", pick(ratios), -1 if at_right else 1)
