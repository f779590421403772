"""By what a claim is decided: the one kind of rule, whose words in the ledger follow from its fields."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from figures.claims.claims import Claim, Judgement

DeviceKind = Literal["cpu", "cuda", "any"]

#: When a number holds against a claim, in the words of the ledger; the tolerance is the rule's.
REACHES, AT_MOST, ABOVE_ONE = ">= published - tolerance", "<= published + tolerance", "> 1"


@dataclass(frozen=True)
class Rule:
    """What decides one claim.

    Args:
        claim_id: the claim.
        quantity: the expression over records that is judged; where they give an interval, all of it.
        holds: what the quantity has to be, as :data:`REACHES`; empty where ``quantity`` says it.
        device: the kind of device that times or trains; ``any`` too where a prediction may decide.
        tolerance, unit: by how much ours may miss what was published, or what it is compared with, and still hold.
        judge: the judgement on one page of records, from the claim, the page's selection and its rows; None where
            the records cannot decide it.
        untested: why not, where ``judge`` is None.
        workload: whose records decide it, where that is called otherwise than the claim has it.

    Example:
        >>> rule = Rule("lte-time", "epoch time, lte / comera", REACHES, "cuda", 0.5, "x", untested="made up")
        >>> rule.expression, rule.tolerance_text
        ('epoch time, lte / comera >= published - tolerance', '0.5x')
    """

    claim_id: str
    quantity: str
    holds: str = ""
    device: DeviceKind = "any"
    tolerance: float = 0.0
    unit: str = ""
    judge: Callable[[Claim, Any, Any], Judgement] | None = None
    untested: str = ""
    workload: str = ""

    @property
    def expression(self) -> str:
        return f"{self.quantity} {self.holds}".rstrip()

    @property
    def tolerance_text(self) -> str:
        if not self.tolerance:
            return "none"
        return f"{self.tolerance:g}{'' if self.unit in ('x', '%') else ' '}{self.unit}"

    def judged(self, claim: Claim, selection: Any, rows: Any) -> Judgement:
        """The judgement on one page of records."""
        return self.judge(claim, selection, rows) if self.judge else Judgement("not tested here", self.untested)


def _not_yet(claim_id: str, subject: str, quantity: str, device: DeviceKind = "any") -> Rule:
    return Rule(claim_id, quantity, device=device, untested=f"No experiment of this bench covers {subject} yet.")


#: Claims that no artifact can decide yet.
UNTESTED = (
    Rule("lte-convergence", "accuracy on MNLI of lte with its default settings > chance",
         untested="No experiment of this bench trains LTE to convergence."),
    _not_yet("dlrm-size", "DLRM", "stored size of dense / comera"),
    _not_yet("dlrm-memory", "DLRM", "peak memory of dense / comera, batch 10,000"),
    _not_yet("dlrm-accuracy", "DLRM", "accuracy of comera less that of dense"),
    _not_yet("dlrm-nce", "DLRM", "normalized cross entropy of comera less that of dense"),
    _not_yet("recsys-time", "DLRM", "epoch time of dense / comera", "cuda"),
    _not_yet("dlrm-opt-plain", "DLRM", "epoch time and peak memory of plain / optimized comera", "cuda"),
    _not_yet("dlrm-opt-dense", "DLRM", "peak memory of dense / optimized comera"),
    _not_yet("dlrm-curve", "DLRM", "final loss of comera less that of dense"),
    _not_yet("fp8-larger-is-better", "FP8", "step time of FP32 / FP8-mix, by shape", "cuda"),
    _not_yet("fp8-dlrm", "FP8 or DLRM", "accuracy of FP8 / FP32 less that of FP32, batch 10,000", "cuda"),
    _not_yet("fp8-accuracy", "FP8", "accuracy of mixed precision less that of FP32", "cuda"),
)  # fmt: skip
