"""Shapes that give a model a wanted number of parameters: blocks by depth, columns and inner features by size."""

import math
from collections.abc import Callable

#: How far from a wanted number of parameters a model in another shape may be.
NEAR = 0.02

#: The most times the blocks of a model that a dense rival of its size may have.
_DEEPEST = 100


def blocks_at_depth(blocks: int, depth: float) -> int:
    """Return how many blocks a model of ``depth`` times as many has.

    Raises ValueError unless that is a whole number, within 1 %; the sentence has the nearest depths.

    >>> blocks_at_depth(4, 0.75), blocks_at_depth(3, 0.667)
    (3, 2)
    """
    if not 0 < depth <= _DEEPEST:
        raise ValueError(f"depth is {depth:g}; allowed: numbers above 0, up to {_DEEPEST}.")
    found = round(blocks * depth)
    if found < 1 or not math.isclose(found, blocks * depth, rel_tol=0.01):
        below, above = math.floor(blocks * depth), math.floor(blocks * depth) + 1
        near = " or ".join(f"{each / blocks:.4g}" for each in (below, above) if each)
        raise ValueError(f"depth is {depth:g} of {blocks} blocks, which are no whole number of blocks; take {near}.")
    return found


def nearest_width(parameters: int, size: Callable[[int], float], widest: int, multiple: int) -> int:
    """Return the width, a multiple of ``multiple`` up to ``widest``, with which a model has nearest so many parameters.

    Raises ValueError if there is no such width.

    >>> nearest_width(1000, lambda width: width**2, widest=64, multiple=4)
    32
    """
    if multiple > widest:
        raise ValueError(f"no width up to {widest:,}, twice the model's, is a multiple of {multiple:,}.")
    return min(range(multiple, widest + 1, multiple), key=lambda width: abs(size(width) - parameters))


def check_near(parameters: int, found: float, model: str, width: int) -> None:
    """Raise ValueError unless a model that was ``found`` has so many parameters, within 2 %."""
    if abs(found - parameters) > NEAR * parameters:
        raise ValueError(
            f"no {model} has about {parameters:,} parameters; the nearest has {round(found):,}, with width {width}."
        )


def nearest_shape(
    parameters: int,
    size: Callable[[int, int], float],
    model: str,
    widest: int,
    inner_over_width: float,
    heads: int,
    multiple: int = 1,
) -> tuple[int, int]:
    """Return width and inner features with which a ``model`` has about so many parameters.

    The width is the multiple of heads that comes nearest with a feed-forward of the same shape; the inner features then
    make up the difference. Both are multiples of ``multiple`` too.

    Raises ValueError: no shape comes within 2 %.

    >>> nearest_shape(1000, lambda width, inner: width * (width + inner), "model", 64, 4.0, heads=2)
    (14, 57)
    """

    def usual(width: int) -> float:
        return size(width, _rounded(inner_over_width * width, multiple))

    width = nearest_width(parameters, usual, widest, math.lcm(heads, multiple))
    per_feature = size(width, 2) - size(width, 1)
    inner = _rounded(inner_over_width * width + (parameters - usual(width)) / per_feature, multiple)
    check_near(parameters, size(width, inner), model, width)
    return width, inner


def _rounded(features: float, multiple: int) -> int:
    return max(round(features / multiple), 1) * multiple
