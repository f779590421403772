"""Panels of a quantity against the compression ratio: a curve per arm, the dense line, and where curves cross it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from bench.core.intervals import CONFIDENCE, Estimate
from figures.page.layout import INNER
from figures.page.style import DENSE_STROKE, FAINT, INK, Stroke, stroke_handle, strokes
from figures.records.crossover import Quotients, crossings
from figures.records.ratio_limits import RatioLimit

#: Height of a line at the foot of a panel that says why values are missing, as a part of the panel's.
_FOOT_LINE = 0.085

#: Inches of a panel that the labels beside its axes take at most.
_BESIDE = 0.75

_CROSSING: dict[str, Any] = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "color": INK, "linestyle": ""}
_MISSING: dict[str, Any] = {"marker": "x", "markersize": 4.5, "markeredgewidth": 1.2, "linestyle": ""}


@dataclass(frozen=True)
class Curve:
    """One arm in one panel, by ratio. Values in the panel's unit."""

    arm: str
    values: Quotients
    over_dense: Quotients
    missing: Mapping[float, RatioLimit | int]  # where there is no value: the limit, or the number of the reason
    allocated: Mapping[float, float]  # measured


@dataclass(frozen=True)
class Panel:
    title: str
    axis: str
    curves: tuple[Curve, ...]
    dense: Estimate | None  # its bounds are the lowest and the highest of its jobs
    dense_words: str  # how much that is
    dense_allocated: float | None


def legend(panels: Sequence[Panel], arms: Sequence[str]) -> list[Any]:
    """A handle for everything that the panels show."""
    handles: list[Any] = [stroke_handle(stroke, arm) for arm, stroke in strokes(arms).items()]
    handles.append(stroke_handle(DENSE_STROKE, "dense"))
    curves = [curve for panel in panels for curve in panel.curves]
    if any(panel.dense is not None and panel.dense.low != panel.dense.high for panel in panels):
        handles.append(Patch(facecolor=DENSE_STROKE.colour, alpha=0.18, label="dense, lowest to highest of its jobs"))
    if any(one.low != one.high for curve in curves for one in curve.values.values()):
        handles.append(
            Line2D([], [], color=INK, marker="_", markersize=5, linewidth=1, label=f"{CONFIDENCE:.0%} interval")
        )
    if any(crossings(curve.over_dense) for curve in curves):
        handles.append(Line2D([], [], **_CROSSING, label="crossover with dense: ratio beside it"))
    if any(curve.missing for curve in curves):
        handles.append(Line2D([], [], **_MISSING, color=INK, label="no value: out of reach, or reason below"))
    if any(curve.allocated for curve in curves):
        handles.append(Line2D([], [], marker="+", color=INK, linestyle="", markersize=6, label="allocated, measured"))
    return handles


def draw_panel(axes: Any, panel: Panel, arms: Sequence[str], ratios: Sequence[float]) -> None:
    """Fill one panel; ``ratios`` are those of the whole figure, so that all panels have one axis."""
    _ratio_axis(axes, ratios)
    axes.set_ylabel(panel.axis, fontsize=7.5, labelpad=2)
    axes.tick_params(axis="y", labelsize=7, pad=2)
    if panel.dense is None and not any(curve.values for curve in panel.curves):
        axes.set_yticks([])
        axes.text(0.5, 0.5, "nothing recorded", transform=axes.transAxes, ha="center", style="italic", color=FAINT)
    else:
        _value_axis(axes, panel)
    style = strokes(arms)
    _draw_dense(axes, panel)
    for number, curve in enumerate(panel.curves):
        _draw_curve(axes, curve, style[curve.arm])
        _draw_crossings(axes, panel, curve, above=number == 0)
        _draw_missing(axes, curve, style[curve.arm].colour, (number + 0.5) * _FOOT_LINE)


def _ratio_axis(axes: Any, ratios: Sequence[float]) -> None:
    first, last = 1.0, max([2.0, *ratios])
    axes.set_xscale("log")
    axes.set_xlim(first / 1.12, last * 1.12)
    columns = axes.get_subplotspec().get_gridspec().ncols
    inches = (INNER / columns - _BESIDE) / math.log(last / first * 1.12**2)
    ticks = [last]
    for ratio in sorted({first, *ratios} - {last}, key=lambda one: (one != first, -one)):
        if all(abs(math.log(ratio / other)) * inches >= _label_room(ratio, other) for other in ticks):
            ticks.append(ratio)
    axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("dense parameters / parameters", fontsize=7.5)


def _label_room(*ratios: float) -> float:
    """How far apart, in inches, two labels of the ratio axis must stand."""
    return 0.05 + 0.03 * sum(len(f"{ratio:g}") for ratio in ratios)


def _value_axis(axes: Any, panel: Panel) -> None:
    drawn = [panel.dense, *(one for curve in panel.curves for one in curve.values.values())]
    sizes = [panel.dense_allocated, *(size for curve in panel.curves for size in curve.allocated.values())]
    bounds = [bound for one in drawn if one is not None for bound in (one.low, one.value, one.high)]
    values = [value for value in [*bounds, *sizes] if value is not None]
    low, high = min(values), max(values)
    low, high = min(low, high / 4), max(high, low * 4)
    foot = _FOOT_LINE * max((number + 1 for number, curve in enumerate(panel.curves) if curve.missing), default=0)
    axes.set_yscale("log")
    axes.set_ylim(low / (high / low) ** (0.06 + 1.5 * foot), high * (high / low) ** 0.16)
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _draw_dense(axes: Any, panel: Panel) -> None:
    dense, stroke = panel.dense, DENSE_STROKE
    if dense is None:
        return
    axes.axhspan(dense.low, dense.high, color=stroke.colour, alpha=0.18, linewidth=0)
    axes.axhline(dense.value, color=stroke.colour, linewidth=1.2, zorder=2)
    axes.plot(
        [1.0], [dense.value], marker=stroke.marker, markersize=4.5, color=stroke.colour, markerfacecolor="white",
        zorder=4,
    )  # fmt: skip
    if panel.dense_allocated is not None:
        axes.plot([1.0], [panel.dense_allocated], marker="+", markersize=6, color=stroke.colour, zorder=4)
    axes.text(1.0, 0.98, f"dense: {panel.dense_words}", transform=axes.transAxes, ha="right", va="top", fontsize=6.5)


def _draw_curve(axes: Any, curve: Curve, stroke: Stroke) -> None:
    ratios = sorted(curve.values)
    for ratio in ratios:
        one = curve.values[ratio]
        if one.low is not None and one.high is not None and one.low < one.high:
            axes.plot([ratio] * 2, [one.low, one.high], color=INK, linewidth=0.9, marker="_", markersize=4, zorder=3)
    axes.plot(
        ratios, [curve.values[ratio].value for ratio in ratios], color=stroke.colour, linestyle=stroke.dashes,
        linewidth=1.3, marker=stroke.marker, markersize=4, markerfacecolor=stroke.face, zorder=4,
    )  # fmt: skip
    axes.plot(
        list(curve.allocated), list(curve.allocated.values()), marker="+", markersize=6, linestyle="",
        color=stroke.colour, zorder=4,
    )  # fmt: skip


def _draw_crossings(axes: Any, panel: Panel, curve: Curve, above: bool) -> None:
    """A ring on the dense line, with the ratio to its upper right or lower left, where falling curves leave room."""
    if panel.dense is None:
        return
    for ratio in crossings(curve.over_dense):
        axes.plot([ratio], [panel.dense.value], **_CROSSING, zorder=5)
        axes.annotate(
            f"{ratio:.3g}", (ratio, panel.dense.value), xytext=(4.5, 3.5) if above else (-4.5, -3.5),
            textcoords="offset points", ha="left" if above else "right", va="bottom" if above else "top",
            fontsize=7, fontweight="bold", zorder=6,
        )  # fmt: skip


def _draw_missing(axes: Any, curve: Curve, colour: str, height: float) -> None:
    """A cross at the foot of the panel for every ratio without a value, with the limit or the number of the reason."""
    place = axes.get_xaxis_transform()
    axes.plot(list(curve.missing), [height] * len(curve.missing), **_MISSING, color=colour, transform=place, zorder=5)

    def write(words: str, ratio: float, side: int) -> None:
        axes.annotate(
            words, (ratio, height), xycoords=place, xytext=(5 * side, 0), textcoords="offset points",
            ha="left" if side > 0 else "right", va="center", fontsize=6.5, zorder=5,
        )  # fmt: skip

    for ratio, why in curve.missing.items():
        if isinstance(why, int):
            write(f"({why})", ratio, 1)
    beyond = {ratio: why for ratio, why in curve.missing.items() if isinstance(why, RatioLimit)}
    first, last = axes.get_xlim()
    for side, pick in (("most", min), ("least", max)):
        ratios = [ratio for ratio, limit in beyond.items() if limit.side == side]
        if ratios:
            at_right = math.log(pick(ratios) / first) > 0.6 * math.log(last / first)
            write(f"{curve.arm}: {beyond[pick(ratios)]}", pick(ratios), -1 if at_right else 1)
