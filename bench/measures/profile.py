"""Measure ``profile``: the kernels of a step on a GPU, the operators of a step on a CPU, by PyTorch's profiler.

The samples of a record (measure ``profile``):

* ``kernels``: a row per name, the slowest first: ``name``, ``launches`` and ``ms`` per step. On a CPU ``ms`` is the
  time of an operator without those it calls;
* ``busy_ms``: their sum per step.

``step_time_median_ms`` is timed without the profiler. On a GPU the difference to ``busy_ms`` is time in which the
device waits, or in which kernels run side by side.
"""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from bench.core.cell import Cell
from bench.core.record import Record
from bench.measures import Measure
from bench.protocol import Workload
from bench.step.timing import mean_ms, synchronize
from bench.step.train_step import batches_on, build_step

_WARM_UP, _STEPS, _RUNS = 3, 5, 3

#: Events of the profiler that are spans around others.
_SPANS = ("ProfilerStep", "Optimizer.", "## ")


def profile_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Profile a few steps of a cell and return its record's columns."""
    step, batches = build_step(cell, workload), itertools.cycle(batches_on(cell, workload, _STEPS))
    on_cuda = cell.device == "cuda"

    def run() -> None:
        step(next(batches))

    for _ in range(step.steps_before_capture + _WARM_UP):
        run()
    times = [mean_ms(run, _STEPS, on_cuda) for _ in range(_RUNS)]
    kernels = kernel_rows(run, _STEPS, on_cuda)
    return {
        "step_time_median_ms": statistics.median(times),
        "steps_measured": _RUNS * _STEPS,
        "arithmetic": step.arithmetic,
        "samples": {"kernels": kernels, "busy_ms": sum(row["ms"] for row in kernels)},
    }


def kernel_rows(run: Callable[[], object], calls: int, on_cuda: bool) -> list[dict[str, Any]]:
    """Return a row per kernel, or operator of a CPU, that ``run`` launches: ``name``, ``launches``, ``ms`` of a call.

    >>> import torch
    >>> matrix = torch.ones(8, 8)
    >>> [row["launches"] for row in kernel_rows(lambda: matrix @ matrix, 2, False) if row["name"] == "aten::mm"]
    [1.0]
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities) as profiler:
        for _ in range(calls):
            run()
        synchronize(on_cuda)
    launches: dict[str, int] = defaultdict(int)
    spent_us: dict[str, float] = defaultdict(float)
    for event in profiler.events() or ():
        is_span = getattr(event, "is_user_annotation", False) or event.name.startswith(_SPANS)
        if is_span or (event.device_type == DeviceType.CUDA) != on_cuda:
            continue
        launches[event.name] += 1
        spent_us[event.name] += event.time_range.elapsed_us() if on_cuda else event.self_cpu_time_total
    slowest_first = sorted(spent_us, key=lambda name: -spent_us[name])
    return [
        {"name": name, "launches": launches[name] / calls, "ms": spent_us[name] / calls / 1e3} for name in slowest_first
    ]


def in_words(record: Record) -> str:
    """Return the number of launches, the time of kernels and the time of a step."""
    launches = sum(row["launches"] for row in record.samples["kernels"])
    return f"{launches:,.0f} launches, {record.samples['busy_ms']:.2f} of {record.step_time_median_ms:.2f} ms"


MEASURE = Measure(
    name="profile",
    words="kernels of a step by PyTorch's profiler, with launches and time",
    serve=profile_columns,
    cost=lambda _: 10.0,
    text=in_words,
)
