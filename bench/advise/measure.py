"""``python -m bench advise measure``: one block of the model's true width, run and timed on this machine.

The model has one block per stack and a vocabulary of 256, so that embedding and output layer weigh nothing beside the
block. Each arm has a process of its own, in which dense training takes turns with it; so a ratio is of steps under the
same conditions. On a GPU the energy of a step is counted as well. The peak of two steps is the allocator's own
(:mod:`bench.measures.allocator_peak`), beside the one that is predicted for the same block.
"""

import functools
import textwrap
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from bench.advise.arms import SMALL, AdvisedArm
from bench.advise.model import AdvisedModel
from bench.advise.moments import trace
from bench.advise.question import Question
from bench.commands.programs import aligned
from bench.core.reading import model_words
from bench.errors import TERMINAL, ConfigError
from bench.estimate.devices import GPUS
from bench.measures.allocator_peak import cpu_peak, cuda_peak, steps_of
from bench.processes.process import each, first_line
from bench.protocol import Batch, CellFailure
from bench.step.energy import Energy, energy_counter, energy_of, idle_power
from bench.step.low_precision import adapted_model
from bench.step.timing import mark, ms_between, synchronize, take_turns
from bench.step.train_step import TrainStep
from comera.low_precision.scaling import kernel_on

#: Words of the one-block model, in place of the user's vocabulary.
WORDS = 256

_WARM_UP, _TURNS = 2, 7  # steps before the first turn, turns of each arm


@dataclass(frozen=True)
class Times:
    """Medians over steps, in milliseconds; the arm's own term of the loss counts as backward."""

    forward_ms: float
    backward_ms: float
    optimizer_ms: float

    @property
    def step_ms(self) -> float:
        """The three together."""
        return self.forward_ms + self.backward_ms + self.optimizer_ms


@dataclass(frozen=True)
class MeasuredBlock:
    """Measurements of one arm on one block."""

    arm: str  # its name, with the ratio
    predicted: float = 0.0  # bytes of the predicted peak
    allocated: float = 0.0  # bytes of the allocator's peak
    times: Times | None = None  # None where only memory was asked for
    dense: Times | None = None  # of dense training in the same process
    energy: Energy | None = None  # None on a device without a counter, and where only memory was asked for
    dense_energy: Energy | None = None
    left_out: str = ""  # why nothing was measured; empty where it was

    @property
    def error(self) -> float:
        """How far the prediction is from the allocator's peak, as a share of it."""
        return self.predicted / self.allocated - 1


def one_block(question: Question) -> AdvisedModel:
    """Return the model of a question with one block per stack and :data:`WORDS` words."""
    block = AdvisedModel(question.model, question.sequence_length, question.task).shortened(1)
    block.config.vocab_size = WORDS
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if isinstance(getattr(block.config, name, None), int):
            setattr(block.config, name, 0)
    with torch.device("meta"):
        block.shapes = block.build()
    return block


def measure(question: Question, memory_alone: bool, report: Callable[[str], None]) -> list[MeasuredBlock]:
    """Measure every arm of a question on this machine, one after the other.

    Raises ConfigError: a GPU is asked for and this machine has none; a model that cannot be used.
    """
    if question.device in GPUS and not torch.cuda.is_available():
        raise ConfigError(f"device is {question.device!r}, but this machine has no CUDA device; use device=cpu.")
    threads = torch.get_num_threads()
    jobs = {str(arm): (question, arm, memory_alone, threads) for arm in question.arms}
    found: dict[str, MeasuredBlock] = {}
    for name, result in each(measured, jobs, parallel=1):
        found[name] = MeasuredBlock(name, left_out=str(result)) if isinstance(result, CellFailure) else result
        report(f"{len(found)} of {len(jobs)} arms: {name}")
    return [found[name] for name in jobs]


def measured(question: Question, arm: AdvisedArm, memory_alone: bool, threads: int) -> MeasuredBlock:
    """Measure one arm, in a process of its own: the real steps first, for fake tensors must not outlive a prediction.

    An arm that cannot train the block is left out with its reason.
    """
    torch.set_num_threads(threads)
    block = one_block(question)
    try:
        model = _model(arm, block)
        peak = cuda_peak if question.kind == "cuda" else cpu_peak
        allocated = peak(lambda: steps_of(*_step(question, model, arm)))
        timed = () if memory_alone else _timed(question, block, arm)
        batch, kind = question.batch_size, question.kind
        predicted = trace(model, arm.method(model), batch, question.precision, kind, arm.checkpoint).peak_bytes
    except ValueError as error:
        return MeasuredBlock(str(arm), left_out=str(error))
    except RuntimeError as error:
        return MeasuredBlock(str(arm), left_out=first_line(error))
    return MeasuredBlock(str(arm), predicted, allocated, *timed)


def _model(arm: AdvisedArm, block: AdvisedModel) -> AdvisedModel:
    """Return the block that an arm trains; raises ValueError: it has another number of blocks."""
    if arm.base == SMALL:
        raise ValueError("it has fewer blocks than the model, and one block of each is run; use advise.")
    [model] = arm.models(block)
    return model


def _step(question: Question, model: AdvisedModel, arm: AdvisedArm) -> tuple[TrainStep, Batch]:
    """Return the step of an arm with real weights, and a batch, on the device."""
    torch.manual_seed(0)
    method, device, precision = arm.method(model), question.kind, question.precision
    built = adapted_model(method, model.build(), model.targets(), precision, kernel_on(device)).to(device)
    step = TrainStep(built, method, method.optimizer(built), model.loss, precision, device, checkpoint=arm.checkpoint)
    batch = next(iter(model.batches("train", question.batch_size, 0, True)))
    return step, {name: tensor.to(device) for name, tensor in batch.items()}


def _timed(
    question: Question, model: AdvisedModel, arm: AdvisedArm
) -> tuple[Times, Times, Energy | None, Energy | None]:
    """Return the times of an arm and of dense training, which take turns, and on a GPU the energy of either's step."""
    on_cuda = question.kind == "cuda"
    arms = {"arm": arm, "dense": AdvisedArm("dense")}
    steps = {name: _step(question, _model(one, model), one) for name, one in arms.items()}
    turns = {name: _turn(*each, on_cuda) for name, each in steps.items()}
    for turn in turns.values():
        for _ in range(_WARM_UP):
            turn()
    parts = take_turns(turns, _TURNS)
    own, dense = (Times(*(median(part) for part in zip(*parts[name], strict=True))) for name in arms)
    counter = energy_counter() if on_cuda else None
    if counter is None:
        return own, dense, None, None
    idle_w = idle_power(counter, torch.cuda.synchronize)
    energies = {}
    for name, times in (("arm", own), ("dense", dense)):
        step, batch = steps[name]
        run = functools.partial(step, batch)
        energies[name] = energy_of(run, times.step_ms / 1e3, idle_w, counter, torch.cuda.synchronize)
    return own, dense, energies["arm"], energies["dense"]


def _turn(step: TrainStep, batch: Batch, on_cuda: bool) -> Callable[[], tuple[float, float, float]]:
    """Make a call that runs a step and returns its three parts in milliseconds."""
    loss, forward_ends = step.loss, deque[Any](maxlen=1)

    def marked(model: torch.nn.Module, given: Batch) -> torch.Tensor:
        value = loss(model, given)
        forward_ends.append(mark(on_cuda))
        return value

    step.loss = marked

    def run() -> tuple[float, float, float]:
        synchronize(on_cuda)
        start = mark(on_cuda)
        step.forward_backward(batch)
        backward_ends = mark(on_cuda)
        step.update()
        end = mark(on_cuda)
        synchronize(on_cuda)
        forward = forward_ends.pop()
        return ms_between(start, forward), ms_between(forward, backward_ends), ms_between(backward_ends, end)

    return run


def as_text(question: Question, rows: list[MeasuredBlock], memory_alone: bool) -> str:
    """Return what was measured as a table of memory, one of times, and where there is energy one of that."""
    blocks = [row for row in rows if not row.left_out]
    step = f"batch {question.batch_size:,}, {question.precision}, {question.kind}"
    title = textwrap.fill(f"One block of {model_words(question.model)}, {step}", TERMINAL)
    tables = {title: [("arm", "predicted MiB", "allocated MiB", "error"), *map(_memory_cells, blocks)]}
    if not memory_alone:
        headings = ("arm", "forward", "backward", "optimizer", "step", "over dense")
        tables["Times in ms, and the step's over dense's"] = [headings, *map(_time_cells, blocks)]
    if any(row.energy for row in blocks):
        tables["Energy of a step"] = [("arm", "J", "over dense"), *map(_energy_cells, blocks)]
    noise = [_noise(row.times, row.dense) for row in rows if row.arm == "dense" and row.times and row.dense]
    left_out = [f"{row.arm} is left out: {row.left_out}" for row in rows if row.left_out]
    below = [textwrap.fill(words, TERMINAL, subsequent_indent="  ") for words in (*noise, *left_out)]
    shown = [line for words, table in tables.items() for line in (words, "", *aligned(table), "")]
    return "\n".join([*(shown if blocks else (title, "")), *below, *([""] if below else [])])


def _noise(times: Times, dense: Times) -> str:
    """Say from the two times of dense training in one process which ratios mean nothing."""
    ratio = times.step_ms / dense.step_ms
    off = abs(ratio - 1)
    return f"Noise: dense over itself is {ratio:.2f}, so ratios from {1 - off:.2f} to {1 + off:.2f} show no difference."


def _memory_cells(row: MeasuredBlock) -> tuple[str, ...]:
    sizes = (f"{size / 2**20:,.1f}" for size in (row.predicted, row.allocated))
    return (row.arm, *sizes, f"{round(row.error, 4) + 0.0:+.2%}")


def _time_cells(row: MeasuredBlock) -> tuple[str, ...]:
    if row.times is None or row.dense is None:
        return (row.arm, *("-",) * 5)
    times = row.times
    parts = (times.forward_ms, times.backward_ms, times.optimizer_ms, times.step_ms)
    return (row.arm, *(f"{part:,.2f}" for part in parts), f"{times.step_ms / row.dense.step_ms:.2f}")


def _energy_cells(row: MeasuredBlock) -> tuple[str, ...]:
    if row.energy is None or row.dense_energy is None:
        return (row.arm, "-", "-")
    return (row.arm, f"{row.energy.energy_j:.3g}", f"{row.energy.energy_j / row.dense_energy.energy_j:.2f}")


def as_json(rows: list[MeasuredBlock]) -> list[dict[str, Any]]:
    """Return what was measured in plain values: bytes, milliseconds, joules of a step, watts, seconds."""
    return [{**asdict(row), "error": None if row.left_out else row.error} for row in rows]
