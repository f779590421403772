"""The claims ledger as text of 120 columns, as Markdown and as CSV."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import groupby

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from figures.claims import Outcome
from figures.ledger import Entry, summary
from figures.report import csv
from figures.tables import to_markdown

#: Columns of the terminal that the text takes.
WIDTH = 120

_NOTES = (
    "?: a transcription from memory, unconfirmed.",
    "In brackets: 95 % interval. All of it decides, at every batch size; what cannot decide is shown all the same.",
)
_LEFT = frozenset({"claim", "artifact", "verdict", "device", "ours", "why", "decided by", "tolerance", "on"})


def _published(entry: Entry) -> str:
    """What was published; a question mark where that is unconfirmed."""
    return f"{entry.claim.published}{'?' if entry.claim.unconfirmed else ''}"


def _subject(entry: Entry) -> str:
    return ", ".join(filter(None, (entry.claim.quantity, entry.claim.setting)))


def _by_device(entry: Entry) -> Iterator[tuple[str, Outcome, str, str]]:
    """Device, verdict, ours and why; once without a device where none has records."""
    for verdict in entry.verdicts:
        yield verdict.device, verdict.outcome, verdict.ours_text, verdict.why
    if not entry.verdicts:
        yield "", entry.outcome, "none", entry.why


def _decided_by(entry: Entry) -> str:
    """The rule in words, beginning with its experiments."""
    rule = entry.rule
    return f"{', '.join(rule.experiments) or 'no experiment yet'}: {rule.expression}"


def _grouped(entries: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    """The entries by artifact, both in the ledger's order."""
    order = list(dict.fromkeys(entry.claim.artifact for entry in entries))
    ordered = sorted(entries, key=lambda entry: order.index(entry.claim.artifact))
    return [(artifact, list(group)) for artifact, group in groupby(ordered, lambda entry: entry.claim.artifact)]


def _add(table: Table, entry: Entry) -> None:
    """A row per device; the claim and its rule stand in the first."""
    rule = entry.rule
    tolerance = f"tolerance {rule.tolerance_text}, " if rule.tolerance else ""
    claim = Text(f"{entry.claim.id}\n{_published(entry)}: {_subject(entry)}")
    decided = Text(f"{_decided_by(entry)}; {tolerance}device {rule.device}")
    for device, outcome, ours, why in _by_device(entry):
        found = " ".join(filter(None, (f"{device}:" if device else "", f"{ours}." if device else "", why)))
        table.add_row(claim, decided, Text(outcome), Text(found))
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


def _markdown_table(entries: Sequence[Entry]) -> str:
    rows = [
        {
            "claim": entry.claim.id if number == 0 else "",
            "published": _published(entry) if number == 0 else "",
            "verdict": outcome,
            "device": device,
            "ours": ours,
            "why": why,
            "decided by": _decided_by(entry) if number == 0 else "",
            "tolerance": entry.rule.tolerance_text if number == 0 else "",
            "on": entry.rule.device if number == 0 else "",
        }
        for entry in entries
        for number, (device, outcome, ours, why) in enumerate(_by_device(entry))
    ]
    return to_markdown(pd.DataFrame(rows), _LEFT)


def to_markdown_page(entries: Sequence[Entry]) -> str:
    """A page with a table per artifact."""
    parts = ["# Claims", summary(entries), "\n".join(f"* {note}" for note in _NOTES)]
    for artifact, group in _grouped(entries):
        parts += [f"## {artifact}", _markdown_table(group).rstrip()]
    return "\n\n".join(parts) + "\n"


def to_csv(entries: Sequence[Entry]) -> str:
    """The table a program reads: a line per claim and device, in the ledger's order."""
    rows = [
        {
            "claim": entry.claim.id,
            "artifact": entry.claim.artifact,
            "quantity": entry.claim.quantity,
            "setting": entry.claim.setting,
            "published": entry.claim.published,
            "published_low": entry.claim.low,
            "published_high": entry.claim.high,
            "unit": entry.claim.unit,
            "standing": entry.claim.standing,
            "experiments": " ".join(entry.rule.experiments),
            "decided_by": entry.rule.expression,
            "tolerance": entry.rule.tolerance,
            "tolerance_unit": entry.rule.unit,
            "device_kind": entry.rule.device,
            "device": device,
            "verdict": outcome,
            "ours": ours,
            "why": why,
        }
        for entry in entries
        for device, outcome, ours, why in _by_device(entry)
    ]
    return csv(pd.DataFrame(rows)).decode()
