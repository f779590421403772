"""The product of activations with a TT matrix, by a plan of :mod:`comera.contraction.plans`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from comera.compatibility.autocast import without_autocast
from comera.contraction.merging import merge_cores, two_half_linear
from comera.contraction.plans import Plan, Segment, Tree, rows_of
from comera.rank_control import THRESHOLD, effective_diagonals
from comera.tensor_train import TTShape, unpack_cores


def tt_linear(
    x: torch.Tensor,
    packed: torch.Tensor,
    diagonals: torch.Tensor,
    plan: Plan,
    bias: torch.Tensor | None = None,
    threshold: float = THRESHOLD,
    tf32: bool = True,
) -> torch.Tensor:
    """Multiply the last dimension of ``x`` with a TT matrix by a plan: (…, N) to (…, M).

    Args:
        x: activations; the plan's number of tokens is its estimate only, any number will do.
        packed: all cores in one vector, see :func:`comera.tensor_train.pack_cores`.
        diagonals: all rank-control entries in one vector, bond after bond.
        plan: of :func:`plan_contraction` or :func:`candidates`.
        bias: of length M.
        threshold: diagonal entries up to this magnitude count as zero.
        tf32: as for :func:`comera.contraction.merging.merge_cores`; halves alone are merged so.

    Example:
        >>> from comera.contraction.plans import candidates
        >>> shape = TTShape(4, 6, (2, 2), (2, 3), 2)
        >>> x, packed, ones = torch.ones(5, 4), torch.ones(shape.parameter_count), torch.ones(6)
        >>> [tuple(tt_linear(x, packed, ones, plan).shape) for plan in candidates(shape, 5)]
        [(5, 6), (5, 6), (5, 6), (5, 6), (5, 6)]
    """
    shape = plan.shape
    # A function of autograd with a backward of its own is closed to torch.func, unlike the operations below.
    if plan.name == "halves" and not torch._C._are_functorch_transforms_active():
        [halves] = merge_cores([packed], [diagonals], [shape], threshold, tf32)
        return two_half_linear(x, *halves, bias)
    with without_autocast(x.device.type):  # cores are merged in the type of the diagonals
        cores = _scaled_cores(packed, diagonals, shape, threshold)
        matrices = [
            _matrix(_merged(cores, tree), shape, segment)
            for segment, tree in zip(plan.segments, plan.trees, strict=True)
        ]
    tokens = math.prod(x.shape[:-1])
    z = x
    for segment, matrix in zip(plan.segments[:-1], matrices[:-1], strict=True):
        z = z.reshape(rows_of(shape, tokens, segment), matrix.shape[0]) @ matrix
    last = matrices[-1]
    z = z.reshape(rows_of(shape, tokens, plan.segments[-1]), last.shape[0])
    if bias is not None and last.shape[1] == shape.out_features:  # rows of y as they are
        return torch.addmm(bias, z, last).view(*x.shape[:-1], shape.out_features)
    y = (z @ last).view(*x.shape[:-1], shape.out_features)
    return y if bias is None else y + bias.to(y.dtype)


def _merged(cores: Sequence[torch.Tensor], tree: Tree) -> torch.Tensor:
    """Merge the cores of a tree into one of shape (rank before, modes, rank behind), modes in the chain's order."""
    if isinstance(tree, int):
        return cores[tree]
    left, right = _merged(cores, tree[0]), _merged(cores, tree[1])
    product = left.flatten(0, 1) @ right.flatten(1)
    return product.view(left.shape[0], left.shape[1] * right.shape[1], right.shape[2])


def _matrix(merged: torch.Tensor, shape: TTShape, segment: Segment) -> torch.Tensor:
    """Return a merged segment as the matrix that activations meet: (in-modes · rank before, out-modes · rank behind).

    In-modes run from the middle of the chain to its end, so that the end is the fastest digit; then comes the rank.
    Where there are some, entries have to be moved, and are laid column by column, as a weight of ``nn.Linear`` is:
    the products of the backward pass are faster on it.
    """
    first, last = segment
    modes = [core[1] for core in shape.core_shapes[first : last + 1]]
    count = max(min(last, shape.half - 1) - first + 1, 0)  # of in-modes
    if not count:
        return merged.flatten(1)
    full = merged.reshape(merged.shape[0], *modes, merged.shape[2])
    ins, outs = range(count, 0, -1), range(count + 1, len(modes) + 1)
    rows, columns = math.prod(modes[:count]), math.prod(modes[count:])
    transposed = full.permute(*outs, len(modes) + 1, *ins, 0)
    return transposed.reshape(columns * merged.shape[2], rows * merged.shape[0]).t()


def _scaled_cores(
    packed: torch.Tensor, diagonals: torch.Tensor, shape: TTShape, threshold: float
) -> list[torch.Tensor]:
    """Return cores with the live entries of the bond behind each multiplied in."""
    bonds = effective_diagonals(diagonals, threshold).split(shape.ranks)
    cores = unpack_cores(packed.to(diagonals.dtype), shape)
    return [*(core * bond for core, bond in zip(cores, bonds, strict=False)), cores[-1]]
