"""Timing train steps on the device's own clock, beside a fixed product that shows how quiet the machine is."""

import ctypes
import functools
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch

from bench.protocol import Batch, RareEvent
from bench.step.energy import energy_counter, energy_of, idle_power
from bench.step.train_step import TrainStep

T = TypeVar("T")

#: Treatment of freed memory, see :func:`steady_allocator`; the first one is the usual.
Allocator = Literal["steady", "system"]
ALLOCATORS: tuple[str, ...] = get_args(Allocator)

#: Width of the square product that every block times before and after its steps: milliseconds on either device.
CALIBRATION_WIDTH, CUDA_CALIBRATION_WIDTH = 768, 4096
_CALIBRATION_REPEATS = 5


class Diverged(RuntimeError):
    """The loss is no longer a finite number."""

    status = "diverged"  # of the cell's record


def steady_allocator() -> None:
    """Let the C library keep freed memory instead of returning it, on Linux.

    By default glibc hands every large buffer back and asks for it anew each step; the page faults cost a CPU step up to
    a fifth of its time and most of its noise. Every arm gets the same setting.
    """
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    mallopt(mmap_threshold, 2**30)
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(top_pad, 2**26)


class Calibration(NamedTuple):
    """The quickest of a few calibration products in milliseconds; ``cpu_ms`` is processor time, None on CUDA."""

    ms: float
    cpu_ms: float | None


def around(before: Calibration, after: Calibration) -> dict[str, float]:
    """Return what a block holds of the calibrations before and after its steps.

    ``calibration_ms`` is the slower one. ``calibration_cpu_ms`` is the least processor time of the calling thread: time
    in which another job has the processor does not count, so it tells on a busy CPU what the product takes on a quiet
    one.
    """
    cpu = [one.cpu_ms for one in (before, after) if one.cpu_ms]
    return {"calibration_ms": max(before.ms, after.ms), **({"calibration_cpu_ms": min(cpu)} if cpu else {})}


class StepTimer:
    """Times one arm's steps, run on ``batches`` in turn; both lie on the device already.

    Steps on which a rare event falls due are run, but not timed; rare events are timed on their own. Every method
    raises Diverged where the loss is not finite.
    """

    def __init__(self, step: TrainStep, batches: Sequence[Batch], rare_events: Sequence[RareEvent]) -> None:
        self.step = step
        self.batches = batches
        self.rare_events = rare_events
        self.on_cuda = step.device.type == "cuda"

    def warm_up(self, steps: int) -> float:
        """Run ``steps`` steps and return how long the last one took, in milliseconds."""
        times = [mean_ms(lambda: self._check(self._run()), 1, self.on_cuda) for _ in range(steps)]
        return times[-1] if times else math.nan

    def block(self, steps: int) -> dict[str, Any]:
        """Time ``steps`` steps, and the calibration product before and after them.

        Returns:
            ``{"ms": [...], "calibration_ms": float, "calibration_cpu_ms": float}``, see :func:`around`.
        """
        before = self.calibrate()
        times = self.times(steps)
        return {"ms": times, **around(before, self.calibrate())}

    def times(self, steps: int) -> list[float]:
        """Return milliseconds of each of ``steps`` steps on which no rare event is due."""
        marks: list[tuple[Any, Any]] = []
        while len(marks) < steps:
            if any(self.step.number % event.period_steps == event.offset_steps for event in self.rare_events):
                self._run()
                continue
            start = mark(self.on_cuda)
            loss = self._run()
            marks.append((start, mark(self.on_cuda)))
        self._check(loss)
        synchronize(self.on_cuda)
        return [ms_between(*pair) for pair in marks]

    def rare(self) -> dict[str, float]:
        """Time every rare event once, in milliseconds by name, on gradients of a fresh backward pass."""
        result = {}
        for event in self.rare_events:
            self.step.forward_backward(self.batches[0])
            run = functools.partial(event.run, self.step.model, self.step.optimizer)
            result[event.name] = mean_ms(run, 1, self.on_cuda)
        return result

    def energy(self, idle_w: float | None = None) -> dict[str, float] | None:
        """Measure the energy of a step in a window of its own, steps with a rare event among them.

        Args:
            idle_w: watts of the idle GPU; None: they are measured first.

        Returns:
            The fields of :class:`bench.step.energy.Energy`; None off CUDA and without a counter of energy.
        """
        counter = energy_counter(torch.cuda.current_device()) if self.on_cuda else None
        if counter is None:
            return None
        if idle_w is None:
            idle_w = idle_power(counter, torch.cuda.synchronize)
        step_s = self.warm_up(1) / 1e3
        return asdict(energy_of(self._run, step_s, idle_w, counter, torch.cuda.synchronize))

    def _run(self) -> torch.Tensor:
        return self.step(self.batches[self.step.number % len(self.batches)])

    @functools.cached_property
    def _factor(self) -> torch.Tensor:
        """Return the factor of calibration's product, made once, so that on CUDA it is in no peak of a step."""
        width = CUDA_CALIBRATION_WIDTH if self.on_cuda else CALIBRATION_WIDTH
        return torch.randn(width, width, device=self.step.device)

    def calibrate(self) -> Calibration:
        """Time the quickest of a few square products."""
        factor, wall, processor = self._factor, [], []
        for _ in range(_CALIBRATION_REPEATS):
            start = time.thread_time()
            wall.append(mean_ms(lambda: torch.mm(factor, factor), 1, self.on_cuda))
            processor.append(1e3 * (time.thread_time() - start))
        return Calibration(min(wall), None if self.on_cuda else min(processor))

    def _check(self, loss: torch.Tensor) -> None:
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(f"the loss is {value} after step {self.step.number - 1}")


def take_turns(turns: Mapping[str, Callable[[], T]], blocks: int) -> dict[str, list[T]]:
    """Return the results of named turns, taken block by block, so that a disturbance meets all alike.

    >>> take_turns({"one": lambda: 1, "two": lambda: 2}, blocks=3)
    {'one': [1, 1, 1], 'two': [2, 2, 2]}
    """
    results: dict[str, list[T]] = {name: [] for name in turns}
    order, names = random.Random(0), list(turns)
    for _ in range(blocks):
        order.shuffle(names)
        for name in names:
            results[name].append(turns[name]())
    return results


def calls_per_block(ms: float, timing: Mapping[str, Any]) -> int:
    """Return how many calls of ``ms`` milliseconds fill a block (:class:`bench.runner.resolve.TimingSettings`).

    >>> calls_per_block(10.0, {"block_seconds": 0.05, "max_steps": 20})
    5
    >>> calls_per_block(2000.0, {"block_seconds": 0.05, "max_steps": 20, "min_steps": 3})
    3
    """
    filling = round(1e3 * timing["block_seconds"] / max(ms, 1e-3))
    return max(timing.get("min_steps", 1), min(timing["max_steps"], filling))


def mark(on_cuda: bool) -> Any:
    """Return this moment on the device's clock: seconds on a CPU, an event after all work so far on CUDA."""
    if not on_cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def ms_between(start: Any, end: Any) -> float:
    """Return milliseconds between two marks, once the device has done all work before the second."""
    return 1e3 * (end - start) if isinstance(start, float) else float(start.elapsed_time(end))


def mean_ms(call: Callable[[], object], count: int, on_cuda: bool) -> float:
    """Return milliseconds per call over ``count`` calls, none of which waits for the one before."""
    synchronize(on_cuda)
    start = mark(on_cuda)
    for _ in range(count):
        call()
    end = mark(on_cuda)
    synchronize(on_cuda)
    return ms_between(start, end) / count


def synchronize(on_cuda: bool) -> None:
    """Wait for the device."""
    if on_cuda:
        torch.cuda.synchronize()
