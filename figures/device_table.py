"""What tables of one device that touch no claim have in common: facts on top, marks below, the names of the files."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bench.core.record import Record, device_folder
from figures.report import Drawn, csv, markdown
from figures.selection import oldest_first
from figures.tables import OLDER, OLDER_WORDS


def older_code(records: Sequence[Record]) -> frozenset[str]:
    """``cell_id`` of the records that other code made than the newest one."""
    ordered = oldest_first(records)
    return frozenset(record.cell_id for record in ordered if record.code_id != ordered[-1].code_id)


def _about(device: str, records: Sequence[Record]) -> str:
    def listed(column: str) -> str:
        return ", ".join(sorted({getattr(record, column) for record in records} - {""}))

    days = dict.fromkeys((records[0].recorded_at[:10], records[-1].recorded_at[:10]))
    drivers = f", driver {listed('driver')}" if listed("driver") else ""
    return f"Device: {device}. torch {listed('torch_version')}{drivers}. Recorded {' to '.join(days)}."


def drawn(
    name: str,
    title: str,
    records: Sequence[Record],
    facts: Sequence[str],
    tables: tuple[pd.DataFrame, pd.DataFrame],
    notes: Sequence[str],
    left_aligned: frozenset[str],
    section: str | None = None,
    below: Sequence[str] = (),
) -> Drawn:
    """Gather a table with its Markdown page and CSV.

    Args:
        name: with which the names of its files begin.
        title: of the page.
        records: those shown, at least one, all of one device.
        facts: what they found, in sentences.
        tables: as a person reads it, as a program does.
        notes: what a reader has to know to read it.
        left_aligned: columns of words.
        section: the column whose change starts a new section.
        below: remarks that a terminal shows in front of the notes.
    """
    ordered = oldest_first(records)
    device = ordered[0].device
    about = (_about(device, ordered), *facts)
    lines = list(notes)
    if older_code(ordered):
        lines.append(f"{OLDER} {OLDER_WORDS}.")
    if any(record.git_dirty for record in ordered):
        lines.append("Some records come from a tree with uncommitted changes.")
    stem = f"{name}-{device_folder(device)}"
    files = {
        f"{stem}.md": markdown(title, about, "", tables[0], left_aligned, lines, ()),
        f"{stem}.csv": csv(tables[1]),
    }
    return Drawn(
        title, device, about, tuple(lines), tables[0], (), files, (*below, *lines), left_aligned, section,
        records=tuple(ordered),
    )  # fmt: skip
