"""Verdicts on the claims that Fig. 1 touches: ratios of time and of peak memory (:mod:`figures.ratio_claims`).

They are about FP32. Those on time are about a GPU and about steps captured by CUDA Graph, as all of the paper's were:
other times decide nothing and are printed beside. A rival that cannot be captured takes part with its times without
CUDA Graph, of the same settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from bench.core.intervals import Estimate
from figures.claims import FULL_SIZE_PARAMETERS, Claim, Outcome, Verdict, known
from figures.ratio_claims import Point, decide
from figures.selection import PAPER_BATCHES, Selection
from figures.timing import time_ratio
from figures.toggles import Toggles

#: The steps that claims on time are about.
CAPTURED = Toggles(cuda_graph=True)


def _wanted(batches: Sequence[int], have: Sequence[int]) -> list[int]:
    return [batch for batch in have if not batches or batch in batches]


def time_points(rival: str, selection: Selection, batches: Sequence[int]) -> list[Point]:
    """Epoch time of ``rival`` over CoMERA's, per batch size; an empty ``batches`` asks for all that were timed."""
    points = []
    graph = {True: "CUDA Graph on", False: "CUDA Graph off"}
    for batch in _wanted(batches, selection.time_batches):
        above = selection.uncaptured.get((rival, batch)) or selection.timed.get((rival, batch))
        below = selection.timed.get(("comera", batch))
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


def _other_steps(selection: Selection) -> str:
    """Why times of this page decide nothing on a GPU; empty where they are of captured steps."""
    if selection.toggles == CAPTURED:
        return ""
    if not selection.timed:
        return "The claim is about captured steps; none were timed."
    other = "with torch.compile" if selection.toggles.cuda_graph else "without CUDA Graph"
    return f"The claim is about captured steps; these ran {other}."


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
    if rule.device == "cuda" and (other := _other_steps(selection)):
        return verdict("not tested here", other, points)
    dense = [r.parameters for r in selection.shown if r.arm == "dense" and r.parameters is not None]
    if any(count != FULL_SIZE_PARAMETERS for count in dense):
        return verdict("not tested here", "The dense model of these records is not the paper's full-size one.", points)
    return decide(claim, points, len(rule.evidence) * len(rule.batches), rule.slack, verdict)


def verdicts(selection: Selection, claims: dict[str, Claim], rules: Sequence[Rule] = FIG1_RULES) -> list[Verdict]:
    """One verdict per rule, in the order of the rules; raises LedgerError when the ledger lacks a claim."""
    known(claims, [rule.claim_id for rule in rules])
    return [judge(rule, claims[rule.claim_id], selection) for rule in rules]
