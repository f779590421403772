"""torch.compile takes layers and models whole: no graph break inside, one merge, the same values and gradients."""

from __future__ import annotations

import contextlib
import copy
import threading

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from comera import TT, TTLinear, TTMEmbedding, layers, tensorize, truncate
from comera.contraction import joint_merging
from comera.lookup import VARIANTS
from comera.lowprec import FP8, use_fp8
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
    call = compiled(model)
    found, wanted = (results(each, model, x) for each in (call, model))
    torch.testing.assert_close(found, wanted)


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


@pytest.fixture
def merges(monkeypatch):
    """How many layers each merge of a graph that is compiled has."""
    found = []
    for module in (joint_merging, layers):
        real = module.merge_cores

        def merge_cores(packed, *others, real=real):
            if torch.compiler.is_compiling():
                found.append(len(packed))
            return real(packed, *others)

        monkeypatch.setattr(module, "merge_cores", merge_cores)
    return found


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
@pytest.mark.parametrize("recompute", ["none", "outputs", "block"])
def test_compiled_training_is_that_without(net, recompute):
    keep_ranks(net, recompute)
    twin = copy.deepcopy(net)
    torch.testing.assert_close(trained(compiled(net), net), trained(twin, twin))
    assert net.first.shape.ranks == twin.first.shape.ranks != net.second.shape.ranks
    assert net.extra.packed_cores.grad is None


def test_evaluation_and_training_take_turns(net):
    call, x = compiled(net), torch.randn(5, 8)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(call(x), net(x))
        twin = copy.deepcopy(net)
        torch.testing.assert_close(trained(call, net, 1), trained(twin, twin, 1))


class WithGradients(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        with torch.enable_grad():
            return self.layer(x)


def test_a_region_with_gradients_in_a_call_without(merges):
    net = tensorize(nn.Sequential(nn.Linear(8, 8), WithGradients(nn.Linear(8, 8))), {"*": TT(3, order=2)})
    x = torch.randn(5, 8)
    with torch.no_grad():
        y = torch.compile(net, backend="aot_eager")(x)
    y.sum().backward()
    assert merges[-1] == 1
    assert net[1].layer.packed_cores.grad is not None


def test_layers_whose_parameters_a_hook_changes_merge_alone(net, merges):
    def double(layer, _):
        with torch.no_grad():
            layer.packed_cores.mul_(2)

    net.second.register_forward_pre_hook(double)
    twin, x = copy.deepcopy(net), torch.randn(5, 8)
    torch.testing.assert_close(compiled(net)(x), twin(x))
    assert list(dict.fromkeys(merges)) == [2, 1]


class Swap(nn.Module):
    """Gives the second layer the parameters of the extra one, amid a call."""

    def forward(self, x):
        self.net.second.share_cores(self.net.extra)
        return x


def test_parameters_that_are_replaced_amid_a_call(net, merges):
    net.between = Swap()
    net.between.__dict__["net"] = net
    x = torch.randn(5, 8)
    y = torch.compile(net, backend="aot_eager")(x)
    assert merges[-1] == 1
    net.between = nn.Identity()
    torch.testing.assert_close(y, net(x))


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


@pytest.mark.parametrize("error", [ValueError(), KeyboardInterrupt()])
@pytest.mark.parametrize("recompute", [pytest.param("none", marks=pytest.mark.slow), "outputs"])
def test_a_graph_break_and_a_call_that_ends_by_an_error(net, error, recompute):
    keep_ranks(net, recompute)
    net.between = Broken()
    x, call = torch.randn(5, 8), torch.compile(net, backend="aot_eager")
    torch.testing.assert_close(call(x), net(x))
    twin = copy.deepcopy(net)
    torch.testing.assert_close(trained(call, net, 1), trained(twin, twin, 1))
    net.between.error = error
    with pytest.raises(type(error)):
        call(x)
    assert not joint_merging._traced.by_layer


@pytest.mark.slow
def test_calls_in_two_threads_have_their_own_halves(net):
    x, call = torch.randn(5, 8), torch.compile(net, backend="aot_eager")
    net.between = Broken()
    met, halves = threading.Barrier(2, timeout=60), []

    @torch.compiler.disable
    def meet(*_):
        halves.append([id(tensor) for each in joint_merging._traced.by_layer.values() for tensor in each.halves])
        met.wait()

    call(x).sum().backward()  # compiles
    wanted = net.first.packed_cores.grad.clone()
    net.zero_grad()
    net.between.register_forward_hook(meet)
    threads = [threading.Thread(target=lambda: call(x).sum().backward()) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not set(halves[0]) & set(halves[1])
    torch.testing.assert_close(net.first.packed_cores.grad, 2 * wanted)


def test_a_root_within_a_root_takes_the_halves_of_the_outer_one(merges):
    inner = tensorize(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), {"*": TT(3, order=2)})
    outer = tensorize(nn.Sequential(inner, nn.Linear(8, 8), nn.Linear(8, 8)), {"[12]": TT(3, order=2)})
    x = torch.randn(5, 8)
    torch.testing.assert_close(compiled(outer)(x), outer(x))
    assert set(merges) == {4}


@pytest.mark.parametrize("fp8", [FP8(), FP8(scales="row"), FP8(scaling="delayed"), FP8(terms=2)], ids=str)
def test_products_in_fp8_are_compiled_without_a_break(fp8):
    torch.manual_seed(0)
    layer = TTLinear(64, 96, (8, 8), (8, 12), 6)
    other = copy.deepcopy(layer)
    x = torch.randn(48, 64)
    for one in (layer, other):
        use_fp8(one, fp8)
    run = compiled(other)
    for _ in range(2):  # delayed scaling has a history from the first call on
        plain, through = results(layer, layer, x), results(run, other, x)
        for a, b in zip(plain, through, strict=True):
            torch.testing.assert_close(a, b)
