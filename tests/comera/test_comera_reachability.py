"""Layers whose output reaches the loss through closed layers alone are found, all of them, and no other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from comera import TT, TTM, drop_unreachable, exact_size, ranks_of, tensorize, tensorized_layers, truncate


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.first, self.second, self.dropout = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(0.2)

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.first(x + self.dropout(self.output(attended)))
        return self.second(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.answer = nn.Linear(8, 2)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.answer(x.mean(1))


TOKENS = torch.randint(0, 20, (3, 5), generator=torch.Generator().manual_seed(0))
PLAN = {"words": TTM(2, order=2), "blocks.*": TT(2, order=2)}


def loss_of(model):
    return F.cross_entropy(model(TOKENS), torch.tensor([0, 1, 0]))


def close(model, *names):
    with torch.no_grad():
        for name in names:
            model.get_submodule(name).diagonals.zero_()


def gradients_of(model):
    model.zero_grad()
    loss_of(model).backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters()
    }


@pytest.mark.parametrize("recompute", ["none", "outputs", "block"])
@pytest.mark.parametrize("cut", [False, True])
def test_query_key_and_value_of_a_closed_output_projection_are_unreachable(cut, recompute):
    model = tensorize(Encoder().double(), PLAN, recompute=recompute)
    close(model, "blocks.1.output")
    if cut:
        truncate(model)
    torch.manual_seed(3)
    before = gradients_of(model)
    random = torch.get_rng_state()
    dropped = [f"blocks.1.{name}" for name in ("query", "key", "value")]
    assert drop_unreachable(model, loss_of) == dropped
    assert torch.equal(torch.get_rng_state(), random)
    closed = [name for name, ranks in ranks_of(model).items() if not all(model.get_submodule(name).active_ranks())]
    assert closed == [*dropped, "blocks.1.output"]
    torch.manual_seed(3)
    for name, gradient in gradients_of(model).items():  # those of the dropped layers were exactly zero already
        assert torch.equal(gradient, before[name]), name
        assert not any(bool(gradient.any()) for layer in dropped if name.startswith(f"{layer}."))
    size = exact_size(tensorized_layers(model))
    assert truncate(model)
    assert size == sum(layer.shape.parameter_count for layer in tensorized_layers(model))
    assert drop_unreachable(model, loss_of) == []


def test_a_closed_second_layer_of_a_feed_forward_takes_the_first_with_it():
    model = tensorize(Encoder(), PLAN, recompute="outputs")
    close(model, "blocks.0.down", "blocks.1.output")
    assert drop_unreachable(model, loss_of) == ["blocks.0.up", *(f"blocks.1.{n}" for n in ("query", "key", "value"))]


class Graph(nn.Module):
    """Layers that read sums of what earlier ones put out; some of them are read by the loss."""

    def __init__(self, reads, read_by_loss):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in reads)
        self.reads, self.read_by_loss = reads, read_by_loss

    def forward(self, x):
        values = [x]
        for layer, reads in zip(self.layers, self.reads, strict=True):
            values.append(torch.relu_(layer(sum(values[place] for place in reads))))
        return sum(values[place] for place in self.read_by_loss)


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 7))
    reads = [draw(st.lists(st.integers(0, i), min_size=1, max_size=3)) for i in range(count)]
    read_by_loss = draw(st.lists(st.integers(1, count), min_size=1, max_size=2))
    closed = draw(st.sets(st.integers(0, count - 1)))
    return reads, read_by_loss, closed


def reaching(reads, ends, barred):
    """The layers found by going back from the loss, but not beyond the barred ones."""
    found, ahead = set(), [place - 1 for place in ends]
    while ahead:
        layer = ahead.pop()
        if layer < 0 or layer in found:
            continue
        found.add(layer)
        if layer not in barred:
            ahead += [place - 1 for place in reads[layer]]
    return found


@settings(max_examples=25)
@given(graphs(), st.booleans(), st.booleans())
def test_in_any_graph_all_that_is_cut_off_by_closed_layers_is_dropped_and_no_more(drawn, jointly, frozen):
    reads, ends, closed = drawn
    model = Graph(reads, ends)
    for parameter in model.layers[0].parameters():
        parameter.requires_grad_(not frozen)
    model = tensorize(model, {"*": TT(2, order=1)}, merge_jointly=jointly)
    close(model, *(f"layers.{i}" for i in closed))
    wanted = reaching(reads, ends, ()) - reaching(reads, ends, closed) - closed
    x = torch.randn(3, 4)
    before = model(x)
    assert drop_unreachable(model, lambda model: model(x).sum()) == [f"layers.{i}" for i in sorted(wanted)]
    assert torch.equal(model(x), before)
    truncate(model)
    torch.testing.assert_close(model(x), before)


class Hidden(nn.Module):
    """What the first layer puts out reaches the closed second layer, and the loss by a way that has no gradient."""

    def __init__(self, way):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.way = way

    def forward(self, x):
        y = self.first(x)
        return self.last(self.second(y) + self.way(y, self.first))


def without_grad(_, first):
    with torch.no_grad():
        return first(torch.ones(4))


WAYS = {
    "detach": lambda y, _: y.detach(),
    "argmax": lambda y, _: F.one_hot(y.argmax(-1), 4).float(),
    "branch": lambda y, _: (y.sum() > 0).item() + y[0, 0].item(),
    "no_grad": without_grad,
    "weight": lambda _, first: first.weight.sum(),
    "weight without a gradient": lambda _, first: first.weight.detach().sum(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_whose_output_reaches_the_loss_by_another_way_is_kept(way):
    model = tensorize(Hidden(WAYS[way]), {"first": TT(2, order=1), "second": TT(2, order=1)})
    close(model, "second")
    with torch.no_grad():
        model.first.packed_cores.mul_(8).round_()  # so that no rounding hides a sum that is what it was
    x = torch.randn(64, 4)
    assert drop_unreachable(model, lambda model: model(x).square().mean()) == []


def test_a_weight_that_starts_at_zero_and_is_read_without_a_gradient_is_kept():
    model = Hidden(WAYS["weight without a gradient"])
    nn.init.zeros_(model.first.weight)
    model = tensorize(model, {"first": TT(2, order=1), "second": TT(2, order=1)}, start="weights")
    close(model, "second")
    x = torch.randn(64, 4)
    assert drop_unreachable(model, lambda model: model(x).square().mean()) == []


def test_cores_that_are_shared_with_a_layer_that_reaches_the_loss_are_kept():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.hidden, self.output = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9)
            self.output.weight = self.words.weight

        def forward(self, tokens):
            return self.output(self.hidden(self.words(tokens)))

    model = tensorize(Tied(), {"words": TTM(2, order=2), "hidden": TT(2, order=1)})
    close(model, "hidden")
    assert drop_unreachable(model, lambda model: model(torch.tensor([1, 2]))) == []
    alone = tensorize(
        nn.Sequential(nn.EmbeddingBag(9, 4), nn.Linear(4, 4)), {"0": TTM(2, order=2), "1": TT(2, order=1)}
    )
    close(alone, "1")
    assert drop_unreachable(alone, lambda model: model(torch.tensor([[1, 2]]))) == ["0"]
