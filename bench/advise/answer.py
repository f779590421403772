"""A row per arm: its step predicted on the device, side by side in as many processes as there are processors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from bench.advise.arms import NARROW, SMALL, AdvisedArm
from bench.advise.evidence import Evidence, GapRange, evidence
from bench.advise.linear import Steps
from bench.advise.model import AdvisedModel
from bench.advise.question import Question
from bench.core.reading import model_words
from bench.errors import ConfigError
from bench.estimate.devices import GPUS, Device
from bench.estimate.memory import Category
from bench.estimate.work import Traffic, Work, bound
from bench.processes.process import WorkProcess, first_line, packed, side_by_side
from bench.protocol import CellFailure
from bench.step.allocator import free_memory_mib
from bench.step.unsupported import StepCell, unsupported

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class AnswerRow:
    """Predictions for one arm, and what is measured of it."""

    arm: AdvisedArm
    parameters: int = 0  # of the model as the arm trains it, frozen ones included
    moment: str = ""  # when the peak is reached
    memory: Mapping[Category, float] = field(default_factory=dict)  # bytes at that moment; they add up to the peak
    largest: int = 0  # the largest batch that fits; 0 where none does
    flops: int = 0  # of a step's products
    least_ms: float | None = None  # lower bound on the time of a step; None where the device's rates are not known
    bound_by: str = ""  # "products" or "memory traffic", which of both takes the least time
    gap: Mapping[str, GapRange] = field(default_factory=dict)  # in nats above dense training, by optimizer
    shape: str = ""  # blocks and columns of a smaller dense model, and the peaks of its other shapes
    left_out: str = ""  # why nothing was predicted; empty where it was

    @property
    def peak(self) -> float:
        """Bytes at the peak."""
        return sum(self.memory.values())

    def fits(self, batch_size: int) -> bool:
        """Return whether a batch fits."""
        return not self.left_out and batch_size <= self.largest


@dataclass(frozen=True)
class Answer:
    """The rows of all arms, and what they are of."""

    question: Question
    model: str  # in words, with its task
    blocks: int  # of its deepest stack
    sequence_length: int  # tokens of a row
    traced: tuple[int, int]  # depths that were traced; equal ones are the whole model
    device: Device  # with the memory that was asked for
    rows: tuple[AnswerRow, ...]  # in the order of the table
    evidence: Evidence | None  # the measured gaps, None without records
    left_out: tuple[str, ...] = ()  # sentences on what of the configuration is not predicted

    @property
    def predicted(self) -> list[AnswerRow]:
        """The rows that were not left out."""
        return [row for row in self.rows if not row.left_out]

    @property
    def dense(self) -> AnswerRow | None:
        """The row of plain dense training, where it was predicted."""
        return next((row for row in self.predicted if row.arm.name == "dense"), None)


def answer_to(question: Question, report: Callable[[str], None]) -> Answer:
    """Predict every arm of a question; ``report`` receives how far it is.

    Raises ConfigError: a model that cannot be used, or one that no arm can train.
    """
    cpu = Device("a CPU", "cpu", free_memory_mib("cpu"), {}, 0.0, None, "not measured")
    device = GPUS.get(question.device, cpu)
    if question.memory_gib is not None:
        device = replace(device, memory_mib=1024 * question.memory_gib)
    count = side_by_side(len(question.arms))
    report(f"reading the model; {len(question.arms)} arms, {count} at a time ...")
    shares = [question.arms[number::count] for number in range(count)]
    waiting = [WorkProcess(packed(_serve, replace(question, arms=share), device)) for share in shares]
    left = {process: len(share) for process, share in zip(waiting, shares, strict=True)}
    facts: dict[str, Any] = {}
    rows: dict[AdvisedArm, AnswerRow] = {}
    try:
        while left:
            WorkProcess.wait_for_any(list(left))
            for process in [process for process in left if process.answered()]:
                word, content = process.answer()
                if word == "model":
                    facts = content
                    continue
                rows[content.arm] = content
                left[process] -= 1
                report(f"{len(rows)} of {len(question.arms)} arms: {content.arm}")
                if not left[process]:
                    del left[process]
    except CellFailure as failure:
        raise ConfigError(f"model is {model_words(question.model)!r}, which cannot be predicted ({failure}).") from None
    finally:
        for process in waiting:
            process.stop()
    if all(row.left_out for row in rows.values()):
        first = rows[question.arms[0]]
        raise ConfigError(f"model is {model_words(question.model)!r}, which no arm can train: {first.left_out}")
    return Answer(question, device=device, rows=tuple(rows[arm] for arm in question.arms), evidence=evidence(), **facts)


def _serve(connection: Connection, question: Question, device: Device) -> None:
    """In a process of its own: read the model, then answer row by row."""
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    model = AdvisedModel(question.model, question.sequence_length, question.task)
    facts = {"model": model.words.model, "blocks": model.blocks, "traced": model.depths, "left_out": model.left_out}
    connection.send(("done", ("model", facts | {"sequence_length": model.sequence_length})))
    for arm in question.arms:
        connection.send(("done", ("row", row_of(question, model, arm, device))))


def row_of(question: Question, model: AdvisedModel, arm: AdvisedArm, device: Device) -> AnswerRow:
    """Predict one arm; an arm that cannot train the model is left out with its reason.

    Of an arm that may have several shapes, one whose loss is on record is taken before others, then the lowest peak.
    """
    try:
        rows = [_row_of(question, each, arm, device) for each in arm.models(model)]
    except ValueError as error:
        return AnswerRow(arm, left_out=str(error))
    best, *others = sorted(rows, key=lambda row: (bool(row.left_out), not row.gap, row.peak))
    peaks = [f"{other.shape} would peak at {other.peak / GIB:,.2f} GiB" for other in others if not other.left_out]
    return replace(best, shape="; ".join([best.shape, *peaks]))


def _row_of(question: Question, model: AdvisedModel, arm: AdvisedArm, device: Device) -> AnswerRow:
    """Predict an arm on the model that it trains."""
    steps = Steps(model, arm.method, question.precision, device.kind, arm.checkpoint)
    asked = question.batch_size, question.precision, device.kind, model.sequence_length, arm.checkpoint
    try:
        if reason := unsupported(StepCell(*asked), arm.method(model), model.shapes, model.targets()):
            return AnswerRow(arm, left_out=reason)
        step = steps.at(question.batch_size)
        largest = steps.largest_batch(step, question.batch_size, device.room_mib * MIB)
    except Exception as error:  # of an arm's own over the model, or of its trace
        return AnswerRow(arm, left_out=str(error) if isinstance(error, ValueError) else first_line(error))
    moment, memory = step.peak()
    numbers = {name: round(value) for name, value in step.numbers.items()}
    gap = found.gap(arm, model.share) if (found := evidence()) else {}
    shape = model.shape if arm.base in (NARROW, SMALL) else ""
    counts = numbers["parameters"], moment.words, memory, largest, numbers["flops"]
    row = AnswerRow(arm, *counts, gap=gap, shape=shape)
    if not device.peak_flops:
        return row
    traffic = Traffic(numbers["read"], numbers["written"], numbers["kept"])
    least = bound(Work(numbers["flops"], numbers["kept"]), traffic, device, question.precision)
    by = "products" if least.operations_ms >= (least.traffic_ms or 0.0) else "memory traffic"
    return replace(row, least_ms=least.step_ms, bound_by=by)
