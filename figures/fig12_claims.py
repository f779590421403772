"""Verdict on the claim of Fig. 12: the speed-up grows with compression and vanishes as the ratio tends to 1.

How it falls. Speed-up is dense's time per epoch over CoMERA's. At a batch size it *grows* when at the largest ratio it
surely exceeds that at the smallest, and at no ratio surely falls short of that at a smaller one, where surely means
that the intervals do not meet. It *vanishes* when at the smallest ratio, which must be 2 or less, its interval does
not lie above 1.1 as a whole: the claim is about a limit, so 10 % may be left on the way to it, which is said, as is
slower than dense. Both at every batch size: reproduced. It grows at none: not reproduced. Anything between: partly.
Times of a CPU decide nothing and are printed beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from bench.core.intervals import Estimate
from figures.claims import FULL_SIZE_PARAMETERS, Claim, Outcome, Verdict, known
from figures.crossover import Quotients
from figures.fig12_rows import speed_up
from figures.fig12_selection import Sweep
from figures.runs import COMERA, DENSE
from figures.tables import with_interval
from figures.training_claims import Finding

CLAIM = "ratio-monotone"

#: Fewer ratios say nothing about a curve; the smallest one must come this near to 1.
_FEWEST, _NEAR = 4, 2.0

#: How much faster than dense still counts as no faster, near the limit.
MARGIN = 0.1


def _speed_ups(sweep: Sweep, batch: int) -> dict[float, Estimate]:
    found = {ratio: speed_up(sweep, COMERA, batch, ratio) for ratio in sweep.ratios(batch)}
    return {ratio: one for ratio, one in found.items() if one is not None}


def _finding(sweep: Sweep, batch: int, curve: Quotients) -> Finding:
    where = "on a CPU" if sweep.kind == "cpu" else f"on CUDA, CUDA Graph {'on' if sweep.toggles[1] else 'off'}"
    numbers = (
        f"{with_interval(one, unit='x')} at ratio {ratio:g}{', unpaired' if one.paired is False else ''}"
        for ratio, one in sorted(curve.items())
    )
    return Finding(f"dense / comera, time, batch {batch}, {where}", ", ".join(numbers))


def _surely_above(one: Estimate, other: Estimate) -> bool:
    assert one.low is not None
    assert other.high is not None
    return one.low > other.high


def _judged(curve: Quotients) -> tuple[bool, bool, str]:
    """Whether the speed-up grows and whether it vanishes, with words for what it does instead."""
    ratios = sorted(curve)
    first, last = curve[ratios[0]], curve[ratios[-1]]
    falls = [(left, right) for left, right in combinations(ratios, 2) if _surely_above(curve[left], curve[right])]
    grows = _surely_above(last, first) and not falls
    assert first.low is not None
    vanishes = first.low <= 1 + MARGIN
    words = []
    if falls:
        left, right = falls[0]
        words.append(f"surely lower at ratio {right:g} than at {left:g}")
    elif not grows:
        words.append(f"not surely higher at ratio {ratios[-1]:g} than at {ratios[0]:g}")
    if not vanishes:
        words.append(f"still {first.value:.3g}x at ratio {ratios[0]:g}")
    elif first.low > 1:
        words.append(f"within the margin of {MARGIN:.0%} at ratio {ratios[0]:g}, {first.value:.3g}x")
    elif first.high is not None and first.high < 1:
        words.append(f"slower than dense at ratio {ratios[0]:g}, {first.value:.3g}x")
    return grows, vanishes, " and ".join(words)


def _usable(curve: Quotients) -> bool:
    wide = {ratio: one for ratio, one in curve.items() if one.low is not None and one.high is not None}
    return len(wide) == len(curve) >= _FEWEST and min(curve) <= _NEAR


def _judge(claim: Claim, sweep: Sweep) -> Verdict:
    curves = {batch: curve for batch in sweep.time_batches if (curve := _speed_ups(sweep, batch))}
    found = [_finding(sweep, batch, curve) for batch, curve in curves.items()]

    def verdict(outcome: Outcome, why: str) -> Verdict:
        return Verdict(claim, tuple(found), sweep.device, outcome, why)

    if sweep.kind == "cpu" and sweep.timed:
        return verdict("not tested here", "The claim is about a GPU; times of a CPU cannot decide it.")
    if not curves:
        return verdict("not tested here", "No pair of finished cells to compare.")
    if sweep.toggles[0] != "fp32":
        return verdict("not tested here", f"The claim is about FP32; these records are {sweep.toggles[0]}.")
    dense = {record.parameters for record in sweep.shown if record.arm == DENSE and record.parameters is not None}
    if dense - {FULL_SIZE_PARAMETERS}:
        return verdict("not tested here", "The dense model of these records is not the paper's full-size one.")
    usable = {batch: _judged(curve) for batch, curve in curves.items() if _usable(curve)}
    if not usable:
        why = f"It takes {_FEWEST} ratios with intervals at one batch size, the smallest at most {_NEAR:g}."
        return verdict("not tested here", why)
    grows = [batch for batch, (grown, _, _) in usable.items() if grown]
    vanishes = [batch for batch, (_, vanished, _) in usable.items() if vanished]
    why = f"It grows at {len(grows)} of {len(usable)} batch sizes and vanishes at {len(vanishes)}"
    why += "".join(f"; batch {batch}: {words}" for batch, (_, _, words) in usable.items() if words)
    if missing := [batch for batch in sweep.time_batches if batch not in usable]:
        why += f"; too few ratios at batch {', '.join(map(str, missing))}"
    whole = len(grows) == len(vanishes) == len(sweep.time_batches)
    return verdict("reproduced" if whole else "partly" if grows else "not reproduced", why + ".")


def verdicts(sweep: Sweep, claims: dict[str, Claim]) -> Sequence[Verdict]:
    """The verdict of one figure; raises LedgerError when the ledger lacks the claim."""
    known(claims, [CLAIM])
    return [_judge(claims[CLAIM], sweep)]
