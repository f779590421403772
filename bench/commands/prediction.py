"""What is predicted of one training step on one device: the question, and the answer as text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.core.memory import TOLERANCE
from bench.errors import ConfigError
from bench.estimate.devices import Device
from bench.estimate.largest import LIMIT, largest_batch
from bench.estimate.memory import CATEGORIES, predict_memory
from bench.estimate.roofline import Traffic, bound, predict_step
from bench.estimate.work import Prediction
from bench.protocol import Batch, Method, Workload

#: Batch sizes among which the smallest that a method takes is looked for; what it takes are multiples of that one.
_SMALLEST = range(1, 1025)

#: Examples that are enough to see whether every tensor of a batch has a row for each.
_FEW = 3

#: Of a line of text.
_WIDTH = 110


@dataclass(frozen=True)
class View:
    """What a method may look at beforehand (:class:`bench.protocol.CellView`)."""

    batch_size: int
    sequence_length: int
    precision: str
    device: str


@dataclass(frozen=True)
class Question:
    """A step to be predicted."""

    title: str  # what is trained, and how
    workload: Workload  # with batches of any size
    method: Callable[[], Method]  # a fresh one for every prediction
    view: View
    seed: int  # of the batch
    notes: tuple[str, ...] = ()
    path: Path | None = None  # of the model, where a user has given one


class AnyBatch:
    """A workload with batches that may be larger than its data: rows then come again.

    Rows can be told from one another where every tensor of a batch has one per example, as it has not where examples
    of several lengths lie end to end. Batches are then no larger than the data. ``limit`` is the number of examples of
    the largest batch that is tried.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload, self.limit = workload, LIMIT
        if workload.training_examples is not None:
            few = min(workload.training_examples, _FEW)
            batch = next(iter(workload.batches("train", few, 0, static=True)))
            if any(tensor.shape[:1] != (few,) for tensor in batch.values()):
                self.limit = workload.training_examples

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:
        rows = min(batch_size, self._workload.training_examples or batch_size)
        if rows == self.limit < batch_size:
            raise ConfigError(f"batch_size is {batch_size}; allowed: 1 to the {rows} training rows.")
        batch = next(iter(self._workload.batches(split, rows, seed, static, start)))
        places = torch.arange(batch_size) % rows
        yield batch if rows == batch_size else {name: tensor[places] for name, tensor in batch.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)


def answer_to(question: Question, device: Device, report: Callable[[str], None]) -> str:
    """Predict the step itself, then as many others as it takes to find the largest batch; the answer as text.

    ``report`` receives progress messages.

    Raises:
        ConfigError: a batch larger than data whose rows cannot be repeated.
    """
    view, workload = question.view, AnyBatch(question.workload)

    def arguments(batch_size: int) -> Any:
        report(f"predicting batch {batch_size:,} ...")
        return workload, question.method(), batch_size, view.precision, view.device, question.seed

    prediction, traffic = predict_step(*arguments(view.batch_size))
    peak = prediction.memory.mib()["peak"]

    def peak_mib(batch_size: int) -> float:
        return peak if batch_size == view.batch_size else predict_memory(*arguments(batch_size)).mib()["peak"]

    method = question.method()
    accepted = (size for size in _SMALLEST if method.unsupported(replace(view, batch_size=size)) is None)
    multiple = next(accepted, view.batch_size)
    rows = [*_memory_rows(question, device, prediction), *_time_rows(view.precision, device, prediction, traffic)]
    width = max(len(label) for label, value in rows if value)
    number = max(len(value) for _, value in rows)
    lines = [f"{label:<{width}}  {value:>{number}}" if value else label for label, value in rows]
    sentences = [_fits(device, peak), _largest(peak_mib, device, multiple, workload.limit)]
    sentences += ["", *question.notes, *_caveats(device)]
    return "\n".join([*lines, "", *(textwrap.fill(one, _WIDTH, subsequent_indent="  ") for one in sentences), ""])


def _memory_rows(question: Question, device: Device, prediction: Prediction) -> list[tuple[str, str]]:
    """What is predicted, and its memory and work."""
    view, memory, sizes = question.view, prediction.memory, prediction.memory.mib()
    length = [f"length {view.sequence_length:,}"] if view.sequence_length > 1 else []
    return [
        (", ".join([question.title, f"batch {view.batch_size:,}", *length, view.precision]), ""),
        (f"on {device.name}", ""),
        ("", ""),
        (f"peak memory, MiB (predicted on the operations of {view.device})", f"{sizes['peak']:,.1f}"),
        *((f"  {name}", f"{sizes[name]:,.1f}") for name in CATEGORIES),
        ("parameters", f"{memory.parameter_count:,}"),
        ("model as stored, MiB", f"{memory.stored / 2**20:,.1f}"),
        ("FLOPs of matrix products per step", f"{prediction.work.flops_per_step:,}"),
    ]


def _time_rows(precision: str, device: Device, prediction: Prediction, traffic: Traffic) -> list[tuple[str, str]]:
    """Bytes and the bound on the time, with what it is made of."""
    times = bound(prediction.work, traffic, device, precision)
    peak, rate = device.peak_flops[precision] / 1e12, device.bandwidth / 1e12
    rows = [
        ("time of a step, ms: at least", f"{times.step_ms:,.3f}"),
        (f"  operations at {peak:,.3g} TFLOP/s ({device.rates})", f"{times.operations_ms:,.3f}"),
    ]
    if device.cache is None or times.traffic_ms is None:
        return rows
    moved = f"{traffic.compulsory(device.cache) / 2**20:,.1f}"
    return [
        (f"MiB that must move, beside {device.cache / 2**20:,.0f} MiB of cache", moved),
        *rows,
        (f"  traffic at {rate:,.3g} TB/s ({device.rates})", f"{times.traffic_ms:,.3f}"),
    ]


def _fits(device: Device, peak_mib: float) -> str:
    """Whether the step fits."""
    verdict = "fits" if peak_mib <= device.room_mib else "does not fit"
    return (
        f"It {verdict}: {device.memory_mib:,.0f} MiB {'free on' if device.kind == 'cpu' else 'of'} the device, less "
        f"{device.reserve_mib:,.0f} MiB and {TOLERANCE[device.kind]:.0%}, leave room for a predicted peak of "
        f"{device.room_mib:,.0f} MiB."
    )


def _largest(peak_mib: Callable[[int], float], device: Device, multiple: int, limit: int) -> str:
    """The largest batch that fits."""
    found = largest_batch(peak_mib, device.room_mib, multiple, limit)
    if not found.batch_size:
        return f"No batch fits: the smallest, {multiple}, takes {found.next_mib:,.0f} MiB."
    sentence = f"Largest batch that fits{f', of multiples of {multiple}' if multiple > 1 else ''}: {found.batch_size:,}"
    if found.next_mib is None:
        return f"{sentence} at least; beyond {limit:,} none is tried."
    following = f"{found.batch_size + multiple:,} would take {found.next_mib:,.0f} MiB"
    return f"{sentence} with {found.peak_mib:,.0f} MiB; {following}."


def _caveats(device: Device) -> list[str]:
    """How the numbers are counted and what they leave out."""
    held = "the CUDA context, the driver" if device.kind == "cuda" else "the interpreter and its libraries"
    return [
        f"Not modelled: the allocator's rounding and fragmentation, workspaces of kernels, {held}; "
        f"{device.reserve_mib:,.0f} MiB and {TOLERANCE[device.kind]:.0%} are set aside for them.",
        "Bytes that must move: weights, optimizer state and batch read once, what the step changes written back once, "
        "what forward keeps for backward written and read once, each less what the caches can hold.",
        "The time is a bound over the whole step, the larger of its two parts; the overheads of kernels and of Python "
        "come on top, and a small step is made of them.",
    ]
