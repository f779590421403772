"""The report: one HTML page with every verdict, then each figure and table beside what was published.

The page is a pure function of the records and the ledger. It needs nothing but itself: pictures and tables ride inside.
"""

import base64
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from figures import frame
from figures.artifact import Artifact, Claims
from figures.frame import Records
from figures.ledger.judging import Entry, compared, fairness, judge, rolled_up
from figures.ledger.pages import COMPARED, HOW_FAR
from figures.report.facts import TEMPLATES, facts_of, failures_of
from figures.text import templates
from figures.write import Drawn

TITLE = "CoMERA: what was claimed, and what was found"

#: Outcomes in the order of the page, each with the sign that goes with its word.
OUTCOMES = {
    "reproduced": "✓",
    "by construction": "≡",
    "predicted": "≙",
    "partly": "≈",
    "not reproduced": "✗",
    "not tested here": "○",
}

_PROSE = 36  # characters: a longer cell makes its column one of sentences, which may be broken into lines
_LONG = 90  # characters: a wider column keeps its lines few
_FEW = 6  # failures that are shown without being asked for


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _table(drawn: Drawn) -> dict[str, Any]:
    """Columns with their classes, and rows with whether a section starts there."""
    frame, by = drawn.table.astype(str), drawn.section

    def kind(name: str) -> str:
        if name not in drawn.left_aligned:
            return "number"
        longest = max(map(len, frame[name]), default=0)
        return "prose long" if longest > _LONG else "prose" if longest > _PROSE else "words"

    columns = [(name, kind(name)) for name in frame.columns]
    keys = list(frame[by]) if by is not None else [None] * len(frame)
    starts = [before != after for before, after in itertools.pairwise([*keys[:1], *keys])]
    return {"columns": columns, "rows": list(zip(starts, frame.itertuples(index=False), strict=True))}


def _drawing(drawn: Drawn) -> dict[str, Any]:
    [csv_name] = [name for name in drawn.files if name.endswith(".csv")]
    pictures = [drawn.files[name] for name in drawn.files if name.endswith(".svg")]
    failures = failures_of(drawn.records)
    return {
        "anchor": csv_name.removesuffix(".csv"),
        "drawn": drawn,
        "csv_name": csv_name,
        "csv": _data_uri("text/csv", drawn.files[csv_name]),
        "table": _table(drawn),
        "picture": _data_uri("image/svg+xml", pictures[0]) if pictures else "",
        "alternative": f"{drawn.title}, on {drawn.device}. Its numbers are in the table below.",
        "facts": facts_of(drawn.records),
        "failures": failures,
        "few_failures": len(failures) <= _FEW,
    }


def _bears_on(name: str, artifact: Artifact[Any], entry: Entry, names: Sequence[str]) -> bool:
    """Return whether a claim is an artifact's.

    The ledger names the artifact; or it names none of the page, and the rule reads the artifact's first experiment.
    """
    if entry.claim.artifact in names:
        return entry.claim.artifact == name
    return artifact.experiments[0] in entry.experiments


def page(records: Records, artifacts: Mapping[str, Artifact[Any]], claims: Claims) -> bytes:
    """Return the page as HTML in UTF-8: the same records and claims give the same bytes.

    Raises RecordError for a record that cannot be drawn, LedgerError for a ledger that lacks a claim or a rule.
    """
    df = frame.of(records)
    entries = judge(df, claims)
    lines = [(entry, line) for entry in entries for line in entry.lines]
    sections = [
        {
            "anchor": name,
            "artifact": artifact,
            "entries": [entry for entry in entries if _bears_on(name, artifact, entry, list(artifacts))],
            "drawings": [_drawing(one) for one in artifact.render(df, claims)],
        }
        for name, artifact in artifacts.items()
    ]
    days = df["recorded_at"].str[:10]
    made = f"{len(df):,} records of {' to '.join(dict.fromkeys((days.min(), days.max())))}"
    origin = f"{made}, from {'; '.join(sorted(set(df['device'])))}"
    shown = {
        "title": TITLE,
        "origin": origin,
        "signs": OUTCOMES,
        "claims": len(entries),
        "sections": sections,
        "counts": {
            words: {name: sum(one == name for one in outcomes) for name in OUTCOMES}
            for words, outcomes in {
                "as published": [entry.outcome for entry in entries],
                "with the fair baseline": [entry.fair_outcome for entry in entries],
            }.items()
        },
        "compared": compared(entries),
        "compared_heading": COMPARED,
        "fairness": fairness(entries),
        "rolled_up": rolled_up(entries),
        "rolled_heading": HOW_FAR,
        "lines": {name: [(entry, line) for entry, line in lines if line.outcome == name] for name in OUTCOMES},
    }
    return templates(TEMPLATES, autoescape=True).get_template("report.html").render(shown).encode()
