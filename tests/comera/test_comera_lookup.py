"""Rows of a TTM table, by every variant, equal the rows of the dense table, and so do the gradients."""

import contextlib
import math

import pytest
import torch
from drawn_chains import SEEDS, assert_all_close, dense_ttm, draw_parameters, gradients, ttm_shapes
from hypothesis import given
from hypothesis import strategies as st
from noted_operations import NotedOperations

from comera import TTMEmbedding
from comera.capture import fixed_shapes
from comera.lookup import VARIANTS, ttm_rows
from comera.rank_control import THRESHOLD
from comera.tensor_train import TTMShape, ttm_to_matrix, unpack_cores

BATCHES = st.sampled_from([(), (1,), (9,), (3, 4), (0,), (2, 0), (2, 1, 3)])


def draw_indices(shape, batch, seed):
    """Indices with many duplicates: half of them come from three rows, the last one among them."""
    source = torch.Generator().manual_seed(seed)
    favourites = torch.tensor([0, shape.num_embeddings // 2, shape.num_embeddings - 1])
    anywhere = torch.randint(0, shape.num_embeddings, batch, generator=source)
    often = favourites[torch.randint(0, 3, batch, generator=source)]
    return torch.where(torch.rand(batch, generator=source) < 0.5, often, anywhere)


def dense_rows(indices, packed, diagonals, shape, padding_idx):
    rows = dense_ttm(packed, diagonals, shape)[indices]
    return rows if padding_idx is None else rows * (indices != padding_idx).unsqueeze(-1)


@given(ttm_shapes(), SEEDS)
def test_the_table_of_a_chain_equals_the_one_built_digit_by_digit(shape, seed):
    packed, diagonals = draw_parameters(shape, seed)
    table = ttm_to_matrix(unpack_cores(packed, shape))
    assert table.shape == (shape.padded_rows, shape.embedding_dim)
    assert_all_close([table], [dense_ttm(packed, torch.ones_like(diagonals), shape)])


@given(ttm_shapes(), BATCHES, SEEDS, st.booleans(), st.sampled_from([torch.int64, torch.int32]))
def test_every_variant_and_its_gradients_equal_the_dense_table(shape, batch, seed, padded, kind):
    packed, diagonals = (tensor.requires_grad_() for tensor in draw_parameters(shape, seed))
    indices = draw_indices(shape, batch, seed).to(kind)
    padding_idx = shape.num_embeddings // 2 if padded else None
    wanted = dense_rows(indices.long(), packed, diagonals, shape, padding_idx)
    upstream = torch.randn(*batch, shape.embedding_dim, dtype=torch.float64)
    oracle = gradients(wanted, upstream, [packed, diagonals])
    for variant in VARIANTS:
        rows = ttm_rows(indices, packed, diagonals, shape, padding_idx, variant)
        assert_all_close([rows], [wanted])
        assert_all_close(gradients(rows, upstream, [packed, diagonals]), oracle)


@pytest.mark.parametrize("variant", ["optimized", "order"])
@pytest.mark.parametrize("ranks", [3, 0])
@pytest.mark.parametrize("count", [3, 200])
@pytest.mark.parametrize(
    ("row_modes", "column_modes"),
    [((14, 15), (2, 3)), ((7, 5, 6), (2, 1, 3)), ((4, 3, 3, 6), (1, 2, 3, 1)), ((3, 2, 3, 4, 3), (2, 1, 1, 2, 3))],
    ids=["2", "3", "4", "5"],
)
def test_few_rows_and_many_are_looked_up_alike(row_modes, column_modes, count, ranks, variant):
    shape = TTMShape(209, math.prod(column_modes), row_modes, column_modes, ranks)
    packed, diagonals = (tensor.requires_grad_() for tensor in draw_parameters(shape, count))
    indices = torch.randint(0, 209, (count,))
    upstream = torch.randn(count, shape.embedding_dim, dtype=torch.float64)
    wanted = dense_rows(indices, packed, diagonals, shape, 7)
    rows = ttm_rows(indices, packed, diagonals, shape, 7, variant)
    assert_all_close([rows], [wanted])
    inputs = [packed, diagonals]
    assert_all_close(gradients(rows, upstream, inputs), gradients(wanted, upstream, inputs))


@given(ttm_shapes(), SEEDS, st.booleans(), st.sampled_from(VARIANTS))
def test_the_layer_is_its_dense_table(shape, seed, padded, variant):
    sizes = (shape.num_embeddings, shape.embedding_dim, shape.row_modes, shape.column_modes, shape.ranks)
    layer = TTMEmbedding(*sizes, -1 if padded else None, variant, dtype=torch.float64)
    with torch.no_grad():
        for parameter, value in zip((layer.packed_cores, layer.diagonals), draw_parameters(shape, seed), strict=True):
            parameter.copy_(value)
    everything = torch.arange(shape.num_embeddings)
    assert layer.padding_idx == (shape.num_embeddings - 1 if padded else None)
    assert_all_close([layer(everything)], [layer.to_dense()])
    assert_all_close(
        [layer.to_dense()], [dense_rows(everything, layer.packed_cores, layer.diagonals, shape, layer.padding_idx)]
    )


def test_with_fixed_shapes_no_operation_depends_on_the_indices(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("torch.unique has a shape that depends on data")

    layer = TTMEmbedding(60, 8, (5, 12), (2, 4), ranks=3)
    indices = torch.tensor([3, 3, 59, 0])
    wanted = layer(indices)
    monkeypatch.setattr(torch, "unique", refuse)
    with fixed_shapes():
        assert_all_close([layer(indices)], [wanted])
    with pytest.raises(AssertionError, match="depends on data"):
        layer(indices)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_dead_entry_counts_as_zero_and_gets_no_gradient(variant):
    shape = TTMShape(8, 8, (2, 2, 2), (2, 2, 2), 3)
    packed = torch.randn(shape.parameter_count, dtype=torch.float64)
    found = []
    for entries in ([THRESHOLD, 1, 1, -THRESHOLD, 0.003, 1], [0, 1, 1, 0, 0, 1]):
        diagonals = torch.tensor(entries, dtype=torch.float64, requires_grad=True)
        rows = ttm_rows(torch.arange(8), packed, diagonals, shape, None, variant)
        (gradient,) = gradients(rows, torch.ones_like(rows), [diagonals])
        found.append((rows, gradient))
    assert_all_close(found[0], found[1])
    assert found[0][1][[0, 3, 4]].tolist() == [0.0, 0.0, 0.0]
    assert bool(found[0][1][[1, 2, 5]].ne(0).all())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("indices", "wrong"), [([0, 11], 11), ([-1, 3], -1), ([[12, 0], [1, 2]], 12), (99, 99)])
def test_an_index_outside_the_table_is_refused_padded_rows_included(variant, indices, wrong):
    layer = TTMEmbedding(11, 6, (3, 4), (2, 3), 2, lookup=variant)
    with pytest.raises(IndexError, match=rf"^index {wrong} is outside the table; allowed: 0 to 10\.$"):
        layer(torch.tensor(indices))


@pytest.mark.parametrize("frozen", ["packed_cores", "diagonals_bias"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_frozen_parameter_gets_no_gradient_and_changes_no_other(variant, frozen):
    layer = TTMEmbedding(11, 6, (3, 4), (2, 3), 2, lookup=variant, dtype=torch.float64)
    indices = torch.tensor([0, 3, 3])
    layer(indices).sum().backward()
    wanted = {name: parameter.grad for name, parameter in layer.named_parameters()}
    layer.zero_grad()
    layer.get_parameter(frozen).requires_grad_(False)
    layer(indices).sum().backward()
    for name, parameter in layer.named_parameters():
        if name == frozen:
            assert parameter.grad is None
        else:
            assert_all_close([parameter.grad], [wanted[name]])


@pytest.mark.parametrize("variant", ["optimized", "order"])
def test_gradients_of_equal_rows_are_summed_in_the_parameters_type(variant):
    layer = TTMEmbedding(90, 60, (5, 6, 3), (5, 3, 4), 8, lookup=variant)
    with torch.autocast("cpu", torch.bfloat16):
        rows = layer(torch.tensor([3, 3, 7]))
    with NotedOperations() as ran:
        rows.backward(torch.ones_like(rows))
    assert {each.given[0][1] for each in ran.named("index_add")} == {torch.float32}


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_buffer_is_of_the_size_of_the_table_and_repeated_rows_are_formed_as_the_variant_says(variant):
    layer = TTMEmbedding(9999, 12, (10, 10, 10, 10), (1, 2, 2, 3), 2, padding_idx=0, lookup=variant)
    indices = torch.tensor([0, 9998, 4321]).repeat(100)
    with NotedOperations() as ran:
        layer(indices).square().sum().backward()
    assert max(each.made[0][0] for each in ran.named("bmm")) == (3 if variant in ("unique", "optimized") else 300)
    assert max(math.prod(made) for each in ran.operations for made in each.made) <= 300 * 12  # the rows themselves


@pytest.mark.parametrize("variant", ["optimized", "unique"])
def test_with_fixed_shapes_rows_are_neither_gathered_nor_scattered(variant):
    """Each index is a row of its own: no numbering of the indices, and no operation by it on full rows."""
    shape = TTMShape(60, 8, (4, 4, 4), (2, 2, 2), 3)
    indices = torch.tensor([[7, 3, 3], [59, 0, 7]])
    found = []
    for fixed in (False, True):
        packed = torch.linspace(-1, 1, shape.parameter_count).requires_grad_()
        diagonals = torch.linspace(0.5, 1.5, sum(shape.ranks)).requires_grad_()
        upstream = torch.arange(48.0).view(2, 3, 8)
        with NotedOperations() as ran, fixed_shapes() if fixed else contextlib.nullcontext():
            rows = ttm_rows(indices, packed, diagonals, shape, padding_idx=3, variant=variant)
            rows.backward(upstream)
        assert torch.equal(upstream, torch.arange(48.0).view(2, 3, 8))
        found.append((rows.detach(), packed.grad, diagonals.grad))
        named = ran.named("arange", "index_select", "index_add", "index")
        full = [each for each in named if each.name == "arange" or (6, 8) in (*each.made, *(g[0] for g in each.given))]
        assert bool(full) != fixed
    for fixed, plain in zip(*found, strict=True):
        assert torch.allclose(fixed, plain, rtol=1e-5, atol=1e-6)
