"""Bands of bars for time and for peak memory: what figures of times and memory draw, from rows with these cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from bench.core.intervals import CONFIDENCE
from figures.page.bars import Band, Bar, Panel, value_label
from figures.page.footnotes import Footnotes
from figures.page.style import MEMORY_FILLS, TIME_FILLS
from figures.records.memory import CATEGORIES, Measured, MemoryCell
from figures.records.time_values import TimeCell


class Cells(Protocol):
    """A row of such a figure."""

    @property
    def time(self) -> TimeCell: ...
    @property
    def memory(self) -> Mapping[str, MemoryCell]: ...  # by target
    @property
    def measured(self) -> Measured: ...


#: What a device is called in headings.
DEVICE_NAMES = {"cuda": "a CUDA device", "cpu": "a CPU"}


def place_of(kind: str) -> str:
    """Where times were taken."""
    return {"cuda": "on the GPU", "cpu": "on the CPU"}[kind]


def marks_of(row: Cells) -> str:
    """The marks of all that is shown of a row."""
    return row.time.marks + "".join(cell.marks for cell in row.memory.values())


def panels_by_batch(
    rows: Sequence[Any], batches: Sequence[int], bar_of: Callable[[Any], Bar], title: str = "batch {}"
) -> tuple[Panel, ...]:
    """A panel per batch size with a bar for each of its rows."""
    return tuple(
        Panel(title.format(batch), tuple(bar_of(row) for row in rows if row.batch == batch)) for batch in batches
    )


def time_bar(cell: TimeCell, is_reference: bool, scale: float, footnotes: Footnotes) -> Bar:
    """The steps as a bar, then the amortised rare events; ``scale`` is how many of the unit the time's own one is."""
    time = cell.time
    if time is None:
        return Bar(instead=footnotes.instead(cell))
    total, rare = time.total, time.rare * scale
    fill = "steps, CoMERA" if is_reference else "steps"
    parts = [(fill, total.value * scale - rare), *([("rare", rare)] if rare else [])]
    interval = None if total.low is None or total.high is None else (total.low * scale, total.high * scale)
    label = value_label(total.value * scale, cell.ratio.value if cell.ratio else None, cell.marks)
    return Bar(tuple(parts), interval, label=label)


def time_band(heading: str, panels: tuple[Panel, ...], words: Mapping[str, str]) -> Band:
    """A band of times; ``words`` are those of the legend, by fill."""
    legend = (*words.items(), ("interval", f"{CONFIDENCE:.0%} interval over blocks"))
    return Band(heading, panels, TIME_FILLS, legend)


def memory_bar(cell: MemoryCell, measured: Measured, footnotes: Footnotes) -> Bar:
    """The prediction as a bar, with the measured peaks marked on it."""
    marks = tuple((name, size) for name, size in measured.items() if size is not None)
    if cell.peak is None:
        words = footnotes.instead(cell)
        return Bar(marks=marks, label=f"prediction {words}") if marks else Bar(instead=words)
    return Bar(cell.parts, marks=marks, label=value_label(cell.peak, cell.ratio, cell.marks))


def memory_band(
    target: str, panels: tuple[Panel, ...], cells: Sequence[MemoryCell], measured: bool, words: str = ""
) -> Band:
    """A band of predicted peaks; ``measured`` where those of the allocator are marked on them too."""
    legend = [(name, {"optimizer": "optimizer state"}.get(name, name)) for name in CATEGORIES]
    if any(name == "unsplit" for cell in cells for name, _ in cell.parts):
        legend.append(("unsplit", "not split"))
    if measured:
        legend += [("allocated", "allocated, measured"), ("reserved", "reserved, measured")]
    beside = ", and measured on this one" if measured else ""
    heading = f"Peak memory predicted for {DEVICE_NAMES[target]}, in MiB{beside}{words}"
    return Band(heading, panels, MEMORY_FILLS, tuple(legend))
