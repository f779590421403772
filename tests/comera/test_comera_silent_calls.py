"""A call that cannot have its effect says so and names the way that has it; one that has its effect stays silent."""

import copy

import pytest
import torch
from torch import nn

import comera
from comera import TT
from comera.objective import late_stage_without_effect


def model_of():
    return comera.tensorize(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2)), {"0": TT(ranks=4, order=2)})


def train(model, optimizer, objective, steps, every=0):
    for step in range(steps):
        optimizer.zero_grad()
        objective(model(torch.randn(4, 16)).square().mean(), model).backward()
        optimizer.step()
        if every and (step + 1) % every == 0:
            comera.truncate(model, optimizer)


def adam(model, lr_ranks=1e-3):
    return torch.optim.AdamW(comera.parameter_groups(model, lr_ranks=lr_ranks), weight_decay=0.0)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_a_late_stage_that_closes_nothing_is_warned_of_when_ranks_are_cut(variant):
    model = model_of()
    optimizer = adam(model)
    train(model, optimizer, comera.LateStage(0.5, variant), steps=20)
    with pytest.warns(UserWarning, match="LateStage") as caught:
        assert not comera.truncate(model, optimizer)
    [warning] = caught
    assert "lr_ranks" in str(warning.message)
    assert "close_smallest" in str(warning.message)
    assert warning.filename == __file__
    assert comera.close_smallest(model, 0.5)
    assert late_stage_without_effect(model) is None


@pytest.mark.filterwarnings("error")
def test_a_late_stage_with_an_effect_is_silent():
    model = model_of()
    optimizer = adam(model, lr_ranks=9e-3)
    train(model, optimizer, comera.LateStage(0.5), steps=300)
    assert comera.truncate(model, optimizer)
    assert not comera.truncate(model, optimizer)


@pytest.mark.parametrize("stage", [comera.EarlyStage, lambda: comera.LateStage(0.5)])
def test_an_optimizer_that_was_made_before_the_model_was_tensorized_is_warned_of(stage):
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2))
    early = torch.optim.AdamW(model.parameters())
    comera.tensorize(model, {"0": TT(ranks=4, order=2)})
    with pytest.warns(UserWarning, match="parameter_groups") as caught:
        train(model, early, stage(), steps=4)
    [warning] = caught
    assert warning.filename == __file__


def test_weights_of_the_dense_model_are_not_loaded_in_silence():
    dense = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2))
    state = dense.state_dict()
    model = comera.tensorize(copy.deepcopy(dense), {"0": TT(ranks=4, order=2)})
    before = model[0].packed_cores.clone()
    with pytest.warns(UserWarning, match=r"0 has cores.*start="), pytest.raises(RuntimeError):
        model.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"0 has cores.*start="):
        model.load_state_dict(state, strict=False)
    assert torch.equal(model[0].packed_cores, before)
    assert torch.equal(model[1].weight, dense[1].weight)


def test_an_early_stage_of_too_few_steps_is_warned_of_when_ranks_are_cut():
    model = model_of()
    optimizer = adam(model)
    train(model, optimizer, comera.EarlyStage(gamma=0.1), steps=5)
    with pytest.warns(UserWarning, match=r"EarlyStage has closed no rank, .*rank_steps=") as caught:
        assert not comera.truncate(model, optimizer)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.filterwarnings("error")
def test_an_early_stage_without_a_price_is_silent():
    model = model_of()
    optimizer = adam(model)
    train(model, optimizer, comera.EarlyStage(gamma=0.0), steps=5)
    assert not comera.truncate(model, optimizer)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("stage", [lambda: comera.EarlyStage(gamma=0.1), lambda: comera.LateStage(0.5)])
def test_a_stage_of_a_model_whose_layers_are_all_closed_is_silent(stage):
    model = model_of()
    model[0].diagonals.data.zero_()
    comera.truncate(model)
    assert not model[0].diagonals.numel()
    stage()(model(torch.randn(4, 16)).square().mean(), model)
    assert not comera.truncate(model)


def test_a_plan_whose_early_stage_is_too_short_says_so():
    model = model_of()
    with pytest.warns(UserWarning, match=r"the early stage has 5 steps, .* No rank closes then"):
        comera.control_ranks(model, adam(model), comera.RankPlan(early_steps=5))


@pytest.mark.filterwarnings("error")
def test_an_early_stage_of_frozen_entries_is_silent():
    model = model_of()
    model[0].diagonals.requires_grad_(False)
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    train(model, optimizer, comera.EarlyStage(gamma=0.1), steps=2)
    assert not comera.truncate(model)
