"""Predicted against allocated memory, from the records of steps on a CUDA device."""

from collections.abc import Sequence
from typing import Any

from bench.core.memory import TOLERANCE, prediction_error
from bench.core.record import Record

#: Experiments in which every arm takes steps at every batch size.
EXPERIMENTS = ("fig1", "prediction")

#: A prediction this much off, as a share of what was allocated, is pointed out.
_LIMIT = TOLERANCE["cuda"]


def memory_rows(records: Sequence[Record], device: str) -> list[dict[str, Any]]:
    """A row per arm of this device whose allocated peak is known, with the error of the prediction as ``off``.

    Sizes are in MiB, the predicted one with cuBLAS's workspaces.
    """
    rows = []
    for record in records:
        predicted, allocated = record.peak_memory_predicted_mib, record.peak_memory_allocated_mib
        if record.device != device or record.status != "ok" or predicted is None or allocated is None:
            continue
        predicted += record.workspaces_mib or 0.0
        off = prediction_error(predicted, allocated)
        row = {name: getattr(record, name) for name in ("experiment", "arm", "batch_size", "precision")}
        sizes = {"predicted_mib": round(predicted, 1), "allocated_mib": round(allocated, 1)}
        rows.append({**row, **sizes, "off": round(off, 4), "within": abs(off) <= _LIMIT})
    return sorted(rows, key=lambda row: (row["experiment"], row["precision"], row["batch_size"], row["arm"]))


def described(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line on how many predictions hold, and one for each that does not."""
    if not rows:
        return []
    wrong = [row for row in rows if not row["within"]]
    lines = [f"predicted memory: {len(rows) - len(wrong)} of {len(rows)} within {_LIMIT:.0%} of the allocated peak"]
    lines += [
        f"  {row['experiment']}, {row['arm']}, batch {row['batch_size']}, {row['precision']}: "
        f"{row['predicted_mib']:,.1f} MiB predicted, {row['allocated_mib']:,.1f} MiB allocated ({row['off']:+.1%})"
        for row in wrong
    ]
    return lines
