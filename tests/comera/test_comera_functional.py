"""The fused feed-forward against the layers one after another."""

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn
from torch.nn import functional as F

from comera import TT, TTLinear, tensorize
from comera.contraction.merging import two_half_linear
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
@pytest.mark.parametrize("shape", [(6,), (7, 6), (2, 3, 6), (0, 6)])
@pytest.mark.parametrize("tokens_per_tile", [None, 3])
def test_outputs_and_gradients_are_those_of_the_layers(activation, shape, tokens_per_tile):
    first, second = layers()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    found = tt_feed_forward(x, first, second, activation, tokens_per_tile)
    wanted = second(PLAIN[activation](first(x)))
    assert found.shape == wanted.shape
    tensors = (x, *first.parameters(), *second.parameters())
    assert_all_close([found, *gradients(found, *tensors)], [wanted, *gradients(wanted, *tensors)])


def test_only_the_input_and_activations_at_the_ranks_are_kept():
    first, second = layers()
    tokens, kept = 1000, []
    x = torch.randn(tokens, 6, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        tt_feed_forward(x, first, second)
    inner = (first.shape.ranks[1], second.shape.ranks[1])
    wide = [sorted(shape) for shape in kept if tokens in shape]
    assert sorted(wide) == sorted([[6, tokens], [inner[0], tokens], [inner[1], tokens]])


def test_autocast():
    first, second = layers(dtype=torch.float32)
    x = torch.randn(64, 6, requires_grad=True)
    tensors = (x, *first.parameters(), *second.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        hidden = F.gelu(two_half_linear(x, *first.halves(), first.bias))  # layers alone may multiply by other plans
        found, wanted = tt_feed_forward(x, first, second), two_half_linear(hidden, *second.halves(), second.bias)
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


class Written(nn.Module):
    """A feed-forward whose forward is given."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.first, self.second, self.dropout = nn.Linear(6, 20), nn.Linear(20, 6), nn.Dropout(0.1)
        self.written = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.written(self, x)


def tensorized(module):
    torch.manual_seed(0)
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
    monkeypatch.setattr("comera.functional.tt_feed_forward", lambda *a, **o: calls.append(1) or original(*a, **o))
    torch.testing.assert_close(model(x), wanted)
    assert calls == [1]
    [linear] = [child for child in model.children() if isinstance(child, TTLinear)][:1]
    seen = []
    linear.register_forward_hook(lambda *_: seen.append(1))  # then the layers run one after another
    torch.testing.assert_close(model(x), wanted)
    assert (seen, calls) == ([1], [1])


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
