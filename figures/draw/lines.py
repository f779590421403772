"""Curves over a frame: one per value of a column, each with its stroke and its bounds."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from figures.draw.style import Stroke, whiskers


def lines(axes: Any, df: pd.DataFrame, x: str, y: str, by: str, looks: Mapping[Any, Stroke], **style: Any) -> None:
    """Draw a curve per value of a column, in the order of the looks.

    Args:
        df: the points, each curve's in the order in which they are joined. Where it has columns ``y_low`` and
            ``y_high``, they are drawn as whiskers.
        x, y, by: the columns of the places, the values and the curves.
        looks: the stroke of each curve.
        style: what is alike for all curves, such as ``markersize``.
    """
    ends = [f"{y}_low", f"{y}_high"]
    for name, stroke in looks.items():
        line = df[df[by] == name]
        if line.empty:
            continue
        axes.plot(line[x], line[y], **{**stroke.look, **style})
        if set(ends) <= set(df):
            bounded = line.dropna(subset=ends)
            whiskers(axes, bounded[x], *(bounded[end] for end in ends))


def banded_line(axes: Any, x: pd.Series, line: pd.DataFrame, y: str, stroke: Stroke, **style: Any) -> None:
    """Draw one curve, with its bounds as a band; a value without bounds has its own."""
    low, high = (line[f"{y}_{end}"].astype(float).fillna(line[y].astype(float)) for end in ("low", "high"))
    axes.fill_between(x, low, high, color=stroke.colour, alpha=0.1, linewidth=0)
    if len(line) == 1:  # a band without width would not show
        axes.plot([*x] * 2, [*low, *high], color=stroke.colour, linewidth=0.8, alpha=0.5)
    axes.plot(x, line[y], linewidth=1.4, **{**stroke.look, **style})
