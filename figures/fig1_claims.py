"""Verdicts on the claims that Fig. 1 touches: ratios of time and of peak memory.

How a verdict falls. A claim is judged on one ratio per batch size it names. A ratio *holds* when its whole interval
reaches the published value less ``slack``, half a unit of the last published digit ("9x" holds from 8.5, and more than
published holds too, which is said); for a statement ("faster and smaller") when its whole interval lies above 1. It
*leans* when only the interval lies above 1. All hold and none is missing: reproduced. None even leans: not reproduced.
Anything between: partly. Claims about a GPU are not decided by times of a CPU, which are printed beside all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from bench.intervals import Estimate
from figures.claims import FULL_SIZE_PARAMETERS, Claim, Outcome, Verdict, known
from figures.selection import PAPER_BATCHES, Selection
from figures.tables import with_interval
from figures.timing import time_ratio


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


def _wanted(batches: Sequence[int], have: Sequence[int]) -> list[int]:
    return [batch for batch in have if not batches or batch in batches]


def time_points(rival: str, selection: Selection, batches: Sequence[int]) -> list[Point]:
    """Epoch time of ``rival`` over CoMERA's, per batch size; an empty ``batches`` asks for all that were timed."""
    points = []
    graph = {True: "CUDA Graph on", False: "CUDA Graph off"}
    for batch in _wanted(batches, selection.time_batches):
        above, below = selection.timed.get((rival, batch)), selection.timed.get(("comera", batch))
        ratio = time_ratio(above, below) if above and below else None
        if above and below and ratio:
            modes = dict.fromkeys([graph[above.cuda_graph], graph[below.cuda_graph]])
            source = "on a CPU" if selection.kind == "cpu" else f"on CUDA, {' / '.join(modes)}"
            points.append(Point("time", batch, ratio, source))
    return points


def memory_points(rival: str, selection: Selection, batches: Sequence[int]) -> list[Point]:
    """Peak memory of ``rival`` over CoMERA's: allocated on the device where it was measured, else predicted for it."""
    points = []
    for batch in _wanted(batches, sorted({*selection.memory_batches, *selection.time_batches})):
        runs = [selection.timed.get((arm, batch)) for arm in (rival, "comera")]
        plans = [selection.predicted.get(("cuda", arm, batch)) for arm in (rival, "comera")]
        measured = [r.peak_memory_allocated_mib if r and r.status == "ok" else None for r in runs]
        predicted = [r.peak_memory_predicted_mib if r and r.status == "ok" else None for r in plans]
        for source, (above, below) in (("allocated on CUDA", measured), ("for cuda, predicted", predicted)):
            if above and below:
                points.append(Point("memory", batch, Estimate.exact(above / below), source))
                break
    return points


Evidence = Callable[[Selection, Sequence[int]], list[Point]]


@dataclass(frozen=True)
class Rule:
    """How one claim is judged: on which ratios, at which batch sizes, with what slack, by what kind of device."""

    claim_id: str
    evidence: tuple[Evidence, ...]  # every part must hold
    batches: tuple[int, ...]
    slack: float  # subtracted from the published low end; 0 for a statement
    device: Literal["cuda", "any"]
    untested: str = ""  # why this figure cannot say, where it cannot


_GALORE, _LTE, _DENSE = (partial(time_points, rival) for rival in ("galore", "lte", "dense"))
_GALORE_MIB, _LTE_MIB = (partial(memory_points, rival) for rival in ("galore", "lte"))

#: The claims that Fig. 1 touches. A claim on time needs a CUDA device; predictions may decide one on memory alone.
FIG1_RULES = (
    Rule("time-epoch-speedup", (_DENSE,), PAPER_BATCHES, 0.5, "cuda"),
    Rule("galore-time-b1", (_GALORE,), (1,), 0.5, "cuda"),
    Rule("galore-memory-b1", (_GALORE_MIB,), (1,), 0.5, "any"),
    Rule("lte-time", (_LTE,), (32, 64, 128), 0.5, "cuda"),
    Rule("galore-all-batches", (_GALORE, _GALORE_MIB), (32, 64, 128), 0.0, "cuda"),
    Rule("lte-memory", (_LTE_MIB,), (32, 64, 128), 0.0, "any"),
    Rule("lte-convergence", (), (), 0.0, "any", "Fig. 1 times steps and trains nothing to convergence."),
)


def _grade(point: Point, need: float, strict: bool) -> int:
    """2: the claim holds at this point; 1: it leans that way; 0: it does not, or the interval leaves it open."""
    low = point.ratio.low
    if low is None or low <= 1:
        return 0
    return 2 if (low > need if strict else low >= need) else 1


def judge(rule: Rule, claim: Claim, selection: Selection) -> Verdict:
    """The verdict on one claim, from the records of one device."""

    def verdict(outcome: Outcome, why: str, points: Sequence[Point] = ()) -> Verdict:
        return Verdict(claim, tuple(points), selection.device, outcome, why)

    if not rule.evidence:
        return verdict("not tested here", rule.untested)
    points = [point for part in rule.evidence for point in part(selection, rule.batches)]
    if rule.device == "cuda" and selection.kind == "cpu":
        shown = [point for point in points if point.quantity == "memory"]
        shown = [p for part in rule.evidence for p in part(selection, ()) if p.quantity == "time"] + shown
        return verdict("not tested here", "The claim is about a GPU; times of a CPU cannot decide it.", shown)
    if selection.values("precision") != ["fp32"]:
        used = ", ".join(selection.values("precision"))
        return verdict("not tested here", f"The claim is about FP32; these records are {used}.", points)
    dense = [r.parameters for r in selection.shown if r.arm == "dense" and r.parameters is not None]
    if any(count != FULL_SIZE_PARAMETERS for count in dense):
        return verdict("not tested here", "The dense model of these records is not the paper's full-size one.", points)
    return decide(claim, points, len(rule.evidence) * len(rule.batches), rule.slack, verdict)


def decide(claim: Claim, points: list[Point], expected: int, slack: float, verdict: Callable[..., Verdict]) -> Verdict:
    """The verdict on a claim by the ratios found, of which there should be so many."""
    open_ended = [point for point in points if point.ratio.low is None]
    judged = [point for point in points if point.ratio.low is not None]
    if not judged:
        why = "Fewer than two undisturbed blocks." if open_ended else "No pair of finished cells to compare."
        return verdict("not tested here", why, points)
    need = 1.0 if claim.low is None else claim.low - slack
    grades = [_grade(point, need, strict=claim.low is None) for point in judged]
    missing = expected - len(judged)
    why = f"{grades.count(2)} of {expected} ratios {'lie above 1' if claim.low is None else f'reach {need:g}x'}"
    if missing:
        why += f", {missing} could not be formed"
    if leaning := grades.count(1):
        why += f", {leaning} above 1 but short of it"
    if refuted := grades.count(0):
        why += f", {refuted} not surely above 1"
    if claim.high is not None and any(p.ratio.low is not None and p.ratio.low > claim.high + slack for p in judged):
        why += "; larger than published in places"
    why += f"; judged by {' and '.join(dict.fromkeys(f'{p.quantity} {p.source}' for p in judged))}."
    if not any(grades):
        return verdict("not reproduced", why, points)
    whole = not missing and all(grade == 2 for grade in grades)
    return verdict("reproduced" if whole else "partly", why, points)


def verdicts(selection: Selection, claims: dict[str, Claim], rules: Sequence[Rule] = FIG1_RULES) -> list[Verdict]:
    """One verdict per rule, in the order of the rules; raises LedgerError when the ledger lacks a claim."""
    known(claims, [rule.claim_id for rule in rules])
    return [judge(rule, claims[rule.claim_id], selection) for rule in rules]
