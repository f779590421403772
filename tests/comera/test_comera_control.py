"""Rank control by hooks of the optimizer's step: the same parameters as by the objectives, in loops of torch alone."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import comera
from comera.adaptation.closing import LATE_VARIANTS
from comera.layers import RANKS
from comera.loops.control import STATE


def toy(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 3))
    model = comera.tensorize(model, {"[02]": comera.TT(ranks=4, order=2)})
    with torch.no_grad():
        for layer in comera.tensorized_layers(model):
            layer.diagonals.uniform_(0.2, 1.0)  # as after some training
            layer.diagonals[0] = 0.02  # closes soon
    return model


def adam(model, **options):
    groups = comera.parameter_groups(model, lr_cores=1e-3, lr_ranks=9e-3, lr_dense=1e-3)
    return torch.optim.AdamW(groups, weight_decay=0.0, **options)


def batch(step):
    x = torch.randn(32, 12, generator=torch.Generator().manual_seed(step))
    return x, x[:, 0].gt(0).long()


def task_loss(model, step):
    x, labels = batch(step)
    return F.cross_entropy(model(x.to(model[4].weight.dtype)), labels)


def by_objective(model, optimizer, plan, steps):
    """The loop that has the objective in it, as docs/library.md shows it."""
    objective, losses = comera.EarlyStage(gamma=plan.gamma, beta=plan.beta), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = task_loss(model, step)
        losses.append(loss.item())
        objective(loss, model).backward()
        optimizer.step()
    comera.truncate(model, optimizer)
    return losses


def by_hooks(model, optimizer, steps, first=0):
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = task_loss(model, step)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return losses


pytestmark = pytest.mark.filterwarnings("ignore:lr_ranks is")
PLAN = comera.RankPlan(
    early_steps=20, late_steps=120, size_target=0.5, loss_weight=1.0, size_weight=1.0, gamma=0.3, beta=1e-4
)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_the_early_stage_is_that_of_the_objective_to_the_bit(kind):
    plan, found = comera.RankPlan(early_steps=30, gamma=0.3, beta=1e-3), []
    for hooked in (False, True):
        model = toy()
        optimizer = kind(comera.parameter_groups(model, 1e-2, 1e-2, 1e-2), weight_decay=0.0)
        if hooked:
            comera.control_ranks(model, optimizer, plan)
            losses = by_hooks(model, optimizer, 30)
        else:
            losses = by_objective(model, optimizer, plan, 30)
        found.append((losses, [*model.parameters()]))
    assert found[0][0] == found[1][0]
    assert all(map(torch.equal, found[0][1], found[1][1]))


@pytest.mark.parametrize(("target", "factor"), [(0.3, 1.0), (1.0, 11.0)])  # size leads, the loss leads
def test_gradients_of_the_published_late_stage_are_those_of_the_objective(target, factor):
    """Over the factor of the task's loss, to 1e-6 of each parameter's largest gradient."""
    model, seen = toy(), []
    comera.LateStage(target)(task_loss(model, 0), model).backward()
    wanted = [parameter.grad / factor for parameter in model.parameters()]
    model.zero_grad()
    optimizer = torch.optim.SGD(comera.parameter_groups(model), lr=0.0)
    plan = comera.RankPlan(0, 1, target, recovery=0.0, variant="paper")
    control = comera.control_ranks(model, optimizer, plan)
    optimizer.register_step_pre_hook(lambda *_: seen.extend(parameter.grad.clone() for parameter in model.parameters()))
    task_loss(model, 0).backward()
    optimizer.step()
    assert control.stage == "over"
    for mine, theirs in zip(seen, wanted, strict=True):
        assert (mine - theirs).abs().max() <= 1e-6 * theirs.abs().max()


@pytest.mark.parametrize("variant", LATE_VARIANTS)
@pytest.mark.parametrize("recovery", [0.0, 0.25])
def test_both_stages_end_at_the_target_and_stay_there(variant, recovery):
    model = toy()
    optimizer = adam(model)
    full = comera.full_size(comera.tensorized_layers(model))
    control = comera.control_ranks(model, optimizer, replace(PLAN, variant=variant, recovery=recovery))
    by_hooks(model, optimizer, PLAN.steps)
    assert (control.step, control.stage) == (140, "over")
    ranks, target = comera.ranks_of(model), control.sizes()["size_target"]
    assert 0.9 * target <= control.sizes()["size"] <= target <= 0.5
    assert comera.full_size(comera.tensorized_layers(model)) <= 0.5 * full
    by_hooks(model, optimizer, 40, PLAN.steps)
    assert not comera.truncate(model, optimizer)  # nothing has closed since
    assert comera.ranks_of(model) == ranks


def accumulated(model, optimizer, step):
    for part in range(2):
        x, labels = batch(step)
        half = slice(16 * part, 16 * part + 16)
        (F.cross_entropy(model(x[half].double()), labels[half]) / 2).backward()
    optimizer.step()


def clipped(model, optimizer, step):
    task_loss(model, step).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e9)  # of the gradient of the task alone, which is below
    optimizer.step()


def with_closure(model, optimizer, step):
    def closure():
        optimizer.zero_grad()
        loss = task_loss(model, step)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0


def with_named_closure(model, optimizer, step):
    optimizer.step(closure=lambda: task_loss(model, step).backward())


@pytest.mark.parametrize("way", [accumulated, clipped, with_closure, with_named_closure])
def test_ways_to_step_are_one(way):
    models = [toy().double(), toy().double()]
    for model, one_step in zip(models, (way, None), strict=True):
        optimizer = adam(model)
        control = comera.control_ranks(model, optimizer, comera.RankPlan(2, 8, 0.5))
        for step in range(10):
            optimizer.zero_grad()
            if one_step is None:
                task_loss(model, step).backward()
                optimizer.step()
            else:
                one_step(model, optimizer, step)
        assert control.step == 10
    assert comera.ranks_of(models[0]) == comera.ranks_of(models[1])
    for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("optimizer_of", [adam, comera.Muon])
def test_a_compiled_step_is_one_of_the_plan(optimizer_of):
    torch.compiler.reset()
    plan = replace(PLAN, early_steps=2, late_steps=3, recovery=0.0)
    models = [toy(), toy()]
    controls = []
    for model, compiled in zip(models, (False, True), strict=True):
        optimizer = optimizer_of(model)
        controls.append(comera.control_ranks(model, optimizer, plan))
        take_step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for step in range(6):
            optimizer.zero_grad()
            task_loss(model, step).backward()
            take_step()
    assert [(control.step, control.stage) for control in controls] == [(6, "over")] * 2
    assert comera.ranks_of(models[0]) == comera.ranks_of(models[1])
    for eager, compiled in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(eager, compiled)
    torch.compiler.reset()


def test_clipping_sees_the_gradient_of_the_task_alone():
    model, seen = toy(), []
    optimizer = torch.optim.SGD(comera.parameter_groups(model), lr=1e-3)
    comera.control_ranks(model, optimizer, comera.RankPlan(early_steps=1, gamma=5.0, beta=0.0))
    optimizer.register_step_pre_hook(lambda *_: seen.append(model[0].diagonals.grad.clone()))
    [slope] = torch.autograd.grad(comera.EarlyStage(gamma=5.0)(torch.zeros(()), model), model[0].diagonals)
    task_loss(model, 0).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-9)
    optimizer.step()
    torch.testing.assert_close(seen[0], slope)


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaled_loss_is_the_same_and_a_skipped_step_is_none(fused):
    """A power of two scales without rounding, so that all is the same to the bit; fused Adam unscales in its kernel."""
    models = [toy(), toy()]
    controls = []
    for model, scaled in zip(models, (False, True), strict=True):
        optimizer = adam(model, fused=fused)
        control = comera.control_ranks(model, optimizer, comera.RankPlan(4, 6, 0.5))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3, enabled=scaled)
        for step in range(10):
            optimizer.zero_grad()
            if scaled and step == 5:  # one more, which overflows
                scaler.scale(task_loss(model, step) * float("inf")).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                assert control.step == 5
            scaler.scale(task_loss(model, step)).backward()
            scaler.step(optimizer)
            scaler.update()
        controls.append(control)
    assert [control.step for control in controls] == [10, 10]
    assert comera.ranks_of(models[0]) == comera.ranks_of(models[1])
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


@pytest.mark.parametrize("saved_at", [10, 25, 115, 145])
def test_a_run_goes_on_from_its_state_dicts_to_the_bit(saved_at, tmp_path):
    wanted = toy()
    optimizer = adam(wanted)
    comera.control_ranks(wanted, optimizer, PLAN)
    by_hooks(wanted, optimizer, saved_at)
    state = {"model": copy.deepcopy(wanted.state_dict()), "optimizer": copy.deepcopy(optimizer.state_dict())}
    torch.save(state, tmp_path / "state.pt")
    by_hooks(wanted, optimizer, 5, saved_at)

    other = toy(seed=1)
    optimizer = adam(other)
    control = comera.control_ranks(other, optimizer, PLAN)
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    if saved_at > PLAN.early_steps:
        with pytest.raises(ValueError, match=r"and the optimizer's state dict was saved with .*; load the state dict"):
            optimizer.load_state_dict(state["optimizer"])
    assert RANKS in state["model"]
    other.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert control.step == saved_at
    by_hooks(other, optimizer, 5, saved_at)
    assert comera.ranks_of(other) == comera.ranks_of(wanted)
    assert all(map(torch.equal, wanted.parameters(), other.parameters()))


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_model_without_control_loads_what_one_under_control_saved(wrapped):
    model = toy()
    optimizer = adam(model)
    saved = nn.Sequential(model) if wrapped else model
    comera.control_ranks(saved, optimizer, comera.RankPlan(early_steps=1))
    by_hooks(model, optimizer, 2)
    fresh = toy(seed=1)
    comera.set_ranks(fresh, comera.ranks_of(model))
    target = nn.Sequential(fresh) if wrapped else fresh
    assert RANKS in saved.state_dict()
    target.load_state_dict(saved.state_dict())
    assert all(map(torch.equal, fresh.parameters(), model.parameters()))
    with pytest.raises(RuntimeError, match="another"):
        target.load_state_dict({**saved.state_dict(), "another": torch.zeros(1)})


def test_removed_control_leaves_no_trace():
    model, plain = toy(), toy()
    optimizer, plain_optimizer = adam(model), adam(plain)
    control = comera.control_ranks(model, optimizer, PLAN)
    with pytest.raises(ValueError, match=r"^the optimizer is under rank control already"):
        comera.control_ranks(model, optimizer, PLAN)
    control.remove()
    assert STATE not in optimizer.state_dict()
    assert RANKS not in model.state_dict()
    assert by_hooks(model, optimizer, 3) == by_hooks(plain, plain_optimizer, 3)
    assert control.step == 0


def test_wrong_uses_change_nothing():
    plan, model = comera.RankPlan(early_steps=3), toy()
    dense, half = nn.Sequential(nn.Linear(4, 4)), toy().bfloat16()
    optimizer = torch.optim.SGD(model[4].parameters())  # it lacks the cores
    frozen = toy().requires_grad_(False)
    for wrong in (
        (dense, torch.optim.SGD(dense.parameters()), plan),
        (model, optimizer, plan),
        (model, adam(model), {"early_steps": 3}),
        (half, adam(half), plan),
        (frozen, optimizer, plan),
    ):
        with pytest.raises(ValueError, match=r"\S"):
            comera.control_ranks(*wrong)
        assert not wrong[1]._optimizer_step_pre_hooks
        assert not wrong[1]._optimizer_state_dict_post_hooks


@pytest.mark.parametrize(
    "options",
    [
        {"early_steps": 0},
        {"early_steps": -1},
        {"early_steps": 1, "late_steps": 5},
        {"early_steps": 1, "size_target": 0.5},
        {"early_steps": 1, "late_steps": 5, "size_target": 0.0},
    ],
)
def test_a_wrong_plan_names_what_is_wrong(options):
    with pytest.raises(ValueError, match="|".join((*options, "late_steps"))):
        comera.RankPlan(**options)
