"""A call that cannot have its effect says so and names the way that has it; one that has its effect stays silent."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import comera
from comera import TT, TTM
from comera.lowprec import FP8
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


@pytest.mark.filterwarnings("error")
def test_a_late_stage_at_its_target_is_silent():
    model = model_of()
    optimizer = adam(model)
    train(model, optimizer, comera.LateStage(1.0), steps=3)
    assert not comera.truncate(model, optimizer)


def test_a_late_stage_above_its_target_that_has_closed_some_ranks_is_silent():
    model = model_of()
    with torch.no_grad():
        model[0].diagonals[0] = 0.0  # closed before, which is no effect of the stage
    comera.LateStage(0.1)(torch.tensor(1.0), model)
    assert late_stage_without_effect(model)
    with torch.no_grad():
        model[0].diagonals[1] = 0.0
    assert late_stage_without_effect(model) is None


@pytest.mark.filterwarnings("error")
def test_truncation_on_schedule_is_silent_once_ranks_close():
    model = model_of()
    optimizer = adam(model, lr_ranks=9e-3)
    train(model, optimizer, comera.LateStage(0.5), steps=400, every=200)
    assert comera.ranks_of(model)["0"] != (4, 4, 4)


def test_a_model_that_is_gone_leaves_no_late_stage():
    model, other = model_of(), model_of()
    comera.LateStage(0.5)(torch.tensor(1.0), model)
    assert late_stage_without_effect(model)
    assert late_stage_without_effect(copy.deepcopy(model)) is None
    assert late_stage_without_effect(other) is None
    assert late_stage_without_effect(nn.Linear(2, 2)) is None


@pytest.mark.filterwarnings("ignore:lr_ranks is")
def test_a_plan_that_has_warned_of_its_rates_does_not_warn_again(recwarn):
    model = model_of()
    optimizer = adam(model)
    comera.control_ranks(model, optimizer, comera.RankPlan(2, 8, 0.9, truncate_every=2))
    train(model, optimizer, lambda loss, _: loss, steps=12)
    assert not [each for each in recwarn if "LateStage" in str(each.message)]


@pytest.mark.parametrize("objective", [comera.EarlyStage(), comera.LateStage(0.5)])
def test_an_objective_without_a_tensorized_layer_is_warned_of_once(objective):
    model, loss = nn.Linear(16, 2), torch.tensor(1.0)
    with pytest.warns(UserWarning, match="tensorize") as caught:
        assert objective(loss, model) is objective(loss, model) is loss
    [warning] = caught
    assert warning.filename == __file__


@pytest.mark.parametrize("stage", [comera.EarlyStage, lambda: comera.LateStage(0.5)])
def test_an_optimizer_that_was_made_before_the_model_was_tensorized_is_warned_of(stage):
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 2))
    early = torch.optim.AdamW(model.parameters())
    comera.tensorize(model, {"0": TT(ranks=4, order=2)})
    with pytest.warns(UserWarning, match="parameter_groups") as caught:
        train(model, early, stage(), steps=4)
    [warning] = caught
    assert warning.filename == __file__


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["step", "accumulation", "by hand", "frozen"])
def test_an_objective_whose_layers_are_trained_or_frozen_is_silent(kind):
    model, objective = model_of(), comera.EarlyStage()
    optimizer = adam(model if kind != "by hand" else nn.Linear(2, 2))
    model[0].requires_grad_(kind != "frozen")
    for step in range(4):
        objective(model(torch.randn(4, 16)).square().mean(), model).backward()
        if kind == "by hand":
            with torch.no_grad():
                torch._foreach_sub_([*model.parameters()], [each.grad for each in model.parameters()])
        elif kind != "accumulation" or step == 3:
            optimizer.step()


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


@pytest.mark.filterwarnings("error")
def test_what_else_a_state_dict_lacks_is_no_dense_weight():
    model = model_of()
    model.load_state_dict({"1.bias": torch.zeros(2), "1.weight": torch.zeros(2, 16)}, strict=False)
    model.load_state_dict(model.state_dict())


def test_a_start_that_is_not_drawn_is_refused():
    model = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(ValueError, match=r"orthogonal.*weights"):
        comera.tensorize(model, {"0": TT(ranks=4, order=2, init="orthogonal")}, "weights")
    assert type(model[0]) is nn.Linear


def test_fp8_without_a_product_to_form_is_warned_of():
    with pytest.warns(UserWarning, match="fp8"):
        comera.tensorize(nn.Sequential(nn.Embedding(16, 16)), {"0": TTM(ranks=4, order=2)}, fp8=FP8())


def test_the_readmes_pattern_on_a_model_with_words_names_both_ways():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(16, 16), nn.Linear(16, 16)

    with pytest.raises(ValueError, match="words") as caught:
        comera.tensorize(Words(), {"*": TT(ranks=4, order=2)})
    assert "'words': None" in str(caught.value)
    for way in (None, TTM(ranks=4, order=2)):  # each of the two ways that the sentence names
        model = comera.tensorize(Words(), {"words": way, "*": TT(ranks=4, order=2)})
        assert isinstance(model.out, comera.TTLinear)
        assert isinstance(model.words, nn.Embedding) == (way is None)
