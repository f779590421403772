"""Fig. 1 as rows: one per arm and batch size, from which the bars, the tables and the CSV are all made."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from bench.intervals import Estimate
from bench.record import Record
from figures.memory import CATEGORIES, MemoryCell, parts_of_peak
from figures.selection import TARGETS, Selection
from figures.tables import NOT_ASKED, NOT_RECORDED, OLDER, bounds, significant, with_interval
from figures.timing import EpochTime, disturbed_blocks, epoch_time, time_ratio

REFERENCE = "comera"
UNPAIRED, DISTURBED = "‡", "§"


@dataclass(frozen=True)
class TimeCell:
    """Time of one cell; ``status`` is empty where the cell is outside the grid."""

    status: str
    message: str = ""
    epoch: EpochTime | None = None
    ratio: Estimate | None = None  # to CoMERA, of epoch times
    disturbed: int = 0
    marks: str = ""


@dataclass(frozen=True)
class Row:
    arm: str
    batch_size: int
    time: TimeCell
    memory: dict[str, MemoryCell]  # by target
    allocated: float | None
    reserved: float | None

    @property
    def cells(self) -> list[TimeCell | MemoryCell]:
        return [self.time, *self.memory.values()]


def _older(record: Record, selection: Selection) -> str:
    return OLDER if record.cell_id in selection.older_code else ""


def _time_cell(selection: Selection, arm: str, batch: int) -> TimeCell:
    if batch not in selection.time_batches:
        return TimeCell("")
    record = selection.timed.get((arm, batch))
    if record is None:
        return TimeCell(NOT_RECORDED)
    marks = _older(record, selection)
    epoch = epoch_time(record)
    if epoch is None:
        status = "no time" if record.status == "ok" else record.status
        return TimeCell(status, record.message, marks=marks)
    reference = selection.timed.get((REFERENCE, batch))
    ratio = time_ratio(record, reference) if reference is not None and arm != REFERENCE else None
    if ratio is not None and ratio.paired is False:
        marks += UNPAIRED
    if epoch.total.blocks == 0:
        marks += DISTURBED
    return TimeCell("ok", record.message, epoch, ratio, disturbed_blocks(record), marks)


def _memory_cell(selection: Selection, target: str, arm: str, batch: int) -> MemoryCell:
    record = selection.predicted.get((target, arm, batch))
    if record is None:
        return MemoryCell(NOT_RECORDED if batch in selection.memory_batches else "")
    marks, peak = _older(record, selection), record.peak_memory_predicted_mib
    if record.status != "ok" or peak is None:
        status = "no prediction" if record.status == "ok" else record.status
        return MemoryCell(status, record.message, marks=marks)
    reference = selection.predicted.get((target, REFERENCE, batch))
    below = reference.peak_memory_predicted_mib if reference is not None and reference.status == "ok" else None
    ratio = peak / below if below and arm != REFERENCE else None
    return MemoryCell("ok", record.message, peak, parts_of_peak(record, peak), ratio, marks)


def rows_of(selection: Selection) -> list[Row]:
    """Every arm at every batch size that is timed or predicted, ordered by batch size, then arm."""
    rows = []
    for batch in sorted({*selection.time_batches, *selection.memory_batches}):
        for arm in selection.arms:
            run = selection.timed.get((arm, batch))
            memory = {target: _memory_cell(selection, target, arm, batch) for target in TARGETS}
            allocated = run.peak_memory_allocated_mib if run else None
            reserved = run.peak_memory_reserved_mib if run else None
            rows.append(Row(arm, batch, _time_cell(selection, arm, batch), memory, allocated, reserved))
    return rows


def time_unit(rows: list[Row]) -> tuple[str, float]:
    """The unit that suits the longest epoch: its name, and how many of it a second is."""
    longest = max((row.time.epoch.total.value for row in rows if row.time.epoch), default=0.0)
    if longest >= 2 * 3600:
        return "hours", 1 / 3600
    return ("minutes", 1 / 60) if longest >= 120 else ("seconds", 1.0)


def _remarks(row: Row) -> str:
    """Every failure with its reason once, however many of the row's cells share it."""
    seen: dict[str, list[str]] = {}
    for what, cell in zip(("time", *(f"memory for {target}" for target in row.memory)), row.cells, strict=True):
        if cell.status not in ("", "ok", NOT_RECORDED):
            reason = f"{cell.status}: {cell.message}" if cell.message else cell.status
            seen.setdefault(reason, []).append(what)
    remarks = [f"{reason} ({', '.join(what)})" for reason, what in seen.items()]
    if row.time.status == "ok" and row.time.message:
        remarks.append(row.time.message)
    if row.time.disturbed:
        remarks.append(f"{row.time.disturbed} disturbed block(s) left out")
    return "; ".join(remarks)


def text_table(selection: Selection, rows: list[Row]) -> pd.DataFrame:
    """The table a person reads, as strings."""
    unit, scale = time_unit(rows)
    lines = []
    for row in rows:
        time = row.time
        line = {"batch": str(row.batch_size), "arm": row.arm}
        shown = with_interval(time.epoch.total, scale) if time.epoch else time.status or NOT_ASKED
        line[f"epoch, {unit}"] = f"{shown} {time.marks}".strip()
        ratio = with_interval(time.ratio, unit="x") if time.ratio else NOT_ASKED
        line["time / comera"] = "1" if row.arm == REFERENCE and time.epoch else ratio
        for target in TARGETS:
            cell = row.memory[target]
            peak = significant(cell.peak, 4) if cell.peak is not None else cell.status or NOT_ASKED
            line[f"peak MiB, {target}"] = f"{peak} {cell.marks}".strip()
            over = f"{significant(cell.ratio)}x" if cell.ratio is not None else NOT_ASKED
            line[f"{target} / comera"] = "1" if row.arm == REFERENCE and cell.peak is not None else over
        if selection.kind == "cuda":
            for name, size in (("allocated", row.allocated), ("reserved", row.reserved)):
                line[f"{name} MiB"] = NOT_ASKED if size is None else significant(size, 4)
        line["remarks"] = _remarks(row)
        lines.append(line)
    return pd.DataFrame(lines)


def tidy_table(selection: Selection, rows: list[Row]) -> pd.DataFrame:
    """The table a program reads: numbers in seconds and MiB, empty where there is none."""
    lines = []
    for row in rows:
        time, epoch = row.time, row.time.epoch
        record = selection.timed.get((row.arm, row.batch_size))
        paired = {None: "", True: "paired", False: "unpaired"}[time.ratio.paired if time.ratio else None]
        line: dict[str, object] = {
            "device": selection.device,
            "arm": row.arm,
            "batch_size": row.batch_size,
            "dataset": record.dataset if record else "",
            "time_status": time.status or "not in the grid",
            "time_message": time.message,
            **bounds("epoch_time_s", epoch.total if epoch else None),
            "epoch_rare_s": epoch.rare if epoch else None,
            **bounds("time_over_comera", time.ratio),
            "time_pairing": paired,
            "blocks": epoch.total.blocks if epoch else None,
            "disturbed_blocks": time.disturbed if epoch else None,
        }
        for target in TARGETS:
            cell = row.memory[target]
            line |= {
                f"{target}_status": cell.status or "not in the grid",
                f"{target}_message": cell.message,
                f"{target}_peak_mib": cell.peak,
                **{f"{target}_{name}_mib": dict(cell.parts).get(name) for name in CATEGORIES},
                f"{target}_over_comera": cell.ratio,
            }
        line |= {"allocated_mib": row.allocated, "reserved_mib": row.reserved}
        line["older_code"] = any(OLDER in cell.marks for cell in row.cells)
        lines.append(line)
    return pd.DataFrame(lines)
