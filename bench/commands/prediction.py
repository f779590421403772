"""What is predicted of one training step on one device: the question, the answer, and the answer as text."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.errors import ConfigError
from bench.estimate.devices import ROUNDING, Device
from bench.estimate.largest import LIMIT, Largest, largest_batch
from bench.estimate.memory import CATEGORIES, predict_memory
from bench.estimate.roofline import Bound, Traffic, bound, predict_step
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
    """A step to be predicted.

    Args:
        title: what is trained, and how.
        workload: with batches of any size.
        method: makes the method, fresh for every prediction.
        view: batch size, sequence length, precision and kind of device.
        seed: of the batch.
        notes: what else there is to say about it.
        path: of the model, where a user has given one.
    """

    title: str
    workload: Workload
    method: Callable[[], Method]
    view: View
    seed: int
    notes: tuple[str, ...] = ()
    path: Path | None = None


@dataclass(frozen=True)
class Answer:
    """What is predicted; batch sizes are multiples of ``multiple``, and none beyond ``limit`` is tried."""

    question: Question
    device: Device
    prediction: Prediction
    traffic: Traffic
    bound: Bound
    multiple: int
    limit: int
    largest: Largest


class AnyBatch:
    """A workload with batches that may be larger than its data: rows then come again.

    Rows can be told from one another where every tensor of a batch has one per example, as it has not where examples
    of several lengths lie end to end. Batches are then no larger than the data.

    Attributes:
        limit: examples of the largest batch that is tried.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload, self.limit = workload, LIMIT
        if workload.training_examples is not None:
            few = min(workload.training_examples, _FEW)
            batch = next(iter(workload.batches("train", few, 0, static=True)))
            if any(tensor.shape[:1] != (few,) for tensor in batch.values()):
                self.limit = workload.training_examples

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:
        """One batch."""
        rows = min(batch_size, self._workload.training_examples or batch_size)
        if rows == self.limit < batch_size:
            raise ConfigError(f"batch_size is {batch_size}; allowed: 1 to the {rows} training rows.")
        batch = next(iter(self._workload.batches(split, rows, seed, static, start)))
        places = torch.arange(batch_size) % rows
        yield batch if rows == batch_size else {name: tensor[places] for name, tensor in batch.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)


def answer_to(question: Question, device: Device, report: Callable[[str], None]) -> Answer:
    """Predict the step itself, then as many others as it takes to find the largest batch.

    Args:
        question: the step.
        device: where it would run.
        report: receives progress messages.

    Raises:
        ConfigError: a batch larger than data whose rows cannot be repeated.
    """
    view = question.view
    workload: Any = AnyBatch(question.workload)

    def peak_mib(batch_size: int) -> float:
        if batch_size == view.batch_size:
            return prediction.memory.mib()["peak"]
        report(f"predicting batch {batch_size:,} ...")
        arguments = (batch_size, view.precision, view.device, question.seed)
        return predict_memory(workload, question.method(), *arguments).mib()["peak"]

    report(f"predicting batch {view.batch_size:,} ...")
    prediction, traffic = predict_step(
        workload, question.method(), view.batch_size, view.precision, view.device, question.seed
    )
    multiple = _multiple(question)
    return Answer(
        question,
        device,
        prediction,
        traffic,
        bound(prediction.work, traffic, device, view.precision),
        multiple,
        workload.limit,
        largest_batch(peak_mib, device.room_mib, multiple, workload.limit),
    )


def _multiple(question: Question) -> int:
    """The smallest batch that the method takes."""
    view, method = question.view, question.method()
    views = (View(size, view.sequence_length, view.precision, view.device) for size in _SMALLEST)
    return next((one.batch_size for one in views if method.unsupported(one) is None), view.batch_size)


def text_of(answer: Answer) -> str:
    """The answer as lines of text."""
    question, device, memory = answer.question, answer.device, answer.prediction.memory
    view, sizes = question.view, answer.prediction.memory.mib()
    length = [f"length {view.sequence_length:,}"] if view.sequence_length > 1 else []
    rows = [
        (", ".join([question.title, f"batch {view.batch_size:,}", *length, view.precision]), ""),
        (f"on {device.name}", ""),
        ("", ""),
        (f"peak memory, MiB (predicted on the operations of {view.device})", f"{sizes['peak']:,.1f}"),
        *((f"  {name}", f"{sizes[name]:,.1f}") for name in CATEGORIES),
        ("parameters", f"{memory.parameter_count:,}"),
        ("model as stored, MiB", f"{memory.stored / 2**20:,.1f}"),
        ("FLOPs of matrix products per step", f"{answer.prediction.work.flops_per_step:,}"),
        *_time_rows(answer),
    ]
    width = max(len(label) for label, value in rows if value)
    number = max(len(value) for _, value in rows)
    lines = [f"{label:<{width}}  {value:>{number}}" if value else label for label, value in rows]
    said = [*_fit_lines(answer), "", *question.notes, *_caveats(answer)]
    return "\n".join([*lines, "", *(textwrap.fill(line, _WIDTH, subsequent_indent="  ") for line in said), ""])


def _time_rows(answer: Answer) -> list[tuple[str, str]]:
    """Bytes and the bound on the time, with what it is made of."""
    device, times, precision = answer.device, answer.bound, answer.question.view.precision
    peak, rate = device.peak_flops[precision] / 1e12, device.bandwidth / 1e12
    parts = [(f"  operations at {peak:,.3g} TFLOP/s ({device.rates})", f"{times.operations_ms:,.3f}")]
    moved = []
    if device.cache is not None and times.traffic_ms is not None:
        compulsory = answer.traffic.compulsory(device.cache)
        moved = [(f"MiB that must move, beside {device.cache / 2**20:,.0f} MiB of cache", f"{compulsory / 2**20:,.1f}")]
        parts.append((f"  traffic at {rate:,.3g} TB/s ({device.rates})", f"{times.traffic_ms:,.3f}"))
    return [*moved, ("time of a step, ms: at least", f"{times.step_ms:,.3f}"), *parts]


def _fit_lines(answer: Answer) -> list[str]:
    """Whether the step fits, and the largest batch that does."""
    device, largest = answer.device, answer.largest
    peak = answer.prediction.memory.mib()["peak"]
    whose = "free on" if device.kind == "cpu" else "of"
    verdict = "fits" if peak <= device.room_mib else "does not fit"
    multiples = f", of multiples of {answer.multiple}" if answer.multiple > 1 else ""
    lines = [
        f"It {verdict}: {device.memory_mib:,.0f} MiB {whose} the device, less {device.reserve_mib:,.0f} MiB and "
        f"{ROUNDING[device.kind]:.0%}, leave room for a predicted peak of {device.room_mib:,.0f} MiB."
    ]
    if not largest.batch_size:
        lines.append(f"No batch fits: the smallest, {answer.multiple}, takes {largest.next_mib:,.0f} MiB.")
    elif largest.next_mib is None:
        lines.append(
            f"Largest batch that fits{multiples}: {largest.batch_size:,} at least; beyond {answer.limit:,} none is "
            "tried."
        )
    else:
        following = largest.batch_size + answer.multiple
        lines.append(
            f"Largest batch that fits{multiples}: {largest.batch_size:,} with {largest.peak_mib:,.0f} MiB; "
            f"{following:,} would take {largest.next_mib:,.0f} MiB."
        )
    return lines


def _caveats(answer: Answer) -> list[str]:
    """How the numbers are counted and what they leave out."""
    reserve = f"{answer.device.reserve_mib:,.0f} MiB"
    rounding = f"{ROUNDING[answer.device.kind]:.0%}"
    held = "the CUDA context, the driver" if answer.device.kind == "cuda" else "the interpreter and its libraries"
    return [
        f"Not modelled: the allocator's rounding and fragmentation, workspaces of kernels, {held}; {reserve} and "
        f"{rounding} are set aside for them.",
        "Bytes that must move: weights, optimizer state and batch read once, what the step changes written back once, "
        "what forward keeps for backward written and read once, each less what the caches can hold.",
        "The time is a bound over the whole step, the larger of its two parts; the overheads of kernels and of Python "
        "come on top, and a small step is made of them.",
    ]
