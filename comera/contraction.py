"""The product of activations with a TT matrix, forward and backward.

Shape suffixes: ``L`` layers merged together, ``B`` tokens in the flattened batch, ``N`` in-features, ``M``
out-features, ``R`` middle rank.

The chain ``G1 D1 G2 … G[2d]`` is cut at its middle bond (METHOD.md, Computation; paper, section 4). The left cores
merge into ``left_RN``, the right ones into ``right_RM``, and the activations meet two thin matrices,

    z_RB = left_RN · xᵀ        y_BM = zᵀ · right_RM + bias

at a leading cost of 2·B·R·(N + M) instead of 2·B·N·M. Two things make this as fast as its arithmetic promises:

* Rank comes first in ``left_RN`` and ``z_RB``. A product whose result has rows of length R (about 30) leaves vector
  units idle; the same product with rows of length B or N does not. The gradients inherit the layout.
* Merging costs little arithmetic but many small operations. Layers of one shape are merged by one batched chain, with
  an autograd function of its own that keeps no more than the small partial products.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from comera.rank_control import THRESHOLD, effective_diagonals
from comera.tensor_train import TTShape


def _stacked(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Vectors of one length as the rows of a matrix; a view where they already lie behind one another in memory."""
    first, size = vectors[0], vectors[0].numel()
    if len(vectors) == 1:
        return first.unsqueeze(0)
    if can_be_viewed_as_rows(vectors):
        return first.as_strided((len(vectors), size), (size, 1))
    return torch.stack(list(vectors))


def can_be_viewed_as_rows(vectors: Sequence[torch.Tensor]) -> bool:
    """Whether vectors of one length lie behind one another in one storage, as :class:`JointMerging` lays them."""
    if isinstance(vectors[0], FakeTensor) or torch.compiler.is_compiling():
        return False
    first, stride = vectors[0], vectors[0].numel() * vectors[0].element_size()
    start = first.data_ptr()
    reach = first.untyped_storage().nbytes() - first.storage_offset() * first.element_size()
    addresses = [vector.data_ptr() for vector in vectors]
    return reach >= len(vectors) * stride and addresses == list(
        range(start, start + len(vectors) * stride, stride or 1)
    )


def _stacked_cores(packed: Sequence[torch.Tensor], shape: TTShape) -> list[torch.Tensor]:
    """Cores of L layers as tensors of shape (L, R[i-1], mode, R[i])."""
    packed_LP = _stacked(packed)
    return [
        flat.view(len(packed), *core_shape)
        for flat, core_shape in zip(packed_LP.split(shape.core_sizes, dim=1), shape.core_shapes, strict=True)
    ]


def _scale_rows(cores: list[torch.Tensor], bonds: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Multiply every core but the first by the diagonal of the bond in front of it."""
    return [cores[0], *(bond[:, :, None, None] * core for bond, core in zip(bonds, cores[1:], strict=True))]


def _merge_left(cores: list[torch.Tensor]) -> list[torch.Tensor]:
    """Partial products from the left, each (L, modes so far, rank); the last one is the merged half."""
    partials = [cores[0].flatten(1, 2)]
    for core in cores[1:]:
        layers, _, mode, rank = core.shape
        product = torch.bmm(partials[-1], core.flatten(2, 3))
        partials.append(product.view(layers, partials[-1].shape[1] * mode, rank))
    return partials


def _merge_right(cores: list[torch.Tensor]) -> list[torch.Tensor]:
    """Partial products from the right, each (L, rank, modes so far); the last one is the merged half."""
    partials = [cores[-1].flatten(2, 3)]
    for core in reversed(cores[:-1]):
        layers, rank, mode, _ = core.shape
        product = torch.bmm(core.flatten(1, 2), partials[-1])
        partials.append(product.view(layers, rank, mode * partials[-1].shape[2]))
    return partials


def _left_core_gradients(
    grad_LNR: torch.Tensor, cores: list[torch.Tensor], partials: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Gradients of the left cores, in order, from the gradient of their merged half."""
    gradients = []
    grad = grad_LNR
    for core, partial in zip(reversed(cores[1:]), reversed(partials), strict=True):
        grad = grad.reshape(core.shape[0], partial.shape[1], core.shape[2] * core.shape[3])
        gradients.append(torch.bmm(partial.transpose(1, 2), grad))
        grad = torch.bmm(grad, core.flatten(2, 3).transpose(1, 2))
    return [grad, *reversed(gradients)]


def _right_core_gradients(
    grad_LRM: torch.Tensor, cores: list[torch.Tensor], partials: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Gradients of the right cores, in order, from the gradient of their merged half."""
    gradients = []
    grad = grad_LRM
    for core, partial in zip(cores[:-1], reversed(partials), strict=True):
        grad = grad.reshape(core.shape[0], core.shape[1] * core.shape[2], partial.shape[2])
        gradients.append(torch.bmm(grad, partial.transpose(1, 2)))
        grad = torch.bmm(core.flatten(1, 2).transpose(1, 2), grad)
    return [*gradients, grad]


class _MergeCores(torch.autograd.Function):
    """Merge the cores of L layers of one shape into their left and right halves.

    Inputs after the settings: L packed core vectors, then L diagonal vectors. Outputs: L times ``left_RN``, then L
    times ``right_RM``. Saved for backward: the parameters themselves and the partial products short of the halves.
    """

    @staticmethod
    def forward(ctx: Any, shape: TTShape, threshold: float, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        layers = len(parameters) // 2
        half = shape.half
        effective_LK = effective_diagonals(_stacked(parameters[layers:]), threshold)
        cores = _scale_rows(_stacked_cores(parameters[:layers], shape), effective_LK.split(shape.ranks, dim=1))
        lefts = _merge_left(cores[:half])
        rights = _merge_right(cores[half:])
        # The first partial product of a side is a core (scaled); backward forms it again from the parameters.
        ctx.save_for_backward(*parameters[:layers], effective_LK, *lefts[1:-1], *rights[1:-1])
        ctx.shape, ctx.layers = shape, layers
        left_LRN = lefts[-1].transpose(1, 2).contiguous()
        return (*left_LRN.unbind(), *rights[-1].contiguous().unbind())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        shape, layers, half = ctx.shape, ctx.layers, ctx.shape.half
        packed, (effective_LK, *partials) = ctx.saved_tensors[:layers], ctx.saved_tensors[layers:]
        kept = max(half - 2, 0)
        bonds = effective_LK.split(shape.ranks, dim=1)
        plain = _stacked_cores(packed, shape)
        cores = _scale_rows(plain, bonds)
        kind = packed[0].dtype
        grad_LNR = packed[0].new_empty(layers, shape.in_features, shape.ranks[half - 1])
        for place, gradient in zip(grad_LNR.unbind(), gradients, strict=False):
            place.copy_(gradient.t())
        grad_LRM = torch.stack(gradients[layers:]).to(kind)
        lefts = [cores[0].flatten(1, 2), *partials[:kept]] if half > 1 else []
        rights = [cores[-1].flatten(2, 3), *partials[kept:]] if half > 1 else []
        scaled_grads = [
            *_left_core_gradients(grad_LNR, cores[:half], lefts),
            *_right_core_gradients(grad_LRM, cores[half:], rights),
        ]
        bond_grads = []
        packed_grads = packed[0].new_empty(layers, shape.parameter_count)
        first, *others = packed_grads.split(shape.core_sizes, dim=1)
        first.copy_(scaled_grads[0].reshape(first.shape))
        for place, grad, core, bond in zip(others, scaled_grads[1:], plain[1:], bonds, strict=True):
            grad = grad.view(core.shape)
            bond_grads.append((grad * core).sum((2, 3)))
            torch.mul(bond[:, :, None, None], grad, out=place.view(core.shape))
        diagonal_grads = torch.cat(bond_grads, dim=1) * (effective_LK != 0)
        return None, None, *packed_grads.unbind(), *diagonal_grads.unbind()


def merge_cores(
    packed: Sequence[torch.Tensor],
    diagonals: Sequence[torch.Tensor],
    shape: TTShape,
    threshold: float = THRESHOLD,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Merge the cores of one or more layers of the same shape into the two halves each.

    Merging happens in the cores' own type; under autocast the halves come out in the autocast type.

    Args:
        packed: per layer all cores in one vector, see :func:`comera.tensor_train.pack_cores`.
        diagonals: per layer all rank-control entries in one vector, bond after bond.
        shape: modes and ranks, common to the layers.
        threshold: diagonal entries up to this magnitude count as zero.

    Returns:
        Per layer ``(left_RN, right_RM)``; ``left_RN.T @ right_RM`` is the matrix (N, M).

    Example:
        >>> shape = TTShape(4, 6, (2, 2), (2, 3), 2)
        >>> [(left, right)] = merge_cores([torch.ones(shape.parameter_count)], [torch.ones(6)], shape)
        >>> left.shape, right.shape
        (torch.Size([2, 4]), torch.Size([2, 6]))
    """
    device = packed[0].device.type
    cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if cast is None:
        halves = _MergeCores.apply(shape, threshold, *packed, *diagonals)
    else:
        with torch.autocast(device, enabled=False):
            halves = [half.to(cast) for half in _MergeCores.apply(shape, threshold, *packed, *diagonals)]
    return list(zip(halves[: len(packed)], halves[len(packed) :], strict=True))


def two_half_linear(
    x: torch.Tensor, left_RN: torch.Tensor, right_RM: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Apply a merged TT matrix to the last dimension of ``x``: (…, N) to (…, M).

    Plain torch operations: what autograd saves (x, z and the two halves) is what backward needs, and the bias is added
    inside the last product.
    """
    x_BN = x.reshape(-1, left_RN.shape[1])
    z_RB = torch.mm(left_RN, x_BN.t())
    y_BM = F.linear(z_RB.t(), right_RM.t()) if bias is None else torch.addmm(bias, z_RB.t(), right_RM)
    return y_BM.view(*x.shape[:-1], right_RM.shape[1])
