"""From a wanted compression ratio of a whole model to the blocks, or the groups, of each of its layers.

All layers get about the same ratio of their own. What stays dense counts at its full size on both sides, as in
:mod:`comera.ratio.model`. Without a rank, :func:`comera.formats.block_shapes.nearest_blocks` decides for each layer.
With a rank, sizes of one layer are coarse, since blocks divide features; layers of one shape may therefore differ by
one size, as in an apportionment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import nn

from comera.compatibility.hugging_face import linear_weight
from comera.formats.block_shapes import BTTShape, nearest_blocks
from comera.formats.grouped import GroupedShape
from comera.modes import divisors
from comera.protocol import OutOfReach
from comera.ratio.rank_search import TOLERANCE, check_ratio

#: The most uneven blocks that are used as long as there are others, see :func:`_imbalance`.
_UNEVEN = math.log(16)


def solve_block_model(
    model: nn.Module, names: Iterable[str], ratio: float, rank: int | None = None
) -> dict[str, BTTShape]:
    """Find the blocks with which a whole model has ``ratio`` times fewer parameters.

    Args:
        model: the dense model; shapes are enough, so it may be on the ``meta`` device.
        names: of its linear layers that become block tensor trains.
        ratio: parameters of ``model`` over those of the other, from 1 up, met within 2 %.
        rank: of every block; None: the fewest blocks with which each weight can have full rank.

    Returns:
        A shape for each name.

    Raises:
        ValueError: a ratio below 1, or no layer.
        OutOfReach: a ValueError; no blocks meet the ratio within 2 %; the sentence names the nearest that was found.

    Example:
        >>> model = nn.Sequential(nn.Linear(128, 128, bias=False), nn.Linear(128, 10))
        >>> solve_block_model(model, ["0"], ratio=3.26)["0"].ratio
        4.0
    """
    check_ratio(ratio)
    weights = _weights(model, names)
    first = {id(weight): name for name, weight in reversed(weights.items())}  # layers may share a weight
    once = [name for name in weights if first[id(weights[name])] == name]
    dense = sum(parameter.numel() for parameter in model.parameters())
    matrices = sum(weights[name].numel() for name in once)
    kept, wanted = dense - matrices, dense / ratio
    share = max(wanted - kept, 1) / matrices
    for uneven in (_UNEVEN, math.inf) if rank is not None else (math.inf,):
        if rank is None:
            sizes = {name: tuple(reversed(weights[name].shape)) for name in once}
            chosen = {name: nearest_blocks(*size, 1 / share) for name, size in sizes.items()}
        else:
            around = {name: _around(weights[name], share, rank, uneven) for name in once}
            chosen = _nearest(around, wanted - kept)
        total = kept + sum(shape.parameter_count for shape in chosen.values())
        if abs(total - wanted) <= TOLERANCE * wanted:
            return {name: chosen[first[id(weight)]] for name, weight in weights.items()}
    left = f"{kept:,} of the model's {dense:,} parameters stay dense"
    raise OutOfReach(
        f"ratio={ratio:g} is out of reach for block tensor trains, where {left}; "
        f"the nearest found is {dense / total:.4g}."
    )


def solve_groups(model: nn.Module, names: Iterable[str], ratio: float, groups: int | None = None) -> int:
    """Find the groups with which a whole model has ``ratio`` times fewer parameters, the same for all of its layers.

    Args:
        model: the dense model; shapes are enough, so it may be on the ``meta`` device.
        names: of its linear layers that become grouped ones.
        ratio: parameters of ``model`` over those of the other, from 1 up, met within 2 %.
        groups: the only number to try; None: all that divide the features of every layer.

    Raises:
        ValueError: a ratio below 1, no layer, or groups that do not divide the features of one.
        OutOfReach: a ValueError; no number of groups meets the ratio; the sentence has the ratios that can be met.

    Example:
        >>> model = nn.Sequential(nn.Linear(128, 128, bias=False), nn.Linear(128, 10))
        >>> solve_groups(model, ["0"], ratio=3.26)
        4
    """
    check_ratio(ratio)
    weights = {id(weight): weight for weight in _weights(model, names).values()}
    dense = sum(parameter.numel() for parameter in model.parameters())
    matrices = sum(weight.numel() for weight in weights.values())
    common = divisors(math.gcd(*(size for weight in weights.values() for size in weight.shape)))
    if groups is not None:
        for weight in weights.values():
            GroupedShape(weight.shape[1], weight.shape[0], groups)  # checks that they divide its sides
    ratios = {each: dense / (dense - matrices + matrices / each) for each in (common if groups is None else [groups])}
    nearest = min(ratios, key=lambda each: abs(ratios[each] - ratio))
    if abs(ratio / ratios[nearest] - 1) <= TOLERANCE:
        return nearest
    reached = ", ".join(f"{value:.4g} ({each})" for each, value in ratios.items())
    raise OutOfReach(f"ratio={ratio:g} is out of reach for grouped layers; ratios (groups) within reach: {reached}.")


def _weights(model: nn.Module, names: Iterable[str]) -> dict[str, torch.Tensor]:
    weights = {name: linear_weight(model.get_submodule(name)) for name in names}
    if not weights:
        raise ValueError("no layer is to become one of blocks; name some.")
    return weights


def _nearest(around: Mapping[str, tuple[BTTShape, BTTShape]], entries: float) -> dict[str, BTTShape]:
    """Return the smaller shape of each layer, or the larger one where that brings the sum nearer to the target."""
    chosen = {name: below for name, (below, _) in around.items()}
    total = sum(shape.parameter_count for shape in chosen.values())
    for name, (below, above) in around.items():
        more = above.parameter_count - below.parameter_count
        if abs(total + more - entries) < abs(total - entries):
            chosen[name], total = above, total + more
    return chosen


def _around(weight: torch.Tensor, share: float, rank: int, uneven: float) -> tuple[BTTShape, BTTShape]:
    """Return the shapes next below and next above a share of the weight's entries, as even as there are of a size."""
    best: dict[int, BTTShape] = {}
    for shape in _shapes_of_rank(weight.shape[1], weight.shape[0], rank):
        known = best.get(shape.parameter_count)
        if known is None or _imbalance(shape) < _imbalance(known):
            best[shape.parameter_count] = shape
    if not best:
        raise OutOfReach(f"rank is {rank}; no block of a weight {tuple(weight.shape)} has that rank.")
    even = {size: shape for size, shape in best.items() if _imbalance(shape) <= uneven} or best
    return _next(even, share * weight.numel())


def _next(shapes: Mapping[int, BTTShape], size: float) -> tuple[BTTShape, BTTShape]:
    below = max((each for each in shapes if each <= size), default=min(shapes))
    above = min((each for each in shapes if each >= size), default=max(shapes))
    return shapes[below], shapes[above]


def _shapes_of_rank(in_features: int, out_features: int, rank: int) -> Iterator[BTTShape]:
    """Yield every shape of a layer with blocks of a rank."""
    for in_blocks in divisors(in_features):
        for out_blocks in divisors(out_features):
            if rank <= min(in_features // in_blocks, out_features // out_blocks):
                yield BTTShape(in_features, out_features, in_blocks, out_blocks, rank)


def _imbalance(shape: BTTShape) -> float:
    """Measure how far a shape is from square blocks in a square of blocks; 0 where it is both."""
    return abs(math.log(shape.in_size / shape.out_size)) + abs(math.log(shape.in_blocks / shape.out_blocks))
