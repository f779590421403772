"""A figure or table as one object: the records it shows, its table, caption, picture and rules.

Everything is made by one loop, :meth:`Artifact.render`: select, table, caption, judge, draw. :meth:`Artifact.judge` is
the same without drawing. :mod:`figures.registry` finds all there are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from bench.core.record import device_folder
from figures import frame
from figures.claims.claims import Claim, LedgerError, Verdict
from figures.claims.rule import Rule
from figures.columns import left_columns, readable
from figures.draw import captions
from figures.draw.captions import Caption
from figures.frame import Records
from figures.text import csv
from figures.write import Drawn, Files, markdown

#: A page of an artifact.
S = TypeVar("S", bound=frame.Page)

Claims = Mapping[str, Claim]

TEMPLATES = Path(__file__).with_name("artifacts")


@dataclass(frozen=True, kw_only=True)
class Artifact(Generic[S]):
    """A figure or table that can be asked for by name; any module of ``figures/artifacts`` is an example.

    Args:
        name: by which it is asked for, unless it is a part of another; its files begin with it.
        summary: what it shows, as ``--help`` says it.
        experiments, measure: whose records it is made of (its own is the first, others may lend it records), and their
            measure; None for any.
        lenders: experiments whose records it has too, whatever their measure and whichever experiment is asked for.
        made_by: the command that makes its records; by default that of its own experiment.
        order: its place among all; those of the same place stand by name.
        part_of: the figure or table by whose name it is asked for, in place of its own; its files keep its own name.
        select: from a frame of the records of its experiments to one page each, such as one per device.
        table: of a page, with the columns of its CSV; how they are written is in :data:`figures.columns.FORMATS`.
        shown: the part of the table that people read, as strings; by default all columns of a known format.
        caption: a template, or the path of one, which may use ``page``, ``table`` and what ``about`` returns; by
            default the one in ``figures/artifacts`` that has its name.
        draw: the picture of a page, from the page, its table and its caption; None for a table alone.
        rules, claims: by what it decides claims; claims of its own, beyond ``published/claims.csv``.
        section: the column of the table whose change starts a new section.
        asked: the experiment that was asked for in place of its own; part of its files' names.
    """

    name: str
    summary: str
    experiments: tuple[str, ...]
    measure: str | None = None
    lenders: tuple[str, ...] = ()
    made_by: str = ""
    order: int = 1000
    part_of: str = ""
    select: Callable[[Records], Sequence[S]]
    table: Callable[[S], pd.DataFrame]
    shown: Callable[[S, pd.DataFrame], pd.DataFrame] | None = None
    about: Callable[[S, pd.DataFrame], Mapping[str, Any]] | None = None
    caption: Path | str = ""
    draw: Callable[[S, pd.DataFrame, Caption], Figure] | None = None
    rules: tuple[Rule, ...] = ()
    claims: tuple[Claim, ...] = ()
    section: str | None = None
    asked: str = ""

    @property
    def command(self) -> str:
        """Return the command that makes its records."""
        return self.made_by or f"python -m bench experiment={self.experiments[0]}"

    def for_experiment(self, name: str) -> Artifact[S]:
        """Return the same on the records of one other experiment."""
        asked = "" if name in self.experiments else name
        return dataclasses.replace(self, experiments=(name,), made_by="", asked=asked)

    def of(self, records: Records) -> pd.DataFrame:
        """Return the records that it is made of, experiment by experiment."""
        df = frame.of(records)
        measured = df if self.measure is None else df[df["measure"] == self.measure]
        mine = [measured[measured["experiment"] == name] for name in self.experiments]
        found = pd.concat([*mine, df[df["experiment"].isin(self.lenders)]])
        return found[~found.index.duplicated()]

    def render(self, records: Records, claims: Claims) -> list[Drawn]:
        """Return its pages: the same records and claims give the same bytes under the same file names.

        Raises LedgerError where ``claims`` lack one that it has a rule for.
        """
        known = {**claims, **{claim.id: claim for claim in self.claims}}
        return [self._page(selection, known) for selection in self.select(self.of(records))]

    def judge(self, records: Records, claims: Claims, wanted: Collection[str]) -> Iterator[tuple[str, Verdict]]:
        """Yield every verdict on the ``wanted`` claims, with the place of its page; nothing is drawn."""
        rules = [rule for rule in self.rules if rule.claim_id in wanted]
        for selection in self.select(self.of(records)) if rules else ():
            for verdict in _verdicts(rules, claims, selection, self.table(selection)):
                yield selection.place, verdict

    def _page(self, selection: S, claims: Claims) -> Drawn:
        table = self.table(selection)
        verdicts = _verdicts(self.rules, claims, selection, table)
        about = self.about(selection, table) if self.about else {}
        template = self.caption or TEMPLATES / f"{self.name}.md.j2"
        caption = captions.caption(template, {"page": selection, "table": table, **about})
        read = self.shown(selection, table) if self.shown else readable(table)
        left = left_columns(read)
        asked = (self.asked,) if self.asked and self.asked not in selection.suffix else ()
        parts = map(device_folder, (selection.device, *selection.suffix, *asked))
        stem = "-".join([self.name, *parts])
        draw = self.draw and functools.partial(self.draw, selection, table, caption)
        text = markdown(caption, f"{stem}.svg" if draw else "", read, left, verdicts)
        files = Files(stem, draw, {f"{stem}.md": text, f"{stem}.csv": csv(table)})
        return Drawn(
            title=caption.title,
            device=selection.device,
            facts=tuple(caption.facts),
            notes=(*caption.of_picture, *caption.of_table, *caption.notes),
            below=(*caption.of_table, *caption.notes),
            table=read,
            left_aligned=left,
            section=self.section,
            verdicts=tuple(verdicts),
            files=files,
            records=tuple(selection.df.index),
        )


def _verdicts(rules: Sequence[Rule], claims: Claims, selection: frame.Page, table: pd.DataFrame) -> list[Verdict]:
    """Return a verdict per rule whose claim or bed is about a workload of these records, in the order of the rules."""
    verdicts, workloads = [], set(selection.df["workload"])
    for rule in rules:
        if rule.claim_id not in claims:
            raise LedgerError(f"the ledger has no claim {rule.claim_id!r}; it has: {', '.join(claims)}.")
        claim = claims[rule.claim_id]
        if not workloads or (rule.workload or claim.workload) in ("", *workloads):
            verdicts.append(rule.verdict(claim, selection, table))
        elif rule.bed and rule.bed.workload in workloads and (found := rule.on_bed(claim, selection, table)):
            verdicts.append(found)
    return verdicts
