"""The product of activations with a TT matrix, forward and backward.

Shape suffixes: ``L`` layers or halves merged together, ``B`` tokens in the flattened batch, ``N`` in-features, ``M``
out-features, ``R`` middle rank, ``O``/``I`` ranks toward the end and toward the middle of a chain.

The chain ``G1 D1 G2 … G[2d]`` is cut at its middle bond (paper, section 4). The left cores merge into
``left_RN``, the right ones into ``right_RM``, and the activations meet two thin matrices,

    z_RB = left_RN · xᵀ        y_BM = zᵀ · right_RM + bias

at a leading cost of 2·B·R·(N + M) instead of 2·B·N·M. Three things make this as fast as its arithmetic promises:

* Rank comes first in both halves and in ``z_RB``. A product whose result has rows of length R (about 30) leaves vector
  units idle; the same product with rows of length B or N does not. The gradients inherit the layout.
* The left half is the mirror image of the right one (:mod:`comera.tensor_train`), so both are merged by the same
  products, from the end of the chain to its middle.
* Merging costs little arithmetic but many small operations. All halves of one shape, left or right, of whichever
  layer, are merged by one batched chain, with an autograd function of its own that keeps no more than the small
  partial products.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional as F

from comera.rank_control import THRESHOLD, effective_diagonals
from comera.tensor_train import TTShape, packed_axes


@dataclass(frozen=True)
class _Side:
    """The left or the right halves of the layers of one shape; tuples run from the middle of the chain to its end."""

    group: int
    cores: tuple[int, ...]
    #: The bond on the inner side of each core, whose diagonal scales it. The middle bond scales the right half.
    bonds: tuple[int | None, ...]
    #: Places of the halves among the results, and their rows in the batch.
    results: tuple[int, ...]
    rows: slice


@dataclass(frozen=True)
class _HalfBatch:
    """Halves of one shape, merged together: per core (O, I, mode), from the middle to the end."""

    core_shapes: tuple[tuple[int, ...], ...]
    sides: tuple[_Side, ...]

    @property
    def half_shape(self) -> tuple[int, int]:
        """Return the shape of a merged half: middle rank, product of its modes."""
        return self.core_shapes[0][1], math.prod([mode for _, _, mode in self.core_shapes])


@lru_cache(maxsize=256)
def _plan(shapes: tuple[TTShape, ...]) -> tuple[dict[TTShape, list[int]], list[_HalfBatch]]:
    """Group layers by equal shape (places in ``shapes``), and halves of layers likewise."""
    groups: dict[TTShape, list[int]] = {}
    for layer, shape in enumerate(shapes):
        groups.setdefault(shape, []).append(layer)
    batches: dict[tuple[tuple[int, ...], ...], list[_Side]] = {}
    for number, (shape, layers) in enumerate(groups.items()):
        left, right = tuple(reversed(range(shape.half))), tuple(range(shape.half, 2 * shape.half))
        left_bonds, right_bonds = (None, *left[1:]), tuple(core - 1 for core in right)
        for cores, bonds, offset in ((left, left_bonds, 0), (right, right_bonds, len(shapes))):
            axes = packed_axes(shape, cores[0])
            sides = batches.setdefault(tuple(tuple(shape.core_shapes[i][axis] for axis in axes) for i in cores), [])
            start = sides[-1].rows.stop if sides else 0
            rows = slice(start, start + len(layers))
            sides.append(_Side(number, cores, bonds, tuple(offset + layer for layer in layers), rows))
    return groups, [_HalfBatch(core_shapes, tuple(sides)) for core_shapes, sides in batches.items()]


class _Chains:
    """Packed cores and diagonals, or their gradients: a matrix for each shape, one row per layer."""

    def __init__(
        self, shapes: Iterable[TTShape], packed: Sequence[torch.Tensor], diagonals: Sequence[torch.Tensor]
    ) -> None:
        self.cores, self.bonds = [], []
        for shape, packed_LP, diagonals_LK in zip(shapes, packed, diagonals, strict=True):
            self.cores.append(packed_LP.split(shape.core_sizes, dim=1))
            self.bonds.append(diagonals_LK.split(shape.ranks, dim=1))

    def core(self, side: _Side, place: int, core_shape: Sequence[int]) -> torch.Tensor:
        """Return one core of every half of a side: (L, O, I, mode)."""
        return self.cores[side.group][side.cores[place]].view(len(side.results), *core_shape)

    def bond(self, side: _Side, place: int) -> torch.Tensor | None:
        """Return the diagonals that scale it, (L, I), if any do."""
        bond = side.bonds[place]
        return None if bond is None else self.bonds[side.group][bond]

    def scaled_cores(self, batch: _HalfBatch) -> list[torch.Tensor]:
        """Return the scaled cores of a batch of halves, (L, O, I, mode) each; never the cores themselves.

        Autograd would refuse a backward pass after a change of the parameters, if it were given views of them.
        """
        scaled = []
        for place, core_shape in enumerate(batch.core_shapes):
            parts = []
            for side in batch.sides:
                core_LOIm, bond_LI = self.core(side, place, core_shape), self.bond(side, place)
                parts.append(core_LOIm if bond_LI is None else core_LOIm * bond_LI[:, None, :, None])
            scaled.append(torch.cat(parts))
        return scaled


def _merge(scaled: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Merge from the end to the middle: partial products (L, I, modes so far), the last one the merged half."""
    partials = [scaled[-1].flatten(1, 2)]
    for core_LOIm in reversed(scaled[:-1]):
        count, _, rank, mode = core_LOIm.shape
        product = torch.bmm(core_LOIm.flatten(2).transpose(1, 2), partials[-1])
        partials.append(product.view(count, rank, mode * partials[-1].shape[2]))
    return partials


def _gradients(
    grad_LRW: torch.Tensor, scaled: Sequence[torch.Tensor], partials: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return gradients of the scaled cores, and of the diagonals times the diagonals (L, I), from the middle out.

    Multiplied by its diagonal, the gradient of a diagonal is the sum of gradient times value over what it scales: the
    core in the middle, the (smaller) partial product further out.
    """
    core_grads, bond_products = [], []
    grad = grad_LRW
    for core_LOIm, partial in zip(scaled[:-1], reversed(partials), strict=True):
        count, _, rank, mode = core_LOIm.shape
        grad = grad.view(count, rank * mode, partial.shape[2])
        core_grads.append(torch.bmm(partial, grad.transpose(1, 2)).view(core_LOIm.shape))
        grad = torch.bmm(core_LOIm.flatten(2), grad)
        bond_products.append((grad * partial).sum(2))
    core_grads.append(grad.view(scaled[-1].shape))
    return core_grads, [(core_grads[0] * scaled[0]).sum((1, 3)), *bond_products]


def _merge_batches(
    shapes: tuple[TTShape, ...], threshold: float, parameters: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Return left then right halves, layer by layer; effective diagonals; scaled cores and partial products.

    Args:
        parameters: L packed core vectors, then L diagonal vectors.
    """
    packed, diagonals = parameters[: len(shapes)], parameters[len(shapes) :]
    groups, batches = _plan(shapes)
    effective = [effective_diagonals(rows, threshold) for rows in _rows(groups, diagonals)]
    chains = _Chains(groups, _rows(groups, packed), effective)
    results, kept = list(parameters), []
    for batch in batches:
        scaled = chains.scaled_cores(batch)
        partials = _merge(scaled)
        kept += [*scaled, *partials[1:-1]]  # the first partial product is the end core
        places = [place for side in batch.sides for place in side.results]
        for place, half_RW in zip(places, partials[-1].unbind(), strict=True):
            results[place] = half_RW
    return results, effective, kept


class _MergeCores(torch.autograd.Function):
    """Merge the cores of L layers into their left and right halves.

    Inputs after the settings: L packed core vectors, then L diagonal vectors. Outputs: L times ``left_RN``, then L
    times ``right_RM``. Saved for backward: the scaled cores and the partial products short of the halves.

    A layer that took no part in the loss gets no gradient, and layers of independent losses are independent: backward
    may run once for each.
    """

    @staticmethod
    def forward(
        ctx: Any, shapes: tuple[TTShape, ...], threshold: float, *parameters: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        results, effective, kept = _merge_batches(shapes, threshold, parameters)
        ctx.shapes = shapes
        ctx.kept_for_others = None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*effective, *kept)
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        saved = ctx.kept_for_others or ctx.saved_tensors
        if any(gradient is None for gradient in gradients):
            ctx.kept_for_others = saved  # autograd frees its own hold on them after this pass, another may follow
        groups, batches = _plan(ctx.shapes)
        effective, kept = saved[: len(groups)], iter(saved[len(groups) :])
        bonds = [rows.split(shape.ranks, dim=1) for shape, rows in zip(groups, effective, strict=True)]
        packed_grads = [
            rows.new_empty(len(rows), shape.parameter_count) for shape, rows in zip(groups, effective, strict=True)
        ]
        bond_grads = [rows.new_empty(rows.shape) for rows in effective]
        targets = _Chains(groups, packed_grads, bond_grads)
        for batch in batches:
            scaled = [next(kept) for _ in batch.core_shapes]
            partials = [scaled[-1].flatten(1, 2), *(next(kept) for _ in scaled[2:])] if len(scaled) > 1 else []
            missing = effective[0].new_zeros(()).expand(batch.half_shape)
            of_batch = [gradients[place] for side in batch.sides for place in side.results]
            grad_LRW = torch.stack([missing if grad is None else grad for grad in of_batch])
            core_grads, bond_products = _gradients(grad_LRW.to(effective[0].dtype), scaled, partials)
            for place, core_shape in enumerate(batch.core_shapes):
                for side in batch.sides:
                    grad_LOIm, target = core_grads[place][side.rows], targets.core(side, place, core_shape)
                    bond = side.bonds[place]
                    if bond is None:
                        target.copy_(grad_LOIm)
                    else:
                        bond_LI = bonds[side.group][bond]
                        _write(target, torch.mul, grad_LOIm, bond_LI[:, None, :, None])
                        _write(targets.bonds[side.group][bond], torch.div, bond_products[place][side.rows], bond_LI)
        count = len(ctx.shapes)
        took_part = [gradients[layer] is not None or gradients[count + layer] is not None for layer in range(count)]
        results: list[torch.Tensor | None] = [None] * len(gradients)
        for layers, packed_LP, bonds_LK, rows in zip(groups.values(), packed_grads, bond_grads, effective, strict=True):
            # A dead entry passes no gradient to itself.
            diagonals_LK = torch.where(rows != 0, bonds_LK, 0)
            for layer, core_grad, bond_grad in zip(layers, packed_LP.unbind(), diagonals_LK.unbind(), strict=True):
                if took_part[layer]:
                    results[layer], results[count + layer] = core_grad, bond_grad
        return None, None, *results


def _write(target: torch.Tensor, operation: Any, *operands: torch.Tensor) -> None:
    """Write an elementwise result into a tensor; the compiler takes no ``out`` that is not contiguous."""
    if torch.compiler.is_compiling():
        target.copy_(operation(*operands))
    else:
        operation(*operands, out=target)


def _rows(groups: dict[TTShape, list[int]], vectors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the vectors of each group as the rows of a matrix."""
    return [torch.stack([vectors[layer] for layer in layers]) for layers in groups.values()]


def merge_cores(
    packed: Sequence[torch.Tensor],
    diagonals: Sequence[torch.Tensor],
    shapes: Sequence[TTShape],
    threshold: float = THRESHOLD,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Merge the cores of one or more layers into the two halves each; halves of one shape are merged in one batch.

    Merging happens in the type of the rank-control entries, under autocast too; what multiplies with the halves casts
    them.

    Args:
        packed: per layer all cores in one vector, see :func:`comera.tensor_train.pack_cores`; all of one type, on one
            device.
        diagonals: per layer all rank-control entries in one vector, bond after bond.
        shapes: modes and ranks of each layer.
        threshold: diagonal entries up to this magnitude count as zero.

    Returns:
        Per layer ``(left_RN, right_RM)``; ``left_RN.T @ right_RM`` is the matrix (N, M).

    Example:
        >>> shape = TTShape(4, 6, (2, 2), (2, 3), 2)
        >>> [(left, right)] = merge_cores([torch.ones(shape.parameter_count)], [torch.ones(6)], [shape])
        >>> left.shape, right.shape
        (torch.Size([2, 4]), torch.Size([2, 6]))
    """
    device = packed[0].device.type
    packed = [cores.to(entries.dtype) for cores, entries in zip(packed, diagonals, strict=True)]
    with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else contextlib.nullcontext():
        if torch.compiler.is_compiling() and not torch.is_grad_enabled():  # PyTorch 2.11 mixes the arguments up there
            halves = _merge_batches(tuple(shapes), threshold, (*packed, *diagonals))[0]
        else:
            halves = _MergeCores.apply(tuple(shapes), threshold, *packed, *diagonals)
    return list(zip(halves[: len(packed)], halves[len(packed) :], strict=True))


#: Middle ranks from this on are faster with the rank as the outer dimension of z.
_THIN = 8


class _AddBias(torch.autograd.Function):
    """A bias added to rows, with its gradient by a product: the compiler's sums over rows take twice as long.

    Args:
        rows: (…, M).
        bias: (M,).
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return rows + bias

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG004
        rows_BM = gradient.reshape(-1, gradient.shape[-1])
        return gradient, torch.mm(rows_BM.new_ones(1, rows_BM.shape[0]), rows_BM).view(-1)


def two_half_linear(
    x: torch.Tensor,
    left_RN: torch.Tensor,
    right_RM: torch.Tensor,
    bias: torch.Tensor | None,
    z_RB: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply a merged TT matrix to the last dimension of ``x``: (…, N) to (…, M).

    Plain torch operations: what autograd saves (x, z and the two halves) is what backward needs, and the bias is added
    inside the last product. ``z_RB`` is the first product, where it has been formed together with others.
    """
    x_BN = x.reshape(-1, left_RN.shape[1])
    if z_RB is not None:
        z_BR = z_RB.t()
    else:
        z_BR = F.linear(x_BN, left_RN) if left_RN.shape[0] < _THIN else torch.mm(left_RN, x_BN.t()).t()
    compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if compiled and bias is not None and x.device.type == "cpu":
        # The compiler adds the bias in the loop that follows, where addmm first writes it to all rows; with no view
        # between product and sum it would make an addmm of them.
        y = F.linear(z_BR, right_RM.t()).view(*x.shape[:-1], right_RM.shape[1])
        return _AddBias.apply(y, bias.to(y.dtype))
    y_BM = F.linear(z_BR, right_RM.t()) if bias is None else torch.addmm(bias, z_BR, right_RM)
    return y_BM.view(*x.shape[:-1], right_RM.shape[1])
