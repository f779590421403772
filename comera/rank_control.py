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
from torch.nn import functional as F

#: Entries of a diagonal up to this magnitude count as zero (METHOD.md, Formats: the released code's threshold).
THRESHOLD = 1e-2


def effective_diagonals(diagonals: torch.Tensor, threshold: float = THRESHOLD) -> torch.Tensor:
    """The diagonals with dead entries set to exactly zero.

    Example:
        >>> effective_diagonals(torch.tensor([1.0, 0.004, -0.5]))
        tensor([ 1.0000,  0.0000, -0.5000])
    """
    return F.hardshrink(diagonals, threshold)


def alive_entries(
    diagonals: torch.Tensor, ranks: Sequence[int], threshold: float = THRESHOLD
) -> tuple[torch.Tensor, ...]:
    """Per bond, the indices of the entries above the threshold."""
    return tuple(bond.nonzero().flatten() for bond in effective_diagonals(diagonals, threshold).split(list(ranks)))


def active_ranks(diagonals: torch.Tensor, ranks: Sequence[int], threshold: float = THRESHOLD) -> tuple[int, ...]:
    """Per bond, how many entries are above the threshold."""
    return tuple(int(bond.numel()) for bond in alive_entries(diagonals, ranks, threshold))


def chain_size(mode_sizes: Sequence[int], ranks: Sequence[int]) -> int:
    """Number of core entries of a chain with these modes and inner ranks: S for these ranks.

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
