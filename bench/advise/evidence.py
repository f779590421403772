"""What is measured of an arm's loss: its gap to dense training on the test bed, from the committed records.

The bed is a small language model on one corpus of repetitive text (experiment ``formats_tiny``). Each arm had its own
search of rates; the rate is the one with the lowest validation loss, the gap the mean over seeds on the test data. An
arm with several starts is given its best one. Matrices were 4 and 8 times smaller there; an arm is given the gap at the
nearer of the two.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bench.advise.arms import MUON, AdvisedArm
from bench.core.record import Record, read_all

#: Where the records are, and the experiment with the evidence.
RECORDS = Path(__file__).resolve().parents[2] / "results" / "reference"
EXPERIMENT = "formats_tiny"

#: The optimizers under which gaps were measured, as the table calls them.
OPTIMIZERS: Mapping[str, str] = {"adamw": "AdamW", "muon": "Muon"}


@dataclass(frozen=True)
class Evidence:
    """Measured gaps on the test bed, in nats above dense training under the same optimizer."""

    gaps: Mapping[float, Mapping[tuple[str, str], float]]  # by times smaller, then by method and optimizer
    muon: float  # loss of dense training under Muon, less that under AdamW
    words: str  # the bed

    def nearest(self, ratio: float) -> float:
        """Return the measured ratio that is nearest to one that is asked for, as a factor."""
        return min(self.gaps, key=lambda measured: abs(math.log(measured / ratio)))

    def gap(self, arm: AdvisedArm) -> dict[str, float]:
        """Return the gap of an arm by optimizer, at the nearest ratio; empty where none was measured.

        The arms of exact arithmetic are dense training itself, so their gap is 0 by construction.
        """
        base = arm.base.partition(":")[0].partition("@")[0]
        if arm.base == "dense":
            return dict.fromkeys(OPTIMIZERS, 0.0)
        if arm.base == MUON:
            return {"adamw": self.muon}
        if arm.ratio is None:
            return {}
        found = self.gaps[self.nearest(arm.ratio)]
        return {name: found[base, name] for name in OPTIMIZERS if (base, name) in found}


@functools.cache
def evidence(root: Path = RECORDS) -> Evidence | None:
    """Read the evidence from the records below ``root``; None where they hold none.

    A ratio counts where arms were trained at it under every optimizer.
    """
    records = [record for record in read_all(root, EXPERIMENT) if record.status == "ok"]
    losses = {key: _chosen(some) for key, some in _by_arm(records).items()}
    dense = {name: loss for name in OPTIMIZERS if (loss := losses.get((None, "dense", "", name))) is not None}
    if len(dense) < len(OPTIMIZERS):
        return None
    gaps: dict[float, dict[tuple[str, str], float]] = defaultdict(dict)
    for (ratio, method, _, optimizer), loss in losses.items():
        if ratio is not None:
            gap = loss - dense[optimizer]
            gaps[ratio][method, optimizer] = min(gap, gaps[ratio].get((method, optimizer), math.inf))
    whole = {ratio: some for ratio, some in gaps.items() if {name for _, name in some} == {*OPTIMIZERS}}
    if not whole:
        return None
    by_matrices = {_matrices_ratio(records, ratio): some for ratio, some in sorted(whole.items())}
    bed = records[0].config
    settings, steps = bed["workload_settings"], bed["training"]["stages"][-1]["steps"]
    model = f"a {settings['blocks']}-block GPT of width {settings['width']}"
    words = f"{model} on one corpus of repetitive text, {steps:,} steps"
    return Evidence(by_matrices, dense["muon"] - dense["adamw"], words)


def _by_arm(records: list[Record]) -> dict[tuple[float | None, str, str, str], dict[float, list[Record]]]:
    """Return records by ratio, method, variant and optimizer, then by rate.

    Narrower dense models are no arm of the table, and the one rule of rates is the common one.
    """
    found: dict[tuple[float | None, str, str, str], dict[float, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        recipe = record.config["training"]["recipe"]
        if (record.method, record.variant) != ("dense", "narrow") and not recipe.get("per_core"):
            found[record.ratio, record.method, record.variant or "", recipe["optimizer"]][recipe["lr"]].append(record)
    return found


def _chosen(rates: Mapping[float, list[Record]]) -> float:
    """Mean test loss over the seeds of the rate whose first seed has the lowest validation loss."""
    first = {rate: min(some, key=lambda record: record.seed) for rate, some in rates.items()}
    best = min(rates, key=lambda rate: first[rate].metrics["loss"])
    return fmean(record.metrics["test_loss"] for record in rates[best])


def _matrices_ratio(records: list[Record], ratio: float) -> float:
    """Return how many times smaller the blocks' matrices were at a ratio of the whole model, by block tensor trains."""
    dense = next(record for record in records if record.ratio is None)
    btt = next(record for record in records if record.method == "btt" and record.ratio == ratio)
    settings = dense.config["workload_settings"]
    width, hidden = settings["width"], settings["feed_forward"] or 4 * settings["width"]
    matrices = settings["blocks"] * (4 * width**2 + 2 * width * hidden)
    return round(matrices / (matrices - (dense.parameters or 0) + (btt.parameters or 0)), 2)
