"""Tensor trains as lists of cores: shapes, counting, to a matrix, from a matrix (TT-SVD), rounding.

Two formats (paper, section 3):

* **TT** for a matrix ``W`` of shape (N, M): ``2d`` cores of shape (R[i-1], mode[i], R[i]), the ``d`` input modes first.
  On either side the mode at the end of the chain is the fastest digit of the feature's index, the one at the middle
  the slowest. The two halves are then mirror images, and merging them is one and the same computation.
* **TTM** for a table of shape (V, D): ``d`` cores of shape (R[i-1], v[i], c[i], R[i]); rows are padded to ``Πv``.

The outer ranks are 1. Ranks named ``ranks`` are those of the inner bonds.

A layer packs its cores into one vector (:func:`pack_cores`), each with its axes in the order in which it is used
without a copy. TTM cores lie row mode first, since rows are what a look-up gathers. TT cores lie with the rank toward
the end of the chain first, then the rank toward the middle, then the mode, as the merge of a half reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

import torch
from torch import nn

from comera.modes import check_modes, check_ranks, check_size

#: How the cores of a TT matrix are drawn.
Init = Literal["normal", "orthogonal", "spectral"]


@dataclass(frozen=True)
class TTShape:
    """Modes and ranks of a TT matrix, checked, with everything derived from them.

    Args:
        in_features, out_features: N and M.
        in_modes, out_modes: ``d`` modes each, products N and M.
        ranks: ``2d - 1`` inner ranks, or one integer as a cap.

    Raises:
        ValueError: see :func:`comera.modes.check_modes` and :func:`comera.modes.check_ranks`; also when the two sides
            have different numbers of modes, since the number of TT cores must be even.

    Example:
        >>> TTShape(768, 768, (12, 8, 8), (8, 8, 12), 30).parameter_count
        20448
    """

    in_features: int
    out_features: int
    in_modes: tuple[int, ...]
    out_modes: tuple[int, ...]
    ranks: tuple[int, ...]
    half: int = field(init=False)
    core_shapes: tuple[tuple[int, int, int], ...] = field(init=False, repr=False)
    core_sizes: tuple[int, ...] = field(init=False, repr=False)
    parameter_count: int = field(init=False)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        in_modes: Sequence[int],
        out_modes: Sequence[int],
        ranks: int | Sequence[int],
    ) -> None:
        in_features, out_features = check_size("in_features", in_features), check_size("out_features", out_features)
        in_modes = check_modes("in_modes", in_modes, in_features)
        out_modes = check_modes("out_modes", out_modes, out_features)
        if len(in_modes) != len(out_modes):
            raise ValueError(
                f"in_modes has {len(in_modes)} modes and out_modes {len(out_modes)}, {len(in_modes) + len(out_modes)} "
                "TT cores in all; give both the same number, so that the number of cores is even and splits in half."
            )
        modes = in_modes + out_modes
        ranks = check_ranks(ranks, modes)
        ends = (1, *ranks, 1)
        shapes = tuple((ends[i], mode, ends[i + 1]) for i, mode in enumerate(modes))
        values = {
            "in_features": in_features,
            "out_features": out_features,
            "in_modes": in_modes,
            "out_modes": out_modes,
            "ranks": ranks,
            "half": len(in_modes),
            "core_shapes": shapes,
            "core_sizes": tuple(math.prod(shape) for shape in shapes),
            "parameter_count": sum(math.prod(shape) for shape in shapes),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def with_ranks(self, ranks: int | Sequence[int]) -> Self:
        """Return the same modes with other ranks."""
        return type(self)(self.in_features, self.out_features, self.in_modes, self.out_modes, ranks)


@dataclass(frozen=True)
class TTMShape:
    """Modes and ranks of a TTM table, checked, with everything derived from them.

    Args:
        num_embeddings, embedding_dim: V and D.
        row_modes: ``d`` modes with a product of at least V (rows are padded).
        column_modes: ``d`` modes with product D.
        ranks: ``d - 1`` inner ranks, or one integer as a cap.

    Example:
        >>> shape = TTMShape(30522, 768, (16, 20, 10, 10), (4, 4, 8, 6), 32)
        >>> shape.padded_rows, shape.parameter_count
        (32000, 167808)
    """

    num_embeddings: int
    embedding_dim: int
    row_modes: tuple[int, ...]
    column_modes: tuple[int, ...]
    ranks: tuple[int, ...]
    half: int = field(init=False)
    padded_rows: int = field(init=False)
    core_shapes: tuple[tuple[int, int, int, int], ...] = field(init=False, repr=False)
    core_sizes: tuple[int, ...] = field(init=False, repr=False)
    parameter_count: int = field(init=False)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        row_modes: Sequence[int],
        column_modes: Sequence[int],
        ranks: int | Sequence[int],
    ) -> None:
        num_embeddings = check_size("num_embeddings", num_embeddings)
        embedding_dim = check_size("embedding_dim", embedding_dim)
        row_modes = check_modes("row_modes", row_modes, None)
        padded_rows = math.prod(row_modes)
        if padded_rows < num_embeddings:
            raise ValueError(
                f"row_modes={row_modes} multiply to {padded_rows}, fewer than num_embeddings={num_embeddings}; "
                "their product must reach it."
            )
        column_modes = check_modes("column_modes", column_modes, embedding_dim)
        if len(row_modes) != len(column_modes) or len(row_modes) < 2:
            raise ValueError(
                f"row_modes has {len(row_modes)} modes and column_modes {len(column_modes)}; "
                "both need the same number, 2 or more."
            )
        ranks = check_ranks(ranks, [v * c for v, c in zip(row_modes, column_modes, strict=True)])
        ends = (1, *ranks, 1)
        shapes = tuple(
            (ends[i], v, c, ends[i + 1]) for i, (v, c) in enumerate(zip(row_modes, column_modes, strict=True))
        )
        values = {
            "num_embeddings": num_embeddings,
            "embedding_dim": embedding_dim,
            "row_modes": row_modes,
            "column_modes": column_modes,
            "ranks": ranks,
            "half": len(row_modes) // 2,
            "padded_rows": padded_rows,
            "core_shapes": shapes,
            "core_sizes": tuple(math.prod(shape) for shape in shapes),
            "parameter_count": sum(math.prod(shape) for shape in shapes),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def with_ranks(self, ranks: int | Sequence[int]) -> Self:
        """Return the same modes with other ranks."""
        return type(self)(self.num_embeddings, self.embedding_dim, self.row_modes, self.column_modes, ranks)


def packed_axes(shape: TTShape | TTMShape, core: int) -> tuple[int, ...]:
    """Return the axes of a core in the order in which a packed vector holds them."""
    if isinstance(shape, TTMShape):
        return (1, 0, 2, 3)
    return (0, 2, 1) if core < shape.half else (2, 0, 1)


def unpack_cores(packed: torch.Tensor, shape: TTShape | TTMShape) -> list[torch.Tensor]:
    """Return views of the cores inside one packed vector, in order and in their usual shapes."""
    cores = []
    for i, (flat, core_shape) in enumerate(zip(packed.split(shape.core_sizes), shape.core_shapes, strict=True)):
        axes = packed_axes(shape, i)
        stored = flat.view([core_shape[axis] for axis in axes])
        cores.append(stored.permute([axes.index(axis) for axis in range(len(axes))]))
    return cores


def pack_cores(cores: Sequence[torch.Tensor], shape: TTShape | TTMShape) -> torch.Tensor:
    """Lay cores one behind the other in a vector; the inverse of :func:`unpack_cores`."""
    return torch.cat([core.permute(packed_axes(shape, i)).reshape(-1) for i, core in enumerate(cores)])


def contract_chain(cores: Sequence[torch.Tensor]) -> torch.Tensor:
    """Contract cores of shape (R[i-1], mode[i], R[i]) into the full tensor of shape (mode[1], …, mode[k]).

    The plain left-to-right product: the oracle for every faster form in this library.
    """
    result = cores[0].flatten(0, 1)
    for core in cores[1:]:
        result = (result @ core.flatten(1)).reshape(result.shape[0] * core.shape[1], core.shape[2])
    return result.reshape([core.shape[1] for core in cores])


def tt_to_matrix(cores: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the (N, M) matrix of TT cores.

    Example:
        >>> a, b = torch.ones(1, 3, 2), torch.ones(2, 4, 1)
        >>> tt_to_matrix([a, b])[0, 0]
        tensor(2.)
    """
    half = len(cores) // 2
    rows = math.prod([core.shape[1] for core in cores[:half]])
    return contract_chain(cores).permute(_slowest_first(half)).reshape(rows, -1)


def _slowest_first(half: int) -> tuple[int, ...]:
    """Return the modes of a TT chain from slowest to fastest digit, of the in-feature, then of the out-feature."""
    return (*range(half - 1, -1, -1), *range(half, 2 * half))


def ttm_to_matrix(cores: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the (Πv, Πc) table of TTM cores of shape (R[i-1], v[i], c[i], R[i]), padded rows included."""
    order = len(cores)
    full = contract_chain([core.flatten(1, 2) for core in cores])
    full = full.reshape([size for core in cores for size in core.shape[1:3]])
    rows_then_columns = [*range(0, 2 * order, 2), *range(1, 2 * order, 2)]
    rows = math.prod([core.shape[1] for core in cores])
    return full.permute(rows_then_columns).reshape(rows, -1)


@dataclass(frozen=True)
class Decomposition:
    """Cores from a TT-SVD, and the Frobenius error of the whole that the discarded singular values guarantee."""

    cores: list[torch.Tensor]
    error_bound: float


def tt_svd(tensor: torch.Tensor, ranks: Sequence[int]) -> Decomposition:
    """Decompose a tensor into TT cores of shape (R[i-1], mode[i], R[i]) by successive truncated SVDs.

    The error in Frobenius norm is at most the root of the sum of all discarded squared singular values
    (Oseledets, "Tensor-Train Decomposition", SIAM J. Sci. Comput. 33, 2011, Theorem 2.2), which is at most
    sqrt(order - 1) times the error of the best approximation of these ranks.

    A bond of rank 0 yields the zero tensor. Where the numerical rank is smaller than the wanted one, cores are padded
    with zeros, so that shapes are always the wanted ones.

    Half precision is decomposed in float32, the smallest type of torch's SVD; the cores have the tensor's type.

    Args:
        tensor: of shape (mode[1], …, mode[k]).
        ranks: k - 1 inner ranks.
    """
    modes = tensor.shape
    cores: list[torch.Tensor] = []
    discarded = 0.0
    left_rank = 1
    remainder = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    for i, (mode, rank) in enumerate(zip(modes[:-1], ranks, strict=True), start=1):
        unfolding = remainder.reshape(left_rank * mode, math.prod(modes[i:]))
        u, s, vh = torch.linalg.svd(unfolding, full_matrices=False)
        kept = min(rank, len(s))
        discarded += float(s[kept:].square().sum())
        core = unfolding.new_zeros(left_rank * mode, rank)
        core[:, :kept] = u[:, :kept]
        cores.append(core.reshape(left_rank, mode, rank))
        remainder = unfolding.new_zeros(rank, vh.shape[1])
        remainder[:kept] = s[:kept, None] * vh[:kept]
        left_rank = rank
    cores.append(remainder.reshape(left_rank, modes[-1], 1))
    return Decomposition([core.to(tensor.dtype) for core in cores], math.sqrt(discarded))


def tt_from_matrix(matrix: torch.Tensor, shape: TTShape) -> Decomposition:
    """Decompose a matrix (N, M) by TT-SVD into the modes and ranks of ``shape``.

    Raises:
        ValueError: the matrix is not N × M.
    """
    expected = (shape.in_features, shape.out_features)
    if tuple(matrix.shape) != expected:
        raise ValueError(f"matrix has shape {tuple(matrix.shape)}; expected {expected}.")
    digits = matrix.reshape(shape.in_modes[::-1] + shape.out_modes)
    return tt_svd(digits.permute(_slowest_first(shape.half)), shape.ranks)


def ttm_from_matrix(table: torch.Tensor, shape: TTMShape) -> Decomposition:
    """Decompose a table (V, D) by TT-SVD into TTM cores (R[i-1], v[i], c[i], R[i]); padded rows are zero.

    Raises:
        ValueError: the table is not V × D.
    """
    expected = (shape.num_embeddings, shape.embedding_dim)
    if tuple(table.shape) != expected:
        raise ValueError(f"table has shape {tuple(table.shape)}; expected {expected}.")
    order = len(shape.row_modes)
    padded = table.new_zeros(shape.padded_rows, shape.embedding_dim)
    padded[: shape.num_embeddings] = table
    full = padded.reshape(shape.row_modes + shape.column_modes)
    full = full.permute([axis for i in range(order) for axis in (i, order + i)])
    pairs = [v * c for v, c in zip(shape.row_modes, shape.column_modes, strict=True)]
    decomposition = tt_svd(full.reshape(pairs), shape.ranks)
    cores = [core.reshape(target) for core, target in zip(decomposition.cores, shape.core_shapes, strict=True)]
    return Decomposition(cores, decomposition.error_bound)


def tt_round(cores: Sequence[torch.Tensor], ranks: int | Sequence[int]) -> Decomposition:
    """Lower the ranks of a chain of cores (R[i-1], mode[i], R[i]) without forming the full tensor.

    Orthogonalises from right to left, then truncates from left to right (Oseledets 2011, Algorithm 2).

    Args:
        cores: the chain; TTM cores are given with row and column modes flattened together.
        ranks: wanted inner ranks, or one integer as a cap; none may exceed the present rank (a cap is clipped to it).
    """
    present = [core.shape[2] for core in cores[:-1]]
    wanted = [min(ranks, rank) for rank in present] if isinstance(ranks, int) else list(ranks)
    for bond, (new, old) in enumerate(zip(wanted, present, strict=True), start=1):
        if not 0 <= new <= old:
            raise ValueError(f"ranks={tuple(wanted)}: bond {bond} has rank {old}; rounding allows 0 to {old}.")
    work = [core.clone() for core in cores]
    for i in range(len(work) - 1, 0, -1):
        rank, mode, right = work[i].shape
        q, r = torch.linalg.qr(work[i].reshape(rank, mode * right).T)
        work[i] = q.T.reshape(q.shape[1], mode, right)
        work[i - 1] = work[i - 1] @ r.T
    discarded = 0.0
    for i, rank in enumerate(wanted):
        left, mode, right = work[i].shape
        u, s, vh = torch.linalg.svd(work[i].reshape(left * mode, right), full_matrices=False)
        kept = min(rank, len(s))
        discarded += float(s[kept:].square().sum())
        core = work[i].new_zeros(left * mode, rank)
        core[:, :kept] = u[:, :kept]
        carry = work[i].new_zeros(rank, right)
        carry[:kept] = s[:kept, None] * vh[:kept]
        work[i] = core.reshape(left, mode, rank)
        work[i + 1] = torch.tensordot(carry, work[i + 1], dims=1)
    return Decomposition(work, math.sqrt(discarded))


def shared_out(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factors by which two sides of a decomposition share singular values: the root of each for both.

    Where a value is zero, up to rounding, the first side gets 1, so that its vectors stay orthonormal, as in TT-SVD.
    With both sides zero no gradient would reach either.

    Example:
        >>> shared_out(torch.tensor([4.0, 0.0]))
        (tensor([2., 1.]), tensor([2., 0.]))
    """
    least = values.amax() * torch.finfo(values.dtype).eps if values.numel() else 0.0
    first = torch.where(values > least, values.sqrt(), 1.0)
    return first, values / first


def check_init(init: str) -> Init:
    """Return ``init`` if it names a way to draw cores; else raise ValueError with a sentence."""
    if isinstance(init, str) and (found := next((known for known in get_args(Init) if known == init), None)):
        return found
    raise ValueError(f"init is {init!r}; allowed: {', '.join(get_args(Init))}.")


def spectral_std(inputs: int, outputs: int) -> float:
    """Return the standard deviation √(1/d)·min(1, √(e/d)) of a drawn matrix (d, e) whose spectral norm is about √(e/d).

    Source: the spectral condition of Yang et al., arXiv 2310.17813; core by core as Qiu et al., arXiv 2406.06248.

    Example:
        >>> spectral_std(16, 64), spectral_std(64, 16)
        (0.25, 0.0625)
    """
    return math.sqrt(1 / inputs) * min(1.0, math.sqrt(outputs / inputs))


@torch.no_grad()
def draw_spectral(cores: Sequence[torch.Tensor]) -> None:
    """Fill TT cores, each as the matrix that it is in the product, by :func:`spectral_std`.

    A core of the first half is (R[i-1]·mode, R[i]), one of the second (R[i-1], mode·R[i]).

    Example:
        >>> cores = [torch.empty(1, 100, 100), torch.empty(100, 400, 1)]
        >>> draw_spectral(cores)
        >>> [round(float(core.std()), 2) for core in cores]
        [0.1, 0.1]
    """
    for number, core in enumerate(cores):
        inputs, outputs = _sides(core, number < len(cores) // 2)
        if core.numel():
            core.normal_(std=spectral_std(inputs, outputs))


@torch.no_grad()
def balance_cores(cores: Sequence[torch.Tensor]) -> None:
    """Scale TT cores so that each is as large as :func:`draw_spectral` would draw it, times one factor for all.

    The product stays as it is. A decomposition leaves all of the norm in one core, where one learning rate for all
    would suit none.

    Example:
        >>> cores = [torch.eye(4).view(1, 4, 4), torch.full((4, 4, 1), 100.0)]
        >>> balance_cores(cores)
        >>> [round(float(core.square().mean().sqrt()), 2) for core in cores]
        [7.07, 7.07]
    """
    if not all(core.numel() and core.any() for core in cores):
        return
    above = []
    for number, core in enumerate(cores):
        inputs, outputs = _sides(core, number < len(cores) // 2)
        above.append(float(core.square().mean().sqrt()) / spectral_std(inputs, outputs))
    common = math.prod(above) ** (1 / len(cores))
    for core, own in zip(cores, above, strict=True):
        core.mul_(common / own)


def _sides(core: torch.Tensor, is_input: bool) -> tuple[int, int]:
    """Return inputs and outputs of a TT core, seen as a matrix in the product."""
    before, mode, after = core.shape
    return (before * mode, after) if is_input else (before, mode * after)


@torch.no_grad()
def draw_orthogonal(cores: Sequence[torch.Tensor], norm: float) -> None:
    """Fill TT cores, (R[i-1], mode, R[i]) each, so that both halves of the chain are orthogonal.

    Input cores, the first half, get orthonormal columns as (R[i-1]·mode, R[i]), output cores orthonormal rows as
    (R[i-1], mode·R[i]), where these matrices have enough rows or columns; products of such are such again. Then all are
    scaled alike, to ``norm``, the Frobenius norm of the whole.

    Example:
        >>> cores = [torch.empty(1, 4, 3), torch.empty(3, 5, 1)]
        >>> draw_orthogonal(cores, norm=6.0)
        >>> gram = cores[0][0].T @ cores[0][0]
        >>> torch.allclose(gram, gram[0, 0] * torch.eye(3), atol=1e-5)
        True
        >>> round((cores[0][0] @ cores[1][..., 0]).norm().item(), 4)
        6.0
    """
    if not all(core.numel() for core in cores):
        return
    kind = torch.promote_types(cores[0].dtype, torch.float32)
    squared = cores[0].new_ones(1, 1, dtype=kind)  # products of the chain so far, by pairs of ranks at its end
    for number, core in enumerate(cores):
        before, _, after = core.shape
        rows = before if number >= len(cores) // 2 else core.numel() // after
        drawn = nn.init.orthogonal_(core.new_empty(rows, core.numel() // rows, dtype=kind)).view(core.shape)
        core.copy_(drawn)
        squared = torch.einsum("ab,amc,bmd->cd", squared, drawn, drawn)
    for core in cores:
        core.mul_((norm / squared[0, 0].sqrt()) ** (1 / len(cores)))
