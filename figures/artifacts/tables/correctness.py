"""Layers, look-ups and steps of a device against float64 on a CPU: the largest error of each, and what was allowed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.record import Record
from figures.artifact import Artifact
from figures.page.drawn import Caption
from figures.page.notes import closing_notes, device_fact
from figures.records.select import ARMS, Selected, method_settings, pages_by_device, workload_settings
from figures.text import REMARKS, Column

_WORKLOADS = ("linear", "lookup", "encoder")
_PRECISIONS = ("fp32", "tf32", "bf16")

#: A check as its record has it.
Check = Mapping[str, Any]


@dataclass(frozen=True)
class CorrectnessRow:
    """The checks of one cell."""

    record: Record
    mark: str  # † where older code made the record
    checks: tuple[Check, ...]

    @property
    def what(self) -> str:
        """A layer, a look-up, or the steps of an arm."""
        settings, sizes = method_settings(self.record), workload_settings(self.record)
        if self.record.workload == "linear":
            return f"layer, {sizes.get('in_features')} to {sizes.get('out_features')}"
        if self.record.workload == "lookup":
            return f"look-up, {settings.get('lookup')}"
        return f"steps, {self.record.arm}{', reset' if settings.get('reset') else ''}"

    @property
    def judged(self) -> list[Check]:
        """Checks that have a meaning on this device."""
        return [check for check in self.checks if check["passed"] is not None]

    @property
    def passed(self) -> int:
        return sum(check["passed"] for check in self.judged)

    @property
    def worst(self) -> Check | None:
        """The check that used most of its tolerance, one without any result before all others."""

        def used(check: Check) -> float:
            return float("inf") if check["error"] is None else check["error"] / check["tolerance"]

        return max(self.judged, key=used, default=None)

    @property
    def remarks(self) -> list[str]:
        """What failed, and what has no meaning here."""
        lines = [f"{check['name']}: {check['message']}" for check in self.checks if not check["passed"]]
        if self.record.status != "ok" and not lines:
            lines.append(f"{self.record.status}: {' '.join(self.record.message.split())}")
        return [line.rstrip(".") for line in lines]

    @property
    def place(self) -> tuple[int, int, str, int]:
        record = self.record
        places = zip((_WORKLOADS, ARMS, _PRECISIONS), (record.workload, record.arm, record.precision), strict=True)
        workload, arm, precision = (names.index(one) if one in names else len(names) for names, one in places)
        return workload, arm, self.what, precision


def rows_of(selection: Selected) -> list[CorrectnessRow]:
    """A row per cell: layers, look-ups, steps, each from the most exact arithmetic to the least."""
    rows = [CorrectnessRow(one, selection.older(one), tuple(one.samples.get("checks", ()))) for one in selection.shown]
    return sorted(rows, key=lambda row: row.place)


def _error(row: CorrectnessRow) -> str:
    if row.worst is None:
        return row.record.status
    return "no result" if row.worst["error"] is None else f"{row.worst['error']:.1e}"


def columns(*_: object) -> list[Column[Any]]:
    """A row of the table per cell, of the CSV per check."""

    def tidy(line: tuple[CorrectnessRow, Check]) -> dict[str, object]:
        row, check = line
        return {
            "device": row.record.device,
            "what": row.what,
            "precision": row.record.precision,
            "status": row.record.status,
            "check": check.get("name", ""),
            "error": check.get("error"),
            "tolerance": check.get("tolerance"),
            "passed": {True: "yes", False: "no", None: ""}[check.get("passed")],
            "message": check.get("message", row.record.message),
            "cell_id": row.record.cell_id,
        }

    return [
        Column("what", lambda row: f"{row.what} {row.mark}".rstrip(), left=True),
        Column("precision", lambda row: row.record.precision, left=True),
        Column("passed", lambda row: f"{row.passed} of {len(row.judged)}"),
        Column("largest error", _error, left=True),
        Column("allowed", lambda row: f"{row.worst['tolerance']:.0e}" if row.worst else None),
        Column("of", lambda row: row.worst and row.worst["name"], left=True),
        Column(REMARKS, lambda row: "; ".join(row.remarks), left=True),
        Column(tidy=tidy),
    ]


def tidy_rows(_: Selected, rows: Sequence[CorrectnessRow]) -> list[tuple[CorrectnessRow, Check]]:
    return [(row, check) for row in rows for check in row.checks or ({},)]


def caption(selection: Selected, rows: Sequence[CorrectnessRow]) -> Caption:
    judged, passed = sum(len(row.judged) for row in rows), sum(row.passed for row in rows)
    verdict = "all passed" if passed == judged else f"{judged - passed} FAILED"
    silent = sum(not row.checks for row in rows)
    without = f"; {silent} cell(s) without result" if silent else ""
    return Caption(
        title="Results on the device against float64 on a CPU",
        facts=(device_fact(selection), f"{judged} checks in {len(rows)} cells: {verdict}{without}."),
        notes=(
            "Errors are relative, in the Euclidean norm over all that is compared: ‖found - exact‖ / ‖exact‖, exact in "
            "float64 on a CPU. Shown is the check that came closest to what is allowed.",
            "layer: output and every gradient, by each contraction plan. look-up: rows and gradients. steps: loss, "
            "gradients and update of five steps, each begun at the reference's weights; captured against eager steps "
            "on CUDA.",
            *closing_notes(selection),
        ),
        remarks=[f"{row.what}, {row.record.precision}: {remark}." for row in rows for remark in row.remarks],
    )


ARTIFACT = Artifact(
    name="table_correctness",
    heading="Correctness on the device",
    summary="layers, look-ups and steps on a device against float64 on a CPU: errors and what was allowed; "
    "a table per device",
    experiments=("correctness",),
    measure="check",
    order=90,
    select=pages_by_device,
    rows=rows_of,
    columns=columns,
    tidy_rows=tidy_rows,
    caption=caption,
)
