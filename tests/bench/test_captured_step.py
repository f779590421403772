"""The captured train step: the same training as without capture, for every method, and what stays outside the graph."""

import contextlib
import functools
import os

import pytest
import torch
from recorded_graphs import RecordedGraphs
from tiny import TinyMethod, TinyWorkload
from tiny_steps import ARMS, CUT, a_step, batches
from torch.utils._python_dispatch import TorchDispatchMode

import bench.step.train_step
from bench.protocol.methods import build, checked_settings
from bench.protocol.recipe import Prescribed, Recipe
from bench.step.train_step import TrainStep
from comera import ranks_of
from comera.capture import fixed_shapes

ON_A_DEVICE = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def deterministic(monkeypatch):
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def captured(monkeypatch):
    """A step that is captured by the stand-in, and the stand-in."""

    def make(arm, method=None):
        graphs = RecordedGraphs()
        monkeypatch.setattr(bench.step.train_step, "CUDAGraphs", lambda: graphs)
        if method is None:
            step = a_step(arm, label="cuda", cuda_graph=True)
        else:
            workload = TinyWorkload(dropout=0.0)
            model = workload.build()
            step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cuda", cuda_graph=True)
        graphs.parameters = list(step.model.parameters())
        return step, graphs

    return make


def calls(graphs):
    return [entry for entry in graphs.log if not entry.startswith("buffer")]


def assert_same_training(eager, other):
    for one, two in zip(eager.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)
    states = eager.optimizer.state_dict()["state"], other.optimizer.state_dict()["state"]
    for one, two in zip(states[0].values(), states[1].values(), strict=True):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one if isinstance(one[key], torch.Tensor))
    assert eager.number == other.number


def with_fixed_shapes(step, batch):
    """An eager step by the operations that a captured one has."""
    with fixed_shapes():
        return step(batch)


@pytest.mark.parametrize("name", ARMS)
def test_a_captured_step_trains_as_an_eager_one(captured, name):
    eager = a_step(ARMS[name])
    step, graphs = captured(ARMS[name])
    for batch in batches(10):
        assert torch.equal(step(batch), with_fixed_shapes(eager, batch))
    assert calls(graphs) == ["warm up"] * 3 + ["capture"] + ["replay"] * 7
    assert_same_training(eager, step)


def test_a_cut_of_ranks_has_the_graph_taken_again(captured):
    eager = a_step(CUT)
    step, graphs = captured(CUT)
    before = ranks_of(step.model)
    for batch in batches(10):
        assert torch.equal(step(batch), with_fixed_shapes(eager, batch))
    assert ranks_of(step.model) == ranks_of(eager.model) != before
    first = ["warm up"] * 3 + ["capture", "replay"]
    assert calls(graphs)[:8] == [*first, "warm up", "warm up", "warm up"]
    assert_same_training(eager, step)


class NoNumbersOfTensors(TorchDispatchMode):
    """Refuses to read a number from a tensor, for which a step on a device would wait."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "the optimizer reads a number from a tensor"
        return func(*args, **(kwargs or {}))


def by_recipe(name, optimizer, **recipe):
    """The method of an arm, trained by a recipe."""
    method, variant, settings = ARMS[name]
    settings = {key: value for key, value in settings.items() if not key.startswith("lr")}
    rates = {} if optimizer == "own" else {"lr": 0.02, "lr_rest": 3e-3, "weight_decay": 0.1}
    recipe = Recipe(optimizer=optimizer, clip=1.0, **rates, **recipe)
    return Prescribed(build(method, variant, checked_settings(method, settings)), recipe)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_A_DEVICE)])
@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("dense", {"optimizer": "adamw"}),
        ("dense", {"optimizer": "muon"}),
        ("dense", {"optimizer": "own"}),
        ("comera", {"optimizer": "muon"}),
        ("comera", {"optimizer": "own"}),
        ("low_rank", {"optimizer": "muon"}),
        ("galore", {"optimizer": "own"}),
        ("lte", {"optimizer": "own"}),
    ],
)
def test_rates_that_change_reach_a_captured_step(monkeypatch, name, recipe, device):
    """Eager steps read rates as numbers; a captured optimizer reads them from tensors that stay where they are."""
    graphs, steps = RecordedGraphs(), {}
    if device == "cpu":
        monkeypatch.setattr(bench.step.train_step, "CUDAGraphs", lambda: graphs)
    for kind in ("eager", "captured"):
        torch.manual_seed(0)
        workload, method = TinyWorkload(blocks=1, dropout=0.0), by_recipe(name, **recipe)
        model = method.adapt(workload.build(), workload.targets())
        model = model.to(device).double()  # Adam would enlarge noise of float32
        toggles = ("fp32", "cuda", True) if kind == "captured" else ("fp32", device)
        steps[kind] = TrainStep(model, method, method.optimizer(model), workload.loss, *toggles)
    eager, captured = steps.values()
    graphs.parameters = list(captured.model.parameters())
    usual = [group["lr"] for group in eager.optimizer.param_groups]
    start = [parameter.detach().clone() for parameter in eager.model.parameters()]
    places, tolerance = set(), 1e-6 if device == "cpu" else 2e-3  # Muon's products are in bfloat16 on a device
    for number, batch in enumerate(batches(8, device)):
        for step in steps.values():
            for group, rate in zip(step.optimizer.param_groups, usual, strict=True):
                step.set_rate(group, rate * (1 - number / 8))
        losses = [run(batch).float() for run in (captured, functools.partial(with_fixed_shapes, eager))]
        torch.testing.assert_close(*losses, rtol=tolerance, atol=tolerance)
        places |= {id(group["lr"]) for group in captured.optimizer.param_groups}
    whole = method.capture == "whole_step"
    assert device == "cuda" or calls(graphs) == ["warm up"] * 3 + ["capture"] + ["replay"] * 5
    assert not whole or len(places) == len(usual)
    assert all(isinstance(group["lr"], torch.Tensor) == whole for group in captured.optimizer.param_groups)
    for one, two, before in zip(eager.model.parameters(), captured.model.parameters(), start, strict=True):
        torch.testing.assert_close(two, one, rtol=tolerance, atol=tolerance)
        assert not one.requires_grad or not torch.equal(one, before)
    with NoNumbersOfTensors() if whole and device == "cpu" else contextlib.nullcontext():
        captured.optimizer.step()


def test_changes_of_values_keep_the_graph_and_changes_of_shapes_do_not(captured):
    class Changing(TinyMethod):
        def after_step(self, model, optimizer, step):
            super().after_step(model, optimizer, step)
            return {4: "values", 6: "shapes"}.get(step, "nothing")

    method = Changing()
    step, graphs = captured(None, method)
    for batch in batches(8):
        step(batch)
    assert calls(graphs) == ["warm up"] * 3 + ["capture"] + ["replay"] * 4 + ["warm up"]
    assert method.after_steps == list(range(8))


def test_rare_work_on_gradients_of_its_own_disturbs_nothing(captured):
    """As :meth:`bench.step.timing.StepTimer.rare` asks for it."""
    for name in ("lte", "galore"):
        eager = a_step(ARMS[name])
        step, _ = captured(ARMS[name])
        for number, batch in enumerate(batches(8)):
            assert torch.equal(step(batch), with_fixed_shapes(eager, batch))
            if number == 5:
                for each in (step, eager):
                    each.forward_backward(batch)
                    for event in each.method.rare_events():
                        event.run(each.model, each.optimizer)
        assert_same_training(eager, step)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", [pytest.param(name, marks=ON_A_DEVICE) for name in (*ARMS, "cut")])
def test_captured_and_eager_steps_agree_exactly_on_a_device(name):
    arm = ARMS.get(name, CUT)
    eager, step = a_step(arm, "cuda"), a_step(arm, "cuda", cuda_graph=True)
    given = batches(10)
    expected = []
    with fixed_shapes():
        for batch in given:
            expected.append(eager({key: tensor.cuda() for key, tensor in batch.items()}).item())
    assert [step(batch).item() for batch in given] == expected
    assert_same_training(eager, step)
