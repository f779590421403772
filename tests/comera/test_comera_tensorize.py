"""Swapping layers keeps everything about a model but the form of its weights."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from comera import TT, TTM, EarlyStage, TiedTTMLinear, TTLinear, TTMEmbedding, tensorize

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


def test_modes_are_the_balanced_ones_unless_given():
    model = nn.Sequential(nn.Embedding(30, 12), nn.Linear(12, 24))
    tensorize(copied := copy.deepcopy(model), {"0": TTM(order=3), "1": TT(order=2)})
    assert (copied[0].shape.row_modes, copied[0].shape.column_modes) == ((4, 3, 3), (2, 2, 3))
    assert (copied[1].shape.in_modes, copied[1].shape.out_modes) == ((4, 3), (4, 6))
    plan = {
        "0": TTM((2, 3), row_modes=(2, 4, 4), column_modes=(1, 3, 4), lookup="plain"),
        "1": TT((2, 1, 2), in_modes=(2, 6), out_modes=(12, 2)),
    }
    tensorize(model, plan)
    assert (model[0].shape.row_modes, model[0].shape.column_modes) == ((2, 4, 4), (1, 3, 4))
    assert (model[0].shape.ranks, model[0].lookup) == ((2, 3), "plain")
    assert (model[1].shape.in_modes, model[1].shape.out_modes) == ((2, 6), (12, 2))
    assert model[1].shape.ranks == (2, 1, 2)


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


def test_a_module_under_two_names_is_replaced_under_both():
    shared = nn.Linear(6, 6)
    model = nn.ModuleDict({"a": shared, "b": nn.ModuleDict({"c": shared, "d": nn.Linear(6, 6)})})
    tensorize(model, {"b.c": TT(2, order=2)})
    assert model["a"] is model["b"]["c"]
    assert isinstance(model["a"], TTLinear)
    assert isinstance(model["b"]["d"], nn.Linear)


@pytest.mark.parametrize("pattern", ["*", ""])
def test_a_root_that_is_itself_a_layer_is_returned_replaced(pattern):
    linear, table = nn.Linear(6, 4).double(), nn.Embedding(9, 4, padding_idx=2).double()
    x, indices = torch.randn(3, 6, dtype=torch.float64), torch.tensor([0, 2, 8])
    assert_all_close([tensorize(linear, {pattern: TT(FULL, order=2)}, "weights")(x)], [linear(x)])
    assert_all_close([tensorize(table, {pattern: TTM(FULL, order=2)}, "weights")(indices)], [table(indices)])


@pytest.mark.parametrize(
    ("plan", "start", "sentence"),
    [
        (
            {"9*": TT()},
            "scratch",
            r"^plan pattern '9\*' fits no nn.Linear, Conv1D, nn.Embedding or nn.EmbeddingBag of the model\.$",
        ),
        ({"2.1": TT()}, "scratch", "^plan pattern '2.1' fits no"),
        (
            {"0": TT()},
            "scratch",
            "gives TT, but 0 is of class Embedding.*'0': None.*'0': comera.TTM",
        ),
        ({"1.*": TTM()}, "scratch", "gives TTM, but 1.query is of class Linear.*'1.query': None.*comera.TT\\(\\)"),
        ({"2.0": TT()}, "dense", r"^start is 'dense'; allowed: scratch, weights\.$"),
        ({"2.0": TT(in_modes=(4, 3))}, "scratch", "in_modes and out_modes go together: give both or neither"),
        ({"0": TTM(column_modes=(4, 3))}, "scratch", "row_modes and column_modes go together: give both or neither"),
        ({"2.0": TT(in_modes=(4, 4), out_modes=(3, 6))}, "weights", r"not to 12; modes that fit: \(4, 3\)"),
        ({"1.*": TT(2), "2.0": TT((9, 9, 9), order=2)}, "weights", "the rank of bond 1 is 9; this bond allows 0 to 4"),
        ({"0": TTM(lookup="fast")}, "scratch", "lookup is 'fast'; allowed: optimized, plain, unique, order"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_the_model_as_it_was(plan, start, sentence):
    model = deep_model()
    with pytest.raises(ValueError, match=sentence):
        tensorize(model, plan, start)
    assert not replaced(model)


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}])
def test_an_embeddings_options_that_cannot_be_kept_are_refused(option):
    model = nn.Sequential(nn.Embedding(12, 6, **option))
    with pytest.raises(ValueError, match=f"0 uses {next(iter(option))}=.* TTMEmbedding does not offer"):
        tensorize(model, {"0": TTM(2, order=2)})


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("start", ["scratch", "weights"])
@pytest.mark.parametrize("training", [True, False])
def test_type_and_training_flag_are_kept(dtype, start, training):
    model = LanguageModel(True).to(dtype).train(training)
    tensorize(model, {"table": TTM(2, order=2), "hidden": TT(2, order=2)}, start)
    assert all(parameter.dtype == dtype for parameter in model.parameters())
    assert all(module.training == training for module in model.modules())


def test_the_device_is_kept():
    with torch.device("meta"):
        model = LanguageModel(True)
    tensorize(model, {"table": TTM(2, order=2), "hidden": TT(2, order=2)})
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    model.to_empty(device="cpu")
    for layer in (model.table, model.hidden):
        layer.reset_parameters()
    assert bool(model.table.to_dense().isfinite().all())
    assert model(torch.zeros(2, 3, dtype=torch.long)).shape == (2, 3, 12)


@pytest.mark.parametrize("tied", [True, False])
def test_a_state_dict_makes_the_round_trip(tied, tmp_path):
    plan = {"table": TTM(2, order=2), "hidden": TT(2, order=2)}
    model, other = (tensorize(LanguageModel(tied), plan) for _ in range(2))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    indices = torch.tensor([[0, 3, 11]])
    assert torch.equal(model(indices), other(indices))


@pytest.mark.parametrize("tied", [True, False])
def test_fake_tensors_pass_forward_and_backward(tied):
    with FakeTensorMode():
        model = LanguageModel(tied, padding_idx=0)
        tensorize(model, {"table": TTM(2, order=2), "hidden": TT(2, order=2)})
        loss = F.cross_entropy(model(torch.zeros(4, 5, dtype=torch.long)).flatten(0, 1), torch.zeros(20).long())
        EarlyStage()(loss, model).backward()
        torch.optim.AdamW(model.parameters(), fused=True).step()
    assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("wrap", [lambda layer: layer, nn.Sequential, lambda layer: nn.TransformerEncoder(layer, 2)])
def test_torchs_own_transformer_layer_works_though_it_reads_weights_itself(wrap, training):
    dense = wrap(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)).double().train(training)
    model = tensorize(copy.deepcopy(dense), {"*": TT(FULL, order=2)}, "weights")
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    with torch.set_grad_enabled(training):
        y = model(x)
        assert_all_close([y], [dense(x)])
    if training:
        y.sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(("in_modes", "out_modes"), [((4, 4, 3), (3, 4, 5)), ((48,), (60,)), ((8, 6), (6, 10))])
def test_new_weights_have_the_variance_the_layer_names(in_modes, out_modes):
    layers = [TTLinear(48, 60, in_modes, out_modes, 12) for _ in range(100)]
    variance = torch.stack([layer.to_dense() for layer in layers]).square().mean().item()
    assert variance == pytest.approx(1 / 108, rel=0.15)
    assert not any(bool(layer.bias.any()) for layer in layers)
    assert all(bool((layer.diagonals == 1).all()) for layer in layers)


def test_new_tables_have_unit_variance():
    tables = [TTMEmbedding(90, 64, (9, 5, 2), (4, 4, 4), 12) for _ in range(100)]
    assert torch.stack([table.to_dense() for table in tables]).square().mean().item() == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("std", [0.02, 3.0])
def test_tables_of_a_model_keep_its_scale(kind, std):
    dense = kind(90, 64)
    nn.init.normal_(dense.weight, std=std)
    tables = [
        tensorize(copy.deepcopy(dense), {"": TTM(12, row_modes=(9, 5, 2), column_modes=(4, 4, 4))}) for _ in range(100)
    ]
    found = torch.stack([table.to_dense() for table in tables]).square().mean().sqrt().item()
    assert found == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize("entry", [0.0, math.nan, math.inf])
def test_weights_without_a_scale_count_as_of_unit_variance(entry):
    """Memory that nobody has filled yet, and zeros, of which cores could not be trained."""
    dense = nn.Embedding(90, 64)
    nn.init.constant_(dense.weight, entry)
    table = tensorize(dense, {"": TTM(12)}).to_dense()
    assert 0.2 < table.square().mean().item() < 5


def test_layers_say_what_they_are():
    layer = TTLinear(6, 4, (3, 2), (2, 2), 2, bias=False)
    assert repr(layer) == (
        "TTLinear(in_features=6, out_features=4, in_modes=(3, 2), out_modes=(2, 2), ranks=(2, 2, 2), bias=False)"
    )
    table = TTMEmbedding(9, 4, (3, 3), (2, 2), 2, -1)
    assert repr(table) == (
        "TTMEmbedding(9, 4, row_modes=(3, 3), column_modes=(2, 2), ranks=(2,), padding_idx=8, lookup='optimized')"
    )


def test_the_weight_is_the_dense_matrix_in_the_shape_of_the_replaced_layer():
    for layer, shape in (
        (TTLinear(6, 4, (3, 2), (2, 2), 2), (4, 6)),
        (TTMEmbedding(8, 4, (3, 3), (2, 2), 2), (8, 4)),
    ):
        assert layer.weight.shape == shape
        assert torch.equal(layer.weight, layer.to_dense())
        assert "weight" not in dict(layer.named_parameters())


class ScaledEmbedding(nn.Embedding):
    """As language models of Hugging Face have it: a table whose rows are multiplied by a factor."""

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return super().forward(indices) * 5.66


def with_a_weight_norm(model):
    nn.utils.parametrizations.weight_norm(model.hidden)


def with_an_old_spectral_norm(model):
    nn.utils.spectral_norm(model.hidden)


def with_a_backward_hook(model):
    model.hidden.register_full_backward_hook(lambda *_: None)


def with_a_hook_on_the_weight(model):
    model.hidden.weight.register_hook(lambda gradient: gradient)


def with_another_forward(model):
    model.hidden.forward = lambda x: x


def with_a_subclass(model):
    model.hidden = type("Doubled", (nn.Linear,), {})(6, 6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_a_weight_norm, r"a torch\.nn\.utils\.parametrize\.ParametrizedLinear with a forward of its own"),
        (with_an_old_spectral_norm, "has hooks"),
        (with_a_backward_hook, "has hooks"),
        (with_a_hook_on_the_weight, "has parameters with hooks"),
        (with_another_forward, "has a forward that was put in place of its class's"),
        (with_a_subclass, r"Doubled with a forward of its own"),
    ],
)
def test_a_layer_that_does_more_than_its_class_is_refused_by_name(change, reason):
    model = LanguageModel(False)
    change(model)
    with pytest.raises(ValueError, match=f"^plan pattern 'h\\*' fits hidden, which .*{reason}.*; .* 'hidden': None "):
        tensorize(model, {"h*": TT(2, order=2)})
    assert not replaced(model)
    tensorize(model, {"hidden": None, "h*": TT(2, order=2), "output": TT(2, order=2)})
    assert replaced(model) == {"output"}


def test_a_table_with_a_forward_of_its_own_is_refused_also_where_it_only_shares_its_weight():
    model = nn.Sequential(nn.Embedding(12, 6), ScaledEmbedding(12, 6))
    with pytest.raises(ValueError, match=r"^plan pattern '\*' fits 1, which is a .*\.ScaledEmbedding with a forward"):
        tensorize(model, {"*": TTM(2, order=2)})
    model[1].weight = model[0].weight
    with pytest.raises(ValueError, match=r"shares its weight with 1, which is a .*\.ScaledEmbedding with a forward"):
        tensorize(model, {"0": TTM(2, order=2)})
    with pytest.raises(ValueError, match=r"^1 shares its weight with a layer the plan replaces; name it in the plan"):
        tensorize(model, {"1": None, "*": TTM(2, order=2)})
    assert not replaced(model)


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


def test_an_output_projection_of_attention_is_replaced():
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
    dense, x = copy.deepcopy(attention), torch.randn(2, 3, 8, dtype=torch.float64)
    tensorize(attention, {"out_proj": TT(FULL, order=2)}, "weights")
    assert isinstance(attention.out_proj, TTLinear)
    for training in (True, False):
        with torch.set_grad_enabled(training):
            assert_all_close([attention.train(training)(x, x, x)[0]], [dense.train(training)(x, x, x)[0]])


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (TT(ranks=2.5), r"^ranks is 2\.5; it must be a whole number\.$"),
        (TT(ranks=(2, 2.5, 2), order=2), r"^one of the ranks is 2\.5; it must be a whole number\.$"),
        (TT(order=2.5), r"^order is 2\.5; it must be a whole number\.$"),
        (TT(in_modes=(2.5, 2.4), out_modes=(3, 2)), r"^a mode of in_modes is 2\.5; it must be a whole number\.$"),
    ],
)
def test_ranks_and_modes_are_whole_numbers(spec, sentence):
    with pytest.raises(ValueError, match=sentence):
        tensorize(nn.Sequential(nn.Linear(6, 6)), {"0": spec})


def effective_rank(layer):
    """(Σσ²)²/Σσ⁴ of the singular values: r where r of them are equal and the others zero."""
    squares = torch.linalg.svdvals(layer.to_dense().detach()).square()
    return (squares.sum().square() / squares.square().sum()).item()


def test_an_orthogonal_start_uses_all_ranks_of_which_normal_cores_leave_half_unused():
    torch.manual_seed(0)
    modes = {"in_modes": (8, 4, 4), "out_modes": (4, 4, 8)}
    ranks = (8, 27, 28, 27, 8)
    plan = {"0": TT(ranks, init="orthogonal", **modes), "1": TT(ranks, **modes), "2": TT(28, order=1)}
    orthogonal, normal, two_factors = tensorize(nn.Sequential(*(nn.Linear(128, 128) for _ in range(3))), plan)
    assert effective_rank(orthogonal) == pytest.approx(28, rel=1e-3)
    assert effective_rank(normal) < 14
    assert 17 < effective_rank(two_factors) < 21
    with pytest.raises(ValueError, match=r"^init is 'ones'; allowed: normal, orthogonal, spectral\.$"):
        tensorize(nn.Sequential(nn.Linear(6, 6)), {"0": TT(2, 1, init="ones")})
