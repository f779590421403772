"""A figure or table as one object: the records it shows, its rows, columns, picture and rules; and all there are.

Everything is made by one loop, :meth:`Artifact.render`: select, rows, columns, judge, draw. :meth:`Artifact.judge` is
the same without drawing. An artifact is found

* in a module of ``figures/artifacts`` that names it in ``ARTIFACT``;
* through an entry point of another package, group :data:`ENTRY_POINTS`;
* through :func:`register`, in a module that the variable :data:`VARIABLE` of the environment names.

No other module of the figures names an artifact.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import itertools
import os
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pandas as pd
from matplotlib.figure import Figure

from bench.core.record import Record, device_folder
from figures import artifacts as folder
from figures.claims.claims import Claim, LedgerError, Verdict
from figures.claims.rule import Rule
from figures.page.drawn import Caption, Drawn, Files, csv, markdown
from figures.page.table import Column, left_aligned, text_table, tidy_table
from figures.records.select import Selected

#: The group of entry points by which another package offers artifacts, each under its name.
ENTRY_POINTS = "comera_bench.figures"

#: Names modules, separated by commas, that register artifacts when they are imported.
VARIABLE = "FIGURES_PLUGINS"

#: An artifact's selection of records, and a row of its table.
S = TypeVar("S", bound=Selected)
R = TypeVar("R")

Claims = Mapping[str, Claim]


class ArtifactError(ValueError):
    """An artifact that there cannot be; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Artifact(Generic[S, R]):
    """A figure or table that can be asked for by name; any module of ``figures/artifacts`` is an example.

    Args:
        name: by which it is asked for; its files begin with it.
        heading, summary: of its section in the report; ``--help`` has the summary too.
        experiments, measure: whose records it is made of (its own is the first, others may lend it records), and their
            measure; None for any.
        lenders: experiments whose records it has too, whatever their measure and whichever experiment is asked for.
        also: experiments of which it is drawn as well, each on pages of its own, when everything is drawn.
        made_by: the command that makes its records; by default that of its own experiment.
        order: its place among all; those of the same place stand by name.
        select: from the records of its experiments to one selection per page, such as one per device.
        rows, columns: of a page's table; the columns are both those for people and those of the CSV.
        tidy_rows: the rows of the CSV, where they are not those of the table.
        caption, draw: title, facts and notes of a page; its picture, None for a table alone.
        rules, claims: by what it decides claims; claims of its own, beyond ``published/claims.csv``.
        section: the column of the table whose change starts a new section.
        asked: the experiment that was asked for in place of its own; part of its files' names.
        keys, breaks: for a table that is too wide for a terminal, the columns with which each further part of it begins
            (``breaks``), and those that every part repeats in front (``keys``).
    """

    name: str
    heading: str
    summary: str
    experiments: tuple[str, ...]
    measure: str | None = None
    lenders: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    made_by: str = ""
    order: int = 1000
    select: Callable[[Sequence[Record]], Sequence[S]]
    rows: Callable[[S], Sequence[R]]
    columns: Callable[[S, Sequence[R]], Sequence[Column[R]]]
    tidy_rows: Callable[[S, Sequence[R]], Sequence[Any]] | None = None
    caption: Callable[[S, Sequence[R]], Caption]
    draw: Callable[[S, Sequence[R], Caption], Figure] | None = None
    rules: tuple[Rule, ...] = ()
    claims: tuple[Claim, ...] = ()
    section: str | None = None
    asked: str = ""
    keys: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return self.made_by or f"python -m bench experiment={self.experiments[0]}"

    def for_experiment(self, name: str) -> Artifact[S, R]:
        """The same on the records of one other experiment."""
        asked = "" if name in self.experiments else name
        return dataclasses.replace(self, experiments=(name,), made_by="", asked=asked)

    def of(self, records: Sequence[Record]) -> list[Record]:
        """Those of the records that it is made of, experiment by experiment."""
        mine = [record for name in self.experiments for record in records if record.experiment == name]
        lent = [record for record in records if record.experiment in self.lenders]
        return [*(record for record in mine if self.measure in (None, record.measure)), *lent]

    def render(self, records: Sequence[Record], claims: Claims) -> list[Drawn]:
        """Its pages: the same records and claims give the same bytes under the same file names.

        Raises LedgerError where ``claims`` lack one that it has a rule for.
        """
        known = {**claims, **{claim.id: claim for claim in self.claims}}
        return [self._page(selection, known) for selection in self.select(self.of(records))]

    def judge(
        self, records: Sequence[Record], claims: Claims, wanted: Collection[str]
    ) -> Iterator[tuple[str, Verdict]]:
        """Every verdict on the ``wanted`` claims, with the place of its page; nothing is drawn."""
        rules = [rule for rule in self.rules if rule.claim_id in wanted]
        for selection in self.select(self.of(records)) if rules else ():
            for verdict in _verdicts(rules, claims, selection, self.rows(selection)):
                yield selection.place, verdict

    def _page(self, selection: S, claims: Claims) -> Drawn:
        rows = self.rows(selection)
        verdicts = _verdicts(self.rules, claims, selection, rows)
        columns, caption = self.columns(selection, rows), self.caption(selection, rows)
        table, left = text_table(columns, rows), left_aligned(columns)
        tidy = tidy_table(columns, self.tidy_rows(selection, rows) if self.tidy_rows else rows)
        asked = (self.asked,) if self.asked and self.asked not in selection.suffix else ()
        stem = "-".join([self.name, *map(device_folder, (selection.device, *selection.suffix, *asked))])
        draw = None if self.draw is None else functools.partial(self.draw, selection, rows, caption)
        text = markdown(caption, f"{stem}.png" if draw else "", table, left, verdicts)
        files = Files(stem, draw, {f"{stem}.md": text, f"{stem}.csv": csv(tidy)})
        return Drawn(
            title=caption.title,
            device=selection.device,
            facts=tuple(caption.facts),
            notes=(*caption.of_picture, *caption.notes),
            below=(*caption.remarks, *caption.notes),
            table=table,
            left_aligned=left,
            section=self.section,
            narrow=self._parts(table),
            verdicts=tuple(verdicts),
            files=files,
            records=tuple(selection.shown),
        )

    def _parts(self, table: pd.DataFrame) -> tuple[pd.DataFrame, ...]:
        if not self.breaks:
            return ()
        names = [str(name) for name in table.columns]
        cuts = [0, *map(names.index, self.breaks), len(names)]
        parts = [names[start:end] for start, end in itertools.pairwise(cuts)]
        return tuple(table[[*(key for key in self.keys if key not in part), *part]] for part in parts)


def _verdicts(rules: Sequence[Rule], claims: Claims, selection: Selected, rows: Any) -> list[Verdict]:
    """A verdict per rule whose claim is about a workload of these records, in the order of the rules."""
    verdicts, workloads = [], {record.workload for record in selection.shown}
    for rule in rules:
        if rule.claim_id not in claims:
            raise LedgerError(f"the ledger has no claim {rule.claim_id!r}; it has: {', '.join(claims)}.")
        claim = claims[rule.claim_id]
        if not workloads or (rule.workload or claim.workload) in ("", *workloads):
            verdicts.append(rule.verdict(claim, selection, rows))
    return verdicts


#: Artifacts that :func:`register` has made known, by name.
_registered: dict[str, Artifact[Any, Any]] = {}


def register(artifact: Artifact[Any, Any]) -> Artifact[Any, Any]:
    """Make an artifact known by its name in this process; raises ArtifactError where another one has this name."""
    if artifacts().get(artifact.name, artifact) is not artifact:
        raise ArtifactError(_taken(artifact.name))
    _registered[artifact.name] = artifact
    return artifact


def _taken(name: str) -> str:
    return f"artifact {name!r} has a name that is taken; choose another."


@functools.cache
def _found() -> dict[str, Artifact[Any, Any]]:
    """Artifacts of this folder and of other packages, by name."""
    names = [module.name for module in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}.")]
    modules = [importlib.import_module(name) for name in names]
    found = {module.ARTIFACT.name: module.ARTIFACT for module in modules if hasattr(module, "ARTIFACT")}
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            other = point.load()
        except Exception as error:
            raise ArtifactError(f"artifact {point.name!r} of {point.value} cannot be imported ({error}).") from None
        if not isinstance(other, Artifact):
            raise ArtifactError(f"artifact {point.name!r} of {point.value} is a {type(other).__name__}, no Artifact.")
        if other.name in found:
            raise ArtifactError(_taken(other.name))
        found[other.name] = other
    return found


def artifacts() -> dict[str, Artifact[Any, Any]]:
    """All artifacts by name, in their order.

    Raises ArtifactError for a plug-in that cannot be imported, is no artifact, or has a name that is taken.
    """
    for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
        try:
            importlib.import_module(name)
        except ArtifactError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ArtifactError(f"{VARIABLE} has {name!r}, which cannot be imported ({reason}).") from None
    everything = [*_found().values(), *_registered.values()]
    return {one.name: one for one in sorted(everything, key=lambda one: (one.order, one.name))}
