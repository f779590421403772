"""Sums and means of rows of a TTM table, bag by bag, as ``nn.EmbeddingBag`` has them.

Shape suffixes: those of :mod:`comera.lookup.rows`, of whose indices there are ``T`` here, in ``B`` bags and ``G``
groups.

A bag (:func:`ttm_bags`) is a sum of rows, and a row is linear in either half. Items of a bag that agree in their tuple
of one half can therefore have their slices of the other half summed before the last product. ``T`` items in ``B`` bags
then need a product for each of the ``G`` pairs of a bag and a tuple, instead of one for each of the ``U`` distinct
rows. The half whose tuples make the groups is the one with fewer of them; slices of the other have ``S`` entries.
Multiply-adds, forward:

    rows first:     U·D·R + T·D
    slices first:   G·D·R + G·D + T·S

``optimized`` counts U and G in each batch and takes the smaller, backward costing twice as much either way. Slices come
first where bags are long and share few rows with one another; with a bag per row, as in most click models, rows do.
Where the shapes of operations may not depend on the data, and under ``torch.func``, rows come first as well.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from comera.lookup.rows import (
    Half,
    HalvesLookup,
    Variant,
    core_by_core,
    flat_indices,
    half_tuples,
    in_the_parameters_type,
    is_checkable,
    parameter_gradients,
    product_gradients,
    products,
    rows_per_right_tuple,
    shapes_must_be_known,
    sum_rows,
    two_halves,
    unique_rows,
)
from comera.rank_control import THRESHOLD, effective_diagonals
from comera.tensor_train import TTMShape

BagMode = Literal["sum", "mean"]
BAG_MODES: tuple[BagMode, ...] = get_args(BagMode)


def _sum_type(kind: torch.dtype) -> torch.dtype:
    """Return the type in which to sum; in half precision, sums of many rows stop growing."""
    return torch.promote_types(kind, torch.float32)


class _Groups(NamedTuple):
    """Items of bags in groups that agree in their bag and in their tuple of one half, the shared one."""

    bag_G: torch.Tensor
    shared_G: torch.Tensor  # tuple of the shared half
    group_T: torch.Tensor
    pooled_W: torch.Tensor  # tuples of the other half that occur
    place_T: torch.Tensor  # where among those an item has its own
    bags: int
    left_is_shared: bool

    def tuples(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tuples whose slices the left half needs, and those whose slices the right half needs."""
        return (self.shared_G, self.pooled_W) if self.left_is_shared else (self.pooled_W, self.shared_G)


class _PooledLookup(torch.autograd.Function):
    """Sums (B, D) of the items of bags, slices of one half summed before the last product.

    Saves what :class:`comera.lookup.rows.HalvesLookup` does, and weights: nothing per item but numbers.
    """

    @staticmethod
    def forward(
        ctx: Any,
        packed: torch.Tensor,
        diagonals: torch.Tensor,
        weights_T: torch.Tensor | None,
        groups: _Groups,
        shape: TTMShape,
        threshold: float,
    ) -> torch.Tensor:
        effective = effective_diagonals(diagonals, threshold)
        _, left, right = two_halves(packed, effective, shape, *groups.tuples())
        summed, _ = _PooledLookup._summed(right if groups.left_is_shared else left, weights_T, groups)
        if groups.left_is_shared:
            ctx.counts, sums_GCE = None, torch.bmm(left.slices().squeeze(1), summed.squeeze(3))
        else:
            ctx.counts = rows_per_right_tuple(right)
            sums_GCE = products(summed.squeeze(1), right, ctx.counts)
        sums_GD = sums_GCE.flatten(1).to(_sum_type(packed.dtype))
        ctx.save_for_backward(packed, effective, weights_T, *groups[:5], *left.products, *right.products)
        ctx.shape, ctx.of_groups, ctx.left_products = shape, groups[5:], len(left.products)
        return sums_GD.new_zeros(groups.bags, shape.embedding_dim).index_add_(0, groups.bag_G, sums_GD).to(packed.dtype)

    @staticmethod
    def _summed(pooled: Half, weights_T: torch.Tensor | None, groups: _Groups) -> tuple[torch.Tensor, torch.Tensor]:
        """Return slices of the half that is not shared, summed in each group, (G, …), and the summands (W, S)."""
        slices = pooled.slices()
        table_WS = slices.flatten(1).to(_sum_type(slices.dtype))
        summed = sum_rows(table_WS, groups.group_T, len(groups.bag_G), groups.place_T, weights_T)
        return summed.view(len(groups.bag_G), *slices.shape[1:]).to(slices.dtype), table_WS

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_BD: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        with in_the_parameters_type(grad_BD):
            return _PooledLookup._gradients(ctx, grad_BD)

    @staticmethod
    def _gradients(ctx: Any, grad_BD: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        shape: TTMShape = ctx.shape
        packed, effective, weights_T, *saved = ctx.saved_tensors
        groups = _Groups(*saved[:5], *ctx.of_groups)
        kept = [product.to(packed.dtype) for product in saved[5:]]
        halves = kept[: ctx.left_products], kept[ctx.left_products :]
        plain, left, right = two_halves(packed, effective, shape, *groups.tuples(), halves)
        summed, table_WS = _PooledLookup._summed(right if groups.left_is_shared else left, weights_T, groups)
        grad_GD = grad_BD.to(packed.dtype).index_select(0, groups.bag_G)
        columns = [math.prod(modes) for modes in (shape.column_modes[: shape.half], shape.column_modes[shape.half :])]
        grad_GCE = grad_GD.view(len(grad_GD), *columns)
        if groups.left_is_shared:
            left_GCR, summed_GRE = left.slices().squeeze(1), summed.squeeze(3)
            shared_cores = left.core_gradients(torch.bmm(grad_GCE, summed_GRE.transpose(1, 2)).unsqueeze(1))
            of_summed = torch.bmm(left_GCR.transpose(1, 2), grad_GCE)
        else:
            of_summed, shared_cores = product_gradients(grad_GCE, summed.squeeze(1), right, ctx.counts)
        summed_GS = of_summed.flatten(1).to(table_WS.dtype)
        of_slices = sum_rows(summed_GS, groups.place_T, len(table_WS), groups.group_T, weights_T)
        of_slices = of_slices.view(len(table_WS), *summed.shape[1:]).to(packed.dtype)
        of_weights = None
        if ctx.needs_input_grad[2] and weights_T is not None:
            parts = zip(groups.group_T.split(len(table_WS)), groups.place_T.split(len(table_WS)), strict=True)
            of_weights = torch.cat([(summed_GS[group] * table_WS[place]).sum(1) for group, place in parts])
            of_weights = of_weights.to(weights_T.dtype)
        pooled_cores = (right if groups.left_is_shared else left).core_gradients(of_slices)
        scaled_grads = shared_cores + pooled_cores if groups.left_is_shared else pooled_cores + shared_cores
        return *parameter_gradients(scaled_grads, plain, effective, shape), of_weights, None, None, None


def _groups_if_cheaper(
    indices_T: torch.Tensor,
    bounds: torch.Tensor,
    weights_T: torch.Tensor | None,
    distinct_rows: int,
    shape: TTMShape,
    padding_idx: int | None,
) -> tuple[_Groups | None, torch.Tensor | None]:
    """Group the items that count, with their weights, if summing slices first costs less (see the module)."""
    bags = len(bounds) - 1
    bag_T = torch.repeat_interleave(torch.arange(bags, device=bounds.device), bounds.diff())
    if padding_idx is not None:
        counts_T = indices_T != padding_idx
        bag_T, indices_T = bag_T[counts_T], indices_T[counts_T]
        weights_T = None if weights_T is None else weights_T[counts_T]
    left_rows, right_rows = math.prod(shape.row_modes[: shape.half]), math.prod(shape.row_modes[shape.half :])
    left_is_shared = left_rows <= right_rows
    columns = shape.column_modes[shape.half :] if left_is_shared else shape.column_modes[: shape.half]
    rank, items = shape.ranks[shape.half - 1], len(indices_T)
    slice_entries = rank * math.prod(columns)

    def slices_first(groups: int) -> int:
        return groups * shape.embedding_dim * (rank + 1) + items * slice_entries

    rows_first = distinct_rows * shape.embedding_dim * rank + items * shape.embedding_dim
    # Each bag that is not empty is a group at least: often enough to know without counting the groups.
    if (
        not items * rank
        or slices_first(1) >= rows_first
        or slices_first(int(bag_T.diff().count_nonzero()) + 1) >= rows_first
    ):
        return None, None
    left, right = half_tuples(indices_T, shape)
    shared, pooled = (left, right) if left_is_shared else (right, left)
    key_G, group_T = torch.unique(shared * bags + bag_T, return_inverse=True)  # tuple by tuple, as rows are
    if slices_first(len(key_G)) >= rows_first:
        return None, None
    shared_G, bag_G = torch.div(key_G, bags, rounding_mode="floor"), key_G.remainder(bags)
    pooled_W, place_T = torch.unique(pooled, return_inverse=True)
    return _Groups(bag_G, shared_G, group_T, pooled_W, place_T, bags, left_is_shared), weights_T


def ttm_bags(
    indices: torch.Tensor,
    bounds: torch.Tensor,
    packed: torch.Tensor,
    diagonals: torch.Tensor,
    shape: TTMShape,
    mode: BagMode = "sum",
    padding_idx: int | None = None,
    variant: Variant = "optimized",
    threshold: float = THRESHOLD,
    weights_T: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return sums or means of rows of a TTM table, bag by bag; the module describes the variants.

    Args:
        indices: T integers, bag after bag; fake tensors as in :func:`ttm_rows`.
        bounds: where each bag begins, and where the last one ends, integers (B + 1,), ascending from 0 to T.
        packed, diagonals, shape, variant, threshold: as in :func:`ttm_rows`.
        mode: ``"sum"`` or ``"mean"``; of an empty bag both are zero.
        padding_idx: items with this index do not count.
        weights_T: factors of the rows, (T,), with a gradient of their own if they require one.

    Returns:
        (B, D), in the parameters' type; sums of half precision are formed in float32.

    Raises:
        IndexError: an index outside the table; bounds that do not ascend from 0 to T (both checked on the CPU,
            where it costs no synchronisation).
        ValueError: an unknown variant.

    Example:
        >>> shape = TTMShape(6, 4, (2, 3), (2, 2), 1)
        >>> ttm_bags(torch.tensor([0, 5, 5]), torch.tensor([0, 2, 2, 3]), torch.ones(10), torch.ones(1), shape)[:, 0]
        tensor([2., 0., 1.])
    """
    indices_T = flat_indices(indices, shape, variant)
    if is_checkable(bounds) and not torch._C._functorch.is_functorch_wrapped_tensor(bounds):
        items = len(indices_T)
        if bool((bounds.diff() < 0).any()) or (int(bounds[0]), int(bounds[-1])) != (0, items):
            raise IndexError(
                f"offsets must ascend from 0 and stay within the {items} indices, where the last bag ends."
            )
    transformed = torch._C._are_functorch_transforms_active()
    sums = None
    rows_U, place_T = indices_T, None
    if not transformed and variant not in ("plain", "order"):
        rows_U, place_T = unique_rows(indices_T, shape)
        if variant == "optimized" and not isinstance(indices_T, FakeTensor) and not shapes_must_be_known(indices_T):
            groups, weights = _groups_if_cheaper(indices_T, bounds, weights_T, len(rows_U), shape, padding_idx)
            if groups is not None:
                sums = _PooledLookup.apply(packed, diagonals, weights, groups, shape, threshold)
    if sums is None:
        table = (packed, diagonals, shape, padding_idx, threshold)
        halves = not transformed and variant in ("order", "optimized")
        rows_UD = (
            HalvesLookup.apply(rows_U, None, *table, variant == "optimized") if halves else core_by_core(rows_U, *table)
        )
        rows_UD = rows_UD.to(_sum_type(packed.dtype))
        weights = None if weights_T is None else weights_T.to(rows_UD.dtype)
        if place_T is None:
            place_T = torch.arange(rows_U.shape[0], device=rows_U.device)
        sums = F.embedding_bag(
            place_T, rows_UD, bounds, mode="sum", per_sample_weights=weights, include_last_offset=True
        ).to(packed.dtype)
    if mode == "sum":
        return sums
    if padding_idx is not None:  # how many items before each bound count
        bounds = F.pad((indices_T != padding_idx).cumsum(0), (1, 0))[bounds]
    counts = bounds.diff()
    return sums / counts.clamp(min=1).unsqueeze(1)
