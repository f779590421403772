"""Measure ``allocator_peak``: the peak of the device's own allocator over the steps that a prediction is about.

The steps are those of :func:`bench.estimate.memory.trace_memory`: two whole ones, then those rare events of the method
that fell due in neither. They run on real tensors and are counted without the bookkeeping of predictions: on a CPU by
PyTorch's profiler, which records every allocation, those inside kernels too; on a GPU by the allocator's own statistic.
What building the model took and gave back before the first step is not part of the peak.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from bench.core.cell import Cell
from bench.measures import Measure
from bench.measures.predict import plain_steps_only, predicted
from bench.processes.process import answers
from bench.protocol import Batch, CellFailure, Outcome, Session, Workload
from bench.step.allocator import begin_peak, free_memory_mib, take_workspaces
from bench.step.train_step import TrainStep, batches_on, build_step, rare_work

_STEPS = 2
_MIB = 2**20
_MARK = "bench: steps"  # the profiler's name for the steps, which sets them apart from building


def _outcomes(cells: Sequence[Cell], session: Session) -> Iterator[list[Outcome]]:
    """Predict side by side, then run the steps of one cell after another, where there is memory for them."""
    for outcome in list(predicted(cells, session.data, session.parallel)):
        if outcome.status == "ok" and outcome.cell.device == "cpu":
            need, free = outcome.columns["peak_memory_predicted_mib"], free_memory_mib("cpu")
            if need > free:
                outcome.fail(CellFailure("oom", f"needs {need:,.0f} MiB by prediction, {free:,.0f} MiB are free"))
        if outcome.status == "ok":
            [found] = answers(peak_columns, [outcome.cell], session.data)
            found.columns = outcome.columns | found.columns
            outcome = found
        yield [outcome]


def peak_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Return the peak over the steps of a cell."""
    if cell.device == "cpu":
        return {"peak_memory_allocated_mib": cpu_peak(lambda: _prepared(cell, workload)) / _MIB}
    workspaces = take_workspaces(cell.device)
    peak = cuda_peak(lambda: _prepared(cell, workload))
    return {"workspaces_mib": workspaces / _MIB, "peak_memory_allocated_mib": peak / _MIB}


def _prepared(cell: Cell, workload: Workload) -> Callable[[], None]:
    """Build everything that is there before the first step; the steps, to be called once."""
    [batch] = batches_on(cell, workload, 1)
    return steps_of(build_step(cell, workload), batch)


def steps_of(step: TrainStep, batch: Batch) -> Callable[[], None]:
    """Return the steps that a prediction is about, to be called: two whole ones, then rare events of neither."""

    def run() -> None:
        for _ in range(_STEPS):
            step(batch)
        for rare in rare_work(step, _STEPS):
            rare()

    return run


def cpu_peak(prepare: Callable[[], Callable[[], None]]) -> int:
    """Return the bytes that the CPU's allocator had handed out at the peak of a piece of work.

    ``prepare`` makes what the work needs, and returns the work. What stays of it counts, what it gave back does not.

    >>> def prepare():
    ...     torch.ones(1000, 1000)  # given back
    ...     weight = torch.ones(500)
    ...     return lambda: weight + weight.exp()
    >>> cpu_peak(prepare)
    6000
    """
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    gc.collect()  # garbage of before, given back within the profile, would be subtracted
    with profile:
        work = prepare()
        gc.collect()
        with torch.profiler.record_function(_MARK):
            work()
    results: Any = profile.profiler
    events = sorted(results.kineto_results.events(), key=lambda event: event.start_ns())
    start = next(event.start_ns() for event in events if event.name() == _MARK)
    in_use = peak = 0
    for event in events:
        if event.name() == "[memory]":
            in_use += event.nbytes()
            peak = max(peak, in_use) if event.start_ns() >= start else in_use
    return peak


def cuda_peak(prepare: Callable[[], Callable[[], None]]) -> int:
    """Return the bytes that the GPU's allocator had handed out at the peak, from its own statistic.

    The work is done once before it counts, since kernels are tuned at their first use, with a buffer of 256 MiB.
    """
    prepare()()
    work = prepare()
    begin_peak()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


MEASURE = Measure(
    name="allocator_peak",
    words="predicted memory beside the peak of the device's allocator",
    outcomes=_outcomes,
    unsupported=plain_steps_only,
    timed=False,
    cost=lambda cell: 1.0 + 0.2 * cell.batch_size,
)
