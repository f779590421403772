"""What the tests of ``comera`` draw: shapes with odd modes and ranks, parameters with dead entries, dense oracles."""

import math
from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from comera.modes import bond_limits
from comera.rank_control import THRESHOLD
from comera.tensor_train import TTMShape, TTShape, contract_chain, unpack_cores

SEEDS = st.integers(0, 2**31 - 1)

#: Leading shapes of a batch: none, usual ones, several dimensions, and nothing to do.
LEADING_SHAPES = st.sampled_from([(), (1,), (7,), (2, 3), (2, 1, 3), (0,), (2, 0)])

BLOCKED = (None, None, None, "one", "all")


def draw_ranks(draw: st.DrawFn, modes: Sequence[int], highest: int) -> tuple[int, ...]:
    """A rank per bond; in some draws one bond or every bond has rank zero."""
    ranks = [draw(st.integers(1, min(limit, highest))) for limit in bond_limits(modes)]
    blocked = draw(st.sampled_from(BLOCKED))
    if blocked == "all":
        ranks = [0] * len(ranks)
    elif blocked == "one":
        ranks[draw(st.integers(0, len(ranks) - 1))] = 0
    return tuple(ranks)


@st.composite
def tt_shapes(draw: st.DrawFn, halves: Sequence[int] = (1, 2, 3, 4)) -> TTShape:
    half = draw(st.sampled_from(halves))
    highest = {1: 9, 2: 5, 3: 4, 4: 3}[half]
    in_modes, out_modes = (
        tuple(draw(st.lists(st.integers(1, highest), min_size=half, max_size=half))) for _ in range(2)
    )
    ranks = draw_ranks(draw, in_modes + out_modes, 5)
    return TTShape(math.prod(in_modes), math.prod(out_modes), in_modes, out_modes, ranks)


@st.composite
def ttm_shapes(draw: st.DrawFn) -> TTMShape:
    """Orders 2 to 5; up to a third of the rows is padding."""
    order = draw(st.integers(2, 5))
    highest = {2: 6, 3: 4, 4: 3, 5: 2}[order]
    rows, columns = (tuple(draw(st.lists(st.integers(1, highest), min_size=order, max_size=order))) for _ in range(2))
    padded = math.prod(rows)
    used = draw(st.integers(max(1, padded * 2 // 3), padded))
    ranks = draw_ranks(draw, [v * c for v, c in zip(rows, columns, strict=True)], 4)
    return TTMShape(used, math.prod(columns), rows, columns, ranks)


def draw_parameters(shape: TTShape | TTMShape, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed cores and diagonals in float64; about a fifth of the diagonal is dead, of either sign or exactly zero."""
    source = torch.Generator().manual_seed(seed)
    packed = torch.randn(shape.parameter_count, generator=source, dtype=torch.float64)
    entries = sum(shape.ranks)
    signs = torch.randint(0, 2, (entries,), generator=source, dtype=torch.float64) * 2 - 1
    diagonals = signs * (0.1 + torch.rand(entries, generator=source, dtype=torch.float64))
    dead = torch.rand(entries, generator=source) < 0.2
    small = torch.tensor([0.0, 0.5, 1.0]).double()[torch.randint(0, 3, (entries,), generator=source)] * THRESHOLD
    return packed, torch.where(dead, signs * small, diagonals)


def scaled_cores(packed: torch.Tensor, diagonals: torch.Tensor, shape: TTShape | TTMShape) -> list[torch.Tensor]:
    """Cores with the live diagonal entries multiplied into the last axis of the core in front, as the paper does."""
    alive = diagonals * (diagonals.detach().abs() > THRESHOLD)
    cores = unpack_cores(packed, shape)
    return [*(core * bond for core, bond in zip(cores, alive.split(shape.ranks), strict=False)), cores[-1]]


def dense_tt(packed: torch.Tensor, diagonals: torch.Tensor, shape: TTShape) -> torch.Tensor:
    """The matrix (N, M), by the plain chain; on both sides the mode at the end of the chain is the fastest digit."""
    full = contract_chain(scaled_cores(packed, diagonals, shape))
    slowest_first = [*reversed(range(shape.half)), *range(shape.half, 2 * shape.half)]
    return full.permute(slowest_first).reshape(shape.in_features, shape.out_features)


def dense_ttm(packed: torch.Tensor, diagonals: torch.Tensor, shape: TTMShape) -> torch.Tensor:
    """The padded table, by the plain chain, row and column digits told apart one by one."""
    cores = scaled_cores(packed, diagonals, shape)
    table = torch.ones(1, 1, 1, dtype=packed.dtype)  # (rows so far, columns so far, rank)
    for core in cores:
        table = torch.einsum("pqr,rvcs->pvqcs", table, core)
        table = table.reshape(table.shape[0] * core.shape[1], table.shape[2] * core.shape[2], core.shape[3])
    return table.squeeze(2)


def gradients(value: torch.Tensor, upstream: torch.Tensor, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of ``value`` against ``upstream``, zero where nothing flows."""
    return list(torch.autograd.grad(value, inputs, upstream, materialize_grads=True))


def assert_all_close(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    """Equal up to float64's rounding, tensor by tensor, shapes and types included."""
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
