"""Modes multiply to their dimension with the smallest sum; what does not fit is refused with an offer."""

import contextlib
import itertools
import math
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comera import (
    TTLinear,
    TTMEmbedding,
    balanced_modes,
    padded_modes,
    solve_blocks,
    solve_modes,
    solve_table_modes,
)
from comera.modes import bond_limits, check_modes, check_ranks


def every_factorization(dimension, order):
    divisors = [number for number in range(1, dimension + 1) if dimension % number == 0]
    chosen = itertools.combinations_with_replacement(divisors, order)
    return [modes for modes in chosen if math.prod(modes) == dimension]


@given(st.integers(1, 400), st.integers(1, 4))
def test_balanced_modes_are_the_factorization_with_the_smallest_sum(dimension, order):
    modes = balanced_modes(dimension, order)
    assert len(modes) == order
    assert math.prod(modes) == dimension
    assert list(modes) == sorted(modes, reverse=True)
    assert sum(modes) == min(map(sum, every_factorization(dimension, order)))


@given(st.integers(1, 10**6), st.integers(1, 6))
def test_padded_modes_reach_the_size_and_no_smaller_sum_does(size, order):
    modes = padded_modes(size, order)
    assert len(modes) == order
    assert math.prod(modes) >= size
    assert list(modes) == sorted(modes, reverse=True)
    # Of all modes with a given sum the most equal ones have the largest product.
    quotient, rest = divmod(sum(modes) - 1, order)
    assert (quotient + 1) ** rest * quotient ** (order - rest) < size


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 300))
def test_modes_that_miss_the_dimension_are_refused_with_modes_that_fit(modes, dimension):
    if math.prod(modes) == dimension:
        assert check_modes("in_modes", modes, dimension) == tuple(modes)
        return
    with pytest.raises(ValueError, match="in_modes") as refusal:
        check_modes("in_modes", modes, dimension)
    sentence = str(refusal.value)
    assert f"in_modes={tuple(modes)} multiply to {math.prod(modes)}, not to {dimension}; " in sentence
    offer = tuple(int(number) for number in re.findall(r"\d+", sentence.rpartition("fit: ")[2]))
    assert check_modes("in_modes", offer, dimension) == offer
    assert len(offer) == len(modes)


@given(st.lists(st.integers(1, 6), min_size=2, max_size=6), st.integers(0, 40))
def test_a_cap_is_clipped_to_every_bond(modes, cap):
    limits = bond_limits(modes)
    assert limits == tuple(min(math.prod(modes[:i]), math.prod(modes[i:])) for i in range(1, len(modes)))
    assert check_ranks(cap, modes) == tuple(min(cap, limit) for limit in limits)
    assert check_ranks(limits, modes) == limits


@given(st.lists(st.integers(1, 6), min_size=2, max_size=6), st.data())
def test_a_rank_outside_its_bond_is_refused_by_bond_and_limit(modes, data):
    limits = list(bond_limits(modes))
    bond = data.draw(st.integers(1, len(limits)))
    rank = data.draw(st.sampled_from([-1, limits[bond - 1] + 1]))
    ranks = [*limits[: bond - 1], rank, *limits[bond:]]
    with pytest.raises(
        ValueError, match=f"the rank of bond {bond} is {rank}; this bond allows 0 to {limits[bond - 1]}"
    ):
        check_ranks(ranks, modes)


@pytest.mark.parametrize(
    ("layer", "sizes", "named"),
    [
        (TTLinear, (768, 768, (12, 8), (32, 24), 8), r"in_modes.* 96, not to 768; .*\(32, 24\)"),
        (TTLinear, (6, 24, (3, 2), (5, 5), 2), "out_modes.* 25, not to 24"),
        (TTLinear, (6, 24, (3, 2), (24,), 2), "2 modes and out_modes 1"),
        (TTLinear, (6, 24, (3, 2), (4, 6), (4, 2, 2)), "bond 1 is 4; .* 0 to 3"),
        (TTMEmbedding, (10, 6, (3, 3), (2, 3), 2), "row_modes.* 9, fewer than num_embeddings=10"),
        (TTMEmbedding, (9, 7, (3, 3), (2, 3), 2), "column_modes.* modes that fit"),
        (TTMEmbedding, (9, 6, (3, 3), (6,), 2), "same number, 2 or more"),
        (TTMEmbedding, (9, 6, (9,), (6,), 2), "same number, 2 or more"),
        (TTMEmbedding, (9, 6, (3, 3), (2, 3), 2, 9), "padding_idx is 9"),
        (TTMEmbedding, (9, 6, (3, 3), (2, 3), 2, -10), "padding_idx is -10"),
    ],
)
def test_layers_refuse_what_does_not_fit(layer, sizes, named):
    with pytest.raises(ValueError, match=named):
        layer(*sizes)


@pytest.mark.parametrize("number", [10**12, 10**12 + 39, 2**61 - 1, 963_761_198_400, (2**31 - 1) * (10**9 + 7)])
def test_sizes_beyond_any_layer_are_solved_or_refused_within_seconds(number):
    began = time.perf_counter()
    for solve in (
        lambda: solve_modes(number, number, ratio=100),
        lambda: solve_modes(number, 64, ratio=4, order=5),
        lambda: solve_blocks(number, 64, ratio=4),
        lambda: solve_blocks(number, number, ratio=100),
        lambda: solve_table_modes(1000, number, ratio=4),
    ):
        with contextlib.suppress(ValueError):
            solve()
    assert time.perf_counter() - began < 10
