"""TT-SVD and rounding keep what they promise; counts are those of the tensors and of the paper."""

import math

import pytest
import torch
from drawn_chains import SEEDS, assert_all_close, draw_parameters, tt_shapes, ttm_shapes
from hypothesis import assume, given
from hypothesis import strategies as st

from comera import TTLinear, TTMEmbedding
from comera.modes import bond_limits
from comera.tensor_train import (
    TTMShape,
    TTShape,
    balance_cores,
    contract_chain,
    draw_orthogonal,
    pack_cores,
    spectral_std,
    tt_from_matrix,
    tt_round,
    tt_svd,
    tt_to_matrix,
    ttm_from_matrix,
    ttm_to_matrix,
    unpack_cores,
)

MODES = st.lists(st.integers(1, 4), min_size=2, max_size=5).map(tuple)


def tails(tensor, ranks):
    """Per bond, the error of the best approximation of that one unfolding: what its singular values say."""
    found = []
    for bond, rank in enumerate(ranks, start=1):
        values = torch.linalg.svdvals(tensor.reshape(math.prod(tensor.shape[:bond]), -1))
        found.append(values[rank:].norm().item())
    return found


def assert_error_is_as_promised(tensor, decomposition, ranks, least):
    """Each unfolding's own error ≤ error ≤ bound ≤ root of the sum of squares of the unfoldings' errors."""
    assert tuple(core.shape[2] for core in decomposition.cores[:-1]) == tuple(ranks)
    error = (contract_chain(decomposition.cores) - tensor).norm().item()
    slack = 1e-9 * (1 + tensor.norm().item())
    assert least <= error + slack
    assert error <= decomposition.error_bound + slack
    assert decomposition.error_bound <= math.hypot(*tails(tensor, ranks)) + slack


@given(MODES, SEEDS, st.data())
def test_tt_svd_errs_no_more_than_the_discarded_singular_values(modes, seed, data):
    tensor = torch.randn(modes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn = [data.draw(st.integers(0, limit)) for limit in bond_limits(modes)]
    for ranks in (drawn, bond_limits(modes)):
        assert_error_is_as_promised(tensor, tt_svd(tensor, ranks), ranks, max(tails(tensor, ranks)))


@given(MODES, SEEDS, st.data())
def test_tt_svd_finds_a_chain_of_low_ranks_and_pads_it_with_zeros(modes, seed, data):
    limits = bond_limits(modes)
    true = [data.draw(st.integers(1, min(2, limit))) for limit in limits]
    wanted = [data.draw(st.integers(rank, limit)) for rank, limit in zip(true, limits, strict=True)]
    source = torch.Generator().manual_seed(seed)
    ends = (1, *true, 1)
    cores = [
        torch.randn(ends[i], mode, ends[i + 1], generator=source, dtype=torch.float64) for i, mode in enumerate(modes)
    ]
    tensor = contract_chain(cores)
    assert_error_is_as_promised(tensor, tt_svd(tensor, wanted), wanted, 0)
    assert_all_close([contract_chain(tt_svd(tensor, wanted).cores)], [tensor])


@given(MODES, SEEDS, st.data())
def test_rounding_errs_no_more_than_the_discarded_singular_values(modes, seed, data):
    present = [data.draw(st.integers(0, limit)) for limit in bond_limits(modes)]
    wanted = [data.draw(st.integers(0, rank)) for rank in present]
    source = torch.Generator().manual_seed(seed)
    ends = (1, *present, 1)
    cores = [
        torch.randn(ends[i], mode, ends[i + 1], generator=source, dtype=torch.float64) for i, mode in enumerate(modes)
    ]
    before = [core.clone() for core in cores]
    tensor = contract_chain(cores)
    assert_error_is_as_promised(tensor, tt_round(cores, wanted), wanted, max(tails(tensor, wanted)))
    same = tt_round(cores, present)
    assert_all_close([contract_chain(same.cores)], [tensor])
    assert_all_close(cores, before)


def test_rounding_takes_a_cap_and_refuses_to_raise_a_rank():
    cores = [torch.randn(1, 4, 2), torch.randn(2, 4, 4), torch.randn(4, 4, 1)]
    assert [core.shape[2] for core in tt_round(cores, 3).cores] == [2, 3, 1]
    with pytest.raises(ValueError, match=r"bond 1 has rank 2; rounding allows 0 to 2\.$"):
        tt_round(cores, (3, 3))
    with pytest.raises(ValueError, match="bond 2 has rank 4"):
        tt_round(cores, (2, -1))


@given(tt_shapes(), SEEDS)
def test_a_tt_matrix_at_full_ranks_gives_the_weight_back(shape, seed):
    source = torch.Generator().manual_seed(seed)
    matrix = torch.randn(shape.in_features, shape.out_features, generator=source, dtype=torch.float64)
    bias = torch.randn(shape.out_features, generator=source, dtype=torch.float64)
    full = bond_limits(shape.in_modes + shape.out_modes)
    layer = TTLinear.from_dense(matrix.T, shape.in_modes, shape.out_modes, full, bias)
    assert_all_close([layer.to_dense(), layer.bias.data], [matrix.T, bias])
    assert layer.shape.ranks == full
    assert layer.active_ranks() == full
    low = tt_from_matrix(matrix, shape)
    assert (tt_to_matrix(low.cores) - matrix).norm().item() <= low.error_bound + 1e-9


@given(ttm_shapes(), SEEDS)
def test_a_ttm_table_at_full_ranks_gives_the_weight_back_and_zeros_in_padded_rows(shape, seed):
    source = torch.Generator().manual_seed(seed)
    table = torch.randn(shape.num_embeddings, shape.embedding_dim, generator=source, dtype=torch.float64)
    full = bond_limits([v * c for v, c in zip(shape.row_modes, shape.column_modes, strict=True)])
    layer = TTMEmbedding.from_dense(table, shape.row_modes, shape.column_modes, full)
    assert_all_close([layer.to_dense(), layer(torch.arange(len(table)))], [table, table])
    padding = ttm_to_matrix(layer.cores())[len(table) :]
    assert_all_close([padding], [torch.zeros_like(padding)])
    low = ttm_from_matrix(table, shape)
    assert (ttm_to_matrix(low.cores)[: len(table)] - table).norm().item() <= low.error_bound + 1e-9


@pytest.mark.parametrize("ranks", [0, (0, 2, 2), (2, 0, 2), (2, 2, 0), (0, 4, 0)])
def test_a_weight_decomposed_at_rank_zero_leaves_the_bias_alone(ranks):
    bias = torch.randn(4)
    layer = TTLinear.from_dense(torch.randn(4, 4), (2, 2), (2, 2), ranks, bias)
    assert not bool(layer.to_dense().any())
    torch.testing.assert_close(layer(torch.randn(3, 4)), bias.expand(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_type_can_be_decomposed(dtype):
    weight = torch.randn(6, 4, dtype=dtype)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}.get(dtype, 3e-2)
    for layer in (TTLinear.from_dense(weight, (2, 2), (2, 3), 9), TTMEmbedding.from_dense(weight, (2, 3), (2, 2), 9)):
        assert layer.packed_cores.dtype == layer.diagonals.dtype == dtype
        error = (layer.to_dense().double() - weight.double()).norm() / weight.double().norm()
        assert error.item() < tolerance


@given(st.one_of(tt_shapes(), ttm_shapes()), SEEDS)
def test_packing_and_unpacking_are_inverse(shape, seed):
    packed, _ = draw_parameters(shape, seed)
    cores = unpack_cores(packed, shape)
    assert [core.shape for core in cores] == list(shape.core_shapes)
    assert torch.equal(pack_cores(cores, shape), packed)


@given(tt_shapes(), st.booleans())
def test_tt_counts_are_those_of_the_tensors(shape, bias):
    modes = (shape.in_modes, shape.out_modes)
    layer = TTLinear(shape.in_features, shape.out_features, *modes, shape.ranks, bias)
    cores = sum(core.numel() for core in layer.cores())
    assert shape.parameter_count == cores == layer.packed_cores.numel() == sum(shape.core_sizes)
    ranks = layer.diagonals.numel()
    assert ranks == sum(shape.ranks)
    assert layer.parameter_count() == sum(p.numel() for p in layer.parameters())
    assert layer.parameter_count() == cores + ranks + bias * shape.out_features


@given(ttm_shapes())
def test_ttm_counts_are_those_of_the_tensors(shape):
    sizes = (shape.num_embeddings, shape.embedding_dim, shape.row_modes, shape.column_modes, shape.ranks)
    layer = TTMEmbedding(*sizes)
    assert shape.parameter_count == sum(core.numel() for core in layer.cores()) == layer.packed_cores.numel()
    assert layer.parameter_count() == shape.parameter_count + sum(shape.ranks)


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        (TTMShape(30522, 768, (16, 20, 10, 10), (4, 4, 8, 6), 32), 167_808),
        (TTShape(768, 768, (12, 8, 8), (8, 8, 12), (12, 30, 30, 30, 12)), 20_448),
        (TTShape(768, 3072, (12, 8, 8), (12, 16, 16), (12, 30, 30, 30, 16)), 28_960),
        (TTShape(3072, 768, (16, 16, 12), (8, 8, 12), (16, 30, 30, 30, 12)), 28_960),
    ],
)
def test_counts_of_the_paper(shape, count):
    assert shape.parameter_count == count
    assert type(shape)(*list(vars(shape).values())[:4], max(shape.ranks)) == shape  # a cap is clipped to these ranks


@given(tt_shapes(), SEEDS)
def test_an_orthogonal_start_has_orthogonal_halves_and_the_norm_asked_for(shape, seed):
    """Where the bonds allow it: a core that is wider than it is high has orthonormal rows instead."""
    assume(shape.parameter_count and all(shape.ranks))
    torch.manual_seed(seed)
    cores = [torch.empty(*sizes, dtype=torch.float64) for sizes in shape.core_shapes]
    draw_orthogonal(cores, norm=3.0)
    assert contract_chain(cores).norm().item() == pytest.approx(3.0)
    for half in (cores[: shape.half], [core.permute(2, 1, 0) for core in reversed(cores[shape.half :])]):
        if all(before * mode >= after for before, mode, after in (core.shape for core in half)):
            merged = contract_chain([*half, torch.eye(half[-1].shape[2], dtype=torch.float64)[..., None]])
            columns = merged.reshape(-1, half[-1].shape[2])
            gram = columns.T @ columns
            assert_all_close([gram], [gram[0, 0] * torch.eye(len(gram), dtype=torch.float64)])


def test_a_chain_without_ranks_is_left_as_it_is():
    draw_orthogonal([torch.empty(1, 4, 0), torch.empty(0, 4, 1)], norm=1.0)


def test_balanced_cores_keep_the_product_and_share_its_size():
    torch.manual_seed(0)
    cores = [torch.randn(1, 4, 6), 1e3 * torch.randn(6, 5, 3), 1e-3 * torch.randn(3, 4, 5), torch.randn(5, 6, 1)]
    before = torch.einsum("aib,bjc,ckd,dle->ijkl", *cores)
    balance_cores(cores)
    torch.testing.assert_close(torch.einsum("aib,bjc,ckd,dle->ijkl", *cores), before)
    sides = [(4, 6), (30, 3), (3, 20), (5, 6)]
    shares = [float(core.square().mean().sqrt()) / spectral_std(*side) for core, side in zip(cores, sides, strict=True)]
    assert max(shares) == pytest.approx(min(shares), rel=1e-5)
