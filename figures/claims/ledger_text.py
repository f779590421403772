"""The claims ledger as text of 120 columns, as Markdown and as CSV."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from figures.claims.ledger import Entry, Line, lines_of, summary
from figures.page.drawn import csv
from figures.page.table import Column, left_aligned, text_table, tidy_table, to_markdown

#: Columns of the terminal that the text takes.
WIDTH = 120

_NOTES = (
    "?: a transcription from memory, unconfirmed.",
    "In brackets: 95 % interval. All of it decides, at every batch size; what cannot decide is shown all the same.",
)


def _published(entry: Entry) -> str:
    return f"{entry.claim.published}{'?' if entry.claim.unconfirmed else ''}"


def _decided_by(entry: Entry) -> str:
    """The rule in words, beginning with its experiments."""
    return f"{', '.join(entry.experiments) or 'no experiment yet'}: {entry.rule.expression}"


def _grouped(entries: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    order = list(dict.fromkeys(entry.claim.artifact for entry in entries))
    ordered = sorted(entries, key=lambda entry: order.index(entry.claim.artifact))
    return [(artifact, list(group)) for artifact, group in groupby(ordered, lambda entry: entry.claim.artifact)]


def _add(table: Table, entry: Entry) -> None:
    """A row per device; the claim and its rule stand in the first."""
    rule = entry.rule
    tolerance = f"tolerance {rule.tolerance_text}, " if rule.tolerance else ""
    subject = ", ".join(filter(None, (entry.claim.quantity, entry.claim.setting)))
    claim = Text(f"{entry.claim.id}\n{_published(entry)}: {subject}")
    decided = Text(f"{_decided_by(entry)}; {tolerance}device {rule.device}")
    for line in lines_of(entry):
        where = (f"{line.device}:", f"{line.ours}.") if line.device else ()
        table.add_row(claim, decided, Text(line.outcome), Text(" ".join((*where, line.why))))
        claim = decided = Text("")
    table.add_row()


def to_text(entries: Sequence[Entry]) -> str:
    """A table by artifact, for a terminal of 120 columns; the first line counts the outcomes."""
    page = io.StringIO()
    console = Console(file=page, width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(Text(summary(entries)))
    for note in _NOTES:
        console.print(Text(note))
    for artifact, group in _grouped(entries):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=WIDTH, title=Text(artifact), title_justify="left")
        for name, width in (("claim, published", 27), ("decided by", 28), ("verdict", 15), ("ours, why", 41)):
            table.add_column(name, width=width)
        for entry in group:
            _add(table, entry)
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def _tidy(line: Line) -> dict[str, object]:
    claim, rule = line.entry.claim, line.entry.rule
    return {
        "claim": claim.id, "artifact": claim.artifact, "quantity": claim.quantity, "setting": claim.setting,
        "published": claim.published, "published_low": claim.low, "published_high": claim.high, "unit": claim.unit,
        "standing": claim.standing, "experiments": " ".join(line.entry.experiments), "decided_by": rule.expression,
        "tolerance": rule.tolerance, "tolerance_unit": rule.unit, "device_kind": rule.device, "device": line.device,
        "verdict": line.outcome, "ours": line.ours, "why": line.why,
    }  # fmt: skip


def _first(text: Callable[[Entry], str]) -> Callable[[Line], str]:
    """What stands in the first line of a claim alone."""
    return lambda line: text(line.entry) if line.is_first else ""


_COLUMNS: tuple[Column[Line], ...] = (
    Column("claim", _first(lambda entry: entry.claim.id), _tidy, left=True),
    Column("published", _first(_published)),
    Column("verdict", lambda line: line.outcome, left=True),
    Column("device", lambda line: line.device, left=True),
    Column("ours", lambda line: line.ours, left=True),
    Column("why", lambda line: line.why, left=True),
    Column("decided by", _first(_decided_by), left=True),
    Column("tolerance", _first(lambda entry: entry.rule.tolerance_text), left=True),
    Column("on", _first(lambda entry: entry.rule.device), left=True),
)


def to_markdown_page(entries: Sequence[Entry]) -> str:
    """A page with a table per artifact."""
    parts = ["# Claims", summary(entries), "\n".join(f"* {note}" for note in _NOTES)]
    for artifact, group in _grouped(entries):
        lines = [line for entry in group for line in lines_of(entry)]
        parts += [f"## {artifact}", to_markdown(text_table(_COLUMNS, lines), left_aligned(_COLUMNS)).rstrip()]
    return "\n\n".join(parts) + "\n"


def to_csv(entries: Sequence[Entry]) -> str:
    """The table that programs read: a line per claim and device, in the ledger's order."""
    return csv(tidy_table(_COLUMNS, [line for entry in entries for line in lines_of(entry)])).decode()
