"""Pages of times and peak memory by cell: how their records are chosen, and the columns of a cell in a table."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import pandas as pd

from bench.core.record import Record
from figures import frame
from figures.frame import Patterns, by_cell, narrow, newest, repeats, settings
from figures.records.sizes import equal_size
from figures.records.time_values import Per, time_columns, workload_words
from figures.text import NOT_IN_GRID, NOT_RECORDED

#: The devices that memory is predicted for.
TARGETS = ("cuda", "cpu")

#: Categories of a predicted peak, in drawing order.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries")


def parts_of_peak(peak: float, sizes: Mapping[str, float | None]) -> dict[str, float]:
    """Return a peak by category, of sizes by category; ``unsplit`` is what these do not account for.

    >>> parts_of_peak(10.0, {"parameters": 6.0, "optimizer": None})
    {'parameters': 6.0, 'unsplit': 4.0}
    """
    parts = {name: float(size) for name, size in sizes.items() if size and size == size}  # no NaN
    rest = peak - sum(parts.values())
    return {**parts, **({"unsplit": rest} if rest > 0.005 * peak else {})}


def sizes_of(record: Record) -> dict[str, float | None]:
    """Return the categories of a record's predicted peak in MiB."""
    return {name: getattr(record, f"predicted_{name}_mib") for name in CATEGORIES}


def quotient(above: float | None, below: float | None) -> float | None:
    """Return a quotient; None where one side is unknown, or where nothing is left to divide by."""
    return above / below if above and below else None


@dataclass(frozen=True, kw_only=True, eq=False)
class TimesAndMemory(frame.Page):
    """A page of timed records and predictions of memory.

    Args:
        runs: the timed records, one per cell.
        plans: the predictions, one per target and cell.
        cell, memory_cell: the columns of a cell of either.
    """

    experiments: ClassVar[tuple[str, ...]] = ()  # the paper's
    runs: pd.DataFrame
    plans: pd.DataFrame
    cell: tuple[str, ...]
    memory_cell: tuple[str, ...]

    @cached_property
    def timed(self) -> dict[Any, Record]:
        """Return the timed records by cell."""
        return by_cell(self.runs, self.cell)

    @cached_property
    def predicted(self) -> dict[tuple[str, Any], Record]:
        """Return the predictions by target and cell."""
        cells = frame.tuples(self.plans, self.memory_cell)
        return dict(zip(zip(self.plans["predicted_for"], cells, strict=True), self.plans["record"], strict=True))

    @property
    def own(self) -> pd.DataFrame:
        return self.runs if len(self.runs) else self.plans

    def found(self, column: str) -> set[Any]:
        """Return the values of a column of cells that are timed or predicted."""
        return {*self.runs[column], *self.plans[column]}

    @property
    def is_papers(self) -> bool:
        """Return whether arms, toggles and batch sizes of the paper are expected."""
        return bool(self.df["experiment"].isin(self.experiments).any())

    @property
    def per(self) -> Per:
        """Return what times are of: an epoch only where every workload among them has one."""
        words = (workload_words(record) for record in self.own["record"])
        return "epoch" if all(one["examples_per_epoch"] for one in words) else "step"

    @property
    def target(self) -> str:
        """Return the device whose predicted memory people read first: of this kind where that was predicted."""
        found = list(dict.fromkeys(self.plans["predicted_for"]))
        return self.kind if self.kind in found or not found else found[0]

    def peak(self, target: str, cell: Hashable) -> float | None:
        """Return the predicted peak of a cell in MiB, or None."""
        record = self.predicted.get((target, cell))
        return record.peak_memory_predicted_mib if record else None

    def parameters(self, cell: Hashable) -> int | None:
        """Return the parameters of a cell, from its times or predictions; None where neither has them."""
        records = (self.timed.get(cell), *(self.predicted.get((target, cell)) for target in TARGETS))
        return next((record.parameters for record in records if record and record.parameters), None)

    def same_size(self, cell: Hashable, reference: Hashable) -> bool:
        """Return whether two cells hold equally many parameters within 2 %, by their records."""
        return equal_size(self.parameters(cell), self.parameters(reference))

    def time_columns(self, cell: Hashable, reference: Hashable, over: str, **how: Any) -> dict[str, Any]:
        """Return the columns on the time of a cell, with its ratio to a reference, which is called ``over``.

        ``how`` goes to :func:`figures.records.time_values.time_columns`.
        """
        below = self.timed.get(reference) if reference != cell else None
        return time_columns(self.timed.get(cell), below, self.per, over, **how)

    def memory_columns(
        self, target: str, cell: Hashable, reference: Hashable, over: str, asked: bool = True
    ) -> dict[str, Any]:
        """Return the columns on the predicted peak of a cell for a target: status, MiB by category, ratio.

        Args:
            target: the device that is predicted for.
            cell, reference: the cell and what it is compared with, which is called ``over``.
            asked: whether the grid has the cell.
        """
        record, run = self.predicted.get((target, cell)), self.timed.get(cell)
        if record is None and run is not None and run.status != "ok" and target == self.kind and asked:
            record = run  # it failed before its memory was predicted
        peak = record.peak_memory_predicted_mib if record else None
        status, message = NOT_RECORDED if asked else NOT_IN_GRID, ""
        if record is not None:
            status = "ok" if peak is not None else "no prediction" if record.status == "ok" else record.status
            message = record.message if peak is None or record.status == "ok" else ""
        parts = parts_of_peak(peak, sizes_of(record)) if record and peak is not None else {}
        base = self.peak(target, reference) if reference != cell else None
        return {
            f"{target}_status": status,
            f"{target}_message": message,
            f"{target}_peak_mib": peak,
            **{f"{target}_{name}_mib": parts.get(name) for name in CATEGORIES},
            f"{target}_over_{over}": quotient(peak, base),
        }

    def measured_columns(self, cell: Hashable) -> dict[str, Any]:
        """Return the columns on the allocator's peaks in MiB."""
        run = self.timed.get(cell)
        return {f"{name}_mib": getattr(run, f"peak_memory_{name}_mib", None) for name in ("allocated", "reserved")}

    def is_older(self, cell: Hashable, targets: Sequence[str]) -> bool:
        """Return whether older code made any record of the cell, its predictions for these targets among them."""
        found = (self.timed.get(cell), *(self.predicted.get((goal, cell)) for goal in targets))
        return any(map(self.older, found))

    def last_columns(self, cell: Hashable, targets: Sequence[str]) -> dict[str, Any]:
        """Return the columns on measured peaks, and whether older code made any record of the cell."""
        return {**self.measured_columns(cell), "older_code": self.is_older(cell, targets)}


Chosen = TypeVar("Chosen", bound=TimesAndMemory)


def choose(
    df: pd.DataFrame,
    into: type[Chosen],
    cell: Sequence[str],
    *,
    memory_cell: Sequence[str] = (),
    same: Patterns = frame.TIMING,
    same_model: Patterns = frame.MODEL,
    each: Patterns = frame.METHOD,
    arm: str = "arm",
    **page: Any,
) -> Chosen:
    """Return a page of times and predictions, of class ``into``, whose own fields are given by name.

    Args:
        df: records of one device.
        cell, memory_cell: the columns of a cell of times, and of peaks where these are others. A record that lacks a
            value in them is no part of the page.
        same, same_model: the columns that are equal for all times, and for all predictions.
        each, arm: the columns that are equal for all records of an arm, and the column of the arm.
    """
    of_memory = ("predicted_for", *(memory_cell or cell))
    placed = df[df[list(cell)].notna().all(axis=1)]
    runs = placed[placed["measure"] == "run"]
    plans = placed[(placed["measure"] == "predict") & placed["predicted_for"].isin(TARGETS)]
    runs, notes = narrow(runs, same, cell, "timed record(s)")
    model = settings(runs[:1], same_model).iloc[0] if len(runs) else None
    plans, others = narrow(plans, same_model, of_memory, "prediction(s)", model)
    runs, of_times = frame.narrow_each(runs, arm, each, cell, "timed record(s) of {}")
    own = frame.own_settings(runs, arm, each)
    plans, of_plans = frame.narrow_each(plans, arm, each, of_memory, "prediction(s) of {}", own)
    notes += [*others, *of_times, *of_plans]
    notes += repeats(runs, cell, "timed record(s)") + repeats(plans, of_memory, "prediction(s)")
    if strangers := len(df) - len(placed):
        notes.append(f"{strangers} record(s) that belong to no cell of this page are left out.")
    holding = runs[runs["predicted_for"].isin(TARGETS) & runs["peak_memory_predicted_mib"].notna()]
    plans = pd.concat([plans, holding])
    # a prediction goes before a record without one, and one that was asked for before one beside a time
    ranked = plans.assign(holds=plans["peak_memory_predicted_mib"].notna(), asked=plans["measure"] == "predict")
    runs, plans = newest(runs, cell), newest(ranked, of_memory, prefer=["holds", "asked"])
    chosen = df.loc[runs.index.union(plans.index)]
    page |= {"cell": tuple(cell), "memory_cell": tuple(memory_cell or cell)}
    return into(df=frame.oldest_first(chosen), runs=runs, plans=plans, left_out=tuple(notes), **page)
