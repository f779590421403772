"""torch.compile takes layers and models whole: no graph break inside, one merge, the same values and gradients."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from comera import TT, TTLinear, tensorize, truncate
from comera.contraction import joint_merging
from comera.low_precision import FP8, use_fp8
from comera.recomputing import keep_ranks

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`"),
]


def compiled(module):
    """The module through the compiler's front end and its autograd; a graph break is an error."""
    return torch.compile(module, backend="aot_eager", fullgraph=True)


def results(call, layer, x):
    layer.zero_grad()
    y = call(x)
    y.float().square().sum().backward()
    return [y.detach(), *(parameter.grad.clone() for parameter in layer.parameters())]


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


class Net(nn.Module):
    """Three layers of one shape, of which the last runs only when asked, and what a test puts between the others."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.extra = (nn.Linear(8, 8) for _ in range(3))
        self.between = nn.Identity()

    def forward(self, x, extra=False):
        x = self.second(self.between(torch.tanh(self.first(x))))
        return self.extra(x) if extra else x


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = tensorize(Net(), {"*": TT(3, order=2)})
    with torch.no_grad():
        for layer in model.children():
            if isinstance(layer, TTLinear):
                layer.diagonals.uniform_(0.5, 1.5)
    return model


def products(model, *arguments):
    """The batches of the batched products in the compiled forward pass of a model."""
    found = []

    def note(graph, _):
        bmms = [node for node in graph.graph.nodes if node.target is torch.ops.aten.bmm.default]
        found.extend(node.meta["val"].shape[0] for node in bmms)
        return graph.forward

    torch.compile(model, backend=aot_autograd(fw_compiler=note), fullgraph=True)(*arguments)
    return found


def test_a_compiled_model_merges_jointly(net):
    x = torch.randn(5, 8)
    assert products(net, x) == [6]  # both halves of three layers
    torch.compiler.reset()
    assert products(lambda x: net(x) + 1, x) == [6]  # also within something larger
    torch.compiler.reset()
    assert products(net.first, x) == [2]  # a layer on its own


def trained(call, model, steps=4):
    """Losses of a model in training, whose ranks are cut after the second step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for number in range(steps):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        loss = call(x).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if number == 1:
            with torch.no_grad():
                model.first.diagonals[0] = 0.0
            truncate(model, optimizer)
    return losses


@pytest.mark.slow
def test_compiled_training_is_that_without(net):
    keep_ranks(net, "block")
    twin = copy.deepcopy(net)
    torch.testing.assert_close(trained(compiled(net), net), trained(twin, twin))
    assert net.first.shape.ranks == twin.first.shape.ranks != net.second.shape.ranks
    assert net.extra.packed_cores.grad is None


class Broken(nn.Module):
    """What the compiler does not take, so that the graph breaks here."""

    error = None
    halves = None

    @torch.compiler.disable
    def forward(self, x):
        self.halves = dict(joint_merging._traced.by_layer)
        if self.error is not None:
            raise self.error
        return x


def test_a_graph_break_and_a_call_that_ends_by_an_error(net):
    keep_ranks(net, "outputs")
    net.between = Broken()
    x, call = torch.randn(5, 8), torch.compile(net, backend="aot_eager")
    torch.testing.assert_close(call(x), net(x))
    twin = copy.deepcopy(net)
    torch.testing.assert_close(trained(call, net, 1), trained(twin, twin, 1))
    net.between.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        call(x)
    assert not joint_merging._traced.by_layer


def test_products_in_fp8_are_compiled_without_a_break():
    torch.manual_seed(0)
    layer = TTLinear(64, 96, (8, 8), (8, 12), 6)
    other = copy.deepcopy(layer)
    x = torch.randn(48, 64)
    for one in (layer, other):
        use_fp8(one, FP8())
    run = compiled(other)
    plain, through = results(layer, layer, x), results(run, other, x)
    for a, b in zip(plain, through, strict=True):
        torch.testing.assert_close(a, b)
