"""torch.compile takes the layers whole: no graph break inside, the same values and gradients, also after truncation."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from comera import TT, TTLinear, TTMEmbedding, tensorize
from comera.lookup import VARIANTS

pytestmark = pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(module):
    """The module through the compiler's front end and its autograd; a graph break is an error."""
    return torch.compile(module, backend="aot_eager", fullgraph=True)


def results(call, layer, x):
    layer.zero_grad()
    y = call(x)
    y.float().square().sum().backward()
    return [y.detach(), *(parameter.grad.clone() for parameter in layer.parameters())]


LINEARS = {
    "two cores": lambda: TTLinear(6, 4, (6,), (4,), 3),
    "four cores, no bias": lambda: TTLinear(6, 8, (2, 3), (4, 2), 3, bias=False),
    "eight cores": lambda: TTLinear(24, 16, (2, 2, 2, 3), (2, 2, 2, 2), 3),
}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", LINEARS)
def test_a_tt_layer_is_one_graph(kind, autocast):
    layer = LINEARS[kind]()
    x = torch.randn(5, 3, layer.in_features)
    with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
        found, wanted = (results(call, layer, x) for call in (compiled(layer), layer))
    # Uncompiled, so few tokens meet a plan of their own, which rounds elsewhere.
    torch.testing.assert_close(found, wanted, **({"rtol": 0.05, "atol": 0.05} if autocast else {}))


@pytest.mark.parametrize("lookup", VARIANTS)
def test_a_look_up_is_one_graph(lookup):
    layer = TTMEmbedding(12, 8, (4, 3), (2, 4), 3, padding_idx=0, lookup=lookup)
    indices = torch.tensor([[1, 5, 1], [0, 11, 5]])
    found, wanted = (results(call, layer, indices) for call in (compiled(layer), layer))
    torch.testing.assert_close(found, wanted)


def test_a_truncated_layer_is_compiled_again():
    layer = TTLinear(6, 8, (2, 3), (4, 2), 2)
    x = torch.randn(5, 6)
    call = compiled(layer)
    before = call(x).detach()
    for entries in (slice(0, 1), slice(0, None)):  # one rank, then all of them
        with torch.no_grad():
            layer.diagonals[entries] = 0.0
        layer.truncate()
        torch.testing.assert_close(call(x), layer(x))
    assert not torch.equal(call(x), before)


def test_jointly_merged_layers_keep_their_values():
    model = tensorize(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), {"*": TT(3, order=2)})
    x = torch.randn(5, 8)
    call = torch.compile(model, backend="aot_eager")  # one break, between the merging and the layers
    found, wanted = (results(each, model, x) for each in (call, model))
    torch.testing.assert_close(found, wanted)
