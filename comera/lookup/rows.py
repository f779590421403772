"""Rows of a TTM table without forming the table.

Shape suffixes: ``T`` indices in the flattened batch, ``U`` unique rows among them, ``P``/``Q`` row tuples of the left
and right half of the modes, ``C``/``E`` columns of the left and right half, ``R`` middle rank, ``D`` columns.

The variants of the paper's Fig. 5 differ in two decisions:

=============  ================  =====================================================
variant        rows formed for   a row formed by
=============  ================  =====================================================
``plain``      every index       a gather and a batched product per core
``unique``     each unique row   the same
``order``      every index       one batched product of the slices of two halves
``optimized``  each unique row   the same
=============  ================  =====================================================

A half is made of neighbouring cores. Its partial index tuples are few, about the square root of the table's rows, so
it is merged once for all of them and a row gathers its slice; only where the rows are fewer still do they multiply
their own slices of the cores. With unique rows, gradients are formed once per unique row as well, and on a CPU those
that share a right tuple are multiplied together (:func:`rows_per_right_tuple`). Buffers are of the
size of the rows looked up and of the halves, never of the table. ``optimized`` is the one to use; the others
measure what each decision is worth, and are oracles in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, get_args

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from comera.capture import shapes_are_fixed
from comera.compatibility.autocast import without_autocast
from comera.rank_control import THRESHOLD, effective_diagonals
from comera.tensor_train import TTMShape, pack_cores, unpack_cores

Variant = Literal["optimized", "plain", "unique", "order"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)

#: Rows per right tuple from which on they are multiplied together (:func:`rows_per_right_tuple`).
_TOGETHER = 8


def shapes_must_be_known(indices_T: torch.Tensor) -> bool:
    """Return whether the shape of no operation may depend on the data."""
    capturing = indices_T.is_cuda and torch.cuda.is_current_stream_capturing()
    return torch.compiler.is_compiling() or shapes_are_fixed() or capturing


def unique_rows(indices_T: torch.Tensor, shape: TTMShape) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return unique indices, in the order of their right tuples, and the row of each index of the batch.

    How many there are depends on the data. Where shapes must be known beforehand (compilation, steps that are captured
    as a CUDA Graph with their warm-up, fake tensors) every index counts as its own row, the upper bound, unless a fake
    tensor carries the number in its attribute ``unique_count``. The row of each index is then None: it is its own.
    """
    if isinstance(indices_T, FakeTensor) and not torch.compiler.is_compiling() and not shapes_are_fixed():
        count = getattr(indices_T, "unique_count", indices_T.shape[0])
        return indices_T.new_empty(count), torch.empty_like(indices_T)
    if shapes_must_be_known(indices_T):
        return indices_T, None
    left, right = half_tuples(indices_T, shape)
    left_rows, right_rows = (
        math.prod(modes) for modes in (shape.row_modes[: shape.half], shape.row_modes[shape.half :])
    )
    key_U, inverse_T = torch.unique(right * left_rows + left, return_inverse=True)
    return key_U.remainder(left_rows) * right_rows + torch.div(key_U, left_rows, rounding_mode="floor"), inverse_T


def _merge_half(cores: Sequence[torch.Tensor]) -> torch.Tensor:
    """Merge cores (R[i-1], v[i], c[i], R[i]) into (first rank, Πv, Πc, last rank)."""
    merged = cores[0]
    for core in cores[1:]:
        rank, rows, columns, middle = merged.shape
        product = torch.mm(merged.reshape(rank * rows * columns, middle), core.flatten(1))
        product = product.view(rank, rows, columns, *core.shape[1:]).transpose(2, 3)
        merged = product.reshape(rank, rows * core.shape[1], columns * core.shape[2], core.shape[3])
    return merged


def _merge_half_gradients(grad: torch.Tensor, cores: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return gradients of the cores of a half, in order, from the gradient of the merged half."""
    gradients = []
    for count in range(len(cores) - 1, 0, -1):
        core = cores[count]
        partial = _merge_half(cores[:count])
        rank, rows, columns, middle = partial.shape
        grad = grad.view(rank, rows, core.shape[1], columns, core.shape[2], core.shape[3]).transpose(2, 3)
        grad = grad.reshape(rank * rows * columns, math.prod(core.shape[1:]))
        partial = partial.reshape(rank * rows * columns, middle)
        gradients.append(torch.mm(partial.t(), grad).view(core.shape))
        grad = torch.mm(grad, core.flatten(1).t()).view(rank, rows, columns, middle)
    return [grad.reshape(cores[0].shape), *reversed(gradients)]


class Half:
    """One half of the modes, and the slice (first rank, Πc, last rank) of it that each of U rows needs.

    Few rows multiply their slices of the cores; many rows gather from the merged half.

    Args:
        cores: of this half, scaled.
        row_modes: its row modes.
        tuples_U: the part of each row number that belongs to this half.
        products: what an earlier half of the same arguments formed, its ``products``; formed if empty.
    """

    def __init__(
        self,
        cores: Sequence[torch.Tensor],
        row_modes: Sequence[int],
        tuples_U: torch.Tensor,
        products: Sequence[torch.Tensor] = (),
    ) -> None:
        self.cores = cores
        self.tuples_U = tuples_U
        self.rows = math.prod(row_modes)
        count = tuples_U.shape[0]
        # An export with any number of rows has one code for all of them.
        any_number = torch.compiler.is_exporting() and not isinstance(count, int)
        self.few = not any_number and 2 * count < self.rows
        self.modes_U: list[torch.Tensor] = []
        if self.few:
            remaining = tuples_U
            for size in reversed(row_modes):
                self.modes_U.insert(0, remaining.remainder(size))
                remaining = torch.div(remaining, size, rounding_mode="floor")
        #: Few rows: products of the first two, three, … slices of each, (U, first rank · columns so far, rank). Many:
        #: the merged half. Small either way, and worth keeping for backward.
        self.products = list(products) or (self._slice_products() if self.few else [_merge_half(cores)])

    def _row_slice(self, place: int) -> torch.Tensor:
        """Return the slice of one core that each row needs: (U, R[i-1], c[i], R[i])."""
        return self.cores[place].transpose(0, 1).index_select(0, self.modes_U[place])

    def _slice_products(self) -> list[torch.Tensor]:
        product = self._row_slice(0).flatten(1, 2)
        products = []
        for place in range(1, len(self.cores)):
            piece = self._row_slice(place)
            product = torch.bmm(product, piece.flatten(2)).view(
                len(piece), product.shape[1] * piece.shape[2], piece.shape[3]
            )
            products.append(product)
        return products

    def slices(self) -> torch.Tensor:
        """Return the slices, (U, first rank, Πc, last rank)."""
        if not self.few:
            return self.products[0].transpose(0, 1).index_select(0, self.tuples_U)
        product = self.products[-1] if self.products else self._row_slice(0)
        columns = math.prod([core.shape[2] for core in self.cores])
        return product.view(len(product), self.cores[0].shape[0], columns, self.cores[-1].shape[3])

    def merged_gradients(self, grad: torch.Tensor) -> list[torch.Tensor]:
        """Return gradients of the cores, in order, from that of the merged half, (Πv, first rank, Πc, last rank)."""
        return _merge_half_gradients(grad.transpose(0, 1).contiguous(), self.cores)

    def core_gradients(self, grad: torch.Tensor) -> list[torch.Tensor]:
        """Return gradients of the cores, in order, from the gradient of :meth:`slices`."""
        if not self.few:
            return self.merged_gradients(grad.new_zeros(self.rows, *grad.shape[1:]).index_add_(0, self.tuples_U, grad))
        gradients: list[torch.Tensor] = []
        for place in range(len(self.cores) - 1, -1, -1):
            core, own = self.cores[place], grad
            if place > 0:
                piece = self._row_slice(place)
                before = self.products[place - 2] if place > 1 else self._row_slice(0).flatten(1, 2)
                grad = grad.reshape(grad.shape[0], before.shape[1], piece.shape[2] * piece.shape[3])
                own = torch.bmm(before.transpose(1, 2), grad)
                grad = torch.bmm(grad, piece.flatten(2).transpose(1, 2))
            total = core.new_zeros(core.shape[1], core.shape[0], core.shape[2], core.shape[3])
            total.index_add_(0, self.modes_U[place], own.reshape(len(own), *total.shape[1:]))
            gradients.insert(0, total.transpose(0, 1))
        return gradients


def two_halves(
    packed: torch.Tensor,
    effective: torch.Tensor,
    shape: TTMShape,
    left_tuples: torch.Tensor,
    right_tuples: torch.Tensor,
    products: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]] = ((), ()),
) -> tuple[list[torch.Tensor], Half, Half]:
    """Return the cores without their diagonals, and both halves with them."""
    plain = unpack_cores(packed, shape)
    bonds = effective.split(shape.ranks)
    cores = [plain[0], *(bond[:, None, None, None] * core for bond, core in zip(bonds, plain[1:], strict=True))]
    left = Half(cores[: shape.half], shape.row_modes[: shape.half], left_tuples, products[0])
    return plain, left, Half(cores[shape.half :], shape.row_modes[shape.half :], right_tuples, products[1])


def half_tuples(rows: torch.Tensor, shape: TTMShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the parts of row numbers that belong to the left and to the right half."""
    right_rows = math.prod(shape.row_modes[shape.half :])
    return torch.div(rows, right_rows, rounding_mode="floor"), rows.remainder(right_rows)


def in_the_parameters_type(grad: torch.Tensor) -> AbstractContextManager[Any]:
    """Turn autocast off for a backward pass called inside it, which would sum gradients in another type."""
    return without_autocast(grad.device.type)


def parameter_gradients(
    scaled_grads: Sequence[torch.Tensor], plain: Sequence[torch.Tensor], effective: torch.Tensor, shape: TTMShape
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return gradients of the packed cores and diagonals from those of the cores with their diagonals."""
    bond_grads, core_grads = [], [scaled_grads[0]]
    for grad, core, bond in zip(scaled_grads[1:], plain[1:], effective.split(shape.ranks), strict=True):
        bond_grads.append((grad * core).sum((1, 2, 3)))
        core_grads.append(bond[:, None, None, None] * grad)
    return pack_cores(core_grads, shape), torch.cat(bond_grads) * (effective != 0)


def sum_rows(
    table: torch.Tensor,
    groups_T: torch.Tensor,
    groups: int,
    places_T: torch.Tensor | None = None,
    weights_T: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum ``weights[t] · table[places[t]]`` over each group's items t; without places each item has its own row."""
    sorted_T, order = groups_T.sort()
    starts = torch.searchsorted(sorted_T, torch.arange(groups, device=groups_T.device, dtype=groups_T.dtype))
    weights = None if weights_T is None else weights_T[order].to(table.dtype)
    places = order if places_T is None else places_T[order]
    return F.embedding_bag(places, table, starts.to(places.dtype), mode="sum", per_sample_weights=weights)


def rows_per_right_tuple(right: Half) -> list[int] | None:
    """Return the number of rows of each right tuple, or None where multiplying them together does not pay.

    It does on a CPU if there are many rows to a tuple: one product of all their left slices with the tuple's right one
    takes about half the time of a batch of small ones, and no row needs a right slice of its own. On CUDA it would be
    a kernel per tuple. Fake tensors have no tuples: memory is predicted for the batch of small products, which needs
    more.
    """
    tuples_U = right.tuples_U
    plain = not isinstance(tuples_U, FakeTensor) and not torch.is_autocast_enabled("cpu")
    if right.few or tuples_U.device.type != "cpu" or not plain or shapes_must_be_known(tuples_U):
        return None
    counts = torch.bincount(tuples_U, minlength=right.rows)
    together = int(counts.count_nonzero()) * _TOGETHER <= len(tuples_U)
    return counts.tolist() if together and right.cores[0].shape[0] else None


def products(left_UCR: torch.Tensor, right: Half, counts: Sequence[int] | None) -> torch.Tensor:
    """Return rows (U, C, E); with counts, rows lie in the order of their right tuples."""
    if counts is None:
        return torch.bmm(left_UCR, right.slices().squeeze(3))
    right_QRE = right.products[0].squeeze(3).transpose(0, 1).contiguous()
    rows_UCE = left_UCR.new_empty(*left_UCR.shape[:2], right_QRE.shape[2])
    sizes = [count * left_UCR.shape[1] for count in counts]
    parts = zip(left_UCR.flatten(0, 1).split(sizes), right_QRE, rows_UCE.flatten(0, 1).split(sizes), strict=True)
    for left, matrix, rows in parts:
        torch.mm(left, matrix, out=rows)
    return rows_UCE


def product_gradients(
    grad_UCE: torch.Tensor, left_UCR: torch.Tensor, right: Half, counts: Sequence[int] | None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return gradients of the left slices, (U, C, R), and of the right half's cores, from that of the rows."""
    if counts is None:
        of_left = torch.bmm(grad_UCE, right.slices().squeeze(3).transpose(1, 2))
        return of_left, right.core_gradients(torch.bmm(left_UCR.transpose(1, 2), grad_UCE).unsqueeze(3))
    right_QRE = right.products[0].squeeze(3).transpose(0, 1).contiguous()
    of_left_UCR, of_right_QRE = torch.empty_like(left_UCR), torch.empty_like(right_QRE)
    sizes = [count * left_UCR.shape[1] for count in counts]
    by_tuple = (rows.flatten(0, 1).split(sizes) for rows in (grad_UCE, left_UCR, of_left_UCR))
    for grad, left, of_left, transposed, of_right in zip(*by_tuple, right_QRE.mT, of_right_QRE, strict=True):
        torch.mm(grad, transposed, out=of_left)
        torch.mm(left.t(), grad, out=of_right)  # zeros for a tuple without rows
    return of_left_UCR, right.merged_gradients(of_right_QRE.unsqueeze(3))


class HalvesLookup(torch.autograd.Function):
    """Rows (T, D) by products of two halves, for unique rows or for every index (then U is T).

    ``ordered``: rows are unique and lie in the order of their right tuples, as :func:`unique_rows` has them.
    Saves the indices, the parameters and the small products of each half, not what is taken per row.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows_U: torch.Tensor,
        inverse_T: torch.Tensor | None,
        packed: torch.Tensor,
        diagonals: torch.Tensor,
        shape: TTMShape,
        padding_idx: int | None,
        threshold: float,
        ordered: bool,
    ) -> torch.Tensor:
        effective = effective_diagonals(diagonals, threshold)
        _, left, right = two_halves(packed, effective, shape, *half_tuples(rows_U, shape))
        ctx.counts = rows_per_right_tuple(right) if ordered else None
        table_UD = products(left.slices().squeeze(1), right, ctx.counts).flatten(1)
        if padding_idx is not None:
            no_row_U1 = (rows_U == padding_idx).unsqueeze(1)
            # Code that PyTorch 2.11 compiles has no gradient behind a result that was written to in place.
            in_place = not torch.compiler.is_compiling()
            table_UD = table_UD.masked_fill_(no_row_U1, 0) if in_place else table_UD.masked_fill(no_row_U1, 0)
        ctx.save_for_backward(rows_U, inverse_T, packed, effective, *left.products, *right.products)
        ctx.shape, ctx.padding_idx, ctx.left_products = shape, padding_idx, len(left.products)
        return table_UD if inverse_T is None else table_UD.index_select(0, inverse_T)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_TD: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        with in_the_parameters_type(grad_TD):
            return HalvesLookup._gradients(ctx, grad_TD)

    @staticmethod
    def _gradients(ctx: Any, grad_TD: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        shape: TTMShape = ctx.shape
        rows_U, inverse_T, packed, effective, *kept = ctx.saved_tensors
        # Autocast may have formed all of these in its own type, in which sums over equal rows stop growing.
        kept = [product.to(packed.dtype) for product in kept]
        grad_TD = grad_TD.to(packed.dtype)
        products = kept[: ctx.left_products], kept[ctx.left_products :]
        plain, left, right = two_halves(packed, effective, shape, *half_tuples(rows_U, shape), products)
        left_UCR = left.slices().squeeze(1)
        if inverse_T is None:
            grad_UD = grad_TD
        elif grad_TD.is_cuda or shapes_must_be_known(grad_TD):
            grad_UD = grad_TD.new_zeros(rows_U.shape[0], shape.embedding_dim).index_add_(0, inverse_T, grad_TD)
        else:
            grad_UD = sum_rows(grad_TD.contiguous(), inverse_T, rows_U.shape[0])
        if ctx.padding_idx is not None:
            no_row_U1 = (rows_U == ctx.padding_idx).unsqueeze(1)
            # Without an inverse it is the caller's own gradient: not to be written to.
            own = inverse_T is not None
            grad_UD = grad_UD.masked_fill_(no_row_U1, 0) if own else grad_UD.masked_fill(no_row_U1, 0)
        grad_UCE = grad_UD.reshape(*left_UCR.shape[:2], math.prod(shape.column_modes[shape.half :]))
        of_left, of_right_cores = product_gradients(grad_UCE, left_UCR, right, ctx.counts)
        scaled_grads = [*left.core_gradients(of_left.unsqueeze(1)), *of_right_cores]
        return None, None, *parameter_gradients(scaled_grads, plain, effective, shape), None, None, None, None


def core_by_core(
    rows_U: torch.Tensor,
    packed: torch.Tensor,
    diagonals: torch.Tensor,
    shape: TTMShape,
    padding_idx: int | None,
    threshold: float,
) -> torch.Tensor:
    """Compute rows (U, D) by one gather and one batched product per core, for every entry of ``rows_U``."""
    bonds = effective_diagonals(diagonals, threshold).split(shape.ranks)
    cores = unpack_cores(packed, shape)
    remaining = rows_U
    modes_U: list[torch.Tensor] = []
    for size in reversed(shape.row_modes):
        modes_U.insert(0, remaining.remainder(size))
        remaining = torch.div(remaining, size, rounding_mode="floor")
    result = cores[0].transpose(0, 1).index_select(0, modes_U[0]).squeeze(1)  # (U, columns so far, rank)
    for core, bond, mode_U in zip(cores[1:], bonds, modes_U[1:], strict=True):
        scaled = bond[:, None, None] * core.transpose(0, 1)
        slices = scaled.index_select(0, mode_U)  # (U, R, c, R')
        columns = result.shape[1] * core.shape[2]
        result = torch.bmm(result, slices.flatten(2)).view(rows_U.shape[0], columns, core.shape[3])
    result = result.flatten(1)
    if padding_idx is not None:
        result = result.masked_fill((rows_U == padding_idx).unsqueeze(1), 0)
    return result


def is_checkable(tensor: torch.Tensor) -> bool:
    """Return whether looking at the entries costs no synchronisation."""
    on_cpu = tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor) and tensor.numel() > 0
    return on_cpu and not torch.compiler.is_compiling()


def flat_indices(indices: torch.Tensor, shape: TTMShape, variant: str) -> torch.Tensor:
    """Return the indices as a vector, checked as :func:`ttm_rows` says."""
    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}; allowed: {', '.join(VARIANTS)}.")
    indices_T = indices.reshape(-1)
    if isinstance(indices, FakeTensor) and hasattr(indices, "unique_count"):
        indices_T.unique_count = indices.unique_count  # type: ignore[attr-defined]
    if is_checkable(indices):
        plain = indices_T
        while torch._C._functorch.is_functorch_wrapped_tensor(plain):  # all entries that vmap hands over one by one
            plain = torch._C._functorch.get_unwrapped(plain)
        lowest, highest = int(plain.min()), int(plain.max())
        if lowest < 0 or highest >= shape.num_embeddings:
            wrong = lowest if lowest < 0 else highest
            raise IndexError(f"index {wrong} is outside the table; allowed: 0 to {shape.num_embeddings - 1}.")
    return indices_T


def ttm_rows(
    indices: torch.Tensor,
    packed: torch.Tensor,
    diagonals: torch.Tensor,
    shape: TTMShape,
    padding_idx: int | None = None,
    variant: Variant = "optimized",
    threshold: float = THRESHOLD,
) -> torch.Tensor:
    """Look up rows of a TTM table.

    Args:
        indices: integers of any shape (…). A fake tensor may carry the number of its unique entries as an attribute
            ``unique_count``, so that the memory of a look-up can be predicted without its data.
        packed: all cores in one vector, see :func:`comera.tensor_train.pack_cores`.
        diagonals: all rank-control entries in one vector, bond after bond.
        shape: modes and ranks.
        padding_idx: this index yields zeros and gets no gradient.
        variant: ``"optimized"``, ``"plain"``, ``"unique"`` or ``"order"``, see the module.
        threshold: diagonal entries up to this magnitude count as zero.

    Returns:
        (…, D).

    Under the transforms of ``torch.func`` every variant is ``"plain"``, which they can take apart.

    Raises:
        IndexError: an index outside the table (checked on the CPU, where it costs no synchronisation).
        ValueError: an unknown variant.

    Example:
        >>> shape = TTMShape(6, 4, (2, 3), (2, 2), 1)
        >>> ttm_rows(torch.tensor([[0, 5]]), torch.ones(10), torch.ones(1), shape).shape
        torch.Size([1, 2, 4])
    """
    indices_T = flat_indices(indices, shape, variant)
    table = (packed, diagonals, shape, padding_idx, threshold)
    # The rest depends on the data, or has a backward of its own: torch.func supports neither.
    if variant == "plain" or torch._C._are_functorch_transforms_active():
        rows = core_by_core(indices_T, *table)
    elif variant == "unique":
        rows_U, inverse_T = unique_rows(indices_T, shape)
        rows = core_by_core(rows_U, *table)
        rows = rows if inverse_T is None else rows.index_select(0, inverse_T)
    elif variant == "order":
        rows = HalvesLookup.apply(indices_T, None, *table, False)
    else:
        rows = HalvesLookup.apply(*unique_rows(indices_T, shape), *table, True)
    return rows.view(*indices.shape, shape.embedding_dim)
