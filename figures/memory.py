"""Predicted peak memory by category."""

from __future__ import annotations

from bench.record import Record

#: Categories of a predicted peak, in drawing order.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries")


def parts_of_peak(record: Record, peak: float) -> tuple[tuple[str, float], ...]:
    """The peak by category; what the categories do not account for is ``unsplit``."""
    parts = []
    for name in CATEGORIES:
        size = getattr(record, f"predicted_{name}_mib")
        if size:
            parts.append((name, float(size)))
    rest = peak - sum(size for _, size in parts)
    if rest > 0.005 * peak:
        parts.append(("unsplit", rest))
    return tuple(parts)
