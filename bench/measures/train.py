"""Measure ``train``: runs to the end of the workload's training plan; one that was stopped goes on where it was."""

from multiprocessing.connection import Connection
from typing import Any

from bench.core.cell import Cell
from bench.distributed.launch import relay, serves_ranks
from bench.distributed.state import is_first
from bench.measures import Measure
from bench.processes.process import CellProcess
from bench.protocol import CellFailure, Data, Outcome, Session, Workload
from bench.step.timing import steady_allocator
from bench.training.plan import training_cells
from bench.training.run import Report, TrainingRun, Upkeep
from bench.training.trained import predicted_columns, timed_columns
from bench.workloads import open_cell_workload
from comera import ranks_of


def train(cell: Cell, workload: Workload, upkeep: Upkeep, report: Report) -> dict[str, Any]:
    """Train a cell to its end and return its record's columns.

    Raises CheckpointError: a checkpoint that cannot be used; and as :meth:`TrainingRun.run`.
    """
    run = TrainingRun(cell, workload, upkeep, report)
    run.run()
    if not is_first():
        return {}
    columns = run.columns() | predicted_columns(cell, workload, ranks_of(run.model))
    timed = timed_columns(cell, workload, run.step) if run.is_cut and cell.world_size == 1 else {}
    if timed:
        columns["samples"]["step_ms"] = timed.pop("step_ms")
    return {**columns, **timed}


def train_cell(connection: Connection, cell: Cell, data: Data, upkeep: Upkeep) -> None:
    """Train a cell; answers ``("progress", {step, steps, at, text})`` now and then, at last ``("done", columns)``."""
    if serves_ranks(cell):
        relay(connection, cell, train_cell, data, upkeep, combine=lambda _, answers: answers[0])
        return
    steady_allocator()
    workload = open_cell_workload(cell, data)

    def report(progress: dict[str, Any]) -> None:
        if is_first():
            connection.send(("progress", progress))

    columns = train(cell, workload, upkeep, report)
    connection.send(("done", {"columns": columns}))


def _trained(cell: Cell, session: Session) -> Outcome:
    """Train one cell in a process of its own."""
    outcome = Outcome(cell)
    process = CellProcess(train_cell, cell, session.data, cell.training["time_limit_s"], session.upkeep(cell))
    done = 0.0
    try:
        while "columns" not in (answer := process.answer()):
            share = answer["step"] / answer["steps"]
            session.advance(cell, share - done, answer["at"])
            done = share
            if answer["text"]:
                session.note(cell, answer["text"])
        outcome.columns.update(answer["columns"])
        outcome.message = outcome.columns.pop("message", "")
    except CellFailure as failure:
        outcome.fail(failure)
    finally:
        process.stop()
    return outcome


def _unsupported(cell: Cell) -> str | None:
    """Explain why the batches of a cell cannot be captured; None if they can."""
    if cell.cuda_graph and cell.device == "cuda" and not cell.training["static"]:
        return "cuda_graph=true needs batches of one shape; use training.static=true or cuda_graph=false."
    return None


def _cost(cell: Cell) -> float:
    return float(sum(stage["steps"] for stage in cell.training["stages"]) * (1.0 + 0.05 * cell.batch_size))


MEASURE = Measure(
    name="train",
    words="training to the end: learning curve, sizes, steps of the trained model",
    outcomes=lambda cells, session: ([_trained(cell, session)] for cell in cells),  # one run after another
    unsupported=_unsupported,
    expand=lambda cell, config, workload: training_cells(cell, config["training"], workload),
    timed=False,
    resumes=True,
    on_ranks=True,
    cost=_cost,
)
