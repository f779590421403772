"""Contraction plans as tensor diagrams: the network with its legs, and the products as binary trees.

A circle is a core, a line between two tensors a dimension they share, a line that ends freely one of the result. The
number on a line is that of the product that sums over it. Axes are in inches, so that nothing depends on the page.
"""

import math
from typing import Any

from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch

from figures.page.style import FAINT, INK
from figures.records.plans import MeasuredPlan, Planned, span_of

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
    _write(axes, at, str(number), _TINY, color="white", va="center_baseline", fontweight="bold", zorder=7)


def _tensor(axes: Any, at: Point, name: str) -> None:
    axes.add_patch(Circle(at, _CORE, facecolor="white", edgecolor=INK, linewidth=0.9, zorder=3))
    _write(axes, at, name, _SMALL - 0.5 * (len(name) > 2))


def _box(axes: Any, left: float, right: float, middle: float, half: float, **style: Any) -> None:
    shape = f"round,pad=0,rounding_size={half}"
    axes.add_patch(FancyBboxPatch((left, middle - half), right - left, 2 * half, boxstyle=shape, **style))


def summed_by(plan: MeasuredPlan, half: int) -> tuple[dict[int, int], dict[int, int]]:
    """Which product, counted from 1, sums over each bond (by the core before it) and over each in-mode (by its core).

    >>> from figures.records.plans import PlannedProduct
    >>> product = PlannedProduct("x", "G1-2", "y", 5, 4, 6)
    >>> merge = PlannedProduct("G1", "G2", "G1-2", 4, 3, 6)
    >>> summed_by(MeasuredPlan("dense", ((1, 2),), (merge, product), 0, 0.0, 0.0, 0.0, (), ""), half=1)
    ({1: 1}, {1: 2})
    """
    bonds: dict[int, int] = {}
    modes: dict[int, int] = {}
    for number, product in enumerate(plan.products, start=1):
        left, right = span_of(product.left), span_of(product.right)
        assert right is not None
        if left is not None:
            bonds[left[1]] = number
        else:
            modes |= dict.fromkeys(range(right[0], min(right[1], half) + 1), number)
            if right[0] > 1:
                bonds[right[0] - 1] = number
    return bonds, modes


def draw_network(axes: Any, planned: Planned, plan: MeasuredPlan, width: float) -> None:
    """Draw the chain of cores above, the activations ``x`` below their in-modes, with the order of contraction."""
    half = len(planned.in_modes)
    step = width / (2 * half)
    y, y_x, foot = 0.78, 0.28, 0.4
    places = {core: ((core - 0.5) * step, y) for core in range(1, 2 * half + 1)}
    bonds, modes = summed_by(plan, half)
    for first, last in plan.segments:
        if first < last:
            left, right = places[first][0], places[last][0]
            _box(axes, left - 0.13, right + 0.13, y + 0.03, 0.2, linestyle=(0, (3, 1.5)), **_SEGMENT)
            _write(axes, ((left + right) / 2, y + 0.33), f"G{first}-{last}", color=INK)
    for bond, rank in enumerate(planned.ranks, start=1):
        _line(axes, places[bond], places[bond + 1])
        _write(axes, (bond * step, y + 0.135), f"{rank:,}", _TINY + 0.5)
        badge(axes, (bond * step, y), bonds[bond])
    for core, mode in enumerate((*planned.in_modes, *planned.out_modes), start=1):
        x = places[core][0]
        _line(axes, places[core], (x, y_x if core <= half else foot))
        if core <= half:
            middle = (y + y_x) / 2 - 0.03
            badge(axes, (x, middle), modes[core])
            _write(axes, (x + 0.08, middle), f"{mode:,}", _TINY + 0.5, ha="left")
        else:
            _write(axes, (x, foot - 0.07), f"{mode:,}", _TINY + 0.5)
        _tensor(axes, places[core], f"G{core}")
    left, right = places[1][0], places[half][0]
    _box(axes, left - 0.14, right + 0.14, y_x, 0.1, **_X)
    _write(axes, ((left + right) / 2, y_x), "x")
    slot = planned.slot
    _line(axes, ((left + right) / 2, y_x - 0.1), ((left + right) / 2, y_x - 0.2))
    _write(axes, ((left + right) / 2, 0.02), f"B = {slot.tokens:,}, N = {slot.in_features:,}")
    _write(axes, ((half + 0.5) * step + (half - 1) * step / 2, foot - 0.2), f"M = {slot.out_features:,}")


def _places(plan: MeasuredPlan, width: float) -> dict[str, Point]:
    """Where each tensor of the tree stands: leaves in the chain's order, operands one level below their product."""
    leaves = _leaves(plan)
    left, right, bottom, top = 0.16, 0.14, 0.13, HEIGHT - 0.13
    step = (width - left - right) / (len(leaves) - 1)
    across = {name: left + place * step for place, name in enumerate(leaves)}
    for product in plan.products:
        across[product.result] = (across[product.left] + across[product.right]) / 2
    depth = {"y": 0}
    for product in reversed(plan.products):
        depth |= dict.fromkeys((product.left, product.right), depth[product.result] + 1)
    drop = (top - bottom) / max(depth.values())
    return {name: (across[name], top - drop * depth[name]) for name in depth}


def _leaves(plan: MeasuredPlan) -> tuple[str, ...]:
    return ("x", *(f"G{core}" for core in range(1, plan.segments[-1][1] + 1)))


def draw_forward(axes: Any, plan: MeasuredPlan, width: float) -> None:
    """Draw a product where two lines meet, numbered in its order, with the name of its result."""
    places = _places(plan, width)
    for number, product in enumerate(plan.products, start=1):
        at = places[product.result]
        for operand in (product.left, product.right):
            _line(axes, places[operand], at)
        badge(axes, at, number)
    _name_results(axes, plan, places, "", 0.08)


def draw_backward(axes: Any, plan: MeasuredPlan, width: float) -> None:
    """Draw the same tree from the result down; a product on each arrow, numbered after the forward ones."""
    places = _places(plan, width)
    numbers = {gradient.result: number for number, gradient in enumerate(plan.backward, start=len(plan.products) + 1)}
    for product in plan.products:
        at, operands = places[product.result], (product.left, product.right)
        middles = [_arrow(axes, at, places[one], _CORE if one in _leaves(plan) else 0.0) for one in operands]
        apart = max(_BADGE + 0.005 - (middles[1][0] - middles[0][0]) / 2, 0.0)
        for operand, (x, y), side in zip(operands, middles, (-1, 1), strict=True):
            badge(axes, (x + side * apart, y), numbers[f"d{operand}"])
        axes.add_patch(Circle(at, 0.022, facecolor=INK, linewidth=0, zorder=4))
    _name_results(axes, plan, places, "d", 0.05)


def _name_results(axes: Any, plan: MeasuredPlan, places: dict[str, Point], prefix: str, gap: float) -> None:
    """Names of results on the side away from the line that leads up; leaves carry theirs inside."""
    for name in _leaves(plan):
        if name == "x":
            (x, y), text = places[name], f"{prefix}{name}"
            _box(axes, x - 0.13, x + 0.13, y, 0.085, **_X)
            _write(axes, (x, y), text)
        else:
            _tensor(axes, places[name], f"{prefix}{name}")
    of_left_operands = {product.left for product in plan.products}
    for product in plan.products:
        x, y = places[product.result]
        side, align = (-1, "right") if product.result in of_left_operands else (1, "left")
        _write(axes, (x + side * gap, y + 0.01), f"{prefix}{product.result}", ha=align, va="bottom")


def _arrow(axes: Any, start: Point, end: Point, short: float) -> Point:
    """Draw an arrow that ends so much before ``end``; return its middle."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>,head_length=2.4,head_width=1.4",
            shrinkA=0,
            shrinkB=72 * short,
            linewidth=0.8,
            color=INK,
            zorder=2,
            mutation_scale=1,
        )
    )
    part = 0.5 * (1 - short / math.dist(start, end))
    return start[0] + part * (end[0] - start[0]), start[1] + part * (end[1] - start[1])
