"""Joint merging under autocast: halves and biases cast together, rank entries with one gradient for all."""

import contextlib
import copy

import pytest
import torch
from noted_operations import NotedOperations
from torch import nn

from comera import TT, EarlyStage, LateStage, tensorize
from comera.contraction import merging
from comera.contraction.joint_merging import take_entries
from comera.contraction.merging import merge_cores, tensor_cores, two_half_linear
from comera.objective import ModelSize, tensorized_layers
from comera.training import CoMERA, Settings

PLAN = {"*": TT(ranks=5, order=2)}


class Stack(nn.Module):
    """Layers of two shapes, one without a bias, one after another; some of them may be left out."""

    def __init__(self, layers=6):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(*((16, 36) if i % 2 == 0 else (36, 16)), bias=i != 2) for i in range(layers)
        )

    def forward(self, x, used=None):
        for layer in self.layers[:used]:
            x = layer(x)
        return x


def model_and_input(**options):
    torch.manual_seed(3)
    model = tensorize(Stack(**options), PLAN)
    with torch.no_grad():
        for layer in tensorized_layers(model):
            layer.diagonals.uniform_(0.5, 1.5)[2] = 0.004  # a closed rank
            if layer.bias is not None:
                layer.bias.normal_()
    return model, torch.randn(7, 16)


def gradients_of(model):
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


def each_cast_alone(model, x):
    """The model without any sharing: halves merged in float32, and cast one by one by autocast."""
    for layer in model.layers:
        x = alone(layer, x)
    return x


def alone(layer, x):
    """A layer by halves that are merged in float32, and cast by autocast as is its bias."""
    with torch.autocast("cpu", enabled=False):
        [halves] = merge_cores([layer.packed_cores], [layer.diagonals], [layer.shape], layer.threshold)
    return two_half_linear(x, *halves, layer.bias)


def test_outputs_and_gradients_are_those_of_halves_and_biases_that_are_cast_one_by_one():
    """Outputs to the bit; gradients of cores but for the order of FP32 sums, which differs by the size of a batch."""
    model, x = model_and_input()
    found = []
    for run in (model, lambda x: each_cast_alone(model, x)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = run(x)
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
        found.append([y.detach(), *gradients_of(model)])
    assert torch.equal(found[0][0], found[1][0])
    for together, apart in zip(*found, strict=True):
        assert float((together - apart).abs().max()) <= 1e-7 * float(apart.abs().max())


def test_merging_stays_in_float32_where_backward_runs_under_autocast():
    found = []
    for inside in (False, True):
        model, x = model_and_input()
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            y.sum().backward()
        found.append(gradients_of(model))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("layers", [2, 8])
def test_the_number_of_casts_does_not_grow_with_the_layers(layers):
    model, x = model_and_input(layers=layers)
    with NotedOperations() as ran:
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        y.sum().backward()
    shapes = 2  # of halves; a cast of each and of the biases, forward and backward, and one of the input
    assert len(ran.named("_to_copy")) == 2 * (shapes + 1) + 1


def test_regions_of_other_types_within_a_call_have_their_own_halves():
    class Mixed(Stack):
        def forward(self, x):
            for number, layer in enumerate(self.layers):
                with torch.autocast("cpu", torch.bfloat16, enabled=number % 2 == 0):
                    x = layer(x.float())
            return x

    torch.manual_seed(5)
    model = tensorize(Mixed(4), PLAN)
    x = torch.randn(3, 16)
    y = model(x)
    for number, layer in enumerate(model.layers):
        with torch.autocast("cpu", torch.bfloat16, enabled=number % 2 == 0):
            x = alone(layer, x.float())
    assert torch.equal(y, x)


def objective_gradients(model, x, objective, joint, used=None):
    """The gradients of an objective; with ``joint=False`` the surrogate's reach each diagonal by itself."""
    model.zero_grad()
    loss = model(x, used).square().mean()
    if not joint:
        take_entries(tensorized_layers(model))
    objective(loss, model).backward()
    return gradients_of(model)


@pytest.mark.parametrize("objective", [EarlyStage(gamma=0.5, beta=0.0), LateStage(0.3, loss_target=0.1, beta=0.0)])
@pytest.mark.parametrize("used", [None, 3])
def test_the_surrogate_s_gradient_is_added_at_once_to_the_bit(objective, used):
    model, x = model_and_input()
    joint, apart = (objective_gradients(model, x, copy.deepcopy(objective), way, used) for way in (True, False))
    for found, wanted in zip(joint, apart, strict=True):
        assert (found is None) == (wanted is None)
        assert found is None or torch.equal(found, wanted)
    unused = model.layers[5]
    assert (unused.packed_cores.grad is None) == (used == 3)  # not zeros, which an optimizer would decay
    assert unused.diagonals.grad is not None


def test_one_addition_serves_all_diagonals():
    counts = []
    for layers in (3, 9):
        model, x = model_and_input(layers=layers)
        objective = EarlyStage(gamma=0.5, beta=0.0)(model(x).square().mean(), model)
        with NotedOperations() as ran:
            objective.backward()
        counts.append(len(ran.named("add")))
    assert counts[0] == counts[1]


def test_losses_may_be_differentiated_one_after_another():
    model, x = model_and_input()
    wanted = objective_gradients(model, x, EarlyStage(gamma=0.5, beta=0.0), joint=True)
    model.zero_grad()
    loss = model(x).square().mean()
    size = 0.5 * ModelSize(model).surrogate()
    loss.backward()
    size.backward()
    assert all(torch.equal(a, b) for a, b in zip(gradients_of(model), wanted, strict=True))


@pytest.mark.parametrize("change", ["value", "truncated", "evaluation"])
def test_entries_of_an_earlier_call_are_not_taken(change):
    model, x = model_and_input()
    if change == "evaluation":
        with torch.no_grad():
            model(x)
    else:
        model(x)
    layers = tensorized_layers(model)
    with torch.no_grad():
        if change == "value":
            layers[3].diagonals.mul_(0.9)
        elif change == "truncated":
            layers[3].truncate()
    assert take_entries(layers) is None
    ModelSize(model).surrogate().backward()
    fresh = copy.deepcopy(model)
    fresh.zero_grad()
    ModelSize(fresh).surrogate().backward()
    found, wanted = ([layer.diagonals.grad for layer in tensorized_layers(each)] for each in (model, fresh))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_frozen_rank_entries_get_no_gradient():
    model, x = model_and_input()
    for layer in tensorized_layers(model):
        layer.diagonals.requires_grad_(False)
    EarlyStage(gamma=0.5, beta=0.0)(model(x).square().mean(), model).backward()
    assert all(layer.diagonals.grad is None for layer in tensorized_layers(model))
    assert all(layer.packed_cores.grad is not None for layer in tensorized_layers(model))


@pytest.mark.parametrize(
    ("device", "kind", "tf32", "inside"),
    [
        ("cuda", torch.bfloat16, True, "high"),
        ("cuda", torch.float16, True, "high"),
        ("cuda", torch.bfloat16, False, "highest"),
        ("cuda", None, True, "highest"),
        ("cpu", torch.bfloat16, True, "highest"),
    ],
)
def test_halves_in_half_precision_are_merged_in_tf32_on_cuda_alone(device, kind, tf32, inside):
    assert torch.get_float32_matmul_precision() == "highest"
    with contextlib.suppress(ZeroDivisionError), tensor_cores(device, kind, tf32):
        assert torch.get_float32_matmul_precision() == inside
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("way", ["jointly", "alone", "compiled"])
@pytest.mark.parametrize("tf32", [True, False])
def test_the_setting_reaches_every_merge_forward_and_backward(monkeypatch, tf32, way):
    passed = []

    def noted(device, kind, tf32=True):  # noqa: ARG001 - as it is called
        passed.append(tf32)
        return contextlib.nullcontext()

    monkeypatch.setattr(merging, "tensor_cores", noted)
    settings = Settings(ranks=5, order=2, merge_tf32=tf32, merge_jointly=way != "alone")
    model = Stack(layers=2)
    model = CoMERA(settings, "paper").adapt(model, {f"layers.{number}": "feed_forward" for number in range(2)})
    if way == "compiled":
        model.compile(backend="eager")
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(7, 16)).sum()
    forward = len(passed)
    loss.backward()
    assert len(passed) > forward > 0
    assert {*passed} == {tf32}


def test_tf32_adds_little_to_the_error_of_halves_in_bfloat16():
    """Operands rounded to ten bits, as tensor cores round them: the error after the cast grows by less than a tenth."""

    def rounded(x):
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    torch.manual_seed(1)
    first, second, third = torch.randn(512, 96), torch.randn(96, 96), torch.randn(96, 512)
    exact = first.double() @ second.double() @ third.double()
    errors = []
    for rounding in (lambda x: x, rounded):
        merged = rounding(rounding(first) @ rounding(second)) @ rounding(third)
        errors.append(float((merged.bfloat16().double() - exact).norm() / exact.norm()))
    assert errors[0] < errors[1] < 1.1 * errors[0]
    assert errors[1] < 2e-3
