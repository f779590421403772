"""Devices for which a step is predicted: their memory, and what bounds a step's time on them.

Rated values of GPUs, at rated boost clock, dense, no sparsity; products accumulate in float32:

* NVIDIA H100 and H200 data sheets and the Hopper architecture white paper (SXM5 boards);
* NVIDIA A100 data sheet (80 GB, SXM) and the Ampere architecture white paper;
* NVIDIA Ampere GA102 white paper, appendix A (GeForce RTX 3090).

What is sold as GB of GPU memory is GiB, less what error correction and firmware take. ``cpu`` is the machine at hand:
its memory is what is free now, its rates are measured when asked for (:func:`this_machine`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.core.memory import TOLERANCE
from bench.step.allocator import free_memory_mib

_GIB_MIB = 1024.0

#: MiB of a GPU that no tensor gets: driver and firmware, the CUDA context with its kernels, cuBLAS workspaces.
_CUDA_RESERVE_MIB = 1536.0

#: MiB of this machine's free memory that no tensor gets: the interpreter and its libraries.
_CPU_RESERVE_MIB = 512.0

#: Part of a predicted peak by which the allocator may exceed it, by kind of device.
ROUNDING = TOLERANCE

#: Sizes of what is timed on this machine: the sides of a square product, the bytes of a buffer, how often.
_SIDE, _BUFFER, _REPEATS = 1536, 2**28, 7

_CPU_CACHES = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Device:
    """What a device offers to a training step.

    Args:
        name: as a person reads it.
        kind: "cpu" or "cuda", the operations that it takes.
        memory_mib: of the device; of a CPU, what is free.
        reserve_mib: the part of it that is not for tensors.
        peak_flops: floating-point operations per second in matrix products, by precision.
        bandwidth: bytes per second between the device's memory and its last-level cache.
        cache: bytes of caches that keep data from one kernel to the next; None where that is not known.
        rates: where the rates come from.
    """

    name: str
    kind: str
    memory_mib: float
    reserve_mib: float
    peak_flops: Mapping[str, float]
    bandwidth: float
    cache: int | None
    rates: str = "rated"

    @property
    def room_mib(self) -> float:
        """The largest predicted peak that is taken to fit."""
        return max(self.memory_mib - self.reserve_mib, 0.0) / (1 + ROUNDING[self.kind])


def _gpu(name: str, memory_gib: float, fp32: float, tf32: float, bf16: float, terabytes: float, l2_mb: int) -> Device:
    """A GPU from its data sheet: peaks in TFLOP/s, bandwidth in TB/s."""
    peaks = {"fp32": fp32 * 1e12, "tf32": tf32 * 1e12, "bf16": bf16 * 1e12}
    memory = memory_gib * _GIB_MIB
    return Device(name, "cuda", memory, _CUDA_RESERVE_MIB, peaks, terabytes * 1e12, l2_mb * 2**20)


#: By the name that the command line takes; ``cpu`` is not among them, see :func:`device_named`.
GPUS: dict[str, Device] = {
    "a100": _gpu("NVIDIA A100 SXM, 80 GB", 80, 19.5, 156.0, 312.0, 2.039, 40),
    "h100": _gpu("NVIDIA H100 SXM, 80 GB", 80, 66.9, 494.7, 989.4, 3.35, 50),
    "h200": _gpu("NVIDIA H200 SXM, 141 GB", 140, 66.9, 494.7, 989.4, 4.8, 50),
    "rtx3090": _gpu("NVIDIA GeForce RTX 3090, 24 GB", 24, 35.6, 35.6, 71.2, 0.936, 6),
}

DEVICES = (*sorted(GPUS), "cpu")


def device_named(name: str, precision: str) -> Device:
    """The device of that name; ``cpu`` is measured for ``precision``, which takes a second or two.

    Raises:
        ValueError: a name that is none of :data:`DEVICES`.

    Example:
        >>> device_named("h100", "bf16").peak_flops["bf16"]
        989400000000000.0
    """
    if name not in DEVICES:
        raise ValueError(f"device is {name!r}; allowed: {', '.join(DEVICES)}.")
    return this_machine(precision) if name == "cpu" else GPUS[name]


def this_machine(precision: str) -> Device:
    """This machine's processor: free memory from the system, rates as the best of a few short measurements."""
    threads = torch.get_num_threads()
    return Device(
        name=f"this machine's processor, {threads} thread{'s' * (threads != 1)}",
        kind="cpu",
        memory_mib=free_memory_mib("cpu"),
        reserve_mib=_CPU_RESERVE_MIB,
        peak_flops={precision: _measured_flops(torch.bfloat16 if precision == "bf16" else torch.float32)},
        bandwidth=_measured_bandwidth(),
        cache=cache_bytes(),
        rates="measured just now",
    )


def _best_seconds(action: Callable[[], object]) -> float:
    """The shortest of a few runs, after one that does not count."""
    action()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def _measured_flops(dtype: torch.dtype) -> float:
    factor = torch.ones(_SIDE, _SIDE, dtype=dtype)
    result = torch.empty_like(factor)
    return 2 * _SIDE**3 / _best_seconds(lambda: torch.mm(factor, factor, out=result))


def _measured_bandwidth() -> float:
    """Bytes per second of a copy, which reads and writes, or of a sum, which reads; whichever is faster."""
    source = torch.ones(_BUFFER // 4)
    target = torch.empty_like(source)
    copied = 2 * _BUFFER / _best_seconds(lambda: target.copy_(source))
    return max(copied, _BUFFER / _best_seconds(source.sum))


def cache_bytes(root: Path = _CPU_CACHES) -> int | None:
    """All data caches of the processor in bytes, each once; None where the system does not tell."""
    found: dict[tuple[str, str, str], int] = {}
    for index in root.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level, kind, cpus, size = (
                (index / name).read_text(encoding="ascii").strip()
                for name in ("level", "type", "shared_cpu_list", "size")
            )
            unit = {"K": 2**10, "M": 2**20, "G": 2**30}[size[-1]]
            if kind != "Instruction":
                found[level, kind, cpus] = int(size[:-1]) * unit
        except (OSError, KeyError, ValueError, IndexError):
            return None
    return sum(found.values()) or None
