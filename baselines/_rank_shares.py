"""The ranks of two-factor layers at which a whole model has a wanted compression ratio.

A layer (N, M) of rank R holds R·(N + M) parameters, which is coarse: one rank more in all 768 × 768 layers of the
encoder is 4 % of the model at ratio 64. So layers of one shape may differ by one rank, as in an apportionment of seats
by largest remainder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import nn

from baselines._arm import Table
from comera.protocol import OutOfReach

#: How far the parameters of the whole model may be from those that a ratio asks for.
TOLERANCE = 0.02


def ranks_for_ratio(model: nn.Module, layers: Mapping[str, nn.Linear | Table], ratio: float) -> dict[str, int]:
    """Return the ranks at which the whole model is ``ratio`` times smaller.

    Every layer gets the same ratio of its own, as far as ranks from 1 to min(N, M) allow. The real rank that this takes
    is rounded down, and what is left of the model's parameters goes in steps of one rank to the layers with the largest
    remainders, as far as it reaches, or one layer beyond where that is nearer.

    Args:
        model: the dense model; shapes are enough, so it may be on the ``meta`` device.
        layers: by name, the layers of ``model`` to factorise.
        ratio: wanted parameters of ``model`` over those of the factorised one, met within 2 %.

    Raises:
        OutOfReach: a ValueError; the sentence names the largest or smallest ratio within reach, or the nearest found.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 256), nn.Linear(256, 4))
        >>> ranks_for_ratio(model, {"0": model[0], "1": model[1]}, ratio=3)
        {'0': 9, '1': 15}
    """
    dense = sum(parameter.numel() for parameter in model.parameters())
    kept = dense - sum({id(layer.weight): layer.weight.numel() for layer in layers.values()}.values())
    shapes = {name: tuple(layer.weight.shape) for name, layer in layers.items()}
    costs = {name: sum(shape) for name, shape in shapes.items()}  # parameters per rank
    real = _equal_ratio(shapes, dense / ratio - kept)
    ranks = {name: int(rank) for name, rank in real.items()}
    rest = dense / ratio - kept - sum(rank * costs[name] for name, rank in ranks.items())
    candidates = [name for name in real if ranks[name] < min(shapes[name])]
    candidates.sort(key=lambda name: ranks[name] - real[name])  # the largest remainder first
    firsts = {costs[name]: [name] for name in reversed(candidates)}  # per cost the largest remainder
    filled = [_fill(first, candidates, costs, rest) for first in ([], *firsts.values())]
    for name in min(filled, key=lambda found: found[0])[1]:
        ranks[name] += 1
    total = kept + sum(rank * costs[name] for name, rank in ranks.items())
    if abs(total - dense / ratio) > TOLERANCE * dense / ratio:
        raise _out_of_reach(ratio, dense, kept, shapes, dense / total)
    return ranks


def _equal_ratio(shapes: Mapping[str, tuple[int, ...]], budget: float) -> dict[str, float]:
    """Return the real ranks, within each layer's limits, at one ratio for all layers and ``budget`` parameters."""

    def at(ratio: float) -> dict[str, float]:
        wanted = {name: math.prod(shape) / (ratio * sum(shape)) for name, shape in shapes.items()}
        return {name: min(max(rank, 1.0), *shapes[name]) for name, rank in wanted.items()}

    # Between a ratio at which every rank is the largest one and one at which it is 1.
    low, high = 0.25, max((float(math.prod(shape)) for shape in shapes.values()), default=1.0)
    for _ in range(100):
        middle = math.sqrt(low * high)
        if sum(rank * sum(shapes[name]) for name, rank in at(middle).items()) < budget:
            high = middle
        else:
            low = middle
    return at(high)


def _fill(first: list[str], names: Sequence[str], costs: Mapping[str, int], rest: float) -> tuple[float, list[str]]:
    """Choose the ranks to raise for ``rest`` more parameters, always ``first``; return the error and their names."""
    raised, rest = list(first), rest - sum(costs[name] for name in first)
    for name in names:
        if name not in first and costs[name] <= rest:
            raised.append(name)
            rest -= costs[name]
    return abs(rest), raised


def _out_of_reach(
    ratio: float, dense: int, kept: int, shapes: Mapping[str, tuple[int, ...]], nearest: float
) -> OutOfReach:
    start = f"ratio={ratio:g} is out of reach for two-factor layers"
    largest = dense / (kept + sum(sum(shape) for shape in shapes.values()))
    smallest = dense / (kept + sum(sum(shape) * min(shape) for shape in shapes.values()))
    if ratio > largest:
        left = f"{kept:,} of the model's {dense:,} parameters are not factorised"
        words = f"{start}, since {left}; the largest within reach is {largest:.6g}, with all ranks 1."
        return OutOfReach(words, largest=largest)
    if ratio < smallest:
        words = f"{start}; the smallest within reach is {smallest:.6g}, with the largest ranks."
        return OutOfReach(words, smallest=smallest)
    return OutOfReach(f"{start} within {TOLERANCE:.0%}; the nearest found is {nearest:.6g}.")
