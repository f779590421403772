"""Models of tensorized layers with drawn shapes and values, and the formulas of the objectives by hand."""

import torch
from drawn_chains import draw_parameters, tt_shapes, ttm_shapes
from hypothesis import strategies as st
from torch import nn

from comera import TTLinear, TTMEmbedding


def model_of(shapes, seed):
    model = nn.ModuleList()
    for i, shape in enumerate(shapes):
        sizes = list(vars(shape).values())[:5]
        layer = (TTLinear if hasattr(shape, "in_features") else TTMEmbedding)(*sizes, dtype=torch.float64)
        with torch.no_grad():
            for parameter, value in zip(
                (layer.packed_cores, layer.diagonals), draw_parameters(shape, seed + i), strict=True
            ):
                parameter.copy_(value)
        model.append(layer)
    return model


def surrogate_by_hand(layers):
    """Ŝ(D) with Python's own loops, and its gradient by the product rule."""
    total, size, gradients = 0.0, 0, []
    for layer in layers:
        bonds = [bond.tolist() for bond in layer.diagonals.detach().split(layer.shape.ranks)]
        norms = [1.0, *(sum(abs(entry) for entry in bond) for bond in bonds), 1.0]
        shape = layer.shape
        if isinstance(layer, TTLinear):
            modes = shape.in_modes + shape.out_modes
        else:
            modes = [rows * columns for rows, columns in zip(shape.row_modes, shape.column_modes, strict=True)]
        total += sum(mode * norms[i] * norms[i + 1] for i, mode in enumerate(modes))
        size += sum(core.numel() for core in layer.cores())
        for i, bond in enumerate(bonds):
            slope = modes[i] * norms[i] + modes[i + 1] * norms[i + 2]
            gradients.append([slope * ((entry > 0) - (entry < 0)) for entry in bond])
    size = max(size, 1)
    return total / size, [slope / size for bond in gradients for slope in bond]


#: Up to three layers, of both formats.
SHAPES = st.lists(st.one_of(tt_shapes(), ttm_shapes()), min_size=1, max_size=3)
