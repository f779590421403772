"""What every figure of bars says alike: the facts on top, the notes below, the names of its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pandas as pd

from bench.core.record import Record
from bench.core.samples import block_means_ms
from figures.bars import Page, draw
from figures.claims import Verdict
from figures.report import REMARKS, Drawn, csv, markdown
from figures.style import house_style, to_bytes


class Chosen(Protocol):
    """The records that one figure of one device shows."""

    @property
    def device(self) -> str: ...
    @property
    def timed(self) -> Mapping[Any, Record]: ...
    @property
    def left_out(self) -> tuple[str, ...]: ...
    @property
    def shown(self) -> list[Record]: ...
    def values(self, column: str) -> list[Any]: ...


def listed(chosen: Chosen, column: str) -> str:
    """The distinct values of a column."""
    return ", ".join(str(value) for value in chosen.values(column) if value != "")


def _switch(chosen: Chosen, column: str) -> str:
    return " / ".join("on" if value else "off" for value in chosen.values(column))


def device_fact(chosen: Chosen, length: bool = True) -> str:
    """Device, library, arithmetic and toggles, and when the records were made."""
    shown = chosen.shown
    days = dict.fromkeys([shown[0].recorded_at[:10], shown[-1].recorded_at[:10]])
    drivers = f", driver {listed(chosen, 'driver')}" if listed(chosen, "driver") else ""
    lengths = f"length {listed(chosen, 'sequence_length')}, " if length else ""
    return (
        f"Device: {chosen.device}. torch {listed(chosen, 'torch_version')}{drivers}, {listed(chosen, 'precision')}, "
        f"{lengths}CUDA Graph {_switch(chosen, 'cuda_graph')}, compile {_switch(chosen, 'compile')}. "
        f"Recorded {' to '.join(days)}."
    )


def blocks_timed(chosen: Chosen) -> str:
    """How many undisturbed blocks the times are of, or nothing where nothing was timed."""
    counts = sorted({len(block_means_ms(record)) for record in chosen.timed.values() if record.status == "ok"})
    return f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else "".join(map(str, counts))


def data_fact(chosen: Chosen) -> str:
    """The data that the steps ran on, and in how many blocks."""
    blocks = blocks_timed(chosen)
    return f"Timed on {listed(chosen, 'dataset')!r} data, {blocks} undisturbed blocks." if blocks else "Nothing timed."


def mark_notes(marks: Iterable[str], words: Mapping[str, str]) -> list[str]:
    """What the marks mean that are there."""
    found = {mark for several in marks for mark in several}
    return [f"{mark} {meaning}." for mark, meaning in words.items() if mark in found]


def disturbed_note(count: int) -> list[str]:
    """What became of disturbed blocks, where there were any."""
    return [f"{count} disturbed block(s) in all are left out of times, intervals and ratios."] if count else []


def length_note(chosen: Chosen) -> list[str]:
    """That steps were timed at a length which is not the paper's, where they were."""
    lengths = chosen.values("sequence_length")
    if not chosen.timed or lengths == [128]:
        return []
    return [f"Timed at length {', '.join(map(str, lengths))}, not at the 128 of the paper's epoch."]


def last_notes(chosen: Chosen) -> list[str]:
    """Uncommitted changes, and the records that are left out."""
    dirty = any(record.git_dirty for record in chosen.shown)
    return [*(["Some records come from a tree with uncommitted changes."] if dirty else []), *chosen.left_out]


def remarks_by_arm(table: pd.DataFrame) -> list[str]:
    """The remarks of a table, each once per arm with all of its batch sizes."""
    batches: dict[tuple[str, str], list[str]] = {}
    for arm, batch, remark in zip(table["arm"], table["batch"], table[REMARKS], strict=True):
        if remark:
            batches.setdefault((arm, remark), []).append(batch)
    return [f"{arm}, batch {', '.join(those)}: {remark}" for (arm, remark), those in batches.items()]


def drawn(
    stem: str,
    page: Page,
    chosen: Chosen,
    notes: Sequence[str],
    table: pd.DataFrame,
    tidy: pd.DataFrame,
    judged: Sequence[Verdict],
    remarks: Sequence[str],
    left_aligned: frozenset[str],
    section: str,
) -> Drawn:
    """Draw the page and gather it with its Markdown page and CSV under file names that begin with ``stem``.

    The terminal gets the remarks below the table, then the notes but for the first, which explains the bars.
    """
    title, facts = page.title, page.subtitle
    with house_style():
        drawing = draw(page)
        files = {f"{stem}.{form}": to_bytes(drawing, form) for form in ("png", "svg")}
    files[f"{stem}.md"] = markdown(title, facts, f"{stem}.png", table, left_aligned, notes, judged)
    files[f"{stem}.csv"] = csv(tidy)
    below = (*remarks, *notes[1:])
    return Drawn(
        title, chosen.device, facts, tuple(notes), table, tuple(judged), files, below, left_aligned, section,
        records=tuple(chosen.shown),
    )  # fmt: skip
