"""Modes and ranks for a wanted ratio: true counts, within 2 % wherever ranks can be, never larger at a higher ratio."""

import itertools
import math
import re

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from comera import TTLinear, TTMEmbedding, balanced_modes, padded_modes, solve_modes, solve_table_modes, tensorize
from comera.contraction import candidates
from comera.contraction.planned import tt_linear
from comera.modes import bond_limits
from comera.protocol import OutOfReach
from comera.ratio.layer import LINEAR_ORDERS, linear_chains, table_chains
from comera.ratio.rank_search import TOLERANCE, Chain, search

SIZES = st.integers(1, 400)
RATIOS = st.floats(1, 200)

#: Most rank vectors that the search by brute force goes through.
BRUTE_FORCE = 60_000


def rises_to(middle, ranks):
    """Whether ranks rise up to the bond with this index and fall behind it."""
    return list(ranks[: middle + 1]) == sorted(ranks[: middle + 1]) and list(ranks[middle:]) == sorted(
        ranks[middle:], reverse=True
    )


def stored(modes, ranks):
    """Core entries and rank-control entries."""
    ends = (1, *ranks, 1)
    return sum(ends[i] * mode * ends[i + 1] for i, mode in enumerate(modes)) + sum(ranks)


def every_size(modes, half):
    """The sizes of all chains whose ranks rise to the middle, each within its bond and what its neighbour can feed."""
    sizes = set()
    for ranks in itertools.product(*(range(1, limit + 1) for limit in bond_limits(modes))):
        left, right = (1, *ranks[:half]), (1, *ranks[half - 1 :][::-1])
        halves = (left, modes[:half]), (right, modes[half:][::-1])
        fed = all(b <= a * m for side, ms in halves for a, b, m in zip(side, side[1:], ms, strict=False))
        if fed and rises_to(half - 1, ranks):
            sizes.add(stored(modes, ranks))
    return sizes


def assert_keeps_the_laws(solution, modes, half, ratio):
    assert solution.parameter_count == stored(modes, solution.ranks)
    assert abs(solution.parameter_count - solution.dense_count / ratio) <= TOLERANCE * solution.dense_count / ratio
    assert solution.ratio == solution.dense_count / solution.parameter_count
    assert all(1 <= rank <= limit for rank, limit in zip(solution.ranks, bond_limits(modes), strict=True))
    assert rises_to(half - 1, solution.ranks)
    assert solution.middle_rank == max(solution.ranks)


@given(SIZES, SIZES, RATIOS, st.sampled_from([None, 1, 2, 3, 4, 5]))
def test_a_linear_layer_has_the_size_its_solution_says(n, m, ratio, order):
    try:
        solution = solve_modes(n, m, ratio, order)
    except ValueError:
        return
    found = len(solution.in_modes)
    assert order in (None, found)
    assert solution.in_modes == balanced_modes(n, found)
    assert solution.out_modes == balanced_modes(m, found)[::-1]
    modes = solution.in_modes + solution.out_modes
    assert found == 1 or min(modes) > 1
    assert_keeps_the_laws(solution, modes, found, ratio)
    layer = TTLinear(n, m, solution.in_modes, solution.out_modes, solution.ranks, bias=False)
    assert sum(parameter.numel() for parameter in layer.parameters()) == solution.parameter_count
    assert layer.dense_count() == solution.dense_count == n * m
    planned = tensorize(nn.Sequential(nn.Linear(n, m, bias=False)), {"0": solution.spec})
    assert planned[0].shape == layer.shape == solution.shape


@given(st.integers(1, 3000), SIZES, RATIOS, st.sampled_from([None, 2, 3, 4, 5]))
def test_a_table_has_the_size_its_solution_says(v, d, ratio, order):
    try:
        solution = solve_table_modes(v, d, ratio, order)
    except ValueError:
        return
    found = len(solution.row_modes)
    assert order in (None, found)
    assert solution.row_modes == padded_modes(v, found)
    assert solution.column_modes == balanced_modes(d, found)[::-1]
    modes = tuple(a * b for a, b in zip(solution.row_modes, solution.column_modes, strict=True))
    assert_keeps_the_laws(solution, modes, found // 2, ratio)
    table = TTMEmbedding(v, d, solution.row_modes, solution.column_modes, solution.ranks)
    assert sum(parameter.numel() for parameter in table.parameters()) == solution.parameter_count
    assert table.dense_count() == solution.dense_count == v * d
    assert tensorize(nn.Sequential(nn.Embedding(v, d)), {"0": solution.spec})[0].shape == table.shape


@settings(max_examples=20)
@given(
    st.integers(1, 64), st.integers(1, 64), st.floats(1, 30), st.sampled_from([(1,), (2,), (3,), (4,), LINEAR_ORDERS])
)
@example(6, 6, 1.7, LINEAR_ORDERS)
def test_a_linear_layer_is_solved_exactly_where_some_ranks_are_within_tolerance(n, m, ratio, orders):
    chains = linear_chains(n, m, orders)
    assume(chains)
    assume(all(math.prod(bond_limits(chain.modes)) <= BRUTE_FORCE for chain in chains))
    wanted = n * m / ratio
    sizes = set().union(*(every_size(chain.modes, chain.half) for chain in chains))
    within = any(abs(size - wanted) <= TOLERANCE * wanted for size in sizes)
    order = None if orders == LINEAR_ORDERS else orders[0]
    if within:
        solve_modes(n, m, ratio, order)
    else:
        with pytest.raises(OutOfReach):
            solve_modes(n, m, ratio, order)


@settings(max_examples=15)
@given(st.integers(2, 200), st.integers(1, 30), st.floats(1, 30), st.sampled_from([2, 3, 4]))
def test_a_table_is_solved_exactly_where_some_ranks_are_within_tolerance(v, d, ratio, order):
    chains = table_chains(v, d, [order])
    assume(chains)
    [chain] = chains
    assume(math.prod(bond_limits(chain.modes)) <= BRUTE_FORCE)
    wanted = v * d / ratio
    if any(abs(size - wanted) <= TOLERANCE * wanted for size in every_size(chain.modes, chain.half)):
        solve_table_modes(v, d, ratio, order)
    else:
        with pytest.raises(OutOfReach):
            solve_table_modes(v, d, ratio, order)


@given(st.integers(2, 1000), st.integers(2, 1000), RATIOS, st.floats(1, 1.2), st.booleans())
def test_a_higher_ratio_never_has_more_parameters(n, m, ratio, factor, table):
    chains = table_chains(n, m) if table else linear_chains(n, m)
    sizes = [search(chains, n * m / wanted)[1].entries for wanted in (ratio, ratio * factor)]
    assert sizes[0] >= sizes[1]


@pytest.mark.parametrize("ratio", [1, 1.5, 2, 4, 8, 16, 32, 64, 100, 1000])
@pytest.mark.parametrize("sizes", [(768, 768), (768, 3072), (3072, 768), (1024, 4096)])
def test_the_papers_layers_keep_its_order_near_the_flat_profile_at_the_smallest_middle_rank(sizes, ratio):
    solution = solve_modes(*sizes, ratio)
    chain = Chain(solution.in_modes + solution.out_modes, 3)
    flat = chain.flat(solution.middle_rank).ranks
    assert max(most - rank for most, rank in zip(flat, solution.ranks, strict=True)) <= 1
    assert chain.flat(solution.middle_rank - 1).entries < 1.01 * solution.dense_count / ratio


def test_the_papers_settings_are_found_at_their_ratio():
    attention = solve_modes(768, 768, 589_824 / (20_448 + 114))
    assert (attention.in_modes, attention.out_modes) == ((12, 8, 8), (8, 8, 12))
    assert attention.ranks == (12, 30, 30, 30, 12)
    assert attention.shape.parameter_count == 20_448


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_flops_are_those_of_merged_halves(order):
    solution = solve_modes(48, 80, 3, order)
    layer = TTLinear(48, 80, solution.in_modes, solution.out_modes, solution.ranks, bias=False)
    plan = next(plan for plan in candidates(layer.shape, 7) if plan.name == "halves")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        tt_linear(torch.zeros(7, 48), layer.packed_cores, layer.diagonals, plan)
    assert counter.get_total_flops() == solution.merge_flops + 7 * solution.flops_per_row
    assert solution.flops_per_row == 2 * solution.middle_rank * (48 + 80)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_flops_are_those_a_look_up_of_many_rows_does(order):
    solution = solve_table_modes(300, 24, 4.57, order)
    table = TTMEmbedding(300, 24, solution.row_modes, solution.column_modes, solution.ranks, lookup="order")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        table(torch.arange(300))
    assert counter.get_total_flops() == solution.merge_flops + 300 * solution.flops_per_row


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((768, 768, 0.5), "ratio"),
        ((768, 768, math.nan), "ratio"),
        ((768, 768, True), "ratio"),
        ((768, 0, 2), "out_features"),
        ((768, 768, 2, 0), "order"),
        ((768, 768, 5e4), r"11565\.2"),
        ((768, 768, 5e4, 3), r"9669\.25"),
        ((7, 7, 1.7), r"1\.63333 and 3\.26667"),
        ((97, 64, 3, 3), "in_features.* 96 and 98"),
        ((64, 2, 3, 3), "out_features.* 8"),
    ],
)
def test_what_cannot_be_is_refused_with_the_nearest_that_can(arguments, named):
    with pytest.raises(ValueError, match=named):
        solve_modes(*arguments)


@given(st.integers(2, 60), st.integers(2, 60), st.floats(1, 300))
def test_the_ratios_that_a_refusal_names_can_be_had(n, m, ratio):
    try:
        solve_modes(n, m, ratio)
    except OutOfReach as refusal:
        named = re.search(r"(?:within reach is|on either side are) ([\d.e+]*\d)(?: and ([\d.e+]*\d))?", str(refusal))
        for offer in (float(number) for number in named.groups() if number):
            if offer >= 1:
                assert solve_modes(n, m, offer).ratio == pytest.approx(offer, rel=0.0205)
