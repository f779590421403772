"""The exact part: what a training step needs, counted on fake tensors, without tolerance.

Each benchmark is one cell at full size, for the operations that a CPU or a CUDA device would choose, and is traced once
for all of its numbers (:data:`QUANTITIES`). Less is better in every one of them. They follow from the code, the version
of PyTorch and that of the packages some arms stand on, and from nothing else: neither the machine, nor the order or
the process in which the benchmarks are traced, nor any data from outside.

The cells are those that the registered workloads name (:class:`bench.protocol.Gated`), the arms those that the bench
finds (:func:`bench.protocol.methods.available`), so that a new workload or rival is a new benchmark.
"""

import contextlib
import functools
import gc
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from unittest import mock

import torch

from bench.data.nli import DATA_VARIABLE
from bench.estimate.memory import CATEGORIES, PREDICTED_DEVICES, Operations, fake_training, trace_memory
from bench.estimate.work import WorkMeter
from bench.protocol import Data, Gated, Workload
from bench.protocol.methods import available, build, checked_settings, parse_arm, variants
from bench.step.unsupported import StepCell, unsupported
from bench.workloads import available as available_workloads
from bench.workloads import workload_class

#: Counted quantities; the categories of the peak are those of :mod:`bench.estimate.memory`.
QUANTITIES = (
    *("parameters", "stored_bytes", "flops_per_step", "operator_calls_per_step", "saved_for_backward_bytes"),
    *("peak_bytes", *(f"peak_{category}_bytes" for category in CATEGORIES)),
)

#: Result of a benchmark: its quantities by name, or a word where the arm does not support the cell.
Numbers = dict[str, int] | Literal["unsupported"]


@dataclass(frozen=True)
class ExactBenchmark:
    """A cell to trace."""

    name: str  # by which the baseline and all messages name it
    workload: str
    model: Any  # settings of the workload
    arm: str  # method, or method:variant
    device: str  # "cpu" or "cuda", whose operations are traced
    batch_size: int  # examples, tokens or rows
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the method, where they are not the default
    dataset: str = "auto"
    precision: str = "fp32"


def all_benchmarks() -> list[ExactBenchmark]:
    """Return the benchmarks of the gate, in the order in which they run."""
    return [
        benchmark
        for device in PREDICTED_DEVICES
        for workload in available_workloads()
        for gated in workload_class(workload).gated
        for benchmark in _benchmarks(workload, gated, device)
    ]


def _benchmarks(workload: str, gated: Gated, device: str) -> Iterator[ExactBenchmark]:
    every = (f"{method}:{variant}" if variant else method for method in available() for variant in variants(method))
    arms = {arm: (arm, {}) for arm in every} if gated.arms is None else gated.arms
    for called, (arm, settings) in arms.items():
        for batch_size in gated.batch_sizes:
            name = f"{gated.name}/{called}/{gated.written.format(batch_size)}/{device}"
            yield ExactBenchmark(name, workload, gated.settings, arm, device, batch_size, settings, gated.dataset)


@functools.cache
def _opened(workload: str, model: Any, dataset: str) -> Workload:
    """Return the workload, without data from outside, so that it is the same everywhere."""
    with mock.patch.dict(os.environ):
        os.environ.pop(DATA_VARIABLE, None)
        return workload_class(workload).open(model, Data(dataset), check=False)


def measure(benchmark: ExactBenchmark) -> Numbers:
    """Trace a benchmark.

    >>> from bench.workloads.linear import LinearSettings
    >>> numbers = measure(ExactBenchmark("small", "linear", LinearSettings(8, 6), "dense", "cpu", batch_size=3))
    >>> numbers["parameters"], numbers["flops_per_step"]
    (54, 576)
    """
    arm = parse_arm(benchmark.arm)
    method = build(arm.method, arm.variant, checked_settings(arm.method, benchmark.settings))
    opened = _opened(benchmark.workload, benchmark.model, benchmark.dataset)
    with torch.device("meta"):
        model = opened.build()
    cell = (benchmark.batch_size, benchmark.precision, benchmark.device)
    asked = StepCell(*cell, getattr(benchmark.model, "sequence_length", 1), arm.checkpoint)
    if unsupported(asked, method, model, opened.targets()):
        return "unsupported"
    with contextlib.ExitStack() as stack:
        if gc.isenabled():  # when it runs depends on all that the process did before
            gc.disable()
            stack.callback(gc.enable)
        step, batch = stack.enter_context(fake_training(opened, method, *cell, 0, arm.checkpoint))
        meter, calls = WorkMeter(step), OperatorCalls()
        memory = trace_memory(step, batch, meter, calls)
        work = meter.work()
    return {
        "parameters": memory.parameter_count,
        "stored_bytes": memory.stored,
        "flops_per_step": work.flops_per_step,
        "operator_calls_per_step": calls.count,
        "saved_for_backward_bytes": work.saved_for_backward,
        "peak_bytes": memory.peak,
        **{f"peak_{category}_bytes": getattr(memory, category) for category in CATEGORIES},
    }


class OperatorCalls(Operations):
    """Counts the operators called inside the block: forward, backward, optimizer and the method's own, views included.

    Left out is ``detach``, which computes nothing and which :class:`bench.estimate.work.WorkMeter` calls for every
    saved tensor, and the profiler's marks, which are no operation on tensors. So a step on
    fake tensors and one on real tensors count the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def seen(self, func: Any, given: Mapping[str, Any], result: Any) -> None:  # noqa: ARG002
        self.count += func is not torch.ops.aten.detach.default and func.namespace != "profiler"
