"""Modes and ranks of tensorized layers in the form in which records hold them."""

from collections import Counter
from typing import Any

from torch import nn

from comera import TTLinear, TTMEmbedding
from comera.tensor_train import TTMShape, TTShape

_FIELDS = {TTShape: ("in_modes", "out_modes", "ranks"), TTMShape: ("row_modes", "column_modes", "ranks")}


def described_shape(shape: TTShape | TTMShape) -> dict[str, Any]:
    """Return modes and ranks by name.

    >>> described_shape(TTShape(4, 6, (2, 2), (2, 3), 2))
    {'in_modes': (2, 2), 'out_modes': (2, 3), 'ranks': (2, 2, 2)}
    """
    return {name: getattr(shape, name) for name in _FIELDS[type(shape)]}


def tensorized_shapes(model: nn.Module) -> list[dict[str, Any]]:
    """Return a row per distinct shape among the tensorized layers, with how many have it; empty where there are none.

    >>> model = nn.Sequential(*(TTLinear(4, 4, (2, 2), (2, 2), ranks=1, bias=False) for _ in range(3)))
    >>> tensorized_shapes(model)
    [{'layers': 3, 'in_modes': (2, 2), 'out_modes': (2, 2), 'ranks': (1, 1, 1)}]
    """
    shapes = Counter(module.shape for module in model.modules() if isinstance(module, TTLinear | TTMEmbedding))
    return [{"layers": count, **described_shape(shape)} for shape, count in shapes.items()]
