"""Bands of bars for time and for peak memory: what figures of times and memory draw, from rows with these cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.core.intervals import CONFIDENCE
from figures.page.bars import Band, Bar, Panel, value_label
from figures.page.footnotes import Footnotes
from figures.page.style import MEMORY_FILLS, TIME_FILLS
from figures.records.memory import CATEGORIES, Measured, MemoryCell


def panels(
    rows: Sequence[Any], batches: Sequence[int], bar_of: Callable[[Any], Bar], title: str = "batch {}"
) -> tuple[Panel, ...]:
    """A panel per batch size with a bar for each of its rows."""
    return tuple(
        Panel(title.format(batch), tuple(bar_of(row) for row in rows if row.batch == batch)) for batch in batches
    )


def time_bar(row: Any, scale: float, footnotes: Footnotes) -> Bar:
    """The steps as a bar, then the amortised rare events; ``scale`` is how many of the unit the time's own one is."""
    time = row.time.time
    if time is None:
        return Bar(instead=footnotes.instead(row.time))
    total, rare = time.total, time.rare * scale
    fill = "steps, CoMERA" if row.is_reference else "steps"
    parts = [(fill, total.value * scale - rare), *([("rare", rare)] if rare else [])]
    interval = None if total.low is None or total.high is None else (total.low * scale, total.high * scale)
    ratio = row.time.ratio.value if row.time.ratio else None
    return Bar(tuple(parts), interval, label=value_label(total.value * scale, ratio, row.time.marks))


def time_band(heading: str, kind: str, bars: tuple[Panel, ...], words: Mapping[str, str]) -> Band:
    """A band of times; ``heading`` says where, ``{}``, on a ``kind`` of device; ``words`` are the legend's, by fill."""
    where = {"cuda": "on the GPU", "cpu": "on the CPU"}[kind]
    return Band(
        heading.format(where),
        bars,
        TIME_FILLS,
        (*words.items(), ("interval", f"{CONFIDENCE:.0%} interval over blocks")),
    )


def memory_bar(cell: MemoryCell, measured: Measured, footnotes: Footnotes) -> Bar:
    """The prediction as a bar, with the measured peaks marked on it."""
    marks = tuple((name, size) for name, size in measured.items() if size is not None)
    if cell.peak is None:
        words = footnotes.instead(cell)
        return Bar(marks=marks, label=f"prediction {words}") if marks else Bar(instead=words)
    return Bar(cell.parts, marks=marks, label=value_label(cell.peak, cell.ratio, cell.marks))


def memory_band(target: str, bars: tuple[Panel, ...], rows: Sequence[Any], measured: bool, words: str = "") -> Band:
    """A band of predicted peaks; ``measured`` where those of the allocator are marked on them too."""
    legend = [(name, {"optimizer": "optimizer state"}.get(name, name)) for name in CATEGORIES]
    if any(name == "unsplit" for row in rows for name, _ in row.memory[target].parts):
        legend.append(("unsplit", "not split"))
    if measured:
        legend += [("allocated", "allocated, measured"), ("reserved", "reserved, measured")]
    device = {"cuda": "a CUDA device", "cpu": "a CPU"}[target]
    heading = f"Peak memory predicted for {device}, in MiB{', and measured on this one' if measured else ''}{words}"
    return Band(heading, bars, MEMORY_FILLS, tuple(legend))
