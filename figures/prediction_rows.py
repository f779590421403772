"""Predictions beside what was measured: which records have both, and the distribution of the error by arm."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bench.core.record import Record
from figures.report import REMARKS
from figures.selection import ARMS
from figures.tables import significant

#: The error that a prediction is allowed, by kind of device: of a CPU against a real run of the same operations, of a
#: GPU against the peak that CUDA's allocator reports.
TOLERANCE = {"cpu": 0.02, "cuda": 0.05}


@dataclass(frozen=True)
class Check:
    """One cell with both peaks, in MiB; the predicted one with cuBLAS's workspaces, where they were measured."""

    record: Record
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.measured - 1

    @property
    def is_exact(self) -> bool:
        """Whether the two agree to the byte."""
        return round(self.predicted * 2**20) == round(self.measured * 2**20)


@dataclass(frozen=True)
class Checks:
    """The cells of one device."""

    device: str
    kind: str  # "cpu" or "cuda"
    checks: tuple[Check, ...]
    left_out: tuple[str, ...]  # sentences on records without a check

    @property
    def batches(self) -> list[int]:
        return sorted({check.record.batch_size for check in self.checks})


@dataclass(frozen=True)
class Row:
    """The cells of one arm on one workload."""

    arm: str
    workload: str
    checks: tuple[Check, ...]

    @property
    def label(self) -> str:
        """``arm``, with its workload where that is not the encoder."""
        return self.arm if self.workload == "encoder" else f"{self.arm}, {self.workload}"

    @property
    def errors(self) -> list[float]:
        return sorted(check.error for check in self.checks)

    @property
    def median(self) -> float:
        return statistics.median(self.errors)

    @property
    def worst(self) -> Check:
        return max(self.checks, key=lambda check: (abs(check.error), check.record.cell_id))


def select_checks(records: Iterable[Record], device: str) -> Checks:
    """The records of ``device`` that hold a predicted peak and the allocator's, of plain steps."""
    mine = [record for record in records if record.device == device]
    checks, toggled, failed = [], 0, Counter[str]()
    for record in mine:
        predicted, measured = record.peak_memory_predicted_mib, record.peak_memory_allocated_mib
        if record.measure == "allocator_peak" and record.status != "ok":
            failed[
                f"{record.arm}, batch {record.batch_size:,}: {record.status}, {' '.join(record.message.split())}"
            ] += 1
        if record.status != "ok" or not predicted or not measured:
            continue
        predicted += record.workspaces_mib or 0.0
        if record.compile or record.cuda_graph:
            toggled += 1
        else:
            checks.append(Check(record, predicted, measured))
    notes = [f"No check of {reason.rstrip('.')}." for reason in sorted(failed)]
    if toggled:
        notes.append(f"{toggled} record(s) of captured or compiled steps are left out: predictions are of plain ones.")
    kinds = Counter(check.record.predicted_for for check in checks)
    kind = "cuda" if kinds["cuda"] else "cpu"
    ordered = sorted(checks, key=lambda check: (check.record.batch_size, check.record.experiment, check.record.cell_id))
    return Checks(device, kind, tuple(ordered), tuple(notes))


def rows_of(checks: Checks) -> list[Row]:
    """A row per arm and workload that has a check, the encoder's first, in the order of Fig. 1."""
    groups: dict[tuple[str, str], list[Check]] = {}
    for check in checks.checks:
        groups.setdefault((check.record.workload, check.record.arm), []).append(check)

    def place(slot: tuple[str, str]) -> tuple[bool, str, int, str]:
        workload, arm = slot
        return workload != "encoder", workload, ARMS.index(arm) if arm in ARMS else len(ARMS), arm

    return [Row(slot[1], slot[0], tuple(groups[slot])) for slot in sorted(groups, key=place)]


def sentences(checks: Checks, rows: Sequence[Row]) -> list[str]:
    """The distribution of the error over all cells, and whether it is as small as asked."""
    limit = TOLERANCE[checks.kind]
    errors = [check.error for check in checks.checks]
    within = sum(abs(error) <= limit for error in errors)
    worst = max((row.worst for row in rows), key=lambda check: abs(check.error))
    low, high = np.quantile(errors, [0.05, 0.95])
    exact = sum(check.is_exact for check in checks.checks)
    met = "Met" if within == len(errors) else f"Missed by {len(errors) - within}"
    return [
        f"{len(errors)} cells, {exact} of them exact to the byte: median error {_percent(statistics.median(errors))}, "
        f"5th to 95th percentile {_percent(float(low))} to {_percent(float(high))}; the largest "
        f"{_percent(worst.error)} ({_name(worst)}). "
        f"Asked: within {limit:.0%}. {met}.",
        "Below zero, the allocator held more than was predicted: what lives inside kernels is not modelled"
        + (", nor is the allocator's rounding." if checks.kind == "cuda" else "."),
        *_workspaces(checks),
    ]


def _workspaces(checks: Checks) -> list[str]:
    """What was added to the predictions, where it was measured."""
    sizes = sorted({check.record.workspaces_mib for check in checks.checks if check.record.workspaces_mib})
    if not sizes:
        return []
    listed = " to ".join(f"{significant(size)} MiB" for size in dict.fromkeys((sizes[0], sizes[-1])))
    return [f"Predicted peaks are with cuBLAS's workspaces, which it keeps for good and which were measured: {listed}."]


def _name(check: Check) -> str:
    return f"{check.record.arm}, batch {check.record.batch_size:,}"


def _percent(share: float) -> str:
    """A share as signed percent; what is less than shown has no sign."""
    text = f"{100 * share:+.2f} %"
    return text if text[1:] != "0.00 %" else "0.00 %"


def text_table(rows: Sequence[Row]) -> pd.DataFrame:
    """The table a person reads: the distribution by arm."""
    return pd.DataFrame(
        {
            "arm": row.arm,
            "workload": row.workload,
            "cells": str(len(row.checks)),
            "batches": ", ".join(f"{batch:,}" for batch in sorted({check.record.batch_size for check in row.checks})),
            "lowest error": _percent(row.errors[0]),
            "median": _percent(row.median),
            "highest": _percent(row.errors[-1]),
            "within": f"{_within(row)} of {len(row.checks)}",
            REMARKS: f"farthest off: batch {row.worst.record.batch_size:,}, {significant(row.worst.predicted, 4)} MiB "
            f"predicted, {significant(row.worst.measured, 4)} measured",
        }
        for row in rows
    )


def _within(row: Row) -> int:
    limit = TOLERANCE["cuda" if row.checks[0].record.predicted_for == "cuda" else "cpu"]
    return sum(abs(error) <= limit for error in row.errors)


def tidy_table(checks: Checks) -> pd.DataFrame:
    """The table a program reads: a row per cell, in MiB."""
    columns = ("experiment", "workload", "method", "variant", "ratio", "batch_size", "sequence_length", "precision")
    return pd.DataFrame(
        {
            "device": checks.device,
            "predicted_for": checks.kind,
            **{name: getattr(check.record, name) for name in columns},
            "predicted_mib": check.predicted,
            "measured_mib": check.measured,
            "error": check.error,
            "within": abs(check.error) <= TOLERANCE[checks.kind],
            "cell_id": check.record.cell_id,
        }
        for check in checks.checks
    )
