"""Measure ``predict``: memory and work of a step, computed on fake tensors, for a device that need not be there."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench.core.cell import Cell
from bench.estimate.work import predict
from bench.measures import Measure
from bench.processes.process import answers
from bench.protocol import Data, Outcome, Session, Workload
from bench.protocol.methods import build_for
from bench.step.unsupported import toggle_unsupported

_LIMIT_S = 1800.0


def predicted_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Predict memory and work of a cell's steps."""
    asked = (cell.batch_size, cell.precision, cell.device, cell.seed, cell.checkpoint)
    return {**predict(workload, build_for(cell), *asked).columns()}


def predicted(cells: Sequence[Cell], data: Data, parallel: int) -> Iterator[Outcome]:
    """Yield outcomes of predictions, ``parallel`` processes at a time."""
    return answers(predicted_columns, cells, data, parallel, _LIMIT_S)


def traced(
    columns: Callable[[Cell, Workload], dict[str, Any]], cells: Sequence[Cell], session: Session
) -> Iterator[list[Outcome]]:
    """Yield outcomes of cells, each as a list, from a function that makes the columns of a record."""
    return ([outcome] for outcome in answers(columns, cells, session.data, session.parallel, _LIMIT_S))


def plain_steps_only(cell: Cell) -> str | None:
    """Explain why the steps of a cell are not modelled; None if they are."""
    return toggle_unsupported(cell, "is not modelled in predictions, which are of plain steps")


#: Members shared by measures that trace steps on fake tensors.
TRACED: Mapping[str, Any] = {
    "unsupported": plain_steps_only,
    "parallel": True,
    "on_device": False,
    "timed": False,
    "cost": lambda _: 1.0,
}

MEASURE = Measure(
    name="predict",
    words="memory and work of a step, without running it",
    outcomes=lambda cells, session: traced(predicted_columns, cells, session),
    **TRACED,
)
