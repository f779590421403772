"""One traced step, and its memory moment by moment.

A moment is a stretch of the two steps in which the operations are alike however deep the model is: "the backward pass
of the last block", "the optimizer's step". Within a moment memory differs between two depths by the same bytes at every
operation, so the highest point of the moment lies on a line over the depth. The peak of a step is the highest of its
moments, which need not be the same one at every depth and batch; so lines are drawn per moment
(:mod:`bench.advise.linear`), not through peaks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bench.advise.model import stacks_of
from bench.estimate.memory import CATEGORIES, Category, StorageLedger, fake_training, trace_memory
from bench.estimate.work import TrafficMeter, WorkMeter
from bench.protocol import Method, Workload
from bench.step.train_step import TrainStep

FloatArray = npt.NDArray[np.float64]

#: What a trace counts beside memory.
NUMBERS = ("parameters", "stored", "flops", "kept", "read", "written")


class Moment(NamedTuple):
    """A stretch of one of the two steps (0 and 1), in the words that the answer shows."""

    step: int
    words: str


@dataclass(frozen=True)
class Trace:
    """Bytes that a step holds at each moment, and :data:`NUMBERS` of it, by name."""

    #: Bytes in use, (categories, births) of each moment: a column per storage that is born in it.
    moments: Mapping[Moment, FloatArray]
    numbers: Mapping[str, float]

    def peak(self) -> tuple[Moment, Mapping[Category, float]]:
        """Return the moment of the peak, and what is held then; the categories add up to the peak."""
        moment = max(self.moments, key=lambda each: self.moments[each].sum(axis=0).max())
        held = highest(self.moments[moment])[:, 0]
        return moment, dict(zip(CATEGORIES, map(float, held), strict=True))

    @property
    def peak_bytes(self) -> float:
        """Bytes at the peak."""
        return max(float(held.sum(axis=0).max()) for held in self.moments.values())


def highest(held: FloatArray) -> FloatArray:
    """Return the column with the most bytes, (categories, 1), of those of a moment."""
    birth = int(held.sum(axis=0).argmax())
    return held[:, birth : birth + 1]


def trace(
    workload: Workload,
    method: Method,
    batch_size: int,
    precision: str,
    device: str,
    checkpoint: bool = False,
    ends: int = 1,
    memory_alone: bool = False,
) -> Trace:
    """Trace two steps of a model, trained by a fresh ``method``, on fake tensors of ``device``, "cpu" or "cuda".

    So many blocks at the ``ends`` of a stack have moments of their own; those between have none. ``memory_alone``
    leaves out :data:`NUMBERS`, which a third of the time is spent on. Raises ValueError: as
    :func:`bench.estimate.memory.predict_memory` does.
    """
    with fake_training(workload, method, batch_size, precision, device, 0, checkpoint) as (step, batch):
        ledger = MomentLedger(step, ends)
        if memory_alone:
            trace_memory(step, batch, ledger=ledger)
            return Trace(ledger.moments(), dict.fromkeys(NUMBERS, 0.0))
        meter, traffic = WorkMeter(step), TrafficMeter(step, batch.values())
        memory = trace_memory(step, batch, meter, traffic, ledger=ledger)
        work, given = meter.work(), sum(tensor.untyped_storage().nbytes() for tensor in batch.values())
        moved = traffic.traffic(max(work.saved_for_backward - given, 0))
        moments = ledger.moments()
    numbers = (memory.parameter_count, memory.stored, work.flops_per_step, moved.kept, moved.read, moved.written)
    return Trace(moments, dict(zip(NUMBERS, map(float, numbers), strict=True)))


class MomentLedger(StorageLedger):
    """A ledger that also notes at which moment each storage is born; see :func:`trace` for ``ends``."""

    def __init__(self, step: TrainStep, ends: int) -> None:
        super().__init__(step)
        self._phase, self._place = "idle", ""
        self._born_at: list[Moment | None] = []  # by birth; None where no moment is
        stacks = stacks_of(step.model)
        for number, stack in enumerate(stacks, start=1):
            of = f" of stack {number}" if len(stacks) > 1 else ""
            for index, block in enumerate(stack):
                place = _block_words(index, len(stack), ends)
                place = place and place + of
                behind = "the output" if number == len(stacks) else "between the stacks"
                block.register_forward_pre_hook(self._note(place))
                block.register_forward_hook(self._after(place, behind if index == len(stack) - 1 else place))

    def _note(self, place: str) -> Callable[..., None]:
        def note(*_: Any) -> None:
            self._place = place

        return note

    def _after(self, place: str, behind: str) -> Callable[..., None]:
        """Build the hook behind a block: what comes next in forward, and that backward enters by its output."""

        def note(_module: Any, _arguments: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple | list) else output
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(self._note(place))
            self._place = behind

        return note

    def _book(self, tensor: torch.Tensor) -> Any:
        entry = super()._book(tensor)
        if len(self._born_at) < self._births:
            self._born_at.append(self._moment())
        return entry

    def _moment(self) -> Moment | None:
        phase, number = self._step.phase, self._step.number
        if phase != self._phase:  # a phase begins
            self._phase, self._place = phase, "the output" if phase == "backward" else "the input"
        if phase in ("forward", "backward"):
            return Moment(number, f"{phase} pass of {self._place}") if self._place else None
        if phase == "update":
            return Moment(number, "the optimizer's step")
        return Moment(number, "rare work of the optimizer" if number else "before the first step")

    def moments(self) -> dict[Moment, FloatArray]:
        """Return the bytes in use at each birth, (categories, births), by moment."""
        held = np.zeros((len(CATEGORIES), self._births + 2))  # what changes with each birth, from 1 on
        for entry in self._entries:
            row = CATEGORIES.index(entry.category)
            held[row, entry.born] += entry.bytes
            held[row, (self._births if entry.died is None else entry.died) + 1] -= entry.bytes
        held = held.cumsum(axis=1)
        births: dict[Moment, list[int]] = {}
        for birth, moment in enumerate(self._born_at, start=1):
            if moment is not None:
                births.setdefault(moment, []).append(birth)
        return {moment: held[:, columns] for moment, columns in births.items()}


def _block_words(index: int, depth: int, ends: int) -> str:
    """Name a block by its place from the nearer end; empty for one between the ends.

    >>> [_block_words(index, 5, ends=2) for index in range(5)]
    ['the first block', 'block 2', '', 'the last block but 1', 'the last block']
    """
    if index < ends:
        return f"block {index + 1}" if index else "the first block"
    behind = depth - 1 - index
    if behind < ends:
        return f"the last block but {behind}" if behind else "the last block"
    return ""
