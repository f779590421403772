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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch.nn import functional as F

from comera.compatibility.autocast import autocast_type, without_autocast
from comera.rank_control import THRESHOLD, effective_diagonals
from comera.tensor_train import TTShape, packed_axes


@dataclass(frozen=True)
class _Half:
    """The left or the right half of a layer; tuples run from the middle of the chain to its end."""

    layer: int
    cores: tuple[int, ...]
    #: The bond on the inner side of each core, whose diagonal scales it. The middle bond scales the right half.
    bonds: tuple[int | None, ...]


@dataclass(frozen=True)
class _HalfBatch:
    """Halves of one shape, merged together: per core (O, I, mode), from the middle to the end.

    Left halves come first: no diagonal scales their core in the middle.
    """

    core_shapes: tuple[tuple[int, ...], ...]
    halves: tuple[_Half, ...]
    lefts: int

    @property
    def half_shape(self) -> tuple[int, int]:
        """Return the shape of a merged half: middle rank, product of its modes."""
        return self.core_shapes[0][1], math.prod([mode for _, _, mode in self.core_shapes])

    def unscaled(self, place: int) -> int:
        """Return how many halves have a core at a place that no diagonal scales."""
        return 0 if place else self.lefts


@dataclass(frozen=True)
class _MergePlan:
    """The batches of the halves of some layers, and where gradients of their cores and bonds lie among those of all.

    Batch by batch and place by place, halves have a core each and most a bond. ``core_places`` and ``bond_places`` give
    the number in that order of each layer's cores and bonds, in the order of the layers.
    """

    batches: tuple[_HalfBatch, ...]
    core_places: tuple[int, ...]
    bond_places: tuple[int, ...]
    bond_order: tuple[int, ...]  # the inverse of bond_places
    bond_ranks: tuple[int, ...]  # of the bonds in that order


@lru_cache(maxsize=256)
def _plan(shapes: tuple[TTShape, ...]) -> _MergePlan:
    """Group the halves of layers by equal shape."""
    together: dict[tuple[tuple[int, ...], ...], tuple[list[_Half], list[_Half]]] = {}
    for layer, shape in enumerate(shapes):
        left, right = tuple(reversed(range(shape.half))), tuple(range(shape.half, 2 * shape.half))
        left_bonds, right_bonds = (None, *left[1:]), tuple(core - 1 for core in right)
        for side, (cores, bonds) in enumerate(((left, left_bonds), (right, right_bonds))):
            axes = packed_axes(shape, cores[0])
            key = tuple(tuple(shape.core_shapes[core][axis] for axis in axes) for core in cores)
            together.setdefault(key, ([], []))[side].append(_Half(layer, cores, bonds))
    batches = tuple(_HalfBatch(key, (*lefts, *rights), len(lefts)) for key, (lefts, rights) in together.items())
    core_numbers: dict[tuple[int, int], int] = {}  # by layer and place in the chain
    bond_numbers: dict[tuple[int, int], int] = {}
    for batch in batches:
        for place in range(len(batch.core_shapes)):
            for half in batch.halves:
                core_numbers[half.layer, half.cores[place]] = len(core_numbers)
                if (scaling := half.bonds[place]) is not None:
                    bond_numbers[half.layer, scaling] = len(bond_numbers)
    by_layer = {key: number for number, key in enumerate(sorted(bond_numbers))}
    return _MergePlan(
        batches,
        core_places=tuple(core_numbers[key] for key in sorted(core_numbers)),
        bond_places=tuple(bond_numbers[key] for key in sorted(bond_numbers)),
        bond_order=tuple(by_layer[key] for key in bond_numbers),
        bond_ranks=tuple(shapes[layer].ranks[bond] for layer, bond in bond_numbers),
    )


def _bonds(shapes: tuple[TTShape, ...], effective: torch.Tensor) -> torch.Tensor:
    """Return the entries of all bonds, layer by layer, in the order of a plan's batches."""
    each = effective.split([rank for shape in shapes for rank in shape.ranks])
    return torch.cat([each[number] for number in _plan(shapes).bond_order])


def _scales(batches: Iterable[_HalfBatch], bonds: torch.Tensor) -> list[list[torch.Tensor | None]]:
    """Return, for each batch and place, the diagonals (L, 1, I, 1) of the cores that some scale; None without any."""
    rows = [
        (len(batch.halves) - batch.unscaled(place), core_shape[1])
        for batch in batches
        for place, core_shape in enumerate(batch.core_shapes)
    ]
    parts = zip(rows, bonds.split([count * rank for count, rank in rows]), strict=True)
    return [
        [
            part.view(count, 1, rank, 1) if count else None
            for (count, rank), part in islice(parts, len(batch.halves[0].cores))
        ]
        for batch in batches
    ]


def _scaled_cores(
    batch: _HalfBatch, cores: Sequence[Sequence[torch.Tensor]], scales: Sequence[torch.Tensor | None]
) -> list[torch.Tensor]:
    """Return the scaled cores of a batch of halves, (L, O, I, mode) each; never the cores themselves.

    Autograd would refuse a backward pass after a change of the parameters, if it were given views of them.
    """
    scaled = []
    for place, core_shape in enumerate(batch.core_shapes):
        scale, parts = scales[place], [cores[half.layer][half.cores[place]] for half in batch.halves]
        if len(parts) == 1:
            core = parts[0].view(1, *core_shape)
            scaled.append(core.clone() if scale is None else core * scale)
        else:
            core = torch.cat(parts).view(len(parts), *core_shape)
            if scale is not None:
                core[batch.unscaled(place) :].mul_(scale)
            scaled.append(core)
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
    grad_LRW: torch.Tensor,
    scaled: Sequence[torch.Tensor],
    partials: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor | None],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return gradients of the cores, and of the diagonals times the diagonals (L, I), from the middle out.

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
    outermost = grad.view(scaled[-1].shape)
    core_grads.append(outermost if partials else outermost.clone())  # what autograd passed on stays as it is
    if (scale := scales[0]) is not None:
        middle, value = (tensor[-len(scale) :] for tensor in (core_grads[0], scaled[0]))
        bond_products.insert(0, (middle * value).sum((1, 3)))
    for gradient, scale in zip(core_grads, scales, strict=True):
        if scale is not None:
            gradient[-len(scale) :].mul_(scale)
    return core_grads, bond_products


def _merge_batches(
    shapes: tuple[TTShape, ...],
    threshold: float,
    kind: torch.dtype | None,
    tf32: bool,
    parameters: tuple[torch.Tensor, ...],
) -> tuple[list[torch.Tensor], torch.Tensor, list[torch.Tensor]]:
    """Return left then right halves, layer by layer; the entries; what backward needs: bonds, cores, partial products.

    Args:
        kind: type of the halves; None: that of the parameters.
        tf32: as for :func:`tensor_cores`.
        parameters: L packed core vectors, then L diagonal vectors.
    """
    count = len(shapes)
    batches, entries = _plan(shapes).batches, torch.cat(parameters[count:])
    bonds = _bonds(shapes, effective_diagonals(entries, threshold))
    cores = [vector.split(shape.core_sizes) for vector, shape in zip(parameters, shapes, strict=False)]
    results, kept = list(parameters), [bonds]
    for batch, scales in zip(batches, _scales(batches, bonds), strict=True):
        scaled = _scaled_cores(batch, cores, scales)
        with tensor_cores(bonds.device.type, kind, tf32):
            partials = _merge(scaled)
        kept += [*scaled, *partials[1:-1]]  # the first partial product is the end core
        merged = partials[-1] if kind is None else partials[-1].to(kind)
        for number, (half, half_RW) in enumerate(zip(batch.halves, merged.unbind(), strict=True)):
            results[half.layer if number < batch.lefts else count + half.layer] = half_RW
    return results, entries, kept


class _MergeCores(torch.autograd.Function):
    """Merge the cores of L layers into their left and right halves.

    Inputs after the settings: L packed core vectors, then L diagonal vectors. Outputs: L times ``left_RN``, then L
    times ``right_RM``, then the entries of all diagonals in one vector. Saved for backward: the scaled cores and the
    partial products short of the halves.

    A layer that took no part in the loss gets no gradient, and layers of independent losses are independent: backward
    may run once for each. What depends on the vector of entries adds its gradient to all diagonals at once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        shapes: tuple[TTShape, ...],
        threshold: float,
        kind: torch.dtype | None,
        tf32: bool,
        *parameters: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        results, entries, kept = _merge_batches(shapes, threshold, kind, tf32, parameters)
        ctx.shapes, ctx.threshold, ctx.kind, ctx.tf32 = shapes, threshold, kind, tf32
        ctx.kept_for_others = None
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*kept)
        return *results, entries

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        *of_halves, of_entries = gradients
        count, lengths = len(ctx.shapes), [sum(shape.ranks) for shape in ctx.shapes]
        results: list[torch.Tensor | None] = [None] * (2 * count)
        if of_entries is not None:
            results[count:] = of_entries.split(lengths)
        if all(gradient is None for gradient in of_halves):
            return None, None, None, None, *results
        saved = ctx.kept_for_others or ctx.saved_tensors
        if any(gradient is None for gradient in of_halves):
            ctx.kept_for_others = saved  # autograd frees its own hold on them after this pass, another may follow
        plan = _plan(ctx.shapes)
        bonds, kept = saved[0], iter(saved[1:])
        core_grads: list[torch.Tensor] = []
        bond_products: list[torch.Tensor] = []
        for batch, scales in zip(plan.batches, _scales(plan.batches, bonds), strict=True):
            scaled = [next(kept) for _ in batch.core_shapes]
            partials = [scaled[-1].flatten(1, 2), *(next(kept) for _ in scaled[2:])] if len(scaled) > 1 else []
            rows = [half.layer + count * (number >= batch.lefts) for number, half in enumerate(batch.halves)]
            grad_LRW = _stacked([of_halves[row] for row in rows], batch.half_shape, bonds)
            with without_autocast(bonds.device.type), tensor_cores(bonds.device.type, ctx.kind, ctx.tf32):
                of_cores, products = _gradients(grad_LRW, scaled, partials, scales)
            core_grads += [gradient for grad_LOIm in of_cores for gradient in grad_LOIm.flatten(1).unbind()]
            bond_products += [product_LI.flatten() for product_LI in products]
        packed = torch.cat([core_grads[place] for place in plan.core_places])
        # A dead entry passes no gradient to itself.
        of_bonds = torch.ops.aten.hardshrink_backward(torch.cat(bond_products) / bonds, bonds, ctx.threshold)
        by_bond = of_bonds.split(plan.bond_ranks)
        diagonals = torch.cat([by_bond[place] for place in plan.bond_places])
        if of_entries is not None:
            diagonals = diagonals + of_entries
        parts = packed.split([shape.parameter_count for shape in ctx.shapes]), diagonals.split(lengths)
        for layer, (of_packed, of_diagonals) in enumerate(zip(*parts, strict=True)):
            took_part = of_halves[layer] is not None or of_halves[count + layer] is not None
            if took_part:
                results[layer] = of_packed
            if took_part or of_entries is not None:
                results[count + layer] = of_diagonals
        return None, None, None, None, *results


def _stacked(gradients: Sequence[torch.Tensor | None], half_shape: tuple[int, int], like: torch.Tensor) -> torch.Tensor:
    """Return gradients of halves as one tensor (L, R, W) in the type of ``like``, zeros for missing ones."""
    there = [gradient for gradient in gradients if gradient is not None]
    if len(gradients) == 1:
        stacked = there[0].unsqueeze(0) if there else like.new_zeros(1, *half_shape)
    else:
        missing = (there or [like])[0].new_zeros(()).expand(half_shape)
        stacked = torch.stack([missing if gradient is None else gradient for gradient in gradients])
    return stacked.to(like.dtype).contiguous()


def merge_cores(
    packed: Sequence[torch.Tensor],
    diagonals: Sequence[torch.Tensor],
    shapes: Sequence[TTShape],
    threshold: float = THRESHOLD,
    tf32: bool = True,
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Merge the cores of one or more layers into the two halves each; halves of one shape are merged in one batch.

    Merging happens in the type of the rank-control entries, under autocast too. There the halves are then cast
    together to the type of autocast, which is that of the products with them.

    Args:
        packed: per layer all cores in one vector, see :func:`comera.tensor_train.pack_cores`; all of one type, on one
            device.
        diagonals: per layer all rank-control entries in one vector, bond after bond.
        shapes: modes and ranks of each layer.
        threshold: diagonal entries up to this magnitude count as zero.
        tf32: merge in TF32 on CUDA where halves are cast to half precision.

    Returns:
        Per layer ``(left_RN, right_RM)``; ``left_RN.T @ right_RM`` is the matrix (N, M).

    Example:
        >>> shape = TTShape(4, 6, (2, 2), (2, 3), 2)
        >>> [(left, right)] = merge_cores([torch.ones(shape.parameter_count)], [torch.ones(6)], [shape])
        >>> left.shape, right.shape
        (torch.Size([2, 4]), torch.Size([2, 6]))
    """
    return merge_with_entries(packed, diagonals, shapes, threshold, tf32)[0]


def merge_with_entries(
    packed: Sequence[torch.Tensor],
    diagonals: Sequence[torch.Tensor],
    shapes: Sequence[TTShape],
    threshold: float = THRESHOLD,
    tf32: bool = True,
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor | None]:
    """Return the halves of :func:`merge_cores`, and the rank-control entries of all layers in one vector.

    A function of that vector adds its gradient to those of all diagonals by one operation. None without gradients.
    """
    device = packed[0].device.type
    packed = [cores.to(entries.dtype) for cores, entries in zip(packed, diagonals, strict=True)]
    kind = None if torch.compiler.is_compiling() or packed[0].dtype == torch.float64 else autocast_type(device)
    given = (tuple(shapes), threshold, kind, tf32)
    with without_autocast(device):
        if torch.compiler.is_compiling() and not torch.is_grad_enabled():  # PyTorch 2.11 mixes the arguments up there
            halves, entries = _merge_batches(*given, (*packed, *diagonals))[0], None
        else:
            *halves, entries = _MergeCores.apply(*given, *packed, *diagonals)
    return list(zip(halves[: len(packed)], halves[len(packed) :], strict=True)), entries


class _CastTogether(torch.autograd.Function):
    """Vectors in another type, cast in one operation each way; one that took no part in the loss has no gradient."""

    @staticmethod
    def forward(ctx: Any, kind: torch.dtype, *vectors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.given = vectors[0].dtype
        return torch.cat(vectors).to(kind).split([len(vector) for vector in vectors])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        there = [gradient for gradient in gradients if gradient is not None]
        cast = iter(torch.cat(there).to(ctx.given).split([len(gradient) for gradient in there]) if there else ())
        return None, *(None if gradient is None else next(cast) for gradient in gradients)


def cast_together(vectors: Sequence[torch.Tensor], kind: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return vectors (K_i,) of one type and device in the type ``kind``, with gradients in their own type.

    >>> [half.dtype for half in cast_together([torch.ones(2), torch.ones(3)], torch.bfloat16)]
    [torch.bfloat16, torch.bfloat16]
    """
    return _CastTogether.apply(kind, *vectors)


@contextlib.contextmanager
def tensor_cores(device: str, kind: torch.dtype | None, tf32: bool = True) -> Iterator[None]:
    """Multiply in TF32 on CUDA while halves are merged that are then cast to half precision; else change nothing.

    With ``tf32`` false nothing changes either.

    TF32 rounds as coarsely as float16 and less than bfloat16, to which the halves are rounded anyway. A process that
    mixes PyTorch's two ways to set that precision keeps what it has set.
    """
    before = None
    if tf32 and device == "cuda" and kind in (torch.bfloat16, torch.float16):
        with contextlib.suppress(RuntimeError):  # of mixed settings
            before = torch.get_float32_matmul_precision()
    if before != "highest":
        yield
        return
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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
