"""A step by which a checkpointing tool fills an optimizer's state is no training step and leaves no trace."""

import copy

import pytest
import torch
from model_states import assert_same
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)

import comera
from comera.loops.dummy_step import is_dummy_step

PLAN = comera.RankPlan(early_steps=6, gamma=0.3, beta=1e-3, truncate_every=3)

OPTIMIZERS = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=1e-3),
    "a rate in a tensor": lambda groups: torch.optim.AdamW(groups, lr=torch.tensor(1e-3), foreach=False),
    "fused AdamW": lambda groups: torch.optim.AdamW(groups, lr=1e-3, fused=True),
    "plain SGD": lambda groups: torch.optim.SGD(groups, lr=1e-2),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, dampening=0.5),
    "Rprop": lambda groups: torch.optim.Rprop(groups, lr=1e-3),
    "Adagrad": lambda groups: torch.optim.Adagrad(groups, lr=1e-3),
    "Adafactor": lambda groups: torch.optim.Adafactor(groups, lr=1e-3),
}


def begun(make):
    torch.manual_seed(0)
    model = comera.tensorize(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4)), {"0": comera.TT(ranks=4, order=2)})
    with torch.no_grad():
        model[0].diagonals[0] = 0.0  # cut at the first truncation
    optimizer = make([{"params": list(model[0].parameters())}, {"params": list(model[1].parameters())}])
    return model, optimizer, comera.control_ranks(model, optimizer, PLAN)


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        model(torch.randn(8, 16, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()


def everything(model, optimizer, control):
    return [model.state_dict(), optimizer.state_dict(), control.step, control.sizes()]


def get(model, optimizer):
    get_optimizer_state_dict(model, optimizer)


def get_flat(model, optimizer):
    get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))


def get_both(model, optimizer):
    get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


@pytest.mark.parametrize(
    ("name", "tool"), [*((name, get) for name in OPTIMIZERS), ("SGD", get_flat), ("AdamW", get_both)]
)
def test_training_goes_on_as_if_the_state_had_not_been_asked_for(name, tool):
    found = []
    for asked in (False, True):
        model, optimizer, control = begun(OPTIMIZERS[name])
        if asked:
            before = copy.deepcopy([model.state_dict(), control.step, control.sizes()])
            tool(model, optimizer)
            tool(model, optimizer)
            assert_same([model.state_dict(), control.step, control.sizes()], before)
            if name == "AdamW":
                moments = [optimizer.state[model[0].diagonals][each] for each in ("exp_avg", "exp_avg_sq")]
                assert not any(moment.any() for moment in moments)
        train(model, optimizer, range(4))  # over a truncation
        if asked:
            tool(model, optimizer)
        train(model, optimizer, range(4, 8))
        found.append(everything(model, optimizer, control))
        assert control.step == 8
    assert_same(*found)


@pytest.mark.parametrize(("name", "saved_at"), [("AdamW", 4), ("SGD", 0), ("plain SGD", 2)])
def test_a_run_goes_on_from_a_distributed_checkpoint(name, saved_at, tmp_path):
    """To the bit, unless saved before the first step: torch then saves the state that its dummy step has filled."""
    model, optimizer, control = begun(OPTIMIZERS[name])
    train(model, optimizer, range(saved_at))
    ranks = comera.ranks_of(model)
    parts = get_state_dict(model, optimizer)
    checkpoint.save(dict(zip(("model", "optimizer"), parts, strict=True)), checkpoint_id=tmp_path)
    train(model, optimizer, range(saved_at, 8))
    resumed, other, again = begun(OPTIMIZERS[name])
    comera.set_ranks(resumed, ranks)
    state = dict(zip(("model", "optimizer"), get_state_dict(resumed, other), strict=True))
    checkpoint.load(state, checkpoint_id=tmp_path)
    set_state_dict(resumed, other, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert again.step == saved_at
    assert "comera" not in other.param_groups[0]
    train(resumed, other, range(saved_at, 8))
    assert again.step == control.step == 8
    if saved_at or name == "plain SGD":
        assert_same(everything(resumed, other, again), everything(model, optimizer, control))


def test_control_begins_anew_under_an_optimizer_that_has_loaded_the_plan_of_another():
    model, optimizer, control = begun(OPTIMIZERS["AdamW"])
    train(model, optimizer, range(2))
    state = optimizer.state_dict()
    control.remove()
    optimizer.load_state_dict(state)
    control = comera.control_ranks(model, optimizer, PLAN)
    train(model, optimizer, range(1))
    assert control.step == 1


@pytest.mark.parametrize(
    ("rates", "gradients", "dummy"),
    [
        ((0.0, 0.0), (0.0, 0.0), True),
        ((torch.tensor(0.0), 0.0), (0.0, 0.0), True),
        ((0.0, 0.0), (0.0, 1.0), False),  # the first step of a warm-up
        ((0.0, 0.1), (0.0, 0.0), False),  # a loss of zero
        ((torch.tensor(0.1), 0.0), (0.0, 0.0), False),
        ((0.0, 0.0), (None, None), False),
        ((0.0, 0.0), (0.0, None), False),
        ((torch.tensor(0.0, device="meta"), 0.0), (0.0, 0.0), False),  # elsewhere: reading it would wait
    ],
)
def test_a_dummy_step_has_rates_and_gradients_of_zero(rates, gradients, dummy):
    parameters = [nn.Parameter(torch.ones(2)) for _ in rates]
    optimizer = torch.optim.SGD([{"params": [each], "lr": 0.1} for each in parameters])
    for parameter, group, rate, gradient in zip(parameters, optimizer.param_groups, rates, gradients, strict=True):
        group["lr"] = rate
        parameter.grad = None if gradient is None else torch.full((2,), gradient)
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer.add_param_group({"params": [frozen], "lr": 0.0})
    assert is_dummy_step(optimizer) == dummy
