"""Fig. 5 as tables: the one a person reads and the one a program reads."""

from __future__ import annotations

import pandas as pd

from figures.fig5_rows import REFERENCE, STEPS, Lookups, Row, TimeCell
from figures.memory import CATEGORIES, MemoryCell
from figures.report import REMARKS
from figures.selection import TARGETS
from figures.tables import NOT_ASKED, NOT_RECORDED, OLDER, bounds, significant, with_interval


def _remarks(row: Row) -> str:
    """Every failure with its reason once, however many of the row's cells share it."""
    seen: dict[str, list[str]] = {}
    cells: list[tuple[str, TimeCell | MemoryCell]] = [("time", row.time)]
    cells += [(f"memory for {target}", cell) for target, cell in row.memory.items()]
    for what, cell in cells:
        if cell.status not in ("ok", NOT_RECORDED):
            seen.setdefault(f"{cell.status}: {cell.message}" if cell.message else cell.status, []).append(what)
    remarks = [f"{reason} ({', '.join(what)})" for reason, what in seen.items()]
    if row.time.disturbed:
        remarks.append(f"{row.time.disturbed} disturbed block(s) left out")
    return "; ".join(remarks)


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
            cell = row.memory[target]
            peak = significant(cell.peak, 4) if cell.peak is not None else cell.status
            line[f"peak MiB, {target}"] = f"{peak} {cell.marks}".strip()
            over = f"{significant(cell.ratio)}x" if cell.ratio is not None else NOT_ASKED
            line[f"{target} / optimized"] = "1" if first and cell.peak is not None else over
        if lookups.kind == "cuda":
            for name, size in (("allocated", row.allocated), ("reserved", row.reserved)):
                line[f"{name} MiB"] = NOT_ASKED if size is None else significant(size, 4)
        line[REMARKS] = _remarks(row)
        lines.append(line)
    return pd.DataFrame(lines)


def tidy_table(lookups: Lookups, rows: list[Row]) -> pd.DataFrame:
    """The table a program reads: numbers in milliseconds and MiB, empty where there is none."""
    lines = []
    for row in rows:
        time = row.time
        paired = {None: "", True: "paired", False: "unpaired"}[time.ratio.paired if time.ratio else None]
        line: dict[str, object] = {
            "device": lookups.device,
            "rows": lookups.place.rows,
            "columns": lookups.place.columns,
            "distribution": lookups.place.dataset,
            "batch_size": row.batch,
            "optimizer_step": row.step,
            "variant": row.variant,
            "time_status": time.status,
            "time_message": time.message,
            **bounds("step_time_ms", time.step),
            **bounds("time_over_optimized", time.ratio),
            "time_pairing": paired,
            "blocks": time.step.blocks if time.step else None,
            "disturbed_blocks": time.disturbed if time.step else None,
        }
        for target in TARGETS:
            cell = row.memory[target]
            line |= {
                f"{target}_status": cell.status,
                f"{target}_message": cell.message,
                f"{target}_peak_mib": cell.peak,
                **{f"{target}_{name}_mib": dict(cell.parts).get(name) for name in CATEGORIES},
                f"{target}_over_optimized": cell.ratio,
            }
        line |= {"allocated_mib": row.allocated, "reserved_mib": row.reserved}
        line["older_code"] = any(OLDER in cell.marks for cell in row.cells)
        lines.append(line)
    return pd.DataFrame(lines)
