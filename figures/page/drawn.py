"""One page of a figure or table, with what is written about it: in the terminal, as Markdown and as CSV."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from bench.core.record import Record
from figures.claims.claims import Verdict
from figures.page.table import REMARKS, to_markdown, to_terminal


@dataclass(frozen=True)
class Caption:
    """What is written about one page.

    Args:
        title: of the page.
        facts: what was measured, on what, when.
        notes: what one has to read beside the table, in the picture as well.
        of_picture: the same about the picture alone; the terminal, which has none, leaves it out.
        remarks: what happened to single cells; the terminal shows it below the table, which has it in a column.
    """

    title: str
    facts: Sequence[str]
    notes: Sequence[str] = ()
    of_picture: Sequence[str] = ()
    remarks: Sequence[str] = ()


class Files(Mapping[str, bytes]):
    """The files of a page by name. Pictures, which take long, are drawn when they are first asked for."""

    def __init__(self, pictures: Mapping[str, Callable[[], bytes]], texts: Mapping[str, bytes]) -> None:
        self._pictures, self._made, self._names = pictures, dict(texts), (*pictures, *texts)

    def __getitem__(self, name: str) -> bytes:
        if name not in self._made:
            self._made[name] = self._pictures[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Everything drawn and written about the records of one page, which are of one device."""

    title: str
    device: str
    facts: tuple[str, ...]
    notes: tuple[str, ...]
    table: pd.DataFrame  # as people read it
    verdicts: tuple[Verdict, ...] = ()
    files: Files
    below: tuple[str, ...]  # what the terminal shows below the table
    left_aligned: frozenset[str] = frozenset()
    section: str | None = None  # the column whose change starts a new section of the table
    narrow: tuple[pd.DataFrame, ...] = ()  # the table in parts, where it is too wide for a terminal
    records: tuple[Record, ...]  # those shown, oldest first

    def to_text(self) -> str:
        """What the terminal shows."""
        buffer = io.StringIO()
        terminal = Console()
        titles = [self.title, *[""] * len(self.narrow)]
        tables = [
            to_terminal(part.drop(columns=REMARKS, errors="ignore"), title, self.left_aligned, by=self.section)
            for part, title in zip(self.narrow or (self.table,), titles, strict=False)
        ]
        options = terminal.options.update(max_width=500)
        needed = max(Measurement.get(terminal, options, table).maximum for table in tables)
        wide = max(terminal.width, needed)  # a pipe or a narrow window gets whole numbers on long lines
        console = Console(file=buffer, width=wide, force_terminal=terminal.is_terminal)
        for line in self.facts:
            console.print(Text(line))
        for table in tables:
            console.print(table)
        for line in self.below:
            console.print(Text(line))
        if self.verdicts:
            console.print(Text("\nClaims", style="bold"))
        for line in claim_lines(self.verdicts):
            console.print(Text(line))
        return buffer.getvalue()


def claim_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """A line per verdict; a single one where one reason keeps these records from testing any claim."""
    reasons = {(verdict.outcome, verdict.device, verdict.why) for verdict in verdicts}
    if len(verdicts) > 1 and len(reasons) == 1 and verdicts[0].outcome == "not tested here":
        names = ", ".join(verdict.claim.id for verdict in verdicts)
        return [f"{names}: not tested here on {verdicts[0].device}. {verdicts[0].why}"]
    return [str(verdict) for verdict in verdicts]


def markdown(
    caption: Caption, image: str, table: pd.DataFrame, left_aligned: frozenset[str], verdicts: Sequence[Verdict]
) -> bytes:
    """A page with the table, the notes and any verdicts; ``image`` is a file name, or empty for a table alone."""
    return "\n".join(
        [
            f"# {caption.title}",
            "",
            *caption.facts,
            "",
            *([f"![{caption.title}]({image})", ""] if image else []),
            to_markdown(table, left_aligned),
            *(f"* {note}" for note in (*caption.of_picture, *caption.notes)),
            "",
            *(["## Claims", "", *(f"* {line}" for line in claim_lines(verdicts)), ""] if verdicts else []),
        ]
    ).encode()


def csv(table: pd.DataFrame) -> bytes:
    """A tidy table as CSV."""
    return table.to_csv(index=False, float_format="%.6g", lineterminator="\n").encode()
