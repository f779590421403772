"""Fig. 12 as tables: the one a person reads and the one a program reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pandas as pd

from figures.epochs import TimeCell, time_columns, time_text, time_unit
from figures.fig12_rows import Row
from figures.fig12_selection import Sweep
from figures.memory import MemoryCell, measured_columns, measured_text, memory_columns, memory_text
from figures.reach import reach_of
from figures.reasons import remarks
from figures.report import REMARKS
from figures.runs import DENSE
from figures.selection import TARGETS
from figures.tables import NOT_ASKED, OLDER, bounds, significant, with_interval

LEFT_ALIGNED = frozenset({"arm", REMARKS})

_Cell = TypeVar("_Cell", TimeCell, MemoryCell)


def _with_reach(cell: _Cell) -> _Cell:
    """The cell with the end of the method's reach for its status, where the ratio lies beyond."""
    reach = reach_of(cell.message)
    return dataclasses.replace(cell, status=str(reach)) if reach else cell


def _dense_range(row: Row, scale: float) -> str:
    """The lowest and the highest of dense's times, where it has several."""
    totals = [cell.epoch.total.value * scale for cell in row.timings.values() if cell.epoch is not None]
    return f" ({significant(min(totals))} to {significant(max(totals))})" if len(totals) > 1 else ""


def _remarks(row: Row) -> str:
    message = row.time.message if row.time.epoch else ""
    said = [remarks(row.time, row.memory, row.time.disturbed, message)]
    if row.time.epoch:  # of dense: what failed beside some ratios while it was timed beside others
        failed = ((ratio, cell) for ratio, cell in row.timings.items() if cell.epoch is None)
        said += [f"{cell.status} beside ratio {ratio:g}: {cell.message}" for ratio, cell in failed]
    return "; ".join(filter(None, said))


def _targets(rows: Iterable[Row]) -> list[str]:
    """The targets that any row has memory for."""
    return [target for target in TARGETS if any(row.memory[target].peak is not None for row in rows)]


def text_table(sweep: Sweep, rows: Sequence[Row]) -> pd.DataFrame:
    """The table a person reads, as strings; without times, or predictions for a target, it has no column for them."""
    unit, scale = time_unit(rows)
    lines = []
    for row in rows:
        dense = row.arm == DENSE
        line = {"batch": str(row.batch_size), "ratio": f"{row.ratio:g}", "arm": row.arm}
        line["reached"] = f"{row.size_ratio:.4g}" if row.size_ratio else NOT_ASKED
        if sweep.timed:
            time = time_text(_with_reach(row.time), scale) + (_dense_range(row, scale) if dense else "")
            line[f"epoch, {unit}"] = f"{time} {row.time.marks}".strip()
            ratio = with_interval(row.time.ratio, unit="x") if row.time.ratio else NOT_ASKED
            line["time / dense"] = "1" if dense and row.time.epoch else ratio
        for target in _targets(rows):
            line |= memory_text(target, _with_reach(row.memory[target]), DENSE, dense)
        if sweep.kind == "cuda":
            line |= measured_text(row.measured)
        line["GFLOP per step"] = significant(row.flops / 1e9, 4) if row.flops else NOT_ASKED
        over = f"{significant(row.flops_over_dense)}x" if row.flops_over_dense else NOT_ASKED
        line["GFLOP / dense"] = "1" if dense and row.flops else over
        line[REMARKS] = _remarks(row)
        lines.append(line)
    return pd.DataFrame(lines)


def remark_lines(rows: Sequence[Row]) -> list[str]:
    """The remarks of the table, each once per arm with the ratios and batch sizes that it is about."""
    about: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if remark := _remarks(row):
            said = f"out of reach, {row.reach}" if row.reach else remark
            about.setdefault((row.arm, said), []).append(row)
    lines = []
    for (arm, said), those in about.items():
        ratios = ", ".join(dict.fromkeys(f"{row.ratio:g}" for row in those))
        batches = ", ".join(dict.fromkeys(str(row.batch_size) for row in those))
        lines.append(f"{arm}, ratio {ratios}, batch {batches}: {said}")
    return lines


def tidy_table(sweep: Sweep, rows: Sequence[Row]) -> pd.DataFrame:
    """The table a program reads: seconds, MiB and counts, empty where there is none.

    ``ratio`` is that of the arm, 1 for dense; ``beside`` that of the job in which it was timed. Dense has a line per
    job.
    """
    lines = []
    for row in rows:
        for beside, time in (row.timings or {row.ratio: row.time}).items():
            line: dict[str, object] = {
                "device": sweep.device,
                "precision": sweep.toggles[0],
                "cuda_graph": sweep.toggles[1],
                "compile": sweep.toggles[2],
                "arm": row.arm,
                "batch_size": row.batch_size,
                "ratio": row.ratio,
                "beside": beside,
                "size_ratio": row.size_ratio,
                "parameters": row.parameters,
                **time_columns(time, DENSE),
                **bounds("time_over_low_rank", row.over_low_rank),
                "flops_per_step": row.flops,
                "flops_over_dense": row.flops_over_dense,
                "reach": str(row.reach or ""),
            }
            for target, cell in row.memory.items():
                line |= memory_columns(target, cell, DENSE)
            line |= measured_columns(row.measured)
            line["older_code"] = any(OLDER in cell.marks for cell in row.cells)
            lines.append(line)
    return pd.DataFrame(lines)
