"""Contraction plans as tensor diagrams: the network with its legs, and the products as binary trees.

A circle is a core, a line between two tensors a dimension they share, a line that ends freely one of the result. The
number on a line is that of the product that sums over it. Axes are in inches, so that nothing depends on the page.
"""

import math
from typing import Any

import pandas as pd
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from figures.draw.style import FAINT, INK
from figures.frame import each

_CORE, _BADGE = 0.105, 0.062
_SMALL, _TINY = 6.0, 5.0

#: How activations and cores merged into one segment look.
_X: dict[str, Any] = {"facecolor": "#f3e9bd", "edgecolor": INK, "linewidth": 0.9, "zorder": 3}
_SEGMENT: dict[str, Any] = {"facecolor": "#dfe7ef", "edgecolor": FAINT, "linewidth": 0.7, "zorder": 0}

#: Height that the diagrams need, in inches.
HEIGHT = 1.36

Point = tuple[float, float]


def _line(axes: Any, *points: Point) -> None:
    axes.plot(*zip(*points, strict=True), color=INK, linewidth=0.9, zorder=1, solid_capstyle="butt")


def _write(axes: Any, at: Point, text: str, size: float = _SMALL, **style: Any) -> None:
    axes.text(*at, text, fontsize=size, **{"ha": "center", "va": "center", "zorder": 5, **style})


def badge(axes: Any, at: Point, number: int) -> None:
    """Draw the number of a product."""
    axes.add_patch(Circle(at, _BADGE, facecolor=INK, edgecolor="white", linewidth=0.5, zorder=6))
    style = {"color": "white", "va": "center_baseline", "fontweight": "bold"}
    _write(axes, at, str(number), _TINY, zorder=7, **style)


def _tensor(axes: Any, at: Point, name: str) -> None:
    axes.add_patch(Circle(at, _CORE, facecolor="white", edgecolor=INK, linewidth=0.9, zorder=3))
    _write(axes, at, name, _SMALL - 0.5 * (len(name) > 2))


def _box(axes: Any, left: float, right: float, middle: float, half: float, **style: Any) -> None:
    shape = f"round,pad=0,rounding_size={half}"
    axes.add_patch(FancyBboxPatch((left, middle - half), right - left, 2 * half, boxstyle=shape, **style))


def summed_by(steps: pd.DataFrame, half: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return the product that sums over each bond, by the core before it, and over each in-mode, by its core.

    >>> from figures.stats.plans import products_of
    >>> merge = {"left": "G1", "right": "G2", "result": "G1-2", "rows": 4, "inner": 3, "columns": 6}
    >>> product = {"left": "x", "right": "G1-2", "result": "y", "rows": 5, "inner": 4, "columns": 6}
    >>> summed_by(products_of([merge, product]), half=1)
    ({1: 1}, {1: 2})
    """
    bonds: dict[int, int] = {}
    modes: dict[int, int] = {}
    for one in each(steps[steps["pass"] == "forward"]):
        first, last = _span(one.right)
        if first > 1:
            bonds[first - 1] = one.number
        if not one.left.startswith("G"):
            modes |= dict.fromkeys(range(first, min(last, half) + 1), one.number)
    return bonds, modes


def draw_network(axes: Any, layer: Any, steps: pd.DataFrame, width: float) -> None:
    """Draw the chain of cores above, the activations ``x`` below their in-modes, with the order of contraction."""
    half = len(layer.in_modes)
    step = width / (2 * half)
    y, y_x, foot = 0.78, 0.28, 0.4
    xs = {core: (core - 0.5) * step for core in range(1, 2 * half + 1)}
    bonds, modes = summed_by(steps, half)
    for first, last in layer.segments:
        if first < last:
            left, right = xs[first + 1], xs[last + 1]
            _box(axes, left - 0.13, right + 0.13, y + 0.03, 0.2, linestyle=(0, (3, 1.5)), **_SEGMENT)
            _write(axes, ((left + right) / 2, y + 0.33), f"G{first + 1}-{last + 1}", color=INK)
    for bond, rank in enumerate(layer.ranks, start=1):
        _line(axes, (xs[bond], y), (xs[bond + 1], y))
        _write(axes, (bond * step, y + 0.135), f"{rank:,}", _TINY + 0.5)
        badge(axes, (bond * step, y), bonds[bond])
    for core, mode in enumerate((*layer.in_modes, *layer.out_modes), start=1):
        x = xs[core]
        _line(axes, (x, y), (x, y_x if core <= half else foot))
        if core <= half:
            middle = (y + y_x) / 2 - 0.03
            badge(axes, (x, middle), modes[core])
            _write(axes, (x + 0.08, middle), f"{mode:,}", _TINY + 0.5, ha="left")
        else:
            _write(axes, (x, foot - 0.07), f"{mode:,}", _TINY + 0.5)
        _tensor(axes, (x, y), f"G{core}")
    middle = (xs[1] + xs[half]) / 2
    _box(axes, xs[1] - 0.14, xs[half] + 0.14, y_x, 0.1, **_X)
    _write(axes, (middle, y_x), "x")
    _line(axes, (middle, y_x - 0.1), (middle, y_x - 0.2))
    _write(axes, (middle, 0.02), f"B = {layer.tokens:,}, N = {layer.in_features:,}")
    middle = (xs[half + 1] + xs[2 * half]) / 2
    _write(axes, (middle, foot - 0.2), f"M = {layer.out_features:,}")


def draw_forward(axes: Any, steps: pd.DataFrame, width: float) -> None:
    """Draw a product where two lines meet, numbered in its order, with the name of its result."""
    forward = steps[steps["pass"] == "forward"]
    places = _places(forward, width)
    for one in each(forward):
        for operand in (one.left, one.right):
            _line(axes, places[operand], places[one.result])
        badge(axes, places[one.result], one.number)
    _name_tensors(axes, forward, places, "", 0.08)


def draw_backward(axes: Any, steps: pd.DataFrame, width: float) -> None:
    """Draw the same tree from the result down; a product on each arrow, numbered after the forward ones."""
    forward = steps[steps["pass"] == "forward"]
    numbers = steps.set_index("result")["number"]
    places = _places(forward, width)
    results = set(forward["result"])
    for one in each(forward):
        at, operands = places[one.result], (one.left, one.right)
        middles = [_arrow(axes, at, places[name], 0.0 if name in results else _CORE) for name in operands]
        apart = max(_BADGE + 0.005 - (middles[1][0] - middles[0][0]) / 2, 0.0)
        for operand, (x, y), side in zip(operands, middles, (-1, 1), strict=True):
            badge(axes, (x + side * apart, y), numbers[f"d{operand}"])
        axes.add_patch(Circle(at, 0.022, facecolor=INK, linewidth=0, zorder=4))
    _name_tensors(axes, forward, places, "d", 0.05)


def _span(name: str) -> tuple[int, int]:
    """Return the first and the last core of ``G3`` or ``G1-3``."""
    first, _, last = name.removeprefix("G").partition("-")
    return int(first), int(last or first)


def _leaves(forward: pd.DataFrame) -> list[str]:
    """Return the tensors that no product forms, in the order of the chain."""
    cores = {*forward["left"], *forward["right"]} - {*forward["result"], "x"}
    return ["x", *sorted(cores, key=_span)]


def _places(forward: pd.DataFrame, width: float) -> dict[str, Point]:
    """Return where each tensor of the tree stands: leaves in the chain's order, operands one level below a product."""
    leaves = _leaves(forward)
    left, right, bottom, top = 0.16, 0.14, 0.13, HEIGHT - 0.13
    step = (width - left - right) / (len(leaves) - 1)
    across = {name: left + place * step for place, name in enumerate(leaves)}
    for one in each(forward):
        across[one.result] = (across[one.left] + across[one.right]) / 2
    depth = {"y": 0}
    for one in each(forward[::-1]):
        depth |= dict.fromkeys((one.left, one.right), depth[one.result] + 1)
    drop = (top - bottom) / max(depth.values())
    return {name: (across[name], top - drop * depth[name]) for name in depth}


def _name_tensors(axes: Any, forward: pd.DataFrame, places: dict[str, Point], prefix: str, gap: float) -> None:
    """Write names of results on the side away from the line that leads up; leaves carry theirs inside."""
    for name in _leaves(forward):
        if name == "x":
            x, y = places[name]
            _box(axes, x - 0.13, x + 0.13, y, 0.085, **_X)
            _write(axes, (x, y), f"{prefix}{name}")
        else:
            _tensor(axes, places[name], f"{prefix}{name}")
    for name in forward["result"]:
        x, y = places[name]
        side, align = (-1, "right") if name in set(forward["left"]) else (1, "left")
        _write(axes, (x + side * gap, y + 0.01), f"{prefix}{name}", ha=align, va="bottom")


def _arrow(axes: Any, start: Point, end: Point, short: float) -> Point:
    """Draw an arrow that ends so much before ``end``; return its middle."""
    style: dict[str, Any] = {"arrowstyle": "-|>,head_length=2.4,head_width=1.4", "mutation_scale": 1}
    style |= {"shrinkA": 0, "shrinkB": 72 * short, "linewidth": 0.8, "color": INK, "zorder": 2}
    axes.add_patch(FancyArrowPatch(start, end, **style))
    part = 0.5 * (1 - short / math.dist(start, end))
    return start[0] + part * (end[0] - start[0]), start[1] + part * (end[1] - start[1])
