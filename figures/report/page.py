"""The report: one HTML page with every verdict, then each figure and table beside what was published.

The page is a pure function of the records and the ledger. It needs nothing but itself: pictures and tables ride inside.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from bench.core.record import Record
from figures.artifact import Artifact, Claims
from figures.claims.claims import Verdict
from figures.claims.ledger import Entry, judge
from figures.page.drawn import Drawn
from figures.page.table import NOT_ASKED
from figures.records.select import by_device
from figures.report.facts import Fact, Failure, facts_of, failures_of

TITLE = "CoMERA: what was claimed, and what was found"

#: Outcomes in the order of the page, each with the sign that goes with its word.
OUTCOMES = {"reproduced": "✓", "partly": "≈", "not reproduced": "✗", "not tested here": "○"}

_PROSE = 36  # characters: a longer cell makes its column one of sentences, which may be broken into lines
_FEW = 6  # failures that are shown without being asked for


@dataclass(frozen=True)
class Line:
    """A line of the verdict table: a claim as one device decides it, or as none does."""

    entry: Entry
    verdict: Verdict | None

    @property
    def is_first(self) -> bool:
        """Whether it is the claim's first line, to which links lead."""
        return self.verdict is None or self.verdict is self.entry.verdicts[0]

    @property
    def ours(self) -> str:
        return self.verdict.ours_text if self.verdict else NOT_ASKED

    @property
    def device(self) -> str:
        return self.verdict.device if self.verdict else NOT_ASKED

    @property
    def outcome(self) -> str:
        return self.verdict.outcome if self.verdict else self.entry.outcome

    @property
    def why(self) -> str:
        return self.verdict.why if self.verdict else self.entry.why


@dataclass(frozen=True)
class Table:
    """A frame of strings, ready to be written."""

    columns: list[tuple[str, str]]  # name and class: "number", "words" or "prose"
    rows: list[tuple[bool, list[str]]]  # whether a section starts here, and the cells


@dataclass(frozen=True)
class Drawing:
    """One figure or table of one device."""

    anchor: str
    drawn: Drawn
    picture: str  # data URI, or empty
    csv_name: str
    csv: str  # data URI
    table: Table
    facts: list[Fact]
    failures: list[Failure]

    @property
    def alternative(self) -> str:
        """The picture in a sentence."""
        return f"{self.drawn.title}, on {self.drawn.device}. Its numbers are in the table below."

    @property
    def few_failures(self) -> bool:
        return len(self.failures) <= _FEW


@dataclass(frozen=True)
class Section:
    """An artifact on the page; without drawings where there are no records of it."""

    anchor: str
    artifact: Artifact[Any, Any]
    entries: list[Entry]  # the claims that it bears on
    drawings: list[Drawing]


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _column(name: str, cells: Sequence[str], left_aligned: frozenset[str]) -> tuple[str, str]:
    if name not in left_aligned:
        return name, "number"
    return name, "prose" if max(map(len, cells), default=0) > _PROSE else "words"


def _table(frame: pd.DataFrame, left_aligned: frozenset[str], by: str | None) -> Table:
    columns = [_column(str(name), [str(cell) for cell in frame[name]], left_aligned) for name in frame.columns]
    keys = list(frame[by]) if by is not None else [None] * len(frame)
    starts = [before != after for before, after in itertools.pairwise([*keys[:1], *keys])]
    cells = ([str(cell) for cell in row] for row in frame.itertuples(index=False))
    return Table(columns, list(zip(starts, cells, strict=True)))


def _drawing(drawn: Drawn) -> Drawing:
    [csv_name] = [name for name in drawn.files if name.endswith(".csv")]
    pictures = [content for name, content in drawn.files.items() if name.endswith(".svg")]
    return Drawing(
        anchor=csv_name.removesuffix(".csv"),
        drawn=drawn,
        picture=_data_uri("image/svg+xml", pictures[0]) if pictures else "",
        csv_name=csv_name,
        csv=_data_uri("text/csv", drawn.files[csv_name]),
        table=_table(drawn.table, drawn.left_aligned, drawn.section),
        facts=facts_of(drawn.records),
        failures=failures_of(drawn.records),
    )


def _bears_on(name: str, artifact: Artifact[Any, Any], entry: Entry, names: Sequence[str]) -> bool:
    """Whether a claim is an artifact's: the ledger names it, or none of the page and the rule reads its own experiment.

    An artifact's own experiment is its first; others may lend it records.
    """
    if entry.claim.artifact in names:
        return entry.claim.artifact == name
    return artifact.experiments[0] in entry.experiments


def sections_of(
    records: Sequence[Record], entries: Sequence[Entry], artifacts: Mapping[str, Artifact[Any, Any]], claims: Claims
) -> list[Section]:
    """A section per artifact, in their order, each drawn from the records that it is made of."""
    sections = []
    for name, artifact in artifacts.items():
        touched = [entry for entry in entries if _bears_on(name, artifact, entry, list(artifacts))]
        sections.append(Section(name, artifact, touched, [_drawing(one) for one in artifact.render(records, claims)]))
    return sections


def lines_of(entries: Sequence[Entry]) -> dict[str, list[Line]]:
    """The lines of the verdict table by outcome, those of one outcome in the ledger's order."""
    lines = [Line(entry, verdict) for entry in entries for verdict in entry.verdicts or (None,)]
    return {outcome: [line for line in lines if line.outcome == outcome] for outcome in OUTCOMES}


def _origin(records: Sequence[Record]) -> str:
    """What the page is made of."""
    days = sorted(record.recorded_at[:10] for record in records)
    span = " to ".join(dict.fromkeys((days[0], days[-1])))
    return f"{len(records):,} records of {span}, from {'; '.join(device for device, _ in by_device(records))}"


def page(records: Sequence[Record], artifacts: Mapping[str, Artifact[Any, Any]], claims: Claims) -> bytes:
    """The page as HTML in UTF-8: the same records and claims give the same bytes.

    Raises:
        RecordError: a record whose contents cannot be drawn.
        LedgerError: a ledger that lacks a claim or a rule.
    """
    entries = judge(records, claims)
    environment = Environment(
        loader=PackageLoader("figures.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown: dict[str, Any] = {
        "title": TITLE,
        "origin": _origin(records),
        "signs": OUTCOMES,
        "counts": {name: sum(entry.outcome == name for entry in entries) for name in OUTCOMES},
        "claims": len(entries),
        "lines": lines_of(entries),
        "sections": sections_of(records, entries, artifacts, claims),
    }
    return environment.get_template("report.html").render(shown).encode()
