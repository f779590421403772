"""Peak memory as figures show it: predicted by category, beside the peaks of the device's allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.core.record import Record
from figures.page.footnotes import Missing, in_words
from figures.page.table import Column, ratio_text, significant

#: Categories of a predicted peak, in drawing order.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries")

#: Peaks of the allocator in MiB by name, None where not measured.
Measured = Mapping[str, float | None]


@dataclass(frozen=True)
class MemoryCell(Missing):
    """Predicted peak of one cell for one target, in MiB, by category too; ``ratio`` is to the reference's."""

    peak: float | None = None
    parts: tuple[tuple[str, float], ...] = ()
    ratio: float | None = None


def parts_of_peak(record: Record, peak: float) -> tuple[tuple[str, float], ...]:
    """The peak by category; what the categories do not account for is ``unsplit``."""
    sizes = {name: getattr(record, f"predicted_{name}_mib") for name in CATEGORIES}
    parts = [(name, float(size)) for name, size in sizes.items() if size]
    rest = peak - sum(size for _, size in parts)
    return (*parts, *([("unsplit", rest)] if rest > 0.005 * peak else []))


def memory_cell(record: Record, below: float | None, marks: str) -> MemoryCell:
    """The prediction that a record holds, and its ratio to the peak ``below`` in MiB, where there is one."""
    peak = record.peak_memory_predicted_mib
    if peak is None:
        return MemoryCell("no prediction" if record.status == "ok" else record.status, record.message, marks)
    message = record.message if record.status == "ok" else ""
    return MemoryCell("ok", message, marks, peak, parts_of_peak(record, peak), quotient(peak, below))


def measured_peaks(record: Record | None) -> Measured:
    """The peaks that the allocator of the device reported."""
    return {name: getattr(record, f"peak_memory_{name}_mib", None) for name in ("allocated", "reserved")}


def quotient(above: float | None, below: float | None) -> float | None:
    """None where one is unknown, or where nothing is left to divide by."""
    return above / below if above and below else None


def prediction_error(predicted: float, measured: float) -> float:
    """The error of a predicted peak as a share of the measured one; below zero, too little was predicted.

    >>> round(prediction_error(95.0, 100.0), 3)
    -0.05
    """
    return predicted / measured - 1


def memory_columns(target: str, over: str, shown: bool = True) -> list[Column[Any]]:
    """The cell ``row.memory[target]`` as columns of tables, in MiB.

    Args:
        target: the device that memory is predicted for.
        over: what ratios are to.
        shown: whether the table for people has them too.
    """

    def peak(row: Any) -> str:
        cell: MemoryCell = row.memory[target]
        return f"{in_words(cell) if cell.peak is None else significant(cell.peak, 4)} {cell.marks}".strip()

    def ratio(row: Any) -> str:
        cell: MemoryCell = row.memory[target]
        return ratio_text(cell.ratio, row.is_reference and cell.peak is not None)

    def tidy(row: Any) -> dict[str, object]:
        cell: MemoryCell = row.memory[target]
        parts = {f"{target}_{name}_mib": dict(cell.parts).get(name) for name in CATEGORIES}
        status = {f"{target}_status": cell.status or "not in the grid", f"{target}_message": cell.message}
        return {**status, f"{target}_peak_mib": cell.peak, **parts, f"{target}_over_{over}": cell.ratio}

    if not shown:
        return [Column(tidy=tidy)]
    return [Column(f"peak MiB, {target}", peak, tidy), Column(f"{target} / {over}", ratio)]


def measured_columns(shown: bool) -> list[Column[Any]]:
    """The peaks ``row.measured`` as columns of tables, in MiB; ``shown`` where people are to see them too."""

    def column(name: str) -> Column[Any]:
        text = (lambda row: significant(row.measured[name], 4)) if shown else None
        return Column(f"{name} MiB", text, lambda row: {f"{name}_mib": row.measured[name]})

    return [column("allocated"), column("reserved")]
