"""Fig. 5 as tables: the one a person reads and the one a program reads."""

from __future__ import annotations

import pandas as pd

from figures.fig5_rows import REFERENCE, STEPS, Lookups, Row
from figures.memory import measured_columns, measured_text, memory_columns, memory_text
from figures.reasons import remarks
from figures.report import REMARKS
from figures.selection import TARGETS
from figures.tables import NOT_ASKED, NOT_RECORDED, OLDER, bounds, pairing, with_interval


def text_table(lookups: Lookups, rows: list[Row]) -> pd.DataFrame:
    """The table a person reads, as strings; targets without any prediction have no column."""
    targets = [target for target in TARGETS if any(row.memory[target].status != NOT_RECORDED for row in rows)]
    lines = []
    for row in rows:
        time = row.time
        first = row.variant == REFERENCE
        line = {"indices": f"{row.batch:,}", "step": STEPS[row.step], "variant": row.variant}
        shown = with_interval(time.step) if time.step else time.status
        line["time, ms"] = f"{shown} {time.marks}".strip()
        line["/ optimized"] = with_interval(time.ratio, unit="x") if time.ratio else NOT_ASKED
        if first and time.step:
            line["/ optimized"] = "1"
        for target in targets:
            line |= memory_text(target, row.memory[target], REFERENCE, first)
        if lookups.kind == "cuda":
            line |= measured_text(row.measured)
        line[REMARKS] = remarks(time, row.memory, time.disturbed)
        lines.append(line)
    return pd.DataFrame(lines)


def tidy_table(lookups: Lookups, rows: list[Row]) -> pd.DataFrame:
    """The table a program reads: numbers in milliseconds and MiB, empty where there is none."""
    lines = []
    for row in rows:
        time = row.time
        line: dict[str, object] = {
            "device": lookups.device,
            "rows": lookups.place.rows,
            "columns": lookups.place.columns,
            "distribution": lookups.place.dataset,
            "allocator": lookups.place.allocator,
            "batch_size": row.batch,
            "optimizer_step": row.step,
            "variant": row.variant,
            "time_status": time.status,
            "time_message": time.message,
            **bounds("step_time_ms", time.step),
            **bounds("time_over_optimized", time.ratio),
            "time_pairing": pairing(time.ratio),
            "blocks": time.step.blocks if time.step else None,
            "disturbed_blocks": time.disturbed if time.step else None,
        }
        for target, cell in row.memory.items():
            line |= memory_columns(target, cell, REFERENCE)
        line |= measured_columns(row.measured)
        line["older_code"] = any(OLDER in cell.marks for cell in row.cells)
        lines.append(line)
    return pd.DataFrame(lines)
