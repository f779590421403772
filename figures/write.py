"""One page of a figure or table, with what is written about it: in the terminal, as Markdown and as CSV."""

import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from bench.errors import TERMINAL
from figures.claims.claims import Judgement, Verdict
from figures.draw.captions import Caption
from figures.draw.plotted import plotted_digest
from figures.draw.style import house_style, to_bytes
from figures.text import REMARKS, to_markdown, to_terminal

#: The columns of a table of claims, all of which hold words.
_CLAIM_COLUMNS = frozenset({"claim", "published", "ours", "verdict", "with the fair baseline", "why"})


class Files(Mapping[str, bytes]):
    """The files of a page by name. Its picture, which takes long, is drawn once, when it is first asked for.

    The picture is an SVG. It can be had as a PNG as well, which is no file of the page.
    """

    def __init__(self, stem: str, draw: Callable[[], Figure] | None, texts: Mapping[str, bytes]) -> None:
        self._draw, self._made = draw and functools.cache(draw), dict(texts)
        self._names = (*((f"{stem}.svg",) if draw else ()), *texts)
        self._png = (f"{stem}.png",) if draw else ()

    def __getitem__(self, name: str) -> bytes:
        if name not in self._made and name in (*self._names, *self._png) and self._draw:
            with house_style():
                self._made[name] = to_bytes(self._draw(), name.rpartition(".")[2])
        return self._made[name]

    def names_in(self, folder: Path, png: bool = False) -> list[str]:
        """Return what is written to a folder: all files, and a PNG where one is asked for or already there."""
        return [*self._names, *(name for name in self._png if png or (folder / name).is_file())]

    @property
    def plotted(self) -> str | None:
        """The digest of what the picture shows; None for a table alone."""
        if self._draw is None:
            return None
        with house_style():
            return plotted_digest(self._draw())

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
    records: tuple[int, ...]  # places of those shown among the records that were given, oldest first

    def to_text(self) -> str:
        """Return what the terminal shows."""
        buffer = io.StringIO()
        console = Console(file=buffer, width=TERMINAL, force_terminal=Console().is_terminal)
        read = self.table.drop(columns=REMARKS, errors="ignore")
        tables = to_terminal(read, self.title, self.left_aligned, self.section)
        for one in (*map(Text, self.facts), *tables, *map(Text, self.below)):
            console.print(one)
        for verdict in self.verdicts:
            console.print(Text(f"Claim {in_short(verdict)}"))
        if self.verdicts:
            console.print(Text("All numbers behind the claims: python -m figures claims --all"))
        return buffer.getvalue()


def claims_table(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """Return a line per verdict: the claim, what was published, ours, and the outcome with and without a fair baseline.

    Of the numbers the first kind is shown; ``python -m figures claims --all`` has all of them.
    """
    lines = []
    for verdict in verdicts:
        claim = verdict.claim
        fair = {"with the fair baseline": verdict.fair.outcome if verdict.fair else "-"}
        lines.append(
            {
                "claim": f"{claim.id}: {claim.subject}",
                "published": f"{claim.published} ({claim.standing})",
                "ours": first_numbers(verdict.published),
                "verdict": verdict.outcome,
                **(fair if any(one.fair for one in verdicts) else {}),
                "why": verdict.why,
            }
        )
    return pd.DataFrame(lines)


def in_short(verdict: Verdict) -> str:
    """Return what became of a claim on one line, with the first kind of numbers."""
    fair = f"; with the fair baseline: {verdict.fair.outcome}" if verdict.fair else ""
    ours = f"published {verdict.claim.published}, ours {first_numbers(verdict.published)}"
    return f"{verdict.claim.id}: {verdict.outcome}{fair}; {ours}. {verdict.why}"


def first_numbers(judgement: Judgement) -> str:
    """Return the first kind of numbers that a judgement rests on, with what they are; a dash where there are none."""
    if not judgement.ours:
        return "-"
    heading = judgement.ours[0].heading
    return f"{', '.join(str(one) for one in judgement.ours if one.heading == heading)} ({heading})"


def markdown(
    caption: Caption, image: str, table: pd.DataFrame, left_aligned: frozenset[str], verdicts: Sequence[Verdict]
) -> bytes:
    """Return a page with table, notes and any verdicts; ``image`` is a file name, or empty for a table alone."""
    lines = [f"# {caption.title}", "", *caption.facts, ""]
    lines += [f"![{caption.title}]({image})", ""] if image else []
    lines += [
        to_markdown(table, left_aligned),
        *(f"* {note}" for note in (*caption.of_picture, *caption.of_table, *caption.notes)),
        "",
    ]
    lines += ["## Claims", "", to_markdown(claims_table(verdicts), _CLAIM_COLUMNS)] if verdicts else []
    return "\n".join(lines).encode()
