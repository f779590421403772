"""The claims ledger as text of 120 columns, as Markdown and as CSV."""

import io
from collections.abc import Sequence
from itertools import groupby

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.core.intervals import CONFIDENCE, MIN_LAUNCHES
from figures.ledger.judging import Entry, LedgerLine, compared, fairness, lines_of, rolled_up, summary
from figures.text import csv, to_markdown

#: Columns of the terminal that the text takes.
WIDTH = 120

#: The heading of the claims that records decide with the fair baseline.
COMPARED = "What the fair baseline changes"

HOW_FAR = "How far each figure and table has come"

_NOTES = (
    "?: a transcription from memory, unconfirmed.",
    "As published: the arms that the paper compares. Fair baseline: of each side the strongest form that a user would "
    "pick (checkpointed, sparse, compiled, per layer, low rank of equal size); where no rival takes part, the same.",
    "By construction: initial ranks or an enforced target give it, whatever is learned. Predicted: not measured.",
    "Implemented: some experiment decides it. Executed: some record bears on it. Decided: by records of the device, "
    "model and data that it names. Reproduced: it agrees by what was measured. Given: it agrees by construction or by "
    "prediction. Agrees: either.",
    f"In brackets, of times: of fewer than {MIN_LAUNCHES} launches the range over launches, of one launch over its "
    f"blocks, else a {CONFIDENCE:.0%} interval. Of metrics: of one seed, or of {MIN_LAUNCHES} and more, a "
    f"{CONFIDENCE:.0%} interval, else a bootstrap over seeds and examples. Both bounds decide, at every batch size; "
    "what cannot decide is shown all the same.",
)


def _published(entry: Entry) -> str:
    return f"{entry.claim.published}{'?' if entry.claim.unconfirmed else ''}"


def _decided_by(entry: Entry) -> str:
    """Return the rule in words, beginning with its experiments."""
    return f"{', '.join(entry.experiments) or 'no experiment yet'}: {entry.rule.expression}"


def _grouped(entries: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    order = list(dict.fromkeys(entry.claim.artifact for entry in entries))
    ordered = sorted(entries, key=lambda entry: order.index(entry.claim.artifact))
    return [(artifact, list(group)) for artifact, group in groupby(ordered, lambda entry: entry.claim.artifact)]


def _add(table: Table, entry: Entry) -> None:
    """Return a row per device; the claim and its rule stand in the first."""
    rule = entry.rule
    tolerance = f"tolerance {rule.tolerance_text}, " if rule.tolerance else ""
    subject = ", ".join(filter(None, (entry.claim.quantity, entry.claim.setting)))
    claim = Text(f"{entry.claim.id}\n{_published(entry)}: {subject}")
    decided = Text(f"{_decided_by(entry)}; {tolerance}device {rule.device}")
    fair = Text(f"{rule.fair_quantity}; device {rule.device}")
    for line in lines_of(entry):
        where = (f"{line.device}:", f"{line.ours}.") if line.device else ()
        table.add_row(claim, decided, Text(line.outcome), Text(" ".join((*where, line.why))))
        if line.fair:
            why = f"{line.device}: {line.fair.ours_text}. {line.fair.why}"
            table.add_row(Text("  with the fair baseline"), fair, Text(line.fair.outcome), Text(why))
        claim = decided = fair = Text("")
    table.add_row()


def _compared_row(entry: Entry) -> tuple[str, str, str, str]:
    claim = entry.claim
    subject = ", ".join(filter(None, (claim.quantity, claim.setting)))
    about = f"{claim.id}, {_published(entry)}: {subject}"
    mark = "changed" if entry.is_changed else "same"
    return about, f"{entry.outcome}. {entry.why}", mark, f"{entry.fair_outcome}. {entry.fair_why}"


_COMPARED = (("claim, published", 27), ("as published", 38), ("outcome", 8), ("with the fair baseline", 38))

#: How the columns of :class:`figures.ledger.judging.RollUp` are called.
ROLLED_UP = ("artifact", "claims", "implemented", "executed", "decided", "reproduced", "given", "agrees, fair baseline")


def to_text(entries: Sequence[Entry]) -> str:
    """Return a table by artifact, for a terminal of 120 columns; the first line counts the outcomes."""
    page = io.StringIO()
    console = Console(file=page, width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    console.print(Text(summary(entries)))
    for note in _NOTES:
        console.print(Text(note))
    console.print(Text(f"\n{COMPARED}\n{fairness(entries)}"))
    if found := compared(entries):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=WIDTH)
        for name, width in _COMPARED:
            table.add_column(name, width=width)
        for entry in found:
            table.add_row(*map(Text, _compared_row(entry)))
            table.add_row()
        console.print(table)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=Text(HOW_FAR), title_justify="left")
    for name in ROLLED_UP:
        table.add_column(name, justify="left" if name == "artifact" else "right")
    for one in rolled_up(entries):
        table.add_row(*map(str, one))
    console.print(table)
    for artifact, group in _grouped(entries):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=WIDTH, title=Text(artifact), title_justify="left")
        for name, width in (("claim, published", 27), ("decided by", 28), ("verdict", 15), ("ours, why", 41)):
            table.add_column(name, width=width)
        for entry in group:
            _add(table, entry)
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def _tidy(line: LedgerLine) -> dict[str, object]:
    claim, rule = line.entry.claim, line.entry.rule
    return {
        "claim": claim.id,
        "artifact": claim.artifact,
        "quantity": claim.quantity,
        "setting": claim.setting,
        "published": claim.published,
        "published_low": claim.low,
        "published_high": claim.high,
        "unit": claim.unit,
        "standing": claim.standing,
        "experiments": " ".join(line.entry.experiments),
        "decided_by": rule.expression,
        "tolerance": rule.tolerance,
        "tolerance_unit": rule.unit,
        "device_kind": rule.device,
        "device": line.device,
        "verdict": line.outcome,
        "ours": line.ours,
        "why": line.why,
        "fair_verdict": line.fair_outcome,
        "fair_decided_by": rule.fair_quantity,
        "fair_ours": line.fair.ours_text if line.fair else "",
        "fair_why": line.fair.why if line.fair else "",
    }


def _read(line: LedgerLine) -> dict[str, str]:
    """Return a line for people; what is the claim's own stands in its first line alone."""
    entry, fair = line.entry, line.fair
    own = {
        "claim": entry.claim.id,
        "published": _published(entry),
        "decided by": _decided_by(entry),
        "tolerance": entry.rule.tolerance_text,
        "on": entry.rule.device,
    }
    own = {name: text if line.is_first else "" for name, text in own.items()}
    return {
        "claim": own["claim"],
        "published": own["published"],
        "as published": line.outcome,
        "fair baseline": line.fair_outcome,
        "device": line.device,
        "ours": line.ours,
        "why": line.why,
        "with the fair baseline": f"{fair.ours_text}. {fair.why}" if fair else "",
        **{name: own[name] for name in ("decided by", "tolerance", "on")},
    }


def in_short(entries: Sequence[Entry]) -> str:
    """How far each figure and table has come, in one sentence.

    >>> in_short([])
    'Claims implemented / executed / agreeing as published: all 0 / 0 / 0.'
    """
    lines = rolled_up(entries)
    counts = [f"{one.artifact} {one.implemented} / {one.executed} / {one.reproduced + one.given}" for one in lines]
    return f"Claims implemented / executed / agreeing as published: {', '.join(counts)}."


def to_markdown_page(entries: Sequence[Entry]) -> str:
    """Return a page with a table per artifact."""
    parts = ["# Claims", summary(entries), f"## {COMPARED}", fairness(entries)]
    if found := compared(entries):
        rows = pd.DataFrame(map(_compared_row, found), columns=[name for name, _ in _COMPARED])
        parts += [to_markdown(rows, frozenset(rows.columns)).rstrip()]
    rows = pd.DataFrame([[str(one) for one in line] for line in rolled_up(entries)], columns=ROLLED_UP)
    parts += [f"## {HOW_FAR}", in_short(entries), to_markdown(rows, frozenset(ROLLED_UP[:1])).rstrip()]
    parts += ["\n".join(f"* {note}" for note in _NOTES)]
    for artifact, group in _grouped(entries):
        lines = [line for entry in group for line in lines_of(entry)]
        table = pd.DataFrame(map(_read, lines))
        parts += [f"## {artifact}", to_markdown(table, frozenset(table.columns) - {"published"}).rstrip()]
    return "\n\n".join(parts) + "\n"


def to_csv(entries: Sequence[Entry]) -> str:
    """Return the table that programs read: a line per claim and device, in the ledger's order."""
    return csv(pd.DataFrame(_tidy(line) for entry in entries for line in lines_of(entry))).decode()
