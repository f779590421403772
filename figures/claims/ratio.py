"""Claims about ratios of time or of peak memory, of which there is one per batch size, and how their verdict falls.

Each ratio is held against ``need``: the published low end less ``slack``, half a unit of the last published digit
("9x" needs 8.5), and 1 for a statement ("faster and smaller"). Its whole interval counts. The ratio

* *holds* when the interval reaches ``need``; for a statement, when it lies above 1;
* *leans* when the interval lies above 1 and reaches half of ``need``; a statement knows no leaning;
* is *refuted* when the interval lies below ``need``; for a statement, when it does not go beyond 1;
* is *open* otherwise.

All hold and none is missing: reproduced. All found are refuted: not reproduced. None holds or leans, and some are open:
not tested here. Anything between: partly. More than published holds too, which is said; but where every ratio surely
lies beyond twice the published upper end, that is another result: partly.

A claim about a GPU is decided on one. What other records have is printed beside.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench.core.intervals import Estimate
from figures.claims.claims import FULL_SIZE_PARAMETERS, Claim, Judgement, Outcome, undecided
from figures.claims.rule import ABOVE_ONE, REACHES, DeviceKind, Rule
from figures.page.table import unpaired, with_interval
from figures.records.cells import TimesAndMemory
from figures.records.time_values import time_ratio

Grade = Literal["holds", "leans", "refuted", "open"]

#: A ratio that reaches this share of what it needs leans toward the claim.
_LEANING = 0.5

#: So many times the published upper end is far larger than published.
_FAR = 2.0

ON_CPU = "The claim is about a GPU; times of a CPU cannot decide it."


@dataclass(frozen=True)
class Point:
    """One ratio that bears on a claim, with the words that say what it is."""

    quantity: Literal["time", "memory"]
    batch_size: int
    ratio: Estimate
    source: str
    kind: str  # of the device that it is a ratio on: "cpu" or "cuda"

    @property
    def heading(self) -> str:
        return f"{self.quantity}, {self.source}"

    def __str__(self) -> str:
        return f"{with_interval(self.ratio, unit='x')} at batch {self.batch_size}{', unpaired' * unpaired(self.ratio)}"


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


def decide(claim: Claim, points: Sequence[Point], expected: int, slack: float) -> Judgement:
    """The judgement on a claim by the ratios found, of which there should be so many."""
    judged = [(p, p.ratio.low, p.ratio.high) for p in points if p.ratio.low is not None and p.ratio.high is not None]
    if not judged:
        why = "Fewer than two undisturbed blocks." if points else "No pair of finished cells to compare."
        return Judgement("not tested here", why, points)
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
    return Judgement(outcome, f"The interval leaves it open: {why}" if outcome == "not tested here" else why, points)


def _outcome(grades: Sequence[Grade], expected: int, far: bool) -> Outcome:
    found = set(grades)
    if found == {"refuted"}:
        return "not reproduced"
    if not found & {"holds", "leans"}:
        return "not tested here"
    whole = found == {"holds"} and len(grades) >= expected
    return "reproduced" if whole and not far else "partly"


#: By batch size two cells of a page: what is above in a ratio, and what is below.
Pairs = Mapping[int, tuple[Hashable, Hashable]]

#: The ratios that a page has for a claim, at all batch sizes.
Evidence = Callable[[Any], list[Point]]


def time_points(page: TimesAndMemory, pairs: Pairs, how: str = "") -> list[Point]:
    """Ratios of times; ``how`` says with what they ran on a GPU."""
    points = []
    for batch, cells in pairs.items():
        ratio = time_ratio(*(page.timed.get(cell) for cell in cells))
        if ratio is not None:
            source = ", ".join(filter(None, ({"cpu": "on a CPU", "cuda": "on CUDA"}[page.kind], how)))
            points.append(Point("time", batch, ratio, source, page.kind))
    return points


def memory_points(page: TimesAndMemory, pairs: Pairs) -> list[Point]:
    """Ratios of peak memory: allocated on the device where it was measured, else predicted, for CUDA before a CPU."""
    points = []
    for batch, cells in pairs.items():
        runs = [run if run and run.status == "ok" else None for run in map(page.timed.get, cells)]
        sources = {
            ("allocated on CUDA", "cuda"): [run.peak_memory_allocated_mib if run else None for run in runs],
            ("for cuda, predicted", "cuda"): [page.peak("cuda", cell) for cell in cells],
            ("for cpu, predicted", "cpu"): [page.peak("cpu", cell) for cell in cells],
        }
        for (source, kind), (above, below) in sources.items():
            if above and below:
                points.append(Point("memory", batch, Estimate.exact(above / below), source, kind))
                break
    return points


def not_full_size(page: TimesAndMemory) -> str:
    """Why these records decide nothing about the paper's model; empty where they may."""
    dense = {record.parameters for record in page.shown if record.arm == "dense" and record.parameters is not None}
    other = dense - {FULL_SIZE_PARAMETERS}
    return "The dense model of these records is not the paper's full-size one." if other else ""


def not_fp32(page: TimesAndMemory) -> str:
    """Why these records decide nothing about FP32; empty where they may."""
    used = page.values("precision")
    return "" if used == ["fp32"] else f"The claim is about FP32; these records are {', '.join(used)}."


def ratio_rule(
    claim_id: str, quantity: str, evidence: Sequence[Evidence], batches: Sequence[int], *, slack: float = 0.5,
    device: DeviceKind = "cuda", conditions: Sequence[Callable[[Any], str]] = (not_fp32, not_full_size),
    beside: Evidence | None = None, at: str = "batch {}",
) -> Rule:  # fmt: skip
    """The rule of a claim about ratios.

    Args:
        claim_id, quantity, device: as in :class:`Rule`; ``quantity`` without the batch sizes.
        evidence: every part must hold, at each of ``batches``.
        slack: subtracted from the published low end; 0 for a statement.
        conditions: each says why a page decides nothing, in the order in which they are asked; empty where it may.
        beside: what is printed where a page decides nothing; the evidence at all batch sizes unless given.
        at: how the batch sizes are said.
    """

    def judge(claim: Claim, page: TimesAndMemory, _: Any) -> Judgement:
        found = [point for part in evidence for point in part(page)]
        points = [point for point in found if point.batch_size in batches]
        shown = [point for point in found if point.quantity == "time" or point in points]
        if device == "cuda" and page.kind == "cpu":
            return Judgement("not tested here", ON_CPU, beside(page) if beside else shown)
        decisive = [point for point in points if point.kind == "cuda"]
        if found and not any(point.kind == "cuda" for point in found):
            why = "The claim is about a GPU; predictions for a CPU cannot decide it."
            return Judgement("not tested here", why, found)
        reasons = (condition(page) for condition in conditions)
        untested = undecided(reasons, decisive or (beside(page) if beside else ()))
        return untested or decide(claim, decisive, len(evidence) * len(batches), slack)

    sizes = at.format(", ".join(f"{batch:,}" for batch in batches))
    holds = f"{REACHES} (from half of it, where that is > 1: partly)" if slack else ABOVE_ONE
    return Rule(f"{claim_id}", f"{quantity}, {sizes}", holds, device, slack, "x" if slack else "", judge)
