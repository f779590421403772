"""The exact part: what a training step needs, counted on fake tensors, without tolerance.

Each benchmark is one cell at full size, for the operations that a CPU or a CUDA device would choose, and is traced once
for all of its numbers (:data:`QUANTITIES`). Less is better in every one of them. They follow from the code, the version
of PyTorch and that of the packages some arms stand on, and from nothing else: neither the machine, nor the order or
the process in which the benchmarks are traced, nor any data from outside.

The arms are those the bench finds (:func:`bench.protocol.methods.available`), so that a new rival is a new benchmark.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.estimate.memory import CATEGORIES, PREDICTED_DEVICES, fake_training, trace_memory
from bench.estimate.work import WorkMeter
from bench.protocol import Method, Workload
from bench.protocol.methods import available, build, checked_settings, parse_arm, variants
from bench.workloads.encoder import EncoderSettings, encoder_workload
from bench.workloads.linear import LinearSettings, LinearWorkload
from bench.workloads.lookup import LookupSettings, LookupWorkload
from comera.lookup import VARIANTS as LOOKUPS

#: What is counted; the categories of the peak are those of :mod:`bench.estimate.memory`.
QUANTITIES = (
    "parameters",
    "stored_bytes",
    "flops_per_step",
    "operator_calls_per_step",
    "saved_for_backward_bytes",
    "peak_bytes",
    *(f"peak_{category}_bytes" for category in CATEGORIES),
)

#: What a benchmark yields: its quantities by name, or a word where the arm does not support the cell.
Numbers = dict[str, int] | Literal["unsupported"]

_ENCODER_BATCHES = (1, 32)
_LINEAR_SHAPES = ((768, 768), (768, 3072), (3072, 768))
_LINEAR_TOKENS = (16, 128, 4096)  # few, and those of the encoder's batches
_LOOKUP_ROWS = (10_000, 40_000)


@dataclass(frozen=True)
class Benchmark:
    """A cell to trace. It is what a method is asked about beforehand (:class:`bench.protocol.CellView`).

    Args:
        name: by which the baseline and all messages know it.
        workload: settings of its workload.
        arm: method, or method:variant.
        device: "cpu" or "cuda", whose operations are traced.
        batch_size: examples, tokens or rows.
        settings: of the method, where they are not the default.
    """

    name: str
    workload: EncoderSettings | LinearSettings | LookupSettings
    arm: str
    device: str
    batch_size: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "fp32"

    @property
    def sequence_length(self) -> int:
        """Tokens of an example."""
        return getattr(self.workload, "sequence_length", 1)

    def method(self) -> Method:
        """The arm, ready to adapt a model."""
        name, variant = parse_arm(self.arm)
        return build(name, variant, checked_settings(name, self.settings))


def all_benchmarks() -> list[Benchmark]:
    """The benchmarks of the gate, in the order in which they run."""
    return [
        benchmark
        for device in PREDICTED_DEVICES
        for cells in (_encoder, _linear, _lookup)
        for benchmark in cells(device)
    ]


def _encoder(device: str) -> Iterator[Benchmark]:
    """Whole training steps of every arm and variant."""
    for method in available():
        for variant in variants(method):
            arm = f"{method}:{variant}" if variant else method
            for batch_size in _ENCODER_BATCHES:
                yield Benchmark(
                    f"encoder/{arm}/batch-{batch_size}/{device}", EncoderSettings(), arm, device, batch_size
                )


def _linear(device: str) -> Iterator[Benchmark]:
    """One TT layer of each shape in the encoder."""
    for shape in _LINEAR_SHAPES:
        for tokens in _LINEAR_TOKENS:
            name = "linear-{}x{}/comera/{}-tokens/{}".format(*shape, tokens, device)
            yield Benchmark(name, LinearSettings(*shape), "comera", device, tokens)


def _lookup(device: str) -> Iterator[Benchmark]:
    """Each way to look up rows of the tensorized word embedding."""
    for lookup in LOOKUPS:
        for rows in _LOOKUP_ROWS:
            name = f"lookup-30522x768/{lookup}/{rows}-rows/{device}"
            yield Benchmark(name, LookupSettings(30522, 768), "comera", device, rows, {"lookup": lookup})


@functools.cache
def _opened(settings: EncoderSettings | LinearSettings | LookupSettings) -> Workload:
    """The workload, on data that is generated, so that it is the same everywhere."""
    if isinstance(settings, EncoderSettings):
        return encoder_workload(settings, "synthetic", environ={})
    if isinstance(settings, LinearSettings):
        return LinearWorkload(settings)
    return LookupWorkload(settings, "zipf")


def measure(benchmark: Benchmark) -> Numbers:
    """Trace a benchmark.

    Example:
        >>> small = Benchmark("small", LinearSettings(8, 6), "dense", "cpu", batch_size=3)
        >>> numbers = measure(small)
        >>> numbers["parameters"], numbers["flops_per_step"]
        (54, 576)
    """
    method = benchmark.method()
    if method.unsupported(benchmark):
        return "unsupported"
    cell = (benchmark.batch_size, benchmark.precision, benchmark.device)
    with _no_collection(), fake_training(_opened(benchmark.workload), method, *cell, seed=0) as (step, batch):
        meter, calls = WorkMeter(step), OperatorCalls()
        memory = trace_memory(step, batch, last_step=_both(meter, calls))
        work = meter.work()
    peak = {f"peak_{category}_bytes": getattr(memory, category) for category in CATEGORIES}
    return {
        "parameters": memory.parameter_count,
        "stored_bytes": memory.stored,
        "flops_per_step": work.flops_per_step,
        "operator_calls_per_step": calls.count,
        "saved_for_backward_bytes": work.saved_for_backward,
        "peak_bytes": memory.peak,
        **peak,
    }


class OperatorCalls(TorchDispatchMode):
    """Counts the operators called inside the block: forward, backward, optimizer and the method's own, views included.

    Left out is ``detach``, which computes nothing and which :class:`bench.estimate.work.WorkMeter` calls for every
    saved tensor,
    and what is no operation on tensors: a fake tensor's ``device`` and the profiler's marks. So a step on fake tensors
    and one on real tensors count the same.

    Attributes:
        count: calls so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += func is not torch.ops.aten.detach.default and func.namespace not in ("prim", "profiler")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _both(meter: WorkMeter, calls: OperatorCalls) -> Iterator[None]:
    with meter, calls:
        yield


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector off: when it runs depends on all that the process did before."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
