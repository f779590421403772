"""Captured steps: when they warm up, when the graph is taken, replayed and taken again, and what they leave behind."""

import copy

import pytest
import torch
from recorded_graphs import RecordedGraphs
from torch import nn

from comera import TT, TTLinear, tensorize, truncate
from comera.capture import CapturedStep, CaptureError, fixed_shapes, make_capturable, shapes_are_fixed


class Training:
    """A model, its optimizer and a step, with or without the optimizer's part in it."""

    def __init__(self, model=None, whole=True):
        torch.manual_seed(0)
        self.model = model or nn.Linear(4, 3)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.whole = whole

    def __call__(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.model(batch["x"]) - batch["y"]).square().mean()
        loss.backward()
        if self.whole:
            self.optimizer.step()
        return loss.detach()


def a_batch(seed=0, rows=5, columns=4, targets=3):
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(rows, columns, generator=generator), "y": torch.randn(rows, targets, generator=generator)}


def captured(training, **settings):
    graphs = RecordedGraphs(training.model.parameters())
    return CapturedStep(training, training.model.parameters(), backend=graphs, **settings), graphs


def states(training):
    return [*training.model.parameters(), *(value for s in training.optimizer.state.values() for value in s.values())]


@pytest.mark.parametrize("whole", [True, False])
def test_every_call_is_one_step_captured_or_not(whole):
    eager, recorded = Training(whole=whole), Training(whole=whole)
    step, _ = captured(recorded)
    for seed in range(8):
        expected, found = eager(a_batch(seed)), step(a_batch(seed))
        assert torch.equal(found, expected)
        for training in () if whole else (eager, recorded):
            training.optimizer.step()
            training.optimizer.zero_grad()  # as loops do; the graph goes on writing to its own gradients
    for one, other in zip(states(eager), states(recorded), strict=True):
        assert torch.equal(one, other)


def test_the_first_calls_warm_up_one_captures_and_the_rest_replay():
    step, graphs = captured(Training(), warm_up_steps=2)
    for seed in range(5):
        step(a_batch(seed))
    assert graphs.log == [
        *("buffer (5, 4)", "buffer (5, 3)"),
        *("warm up", "warm up"),
        *("capture", "replay", "replay", "replay"),
    ]
    assert step.captures == 1


def test_the_callers_batch_is_copied():
    seen = []

    def step(batch):
        seen.append(batch["x"])
        return batch["x"].sum()

    running = CapturedStep(step, backend=RecordedGraphs(), warm_up_steps=1)
    given = [torch.full((3,), float(number)) for number in range(4)]
    assert [float(running({"x": x})) for x in given] == [0, 3, 6, 9]
    assert all(x is seen[0] for x in seen)
    assert all(x is not seen[0] for x in given)


@pytest.mark.parametrize(
    "other",
    [a_batch(rows=6), {**a_batch(), "y": a_batch()["y"].double()}, {**a_batch(), "weight": torch.ones(5)}],
    ids=["another shape", "another type", "another name"],
)
def test_a_batch_of_another_layout_has_the_graph_taken_again(other):
    training = Training()
    step, graphs = captured(training, warm_up_steps=1)
    for _ in range(3):
        step(a_batch())
    training.model.to(other["x"].dtype)
    graphs.log.clear()
    for _ in range(3):
        step(other)
    assert [entry for entry in graphs.log if not entry.startswith("buffer")] == [
        *("warm up", "capture", "replay", "replay")
    ]
    assert f"buffer {tuple(other['x'].shape)}" in graphs.log
    assert step.captures == 2


def a_tensorized():
    torch.manual_seed(0)
    return Training(tensorize(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), {"*": TT(3, order=2)}))


def test_after_a_truncation_the_graph_is_taken_again():
    """Nobody tells the step: it sees that its parameters have moved."""
    eager, recorded = a_tensorized(), a_tensorized()
    step, graphs = captured(recorded, warm_up_steps=1)
    for number in range(8):
        batch = a_batch(number, columns=16, targets=16)
        assert torch.equal(step(batch), eager(batch))
        if number == 3:
            graphs.log.clear()
            for training in (eager, recorded):
                training.model[0].diagonals.data[:2] = 0.0
                assert truncate(training.model, training.optimizer)
    assert graphs.log == ["warm up", "capture", "replay", "replay", "replay"]
    assert isinstance(recorded.model[0], TTLinear)
    for one, other in zip(states(eager), states(recorded), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("message", ["operation not permitted when stream is capturing\nmore about it", "no sync."])
def test_a_step_that_cannot_be_captured_says_so_in_one_sentence(message):
    class Refusing(RecordedGraphs):
        def capture(self, work):  # noqa: ARG002
            try:
                raise RuntimeError(message)
            finally:
                raise RuntimeError("the capture has been invalidated")  # as the end of a broken capture does

    step = CapturedStep(Training(), backend=Refusing(), warm_up_steps=1)
    step(a_batch())
    reason = message.splitlines()[0].rstrip(".")
    with pytest.raises(CaptureError, match=rf"^the step cannot be captured as a CUDA graph: {reason}\.$"):
        step(a_batch())
    assert step.captures == 0


def test_shapes_are_fixed_inside_a_step_and_not_beyond():
    seen = []

    def step(batch):
        seen.append(shapes_are_fixed())
        return batch["x"].sum()

    running = CapturedStep(step, backend=RecordedGraphs(), warm_up_steps=1)
    for _ in range(3):
        running({"x": torch.ones(2)})
        assert not shapes_are_fixed()
    assert seen == [True] * 3

    with fixed_shapes():
        with pytest.raises(KeyError):
            CapturedStep(lambda batch: batch["y"], backend=RecordedGraphs())({"x": torch.ones(2)})
        assert shapes_are_fixed()
    assert not shapes_are_fixed()


def test_an_optimizer_made_capturable_goes_on_as_before():
    plain = nn.Linear(3, 2)
    model = copy.deepcopy(plain)
    optimizers = [torch.optim.Adam(each.parameters(), fused=True) for each in (plain, model)]
    for number in range(4):
        for each, optimizer in zip((plain, model), optimizers, strict=True):
            if each is model and number == 2:
                make_capturable(optimizer)
            optimizer.zero_grad()
            each(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
    assert optimizers[1].param_groups[0]["capturable"]
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
