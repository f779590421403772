"""The fused feed-forward against the layers one after another."""

from __future__ import annotations

import copy

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn
from torch.nn import functional as F

from comera import TT, TTLinear, set_ranks, tensorize
from comera.contraction import joint_merging
from comera.functional import ACTIVATIONS, fuse_feed_forwards, tt_feed_forward

PLAIN = {"gelu": F.gelu, "gelu_tanh": nn.GELU("tanh"), "relu": F.relu, "silu": F.silu}


def layers(bias=True, dtype=torch.float64, ranks=3):
    torch.manual_seed(0)
    first = TTLinear(6, 20, (2, 3), (5, 4), ranks, bias=bias, dtype=dtype)
    second = TTLinear(20, 4, (5, 4), (2, 2), ranks, bias=bias, dtype=dtype)
    for layer in (first, second):
        nn.init.normal_(layer.packed_cores)
        nn.init.uniform_(layer.diagonals, 0.5, 1.5)
        if bias:
            nn.init.normal_(layer.bias)
    return first, second


def gradients(y, *tensors):
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    return torch.autograd.grad((y * weights).sum(), tensors)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(6,), (1, 6), (7, 6), (2, 3, 6), (0, 6)])
@pytest.mark.parametrize("tokens_per_tile", [None, 1, 3])
def test_outputs_and_gradients_are_those_of_the_layers(activation, shape, tokens_per_tile):
    first, second = layers()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    found = tt_feed_forward(x, first, second, activation, tokens_per_tile)
    wanted = second(PLAIN[activation](first(x)))
    assert found.shape == wanted.shape
    tensors = (x, *first.parameters(), *second.parameters())
    assert_all_close([found, *gradients(found, *tensors)], [wanted, *gradients(wanted, *tensors)])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_slopes(activation):
    first, second = layers(bias=False)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)

    def of(x, *_):
        return tt_feed_forward(x, first, second, activation, tokens_per_tile=3)

    assert torch.autograd.gradcheck(of, (x, first.packed_cores, first.diagonals, second.packed_cores, second.diagonals))


def test_only_the_input_and_activations_at_the_ranks_are_kept():
    first, second = layers()
    tokens, kept = 1000, []
    x = torch.randn(tokens, 6, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        tt_feed_forward(x, first, second)
    inner = (first.shape.ranks[1], second.shape.ranks[1])
    wide = [sorted(shape) for shape in kept if tokens in shape]
    assert sorted(wide) == sorted([[6, tokens], [inner[0], tokens], [inner[1], tokens]])


@pytest.mark.parametrize("empty", ["first", "second"])
def test_a_layer_without_ranks(empty):
    pair = nn.ModuleDict(dict(zip(("first", "second"), layers(), strict=True)))
    set_ranks(pair, {empty: (0, 0, 0)})
    x = torch.randn(5, 6, dtype=torch.float64)
    assert_all_close([tt_feed_forward(x, pair["first"], pair["second"])], [pair["second"](F.gelu(pair["first"](x)))])


def test_autocast():
    first, second = layers(dtype=torch.float32)
    x = torch.randn(64, 6, requires_grad=True)
    tensors = (x, *first.parameters(), *second.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = tt_feed_forward(x, first, second), second(F.gelu(first(x)))
    assert found.dtype == wanted.dtype == torch.bfloat16
    exact = second(F.gelu(first(x)))
    for one, other, true in zip(
        (found, *gradients(found, *tensors)),
        (wanted, *gradients(wanted, *tensors)),
        (exact, *gradients(exact, *tensors)),
        strict=True,
    ):
        assert one.dtype == other.dtype
        assert (one - true).norm() <= 2 * (other - true).norm() + 1e-3 * true.norm()


class Block(nn.Module):
    """A feed-forward with the fused path."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 20), nn.Linear(20, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tt_feed_forward(x, self.first, self.second)


def test_inside_a_model_it_uses_the_jointly_merged_halves(monkeypatch):
    model = tensorize(Block(), {"*": TT(ranks=3, order=2)})
    made, original = [], joint_merging._merge_jointly
    monkeypatch.setattr(joint_merging, "_merge_jointly", lambda layers: made.append(1) or original(layers))
    monkeypatch.setattr("comera.layers.merge_cores", None)
    x = torch.randn(5, 6)
    torch.testing.assert_close(model(x), model.second(F.gelu(model.first(x))))
    assert made == [1]


def test_no_grad_function_transforms_and_export_give_the_same():
    model = tensorize(Block(), {"*": TT(ranks=3, order=2)})
    x = torch.randn(5, 6)
    wanted = model(x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), wanted)
    torch.testing.assert_close(torch.func.vmap(model)(x), wanted)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), wanted)


class Written(nn.Module):
    """A feed-forward whose forward is given."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.first, self.second, self.dropout = nn.Linear(6, 20), nn.Linear(20, 6), nn.Dropout(0.1)
        self.written = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.written(self, x)


def tensorized(module, seed=0):
    torch.manual_seed(seed)
    tensorize(module.double(), {"*": TT(ranks=3, order=2)})
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(6, 20), nn.GELU("tanh"), nn.Linear(20, 6)),
        nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 6, bias=False)),
        Written(lambda m, x: m.second(F.silu(m.first(x)))),
        Written(lambda m, x: m.second(F.gelu(m.first(x), approximate="tanh"))),
        Written(lambda m, x: m.second(torch.relu(m.first(x)))),
    ],
    ids=["gelu_tanh", "relu", "silu", "gelu_tanh_function", "relu_function"],
)
def test_a_feed_forward_is_found_by_what_its_forward_does(module, monkeypatch):
    model = tensorized(nn.ModuleDict({"inside": module}))["inside"]
    x = torch.randn(5, 6, dtype=torch.float64)
    wanted = model(x)
    assert fuse_feed_forwards(model) == [""]
    calls, original = [], tt_feed_forward
    monkeypatch.setattr("comera.functional.tt_feed_forward", lambda *a: calls.append(1) or original(*a))
    torch.testing.assert_close(model(x), wanted)
    assert calls == [1]
    [linear] = [child for child in model.children() if isinstance(child, TTLinear)][:1]
    seen = []
    linear.register_forward_hook(lambda *_: seen.append(1))  # then the layers run one after another
    torch.testing.assert_close(model(x), wanted)
    assert (seen, calls) == ([1], [1])


def sequential():
    return tensorized(nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 6)))


def test_an_activation_that_is_hooked_or_replaced_later_is_the_one_that_runs():
    model, x = sequential(), torch.randn(5, 6, dtype=torch.float64)
    fuse_feed_forwards(model)
    model[1] = nn.SiLU()
    torch.testing.assert_close(model(x), model[2](F.silu(model[0](x))))
    model[1] = nn.Tanh()
    torch.testing.assert_close(model(x), model[2](torch.tanh(model[0](x))))
    model[1] = nn.ReLU()
    model[1].register_forward_hook(lambda *given: 2 * given[-1])
    torch.testing.assert_close(model(x), model[2](2 * F.relu(model[0](x))))


def test_a_fused_module_is_called_by_keyword_exported_and_copied():
    model, x = tensorized(Written(lambda m, x: m.second(F.relu(m.first(x))))), torch.randn(5, 6, dtype=torch.float64)
    wanted = model(x)
    assert fuse_feed_forwards(model) == [""]
    torch.testing.assert_close(model(x=x), wanted)
    torch.testing.assert_close(copy.deepcopy(model)(x), wanted)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), wanted)


@pytest.mark.parametrize("training", [True, False])
def test_a_forward_that_differs_in_training_is_left_as_it_is(training):
    def forward(module, x):
        hidden = F.relu(module.first(x))
        return module.second(module.dropout(hidden) if module.training else hidden)

    assert fuse_feed_forwards(tensorized(Written(forward)).train(training)) == []


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.second(F.gelu(m.first(x))) + x,
        lambda m, x: m.second(F.elu(m.first(x))),
        lambda m, x: m.second(m.dropout(F.gelu(m.first(x)))),
        lambda m, x: m.second(F.gelu(m.first(x + 1))),
        lambda m, x: m.second(F.relu(m.first(x), True)),
        lambda m, x: m.second(F.gelu(m.first(x))) if x.sum() > 0 else x,
        lambda m, x: m.second(m.first(x)),
        lambda m, x: m.second(F.leaky_relu(m.first(x), 0.5)),
    ],
    ids=["residual", "elu", "dropout", "shifted", "in_place", "branch", "no_activation", "slope"],
)
def test_what_does_more_is_left_as_it_is(forward):
    assert fuse_feed_forwards(tensorized(Written(forward))) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"activation": "tanh"}, "activation is 'tanh'; allowed: gelu, gelu_tanh, relu, silu."),
        ({"tokens_per_tile": 0}, "tokens_per_tile is 0; allowed: whole numbers from 1 up, or None."),
        ({"x": torch.ones(2, 5)}, "x has 5 features in its last dimension; expected 6."),
        ({"second": TTLinear(6, 4, (2, 3), (2, 2), 2)}, "first puts out 20 features, second takes 6."),
    ],
)
def test_wrong_values(change, sentence):
    first, second = layers()
    with pytest.raises(ValueError, match=sentence):
        tt_feed_forward(**({"x": torch.ones(2, 6), "first": first, "second": second} | change))
