"""What becomes of a cell, and what a measure runs the cells of a job with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.core.cell import Cell
from bench.protocol import Data


class CellFailure(Exception):
    """A cell that ended otherwise than well."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass
class Outcome:
    """What became of a cell: a status and the record columns that are known."""

    cell: Cell
    status: str = "ok"
    message: str = ""
    columns: dict[str, Any] = field(default_factory=dict)

    def fail(self, failure: CellFailure) -> None:
        """Take over the status and message of a failure."""
        self.status, self.message = failure.status, failure.message


@dataclass(frozen=True)
class Session:
    """What a measure runs the cells of a job with.

    Args:
        data: where the workload's data comes from.
        parallel: processes at a time, where cells run side by side.
        advance: to be called with a cell and the share of its work that has just been finished, 1 in all.
        note: to be called with a cell and a line on how far it has come.
        upkeep: where a cell keeps its checkpoint (:class:`bench.measures.training.Upkeep`).
        needs_rare: whether a cell's rare events are to be timed, because no record has them yet.
    """

    data: Data
    parallel: int
    advance: Callable[[Cell, float], None]
    note: Callable[[Cell, str], None]
    upkeep: Callable[[Cell], Any]
    needs_rare: Callable[[Cell], bool]
