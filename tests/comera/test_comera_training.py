"""CoMERA in the protocol's form: its model has the paper's sizes, its optimizer three rates, and it learns."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn
from torch.nn import functional as F

from bench.protocol import Method
from bench.workloads.encoder import EncoderClassifier, EncoderSettings
from comera import EarlyStage, TTLinear, TTMEmbedding, full_size, tensorized_layers
from comera.objective import OBJECTIVE_VARIANTS
from comera.training import VARIANTS, CoMERA, Settings, build

TARGETS = {"table": "embedding", "hidden": "feed_forward", "again": "feed_forward"}


class Toy(nn.Module):
    """Averages a few embeddings and classifies."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 12, padding_idx=0)
        self.hidden = nn.Linear(12, 24)
        self.again = nn.Linear(24, 12)
        self.classes = nn.Linear(12, 3)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        x = self.table(indices).mean(1)
        return self.classes(torch.tanh(self.again(torch.tanh(self.hidden(x)))))


def toy(variant="", **settings):
    method = build(Settings(ranks=4, table_ranks=4, order=2, table_order=2, **settings), variant)
    return method, method.adapt(Toy(), TARGETS)


@pytest.mark.parametrize("variant", ["orthogonal", "orthogonal_lean_block"])
@pytest.mark.parametrize("ratio", [None, 1.2])
def test_all_linear_layers_start_as_the_variant_says(variant, ratio):
    _, model = toy(variant, ratio=ratio)
    for layer in (model.hidden, model.again):
        values = torch.linalg.svdvals(layer.to_dense().detach())[: layer.shape.ranks[layer.shape.half - 1]]
        torch.testing.assert_close(values, values.mean().expand_as(values))


def test_the_encoder_has_the_papers_sizes():
    settings = EncoderSettings()
    with torch.device("meta"):  # 67 million dense parameters that no one needs to draw
        model = EncoderClassifier(settings)
    assert sum(parameter.numel() for parameter in model.parameters()) == 66_957_315
    targets = {"embeddings.word": "embedding", "classifier.hidden": "classifier"}
    for block in range(settings.layers):
        for name in ("query", "key", "value", "output"):
            targets[f"blocks.{block}.attention.{name}"] = "attention"
        for name in ("expand", "contract"):
            targets[f"blocks.{block}.feed_forward.{name}"] = "feed_forward"
    method = build(Settings(), "")
    model = method.adapt(model, targets)
    layers = tensorized_layers(model)
    assert len(layers) == 24 + 12 + 1 + 1
    sizes = [layer.shape.parameter_count for layer in layers]
    assert {size: sizes.count(size) for size in sizes} == {167_808: 1, 20_448: 25, 28_960: 12}
    cores, ranks = sum(layer.packed_cores.numel() for layer in layers), sum(layer.diagonals.numel() for layer in layers)
    assert cores == full_size(layers) == 1_026_528
    assert ranks == 4_362
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_026_528 + 4_362 + 459_267
    assert method.stored_size(model) == 4 * (1_026_528 + 4_362 + 459_267)
    assert model.embeddings.word.padding_idx == 0


def test_every_member_of_the_protocol_is_there_with_its_arguments():
    method, model = toy()
    members = [name for name in vars(Method) if not name.startswith("_")]
    assert {"adapt", "objective", "capture", "stored_size"} <= set(members)
    for name in members:
        wanted = vars(Method)[name]
        if inspect.isfunction(wanted):
            own = list(inspect.signature(getattr(CoMERA, name)).parameters)
            assert own == list(inspect.signature(wanted).parameters), name
        else:
            assert isinstance(getattr(method, name), str | bool | tuple)
    assert method.unsupported(None) is None
    assert method.capture == "whole_step"
    assert method.rare_events() == []
    assert method.after_step(model, method.optimizer(model), 0) == "nothing"
    method.load_state_dict(method.state_dict())
    with pytest.raises(
        ValueError, match=r"^CoMERA's state has full, size_target, steps_to_target, size_at_deadline; got step\.$"
    ):
        method.load_state_dict({"step": 1})


def test_targets_become_what_their_role_says():
    _, model = toy(lookup="plain")
    assert isinstance(model.table, TTMEmbedding)
    assert isinstance(model.hidden, TTLinear)
    assert isinstance(model.again, TTLinear)
    assert isinstance(model.classes, nn.Linear)
    assert (model.table.lookup, model.table.padding_idx) == ("plain", 0)


@pytest.mark.parametrize("shared", [False, True])
def test_three_groups_hold_every_parameter_once_each_at_its_rate(shared, recwarn):
    method = build(Settings(ranks=4, order=2, table_order=2, lr_cores=1.0, lr_ranks=2.0, lr_dense=3.0), "")
    dense = Toy()
    if shared:
        dense.again = nn.Linear(12, 24)
        dense.again.weight = dense.hidden.weight
    model = method.adapt(dense, TARGETS)
    optimizer = method.optimizer(model)
    assert not recwarn.list
    rates = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert len(held) == len(set(held)) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        kind = name.rpartition(".")[2]
        assert rates[parameter] == {"packed_cores": 1.0, "diagonals_bias": 2.0}.get(kind, 3.0), name
    assert all(group["fused"] for group in optimizer.param_groups)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_is_that_of_adamw_on_the_whole_objective(variant):
    method, model = toy(variant, lr_cores=1e-2, lr_ranks=1e-3, lr_dense=5e-5, gamma=0.3, beta=0.05)
    model = model.double()
    plain = copy.deepcopy(model)
    objective = EarlyStage(
        variant if variant in OBJECTIVE_VARIANTS else "paper", 0.3, 0.05
    )  # with its term β‖G‖², wherever the method puts that
    optimizer = method.optimizer(model)
    groups = ((1e-2, "packed_cores"), (1e-3, "diagonals_bias"))
    chosen = [[p for n, p in plain.named_parameters() if n.endswith(suffix)] for _, suffix in groups]
    rest = [p for n, p in plain.named_parameters() if not n.endswith(("packed_cores", "diagonals_bias"))]
    oracle = torch.optim.AdamW(
        [
            *({"params": params, "lr": rate} for (rate, _), params in zip(groups, chosen, strict=True)),
            {"params": rest, "lr": 5e-5},
        ],
        weight_decay=0.0,
    )
    indices = torch.randint(0, 30, (8, 4))
    for _ in range(5):
        for each, stepper, whole in ((model, optimizer, method.objective), (plain, oracle, objective)):
            stepper.zero_grad()
            whole(F.cross_entropy(each(indices), indices[:, 0] % 3), each).backward()
            stepper.step()
    assert_all_close(list(model.parameters()), list(plain.parameters()))


def test_a_group_without_parameters_is_left_out():
    method = build(Settings(), "")
    assert len(method.optimizer(nn.Linear(2, 2)).param_groups) == 1


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("merge_jointly", [True, False])
def test_the_loss_of_a_learnable_batch_falls(variant, merge_jointly):
    method, model = toy(variant, lr_cores=1e-2, lr_dense=1e-2, merge_jointly=merge_jointly)
    optimizer = method.optimizer(model)
    indices = torch.randint(1, 30, (24, 4))
    labels = indices[:, 0] % 3
    losses = []
    for step in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(indices), labels)
        method.objective(loss, model).backward()
        optimizer.step()
        assert method.after_step(model, optimizer, step) == "nothing"
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    # The objective pulls the rank entries down while the task is learnt.
    entries = torch.cat([layer.diagonals.detach() for layer in tensorized_layers(model)])
    assert bool((entries != 1).any())


def test_ranks_shrink_where_size_is_all_that_counts():
    method, model = toy(lr_ranks=0.05, gamma=10.0)
    optimizer = method.optimizer(model)
    sizes = []
    for _ in range(30):
        optimizer.zero_grad()
        method.objective(model(torch.ones(2, 3, dtype=torch.long)).square().mean(), model).backward()
        optimizer.step()
        sizes.append(sum(layer.diagonals.detach().abs().sum().item() for layer in tensorized_layers(model)))
    assert sizes[-1] < 0.5 * sizes[0]


def test_a_model_of_rank_zero_trains_its_biases():
    method = CoMERA(Settings(order=2, table_order=2), "paper")
    object.__setattr__(method.settings, "ranks", 0)
    object.__setattr__(method.settings, "table_ranks", 0)
    model = method.adapt(Toy(), TARGETS)
    optimizer = method.optimizer(model)
    before = model.again.bias.detach().clone()
    loss = F.cross_entropy(model(torch.ones(2, 3, dtype=torch.long)), torch.tensor([0, 1]))
    method.objective(loss, model).backward()
    optimizer.step()
    assert not torch.equal(model.again.bias, before)


def test_the_stored_size_counts_shared_tensors_once():
    method, model = toy()
    model.register_buffer("seen", torch.zeros(5, dtype=torch.int64))
    model.register_buffer("seen_too", model.seen)
    assert method.stored_size(model) == 4 * sum(parameter.numel() for parameter in model.parameters()) + 5 * 8


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("ranks", 0, "ranks is 0; it must be at least 1"),
        ("table_order", 1, "table_order is 1; it must be at least 2"),
        ("order", 0, "order is 0; it must be at least 1"),
        ("lr_ranks", -1e-3, "lr_ranks is -0.001; it must be 0 or more"),
        ("gamma", -1.0, "gamma is -1.0; it must be 0 or more"),
        ("gamma", float("nan"), "gamma is nan; it must be 0 or more, and finite"),
        ("lr_cores", float("inf"), "lr_cores is inf; it must be 0 or more, and finite"),
        ("loss_target", float("nan"), "loss_target is nan; it must be a finite number or None"),
        ("threshold", float("nan"), "threshold is nan; it must be 0 or more, and below 1"),
        ("ranks", 2.5, "ranks is 2.5; it must be a whole number"),
        ("lookup", "fast", "lookup is 'fast'; allowed: optimized, plain, unique, order"),
    ],
)
def test_settings_refuse_what_cannot_be(field, value, sentence):
    with pytest.raises(ValueError, match=sentence):
        Settings(**{field: value})


def test_the_variant_is_the_objectives_and_defaults_to_the_papers():
    assert build(Settings(), "").variant == "paper" == VARIANTS[0]
    assert build(Settings(), "released").variant == "released"
    assert build(Settings(), "lean").variant == "paper"
    with pytest.raises(ValueError, match=r"^variant is 'late'; allowed: paper, released, lean, .*, orthogonal_lean"):
        build(Settings(), "late")
