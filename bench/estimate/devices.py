"""Devices for which a step is predicted: their memory, and what bounds a step's time on them.

Rated values of GPUs, at rated boost clock, dense, no sparsity, products accumulated in float32, are from NVIDIA's data
sheets of H100 and H200 (SXM5), A100 (80 GB, SXM) and L4, the white papers of the Hopper and Ampere architectures, that
of GA102, appendix A (GeForce RTX 3090), and that of the Ada architecture, appendix A (GeForce RTX 4090). Where a device
has no rate for a precision, its tensor cores do not multiply that format.

What is sold as GB of GPU memory is GiB, less what error correction and firmware take. ``cpu`` is the machine at hand:
its memory is what is free now, its rates are measured when asked for (:func:`this_machine`).
"""

import itertools
import timeit
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.estimate.memory import TOLERANCE
from bench.step.allocator import free_memory_mib
from bench.step.low_precision import RATES

#: MiB that no tensor gets: of a GPU driver and firmware, the CUDA context with its kernels, cuBLAS workspaces; of this
#: machine's free memory the interpreter and its libraries.
_RESERVE_MIB = {"cuda": 1536.0, "cpu": 512.0}

#: Sizes of what is timed on this machine: the sides of a square product, the bytes of a buffer, how often.
_SIDE, _BUFFER, _REPEATS = 1536, 2**28, 7
LIMIT = 65_536  # batches beyond this one are not looked at, unless another limit is given

#: The second batch looked at, and how far a next one may lie beyond the largest that is known to fit: at small batches
#: weights and their states make the peak, so the line through them is no guide to large ones.
_REACH = 16


@dataclass(frozen=True)
class Device:
    """Memory, rates and bandwidth that a device offers to a training step."""

    name: str  # as a person reads it
    kind: str  # "cpu" or "cuda", the operations that it takes
    memory_mib: float  # of a CPU, what is free
    peak_flops: Mapping[str, float]  # floating-point operations per second in matrix products, by precision
    bandwidth: float  # bytes per second between the device's memory and its last-level cache
    cache: int | None  # bytes of caches that keep data from one kernel to the next; None where that is not known
    rates: str = "rated"  # where the rates come from

    def peak(self, precision: str) -> float | None:
        """Return the rate of products in a precision, in operations per second; None where the device has none.

        >>> GPUS["h100"].peak("fp8"), GPUS["rtx3090"].peak("fp8")
        (1978900000000000.0, None)
        """
        return self.peak_flops.get(RATES[precision])

    @property
    def reserve_mib(self) -> float:
        """The part of the memory that is not for tensors."""
        return _RESERVE_MIB[self.kind]

    @property
    def room_mib(self) -> float:
        """The largest predicted peak that is taken to fit, as the allocator may exceed it by some percent."""
        return max(self.memory_mib - self.reserve_mib, 0.0) / (1 + TOLERANCE[self.kind])


def _gpu(name: str, memory_gib: float, peaks: str, terabytes: float, l2_mb: int) -> Device:
    """Return a GPU from its data sheet: peaks of FP32, TF32, BF16 and FP8 in TFLOP/s, bandwidth in TB/s."""
    rates = {
        name: float(rate) * 1e12 for name, rate in zip(("fp32", "tf32", "bf16", "fp8"), peaks.split(), strict=False)
    }
    return Device(name, "cuda", memory_gib * 1024, rates, terabytes * 1e12, l2_mb * 2**20)


#: By the name that the command line takes; ``cpu`` is not among them, see :func:`device_named`.
GPUS: dict[str, Device] = {
    "a100": _gpu("NVIDIA A100 SXM, 80 GB", 80, "19.5 156 312", 2.039, 40),
    "h100": _gpu("NVIDIA H100 SXM, 80 GB", 80, "66.9 494.7 989.4 1978.9", 3.35, 50),
    "h200": _gpu("NVIDIA H200 SXM, 141 GB", 140, "66.9 494.7 989.4 1978.9", 4.8, 50),
    "l4": _gpu("NVIDIA L4, 24 GB", 24, "30.3 60.5 121 242.5", 0.3, 48),
    "rtx3090": _gpu("NVIDIA GeForce RTX 3090, 24 GB", 24, "35.6 35.6 71.2", 0.936, 6),
    "rtx4090": _gpu("NVIDIA GeForce RTX 4090, 24 GB", 24, "82.6 82.6 165.2 330.3", 1.008, 72),
}

DEVICES = (*sorted(GPUS), "cpu")


def device_named(name: str, precision: str) -> Device:
    """Return the device of that name; ``cpu`` is measured for ``precision``, which takes a second or two.

    Raises ValueError: a name that is none of :data:`DEVICES`.

    >>> device_named("h100", "bf16").peak_flops["bf16"]
    989400000000000.0
    """
    if name not in DEVICES:
        raise ValueError(f"device is {name!r}; allowed: {', '.join(DEVICES)}.")
    return this_machine(precision) if name == "cpu" else GPUS[name]


def this_machine(precision: str) -> Device:
    """Describe this machine's processor: free memory from the system, rates as the best of a few short measurements."""
    threads = torch.get_num_threads()
    rate = RATES[precision]  # FP8 is emulated by products in float32
    factor = torch.ones(_SIDE, _SIDE, dtype=torch.bfloat16 if rate == "bf16" else torch.float32)
    result = torch.empty_like(factor)
    source = torch.ones(_BUFFER // 4)
    target = torch.empty_like(source)
    copied = 2 * _BUFFER / _best_seconds(lambda: target.copy_(source))  # reads and writes
    return Device(
        name=f"this machine's processor, {threads} thread{'s' * (threads != 1)}",
        kind="cpu",
        memory_mib=free_memory_mib("cpu"),
        peak_flops={rate: 2 * _SIDE**3 / _best_seconds(lambda: torch.mm(factor, factor, out=result))},
        bandwidth=max(copied, _BUFFER / _best_seconds(source.sum)),
        cache=cache_bytes(),
        rates="measured just now",
    )


def _best_seconds(action: Callable[[], object]) -> float:
    """Return the shortest time of a few runs; a first run does not count."""
    return min(timeit.repeat(action, number=1, repeat=1 + _REPEATS)[1:])


def cache_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Return the bytes of all data caches of the processor, each once; None if the system has no such files."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    found: dict[tuple[str, ...], int] = {}
    for index in root.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            size, *cache = (
                (index / name).read_text(encoding="ascii").strip()
                for name in ("size", "level", "type", "shared_cpu_list")
            )
            if "Instruction" not in cache:
                found[tuple(cache)] = int(size[:-1]) * units[size[-1]]
        except (OSError, KeyError, ValueError, IndexError):
            return None
    return sum(found.values()) or None


@dataclass(frozen=True)
class Largest:
    """The largest batch that fits, with its peak, and the peak of the next one, which does not.

    ``batch_size`` is 0 where not even the smallest fits; ``next_mib`` is None where the search ended before it met a
    batch that does not.
    """

    batch_size: int
    peak_mib: float
    next_mib: float | None


def largest_batch(
    peak_mib: Callable[[int], float],
    room_mib: float,
    multiple: int = 1,
    most: int = LIMIT,
    known: MutableMapping[int, float] | None = None,
) -> Largest:
    """Find the batch, a ``multiple``, that fits while the next does not, in as few calls of ``peak_mib`` as can be.

    ``known`` has peaks by batch that need not be asked for; those that were asked for are added.

    >>> largest_batch(lambda batch: 100 + 3.5 * batch, room_mib=1000)
    Largest(batch_size=257, peak_mib=999.5, next_mib=1003.0)
    """
    known = {} if known is None else known

    def peak(count: int) -> float:
        batch = count * multiple
        if batch not in known:
            known[batch] = peak_mib(batch)
        return known[batch]

    if peak(1) > room_mib:
        return Largest(0, 0.0, peak(1))
    limit = max(most // multiple, 1)
    asked = sorted(batch // multiple for batch in known if batch % multiple == 0 and 0 < batch <= limit * multiple)
    fitting = [0, *itertools.takewhile(lambda count: peak(count) <= room_mib, asked)]
    below, low = fitting[-2:]
    high = next(iter(asked[len(fitting) - 1 :]), limit + 1)  # does not fit, or is beyond the limit
    turn = 0
    while low < limit and high - low > 1:
        if high <= limit:  # between one that fits and one that does not
            share = (room_mib - peak(low)) / (peak(high) - peak(low))
            guess = (low + high) // 2 if turn % 3 == 2 else low + int(share * (high - low))
            guess, turn = min(max(guess, low + 1), high - 1), turn + 1
        else:
            slope = (peak(low) - peak(below)) / (low - below) if below else 0.0
            guess = low + int((room_mib - peak(low)) / slope) if slope > 0 else low * _REACH
            guess = min(max(guess, low + 1), low * _REACH, limit)
        if peak(guess) <= room_mib:
            below, low = low, guess
        else:
            high = guess
    return Largest(low * multiple, peak(low), peak(high) if high <= limit else None)
