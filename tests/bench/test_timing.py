"""Timing: what is timed, what is left out, and what stops it. Time here is counted, not measured."""

import contextlib
import math
from multiprocessing import Pipe
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small_cells import TIMING, a_cell

import bench.measures.run
import bench.step.timing
from bench.measures.run import time_cell
from bench.processes.process import failures_reported, first_line, status_of
from bench.protocol import Data
from bench.step.energy import Energy
from bench.step.timing import Calibration, Diverged, StepTimer, around

USUAL_MS, RARE_MS = 1, 100


class Clock:
    """A clock that work moves on."""

    ms = 0.0

    waited_ms = 0.0  # of it, while another job had the processor

    def perf_counter(self):
        return self.ms / 1e3

    def thread_time(self):
        return (self.ms - self.waited_ms) / 1e3


@pytest.fixture
def clock():
    with counted_time() as clock:
        yield clock


@contextlib.contextmanager
def counted_time():
    clock = Clock()
    with (
        mock.patch.object(bench.step.timing, "time", clock),
        mock.patch.object(bench.step.timing, "CALIBRATION_WIDTH", 8),
    ):
        yield clock


class CountedStep:
    """A step that takes 1 ms, and 100 more when a rare event falls due in it."""

    device = torch.device("cpu")
    model, optimizer = object(), object()

    def __init__(self, clock, events, losses):
        self.clock, self.events, self.losses = clock, events, losses or {}
        self.number, self.batches, self.gradients = 0, [], 0

    def __call__(self, batch):
        self.batches.append(batch)
        self.clock.ms += USUAL_MS
        for event in self.events:
            if self.number % event.period_steps == event.offset_steps:
                self.clock.ms += RARE_MS
        loss = self.losses.get(self.number, 1.0)
        self.number += 1
        return torch.tensor(loss)

    def forward_backward(self, batch):
        self.batches.append(batch)
        self.gradients += 1
        self.clock.ms += 7
        return torch.tensor(1.0)


def rare(clock, name, period, offset, ms=RARE_MS):
    calls = []

    def run(model, optimizer):
        calls.append((model, optimizer))
        clock.ms += ms

    return SimpleNamespace(name=name, period_steps=period, offset_steps=offset, run=run, calls=calls)


def a_timer(clock, events=(), losses=None):
    return StepTimer(CountedStep(clock, events, losses), ("a", "b", "c"), events)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(2, 9), st.integers(0, 8)), max_size=2),
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
)
def test_steps_with_a_rare_event_are_run_but_not_timed(periods, blocks):
    periods = [(period, offset % period) for period, offset in periods]
    lone = {number for number in range(200) if all(number % period != offset for period, offset in periods)}
    assume(lone)  # two events of period 2 can fill all steps
    with counted_time() as clock:
        events = [rare(clock, str(index), *pair) for index, pair in enumerate(periods)]
        timer = a_timer(clock, events)
        for steps in blocks:
            assert timer.block(steps)["ms"] == pytest.approx([USUAL_MS] * steps)
    assert len([number for number in lone if number < timer.step.number]) == sum(blocks)
    assert not any(event.calls for event in events)


def test_steps_go_through_the_batches_in_turn(clock):
    timer = a_timer(clock)
    timer.warm_up(2)
    timer.block(3)
    timer.block(2)
    assert timer.step.batches == ["a", "b", "c", "a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("before", "after", "slower"), [([9, 3, 4, 5, 6], [9, 9, 2, 9, 9], 3), ([9, 9, 2, 9, 9], [7, 6, 5, 8, 9], 5)]
)
def test_a_block_tells_the_slower_calibration_of_those_around_it(clock, monkeypatch, before, after, slower):
    durations = iter([*before, *after])
    timer = a_timer(clock)
    calibrated_at = []

    def product(first, second):
        assert first.shape == second.shape == (bench.step.timing.CALIBRATION_WIDTH,) * 2
        clock.ms += next(durations)
        calibrated_at.append(timer.step.number)

    monkeypatch.setattr(bench.step.timing.torch, "mm", product)
    block = timer.block(2)
    assert block["calibration_ms"] == pytest.approx(slower)  # each is the quickest of five
    assert block["ms"] == pytest.approx([USUAL_MS] * 2)
    assert block["calibration_cpu_ms"] == pytest.approx(2 if 2 in (*before, *after) else min(*before, *after))
    assert set(block) == {"ms", "calibration_ms", "calibration_cpu_ms"}
    assert calibrated_at == [0] * 5 + [2] * 5


def test_the_processor_s_time_of_a_calibration_leaves_out_what_other_jobs_took(clock, monkeypatch):
    def product(*_):
        clock.ms += 3 + 4
        clock.waited_ms += 4

    monkeypatch.setattr(bench.step.timing.torch, "mm", product)
    block = a_timer(clock).block(2)
    assert (block["calibration_ms"], block["calibration_cpu_ms"]) == pytest.approx((7, 3))
    on_cuda = around(Calibration(7.0, None), Calibration(6.0, None))
    assert on_cuda == {"calibration_ms": 7.0}


def test_every_rare_event_is_timed_on_fresh_gradients(clock):
    events = [rare(clock, "one", 5, 0, ms=20), rare(clock, "two", 7, 6, ms=30)]
    timer = a_timer(clock, events)
    assert timer.rare() == pytest.approx({"one": 20, "two": 30})
    assert timer.step.gradients == 2
    assert [event.calls for event in events] == [[(CountedStep.model, CountedStep.optimizer)]] * 2
    assert timer.step.number == 0
    assert a_timer(clock).rare() == {}


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_stops_the_arm(clock, loss):
    timer = a_timer(clock, losses=dict.fromkeys(range(3, 100), loss))
    timer.warm_up(2)
    with pytest.raises(Diverged, match=f"the loss is {loss} after step 4"):
        timer.block(3)
    with pytest.raises(Diverged, match=f"the loss is {loss} after step 0"):
        a_timer(clock, losses={0: loss}).warm_up(1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Diverged("the loss is nan"), "diverged"),
        (MemoryError(), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "oom"),
        (RuntimeError("shapes do not match"), "error"),
        (ValueError(), "error"),
    ],
)
def test_an_exception_amounts_to_a_status(error, status):
    assert status_of(error) == status
    assert first_line(error).startswith(type(error).__name__)


@pytest.fixture
def answers(pairs, monkeypatch):
    """What the worker answers for a cell to some requests, all in this process."""
    monkeypatch.setattr(bench.measures.run, "steady_allocator", lambda: None)

    def ask(cell, *requests):
        ours, theirs = Pipe()
        for request in (*requests, ("finish", None)):
            ours.send(request)
        with failures_reported(theirs):
            time_cell(theirs, cell, Data(data_folder=str(pairs)))
        theirs.close()
        received = []
        while True:
            try:
                received.append(ours.recv())
            except (EOFError, ConnectionResetError):
                return received

    return ask


def test_an_arm_answers_blocks_and_rare_events(answers):
    cell = a_cell(method="galore", settings={"rank": 8, "update_gap": 3})
    [(word, ready), block, rare] = answers(cell, ("block", 5), ("rare", None))
    assert word == "ready"
    assert set(ready) == {"parameters", "stored_mib", "tensorized", "arithmetic", "rare_periods", "step_ms"}
    assert ready["tensorized"] == []
    assert ready["rare_periods"] == {"svd": 3}
    assert block[0] == "block"
    assert len(block[1]["ms"]) == 5
    assert rare[0] == "rare"
    assert list(rare[1]) == ["svd"]


def test_what_falls_due_on_every_step_is_part_of_the_step(answers):
    """Leaving out the steps on which it is due would leave none."""
    cell = a_cell(method="lte", batch_size=4, settings={"heads": 4, "rank": 2, "merge_every": 1})
    [(_, ready), (_, block), (_, rare)] = answers(cell, ("block", 2), ("rare", None))
    assert ready["rare_periods"] == {}
    assert len(block["ms"]) == 2
    assert rare == {}


@pytest.mark.parametrize("idle_w", [None, 80.0])
def test_an_arm_on_a_gpu_answers_the_energy_of_a_step(clock, monkeypatch, idle_w):
    """Idle power is measured unless it is known; off a GPU, and where the driver counts nothing, there is no energy."""
    timer = a_timer(clock)
    assert timer.energy(idle_w) is None
    timer.on_cuda = True
    given = []

    def energy(run, step_s, idle_w, counter, synchronize):
        run()
        given.append((step_s, idle_w, counter(), synchronize))
        return Energy(30.0, idle_w, 2.0)

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(bench.step.timing, "idle_power", lambda *_: 70.0)
    monkeypatch.setattr(bench.step.timing, "energy_of", energy)
    monkeypatch.setattr(timer, "warm_up", lambda steps: 4.0 * steps)
    monkeypatch.setattr(bench.step.timing, "energy_counter", lambda device: lambda: 10.0 + device)
    watts = idle_w or 70.0
    assert timer.energy(idle_w) == {"energy_j": 30.0, "idle_w": watts, "window_s": 2.0}
    assert given == [(0.004, watts, 11.0, torch.cuda.synchronize)]
    monkeypatch.setattr(bench.step.timing, "energy_counter", lambda _: None)
    assert timer.energy(idle_w) is None


def test_energy_is_asked_for_by_its_word(answers):
    [_, energy] = answers(a_cell(), ("energy", None))
    assert energy == ("energy", None)


@pytest.mark.parametrize(("before_capture", "done_before"), [(0, 1), (3, 3)])
def test_a_peak_on_a_gpu_is_of_steps_with_the_state_of_the_optimizer(monkeypatch, before_capture, done_before):
    log = []
    monkeypatch.setattr(bench.measures.run, "begin_peak", lambda: log.append("peak from here"))
    for statistic in ("max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, statistic, lambda: 3 * 2**20)
    step = SimpleNamespace(steps_before_capture=before_capture)
    timer = SimpleNamespace(step=step, batches=[{}], warm_up=lambda steps: log.extend(steps * ["step"]) or 1.0)
    cell = a_cell(device="cuda", timing_settings={**TIMING, "warmup_steps": 1})
    assert bench.measures.run._warm_up(cell, timer)["peak_memory_allocated_mib"] == 3.0
    assert log == [*done_before * ["step"], "peak from here", "step", "step"]


@pytest.mark.parametrize(("device", "is_timed"), [("cpu", True), ("cuda", False)])
def test_compilation_is_timed_and_without_caches_on_a_cpu_alone(monkeypatch, device, is_timed):
    monkeypatch.setattr(bench.measures.run, "begin_peak", lambda: None)
    for statistic in ("max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, statistic, lambda: 3 * 2**20)
    step = SimpleNamespace(steps_before_capture=0)
    timer = SimpleNamespace(step=step, batches=[{}], warm_up=lambda steps: 1.0, calibrate=lambda: None)  # noqa: ARG005
    with torch.compiler.config.patch(force_disable_caches=False):
        columns = bench.measures.run._warm_up(a_cell(device=device, compile=True), timer)
        assert ("compile_time_s" in columns) == torch.compiler.config.force_disable_caches == is_timed


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"settings": {"lr": 1e30}}, "diverged", "Diverged: the loss is nan after step 1"),
        ({"batch_size": 1000}, "error", "ValueError: batch_size is 1000; allowed: 1 to the 240 training rows"),
    ],
)
def test_an_arm_that_fails_answers_why(answers, changes, status, reason):
    [(word, (given, message))] = answers(a_cell(**changes), ("block", 1))
    assert (word, given) == ("failed", status)
    assert message.startswith(reason)
