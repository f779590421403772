"""Swapping layers keeps everything about a model but the form of its weights."""

import copy

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn
from torch.nn import functional as F

from comera import BTT, TT, TTM, TiedTTMLinear, TTLinear, TTMEmbedding, tensorize

FULL = 10**6  # a cap that no bond reaches


class LanguageModel(nn.Module):
    """An embedding, a hidden layer, and an output layer that may share the embedding's table."""

    def __init__(self, tied: bool, bias: bool = True, padding_idx: int | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 6, padding_idx=padding_idx)
        self.hidden = nn.Linear(6, 6)
        self.output = nn.Linear(6, 12, bias=bias)
        if tied:
            self.output.weight = self.table.weight

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.output(torch.tanh(self.hidden(self.table(indices))))


def deep_model():
    return nn.Sequential(
        nn.Embedding(20, 12),
        nn.ModuleDict({"query": nn.Linear(12, 12), "key": nn.Linear(12, 12, bias=False)}),
        nn.Sequential(nn.Linear(12, 18), nn.LayerNorm(18), nn.Linear(18, 12)),
    )


def replaced(model):
    return {name for name, module in model.named_modules() if isinstance(module, TTLinear | TTMEmbedding)}


@pytest.mark.parametrize(
    ("plan", "names"),
    [
        ({"0": TTM()}, {"0"}),
        ({"1.*": TT()}, {"1.query", "1.key"}),
        ({"*.query": TT(), "2.2": TT()}, {"1.query", "2.2"}),
        ({"[12].*": TT(), "?": TTM()}, {"0", "1.query", "1.key", "2.0", "2.2"}),
    ],
)
def test_patterns_choose_by_name_and_leave_the_rest_untouched(plan, names):
    model = deep_model()
    before = dict(model.named_modules())
    assert tensorize(model, plan) is model
    assert replaced(model) == names
    for name, module in model.named_modules():
        if name not in names:
            assert module is before[name]


def test_the_first_pattern_that_fits_decides():
    model = deep_model()
    tensorize(model, {"*.query": TT(ranks=1), "1.*": TT(ranks=2)})
    assert max(model[1]["query"].shape.ranks) == 1
    assert max(model[1]["key"].shape.ranks) == 2


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("padding_idx", [None, 0, 5])
def test_from_weights_at_full_ranks_is_the_same_function(tied, padding_idx):
    dense = LanguageModel(tied, padding_idx=padding_idx).double()
    with torch.no_grad():  # nn.Linear reads this row when tied, and the look-up yields zeros for it
        if padding_idx is not None:
            dense.table.weight[padding_idx] = 0
    model = copy.deepcopy(dense)
    plan = {"table": TTM(FULL, order=2), "hidden": TT(FULL, order=2)}
    if not tied:
        plan["output"] = TT(FULL, order=2)
    tensorize(model, plan, start="weights")
    indices = torch.arange(12).view(3, 4)
    assert model.table.padding_idx == padding_idx
    assert_all_close([model(indices)], [dense(indices)])


@pytest.mark.parametrize("start", ["scratch", "weights"])
def test_padding_gives_zeros_and_takes_no_gradient(start):
    model = tensorize(LanguageModel(False, padding_idx=5), {"table": TTM(3, order=2)}, start)
    rows = model.table(torch.tensor([5, 5]))
    rows.sum().backward()
    assert not bool(rows.any())
    assert not bool(model.table.packed_cores.grad.any())


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("start", ["scratch", "weights"])
def test_an_output_layer_tied_to_the_embedding_stays_tied(named, bias, start):
    model = LanguageModel(True, bias).double()
    before = model.output.bias
    plan = {"table": TTM(2, order=2)}
    if named:
        plan["output"] = TT(2, order=2)
    tensorize(model, plan, start)
    assert isinstance(model.output, TiedTTMLinear)
    assert model.output.embedding is model.table
    assert model.output.bias is before
    assert len([p for p in model.parameters() if p is model.table.packed_cores]) == 1
    indices = torch.tensor([3, 3, 7])
    dense = model.table.to_dense()
    wanted = F.linear(torch.tanh(model.hidden(dense[indices])), dense, model.output.bias)
    inputs = [model.table.packed_cores, model.table.diagonals]
    assert_all_close([model(indices)], [wanted])
    # The gradient flows from both uses into the same cores.
    assert_all_close(
        torch.autograd.grad(model(indices).square().sum(), inputs), torch.autograd.grad(wanted.square().sum(), inputs)
    )
    half = torch.autograd.grad(model.output(torch.ones(6, dtype=torch.float64)).sum(), inputs)
    assert all(bool(gradient.any()) for gradient in half)


@pytest.mark.parametrize("start", ["scratch", "weights"])
def test_linear_layers_that_share_a_weight_share_their_cores(start):
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)).double()
    model[2].weight = model[0].weight
    bias = model[2].bias.detach().clone()
    # The patterns disagree about the ranks; the first of the layers decides for both.
    tensorize(model, {"0": TT(2, order=2), "2": TT(3, order=2), "1": TT(2, order=2)}, start)
    assert model[0].packed_cores is model[2].packed_cores
    assert model[0].diagonals is model[2].diagonals
    assert model[0].bias is not model[2].bias
    if start == "weights":
        assert_all_close([model[2].bias], [bias])
    assert len(list(model.parameters())) == 2 * 2 + 3
    x = torch.randn(4, 6, dtype=torch.float64)
    wanted = x
    for layer in model:
        wanted = F.linear(wanted, layer.to_dense(), layer.bias)
    inputs = list(model.parameters())
    assert_all_close([model(x)], [wanted])
    assert_all_close(torch.autograd.grad(model(x).sum(), inputs), torch.autograd.grad(wanted.sum(), inputs))


def test_a_layer_that_shares_its_weight_with_a_replaced_one_must_be_named():
    for shares in ("output", "table"):
        model = LanguageModel(True)
        if shares == "output":  # two linear layers instead
            model.table = nn.Linear(6, 12)
            model.table.weight = model.output.weight
        with pytest.raises(ValueError, match="shares its weight with a layer the plan replaces; name it in the plan"):
            tensorize(model, {"output": TT(2, order=2)})
        assert not replaced(model)


def test_two_embeddings_that_share_a_table_become_one():
    model = nn.Sequential(nn.Embedding(12, 6), nn.Embedding(12, 6))
    model[1].weight = model[0].weight
    tensorize(model, {"0": TTM(2, order=2)})
    assert model[0] is model[1]


@pytest.mark.parametrize(
    ("plan", "start", "named"),
    [
        ({"9*": TT()}, "scratch", "9"),
        ({"0": TT()}, "scratch", "TT.*0"),
        ({"1.*": TTM()}, "scratch", "1.query"),
        ({"2.0": TT()}, "dense", "start"),
        ({"2.0": TT(in_modes=(4, 3))}, "scratch", "out_modes"),
        ({"2.0": TT(in_modes=(4, 4), out_modes=(3, 6))}, "weights", "modes"),
        ({"1.*": TT(2), "2.0": TT((9, 9, 9), order=2)}, "weights", "rank"),
        ({"0": TTM(lookup="fast")}, "scratch", "lookup"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_the_model_as_it_was(plan, start, named):
    model = deep_model()
    with pytest.raises(ValueError, match=named):
        tensorize(model, plan, start)
    assert not replaced(model)


@pytest.mark.parametrize("tied", [True, False])
def test_a_state_dict_makes_the_round_trip(tied, tmp_path):
    plan = {"table": TTM(2, order=2), "hidden": TT(2, order=2)}
    model, other = (tensorize(LanguageModel(tied), plan) for _ in range(2))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    indices = torch.tensor([[0, 3, 11]])
    assert torch.equal(model(indices), other(indices))


@pytest.mark.parametrize(("in_modes", "out_modes"), [((4, 4, 3), (3, 4, 5)), ((48,), (60,)), ((8, 6), (6, 10))])
def test_new_weights_have_the_variance_the_layer_names(in_modes, out_modes):
    layers = [TTLinear(48, 60, in_modes, out_modes, 12) for _ in range(100)]
    variance = torch.stack([layer.to_dense() for layer in layers]).square().mean().item()
    assert variance == pytest.approx(1 / 108, rel=0.15)
    assert not any(bool(layer.bias.any()) for layer in layers)
    assert all(bool((layer.diagonals == 1).all()) for layer in layers)


def with_a_weight_norm(model):
    nn.utils.parametrizations.weight_norm(model.hidden)


def with_a_backward_hook(model):
    model.hidden.register_full_backward_hook(lambda *_: None)


def with_a_hook_on_the_weight(model):
    model.hidden.weight.register_hook(lambda gradient: gradient)


def with_another_forward(model):
    model.hidden.forward = lambda x: x


def with_a_subclass(model):
    model.hidden = type("Doubled", (nn.Linear,), {})(6, 6)


@pytest.mark.parametrize(
    "change",
    [with_a_weight_norm, with_a_backward_hook, with_a_hook_on_the_weight, with_another_forward, with_a_subclass],
)
def test_a_layer_that_does_more_than_its_class_is_refused_by_name(change):
    model = LanguageModel(False)
    change(model)
    with pytest.raises(ValueError, match="hidden"):
        tensorize(model, {"h*": TT(2, order=2)})
    assert not replaced(model)
    tensorize(model, {"hidden": None, "h*": TT(2, order=2), "output": TT(2, order=2)})
    assert replaced(model) == {"output"}


@pytest.mark.parametrize("start", ["scratch", "weights"])
def test_what_is_frozen_stays_frozen(start):
    model = LanguageModel(False)
    for parameter in (model.table.weight, model.hidden.weight, model.output.bias):
        parameter.requires_grad_(False)
    tensorize(model, {"table": TTM(2, order=2), "*": TT(2, order=2)}, start)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"hidden.bias", "output.packed_cores", "output.diagonals_bias"}
    model(torch.tensor([[0, 3, 11]])).sum().backward()
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == trained


@pytest.mark.parametrize("spec", [TT(ranks=4, order=1), TT(ranks=4, order=2), BTT(rank=2), TTM(ranks=4, order=2)])
@pytest.mark.parametrize("weight", ["zeros", "rank one", "one block"])
def test_no_rank_of_a_decomposed_weight_is_dead(spec, weight):
    table = isinstance(spec, TTM)
    dense = nn.Embedding(16, 16) if table else nn.Linear(16, 16, bias=False)
    given = torch.zeros(16, 16)
    if weight == "rank one":
        given = torch.outer(torch.arange(1.0, 17), torch.linspace(-1, 1, 16))
    elif weight == "one block":
        given[:4, :4] = torch.randn(4, 4)
    with torch.no_grad():
        dense.weight.copy_(given)
    layer = tensorize(dense, {"": spec}, start="weights")
    if weight == "zeros":
        assert not layer.to_dense().any()

    def slices():
        """Return the entries of each factor, by the rank that they belong to."""
        if isinstance(spec, BTT):
            shape = layer.shape
            yield layer.in_core.view(shape.in_blocks, shape.in_size, -1).movedim(1, 2).flatten(0, 1)
            yield layer.out_core.flatten(0, 1)
        else:
            yield from (core.movedim(-1, 0).flatten(1) for core in layer.cores())

    before = [each.detach().clone() for each in slices()]
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    x = torch.arange(16) if table else torch.randn(32, 16)
    for _ in range(4):
        optimizer.zero_grad()
        (layer(x) - torch.linspace(-1, 2, 16)).square().sum().backward()
        optimizer.step()
    for then, now in zip(before, slices(), strict=True):
        assert (then != now).any(1).all()
