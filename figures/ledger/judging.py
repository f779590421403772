"""The claims ledger: every claim with what a folder of records says about it.

Each claim is judged by the rule of the artifact that is about it; nothing is drawn. A device has one verdict on a
claim. Where several pages of it speak to one, such as those of two datasets, and where several devices do, the decided
verdicts count: all the same, that; otherwise partly.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import pandas as pd

from figures import frame
from figures.artifact import Artifact
from figures.claims.claims import (
    AGREEING,
    Claim,
    Finding,
    Judgement,
    LedgerError,
    Outcome,
    Verdict,
    read_claims,
    untested,
)
from figures.claims.rule import Rule
from figures.frame import Records
from figures.registry import artifacts

#: A place among several pages of a device, and a verdict of that page.
Judged = tuple[str, Verdict]


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    claim: Claim
    rule: Rule
    experiments: tuple[str, ...]  # whose records the rule is judged on
    verdicts: tuple[Verdict, ...]  # one per device with records of these, by the device's name

    @cached_property
    def lines(self) -> tuple[Verdict, ...]:
        """Return the verdicts, or where there is none one without a device."""
        return self.verdicts or (Verdict(self.claim, "", Judgement("not tested here", self.why)),)

    @property
    def outcome(self) -> Outcome:
        return combined(verdict.outcome for verdict in self.verdicts)

    @property
    def fair_outcome(self) -> Outcome:
        return combined(verdict.fair_outcome for verdict in self.verdicts)

    @property
    def is_changed(self) -> bool:
        """Return whether the outcome with the fair baseline is another one than as published."""
        return self.fair_outcome != self.outcome

    @property
    def why(self) -> str:
        if not self.verdicts:
            experiments = self.experiments
            return f"No record of {' or '.join(experiments)}; make some: python -m bench experiment={experiments[0]}."
        return _together((verdict.device, verdict.why) for verdict in self.verdicts)

    @property
    def fair_why(self) -> str:
        if self.rule.fair is None:
            return "No rival takes part in this claim."
        return _together((verdict.device, verdict.fair.why) for verdict in self.verdicts if verdict.fair)

    @property
    def alternative(self) -> Judgement | None:
        """Return one judgement for the comparisons with the method that the claim does not name; None without any."""
        found = [(verdict.device, verdict.alternative) for verdict in self.verdicts if verdict.alternative]
        return _of_pages(found) if found else None

    @property
    def beds(self) -> tuple[tuple[str, Judgement], ...]:
        """Return by device the judgements on a bed that decides; one without a device where no record bears on it."""
        if self.rule.bed is None:
            return ()
        found = tuple((verdict.device, verdict.bed) for verdict in self.verdicts if verdict.bed)
        return found or (("", untested(f"No record of {self.rule.bed.experiment} bears on it.")),)


def combined(outcomes: Iterable[Outcome]) -> Outcome:
    """One outcome for several; what was measured goes before what was predicted.

    >>> combined(["reproduced", "not tested here", "reproduced"]), combined(["reproduced", "not reproduced"])
    ('reproduced', 'partly')
    >>> combined(["predicted", "reproduced"]), combined(["predicted", "by construction"])
    ('reproduced', 'by construction')
    """
    decided = set(outcomes) - {"not tested here"}
    for weaker in ("predicted", "by construction"):
        if len(decided) > 1:
            decided -= {weaker}
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
    return " ".join(f"{', '.join(where)}: {why}" for why, where in places.items())


def _of_pages(judged: Sequence[tuple[str, Judgement]]) -> Judgement:
    """One judgement for those of several pages; where any is decided, the others are left out."""
    if len(judged) == 1:
        return judged[0][1]
    decisive = [(place, one) for place, one in judged if one.outcome != "not tested here"] or judged
    found = tuple(
        Finding(one.heading if place in one.heading else f"{one.heading}, {place}", str(one))
        for place, judgement in decisive
        for one in judgement.ours
    )
    why = _together((place, one.why) for place, one in decisive)
    return Judgement(combined(one.outcome for _, one in decisive), why, found)


def _on_device(judged: Sequence[Judged]) -> Verdict:
    """One verdict for those of all pages of a device on a claim; pages of a bed count where there are no others."""
    first = judged[0][1]
    own = [(place, one) for place, one in judged if not one.bed] or judged
    fair = [(place, one.fair) for place, one in own if one.fair]
    beds = [(place, one.bed) for place, one in judged if one.bed]
    alternatives = [(place, one.alternative) for place, one in own if one.alternative]
    published = _of_pages([(place, one.published) for place, one in own])
    others = (_of_pages(pages) if pages else None for pages in (fair, beds, alternatives))
    return Verdict(first.claim, first.device, published, *others)


def claims_of(all_artifacts: Iterable[Artifact[Any]]) -> dict[str, Claim]:
    """Return the claims of ``published/claims.csv``, then of artifacts; raises LedgerError where two have one id."""
    claims = read_claims()
    for artifact in all_artifacts:
        for claim in artifact.claims:
            if claim.id in claims:
                raise LedgerError(f"artifact {artifact.name!r} brings a claim {claim.id!r}, of which there is one.")
            claims[claim.id] = claim
    return claims


def rules_of(all_artifacts: Iterable[Artifact[Any]]) -> dict[str, tuple[Rule, Artifact[Any]]]:
    """By claim, what decides it, and the artifact that it is judged on.

    Raises LedgerError where two rules decide one claim.
    """
    rules: dict[str, tuple[Rule, Artifact[Any]]] = {}
    for artifact in all_artifacts:
        for rule in artifact.rules:
            first, owner = rules.setdefault(rule.claim_id, (rule, artifact))
            if first is not rule:
                raise LedgerError(f"the claim {rule.claim_id!r} has rules of {owner.name} and of {artifact.name}.")
    return rules


def judge(
    records: Records, claims: Mapping[str, Claim] | None = None, only: Collection[str] | None = None
) -> list[Entry]:
    """Return every claim of the ledger, or ``only`` some, in its order, with verdicts on the records of a whole folder.

    Raises LedgerError where ``claims``, by default all there are, are not those that have a rule, and RecordError for a
    record whose samples make no sense.
    """
    everything, df = artifacts().values(), frame.of(records)
    claims = claims_of(everything) if claims is None else claims
    rules = rules_of(everything)
    for name in [*claims, *rules]:
        if name not in rules:
            raise LedgerError(f"the ledger has a claim {name!r}, which no rule decides; there are: {', '.join(rules)}.")
        if name not in claims:
            raise LedgerError(f"the ledger lacks the claim {name!r}, which has a rule.")
    found: dict[str, dict[str, list[Judged]]] = {name: {} for name in claims if only is None or name in only}
    for artifact in everything:
        wanted = {claim_id for claim_id, (_, owner) in rules.items() if owner is artifact and claim_id in found}
        for place, verdict in artifact.judge(df, claims, wanted):
            found[verdict.claim.id].setdefault(verdict.device, []).append((place, verdict))
    beds = {rule.bed.experiment for rule, _ in rules.values() if rule.bed}  # whose records decide no claim
    entries = []
    for name, devices in found.items():
        rule, owner = rules[name]
        verdicts = tuple(_on_device(devices[one]) for one in sorted(devices))
        experiments = tuple(one for one in owner.experiments if one not in beds)
        entries.append(Entry(claims[name], rule, experiments, verdicts))
    return entries


def summary(entries: Sequence[Entry]) -> str:
    """How many claims there are of each outcome, on both axes.

    >>> summary([]).split(".")[0]
    '0 claims as published: 0 reproduced, 0 by construction, 0 predicted, 0 partly, 0 not reproduced, 0 not tested here'
    """
    published, fair = (
        ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in get_args(Outcome))
        for outcomes in ([entry.outcome for entry in entries], [entry.fair_outcome for entry in entries])
    )
    return f"{len(entries)} claims as published: {published}. With the fair baseline: {fair}."


def compared(entries: Sequence[Entry]) -> list[Entry]:
    """Return the claims with a rival that records decide; first those to which it gives another outcome."""
    both = [entry for entry in entries if entry.rule.fair and entry.fair_outcome != "not tested here"]
    return sorted(both, key=lambda entry: not entry.is_changed)


def fairness(entries: Sequence[Entry]) -> str:
    """Count what the fair baseline changes.

    >>> fairness([])
    'A rival takes part in 0 claims; records decide 0 of them with the fair baseline, which changes 0 outcomes.'
    """
    rivals, decided = sum(entry.rule.fair is not None for entry in entries), compared(entries)
    changed = sum(entry.is_changed for entry in decided)
    return (
        f"A rival takes part in {rivals} claims; records decide {len(decided)} of them with the fair baseline, which "
        f"changes {changed} outcome{'s' * (changed != 1)}."
    )


def rolled_up(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return how far the claims of each figure or table have come: a line for each, in the ledger's order, and for all.

    ``implemented``: some experiment makes the records that decide it. ``executed``: some record bears on it, on
    whatever device and data. ``decided``: by records of the device, model and data that it names. ``reproduced``: as
    published, by what was measured. ``given``: it agrees by construction or by prediction. The last: any of these.
    """
    lines = [
        {
            "artifact": entry.claim.artifact,
            "claims": 1,
            "implemented": bool(entry.experiments),
            "executed": any(verdict.ours for verdict in entry.verdicts),
            "decided": entry.outcome != "not tested here",
            "reproduced": entry.outcome == "reproduced",
            "given": entry.outcome in AGREEING and entry.outcome != "reproduced",
            "agrees, fair baseline": entry.fair_outcome in AGREEING,
        }
        for entry in entries
    ]
    counts = pd.DataFrame(lines).groupby("artifact", sort=False).sum().astype(int)
    counts.loc["all"] = counts.sum()
    return counts.reset_index()
