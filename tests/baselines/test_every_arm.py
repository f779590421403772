"""Laws that hold for every rival."""

import dataclasses
import importlib
import pkgutil
import subprocess
import sys
from typing import get_type_hints

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from toy_encoder import ARMS, TARGETS, ToyEncoder, all_arms, batch, loss_of, train

import baselines
from baselines import _arm
from bench.estimate.sparse_gradients import SparseShapes

LABELS = list(ARMS)
MODULES = sorted(found.name for found in pkgutil.iter_modules(baselines.__path__) if not found.name.startswith("_"))


def test_every_rival_is_held_to_these_laws():
    assert {name for name, _, _ in ARMS.values()} == set(MODULES), "a rival without a line in toy_encoder.ARMS"


def built(name: str, dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    arm, model = all_arms()[name], ToyEncoder()
    if dtype is not torch.float32:  # Module.to does not work on fake tensors
        model = model.to(dtype)
    model = arm.adapt(model, TARGETS)
    return arm, model, arm.optimizer(model)


@pytest.mark.parametrize("name", LABELS)
def test_the_loss_goes_down(name):
    arm, model, optimizer = built(name)
    losses = train(arm, model, optimizer, batch(), range(40))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", LABELS)
def test_a_bfloat16_model_trains(name):
    arm, model, optimizer = built(name, torch.bfloat16)
    losses = train(arm, model, optimizer, batch(), range(8))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", LABELS)
def test_two_runs_from_one_seed_are_equal(name):
    runs = [train(*built(name), batch(), range(4)) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", LABELS)
def test_building_and_one_step_need_no_memory(name):
    with FakeTensorMode(), SparseShapes([], "cpu"):
        arm, model, optimizer = built(name)
        loss_of(model, torch.randint(1, 12, (16, 3))).backward()
        for event in arm.rare_events():
            event.run(model, optimizer)
        optimizer.step()
        arm.after_step(model, optimizer, step=2)
        assert arm.stored_size(model) > 0


@pytest.mark.parametrize("name", LABELS)
def test_the_optimizer_holds_each_trainable_parameter_once(name):
    _, model, optimizer = built(name)
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert len(held) == len(set(held))
    assert set(held) == {id(p) for p in model.parameters() if p.requires_grad}
    assert all(group.get("weight_decay", 0) == 0 and group["eps"] == 1e-8 for group in optimizer.param_groups)


@pytest.mark.parametrize("name", LABELS)
def test_training_goes_on_from_saved_states_bit_for_bit(name):
    arm, model, optimizer = built(name)
    train(arm, model, optimizer, batch(), range(4))
    saved = {key: value.clone() for key, value in model.state_dict().items()}
    held = optimizer.state_dict()
    held["state"] = {
        index: {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}
        for index, state in held["state"].items()
    }
    undisturbed = train(arm, model, optimizer, batch(1), range(4, 9))

    arm_again, model_again, optimizer_again = built(name)
    model_again.load_state_dict(saved)
    optimizer_again.load_state_dict(held)
    arm_again.load_state_dict(arm.state_dict())
    assert train(arm_again, model_again, optimizer_again, batch(1), range(4, 9)) == undisturbed


@pytest.mark.parametrize("name", ["dense", "dense_sparse", "dense_row_wise", "galore", "lora", "lte", "lte_reset"])
def test_what_is_stored_for_use_is_the_dense_model(name):
    arm, model, _ = built(name)
    assert arm.stored_size(model) == 4 * sum(p.numel() for p in ToyEncoder().parameters())


def test_shared_storage_is_stored_once():
    model = ToyEncoder()
    model.hidden.weight = model.block["mix"].weight
    model.register_buffer("gone", torch.zeros(100), persistent=False)
    model.register_buffer("kept", torch.zeros(5))
    arm = all_arms()["dense"]
    assert arm.stored_size(model) == 4 * (sum(p.numel() for p in model.parameters()) + 5)


@pytest.mark.parametrize("name", LABELS)
def test_hooks_are_plain_values(name):
    arm, model, _ = built(name)
    assert arm.capture in ("whole_step", "forward_backward", "none")
    assert bool(arm.capture_reason) == (arm.capture != "whole_step")
    assert arm.state_dict() == {}
    with pytest.raises(ValueError, match="always empty"):
        arm.load_state_dict({"steps": 1})
    loss = torch.ones(())
    assert arm.objective(loss, model) is loss
    for event in arm.rare_events():
        assert 0 <= event.offset_steps < event.period_steps


@pytest.mark.parametrize("name", LABELS)
def test_modes_survive_adapting(name):
    model = all_arms()[name].adapt(ToyEncoder().eval(), TARGETS)
    assert not any(module.training for module in model.modules() if module is not model)


@pytest.mark.parametrize("name", ["dense", "btt"])
@pytest.mark.parametrize(
    "target",
    [
        ("block.mixx", "attention"),
        ("", "attention"),
        ("norm", "attention"),
        ("hidden", "embedding"),
        ("hidden", "head"),
    ],
)
def test_wrong_targets_are_named(name, target):
    with pytest.raises(ValueError, match=f"target '{target[0]}'"):
        all_arms()[name].adapt(ToyEncoder(), dict([target]))


def fields_of_all_settings():
    for name in MODULES:
        for field in dataclasses.fields(importlib.import_module(f"baselines.{name}").Settings):
            yield name, field.name


@pytest.mark.parametrize(("name", "field"), list(fields_of_all_settings()))
def test_wrong_settings_are_named_by_field_and_value(name, field):
    settings = importlib.import_module(f"baselines.{name}").Settings
    kind = get_type_hints(settings)[field]
    wrong = {int: [0, -1, 1.5, True, "2"], float: [0.0, -1.0, float("nan"), float("inf"), True, "2"], bool: [1, "no"]}
    wrong |= {float | None: wrong[float], int | None: wrong[int]}
    for value in wrong[kind]:
        with pytest.raises(ValueError, match=rf"{name}\.{field}") as caught:
            settings(**{field: value})
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize("name", MODULES)
def test_settings_have_defaults_and_variants_are_checked(name):
    module = importlib.import_module(f"baselines.{name}")
    assert module.VARIANTS[0] == ""
    for variant in module.VARIANTS:
        assert isinstance(module.build(module.Settings(), variant), _arm.TrainedArm)
    with pytest.raises(ValueError, match="'other'"):
        module.build(module.Settings(), "other")


def test_importing_the_rivals_loads_no_heavy_package():
    code = (
        "import sys, baselines.dense, baselines.galore, baselines.lora, baselines.lte, baselines.low_rank\n"
        "heavy = {'peft', 'galore_torch', 'transformers', 'bitsandbytes', 'bench'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_target_of_a_kind_is_no_error():
    for name, arm in all_arms().items():
        if arm.model_unsupported(ToyEncoder(), {}):  # sparse gradients of no table
            continue
        model = arm.adapt(ToyEncoder(), {})
        assert [n for n, _ in model.named_parameters()] == [n for n, _ in ToyEncoder().named_parameters()], name
        loss_of(model, batch()).backward()
        arm.optimizer(model).step()


def test_frozen_parameters_stay_frozen():
    for name, arm in all_arms().items():
        model = ToyEncoder()
        model.norm.requires_grad_(False)
        model = arm.adapt(model, TARGETS)
        assert not any(p.requires_grad for p in model.norm.parameters()), name
        assert isinstance(model, nn.Module)
