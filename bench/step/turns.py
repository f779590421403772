"""Calls that take turns: a block has each of them once, in random order, so that a disturbance meets all alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def take_turns(turns: Mapping[str, Callable[[], T]], blocks: int) -> dict[str, list[T]]:
    """What each turn returns, block by block.

    Args:
        turns: by name.
        blocks: how often each comes.

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


def mean_ms(call: Callable[[], object], count: int, on_cuda: bool) -> float:
    """Milliseconds per call over ``count`` calls, on the device's own clock; none of them waits for the one before."""
    if not on_cuda:
        begun = time.perf_counter()
        for _ in range(count):
            call()
        return 1e3 * (time.perf_counter() - begun) / count
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / count
