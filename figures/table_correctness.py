"""Layers, look-ups and steps of a device against float64 on a CPU: the largest error of each, and what was allowed.

``render`` is a pure function: the same records give the same bytes under the same file names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.core.record import Record
from figures.claims import Claim
from figures.device_table import drawn, older_code
from figures.report import REMARKS, Drawn
from figures.selection import ARMS, config_of, devices
from figures.tables import NOT_ASKED, OLDER

#: The experiment whose records the table is made of.
EXPERIMENT = "correctness"
TITLE = "Results on the device against float64 on a CPU"
LEFT_ALIGNED = frozenset({"what", "precision", "largest error", "of", REMARKS})

_WORKLOADS = ("linear", "lookup", "encoder")
_PRECISIONS = ("fp32", "tf32", "bf16")


@dataclass(frozen=True)
class Row:
    """The checks of one cell."""

    record: Record
    checks: tuple[dict[str, Any], ...]

    @property
    def what(self) -> str:
        """A layer, a look-up, or the steps of an arm."""
        config = config_of(self.record)
        settings, sizes = config.get("method_settings", {}), config.get("workload_settings", {})
        if self.record.workload == "linear":
            return f"layer, {sizes.get('in_features')} to {sizes.get('out_features')}"
        if self.record.workload == "lookup":
            return f"look-up, {settings.get('lookup')}"
        return f"steps, {self.record.arm}{', reset' if settings.get('reset') else ''}"

    @property
    def judged(self) -> list[dict[str, Any]]:
        """Checks that have a meaning on this device."""
        return [check for check in self.checks if check["passed"] is not None]

    @property
    def passed(self) -> int:
        return sum(check["passed"] for check in self.judged)

    @property
    def worst(self) -> dict[str, Any] | None:
        """The check that used most of its tolerance, one without any result before all others."""

        def used(check: dict[str, Any]) -> float:
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
        arm, precision = self.record.arm, self.record.precision
        return (
            _WORKLOADS.index(self.record.workload) if self.record.workload in _WORKLOADS else len(_WORKLOADS),
            ARMS.index(arm) if arm in ARMS else len(ARMS),
            self.what,
            _PRECISIONS.index(precision) if precision in _PRECISIONS else len(_PRECISIONS),
        )


def rows_of(records: Iterable[Record]) -> list[Row]:
    """A row per cell: layers, look-ups, steps, each from the most exact arithmetic to the least."""
    return sorted((Row(record, tuple(record.samples.get("checks", ()))) for record in records), key=lambda r: r.place)


def _error(value: float | None) -> str:
    return "no result" if value is None else f"{value:.1e}"


def text_table(rows: Sequence[Row], older: frozenset[str]) -> pd.DataFrame:
    """The table a person reads."""
    lines = []
    for row in rows:
        worst = row.worst
        lines.append(
            {
                "what": f"{row.what}{f' {OLDER}' if row.record.cell_id in older else ''}",
                "precision": row.record.precision,
                "passed": f"{row.passed} of {len(row.judged)}",
                "largest error": _error(worst["error"]) if worst else row.record.status,
                "allowed": f"{worst['tolerance']:.0e}" if worst else NOT_ASKED,
                "of": worst["name"] if worst else NOT_ASKED,
                REMARKS: "; ".join(row.remarks),
            }
        )
    return pd.DataFrame(lines)


def tidy_table(rows: Sequence[Row]) -> pd.DataFrame:
    """The table a program reads: a row per check."""
    return pd.DataFrame(
        {
            "device": row.record.device,
            "what": row.what,
            "precision": row.record.precision,
            "status": row.record.status,
            "check": check.get("name", ""),
            "error": check.get("error"),
            "tolerance": check.get("tolerance"),
            "passed": {True: "yes", False: "no"}.get(check.get("passed"), ""),  # type: ignore[arg-type]
            "message": check.get("message", row.record.message),
            "cell_id": row.record.cell_id,
        }
        for row in rows
        for check in row.checks or ({},)
    )


def _finding(rows: Sequence[Row]) -> str:
    judged, passed = sum(len(row.judged) for row in rows), sum(row.passed for row in rows)
    silent = sum(not row.checks for row in rows)
    verdict = "all passed" if passed == judged else f"{judged - passed} FAILED"
    return f"{judged} checks in {len(rows)} cells: {verdict}" + (
        f"; {silent} cell(s) without result." if silent else "."
    )


_NOTES = (
    "Errors are relative, in the Euclidean norm over all that is compared: ‖found - exact‖ / ‖exact‖, exact in float64 "
    "on a CPU. Shown is the check that came closest to what is allowed.",
    "layer: output and every gradient, by each contraction plan. look-up: rows and gradients. steps: loss, gradients "
    "and update of five steps, each begun at the reference's weights; captured against eager steps on CUDA.",
)


def _of_device(records: Sequence[Record], device: str) -> Drawn:
    rows = rows_of(record for record in records if record.device == device)
    shown = [row.record for row in rows]
    remarks = [f"{row.what}, {row.record.precision}: {remark}." for row in rows for remark in row.remarks]
    tables = text_table(rows, older_code(shown)), tidy_table(rows)
    return drawn(
        "table_correctness", TITLE, shown, [_finding(rows)], tables, _NOTES, LEFT_ALIGNED, below=remarks
    )  # fmt: skip


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:  # noqa: ARG001 - as every artifact
    """One table per device; it touches no claim."""
    return [_of_device(records, device) for device in devices(records)]
