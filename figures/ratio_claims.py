"""How a verdict falls on a claim about ratios of time or of peak memory, of which there is one per batch size.

Each ratio is held against ``need``: the published low end less ``slack``, half a unit of the last published digit
("9x" needs 8.5), and 1 for a statement ("faster and smaller"). Its whole interval counts. The ratio

* *holds* when the interval reaches ``need``; for a statement, when it lies above 1;
* *leans* when the interval lies above 1 and reaches half of ``need``; a statement knows no leaning;
* is *refuted* when the interval lies below ``need``; for a statement, when it does not go beyond 1;
* is *open* otherwise.

All hold and none is missing: reproduced. All found are refuted: not reproduced. None holds or leans, and some are open:
not tested here. Anything between: partly. More than published holds too, which is said; but where every ratio surely
lies beyond twice the published upper end, that is another result: partly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.core.intervals import Estimate
from figures.claims import Claim, Outcome, Verdict
from figures.tables import with_interval

Grade = Literal["holds", "leans", "refuted", "open"]

#: A ratio that reaches this share of what it needs leans toward the claim.
_LEANING = 0.5

#: So many times the published upper end is far larger than published.
_FAR = 2.0


@dataclass(frozen=True)
class Point:
    """One ratio that bears on a claim, with the words that say what it is."""

    quantity: Literal["time", "memory"]
    batch_size: int
    ratio: Estimate
    source: str

    @property
    def heading(self) -> str:
        return f"{self.quantity}, {self.source}"

    def __str__(self) -> str:
        unpaired = ", unpaired" if self.ratio.paired is False else ""
        return f"{with_interval(self.ratio, unit='x')} at batch {self.batch_size}{unpaired}"


def grade(low: float, high: float, need: float | None) -> Grade:
    """What an interval says about a claim that needs a ratio of ``need``; None for a statement.

    >>> grade(1.9, 2.1, need=1.5), grade(1.1, 1.2, need=1.5), grade(1.1, 1.2, need=8.5), grade(0.9, 9.0, need=8.5)
    ('holds', 'leans', 'refuted', 'open')
    """
    if need is None:
        return "holds" if low > 1 else "refuted" if high <= 1 else "open"
    if low >= need:
        return "holds"
    if low > 1 and low >= _LEANING * need:
        return "leans"
    return "refuted" if high < need else "open"


def _tally(grades: Sequence[Grade], need: float | None, expected: int) -> str:
    """How many ratios there are of each grade, in words."""
    parts = [f"{grades.count('holds')} of {expected} ratios {'lie above 1' if need is None else f'reach {need:g}x'}"]
    if missing := expected - len(grades):
        parts.append(f"{missing} could not be formed")
    if need is not None and (leaning := grades.count("leans")):
        reached = f"at least {_LEANING * need:g}x" if _LEANING * need > 1 else "above 1"
        parts.append(f"{leaning} short of it but {reached}")
    if refuted := grades.count("refuted"):
        parts.append(f"{refuted} surely {'not above 1' if need is None else f'below {need:g}x'}")
    if undecided := grades.count("open"):
        parts.append(f"{undecided} undecided")
    return ", ".join(parts)


def decide(
    claim: Claim, points: Sequence[Point], expected: int, slack: float, verdict: Callable[..., Verdict]
) -> Verdict:
    """The verdict on a claim by the ratios found, of which there should be so many."""
    judged = [(p, p.ratio.low, p.ratio.high) for p in points if p.ratio.low is not None and p.ratio.high is not None]
    if not judged:
        why = "Fewer than two undisturbed blocks." if points else "No pair of finished cells to compare."
        return verdict("not tested here", why, points)
    need = None if claim.low is None else claim.low - slack
    grades = [grade(low, high, need) for _, low, high in judged]
    why = _tally(grades, need, expected)
    far = claim.high is not None and all(low > _FAR * claim.high for _, low, _ in judged)
    if far:
        why += "; far larger than published"
    elif claim.high is not None and any(low > claim.high + slack for _, low, _ in judged):
        why += "; larger than published in places"
    why += f"; judged by {' and '.join(dict.fromkeys(f'{p.quantity} {p.source}' for p, _, _ in judged))}."
    outcome = _outcome(grades, expected, far)
    return verdict(outcome, f"The interval leaves it open: {why}" if outcome == "not tested here" else why, points)


def _outcome(grades: Sequence[Grade], expected: int, far: bool) -> Outcome:
    found = set(grades)
    if found == {"refuted"}:
        return "not reproduced"
    if not found & {"holds", "leans"}:
        return "not tested here"
    whole = found == {"holds"} and len(grades) >= expected
    return "reproduced" if whole and not far else "partly"
