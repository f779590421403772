"""Pages of times and peak memory by cell: how their records are chosen, and the columns of a table of cells.

A table begins as a grid, a frame with a line per cell. Every method that takes a grid returns columns beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import pandas as pd

from figures import frame
from figures.arms import COMERA, RANK_RIVAL, SIZE_RIVAL
from figures.frame import Patterns, narrow, newest, repeats, settings
from figures.stats.time_values import ratio_columns, time_columns
from figures.text import NOT_IN_GRID, NOT_RECORDED
from figures.times import Per

#: The devices that memory is predicted for.
TARGETS = ("cuda", "cpu")

#: MiB that cuBLAS keeps beside the tensors of a step, a workspace each for forward and backward. Steps with CUDA Graph
#: have a stream of their own, and keep twice as much.
BEFORE_HOPPER_MIB, ON_HOPPER_MIB = 2 * 8.125, 2 * 32.0

#: Categories of a predicted peak, in drawing order.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries")


def by_category(table: pd.DataFrame, of: str) -> pd.DataFrame:
    """Return peaks in MiB by category, and as ``unsplit`` what these do not account for, if more than half a percent.

    The table has the peaks as ``OF_peak_mib``, their categories as ``OF_parameters_mib`` and so on.
    """
    parts, peak = table[[f"{of}_{name}_mib" for name in CATEGORIES]], table[f"{of}_peak_mib"]
    rest = peak - parts.sum(axis=1)
    return parts.set_axis(list(CATEGORIES), axis=1).assign(unsplit=rest.where(rest > 0.005 * peak))


def at(grid: pd.DataFrame, df: pd.DataFrame, cell: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Return line by line columns of the row of ``df`` that has the grid's cell; empty where there is none."""
    found = grid[list(cell)].merge(df[[*cell, *columns]], "left", list(cell))
    return found[list(columns)].set_axis(grid.index)


def numbers(counts: pd.Series) -> pd.Series:
    """Return whole numbers as integers where none is missing, else as floats."""
    return counts.astype("float64" if counts.isna().any() else "int64")


@dataclass(frozen=True, kw_only=True, eq=False)
class TimesAndMemory(frame.Page):
    """A page of timed records and predictions of memory.

    Args:
        runs: the timed records, one per cell.
        predictions: one per target and cell.
        cell, memory_cell: the columns of a cell of either.
    """

    experiments: ClassVar[tuple[str, ...]] = ()  # the paper's
    runs: pd.DataFrame
    predictions: pd.DataFrame
    cell: tuple[str, ...]
    memory_cell: tuple[str, ...]

    @property
    def own(self) -> pd.DataFrame:
        return self.runs if len(self.runs) else self.predictions

    def found(self, column: str) -> set[Any]:
        """Return the values of a column of cells that are timed or predicted."""
        return {*self.runs[column], *self.predictions[column]}

    @property
    def is_papers(self) -> bool:
        """Return whether arms, toggles and batch sizes of the paper are expected."""
        return bool(self.df["experiment"].isin(self.experiments).any())

    @property
    def per(self) -> Per:
        """Return what times are of: an epoch only where every workload among them has one."""
        return "epoch" if all(words["examples_per_epoch"] for words in self.own["workload_words"]) else "step"

    @property
    def target(self) -> str:
        """Return the device whose predicted memory people read first: of this kind where that was predicted."""
        found = list(dict.fromkeys(self.predictions["predicted_for"]))
        return self.kind if self.kind in found or not found else found[0]

    def parameters(self, *by: str) -> pd.Series:
        """Return the parameters by the values of columns, where any record of them has a count."""
        return pd.concat([self.runs, self.predictions]).groupby(list(by))["parameters"].first().dropna()

    def others(self, df: pd.DataFrame) -> pd.DataFrame:
        """Return the rows whose model is this page's, and whose arm has the settings that it has on this page."""
        pages = pd.concat([self.runs, self.predictions])
        alike = df[frame.settings(df, frame.MODEL).isin(frame.settings(pages, frame.MODEL))]
        return frame.narrow_each(
            alike, "arm", frame.METHOD, self.cell, "", frame.own_settings(pages, "arm", frame.METHOD)
        )[0]

    def timed(self, grid: pd.DataFrame, *columns: str) -> pd.DataFrame:
        """Return columns of the timed record of each cell of a grid."""
        return at(grid, self.runs, self.cell, columns)

    def times_of(self, grid: pd.DataFrame, **other: Any) -> pd.Series:
        """Return the times of each cell of a grid, or of the cells with ``other`` values in some columns."""
        return self.timed(grid.assign(**other), "times")["times"]

    def predicted(self, grid: pd.DataFrame, target: str, *columns: str) -> pd.DataFrame:
        """Return columns of the prediction for a target of each cell of a grid."""
        return at(grid, self.predictions[self.predictions["predicted_for"] == target], self.memory_cell, columns)

    def times(
        self, grid: pd.DataFrame, over: str, reference: Mapping[str, Any], asked: Any = True, rare: bool = True
    ) -> pd.DataFrame:
        """Return the columns on times, with their ratio to a reference.

        Args:
            grid: the cells.
            over: the name of the reference.
            reference: the values in which its cell differs, such as ``{"arm": "dense"}``.
            asked: which cells the paper's grid has; all by default.
            rare: whether the part in rare events has columns of its own.
        """
        below = self.times_of(grid, **reference).mask(_are(grid, reference))
        asked = pd.Series(asked, index=grid.index)
        return time_columns(self.timed(grid, "times", "status", "message"), below, self.per, over, asked, rare)

    def over_low_rank(self, grid: pd.DataFrame) -> pd.DataFrame:
        """Return the ratios of CoMERA's times to those of low rank of equal size, and to those of equal rank."""
        ours, rivals = self.times_of(grid).where(grid["arm"] == COMERA), {"": SIZE_RIVAL, "_of_equal_rank": RANK_RIVAL}
        found = [
            ratio_columns(f"time_over_low_rank{end}", ours, self.times_of(grid, arm=rival))
            for end, rival in rivals.items()
        ]
        return pd.concat(found, axis=1).drop(columns="pairing")

    def memory(
        self, grid: pd.DataFrame, target: str, over: str, reference: Mapping[str, Any], asked: Any = True
    ) -> pd.DataFrame:
        """Return the columns on predicted peaks for a target: status, MiB by category, ratio; else as :meth:`times`."""
        asked = pd.Series(asked, index=grid.index)
        columns = ["status", "message", "peak_memory_predicted_mib", *(f"predicted_{name}_mib" for name in CATEGORIES)]
        found, runs = self.predicted(grid, target, *columns), self.timed(grid, *columns)
        if target == self.kind:  # a step may have failed before its memory was predicted
            failed = found["status"].isna() & runs["status"].notna() & (runs["status"] != "ok") & asked
            found = found.mask(failed, runs)
        is_ok, peak = found["status"] == "ok", found["peak_memory_predicted_mib"]
        status = found["status"].mask(is_ok, "no prediction").mask(peak.notna(), "ok")
        base = self.predicted(grid.assign(**reference), target, columns[2])[columns[2]]
        return pd.DataFrame(
            {
                f"{target}_status": status.fillna(asked.map({True: NOT_RECORDED, False: NOT_IN_GRID})),
                f"{target}_message": found["message"].where(is_ok | peak.isna()).fillna(""),
                f"{target}_peak_mib": peak,
                **{f"{target}_{name}_mib": found[f"predicted_{name}_mib"].replace(0.0, np.nan) for name in CATEGORIES},
                f"{target}_over_{over}": peak / base.mask(_are(grid, reference)),
            }
        )

    def measured(self, grid: pd.DataFrame, targets: Sequence[str] = TARGETS) -> pd.DataFrame:
        """Return the allocator's peaks in MiB, and whether older code made any record of a cell."""
        runs = self.timed(grid, "code_id", "peak_memory_allocated_mib", "peak_memory_reserved_mib")
        records = [runs, *(self.predicted(grid, target, "code_id") for target in targets)]
        return pd.DataFrame(
            {
                "allocated_mib": runs["peak_memory_allocated_mib"],
                "reserved_mib": runs["peak_memory_reserved_mib"],
                "older_code": np.any([self.is_older(one) for one in records], axis=0),
            }
        )


def _are(grid: pd.DataFrame, values: Mapping[str, Any]) -> pd.Series:
    return (grid[list(values)] == list(values.values())).all(axis=1)


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
    predicted = placed[(placed["measure"] == "predict") & placed["predicted_for"].isin(TARGETS)]
    runs, notes = narrow(runs, same, cell, "timed record(s)")
    model = settings(runs[:1], same_model).iloc[0] if len(runs) else None
    predicted, others = narrow(predicted, same_model, of_memory, "prediction(s)", model)
    runs, of_times = frame.narrow_each(runs, arm, each, cell, "timed record(s) of {}")
    own = frame.own_settings(runs, arm, each)
    predicted, of_plans = frame.narrow_each(predicted, arm, each, of_memory, "prediction(s) of {}", own)
    notes += [*others, *of_times, *of_plans]
    notes += repeats(runs, cell, "timed record(s)") + repeats(predicted, of_memory, "prediction(s)")
    if strangers := len(df) - len(placed):
        notes.append(f"{strangers} record(s) that belong to no cell of this page are left out.")
    holding = runs[runs["predicted_for"].isin(TARGETS) & runs["peak_memory_predicted_mib"].notna()]
    predicted = pd.concat([predicted, holding])
    # a prediction goes before a record without one, and one that was asked for before one beside a time
    ranked = predicted.assign(
        holds=predicted["peak_memory_predicted_mib"].notna(), asked=predicted["measure"] == "predict"
    )
    runs, predicted = newest(runs, cell), newest(ranked, of_memory, prefer=["holds", "asked"])
    chosen = df.loc[runs.index.union(predicted.index)]
    page |= {"cell": tuple(cell), "memory_cell": tuple(memory_cell or cell)}
    return into(df=frame.oldest_first(chosen), runs=runs, predictions=predicted, left_out=tuple(notes), **page)
