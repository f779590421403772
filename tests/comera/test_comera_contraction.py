"""Every plan gives the dense product and its gradients, and costs what an independent count says."""

import math

import opt_einsum
import pytest
import torch
from drawn_chains import LEADING_SHAPES, SEEDS, assert_all_close, dense_tt, draw_parameters, gradients, tt_shapes
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from comera import TT, TTLinear, tensorize
from comera.contraction import MACHINES, Machine, Product, candidates, plan_contraction, plans
from comera.contraction.planned import tt_linear
from comera.contraction.plans import joint_halves_pay, machine_of
from comera.dropout import as_on_cuda
from comera.tensor_train import TTShape

ATTENTION = TTShape(768, 768, (12, 8, 8), (8, 8, 12), 30)


@given(tt_shapes(), LEADING_SHAPES, SEEDS, st.booleans())
def test_every_plan_gives_the_dense_product_and_its_gradients(shape, leading, seed, has_bias):
    packed, diagonals = (values.requires_grad_() for values in draw_parameters(shape, seed))
    x = torch.randn(*leading, shape.in_features, dtype=torch.float64).requires_grad_()
    bias = torch.randn(shape.out_features, dtype=torch.float64).requires_grad_() if has_bias else None
    inputs = [tensor for tensor in (x, packed, diagonals, bias) if tensor is not None]
    upstream = torch.randn(*leading, shape.out_features, dtype=torch.float64)
    wanted = x @ dense_tt(packed, diagonals, shape)
    wanted = wanted if bias is None else wanted + bias
    wanted_gradients = gradients(wanted, upstream, inputs)
    for plan in candidates(shape, 5):
        found = tt_linear(x, packed, diagonals, plan, bias)
        assert_all_close([found, *gradients(found, upstream, inputs)], [wanted, *wanted_gradients])


def einsum_path(plan):
    """A plan as an einsum over its operands and the pairs that are contracted, for an independent count of FLOPs."""
    shape, cores = plan.shape, 2 * plan.shape.half
    letters = iter(opt_einsum.get_symbol(i) for i in range(1000))
    batch = next(letters)
    modes = [next(letters) for _ in range(cores)]
    bonds = ["", *(next(letters) for _ in range(cores - 1)), ""]
    terms = [batch + "".join(modes[: shape.half])]
    terms += [bonds[i] + modes[i] + bonds[i + 1] for i in range(cores)]
    sizes = [(plan.tokens, *shape.in_modes)]
    sizes += [
        tuple(size for size, letter in zip(core, (bonds[i], "m", bonds[i + 1]), strict=True) if letter)
        for i, core in enumerate(shape.core_shapes)
    ]
    names = ["x", *(f"G{i + 1}" for i in range(cores))]
    path = []
    for product in plan.products:
        pair = tuple(sorted(names.index(name) for name in (product.left, product.right)))
        path.append(pair)
        for place in reversed(pair):
            del names[place]
        names.append(product.result)
    return ",".join(terms) + "->" + batch + "".join(modes[shape.half :]), sizes, path


@given(tt_shapes(halves=(2, 3, 4)).filter(lambda shape: all(shape.ranks)), st.integers(1, 40))
def test_flops_are_those_that_opt_einsum_counts(shape, tokens):
    for plan in candidates(shape, tokens):
        equation, sizes, path = einsum_path(plan)
        _, info = opt_einsum.contract_path(equation, *sizes, shapes=True, optimize=path)
        # opt_einsum counts one operation per entry where nothing is summed over, a plan always counts two.
        counted = 0
        for (_, removed, _, _, _), product in zip(info.contraction_list, plan.products, strict=True):
            counted += product.flops if removed else product.flops // 2
        assert counted == info.opt_cost


def test_the_halves_by_hand():
    plan = next(plan for plan in candidates(ATTENTION, 128) if plan.name == "halves")
    merging = 2 * 2 * (12 * 12 * 8 * 30 + 96 * 30 * 8 * 30)
    assert plan.forward_flops == merging + 2 * 128 * 30 * (768 + 768)
    assert plan.flops == 3 * plan.forward_flops
    # x, z and the two halves with their partial products.
    assert plan.saved == 128 * 768 + 128 * 30 + 2 * (768 * 30 + 96 * 30)
    assert plan.largest == 128 * 768
    assert [product.result for product in plan.backward[:4]] == ["dz1", "dG4-6", "dx", "dG1-3"]


@pytest.mark.parametrize(
    ("tokens", "ranks", "name"), [(1, 30, "cores"), (4096, 30, "halves"), (65536, 30, "halves"), (65536, 600, "dense")]
)
@pytest.mark.parametrize("machine", MACHINES)
def test_choices_that_arithmetic_forces(tokens, ranks, name, machine):
    wide = TTShape(768, 768, (24, 32), (32, 24), ranks)
    assert plan_contraction(wide, tokens, machine).name == name


def test_products_of_two_bytes_have_their_own_rate_where_the_machine_has_one():
    product = Product("x", "w", "y", 4096, 4096, 4096)
    assert MACHINES["cuda"].seconds(product, 4) > 8 * MACHINES["cuda"].seconds(product, 2)
    assert MACHINES["cpu"].seconds(product, 4) < 2 * MACHINES["cpu"].seconds(product, 2)


@pytest.mark.parametrize(
    ("device", "name", "bytes_per_s"), [("NVIDIA H200", "H200", 3.6e12), ("NVIDIA A100-SXM4-80GB", "H100", 2.5e12)]
)
def test_a_gpu_has_the_rates_of_its_name_and_of_tf32_where_that_is_allowed(monkeypatch, device, name, bytes_per_s):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: device)
    plans._gpu.cache_clear()
    plain, fast = (plans._gpu(0, tf32) for tf32 in (False, True))
    plans._gpu.cache_clear()
    assert [(one.name, one.bytes_per_s) for one in (plain, fast)] == [(name, bytes_per_s)] * 2
    product = Product("x", "w", "y", 4096, 4096, 4096)
    assert plain.seconds(product, 4) > 4 * fast.seconds(product, 4)
    assert plain.seconds(product, 2) == fast.seconds(product, 2)


def test_what_stands_for_a_gpu_has_the_rates_of_one():
    x = torch.ones(2)
    assert machine_of(x) is MACHINES["cpu"]
    with as_on_cuda():
        assert machine_of(x) == MACHINES["cuda"]


@pytest.mark.parametrize(
    ("ranks", "tokens", "pay"),
    [(30, 1, True), (30, 128, True), (30, 16384, True), (150, 1, False), (150, 128, True), (150, 4096, True)],
)
def test_when_halves_of_a_joint_merge_pay(ranks, tokens, pay):
    shape = TTShape(768, 768, ATTENTION.in_modes, ATTENTION.out_modes, ranks)
    assert joint_halves_pay(shape, tokens, MACHINES["cpu"], 4) is pay


def test_a_layer_asks_for_a_plan_of_the_numbers_that_autocast_multiplies(monkeypatch):
    asked = []

    def plan(*arguments):
        asked.append(arguments[-1])
        return plan_contraction(*arguments)

    monkeypatch.setattr("comera.layers.plan_contraction", plan)
    layer, x = TTLinear(768, 768, ATTENTION.in_modes, ATTENTION.out_modes, 30), torch.zeros(4, 768)
    layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x)
    assert asked == [4, 2]


@pytest.mark.parametrize("leading", [(1,), (2, 3), (4, 1024)])
def test_a_layer_runs_the_plan_for_its_number_of_tokens(leading):
    layer = TTLinear(768, 768, ATTENTION.in_modes, ATTENTION.out_modes, 30, bias=False)
    plan = plan_contraction(ATTENTION, math.prod(leading))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.zeros(*leading, 768))
    assert counter.get_total_flops() == plan.forward_flops


@given(tt_shapes().filter(lambda shape: all(shape.ranks)), st.integers(1, 2000))
def test_the_plan_is_the_cheapest_candidate(shape, tokens):
    machine = Machine("one FLOP a second", 1.0, math.inf, 0.0, 0.0)
    chosen = plan_contraction(shape, tokens, machine)
    assert chosen.flops == min(plan.flops for plan in candidates(shape, tokens))


@given(tt_shapes().filter(lambda shape: all(shape.ranks)), st.integers(1, 2000), st.sampled_from([2, 4]))
def test_a_number_kept_for_backward_costs_as_much_as_one_moved(shape, tokens, element_bytes):
    machine = Machine("one byte a second", math.inf, 1.0, 0.0, 0.0)
    cores = {f"G{number}" for number in range(1, 2 * shape.half + 1)}
    for plan in candidates(shape, tokens):
        moved = sum(product.numbers for product in (*plan.products, *plan.backward))
        operands = {product.left: product.rows * product.inner for product in plan.products}
        operands |= {product.right: product.inner * product.columns for product in plan.products}
        kept = sum(size for name, size in operands.items() if name not in cores)
        assert plan.seconds(machine, element_bytes) == element_bytes * (moved + kept)


def test_what_is_kept_decides_between_plans_of_like_time():
    """At 64 tokens and rank 60 the products of ``cores`` take 1 % less time, and it keeps 36 % more numbers."""
    shape = TTShape(768, 768, (12, 8, 8), (8, 8, 12), 60)
    machine = Machine("two CPU cores", 1.2e11, 2.0e10, 12e-6, 4.0, aliasing=3.0)
    plans = {plan.name: plan for plan in candidates(shape, 64)}
    taken = {
        name: sum(machine.seconds(product, 4) for product in (*plan.products, *plan.backward))
        for name, plan in plans.items()
    }
    assert min(taken, key=taken.__getitem__) == "cores"
    assert plans["cores"].saved > plans["halves"].saved
    assert plan_contraction(shape, 64, machine).name == "halves"


def test_rows_a_page_apart_are_written_slower():
    machine = Machine("one byte a second", math.inf, 1.0, 0.0, 0.0, aliasing=3.0)
    wide, odd, single = (
        Product("x", "w", "y", rows, 2, columns) for rows, columns in ((8, 1024), (8, 1023), (1, 1024))
    )
    assert machine.seconds(odd, 4) == 4 * (8 * 2 + 2 * 1023 + 8 * 1023)
    assert machine.seconds(wide, 4) == 4 * (8 * 2 + 2 * 1024 + 3 * 8 * 1024)
    assert machine.seconds(single, 4) == 4 * (2 + 2 * 1024 + 1024)  # one row has no other to compete with


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"^tokens is 0; it must be at least 1\.$"):
        plan_contraction(ATTENTION, 0)
    with pytest.raises(ValueError, match=r"^machine is 'tpu'; known: cpu, cuda, H200\.$"):
        plan_contraction(ATTENTION, 1, "tpu")


@pytest.mark.parametrize("options", [{}, {"recompute": "outputs"}, {"merge_jointly": False}])
def test_shapes_pass_through_layers_on_meta_which_has_no_autocast(options):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    tensorize(model, {"*": TT(ranks=8)}, **options)
    assert model(torch.empty(320, 64, device="meta")).shape == (320, 64)
