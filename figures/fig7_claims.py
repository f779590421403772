"""The verdict on the claim that Fig. 7 touches: epoch time of dense over CoMERA's, both with CUDA Graph.

It is judged in FP32 without torch.compile, as the paper ran, by the rules of :mod:`figures.ratio_claims`. Times of a
CPU decide nothing and are printed beside.
"""

from __future__ import annotations

from figures.claims import FULL_SIZE_PARAMETERS, Claim, Outcome, Verdict, known
from figures.fig7_rows import BATCHES, DENSE, REFERENCE, Steps, ratio_of
from figures.ratio_claims import Point, decide
from figures.toggles import Toggles

CLAIM = "graph-speedup"
GRAPH = Toggles(cuda_graph=True)

#: Half a unit of the last published digit.
SLACK = 0.5


def _points(steps: Steps, toggles: Toggles) -> list[Point]:
    where = {"cpu": "on a CPU", "cuda": "on CUDA"}[steps.kind]
    source = ", ".join((where, *(toggles.names or ("plain",))))
    found = [(batch, ratio_of(steps, (DENSE, toggles, batch), (REFERENCE, toggles, batch))) for batch in steps.batches]
    return [Point("time", batch, ratio, source) for batch, ratio in found if ratio is not None]


def _judge(claim: Claim, steps: Steps) -> Verdict:
    def verdict(outcome: Outcome, why: str, points: list[Point]) -> Verdict:
        return Verdict(claim, tuple(points), steps.device, outcome, why)

    everything = [point for arm, toggles in steps.variants if arm == DENSE for point in _points(steps, toggles)]
    if steps.kind == "cpu":
        return verdict("not tested here", "The claim is about a GPU; times of a CPU cannot decide it.", everything)
    points = [point for point in _points(steps, GRAPH) if point.batch_size in BATCHES["cuda"]]
    if not points:
        return verdict(
            "not tested here", "The claim is about FP32 with CUDA Graph; no such pair was timed.", everything
        )
    dense = [record.parameters for record in steps.shown if record.arm == DENSE and record.parameters is not None]
    if any(count != FULL_SIZE_PARAMETERS for count in dense):
        return verdict("not tested here", "The dense model of these records is not the paper's full-size one.", points)
    return decide(claim, points, len(BATCHES["cuda"]), SLACK, verdict)


def verdicts(steps: Steps, claims: dict[str, Claim]) -> list[Verdict]:
    """The verdict, alone in its list; raises LedgerError when the ledger lacks the claim."""
    known(claims, [CLAIM])
    return [_judge(claims[CLAIM], steps)]
