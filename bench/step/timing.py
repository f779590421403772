"""Timing train steps on the device's own clock, beside a fixed product that shows how quiet the machine is."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch

from bench.protocol import Batch, RareEvent
from bench.step.train_step import TrainStep

#: What becomes of freed memory, see :func:`steady_allocator`; the first one is the usual.
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


class StepTimer:
    """Times one arm's steps.

    Steps on which a rare event falls due are run, but not timed; rare events are timed on their own.

    Args:
        step: the train step, on its device.
        batches: what the steps run on, in turn; already on the device.
        rare_events: the method's.
    """

    def __init__(self, step: TrainStep, batches: Sequence[Batch], rare_events: Sequence[RareEvent]) -> None:
        self.step = step
        self.batches = batches
        self.rare_events = rare_events
        self.on_cuda = step.device.type == "cuda"

    def warm_up(self, steps: int) -> float:
        """Run ``steps`` steps and return how long the last one took, in milliseconds.

        Raises:
            Diverged: the loss is not finite.
        """
        elapsed = math.nan
        for _ in range(steps):
            start = time.perf_counter()
            loss = self._run()
            self._check(loss)  # waits for the device
            elapsed = 1e3 * (time.perf_counter() - start)
        return elapsed

    def block(self, steps: int) -> dict[str, Any]:
        """Time ``steps`` steps, and the calibration product before and after them.

        Returns:
            ``{"ms": [...], "calibration_ms": float}``, the slower of the two calibrations.

        Raises:
            Diverged: the loss is not finite after the block.
        """
        before = self._calibrate()
        times = self._timed_on_cuda(steps) if self.on_cuda else self._timed_on_cpu(steps)
        return {"ms": times, "calibration_ms": max(before, self._calibrate())}

    def rare(self) -> dict[str, float]:
        """Time every rare event once, in milliseconds by name, on gradients of a fresh backward pass."""
        result = {}
        for event in self.rare_events:
            self.step.forward_backward(self.batches[0])
            self._synchronize()
            start = time.perf_counter()
            event.run(self.step.model, self.step.optimizer)
            self._synchronize()
            result[event.name] = 1e3 * (time.perf_counter() - start)
        return result

    def _due(self) -> bool:
        number = self.step.number
        return any(number % event.period_steps == event.offset_steps for event in self.rare_events)

    def _run(self) -> torch.Tensor:
        return self.step(self.batches[self.step.number % len(self.batches)])

    def _timed_on_cpu(self, steps: int) -> list[float]:
        times: list[float] = []
        while len(times) < steps:
            if self._due():
                self._run()
                continue
            start = time.perf_counter()
            loss = self._run()
            times.append(1e3 * (time.perf_counter() - start))
        self._check(loss)
        return times

    def _timed_on_cuda(self, steps: int) -> list[float]:
        pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        while len(pairs) < steps:
            if self._due():
                self._run()
                continue
            pair = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            pair[0].record()
            loss = self._run()
            pair[1].record()
            pairs.append(pair)
        self._check(loss)
        self._synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    @functools.cached_property
    def _factor(self) -> torch.Tensor:
        """What the calibration multiplies by itself; made by the first block, so that it is in no peak of a step."""
        width = CUDA_CALIBRATION_WIDTH if self.on_cuda else CALIBRATION_WIDTH
        return torch.randn(width, width, device=self.step.device)

    def _calibrate(self) -> float:
        """The quickest of a few products, in milliseconds."""
        best = math.inf
        for _ in range(_CALIBRATION_REPEATS):
            self._synchronize()
            start = time.perf_counter()
            torch.mm(self._factor, self._factor)
            self._synchronize()
            best = min(best, 1e3 * (time.perf_counter() - start))
        return best

    def _synchronize(self) -> None:
        if self.on_cuda:
            torch.cuda.synchronize()

    def _check(self, loss: torch.Tensor) -> None:
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(f"the loss is {value} after step {self.step.number - 1}")
