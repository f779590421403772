"""Peak memory as a cell of a figure: predicted by category, with what was measured marked on top."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.core.record import Record
from figures.bars import Bar, value_label
from figures.reasons import Reasons
from figures.tables import NOT_ASKED, significant

#: Categories of a predicted peak, in drawing order.
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "temporaries")

#: Peaks of the allocator, (name of the marker, MiB or None where not measured).
Measured = tuple[tuple[str, float | None], ...]


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


def memory_cell(record: Record, below: float | None, marks: str) -> MemoryCell:
    """The prediction that a record holds, and its ratio to the peak ``below`` in MiB, where there is one."""
    peak = record.peak_memory_predicted_mib
    if peak is None:
        return MemoryCell("no prediction" if record.status == "ok" else record.status, record.message, marks=marks)
    message = record.message if record.status == "ok" else ""
    return MemoryCell("ok", message, peak, parts_of_peak(record, peak), peak / below if below else None, marks)


def measured_peaks(record: Record | None) -> Measured:
    """What the allocator of the device said."""
    return (
        ("allocated", record.peak_memory_allocated_mib if record else None),
        ("reserved", record.peak_memory_reserved_mib if record else None),
    )


def memory_bar(cell: MemoryCell, measured: Measured, reasons: Reasons) -> Bar:
    """The prediction as a bar, with the measured peaks marked on it."""
    marks = tuple((name, size) for name, size in measured if size is not None)
    if cell.peak is None:
        words = reasons.instead(cell)
        return Bar(marks=marks, label=f"prediction {words}") if marks else Bar(instead=words)
    return Bar(cell.parts, marks=marks, label=value_label(cell.peak, cell.ratio, cell.marks))


def memory_legend(cells: Iterable[MemoryCell], measured: bool) -> tuple[tuple[str, str], ...]:
    """The fills of predicted peaks and, where anything was measured, its markers, with their words."""
    legend = [(name, {"optimizer": "optimizer state"}.get(name, name)) for name in CATEGORIES]
    if any(name == "unsplit" for cell in cells for name, _ in cell.parts):
        legend.append(("unsplit", "not split"))
    if measured:
        legend += [("allocated", "allocated, measured"), ("reserved", "reserved, measured")]
    return tuple(legend)


def memory_text(target: str, cell: MemoryCell, over: str, is_reference: bool) -> dict[str, str]:
    """Peak and ratio as two columns of a table that a person reads; ``over`` is what the ratio is to."""
    peak = significant(cell.peak, 4) if cell.peak is not None else cell.status or NOT_ASKED
    ratio = f"{significant(cell.ratio)}x" if cell.ratio is not None else NOT_ASKED
    return {
        f"peak MiB, {target}": f"{peak} {cell.marks}".strip(),
        f"{target} / {over}": "1" if is_reference and cell.peak is not None else ratio,
    }


def measured_text(measured: Measured) -> dict[str, str]:
    """The measured peaks as columns of a table that a person reads."""
    return {f"{name} MiB": NOT_ASKED if size is None else significant(size, 4) for name, size in measured}


def memory_columns(target: str, cell: MemoryCell, over: str) -> dict[str, object]:
    """The cell as columns of a tidy table, in MiB."""
    parts = dict(cell.parts)
    return {
        f"{target}_status": cell.status or "not in the grid",
        f"{target}_message": cell.message,
        f"{target}_peak_mib": cell.peak,
        **{f"{target}_{name}_mib": parts.get(name) for name in CATEGORIES},
        f"{target}_over_{over}": cell.ratio,
    }


def measured_columns(measured: Measured) -> dict[str, object]:
    """The measured peaks as columns of a tidy table."""
    return {f"{name}_mib": size for name, size in measured}
