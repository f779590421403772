"""Calls on a device's own clock, and calls that take turns: a block has each of them once, in random order."""

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def take_turns(turns: Mapping[str, Callable[[], T]], blocks: int) -> dict[str, list[T]]:
    """What each of some named turns returns, block by block, so that a disturbance meets all alike.

    Example:
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
    """How many calls of ``ms`` milliseconds fill a block, as :class:`bench.runner.resolve.TimingSettings` has it.

    Example:
        >>> calls_per_block(10.0, {"block_seconds": 0.05, "max_steps": 20})
        5
    """
    return max(1, min(timing["max_steps"], round(1e3 * timing["block_seconds"] / max(ms, 1e-3))))


def mark(on_cuda: bool) -> Any:
    """This moment on the device's clock: seconds on a CPU, an event after all work so far on CUDA."""
    if not on_cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def ms_between(start: Any, end: Any) -> float:
    """Milliseconds between two marks, once the device has done all work before the second."""
    return 1e3 * (end - start) if isinstance(start, float) else float(start.elapsed_time(end))


def mean_ms(call: Callable[[], object], count: int, on_cuda: bool) -> float:
    """Milliseconds per call over ``count`` calls, none of which waits for the one before."""
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
