"""Measure ``run``: the time of a step, all arms of a job taking turns, beside predicted and allocated memory."""

import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed

from bench.core.cell import Cell
from bench.distributed.launch import relay, serves_ranks
from bench.distributed.step import ExchangedStep, RankTimer, build_exchanged
from bench.measures import Measure
from bench.measures.predict import predicted
from bench.measures.shapes import tensorized_shapes
from bench.processes.interleave import time_cells
from bench.protocol import Data, Outcome, RareEvent, Session, Workload
from bench.step.allocator import begin_peak, take_workspaces, workspaces_mib
from bench.step.timing import StepTimer, steady_allocator
from bench.step.train_step import TrainStep, batches_on, build_step
from bench.workloads import open_cell_workload

_BATCHES = 8  # different batches an arm cycles through while it is timed
_PASSES, _WARM_UP_BLOCKS = 3, 2.0  # over them before the first block on a CPU, within so many times a block's seconds


def _outcomes(cells: Sequence[Cell], session: Session) -> Iterator[list[Outcome]]:
    """Predict side by side, then time in interleaved blocks."""
    outcomes = sorted(predicted(cells, session.data, session.parallel), key=lambda outcome: cells.index(outcome.cell))
    time_cells(outcomes, time_cell, session)
    yield outcomes


def time_cell(connection: Connection, cell: Cell, data: Data) -> None:
    """Build the arm, warm it up, then serve requests until ``finish``.

    Answers ``("ready", columns)`` once, then ``("block", samples)`` to ``("block", steps)``, ``("rare", times)`` to
    ``("rare", None)`` and ``("energy", energy)`` to ``("energy", idle watts or None)``, by the methods of
    :class:`bench.step.timing.StepTimer`.
    """
    if serves_ranks(cell):
        relay(connection, cell, time_cell, data, combine=_of_all_ranks)
        return
    if cell.timing_settings.get("allocator") != "system":
        steady_allocator()
    timer, columns = _prepare(cell, data)
    connection.send(("ready", columns))
    while True:
        word, content = connection.recv()
        if word == "finish":
            return
        if word == "energy":
            connection.send((word, timer.energy(content)))
        else:
            connection.send((word, timer.block(content) if word == "block" else timer.rare()))


def _prepare(cell: Cell, data: Data) -> tuple[StepTimer, dict[str, Any]]:
    """Return the arm on its device after warm-up, and what is known of it by then."""
    workspaces = take_workspaces(cell.device)
    workload = open_cell_workload(cell, data)
    step = build_step(cell, workload) if cell.world_size == 1 else build_exchanged(cell, workload)
    events = [event for event in step.method.rare_events() if event.period_steps > 1]  # on every step, it is part of it
    timer = _timer(cell, workload, step, events)
    columns: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in step.model.parameters()),
        "arithmetic": step.arithmetic,
        "stored_mib": step.method.stored_size(step.model) / 2**20,
        "tensorized": tensorized_shapes(step.model),
        "rare_periods": {event.name: event.period_steps for event in events},
    }
    if cell.device == "cuda":
        columns["workspaces_mib"] = workspaces_mib(workspaces, captured=step.steps_before_capture > 0)
    columns |= _warm_up(cell, timer)
    return timer, columns | (timer.traffic() if isinstance(timer, RankTimer) else {})


def _timer(cell: Cell, workload: Workload, step: TrainStep, events: list[RareEvent]) -> StepTimer:
    if not isinstance(step, ExchangedStep):
        return StepTimer(step, batches_on(cell, workload, _BATCHES), events)
    [common] = batches_on(cell, workload, 1)
    batches = batches_on(cell, workload, _BATCHES, distributed.get_rank())
    return RankTimer(step, batches, events, common=common)


def _of_all_ranks(word: str, answers: list[Any]) -> Any:
    """Merge the answers of ranks that end each step together: the first one's, with the largest times and peaks."""
    answer = dict(answers[0])
    if word == "ready":
        largest = ("step_ms", "peak_memory_allocated_mib", "peak_memory_reserved_mib", "exchange_memory_mib")
        answer |= {name: max(each[name] for each in answers) for name in largest if name in answer}
    elif word == "block":
        slowest = {"ms", "compute_ms"} & set(answer)
        answer |= {
            name: [max(times) for times in zip(*(each[name] for each in answers), strict=True)] for name in slowest
        }
        answer["calibration_ms"] = max(each["calibration_ms"] for each in answers)
        if "calibration_cpu_ms" in answer:
            answer["calibration_cpu_ms"] = min(each["calibration_cpu_ms"] for each in answers)
    else:
        answer = {name: max(each[name] for each in answers) for name in answer}
    return answer


def _warm_up(cell: Cell, timer: StepTimer) -> dict[str, Any]:
    """Run the first steps; what they show of the step's time, of compile time and of memory.

    Steps that compile, those before a capture, and the first on a GPU, in which kernels are tuned with a buffer of
    256 MiB, are unlike the later ones. On a CPU every batch then has three turns, within the time of two blocks. CUDA
    Graph replays bypass the caching allocator, so peaks are counted from the step that is captured on.
    """
    times_compilation = cell.compile and cell.device == "cpu"  # on a GPU arms compile side by side
    if times_compilation:
        torch.compiler.config.force_disable_caches = True  # else an earlier cell would have compiled for this one
        warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")
    unlike = max(timer.step.steps_before_capture, int(cell.compile or cell.device == "cuda"))
    first_ms = timer.warm_up(min(unlike, 1))
    timer.warm_up(max(unlike - 1, 0))
    if cell.device == "cuda":
        begin_peak()
    least = 2 if unlike or cell.device == "cuda" else 1
    step_ms = timer.warm_up(max(cell.timing_settings["warmup_steps"] - unlike, least))
    if cell.device == "cpu" and cell.world_size == 1:
        # Sizes may depend on the batch, and the heap grows, at the cost of page faults, until it has seen the largest;
        # what calibration keeps lies in it too, and would else take the place of something in the first block.
        timer.calibrate()
        left_ms = _WARM_UP_BLOCKS * 1e3 * cell.timing_settings["block_seconds"]
        for _ in range(_PASSES * len(timer.batches)):
            if left_ms <= 0:
                break
            step_ms = timer.warm_up(1)
            left_ms -= step_ms
    columns: dict[str, Any] = {"step_ms": step_ms}
    if times_compilation:
        columns["compile_time_s"] = (first_ms - step_ms) / 1e3
    if cell.device == "cuda":
        unused = sum(tensor.nbytes for batch in timer.batches[1:] for tensor in batch.values())  # by the step
        columns["peak_memory_allocated_mib"] = (torch.cuda.max_memory_allocated() - unused) / 2**20
        columns["peak_memory_reserved_mib"] = torch.cuda.max_memory_reserved() / 2**20
    return columns


MEASURE = Measure(
    name="run",
    words="time of a step, arms side by side, with predicted and allocated memory",
    outcomes=_outcomes,
    paired=True,
    on_ranks=True,
)
