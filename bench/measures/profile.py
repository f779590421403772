"""Measure ``profile``: where the time of a step goes: kernels by kind, launches, bytes that are read and written.

The samples of a record (measure ``profile``)

* ``kinds``: a row per kind of work: ``kind``, ``ms`` and ``launches`` per step (on CUDA of kernels on the device, on a
  CPU of operators, without those they call), ``moved_mib`` per step, what the operators of that kind read and write;
* ``costliest``: the same of single kernels or operators: ``name``, ``kind``, ``ms``, ``launches``;
* ``busy_ms``: the sum over all kinds; ``step_ms``: means over runs of steps without a profiler. On CUDA what lies
  between them is time in which the device waits for launches.

Bytes are those of the tensors that an operator is given and returns, views left out; a cache may save some of them.
"""

import itertools
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from bench.core.cell import Cell
from bench.estimate.memory import Operations, tensors_in
from bench.measures import Measure
from bench.protocol import Batch, Workload
from bench.step.timing import mean_ms, synchronize
from bench.step.train_step import TrainStep, batches_on, build_step

#: Kinds of work in the order in which a name is tried on them: the first that is found in it counts. Names are those of
#: CUDA kernels and of PyTorch's operators.
KINDS: Mapping[str, re.Pattern[str]] = {
    kind: re.compile(pattern, re.IGNORECASE)
    for kind, pattern in {
        "optimizer": r"multi_tensor|fused_?adam|_foreach",
        "attention": r"flash|fmha|attention",
        "gemm": (
            r"gemm|gemv|nvjet|cutlass|xmma|splitk|wgmma|cublas"
            r"|(^|:)(_?addmm|mm|bmm|baddbmm|dot|mv|linear|matmul)_?\b"
        ),
        "copy": r"memcpy|memset|copy|_to\b|clone|contiguous|catarray|\bcat\b|stack|fill|zero_|zeros|ones",
        "look-up": r"index|embedding|gather|scatter|sort|unique|radix|scan|nonzero|arange",
        "reduction": r"reduce|norm|softmax|\bsum\b|mean|nll_loss|amax|\bmax\b|item|local_scalar",
        "elementwise": (
            r"elementwise|vectorized|unrolled|dropout|gelu|tanh|relu|where|threshold"
            r"|(^|:)(add|sub|mul|div|pow|sqrt|rsqrt|neg|abs|exp|log|eq|ne|lt|le|gt|ge|remainder|clamp|bernoulli)_?\b"
        ),
    }.items()
}
OTHER = "other"

_WARM_UP, _STEPS, _RUNS, _COSTLIEST = 6, 5, 3, 20


def kind_of(name: str) -> str:
    """Return the kind of work that a kernel or operator does, by its name.

    >>> [kind_of(name) for name in ("aten::addmm", "aten::addmm_", "sm90_xmma_gemm_f32f32")]
    ['gemm', 'gemm', 'gemm']
    >>> [kind_of(name) for name in ("aten::add_", "aten::gelu_backward", "aten::view")]
    ['elementwise', 'elementwise', 'other']
    """
    return next((kind for kind, pattern in KINDS.items() if pattern.search(name)), OTHER)


@dataclass
class Share:
    """Share of one kernel, operator or kind: milliseconds, launches, bytes."""

    ms: float = 0.0
    launches: int = 0
    bytes: int = 0


def profile_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Profile a few steps of the cell's arm and return its record's columns."""
    step, batches = build_step(cell, workload), itertools.cycle(batches_on(cell, workload, _STEPS))
    for _ in range(_WARM_UP):
        step(next(batches))
    on_cuda = cell.device == "cuda"
    step_ms = [mean_ms(lambda: step(next(batches)), _STEPS, on_cuda) for _ in range(_RUNS)]
    names = _profiled(step, batches)
    kinds: dict[str, Share] = defaultdict(Share)
    for name, share in names.items():
        kind = kinds[kind_of(name)]
        kind.ms, kind.launches = kind.ms + share.ms, kind.launches + share.launches
    with _Moved() as moved:
        step(next(batches))
    for kind_name, count in moved.bytes.items():
        kinds[kind_name].bytes = count
    costliest = sorted(names.items(), key=lambda item: -item[1].ms)[:_COSTLIEST]
    return {
        "step_time_median_ms": statistics.median(step_ms),
        "steps_measured": _RUNS * _STEPS,
        "samples": {
            "kinds": [
                {"kind": kind, "ms": s.ms / _STEPS, "launches": s.launches / _STEPS, "moved_mib": s.bytes / 2**20}
                for kind, s in sorted(kinds.items(), key=lambda item: -item[1].ms)
            ],
            "costliest": [
                {"name": name[:160], "kind": kind_of(name), "ms": s.ms / _STEPS, "launches": s.launches / _STEPS}
                for name, s in costliest
            ],
            "busy_ms": sum(share.ms for share in names.values()) / _STEPS,
            "step_ms": step_ms,
        },
    }


def _profiled(step: TrainStep, batches: Iterator[Batch]) -> dict[str, Share]:
    """Time and launches of each kernel, or on a CPU of each operator, over :data:`_STEPS` steps."""
    on_cuda = step.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities) as profiler:
        for _ in range(_STEPS):
            step(next(batches))
        synchronize(on_cuda)
    shares: dict[str, Share] = defaultdict(Share)
    for event in profiler.events() or ():
        names = ("ProfilerStep", "Optimizer.")
        if getattr(event, "is_user_annotation", False) or event.name.startswith(names):
            continue
        if (event.device_type == DeviceType.CUDA) != on_cuda:
            continue
        share = shares[event.name]
        share.ms += (event.time_range.elapsed_us() if on_cuda else event.self_cpu_time_total) / 1e3
        share.launches += 1
    return dict(shares)


class _Moved(Operations):
    """Counts the bytes of what operators are given and return, by kind of work."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[str, int] = defaultdict(int)  # by kind

    def seen(self, func: Any, given: Mapping[str, Any], result: Any) -> None:
        if not func.is_view:
            kind = kind_of(f"aten::{func.__name__.partition('.')[0]}")
            self.bytes[kind] += sum(tensor.nbytes for tensor in tensors_in((given, result)))


MEASURE = Measure(
    name="profile",
    words="where the time of a step goes, by kind of kernel",
    serve=profile_columns,
    cost=lambda _: 10.0,
)
