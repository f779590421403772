"""Verdicts on the claims about look-ups, and how the optimized one stands beside the uncompressed table.

The published ratios are plain TTM over optimized TTM, of time and of peak memory, at three batch sizes. They are judged
on forward and backward alone, as the ratios of Fig. 1 are (:mod:`figures.ratio_claims`). Times of a CPU decide nothing
and are printed beside; predictions for a CUDA device may decide about memory.
"""

from __future__ import annotations

from bench.core.intervals import Estimate
from figures.claims import Claim, Outcome, Verdict, known
from figures.fig5_rows import BATCHES, PLAIN, REFERENCE, STEPS, UNCOMPRESSED, Lookups, peak_of, ratio_of
from figures.ratio_claims import Point, decide
from figures.tables import with_interval

TIME, MEMORY = "lookup-time", "lookup-memory"

#: Half a unit of the last published digit.
SLACK = 0.5


def _time_points(lookups: Lookups) -> list[Point]:
    source = {"cpu": "on a CPU", "cuda": "on CUDA"}[lookups.kind]
    found = [(batch, ratio_of(lookups, (False, batch, PLAIN), (False, batch, REFERENCE))) for batch in lookups.batches]
    return [Point("time", batch, ratio, source) for batch, ratio in found if ratio is not None]


def _memory_points(lookups: Lookups) -> list[Point]:
    """Allocated on the device where it was measured, else predicted for CUDA, else predicted for a CPU."""
    points = []
    for batch in lookups.batches:
        slots = [(False, batch, variant) for variant in (PLAIN, REFERENCE)]
        runs = [lookups.timed.get(slot) for slot in slots]
        sources = {
            "allocated on CUDA": [run.peak_memory_allocated_mib if run else None for run in runs],
            "for cuda, predicted": [peak_of(lookups, "cuda", slot) for slot in slots],
            "for cpu, predicted": [peak_of(lookups, "cpu", slot) for slot in slots],
        }
        for source, (above, below) in sources.items():
            if above and below:
                points.append(Point("memory", batch, Estimate.exact(above / below), source))
                break
    return points


def _judge(claim: Claim, lookups: Lookups, points: list[Point]) -> Verdict:
    def verdict(outcome: Outcome, why: str, shown: list[Point] = points) -> Verdict:
        return Verdict(claim, tuple(shown), lookups.device, outcome, why)

    decisive = [point for point in points if "cuda" in point.source.lower()]
    if points and not decisive:
        what = "times of" if claim.id == TIME else "predictions for"
        return verdict("not tested here", f"The claim is about a GPU; {what} a CPU cannot decide it.")
    if lookups.values("precision") != ["fp32"]:
        used = ", ".join(lookups.values("precision"))
        return verdict("not tested here", f"The claim is about FP32; these records are {used}.")
    judged = [point for point in decisive if point.batch_size in BATCHES]
    return decide(claim, judged, len(BATCHES), SLACK, verdict)


def verdicts(lookups: Lookups, claims: dict[str, Claim]) -> list[Verdict]:
    """One verdict on time and one on memory; raises LedgerError when the ledger lacks a claim."""
    known(claims, [TIME, MEMORY])
    return [
        _judge(claims[TIME], lookups, _time_points(lookups)),
        _judge(claims[MEMORY], lookups, _memory_points(lookups)),
    ]


def against_the_table(lookups: Lookups) -> list[str]:
    """Sentences with the time of the optimized look-up over that of the uncompressed table."""
    sentences = []
    for step, words in STEPS.items():
        ratios = []
        for batch in lookups.batches:
            ratio = ratio_of(lookups, (step, batch, REFERENCE), (step, batch, UNCOMPRESSED))
            if ratio is not None:
                unpaired = ", unpaired" if ratio.paired is False else ""
                ratios.append(f"{with_interval(ratio, unit='x')} at {batch:,} indices{unpaired}")
        if ratios:
            sentences.append(f"Optimized look-up over the uncompressed table, time, {words}: {'; '.join(ratios)}.")
    return sentences
