"""The TT product of two merged halves; that each plan equals the dense one stands in ``test_comera_contraction.py``."""

import math

import pytest
import torch
from drawn_chains import LEADING_SHAPES, SEEDS, assert_all_close, dense_tt, draw_parameters, gradients, tt_shapes
from hypothesis import given
from hypothesis import strategies as st
from model_states import kept_numbers

from comera import TTLinear
from comera.contraction.merging import merge_cores, two_half_linear
from comera.rank_control import THRESHOLD
from comera.tensor_train import TTShape, contract_chain, unpack_cores


def draw_case(shape, leading, seed, bias):
    packed, diagonals = draw_parameters(shape, seed)
    x = torch.randn(*leading, shape.in_features, dtype=torch.float64)
    offset = torch.randn(shape.out_features, dtype=torch.float64) if bias else None
    upstream = torch.randn(*leading, shape.out_features, dtype=torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (x, packed, diagonals, offset) if tensor is not None]
    return inputs, upstream


def product(shape, x, packed, diagonals, bias=None):
    [halves] = merge_cores([packed], [diagonals], [shape])
    return two_half_linear(x, *halves, bias)


def dense_product(shape, x, packed, diagonals, bias=None):
    y = x @ dense_tt(packed, diagonals, shape)
    return y if bias is None else y + bias


@given(tt_shapes(), SEEDS)
def test_the_oracle_itself_is_the_product_of_core_slices(shape, seed):
    packed, _ = draw_parameters(shape, seed)
    cores = unpack_cores(packed, shape)
    full = contract_chain(cores)
    source = torch.Generator().manual_seed(seed)
    for _ in range(4):
        digits = [int(torch.randint(0, core.shape[1], (), generator=source)) for core in cores]
        entry = torch.ones(1, 1, dtype=torch.float64)
        for core, digit in zip(cores, digits, strict=True):
            entry = entry @ core[:, digit]
        assert_all_close([full[tuple(digits)]], [entry.reshape(())])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rank", [7, 8, 9, 30])
def test_thin_and_usual_ranks_give_the_same_product(rank, bias):
    shape = TTShape(36, 40, (6, 6), (5, 8), (6, rank, 8))
    inputs, upstream = draw_case(shape, (3, 5), rank, bias)
    y, wanted = product(shape, *inputs), dense_product(shape, *inputs)
    assert_all_close([y], [wanted])
    assert_all_close(gradients(y, upstream, inputs), gradients(wanted, upstream, inputs))


@given(tt_shapes(), LEADING_SHAPES, SEEDS, st.booleans())
def test_the_layer_is_its_dense_matrix(shape, leading, seed, bias):
    modes = (shape.in_modes, shape.out_modes)
    layer = TTLinear(shape.in_features, shape.out_features, *modes, shape.ranks, bias, dtype=torch.float64)
    inputs, upstream = draw_case(shape, leading, seed, bias)
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), inputs[1:], strict=True):
            parameter.copy_(value)
    x, parameters = inputs[0], [inputs[0], *layer.parameters()]
    y, wanted = layer(x), x @ layer.to_dense().T
    wanted = wanted if layer.bias is None else wanted + layer.bias
    assert layer.to_dense().shape == (shape.out_features, shape.in_features)
    assert_all_close([y, layer.to_dense()], [wanted, dense_tt(*inputs[1:3], shape).T])
    assert_all_close(gradients(y, upstream, parameters), gradients(wanted, upstream, parameters))


@pytest.mark.parametrize("entry", [0.0, 1e-5, -1e-5, THRESHOLD, -THRESHOLD])
def test_a_dead_entry_counts_as_zero_and_gets_no_gradient(entry):
    shape = TTShape(4, 6, (2, 2), (3, 2), (2, 3, 2))
    packed = torch.randn(shape.parameter_count, dtype=torch.float64)
    x = torch.randn(5, 4, dtype=torch.float64)
    found = []
    for value in (entry, 0.0):
        diagonals = torch.ones(7, dtype=torch.float64)
        diagonals[[1, 3]] = value
        diagonals.requires_grad_()
        y = product(shape, x, packed, diagonals)
        (gradient,) = gradients(y, torch.ones_like(y), [diagonals])
        found.append((y, gradient))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][1][[1, 3]].tolist() == [0.0, 0.0]
    assert bool(found[0][1][[0, 2, 4, 5, 6]].ne(0).all())


def test_an_entry_just_above_the_threshold_is_alive():
    shape = TTShape(2, 2, (2,), (2,), 1)
    for entry in (1.0001 * THRESHOLD, -1.0001 * THRESHOLD):
        diagonals = torch.tensor([entry], dtype=torch.float64, requires_grad=True)
        y = product(shape, torch.ones(2, dtype=torch.float64), torch.ones(4, dtype=torch.float64), diagonals)
        assert_all_close([y], [torch.full((2,), 2 * entry, dtype=torch.float64)])
        assert_all_close(gradients(y, torch.ones_like(y), [diagonals]), [torch.tensor([4.0]).double()])


@given(tt_shapes(), st.integers(2, 4), SEEDS)
def test_layers_merged_together_equal_layers_merged_alone(shape, layers, seed):
    drawn = [draw_parameters(shape, seed + i) for i in range(layers)]
    packed = [one.requires_grad_() for one, _ in drawn]
    diagonals = [one.requires_grad_() for _, one in drawn]
    together = merge_cores(packed, diagonals, [shape] * len(packed))
    alone = [merge_cores([one], [other], [shape])[0] for one, other in zip(packed, diagonals, strict=True)]
    for pair, wanted in zip(together, alone, strict=True):
        assert_all_close(pair, wanted)
    # The first layer's halves take no part: its gradients are zero, not missing.
    used, oracle = ([half for pair in halves[1:] for half in pair] for halves in (together, alone))
    upstream = [torch.randn_like(half) for half in used]
    found = torch.autograd.grad(used, [*packed, *diagonals], upstream, materialize_grads=True)
    wanted = torch.autograd.grad(oracle, [*packed, *diagonals], upstream, materialize_grads=True)
    assert_all_close(found, wanted)
    assert not bool(found[0].any())


@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (3,), (0, 1, 2)])
def test_frozen_inputs_get_no_gradient_and_change_no_other(frozen):
    shape = TTShape(4, 6, (2, 2), (3, 2), 3)
    inputs, upstream = draw_case(shape, (5,), 0, True)
    wanted = gradients(dense_product(shape, *inputs), upstream, inputs)
    leaves = [leaf.detach().requires_grad_(i not in frozen) for i, leaf in enumerate(inputs)]
    product(shape, *leaves).backward(upstream)
    for i, (leaf, gradient) in enumerate(zip(leaves, wanted, strict=True)):
        if i in frozen:
            assert leaf.grad is None
        else:
            assert_all_close([leaf.grad], [gradient])


@pytest.mark.parametrize("backward_inside", [False, True])
def test_autocast_computes_in_bfloat16_and_keeps_float32_gradients(backward_inside):
    layer = TTLinear(48, 60, (4, 3, 4), (5, 3, 4), 8)
    x = torch.randn(33, 48)
    upstream = torch.randn(33, 60)
    layer(x).backward(upstream)
    wanted = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        if backward_inside:
            y.backward(upstream.bfloat16())
    if not backward_inside:
        y.backward(upstream.bfloat16())
    assert y.dtype == torch.bfloat16
    for parameter, oracle in zip(layer.parameters(), wanted, strict=True):
        assert parameter.grad.dtype == torch.float32
        assert float((parameter.grad - oracle).norm() / oracle.norm()) < 5e-2


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("half", [1, 2, 3, 4])
def test_backward_keeps_x_z_the_halves_and_small_partial_products_alone(half, bias):
    in_modes, out_modes = {1: ((16,), (81,)), 2: ((4, 4), (9, 9)), 3: ((4, 2, 2), (3, 3, 9)), 4: ((2,) * 4, (3,) * 4)}[
        half
    ]
    tokens, middle = 50, 3
    layer = TTLinear(16, 81, in_modes, out_modes, 3, bias)
    x = torch.randn(tokens, 16, requires_grad=True)
    # Partial products of a side, first core and merged half left out: modes so far × rank.
    left = sum(math.prod(in_modes[:k]) * 3 for k in range(2, half))
    right = sum(math.prod(out_modes[-k:]) * 3 for k in range(2, half))
    # The scaled cores, which with one mode per side are the halves themselves.
    chain = layer.diagonals.numel() + (layer.packed_cores.numel() if half > 1 else 0)
    wanted = tokens * 16 + tokens * middle + middle * (16 + 81) + left + right + chain
    kept = kept_numbers(lambda: layer(x))
    assert sum(kept) == wanted
    assert max(kept) < tokens * 81  # nothing of y's size
