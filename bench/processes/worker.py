"""What runs inside a cell's own process: a prediction, a training run, an arm timed block by block on request, or
whatever else answers once.

Messages are plain tuples of a word and its content. Whatever goes wrong is answered as
``("failed", (status, message))``.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch

from bench.core.cell import Cell
from bench.estimate.work import predict
from bench.measures.check import check_columns
from bench.measures.plan import plan_columns
from bench.measures.products import products_columns
from bench.measures.profile import profile_columns
from bench.measures.shapes import tensorized_shapes
from bench.measures.training import OutOfTime, Upkeep, train
from bench.protocol import Batch, Data, Method
from bench.protocol.methods import build
from bench.step.allocator import begin_peak, bytes_of, take_workspaces
from bench.step.forward_backward import ForwardBackward
from bench.step.timing import Diverged, StepTimer, steady_allocator
from bench.step.train_step import TrainStep
from bench.workloads import open_cell_workload

#: Measures that answer once, with what gives a cell's columns.
ONCE: dict[str, Callable[[Cell, Any], dict[str, Any]]] = {
    "check": check_columns,
    "plan": plan_columns,
    "products": products_columns,
    "profile": profile_columns,
}

#: Different batches an arm cycles through while it is timed.
_BATCHES = 8


def _method(cell: Cell) -> Method:
    method = build(cell.method, cell.variant, cell.method_settings)
    return method if cell.workload_settings.get("optimizer_step", True) else ForwardBackward(method)


@contextlib.contextmanager
def _failures_reported(connection: Connection) -> Iterator[None]:
    """Answer any exception with a status and one line."""
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the coordinator is gone, so is the reason to go on
    except Exception as error:
        connection.send(("failed", (status_of(error), first_line(error))))


def status_of(error: BaseException) -> str:
    """The record status that an exception amounts to."""
    if isinstance(error, Diverged):
        return "diverged"
    if isinstance(error, OutOfTime):
        return "timeout"
    no_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if no_memory or "DefaultCPUAllocator" in str(error) or "can't allocate memory" in str(error):
        return "oom"
    return "error"


def first_line(error: BaseException) -> str:
    """Type and first line of an exception, at most 300 characters."""
    text = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {text}"[:300]


def predict_cell(connection: Connection, cell: Cell, data: Data) -> None:
    """Predict memory and work of a cell on fake tensors and answer ``("done", columns)``."""
    with _failures_reported(connection):
        torch.set_num_threads(1)
        result = predict(
            open_cell_workload(cell, data), _method(cell), cell.batch_size, cell.precision, cell.device, cell.seed
        )
        connection.send(("done", result.columns()))


def time_cell(connection: Connection, cell: Cell, data: Data) -> None:
    """Build the arm, warm it up, then serve requests until ``finish``.

    Answers ``("ready", columns)`` once, then ``("block", samples)`` to ``("block", steps)`` and ``("rare", times)`` to
    ``("rare", None)``.
    """
    with _failures_reported(connection):
        if cell.timing_settings.get("allocator") != "system":
            steady_allocator()
        timer, columns = _prepare(cell, data)
        connection.send(("ready", columns))
        while True:
            word, content = connection.recv()
            if word == "finish":
                return
            connection.send((word, timer.block(content) if word == "block" else timer.rare()))


def train_cell(connection: Connection, cell: Cell, data: Data, upkeep: Upkeep) -> None:
    """Train a cell; answers ``("progress", {step, steps, text})`` now and then, at last ``("done", columns)``."""
    with _failures_reported(connection):
        steady_allocator()
        workload = open_cell_workload(cell, data)
        columns = train(cell, workload, upkeep, lambda progress: connection.send(("progress", progress)))
        connection.send(("done", {"columns": columns}))


def measure_once(connection: Connection, cell: Cell, data: Data) -> None:
    """Measure a cell whose measure is one of :data:`ONCE` and answer ``("done", columns)``."""
    with _failures_reported(connection):
        steady_allocator()
        if cell.measure == "check":  # several run at a time
            torch.set_num_threads(1)
        connection.send(("done", ONCE[cell.measure](cell, open_cell_workload(cell, data))))


def _prepare(cell: Cell, data: Data) -> tuple[StepTimer, dict[str, Any]]:
    """The arm on its device after warm-up, and what is known of it by then."""
    workspaces = take_workspaces(cell.device)
    torch.manual_seed(cell.seed)
    workload = open_cell_workload(cell, data)
    method = _method(cell)
    model = method.adapt(workload.build(), workload.targets()).to(cell.device)
    toggles = (cell.precision, cell.device, cell.cuda_graph, cell.compile)
    step = TrainStep(model, method, method.optimizer(model), workload.loss, *toggles)
    stream = workload.batches("train", cell.batch_size, cell.seed, static=True)
    batches: list[Batch] = [
        {name: tensor.to(cell.device) for name, tensor in batch.items()} for batch in itertools.islice(stream, _BATCHES)
    ]
    events = [event for event in method.rare_events() if event.period_steps > 1]  # on every step, it is part of it
    timer = StepTimer(step, batches, events)
    columns: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "stored_mib": method.stored_size(model) / 2**20,
        "tensorized": tensorized_shapes(model),
        "rare_periods": {event.name: event.period_steps for event in events},
    }
    if cell.device == "cuda":
        columns["workspaces_mib"] = workspaces / 2**20
    return timer, columns | _warm_up(cell, timer)


def _warm_up(cell: Cell, timer: StepTimer) -> dict[str, Any]:
    """Run the first steps; what they tell of the step's time, of compile time and of memory.

    Steps that compile, and those before a capture, are unlike the later ones: peaks are counted from the step that is
    captured on, since the allocator hears nothing of a replay.
    """
    columns: dict[str, Any] = {}
    if cell.compile:
        torch.compiler.config.force_disable_caches = True  # else an earlier cell would have compiled for this one
        warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")
    unlike = max(timer.step.steps_before_capture, int(cell.compile))
    first_ms = timer.warm_up(min(unlike, 1))
    timer.warm_up(max(unlike - 1, 0))
    if cell.device == "cuda":
        begin_peak()
    columns["step_ms"] = timer.warm_up(max(cell.timing_settings["warmup_steps"] - unlike, 2 if unlike else 1))
    if cell.compile:
        columns["compile_time_s"] = (first_ms - columns["step_ms"]) / 1e3
    if cell.device == "cuda":
        unused = bytes_of(timer.batches[1:])  # beside the step's own batch
        columns["peak_memory_allocated_mib"] = (torch.cuda.max_memory_allocated() - unused) / 2**20
        columns["peak_memory_reserved_mib"] = torch.cuda.max_memory_reserved() / 2**20
    return columns
