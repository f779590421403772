"""The claims ledger: every published claim with what a folder of records says about it.

Each claim is judged where its figure or table judges it, by its rule (:mod:`figures.ledger_rules`). A device has one
verdict on a claim. Where several of its figures speak to one, such as those of two datasets, and where several devices
do, the decided verdicts count: all the same, that; otherwise partly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from bench.core.record import Record
from figures import fig1_claims, fig5_claims, fig7_claims, fig12_claims, training_claims
from figures.claims import Claim, Found, LedgerError, Outcome, Verdict, read_claims
from figures.fig5_rows import Place, select_lookups
from figures.fig7_rows import select_steps
from figures.fig12_selection import sweeps
from figures.ledger_rules import FIG1, FIG5, FIG7, FIG12, RULES, TRAINING, Rule
from figures.runs import studies
from figures.selection import devices, pages
from figures.toggles import Toggles
from figures.training_rows import rows_of

Claims = dict[str, Claim]

#: What a figure's records are of where a device has several figures, and a verdict of that figure.
Judged = tuple[str, Verdict]


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    claim: Claim
    rule: Rule
    verdicts: tuple[Verdict, ...]  # one per device with records of the rule's experiments, by the device's name

    @property
    def outcome(self) -> Outcome:
        """Over all devices."""
        return combined(verdict.outcome for verdict in self.verdicts)

    @property
    def why(self) -> str:
        """Why, in one line."""
        if self.rule.untested:
            return self.rule.untested
        if not self.verdicts:
            experiments = self.rule.experiments
            return f"No record of {' or '.join(experiments)}; make some: python -m bench experiment={experiments[0]}."
        return _together((verdict.device, verdict.why) for verdict in self.verdicts)


@dataclass(frozen=True)
class _Placed:
    """A finding of one figure among several of its device."""

    found: Found
    place: str

    @property
    def heading(self) -> str:
        heading = self.found.heading
        return heading if self.place in heading else f"{heading}, {self.place}"

    def __str__(self) -> str:
        return str(self.found)


def combined(outcomes: Iterable[Outcome]) -> Outcome:
    """One outcome for several.

    >>> combined(["reproduced", "not tested here", "reproduced"]), combined(["reproduced", "not reproduced"])
    ('reproduced', 'partly')
    """
    decided = set(outcomes) - {"not tested here"}
    if not decided:
        return "not tested here"
    return decided.pop() if len(decided) == 1 else "partly"


def _together(reasons: Iterable[tuple[str, str]]) -> str:
    """Reasons with the places that they hold for; a single one alone."""
    places: dict[str, list[str]] = {}
    for place, why in reasons:
        places.setdefault(why, []).append(place)
    if len(places) == 1:
        return next(iter(places))
    return " ".join(f"{', '.join(those)}: {why}" for why, those in places.items())


def _steps(toggles: Toggles) -> str:
    return ", ".join(toggles.names) or toggles.precision


def _of_fig1(records: Sequence[Record], claims: Claims) -> Iterator[Judged]:
    for device in devices(records):
        for page in pages(records, device):
            yield from ((_steps(page.toggles), verdict) for verdict in fig1_claims.verdicts(page, claims))


def _table(place: Place) -> str:
    allocator = "" if place.allocator == "steady" else f", {place.allocator} allocator"
    return f"{place.table}, {place.dataset}{allocator}"


def _of_fig5(records: Sequence[Record], claims: Claims) -> Iterator[Judged]:
    for device in devices(records):
        for lookups in select_lookups(records, device):
            yield from ((_table(lookups.place), verdict) for verdict in fig5_claims.verdicts(lookups, claims))


def _of_fig7(records: Sequence[Record], claims: Claims) -> Iterator[Judged]:
    timed = [record for record in records if record.measure == "run"]
    for device in devices(timed):
        yield from (("", verdict) for verdict in fig7_claims.verdicts(select_steps(timed, device), claims))


def _of_fig12(records: Sequence[Record], claims: Claims) -> Iterator[Judged]:
    for device in devices(records):
        for sweep in sweeps(records, device):
            precision, graph, compiled = sweep.toggles
            place = _steps(Toggles(precision, compiled, graph))
            yield from ((place, verdict) for verdict in fig12_claims.verdicts(sweep, claims))


def _of_training(records: Sequence[Record], claims: Claims) -> Iterator[Judged]:
    for study in studies(records):
        judged = training_claims.verdicts(study, rows_of(study), claims, tuple(training_claims.RULES))
        yield from ((study.dataset, verdict) for verdict in judged)


_JUDGES: Mapping[tuple[str, ...], Callable[[Sequence[Record], Claims], Iterator[Judged]]] = {
    FIG1: _of_fig1,
    FIG5: _of_fig5,
    FIG7: _of_fig7,
    FIG12: _of_fig12,
    TRAINING: _of_training,
}


def _on_device(judged: Sequence[Judged]) -> Verdict:
    """One verdict for those of all figures of a device on a claim; where any is decided, the others are left out."""
    first = judged[0][1]
    if len(judged) == 1:
        return first
    decisive = [(place, one) for place, one in judged if one.outcome != "not tested here"] or judged
    found = tuple(_Placed(found, place) for place, verdict in decisive for found in verdict.ours)
    outcome = combined(verdict.outcome for _, verdict in decisive)
    return Verdict(first.claim, found, first.device, outcome, _together((place, one.why) for place, one in decisive))


def _matched(claims: Claims) -> None:
    """Make sure that claims and rules are about each other; raises LedgerError otherwise."""
    for claim_id in claims:
        if claim_id not in RULES:
            raise LedgerError(
                f"the ledger has a claim {claim_id!r}, which no rule decides; there are: {', '.join(RULES)}."
            )
    for claim_id in RULES:
        if claim_id not in claims:
            raise LedgerError(f"the ledger lacks the claim {claim_id!r}, which has a rule.")


def judge(records: Sequence[Record], claims: Claims | None = None) -> list[Entry]:
    """Every claim of the ledger, in its order, with its verdicts: a pure function of the records and the ledger.

    Args:
        records: those of a whole folder; the records of other experiments are not looked at.
        claims: the ledger, by id; the project's own by default.

    Raises:
        LedgerError: the ledger cannot be read, or its claims are not those that have a rule.
        RecordError: a record whose samples make no sense.
    """
    claims = read_claims() if claims is None else claims
    _matched(claims)
    found: dict[str, dict[str, list[Judged]]] = {claim_id: {} for claim_id in claims}
    for experiments, judge_all in _JUDGES.items():
        mine = [record for record in records if record.experiment in experiments]
        for place, verdict in judge_all(mine, claims):
            claim_id = verdict.claim.id
            if RULES[claim_id].experiments == experiments:
                found[claim_id].setdefault(verdict.device, []).append((place, verdict))
    return [
        Entry(claim, RULES[name], tuple(_on_device(judged) for _, judged in sorted(found[name].items())))
        for name, claim in claims.items()
    ]


def summary(entries: Sequence[Entry]) -> str:
    """How many claims there are of each outcome.

    >>> summary(judge([]))
    '42 claims: 0 reproduced, 0 partly, 0 not reproduced, 42 not tested here.'
    """
    outcomes = [entry.outcome for entry in entries]
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in get_args(Outcome))
    return f"{len(outcomes)} claims: {counts}."
