"""Cells that answer once, each in its own process, one after another or side by side."""

from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from bench.core.cell import Cell
from bench.core.record import COLUMNS
from bench.measures import Measure
from bench.processes.process import CellProcess
from bench.protocol import CellFailure, Data, Outcome, Session, Workload
from bench.step.timing import steady_allocator
from bench.workloads import open_cell_workload

#: What makes a record's columns from a cell and its workload.
Columns = Callable[[Cell, Workload], dict[str, Any]]

TIME_LIMIT_S = 600.0  # seconds that a cell may take where its settings have no limit


def _answer(connection: Connection, cell: Cell, data: Data, columns: Columns, one_thread: bool) -> None:
    """In a cell's process: answer once, with what ``columns`` makes."""
    steady_allocator()
    if one_thread:
        torch.set_num_threads(1)
    connection.send(("done", columns(cell, open_cell_workload(cell, data))))


def answers(
    columns: Columns,
    cells: Sequence[Cell],
    data: Data,
    parallel: int | None = None,
    time_limit_s: float | None = None,
) -> Iterator[Outcome]:
    """Outcomes of cells that answer once, as they are ready, each with what ``columns`` makes in its own process.

    Of ``parallel`` processes at a time each has one thread; None is for one after another, of as many as PyTorch takes.
    ``time_limit_s`` is that of a cell's timing settings unless it is given.
    """
    waiting = list(cells)
    running: dict[int, CellProcess] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (parallel or 1):
                cell = waiting.pop(0)
                limit = time_limit_s or cell.timing_settings.get("time_limit_s", TIME_LIMIT_S)
                running[id(cell)] = CellProcess(_answer, cell, data, limit, columns, parallel is not None)
            for key, process in list(running.items()):
                if process.answered(0.02):
                    yield _answered(process)
                    del running[key]
    finally:
        for process in running.values():
            process.stop()


def outcomes_of(measure: Measure, cells: Sequence[Cell], session: Session) -> Iterator[list[Outcome]]:
    """What becomes of the cells of a job; outcomes of one list are recorded together."""
    if measure.outcomes is not None:
        return measure.outcomes(cells, session)
    assert measure.serve is not None
    parallel = session.parallel if measure.parallel else None
    return ([outcome] for outcome in answers(measure.serve, cells, session.data, parallel))


def _answered(process: CellProcess) -> Outcome:
    """The outcome of a cell whose process has answered."""
    outcome = Outcome(process.cell)
    try:
        found = process.answer()
        process.stop()
        failure = found.pop("failure", "")
        if unknown := [name for name in found if name not in (*COLUMNS, "samples")]:
            found, failure = {}, f"records have no column {unknown[0]!r}; a measure's own values lie in samples"
        outcome.columns.update(found)
        if failure:
            outcome.fail(CellFailure("error", failure))
    except CellFailure as failed:
        outcome.fail(failed)
    return outcome
