"""Fig. 1 as rows: one per arm and batch size, from which the bars, the tables and the CSV are all made."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from bench.core.record import Record
from figures.epochs import TimeCell, time_cell, time_columns, time_text, time_unit
from figures.memory import (
    Measured,
    MemoryCell,
    measured_columns,
    measured_peaks,
    measured_text,
    memory_cell,
    memory_columns,
    memory_text,
)
from figures.reasons import remarks
from figures.report import REMARKS
from figures.selection import TARGETS, Selection
from figures.tables import NOT_ASKED, NOT_RECORDED, OLDER, with_interval

REFERENCE = "comera"


@dataclass(frozen=True)
class Row:
    arm: str
    batch_size: int
    time: TimeCell
    memory: dict[str, MemoryCell]  # by target
    measured: Measured

    @property
    def cells(self) -> list[TimeCell | MemoryCell]:
        return [self.time, *self.memory.values()]


def _older(record: Record | None, selection: Selection) -> str:
    return OLDER if record is not None and record.cell_id in selection.older_code else ""


def _time_cell(selection: Selection, arm: str, batch: int) -> TimeCell:
    if batch not in selection.time_batches:
        return TimeCell("")
    record = selection.timed.get((arm, batch))
    reference = selection.timed.get((REFERENCE, batch)) if arm != REFERENCE else None
    return time_cell(record, reference, _older(record, selection))


def _memory_cell(selection: Selection, target: str, arm: str, batch: int) -> MemoryCell:
    record = selection.predicted.get((target, arm, batch))
    if record is None:
        return MemoryCell(NOT_RECORDED if batch in selection.memory_batches else "")
    reference = selection.predicted.get((target, REFERENCE, batch)) if arm != REFERENCE else None
    below = reference.peak_memory_predicted_mib if reference is not None else None
    return memory_cell(record, below, _older(record, selection))


def rows_of(selection: Selection) -> list[Row]:
    """Every arm at every batch size that is timed or predicted, ordered by batch size, then arm."""
    rows = []
    for batch in sorted({*selection.time_batches, *selection.memory_batches}):
        for arm in selection.arms:
            run = selection.timed.get((arm, batch))
            memory = {target: _memory_cell(selection, target, arm, batch) for target in TARGETS}
            rows.append(Row(arm, batch, _time_cell(selection, arm, batch), memory, measured_peaks(run)))
    return rows


def text_table(selection: Selection, rows: list[Row]) -> pd.DataFrame:
    """The table a person reads, as strings."""
    unit, scale = time_unit(rows)
    lines = []
    for row in rows:
        time, is_reference = row.time, row.arm == REFERENCE
        line = {"batch": str(row.batch_size), "arm": row.arm}
        line[f"epoch, {unit}"] = f"{time_text(time, scale)} {time.marks}".strip()
        ratio = with_interval(time.ratio, unit="x") if time.ratio else NOT_ASKED
        line["time / comera"] = "1" if is_reference and time.epoch else ratio
        for target, cell in row.memory.items():
            line |= memory_text(target, cell, "comera", is_reference)
        if selection.kind == "cuda":
            line |= measured_text(row.measured)
        line[REMARKS] = remarks(time, row.memory, time.disturbed, time.message if time.status == "ok" else "")
        lines.append(line)
    return pd.DataFrame(lines)


def tidy_table(selection: Selection, rows: list[Row]) -> pd.DataFrame:
    """The table a program reads: numbers in seconds and MiB, empty where there is none."""
    lines = []
    for row in rows:
        record = selection.timed.get((row.arm, row.batch_size))
        line: dict[str, object] = {
            "device": selection.device,
            "arm": row.arm,
            "batch_size": row.batch_size,
            "dataset": record.dataset if record else "",
            **time_columns(row.time),
        }
        for target, cell in row.memory.items():
            line |= memory_columns(target, cell, "comera")
        line |= measured_columns(row.measured)
        line["older_code"] = any(OLDER in cell.marks for cell in row.cells)
        lines.append(line)
    return pd.DataFrame(lines)
