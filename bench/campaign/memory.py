"""Predicted against allocated memory, from the records of timed steps on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.record import Record

#: A prediction this much off, as a share of what was allocated, is pointed out.
TOLERANCE = 0.05


def memory_rows(records: Sequence[Record], device: str) -> list[dict[str, Any]]:
    """A row per timed arm whose allocated peak is known, those that are off by more than :data:`TOLERANCE` marked.

    Args:
        records: of an experiment that times steps; those of other devices are left out.
        device: the machine's name for its device.

    Returns:
        Rows of ``arm``, ``batch_size``, ``precision``, ``predicted_mib``, ``allocated_mib``, ``off``, the allocated
        peak over the predicted one, less one, and ``within``, whether that is no more than the tolerance.
    """
    rows = []
    for record in records:
        predicted, allocated = record.peak_memory_predicted_mib, record.peak_memory_allocated_mib
        if record.device != device or record.status != "ok" or predicted is None or allocated is None:
            continue
        off = allocated / predicted - 1
        rows.append(
            {
                "arm": record.arm,
                "batch_size": record.batch_size,
                "precision": record.precision,
                "predicted_mib": round(predicted, 1),
                "allocated_mib": round(allocated, 1),
                "off": round(off, 4),
                "within": abs(off) <= TOLERANCE,
            }
        )
    return sorted(rows, key=lambda row: (row["precision"], row["batch_size"], row["arm"]))


def described(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line on how many predictions hold, and one for each that does not."""
    if not rows:
        return []
    wrong = [row for row in rows if not row["within"]]
    lines = [f"predicted memory: {len(rows) - len(wrong)} of {len(rows)} within {TOLERANCE:.0%} of the allocated peak"]
    lines += [
        f"  {row['arm']}, batch {row['batch_size']}, {row['precision']}: {row['predicted_mib']:,.1f} MiB predicted, "
        f"{row['allocated_mib']:,.1f} MiB allocated ({row['off']:+.1%})"
        for row in wrong
    ]
    return lines
