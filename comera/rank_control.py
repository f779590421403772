"""Rank control: a diagonal on every inner bond whose entries decide which ranks are alive.

CoMERA puts a diagonal matrix D on each inner bond, ``G1 D1 G2 D2 … Gk`` (paper, section 3.1). A layer keeps the
diagonals of all its bonds in one vector, bond after bond, initialised to 1. An entry whose magnitude is at most
``THRESHOLD`` counts as zero, in the forward product as well as in the size, so that cutting it out later changes
nothing.

Sizes (paper, section 3.1): with rank[0] = rank[k] = 1,

    S(D) = Σ_cores  modes_i · ‖D[i-1]‖₀ · ‖D[i]‖₀          the exact size, what would be stored
    Ŝ(D) = Σ_cores  modes_i · ‖D[i-1]‖₁ · ‖D[i]‖₁          its surrogate, which has a gradient

where ``modes_i`` is n_i for TT and v_i·c_i for TTM.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from comera.compatibility.optimizer_states import cut_state
from comera.tensor_train import TTMShape, TTShape, pack_cores, unpack_cores

#: Entries of a diagonal up to this magnitude count as zero (the released code's threshold).
THRESHOLD = 1e-2


def effective_diagonals(diagonals: torch.Tensor, threshold: float = THRESHOLD) -> torch.Tensor:
    """Return the diagonals with dead entries set to exactly zero.

    Example:
        >>> effective_diagonals(torch.tensor([1.0, 0.004, -0.5]))
        tensor([ 1.0000,  0.0000, -0.5000])
    """
    return F.hardshrink(diagonals, threshold)


def alive_entries(
    diagonals: torch.Tensor, ranks: Sequence[int], threshold: float = THRESHOLD
) -> tuple[torch.Tensor, ...]:
    """Return the indices of the entries above the threshold, per bond."""
    return tuple(bond.nonzero().flatten() for bond in effective_diagonals(diagonals, threshold).split(list(ranks)))


def active_ranks(diagonals: torch.Tensor, ranks: Sequence[int], threshold: float = THRESHOLD) -> tuple[int, ...]:
    """Return the number of entries above the threshold, per bond."""
    return tuple(int(bond.numel()) for bond in alive_entries(diagonals, ranks, threshold))


def chain_size(mode_sizes: Sequence[int], ranks: Sequence[int]) -> int:
    """Return the number of core entries of a chain with these modes and inner ranks: S for these ranks.

    Example:
        >>> chain_size((12, 8, 8, 8, 8, 12), (12, 30, 30, 30, 12))
        20448
    """
    ends = (1, *ranks, 1)
    return sum(mode * ends[i] * ends[i + 1] for i, mode in enumerate(mode_sizes))


def select_ranks(cores: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Cut cores down to the kept indices of each inner bond, on both sides of the bond.

    Args:
        cores: of shape (R[i-1], …, R[i]).
        kept: per inner bond the indices to keep.
    """
    cut = []
    for i, core in enumerate(cores):
        if i > 0:
            core = core.index_select(0, kept[i - 1])
        if i < len(cores) - 1:
            core = core.index_select(core.dim() - 1, kept[i])
        cut.append(core)
    return cut


def _surviving_places(shape: TTShape | TTMShape, kept: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places that survive in the packed cores, and in the diagonals, in their new order."""
    device = kept[0].device if kept else None
    numbers = torch.arange(shape.parameter_count, device=device)
    cores = select_ranks(unpack_cores(numbers, shape), kept)
    starts = [sum(shape.ranks[:bond]) for bond in range(len(shape.ranks))]
    entries = [start + indices for start, indices in zip(starts, kept, strict=True)]
    return pack_cores(cores, shape), torch.cat(entries) if entries else numbers[:0]


def replace_data(parameter: nn.Parameter, data: torch.Tensor) -> None:
    """Give a parameter entries of another number; autograd then expects gradients of the new shape.

    A graph that is still held, such as that of the last loss, keeps the node that accumulates the gradient, with the
    former shape; only a change of type makes torch create a new node.
    """
    passing = torch.float32 if parameter.dtype == torch.float64 else torch.float64
    parameter.grad = None
    parameter.data = data.new_empty(0, dtype=passing)
    parameter.data = data


def _shrink(parameter: nn.Parameter, places: torch.Tensor, optimizer: torch.optim.Optimizer | None) -> None:
    """Keep the entries at ``places`` of a parameter, which stays the same object, and of the optimizer's state."""
    if optimizer is not None:
        cut_state(optimizer, parameter, places)
    replace_data(parameter, parameter.data[places])


@torch.no_grad()
def cut_closed_ranks(
    packed_cores: nn.Parameter,
    diagonals: nn.Parameter,
    shape: TTShape | TTMShape,
    threshold: float = THRESHOLD,
    optimizer: torch.optim.Optimizer | None = None,
) -> tuple[int, ...]:
    """Cut every closed rank out of the parameters of one chain; what the chain computes does not change.

    Args:
        packed_cores, diagonals: of the chain; they stay the same objects with fewer entries, and lose their gradients.
        shape: modes and ranks before the cut.
        threshold: entries up to this magnitude count as zero.
        optimizer: whose state of the two parameters is cut like them; of a kind that
            :func:`comera.compatibility.optimizer_states.check_states` allows.

    Returns:
        The inner ranks that are left; all 0 where a bond is closed as a whole, since nothing passes such a chain.
    """
    kept = alive_entries(diagonals, shape.ranks, threshold)
    if any(indices.numel() == 0 for indices in kept):
        kept = tuple(indices[:0] for indices in kept)
    ranks = tuple(indices.numel() for indices in kept)
    if ranks != shape.ranks:
        places, entries = _surviving_places(shape, kept)
        _shrink(packed_cores, places, optimizer)
        _shrink(diagonals, entries, optimizer)
    return ranks
