"""Pages of times and peak memory by cell: how their records are chosen, and what stands in each cell."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench.core.record import Record
from figures.page.table import NOT_RECORDED, OLDER, REMARKS, Column
from figures.records.memory import Measured, MemoryCell, measured_peaks, memory_cell
from figures.records.select import (
    Selected,
    Setting,
    method_settings,
    model_setting,
    narrow,
    newest,
    oldest_first,
    repeats,
    timing_setting,
)
from figures.records.time_values import Per, TimeCell, per_of, time_cell

#: The devices that memory is predicted for.
TARGETS = ("cuda", "cpu")


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """One cell of a page, from which bars and tables are made; a page's own rows have more about it."""

    time: TimeCell
    memory: Mapping[str, MemoryCell]  # by target
    measured: Measured
    is_reference: bool  # whether others are compared with it

    @property
    def marks(self) -> str:
        """The marks of all that is shown of it."""
        return self.time.marks + "".join(cell.marks for cell in self.memory.values())

    @property
    def remarks(self) -> str:
        """Every failure with its reason once, however many of the cells share it, and what else there is to say."""
        reasons: dict[str, list[str]] = {}
        cells = {"time": self.time, **{f"memory for {target}": cell for target, cell in self.memory.items()}}
        for what, cell in cells.items():
            if cell.failed:
                reasons.setdefault(": ".join(filter(None, (cell.status, cell.message))), []).append(what)
        disturbed = f"{self.time.disturbed} disturbed block(s) left out" if self.time.disturbed else ""
        message = self.time.message if self.time.time else ""
        return "; ".join(
            filter(None, [*(f"{why} ({', '.join(what)})" for why, what in reasons.items()), message, disturbed])
        )


#: The last column of a table of such rows.
REMARKS_COLUMN: Column[Any] = Column(
    REMARKS, lambda row: row.remarks, lambda row: {"older_code": OLDER in row.marks}, left=True
)


@dataclass(frozen=True, kw_only=True)
class TimesAndMemory(Selected):
    """A page of timed records and predictions of memory, by cell; predictions by target too."""

    timed: Mapping[Any, Record] = field(default_factory=dict)
    predicted: Mapping[tuple[str, Any], Record] = field(default_factory=dict)

    @property
    def own(self) -> Sequence[Record]:
        """The timed records, or the predictions where nothing was timed."""
        return list(self.timed.values()) or list(self.predicted.values())

    @property
    def per(self) -> Per:
        """What times are shown of."""
        return per_of(self.own)

    def peak(self, target: str, cell: Hashable) -> float | None:
        """The predicted peak of a cell in MiB, or None."""
        record = self.predicted.get((target, cell))
        return record.peak_memory_predicted_mib if record else None

    def row(
        self,
        cell: Hashable,
        reference: Hashable,
        is_timed: bool = True,
        targets: Sequence[str] = TARGETS,
        asked: Collection[str] = TARGETS,
        memory_reference: Hashable = None,
    ) -> dict[str, Any]:
        """What stands in a cell, as the fields of a :class:`CellRow`.

        Args:
            cell, reference: the cell, and the one that it is compared with, which may be itself.
            is_timed: whether the cell is one of the grid of times.
            targets, asked: the targets of the page, and those whose grid of memory has the cell.
            memory_reference: what its memory is compared with, where that is another cell.
        """
        run, below = self.timed.get(cell), self.timed.get(reference) if reference != cell else None
        memory_reference = memory_reference or reference

        def memory(target: str) -> MemoryCell:
            record = self.predicted.get((target, cell))
            if record is None and run is not None and run.status != "ok" and target == self.kind and target in asked:
                record = run  # it failed before its memory was predicted
            if record is None:
                return MemoryCell(NOT_RECORDED if target in asked else "")
            peak = self.peak(target, memory_reference) if memory_reference != cell else None
            return memory_cell(record, peak, self.older(record))

        return {
            "time": time_cell(run, below, self.older(run), self.per) if is_timed else TimeCell(""),
            "memory": {target: memory(target) for target in targets},
            "measured": measured_peaks(run),
            "is_reference": cell == reference,
        }


Page = TypeVar("Page", bound=TimesAndMemory)


@dataclass(frozen=True)
class Select:
    """How a page of times and predictions is chosen from records of one device.

    Args:
        cell: the cell of the page that a record fills; None for a record that is no part of the page.
        memory_cell: the same for its peak memory, where that is another.
        same, same_model: what must be equal for all times of the page, and for its predictions.
        same_per_arm: what must be equal for all records of an arm; its times decide where there are any.
        arm: the arm of a record.
    """

    cell: Callable[[Record], Any]
    memory_cell: Callable[[Record], Any] | None = None
    same: Callable[[Record], Setting] = timing_setting
    same_model: Callable[[Record], Setting] = model_setting
    same_per_arm: Callable[[Record], Setting] = method_settings
    arm: Callable[[Record], str] = operator.attrgetter("arm")

    def __call__(self, records: Sequence[Record], into: type[Page], **page: Any) -> Page:
        """The page, of class ``into``, whose own fields are given by name."""

        def target_cell(record: Record) -> tuple[str, Any]:
            return record.predicted_for, (self.memory_cell or self.cell)(record)

        placed = [record for record in records if self.cell(record) is not None]
        runs = [record for record in placed if record.measure == "run"]
        plans = [record for record in placed if record.measure == "predict" and record.predicted_for in TARGETS]
        runs, notes = narrow(runs, self.same, self.cell, "timed record(s)")
        plans, others = narrow(
            plans, self.same_model, target_cell, "prediction(s)", self.same_model(runs[0]) if runs else None
        )
        runs, of_times = self._by_arm(runs, self.cell, "timed record(s)", {})
        own = {self.arm(record): self.same_per_arm(record) for record in runs}
        plans, of_plans = self._by_arm(plans, target_cell, "prediction(s)", own)
        notes += [*others, *of_times, *of_plans]
        notes += repeats(runs, self.cell, "timed record(s)") + repeats(plans, target_cell, "prediction(s)")
        if strangers := len(records) - len(placed):
            notes.append(f"{strangers} record(s) that belong to no cell of this page are left out.")
        timed = newest(runs, self.cell)
        holding = [run for run in runs if run.predicted_for in TARGETS and run.peak_memory_predicted_mib is not None]
        predicted = newest([*plans, *holding], target_cell, _rank_of_prediction)
        shown = oldest_first([*timed.values(), *predicted.values()])
        return into(timed=timed, predicted=predicted, shown=shown, left_out=tuple(notes), **page)

    def _by_arm(
        self, records: Sequence[Record], cell: Callable[[Record], Hashable], what: str, own: Mapping[str, Setting]
    ) -> tuple[list[Record], list[str]]:
        """Narrow the records of each arm to one setting of its own, which is that in ``own`` if there is one."""
        kept, notes = [], []
        for arm in sorted({self.arm(record) for record in records}):
            of_arm = [record for record in records if self.arm(record) == arm]
            fitting, more = narrow(of_arm, self.same_per_arm, cell, f"{what} of {arm}", own.get(arm))
            kept += fitting
            notes += more
        return kept, notes


def _rank_of_prediction(record: Record) -> tuple[bool, bool]:
    """A prediction goes before a record without one, and one that was asked for before one beside a time."""
    return record.peak_memory_predicted_mib is not None, record.measure == "predict"
