"""By what a claim is decided: the one kind of rule, whose words in the ledger follow from its fields."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from figures.claims.claims import Claim, Judgement, Verdict, untested

DeviceKind = Literal["cpu", "cuda", "any"]

#: From a claim, a page of records and its rows, what they make of it.
Judge = Callable[[Claim, Any, Any], Judgement]

#: When a number holds against a claim, in the words of the ledger; the tolerance is the rule's.
REACHES, AT_MOST, BELOW_ONE = ">= published - tolerance", "<= published + tolerance", "< 1"

#: Heads the judgement on a :class:`Bed`, and says why it is no verdict on the claim.
ON_BED, ELSEWHERE = "on a bed that decides", "The claim is about other data"


@dataclass(frozen=True)
class Bed:
    """A workload that tells methods apart, to judge a claim on whose own data cannot be had or decides nothing.

    Args:
        workload: whose records are judged.
        experiment: the one that makes them.
        quantity: the expression over records that is judged.
        judge: the judgement on one page of them, from what a rule's ``judge`` takes; None where no run bears on it.
    """

    workload: str
    experiment: str
    quantity: str
    judge: Callable[[Claim, Any, Any], Judgement | None]


@dataclass(frozen=True)
class Rule:
    """What decides one claim.

    Args:
        claim_id: the claim.
        quantity: the expression over records that is judged; where it has bounds, both count.
        holds: what the quantity has to be, as :data:`REACHES`; empty where ``quantity`` says it.
        device: the kind of device that times or trains; ``any`` too where a prediction may decide.
        tolerance, unit: by how much ours may miss what was published, or what it is compared with, and still hold.
        judge: the judgement on one page of records, from the claim, the page's selection and its rows.
        fair, fair_quantity: the same against the strongest form of the rival that the claim names, and the expression
            that is judged there; None where no rival takes part in the claim.
        alternative, alternative_name: whether CoMERA takes less than a method that the claim does not name, and that
            method; None where there is none.
        workload: whose records decide it, where that is called otherwise than the claim has it.
        bed: by what it is judged on a bed that decides; that never changes the verdict itself.

    Example:
        >>> def judge(claim, page, rows):
        ...     return untested("made up")
        >>> rule = Rule("lte-time", "epoch time, lte over CoMERA", REACHES, "cuda", 0.5, "x", judge=judge)
        >>> rule.expression, rule.tolerance_text
        ('epoch time, lte over CoMERA >= published - tolerance', '0.5x')
    """

    claim_id: str
    quantity: str
    holds: str = ""
    device: DeviceKind = "any"
    tolerance: float = 0.0
    unit: str = ""
    judge: Judge = field(kw_only=True)
    fair: Judge | None = None
    fair_quantity: str = ""
    alternative: Judge | None = None
    alternative_name: str = ""
    workload: str = ""
    bed: Bed | None = None

    @property
    def expression(self) -> str:
        return f"{self.quantity} {self.holds}".rstrip()

    @property
    def tolerance_text(self) -> str:
        if not self.tolerance:
            return "none"
        return f"{self.tolerance:g}{'' if self.unit in ('x', '%') else ' '}{self.unit}"

    def verdict(self, claim: Claim, selection: Any, rows: Any) -> Verdict:
        """Return what one page of records makes of the claim."""
        published = self.judge(claim, selection, rows)
        fair = self.fair(claim, selection, rows) if self.fair else None
        other = self.alternative(claim, selection, rows) if self.alternative else None
        return Verdict(claim, selection.device, published, fair, alternative=other)

    def on_bed(self, claim: Claim, selection: Any, rows: Any) -> Verdict | None:
        """Return what a page of the bed's records makes of the claim, which they do not decide; None where none can."""
        found = self.bed.judge(claim, selection, rows) if self.bed else None
        if found is None:
            return None
        published = untested(f"{ELSEWHERE}. {ON_BED[0].upper()}{ON_BED[1:]}: {found.outcome}. {found.why}", found.ours)
        return Verdict(claim, selection.device, published, bed=found)
