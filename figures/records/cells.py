"""Pages of times and peak memory by cell: how their records are chosen, and the columns of a cell in a table."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from bench.core.record import Record
from figures.records import select
from figures.records.missing import Missing
from figures.records.select import Setting, narrow, newest, repeats
from figures.records.sizes import equal_size
from figures.records.time_values import Per, TimeCell, time_cell, time_fields, workload_words
from figures.text import NOT_RECORDED

#: The devices that memory is predicted for.
TARGETS = ("cuda", "cpu")

#: Categories of a predicted peak, in drawing order.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries")


@dataclass(frozen=True)
class MemoryCell(Missing):
    """Predicted peak of one cell for one target, in MiB, by category too; ``ratio`` is to the reference's."""

    peak: float | None = None
    parts: tuple[tuple[str, float], ...] = ()
    ratio: float | None = None


def parts_of_peak(record: Record, peak: float) -> tuple[tuple[str, float], ...]:
    """The peak by category; what the categories do not account for is ``unsplit``."""
    sizes = {name: getattr(record, f"predicted_{name}_mib") for name in CATEGORIES}
    parts = [(name, float(size)) for name, size in sizes.items() if size]
    rest = peak - sum(size for _, size in parts)
    return (*parts, *([("unsplit", rest)] if rest > 0.005 * peak else []))


def quotient(above: float | None, below: float | None) -> float | None:
    """None where one is unknown, or where nothing is left to divide by."""
    return above / below if above and below else None


def memory_fields(target: str, cell: MemoryCell, over: str) -> dict[str, Any]:
    """Return the columns of a table on a predicted peak: status, peak and its categories in MiB, ratio ``over`` one."""
    parts = dict(cell.parts)
    return {
        f"{target}_status": cell.status or "not in the grid",
        f"{target}_message": cell.message,
        f"{target}_peak_mib": cell.peak,
        **{f"{target}_{name}_mib": parts.get(name) for name in CATEGORIES},
        f"{target}_over_{over}": cell.ratio,
    }


@dataclass(frozen=True, kw_only=True)
class TimesAndMemory(select.Selected):
    """A page of timed records and predictions of memory, by cell; predictions by target too."""

    experiments: ClassVar[tuple[str, ...]] = ()  # the paper's
    timed: Mapping[Any, Record] = field(default_factory=dict)
    predicted: Mapping[tuple[str, Any], Record] = field(default_factory=dict)

    @property
    def own(self) -> Sequence[Record]:
        return list(self.timed.values()) or list(self.predicted.values())

    @property
    def is_papers(self) -> bool:
        """Whether arms, toggles and batch sizes of the paper are expected."""
        return any(record.experiment in self.experiments for record in self.shown)

    @property
    def per(self) -> Per:
        """What times are shown of: an epoch only where every workload among them has one."""
        return "epoch" if all(workload_words(record)["examples_per_epoch"] for record in self.own) else "step"

    @property
    def target(self) -> str:
        """The device whose predicted memory people read first: this kind, or the other where only that is there."""
        found = {target for target, _ in self.predicted}
        return self.kind if self.kind in found or not found else next(iter(found))

    def peak(self, target: str, cell: Hashable) -> float | None:
        """The predicted peak of a cell in MiB, or None."""
        record = self.predicted.get((target, cell))
        return record.peak_memory_predicted_mib if record else None

    def parameters(self, cell: Hashable) -> int | None:
        """The parameters of a cell, from its times or predictions; None where neither has them."""
        records = (self.timed.get(cell), *(self.predicted.get((target, cell)) for target in TARGETS))
        return next((record.parameters for record in records if record and record.parameters), None)

    def same_size(self, cell: Hashable, reference: Hashable) -> bool:
        """Whether two cells hold equally many parameters within 2 %, by their records."""
        return equal_size(self.parameters(cell), self.parameters(reference))

    def memory_cell(self, target: str, cell: Hashable, reference: Hashable, asked: bool = True) -> MemoryCell:
        """Return the predicted peak of a cell for a target, beside a reference; ``asked`` if the grid has it."""
        record, run = self.predicted.get((target, cell)), self.timed.get(cell)
        if record is None and run is not None and run.status != "ok" and target == self.kind and asked:
            record = run  # it failed before its memory was predicted
        if record is None:
            return MemoryCell(NOT_RECORDED if asked else "")
        peak = record.peak_memory_predicted_mib
        if peak is None:
            return MemoryCell("no prediction" if record.status == "ok" else record.status, record.message)
        base = self.peak(target, reference) if reference != cell else None
        message = record.message if record.status == "ok" else ""
        parts, ratio = parts_of_peak(record, peak), quotient(peak, base)
        return MemoryCell("ok", message, peak=peak, parts=parts, ratio=ratio)

    def time_fields(self, cell: Hashable, reference: Hashable, over: str, **how: Any) -> dict[str, Any]:
        """Return the columns of a table on the time of a cell, with its ratio to a reference, which is called ``over``.

        ``how`` goes to :func:`figures.records.time_values.time_fields`.
        """
        run, below = self.timed.get(cell), self.timed.get(reference) if reference != cell else None
        return time_fields(time_cell(run, below, self.older(run), self.per), self.per, over, **how)

    def no_time(self, over: str, **how: Any) -> dict[str, Any]:
        """Return the same columns where the grid has no time."""
        return time_fields(TimeCell(""), self.per, over, **how)

    def memory_fields(self, target: str, cell: Hashable, reference: Hashable, over: str, asked: bool) -> dict[str, Any]:
        """Return the columns of a table on the predicted peak of a cell for a target; ``asked`` if the grid has it."""
        return memory_fields(target, self.memory_cell(target, cell, reference, asked), over)

    def measured_fields(self, cell: Hashable) -> dict[str, Any]:
        """Return the columns on the allocator's peaks in MiB."""
        run = self.timed.get(cell)
        return {f"{name}_mib": getattr(run, f"peak_memory_{name}_mib", None) for name in ("allocated", "reserved")}

    def is_older(self, cell: Hashable, targets: Sequence[str]) -> bool:
        """Return whether older code made any record of the cell, its predictions for these targets among them."""
        return any(
            self.older(one) for one in (self.timed.get(cell), *(self.predicted.get((goal, cell)) for goal in targets))
        )

    def last_fields(self, cell: Hashable, targets: Sequence[str]) -> dict[str, Any]:
        """Return the columns on measured peaks, and whether older code made any record of the cell."""
        return {**self.measured_fields(cell), "older_code": self.is_older(cell, targets)}


Page = TypeVar("Page", bound=TimesAndMemory)


@dataclass(frozen=True)
class Select:
    """How a page of times and predictions is chosen from records of one device."""

    cell: Callable[[Record], Any]  # of the page that a record fills; None for a record that is no part of the page
    memory_cell: Callable[[Record], Any] | None = None  # the same for its peak memory, where that is another
    same: Callable[[Record], Setting] = select.timing_setting  # what must be equal for all times of the page
    same_model: Callable[[Record], Setting] = select.model_setting  # and for its predictions
    same_per_arm: Callable[[Record], Setting] = select.method_settings  # and for an arm, as its times have it, if any
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
        per_arm = self.arm, self.same_per_arm
        runs, of_times = select.narrow_each(runs, *per_arm, self.cell, "timed record(s) of {}")
        own = {self.arm(record): self.same_per_arm(record) for record in runs}
        plans, of_plans = select.narrow_each(plans, *per_arm, target_cell, "prediction(s) of {}", own)
        notes += [*others, *of_times, *of_plans]
        notes += repeats(runs, self.cell, "timed record(s)") + repeats(plans, target_cell, "prediction(s)")
        if strangers := len(records) - len(placed):
            notes.append(f"{strangers} record(s) that belong to no cell of this page are left out.")
        timed = newest(runs, self.cell)
        holding = [run for run in runs if run.predicted_for in TARGETS and run.peak_memory_predicted_mib is not None]
        # a prediction goes before a record without one, and one that was asked for before one beside a time
        predicted = newest(
            [*plans, *holding],
            target_cell,
            prefer=lambda one: (one.peak_memory_predicted_mib is not None, one.measure == "predict"),
        )
        shown = select.oldest_first([*timed.values(), *predicted.values()])
        return into(timed=timed, predicted=predicted, shown=shown, left_out=tuple(notes), **page)
