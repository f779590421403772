"""Measure ``predict``: memory and work of a step, computed on fake tensors, for a device that need not be there."""

from collections.abc import Iterator, Sequence
from typing import Any

from bench.core.cell import Cell
from bench.estimate.work import predict
from bench.measures import Measure, unsupported_toggles
from bench.processes.process import answers
from bench.protocol import Data, Outcome, Workload
from bench.protocol.methods import build_for

_LIMIT_S = 1800.0


def predicted_columns(cell: Cell, workload: Workload) -> dict[str, Any]:
    """Memory and work of a cell's steps."""
    asked = (cell.batch_size, cell.precision, cell.device, cell.seed, cell.checkpoint)
    return {**predict(workload, build_for(cell), *asked).columns()}


def predicted(cells: Sequence[Cell], data: Data, parallel: int) -> Iterator[Outcome]:
    """Outcomes of predictions, ``parallel`` processes at a time."""
    return answers(predicted_columns, cells, data, parallel, _LIMIT_S)


def plain_steps_only(cell: Cell) -> str | None:
    """Why the steps of a cell are not modelled, or None."""
    return unsupported_toggles(cell, "is not modelled in predictions, which are of plain steps")


MEASURE = Measure(
    name="predict",
    words="memory and work of a step, without running it",
    outcomes=lambda cells, session: ([one] for one in predicted(cells, session.data, session.parallel)),
    unsupported=plain_steps_only,
    parallel=True,
    together=True,
    on_device=False,
    timed=False,
    cost=lambda _: 1.0,
    seconds=10.0,
)
