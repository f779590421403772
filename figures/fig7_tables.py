"""Fig. 7 as tables: the one a person reads and the one a program reads."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bench.core.intervals import Estimate
from figures.epochs import time_columns, time_text, time_unit
from figures.fig7_rows import NOT_MODELLED, REFERENCE, Row, Steps, name_of
from figures.memory import measured_columns, measured_text, memory_columns, memory_text
from figures.reasons import remarks
from figures.report import REMARKS
from figures.tables import NOT_ASKED, OLDER, UNPAIRED, bounds, pairing, significant, with_interval

_GAIN, _COMPILE = "off / on", "compile, s"
_COLUMN_WORDS = {
    _GAIN: "time of the same arm without the toggle that its row names last, over its own; above 1 the toggle pays",
    _COMPILE: "what the first step takes beyond a usual one; no part of an epoch",
}


def _ratio(ratio: Estimate | None) -> str:
    if ratio is None:
        return NOT_ASKED
    return with_interval(ratio, unit="x") + (f" {UNPAIRED}" if ratio.paired is False else "")


def gain_notes(steps: Steps, rows: Sequence[Row]) -> list[str]:
    """A sentence per variant on what the toggle named last brings."""
    sentences = []
    for arm, toggles in steps.variants:
        mine = [row for row in rows if (row.arm, row.toggles) == (arm, toggles) and row.gain is not None]
        if mine and toggles.without_last is not None:
            plainer, own = name_of(arm, toggles.without_last), name_of(arm, toggles)
            ratios = ", ".join(f"{_ratio(row.gain)} at {row.batch}" for row in mine)
            sentences.append(f"Time of {plainer!r} over {own!r}, by batch size: {ratios}.")
    return sentences


def text_table(steps: Steps, rows: Sequence[Row]) -> pd.DataFrame:
    """The table a person reads, as strings."""
    unit, scale = time_unit(rows)
    compiled = any(row.compile_s is not None for row in rows)
    lines = []
    for row in rows:
        time, is_reference = row.time, row.arm == REFERENCE
        line = {"batch": str(row.batch), "arm": row.name}
        line[f"epoch, {unit}"] = f"{time_text(time, scale)} {time.marks.replace(UNPAIRED, '')}".strip()
        line["time / comera"] = "1" if is_reference and time.epoch else _ratio(time.ratio)
        line[_GAIN] = _ratio(row.gain)
        if compiled:
            line[_COMPILE] = NOT_ASKED if row.compile_s is None else significant(row.compile_s)
        line |= memory_text(steps.kind, row.memory, "comera", is_reference)
        if steps.kind == "cuda":
            line |= measured_text(row.measured)
            ratio = NOT_ASKED if row.measured_ratio is None else f"{significant(row.measured_ratio)}x"
            measured = dict(row.measured)["allocated"] is not None
            line["allocated / comera"] = "1" if is_reference and measured else ratio
        predicted = {} if row.memory.status == NOT_MODELLED else {steps.kind: row.memory}
        line[REMARKS] = remarks(time, predicted, time.disturbed, time.message if time.status == "ok" else "")
        lines.append(line)
    return pd.DataFrame(lines)


def column_notes(table: pd.DataFrame) -> list[str]:
    """What the columns are that do not speak for themselves."""
    return [f"{column}: {words}." for column, words in _COLUMN_WORDS.items() if column in table]


def tidy_table(steps: Steps, rows: Sequence[Row]) -> pd.DataFrame:
    """The table a program reads: numbers in seconds and MiB, empty where there is none."""
    lines = []
    for row in rows:
        record = steps.timed.get((row.arm, row.toggles, row.batch))
        lines.append(
            {
                "device": steps.device,
                "arm": row.arm,
                "precision": row.toggles.precision,
                "compile": row.toggles.compile,
                "cuda_graph": row.toggles.cuda_graph,
                "batch_size": row.batch,
                "dataset": record.dataset if record else "",
                **time_columns(row.time),
                **bounds("time_off_over_on", row.gain),
                "off_over_on_pairing": pairing(row.gain),
                "compile_time_s": row.compile_s,
                **memory_columns(steps.kind, row.memory, "comera"),
                **measured_columns(row.measured),
                "allocated_over_comera": row.measured_ratio,
                "older_code": OLDER in row.marks,
            }
        )
    return pd.DataFrame(lines)
