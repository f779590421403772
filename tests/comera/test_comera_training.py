"""CoMERA in the protocol's form: its model has the paper's sizes, its optimizer three rates, and it learns."""

import copy

import pytest
import torch
from drawn_chains import assert_all_close
from paper_encoder import DENSE, STAYS_DENSE, paper_encoder
from torch import nn
from torch.nn import functional as F

from comera import TT, EarlyStage, full_size, parameter_groups, tensorize, tensorized_layers
from comera.objective import OBJECTIVE_VARIANTS
from comera.training import PUBLISHED_RATES, VARIANTS, Settings, build

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
    model, targets = paper_encoder()
    assert sum(parameter.numel() for parameter in model.parameters()) == DENSE
    method = build(Settings(), "")
    model = method.adapt(model, targets)
    layers = tensorized_layers(model)
    assert len(layers) == 24 + 12 + 1 + 1
    sizes = [layer.shape.parameter_count for layer in layers]
    assert {size: sizes.count(size) for size in sizes} == {167_808: 1, 20_448: 25, 28_960: 12}
    cores, ranks = sum(layer.packed_cores.numel() for layer in layers), sum(layer.diagonals.numel() for layer in layers)
    assert cores == full_size(layers) == 1_026_528
    assert ranks == 4_362
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_026_528 + 4_362 + STAYS_DENSE
    assert method.stored_size(model) == 4 * (1_026_528 + 4_362 + STAYS_DENSE)
    assert model.embeddings.word.padding_idx == 0


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


def test_the_variant_is_the_objectives_and_defaults_to_the_papers():
    assert build(Settings(), "").variant == "paper" == VARIANTS[0]
    assert build(Settings(), "released").variant == "released"
    assert build(Settings(), "lean").variant == "paper"
    with pytest.raises(ValueError, match=r"^variant is 'late'; allowed: paper, released, lean, .*, orthogonal_lean"):
        build(Settings(), "late")


def test_groups_take_the_optimizer_s_rate_and_decay_but_for_ranks():
    model = tensorize(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2)), {"0": TT(ranks=2, order=2)})
    optimizer = torch.optim.AdamW(parameter_groups(model, lr_dense=1e-4), lr=3e-3, weight_decay=0.1)
    found = {group["name"]: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups}
    assert found == {"cores": (3e-3, 0.1), "ranks": (1e-3, 0.0), "dense": (1e-4, 0.1)}
    assert [group["lr"] for group in parameter_groups(model, **PUBLISHED_RATES)] == [1e-4, 1e-3, 5e-5]


@pytest.mark.parametrize(("steps", "rate"), [(3000, 1e-3), (600, 5e-3), (100, 1e-2)])
def test_the_rate_of_rank_entries_follows_from_the_steps(steps, rate):
    model = tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": TT(ranks=2, order=2)})
    [found] = [group["lr"] for group in parameter_groups(model, rank_steps=steps) if group["name"] == "ranks"]
    assert found == pytest.approx(rate)
    for wrong in ({"rank_steps": 0}, {"rank_steps": 5, "lr_ranks": 1e-3}):
        with pytest.raises(ValueError, match="rank_steps"):
            parameter_groups(model, **wrong)


def test_a_classifier_learns_at_the_rate_that_its_optimizer_is_given():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
    model = tensorize(model, {"0": TT(ranks=30)})
    optimizer = torch.optim.AdamW(parameter_groups(model), lr=3e-3)
    x = torch.randn(512, 64)
    labels = (x @ torch.randn(64, 10)).argmax(1)
    for _ in range(300):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
