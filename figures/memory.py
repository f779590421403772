"""Predicted peak memory by category."""

from __future__ import annotations

from dataclasses import dataclass

from bench.record import Record

#: Categories of a predicted peak, in drawing order.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries")


@dataclass(frozen=True)
class MemoryCell:
    """Predicted peak of one cell for one target, in MiB."""

    status: str
    message: str = ""
    peak: float | None = None
    parts: tuple[tuple[str, float], ...] = ()
    ratio: float | None = None
    marks: str = ""


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
