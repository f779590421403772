"""Measure ``witness``: the peak of the device's own allocator over the steps that a prediction is about.

The steps are those of :func:`bench.estimate.memory.trace_memory`: two whole ones, then those rare events of the method
that fell
due in neither. They run on real tensors, and the witness knows nothing of the prediction's bookkeeping: on a CPU it is
PyTorch's profiler, which hears of every allocation, those inside kernels too; on a GPU the allocator's own statistic.
What building the model took and gave back before the first step is not part of the peak.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch

from bench.core.cell import Cell
from bench.processes.interleave import Outcome
from bench.processes.process import CellFailure, CellProcess
from bench.processes.worker import first_line, status_of
from bench.protocol import Data
from bench.protocol.methods import build_for
from bench.step.allocator import begin_peak, take_workspaces
from bench.step.train_step import TrainStep
from bench.workloads import open_cell_workload

#: Time that the steps of a cell may take.
_LIMIT_S = 600.0

_STEPS = 2
_MIB = 2**20

#: The profiler's name for the steps, which tells them from building.
_MARK = "bench: steps"


def witnessed(outcome: Outcome, data: Data) -> Outcome:
    """Add the measured peak to the outcome of a prediction, from a process of its own."""
    cell = outcome.cell
    if outcome.status != "ok":
        return outcome
    need, free = outcome.columns["peak_memory_predicted_mib"], psutil.virtual_memory().available / _MIB
    if cell.device == "cpu" and need > free:
        outcome.fail(CellFailure("oom", f"needs {need:,.0f} MiB by prediction, {free:,.0f} MiB are free"))
        return outcome
    process = CellProcess(witness_cell, cell, data, _LIMIT_S)
    try:
        outcome.columns.update(process.answer())
        process.stop()
    except CellFailure as failure:
        outcome.fail(failure)
    return outcome


def witness_cell(connection: Connection, cell: Cell, data: Data) -> None:
    """Run the steps of a cell and answer ``("done", columns)``; what goes wrong as the other processes of cells do."""
    try:
        columns = {}
        if cell.device == "cpu":
            peak = cpu_peak(lambda: _prepared(cell, data))
        else:
            columns["workspaces_mib"] = take_workspaces(cell.device) / _MIB
            peak = cuda_peak(lambda: _prepared(cell, data))
        connection.send(("done", columns | {"peak_memory_allocated_mib": peak / _MIB}))
    except Exception as error:
        connection.send(("failed", (status_of(error), first_line(error))))


def _prepared(cell: Cell, data: Data) -> Callable[[], None]:
    """Build everything that is there before the first step; the steps, to be called once."""
    torch.manual_seed(cell.seed)
    workload, method = open_cell_workload(cell, data), build_for(cell)
    batch = next(iter(workload.batches("train", cell.batch_size, cell.seed, True)))
    batch = {name: tensor.to(cell.device) for name, tensor in batch.items()}
    model = method.adapt(workload.build(), workload.targets()).to(cell.device)
    optimizer = method.optimizer(model)
    step = TrainStep(model, method, optimizer, workload.loss, cell.precision, cell.device)

    def run() -> None:
        for _ in range(_STEPS):
            step(batch)
        for event in method.rare_events():
            if not any(number % event.period_steps == event.offset_steps for number in range(_STEPS)):
                event.run(model, optimizer)

    return run


def cpu_peak(prepare: Callable[[], Callable[[], None]]) -> int:
    """Bytes that the CPU's allocator had handed out at the peak of a piece of work.

    Args:
        prepare: makes what the work needs, and returns the work. What stays of it counts, what it gave back does not.

    Example:
        >>> def prepare():
        ...     torch.ones(1000, 1000)  # given back
        ...     weight = torch.ones(500)
        ...     return lambda: weight + weight.exp()
        >>> cpu_peak(prepare)
        6000
    """
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with profile:
        work = prepare()
        gc.collect()
        with torch.profiler.record_function(_MARK):
            work()
    assert profile.profiler is not None
    assert profile.profiler.kineto_results is not None
    events: list[Any] = sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    start = next(event.start_ns() for event in events if event.name() == _MARK)
    in_use = peak = 0
    for event in events:
        if event.name() == "[memory]":
            in_use += event.nbytes()
            peak = max(peak, in_use) if event.start_ns() >= start else in_use
    return peak


def cuda_peak(prepare: Callable[[], Callable[[], None]]) -> int:
    """The same of the GPU's allocator, as it tells by itself."""
    work = prepare()
    begin_peak()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()
