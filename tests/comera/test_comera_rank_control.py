"""Dead entries can be cut out of the cores, and nothing but the size changes."""

import math

import pytest
import torch
from drawn_chains import SEEDS, assert_all_close, draw_parameters, tt_shapes, ttm_shapes
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from comera import TT, TTLinear, TTMEmbedding, exact_size, full_size, tensorize, tensorized_layers
from comera.rank_control import THRESHOLD, active_ranks, alive_entries, chain_size, effective_diagonals
from comera.tensor_train import TTShape


def layer_of(shape, seed, dead_bond=None):
    """A float64 layer of this shape with a fifth of its entries dead, and one bond as a whole if asked."""
    if isinstance(shape, TTShape):
        sizes = (shape.in_features, shape.out_features, shape.in_modes, shape.out_modes, shape.ranks)
        layer = TTLinear(*sizes, dtype=torch.float64)
        nn.init.normal_(layer.bias)
    else:
        sizes = (shape.num_embeddings, shape.embedding_dim, shape.row_modes, shape.column_modes, shape.ranks)
        layer = TTMEmbedding(*sizes, dtype=torch.float64)
    packed, diagonals = draw_parameters(shape, seed)
    if dead_bond is not None:
        diagonals.split(shape.ranks)[dead_bond % len(shape.ranks)].fill_(0.5 * THRESHOLD)
    with torch.no_grad():
        layer.packed_cores.copy_(packed)
        layer.diagonals.copy_(diagonals)
    return layer


def outputs(layer):
    if isinstance(layer, TTLinear):
        return layer(torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    return layer(torch.arange(layer.num_embeddings))


@given(st.lists(st.floats(-2, 2), max_size=12), st.sampled_from([0.0, THRESHOLD, 0.5]))
def test_entries_up_to_the_threshold_are_zero_and_others_untouched(entries, threshold):
    entries = [*entries, threshold, -threshold, 1.001 * threshold, 0.0]
    diagonals = torch.tensor(entries, dtype=torch.float64)
    wanted = [entry if abs(entry) > threshold else 0.0 for entry in entries]
    assert effective_diagonals(diagonals, threshold).tolist() == wanted


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), SEEDS)
def test_active_ranks_count_what_alive_entries_list(ranks, seed):
    diagonals = torch.empty(sum(ranks)).uniform_(-1, 1, generator=torch.Generator().manual_seed(seed))
    diagonals[diagonals.abs() < 0.5] = 0.005
    alive = alive_entries(diagonals, ranks)
    wanted = [[i for i, entry in enumerate(bond.tolist()) if abs(entry) > THRESHOLD] for bond in diagonals.split(ranks)]
    assert [indices.tolist() for indices in alive] == wanted
    assert active_ranks(diagonals, ranks) == tuple(len(indices) for indices in wanted)


@given(st.one_of(tt_shapes(), ttm_shapes()), SEEDS, st.one_of(st.none(), st.integers(0, 6)))
def test_truncation_leaves_the_function_and_cuts_the_size_to_what_was_foretold(shape, seed, dead_bond):
    layer = layer_of(shape, seed, dead_bond)
    before, dense = outputs(layer).detach(), layer.to_dense().detach()
    active, foretold = layer.active_ranks(), exact_size([layer])
    ranks = layer.truncate()
    assert ranks == layer.shape.ranks == layer.active_ranks() == (active if all(active) else (0,) * len(active))
    assert foretold == layer.packed_cores.numel() == layer.shape.parameter_count == exact_size([layer])
    assert layer.diagonals.numel() == sum(ranks)
    assert_all_close([outputs(layer), layer.to_dense()], [before, dense])
    assert layer.packed_cores.dtype == layer.diagonals.dtype == torch.float64


@given(st.one_of(tt_shapes(), ttm_shapes()), SEEDS)
def test_a_truncated_layer_learns_as_the_masked_one_did(shape, seed):
    layer = layer_of(shape, seed)
    outputs(layer).square().sum().backward()
    alive = torch.cat(alive_flags(layer)).bool()
    found = torch.zeros(alive.shape) if layer.diagonals.grad is None else layer.diagonals.grad
    wanted = found[alive]
    assert not bool(found[~alive].any())
    blocked = not all(layer.active_ranks())
    layer.truncate()
    layer.zero_grad()
    outputs(layer).square().sum().backward()
    if blocked:
        assert layer.diagonals.numel() == 0
    else:
        assert_all_close([layer.diagonals.grad], [wanted])


def alive_flags(layer):
    return [
        torch.zeros(bond.numel()).index_fill(0, kept, 1.0)
        for bond, kept in zip(
            layer.diagonals.detach().split(layer.shape.ranks),
            alive_entries(layer.diagonals.detach(), layer.shape.ranks),
            strict=True,
        )
    ]


def test_truncation_keeps_frozen_parameters_frozen():
    layer = TTLinear(4, 6, (2, 2), (2, 3), 2)
    layer.packed_cores.requires_grad_(False)
    layer.truncate()
    assert not layer.packed_cores.requires_grad
    assert layer.diagonals.requires_grad


def test_a_threshold_of_its_own_rules_product_and_size_alike():
    layer = TTLinear(4, 6, (2, 2), (2, 3), 2, dtype=torch.float64)
    with torch.no_grad():
        layer.diagonals[0] = 0.3
    layer.threshold = 0.5
    before = layer(torch.eye(4, dtype=torch.float64)).detach()
    assert layer.truncate() == (1, 2, 2)
    assert_all_close([layer(torch.eye(4, dtype=torch.float64))], [before])


@given(st.one_of(tt_shapes(), ttm_shapes()), SEEDS)
def test_sizes_by_hand(shape, seed):
    layer = layer_of(shape, seed)
    assert chain_size(layer.mode_sizes(), shape.ranks) == shape.parameter_count == full_size([layer])
    active = layer.active_ranks()
    ends = (1, *active, 1)
    cores = [math.prod(core.shape[1:-1]) * ends[i] * ends[i + 1] for i, core in enumerate(layer.cores())]
    assert exact_size([layer]) == (sum(cores) if all(active) else 0)


def test_a_model_cut_in_some_layers_still_merges_jointly():
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))).double()
    tensorize(model, {"*": TT(ranks=3, order=2)})
    with torch.no_grad():
        for layer in tensorized_layers(model)[:2]:
            layer.diagonals[[0, 4]] = 0.001
    x = torch.randn(5, 6, dtype=torch.float64)
    before = model(x).detach()
    sizes = exact_size(tensorized_layers(model))
    assert [layer.truncate() for layer in tensorized_layers(model)] == [(2, 2, 3)] * 2 + [(3, 3, 3)] * 2
    assert full_size(tensorized_layers(model)) == sizes
    assert_all_close([model(x)], [before])


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_of_rank_zero_passes_its_bias_alone(bias):
    layer = TTLinear(6, 4, (3, 2), (2, 2), 0, bias)
    y = layer(torch.randn(2, 5, 6))
    wanted = layer.bias.detach() if bias else torch.zeros(4)
    torch.testing.assert_close(y, wanted.expand(2, 5, 4))
    assert y.is_contiguous()  # fused kernels want rows of their own, and so does whoever changes them in place
    if bias:
        y.sum().backward()
        assert layer.bias.grad.tolist() == [10.0] * 4
    table = TTMEmbedding(6, 4, (3, 2), (2, 2), 0)
    rows = table(torch.tensor([1, 5, 1]))
    rows.sum().backward()
    assert not bool(rows.any())
    assert layer.parameter_count() == 4 * bias
    assert table.parameter_count() == 0
