"""The claims ledger as text of 100 columns, as Markdown and as CSV."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.core.intervals import CONFIDENCE, MIN_LAUNCHES
from bench.errors import TERMINAL
from figures.claims.claims import Outcome
from figures.claims.rule import ON_BED
from figures.ledger.judging import Entry, compared, fairness, rolled_up, summary
from figures.text import csv, to_markdown

#: The heading of the claims that records decide with the fair baseline.
COMPARED = "What the fair baseline changes"

#: The heading of comparisons with methods that claims do not name.
ALTERNATIVES = "Against methods that the claims do not name"

#: Whether CoMERA takes less, by the outcome of the comparison.
_TAKES_LESS: dict[Outcome, str] = {
    "reproduced": "CoMERA takes less",
    "predicted": "CoMERA takes less, by prediction",
    "partly": "CoMERA takes less in places",
    "not reproduced": "CoMERA does not take less",
    "not tested here": "not tested here",
}

HOW_FAR = "How far each figure and table has come"

_NOTES = (
    "?: a transcription from memory, unconfirmed.",
    "As published: the arms that the paper compares. Fair baseline: of the rival that the claim names, and of CoMERA, "
    "the strongest form recorded (checkpointed, 8 bit, sparse, per layer, compiled, BF16); where no rival takes part, "
    "the same.",
    "Ratios are of CoMERA over the rival, and lower is better. Where the published number is of the rival over CoMERA, "
    "so is ours, and its line says which is over which.",
    f"{ALTERNATIVES}: whether CoMERA takes less than low rank of equal size or an uncompressed table; it changes no "
    "verdict and no count.",
    f"{ON_BED[0].upper()}{ON_BED[1:]}: the same question on other data, which tell methods apart; it changes no "
    "verdict and no count.",
    "By construction: initial ranks or an enforced target give it, whatever is learned. Predicted: not measured.",
    "Implemented: some experiment decides it. Executed: some record bears on it. Decided: by records of the device, "
    "model and data that it names. Reproduced: it agrees by what was measured. Given: it agrees by construction or by "
    "prediction. Agrees: either.",
    f"In brackets, of times: of fewer than {MIN_LAUNCHES} launches the range over launches, of one launch over its "
    f"blocks, else a {CONFIDENCE:.0%} interval; where launches are of several calls, calls take their place. Of "
    f"metrics: of one seed, or of {MIN_LAUNCHES} and more, a "
    f"{CONFIDENCE:.0%} interval, else a bootstrap over seeds and examples. Both bounds decide, at every batch size; "
    "what cannot decide is shown all the same.",
)


def _published(entry: Entry) -> str:
    return f"{entry.claim.published}{'?' if entry.claim.unconfirmed else ''}"


def _decided_by(entry: Entry) -> str:
    return f"{', '.join(entry.experiments) or 'no experiment yet'}: {entry.rule.expression}"


def _by_artifact(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.claim.artifact, []).append(entry)
    return found


def _compared(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return a line per claim that records decide with the fair baseline."""
    lines = [
        {
            "claim, published": f"{entry.claim.id}, {_published(entry)}: {entry.claim.subject}",
            "as published": f"{entry.outcome}. {entry.why}",
            "outcome": "changed" if entry.is_changed else "same",
            "with the fair baseline": f"{entry.fair_outcome}. {entry.fair_why}",
        }
        for entry in compared(entries)
    ]
    return pd.DataFrame(lines)


def _alternatives(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return a line per claim that records compare with a method that it does not name."""
    lines = [
        {
            "claim": f"{entry.claim.id}, {_published(entry)}: {entry.claim.subject}",
            "against": entry.rule.alternative_name,
            "found": _TAKES_LESS[found.outcome],
            "why": found.why,
        }
        for entry in entries
        if (found := entry.alternative) and found.outcome != "not tested here"
    ]
    return pd.DataFrame(lines, columns=["claim", "against", "found", "why"])


def _on_beds(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return a line per claim and device that is judged on a bed that decides."""
    lines = [
        {
            "claim": f"{entry.claim.id}, {_published(entry)}: {entry.claim.subject}",
            ON_BED: judgement.outcome,
            "device": device,
            "ours": judgement.ours_text,
            "why": judgement.why,
        }
        for entry in entries
        for device, judgement in entry.beds
    ]
    return pd.DataFrame(lines)


def _table(widths: Mapping[str, int], title: str = "") -> Table:
    look: dict[str, Any] = {"title": Text(title), "title_justify": "left"} if title else {}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=TERMINAL, **look)
    for name, width in widths.items():
        table.add_column(name, width=width)
    return table


def to_lines(entries: Sequence[Entry]) -> str:
    """Return a line per claim, behind the counts of outcomes."""
    lines = [("claim", "published", "as published", "fair baseline", "what is claimed")]
    lines += [
        (entry.claim.id, _published(entry), entry.outcome, entry.fair_outcome, entry.claim.subject) for entry in entries
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    table = [line if len(line) <= TERMINAL else f"{line[: TERMINAL - 2].rstrip()} …" for line in table]
    more = "Rule, reason and numbers: python -m bench claims CLAIM, or --all for those of every claim."
    return "\n".join([textwrap.fill(summary(entries), TERMINAL), "", *table, "", more, ""])


def to_text(entries: Sequence[Entry]) -> str:
    """Return a table by artifact, for a terminal; the first line counts the outcomes."""
    page = io.StringIO()
    console = _console(page)
    console.print(Text(summary(entries)))
    for note in _NOTES:
        console.print(Text(note))
    console.print(Text(f"\n{COMPARED}\n{fairness(entries)}"))
    found = _compared(entries)
    if len(found):
        table = _table(dict(zip(map(str, found), (22, 31, 8, 30), strict=True)))
        for line in found.to_numpy():
            table.add_row(*map(Text, line))
            table.add_row()
        console.print(table)
    counts = rolled_up(entries).astype(str)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=Text(HOW_FAR), title_justify="left")
    for name in counts:
        table.add_column(str(name), justify="left" if name == "artifact" else "right")
    for line in counts.to_numpy():
        table.add_row(*line)
    console.print(table)
    return f"{_stripped(page)}{to_details(entries)}"


def to_details(entries: Sequence[Entry]) -> str:
    """Return the tables by artifact alone: what decides a claim, its verdicts and reasons."""
    page = io.StringIO()
    console = _console(page)
    for artifact, group in _by_artifact(entries).items():
        columns = {"claim, published": 23, "decided by": 20, "verdict": 15, "ours, why": 33}
        table = _table(columns, artifact)
        for entry in group:
            rule = entry.rule
            tolerance = f"tolerance {rule.tolerance_text}, " if rule.tolerance else ""
            claim = Text(f"{entry.claim.id}\n{_published(entry)}: {entry.claim.subject}")
            decided = Text(f"{_decided_by(entry)}; {tolerance}device {rule.device}")
            fair = Text(f"{rule.fair_quantity}; device {rule.device}")
            for one in entry.lines:
                where = f"{one.device}: {one.ours_text}. " if one.device else ""
                table.add_row(claim, decided, Text(one.outcome), Text(f"{where}{one.why}"))
                if one.fair:
                    why = f"{one.device}: {one.fair.ours_text}. {one.fair.why}"
                    table.add_row(Text("  with the fair baseline"), fair, Text(one.fair.outcome), Text(why))
                if one.alternative:
                    compared_with = f"{one.device}: {one.alternative.ours_text}. {one.alternative.why}"
                    against = Text(f"  against {rule.alternative_name}")
                    table.add_row(against, Text(""), Text(_TAKES_LESS[one.alternative.outcome]), Text(compared_with))
                claim = decided = fair = Text("")  # they stand in the first line
            for device, judgement in entry.beds:
                where = f"{device}: {judgement.ours_text}. " if device else ""
                what = Text(f"{rule.bed.experiment}: {rule.bed.quantity}" if rule.bed else "")
                table.add_row(Text(f"  {ON_BED}"), what, Text(judgement.outcome), Text(f"{where}{judgement.why}"))
            table.add_row()
        console.print(table)
    return _stripped(page)


def _console(page: io.StringIO) -> Console:
    return Console(file=page, width=TERMINAL, color_system=None, force_terminal=False, legacy_windows=False)


def _stripped(page: io.StringIO) -> str:
    """Return what was printed, without blanks at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def in_short(entries: Sequence[Entry]) -> str:
    """How far each figure and table has come, in one sentence."""
    counts = rolled_up(entries)
    agreeing = counts["reproduced"] + counts["given"]
    numbers = [one.astype(str) for one in (counts["implemented"], counts["executed"], agreeing)]
    words = counts["artifact"] + " " + numbers[0] + " / " + numbers[1] + " / " + numbers[2]
    return f"Claims implemented / executed / agreeing as published: {', '.join(words)}."


def to_markdown_page(entries: Sequence[Entry]) -> str:
    """Return a page with a table per artifact."""
    parts = ["# Claims", summary(entries), f"## {COMPARED}", fairness(entries)]
    found, counts = _compared(entries), rolled_up(entries)
    if len(found):
        parts += [to_markdown(found, frozenset(found.columns)).rstrip()]
    others = _alternatives(entries)
    parts += [f"## {ALTERNATIVES}", to_markdown(others, frozenset(others.columns)).rstrip()]
    on_beds = _on_beds(entries)
    parts += [f"## {ON_BED[0].upper()}{ON_BED[1:]}", to_markdown(on_beds, frozenset(on_beds.columns)).rstrip()]
    parts += [f"## {HOW_FAR}", in_short(entries)]
    parts += [to_markdown(counts, frozenset({"artifact"})).rstrip()]
    parts += ["\n".join(f"* {note}" for note in _NOTES)]
    for artifact, group in _by_artifact(entries).items():
        lines = [
            {
                "claim": entry.claim.id,
                "published": _published(entry),
                "as published": one.outcome,
                "fair baseline": one.fair_outcome,
                "device": one.device,
                "ours": one.ours_text,
                "why": one.why,
                "with the fair baseline": f"{one.fair.ours_text}. {one.fair.why}" if one.fair else "",
                "decided by": _decided_by(entry),
                "tolerance": entry.rule.tolerance_text,
                "on": entry.rule.device,
            }
            for entry in group
            for one in entry.lines
        ]
        table = pd.DataFrame(lines)
        # these stand in the claim's first line
        own = ["published", "decided by", "tolerance", "on", "claim"]
        table.loc[table["claim"].duplicated(), own] = ""
        left = frozenset(table.columns) - {"published"}
        parts += [f"## {artifact}", to_markdown(table, left).rstrip()]
    return "\n\n".join(parts) + "\n"


def to_csv(entries: Sequence[Entry]) -> str:
    """Return the table that programs read: a line per claim and device, in the ledger's order."""
    lines = [
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
            "experiments": " ".join(entry.experiments),
            "decided_by": entry.rule.expression,
            "tolerance": entry.rule.tolerance,
            "tolerance_unit": entry.rule.unit,
            "device_kind": entry.rule.device,
            "device": one.device,
            "verdict": one.outcome,
            "ours": one.ours_text,
            "why": one.why,
            "fair_verdict": one.fair_outcome,
            "fair_decided_by": entry.rule.fair_quantity,
            "fair_ours": one.fair.ours_text if one.fair else "",
            "fair_why": one.fair.why if one.fair else "",
            "alternative": entry.rule.alternative_name,
            "alternative_found": _TAKES_LESS[one.alternative.outcome] if one.alternative else "",
            "alternative_ours": one.alternative.ours_text if one.alternative else "",
            "alternative_why": one.alternative.why if one.alternative else "",
            "bed_decided_by": f"{entry.rule.bed.experiment}: {entry.rule.bed.quantity}" if entry.rule.bed else "",
            "bed_verdict": one.bed.outcome if one.bed else "",
            "bed_ours": one.bed.ours_text if one.bed else "",
            "bed_why": one.bed.why if one.bed else "",
        }
        for entry in entries
        for one in entry.lines
    ]
    return csv(pd.DataFrame(lines)).decode()
