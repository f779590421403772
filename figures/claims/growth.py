"""The claim that the speed-up over dense grows with the compression of the whole model, and vanishes without any.

A page has times by arm, batch size and ratio; dense is timed beside the arms of each ratio (column ``beside``).
"""

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

from bench.core.cell import Arm
from bench.core.intervals import Estimate
from figures import frame
from figures.arms import COMERA, DENSE
from figures.claims.claims import Claim, Finding, Judgement, Outcome, undecided, untested
from figures.claims.ratio import ON_CPU, not_fp32, not_full_size
from figures.claims.rule import Rule
from figures.stats.cells import TimesAndMemory
from figures.text import unpaired, with_bounds
from figures.times import ratios

#: Fewer ratios say nothing about a curve; the smallest one must come this near to 1.
_FEWEST, _NEAR = 4, 2.0

#: How much faster than dense still counts as no faster, near the limit.
MARGIN = 0.1


def _grows_and_vanishes(curve: Mapping[float, Estimate]) -> tuple[bool, bool, str]:
    """Return whether the speed-up grows and whether it vanishes, with words for what it does instead."""
    spans = {ratio: one.span for ratio, one in curve.items()}
    first, last = min(spans), max(spans)
    pairs = itertools.combinations(spans, 2)
    falls = [(left, right) for left, right in pairs if spans[left][0] > spans[right][1]]
    grows = spans[last][0] > spans[first][1] and not falls
    (low, high), value, words = spans[first], f"{curve[first].value:.3g}x", []
    if falls:
        words.append("surely lower at ratio {1:g} than at {0:g}".format(*falls[0]))
    elif not grows:
        words.append(f"not surely higher at ratio {last:g} than at {first:g}")
    if low > 1 + MARGIN:
        words.append(f"still {value} at ratio {first:g}")
    elif low > 1:
        words.append(f"within the margin of {MARGIN:.0%} at ratio {first:g}, {value}")
    elif high < 1:
        words.append(f"slower than dense at ratio {first:g}, {value}")
    return grows, low <= 1 + MARGIN, " and ".join(words)


def _judge(_claim: Claim, page: TimesAndMemory, _table: Any, fair: bool) -> Judgement:
    """Judge the speed-up over dense, or for a ``fair`` comparison over the form of dense that takes least."""
    runs = page.runs[["arm", "batch_size", "beside", "ratio", "times"]]
    is_form = runs["arm"].map(lambda arm: Arm.parse(arm).method) == DENSE
    rivals = runs[(runs["arm"] == DENSE) | fair & is_form]
    names = [DENSE, *sorted({*rivals["arm"]} - {DENSE})]
    if fair and names == [DENSE]:
        return untested("No stronger form of dense is recorded.")

    curves: dict[int, dict[float, Estimate]] = {}
    ours = runs.loc[runs["arm"] == COMERA, ["batch_size", "beside", "times"]]
    pairs = rivals.merge(ours, on=["batch_size", "beside"])
    for (batch, ratio), job in frame.groups(pairs, ["batch_size", "beside"]):
        if known := [one for one in ratios(job["times_x"], job["times_y"]) if one is not None]:
            curves.setdefault(batch, {})[ratio] = min(known, key=lambda one: one.value)
    graph = "on" if page.runs["cuda_graph"].any() else "off"
    where = "on a CPU" if page.kind == "cpu" else f"on CUDA, CUDA Graph {graph}"
    found, usable = [], {}
    for batch, curve in curves.items():
        numbers = [
            f"{with_bounds(one, unit='x')} at ratio {ratio:g}{', unpaired' * unpaired(one)}"
            for ratio, one in curve.items()
        ]
        heading = f"{' or '.join(names)} over comera, time, batch {batch}, {where}"
        found.append(Finding(heading, ", ".join(numbers)))
        bounded = all(one.low is not None and one.high is not None for one in curve.values())
        if bounded and len(curve) >= _FEWEST and min(curve) <= _NEAR:
            usable[batch] = _grows_and_vanishes(curve)

    asked = f"{_FEWEST} ratios with bounds at one batch size, the smallest at most {_NEAR:g}"
    reasons = (
        ON_CPU if page.kind == "cpu" and len(runs) else "",
        "" if curves else "No pair of finished cells to compare.",
        not_fp32(page),
        not_full_size(page),
        "" if usable else f"It takes {asked}.",
    )
    if reason := undecided(reasons, found):
        return reason
    grows = sum(grown for grown, _, _ in usable.values())
    vanishes = sum(vanished for _, vanished, _ in usable.values())
    why = f"It grows at {grows} of {len(usable)} batch sizes and vanishes at {vanishes}"
    why += "".join(f"; batch {batch}: {words}" for batch, (_, _, words) in usable.items() if words)
    batches = sorted(set(runs["batch_size"]))
    if missing := [str(batch) for batch in batches if batch not in usable]:
        why += f"; too few ratios at batch {', '.join(missing)}"
    outcome: Outcome = "partly" if grows else "not reproduced"
    whole = grows == vanishes == len(batches)
    return Judgement("reproduced" if whole else outcome, f"{why}.", found)


GROWTH = Rule(
    "ratio-monotone",
    "epoch time of dense over CoMERA, by ratio: surely higher at the largest than at the smallest, nowhere surely "
    "falling, and at the smallest not surely > 1 + tolerance",
    device="cuda",
    tolerance=MARGIN,
    unit="x",
    judge=partial(_judge, fair=False),
    fair=partial(_judge, fair=True),
    fair_quantity="the same of the form of dense that takes least over CoMERA",
)
