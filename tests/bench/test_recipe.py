"""Recipes and the plan that brings them: groups and rates, the cosine, clipping, and what cannot be."""

import copy
import itertools

import pytest
import torch
from small_cells import a_configuration, changed, one_line
from torch import nn

from baselines import basis, btt, dense, grouped, low_rank
from bench.errors import ConfigError
from bench.protocol.budget import RATES, Budget
from bench.protocol.methods import build_for
from bench.protocol.recipe import Prescribed, Recipe, adapted_targets
from bench.runner.resolve import resolve
from bench.step.train_step import TrainStep, build_step
from bench.training.run import scheduled_share
from bench.workloads.teacher import TeacherSettings, TeacherWorkload
from comera import Muon
from comera.training import Settings as CoMERASettings
from comera.training import build as build_comera

SMALL = TeacherSettings(
    width=32, layers=2, teacher_width=16, teacher_layers=1, validation_samples=100, test_samples=100
)
ARMS = {
    "dense": lambda: dense.build(dense.Settings()),
    "narrow": lambda: dense.build(dense.Settings(ratio=2.0), "narrow"),
    "btt": lambda: btt.build(btt.Settings(rank=2)),
    "grouped": lambda: grouped.build(grouped.Settings()),
    "basis": lambda: basis.build(basis.Settings()),
    "low_rank": lambda: low_rank.build(low_rank.Settings(rank=4), "spectral"),
    "comera": lambda: build_comera(CoMERASettings(ranks=6, order=2), ""),
}


@pytest.fixture
def workload():
    return TeacherWorkload(SMALL)


def prescribed(name, workload, **recipe):
    torch.manual_seed(0)
    method = Prescribed(ARMS[name](), Recipe(lr=0.02, lr_rest=0.003, **recipe))
    model = method.adapt(workload.build(), workload.targets())
    return method, model, method.optimizer(model)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", ARMS)
def test_every_parameter_has_one_rate_and_matrices_their_own(name, optimizer, workload):
    _, model, built = prescribed(name, workload, optimizer=optimizer)
    rates = {parameter: group["lr"] for group in built.param_groups for parameter in group["params"]}
    assert {*rates} == {*model.parameters()}
    assert len(rates) == sum(len(group["params"]) for group in built.param_groups)
    ranks = {layer.diagonals for layer in model.hidden if hasattr(layer, "diagonals")}
    hidden = {*model.hidden.parameters()} - ranks
    assert {parameter for parameter, rate in rates.items() if rate == 0.02} == hidden
    assert isinstance(built, Muon) == (optimizer == "muon")
    assert all(rates[each] == 1e-3 for each in ranks)


@pytest.mark.parametrize(("name", "optimizer"), [("btt", "muon"), ("comera", "adamw"), ("comera", "muon")])
def test_an_arm_learns_by_a_recipe(name, optimizer, workload):
    method, model, built = prescribed(name, workload, optimizer=optimizer)
    step = TrainStep(model, method, built, workload.loss, "fp32", "cpu")
    losses = [float(step(batch)) for batch in itertools.islice(workload.batches("train", 256, 0, True), 60)]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5]), losses


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(("depth", "blocks"), [(0.5, 1), (1.0, 2), (1.5, 3)])
def test_all_matrices_of_a_dense_model_of_another_depth_have_their_rate(optimizer, depth, blocks):
    workload = TeacherWorkload(TeacherSettings(width=200, layers=2, teacher_width=16, teacher_layers=1))
    small = dense.build(dense.Settings(ratio=2.0, depth=depth), "small")
    method = Prescribed(small, Recipe(lr=0.02, lr_rest=0.003, optimizer=optimizer))
    model = method.adapt(workload.build(), workload.targets())
    rates = {id(one): group["lr"] for group in method.optimizer(model).param_groups for one in group["params"]}
    assert len(model.hidden) == blocks
    assert [*adapted_targets(small, model, workload.targets())] == [f"hidden.{number}" for number in range(blocks)]
    assert {rates[id(layer.weight)] for layer in model.hidden} == {0.02}
    assert {rates[id(one)] for one in model.first.parameters()} == {0.003}


def test_adamw_is_torchs_with_these_betas_and_decay(workload):
    method, model, built = prescribed("dense", workload, optimizer="adamw", beta2=0.9, weight_decay=0.1)
    other = copy.deepcopy(model)
    groups = [
        {"params": [p for n, p in other.named_parameters() if n.startswith("hidden")], "lr": 0.02, "weight_decay": 0.1},
        {"params": [other.first.weight, other.last.weight], "lr": 0.003, "weight_decay": 0.1},
        {"params": [*other.biases, other.first.bias, other.last.bias], "lr": 0.003, "weight_decay": 0.0},
    ]
    plain = torch.optim.AdamW(groups, betas=(0.9, 0.9))
    step = TrainStep(model, method, built, workload.loss, "fp32", "cpu")
    for batch in itertools.islice(workload.batches("train", 64, 0, True), 4):
        step(batch)
        plain.zero_grad()
        workload.loss(other, batch).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        plain.step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_comeras_penalty_stays_in_the_objective(workload):
    own = build_comera(CoMERASettings(ranks=6, order=2, beta=0.5, gamma=0.0), "")
    model = own.adapt(workload.build(), workload.targets())
    squares = sum(float(layer.packed_cores.square().sum()) for layer in model.hidden)
    assert float(own.objective(torch.tensor(1.0), model)) == pytest.approx(1.0)  # its optimizer adds the rest
    own.leave_optimizer_to_plan()
    assert float(own.objective(torch.tensor(1.0), model)) == pytest.approx(1 + 0.5 * squares, rel=1e-5)


def test_rates_can_stay_as_they_are():
    schedule = Budget(steps=9, warmup=0.0, final_rate=1).schedule
    assert [scheduled_share(step, 9, 0.0, schedule["final"], schedule["decay"]) for step in range(9)] == [1.0] * 9


def test_the_cosine_falls_slowly_then_fast_then_slowly():
    shares = [scheduled_share(step, 100, 0.1, 0.2, "cosine") for step in range(100)]
    assert shares[:10] == pytest.approx([(n + 1) / 10 for n in range(10)])
    falls = [one - other for one, other in itertools.pairwise(shares[9:])]
    assert all(fall > 0 for fall in falls)
    assert max(falls) == max(falls[40:50])
    assert shares[-1] == pytest.approx(0.2)
    assert shares[54] == pytest.approx(0.6, abs=0.01)


@pytest.fixture
def config(tmp_path):
    changes = {"workload": "teacher", "data_folder": None, "measure": "train", "methods": ["dense"], "batch_size": 16}
    config = a_configuration(tmp_path, **changes)
    config["teacher"] |= {"width": 32, "layers": 2, "teacher_width": 16, "validation_samples": 50, "test_samples": 50}
    return config


def test_cells_hold_the_recipe(config):
    [cell] = resolve(config).cells
    lr, lr_rest = RATES["adamw"]
    recipe = cell.training["recipe"]
    assert (recipe["optimizer"], recipe["lr"], recipe["lr_rest"], recipe["clip"]) == ("adamw", lr, lr_rest, 1.0)
    assert "momentum" not in recipe
    assert cell.training["schedule"] == {"warmup": 0.05, "final": 0.0, "decay": "cosine"}
    assert cell.training["curve_steps"] == 250
    [other] = resolve(changed(config, "training.optimizer", "muon")).cells
    assert other.training["recipe"]["momentum"] == 0.95
    [own] = resolve(changed(config, "training.optimizer", "own")).cells
    assert own.training["recipe"] == {"optimizer": "own", "clip": 1.0}
    assert isinstance(build_for(other), Prescribed)


def test_a_timed_step_is_one_of_the_recipe(config):
    [cell] = resolve({**config, "measure": "run", "training": {**config["training"], "optimizer": "muon"}}).cells
    step = build_step(cell, TeacherWorkload(SMALL))
    assert isinstance(step.optimizer, Muon)
    assert step._clip == 1.0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"training.optimizer": "sgd"}, "optimizer"),
        ({"training.lr": -1.0}, "lr"),
        ({"training.steps": 0}, "steps"),
        ({"training.warmup": 1.0}, "warmup"),
        ({"training.decay": "step"}, "decay"),
        ({"training.optimizer": "own", "training.lr": 0.1}, "lr"),
        ({"methods": ["galore"]}, "galore"),
        ({"methods": ["low_rank:spectron"]}, "low_rank:spectron"),
        ({"settings": {"dense": {"lr": 0.1}}}, "settings.dense.lr"),
        ({"training.early_steps": 5}, "early_steps"),
        ({"training.prune_from": 0.5}, "prune_from"),
        ({"training.prune_targets": [2.0]}, "prune_targets"),
        ({"ratio": 4.0}, "ratio"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_it(config, changes, named):
    for field, value in changes.items():
        config = changed(config, field, value)
    with one_line(ConfigError, named):
        resolve(config)


def test_a_plan_prunes_what_can_shrink():
    plan = Budget(steps=10, prune_steps=4, prune_targets=(0.5, 0.25))
    assert [len(run) for run in plan.runs(1, shrinks=True)] == [1, 2, 2]
    assert [len(run) for run in plan.runs(1, shrinks=False)] == [1]
