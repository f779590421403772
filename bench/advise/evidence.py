"""Gaps of arms to dense training on the test beds, measured, from the committed records.

The beds are small language models on one corpus of repetitive text (experiments ``formats_tiny`` and
``formats_small``). Each arm had its own search of rates; the rate is the one with the lowest validation loss, the gap
the mean over seeds on the test data. An arm with several starts is given its best one. Matrices were 4 and 8 times
smaller there; an arm is given the gap at the nearer of the two, and its range over the beds. A dense model of the
formats' size is given that of the bed's model of that size, made smaller in the same way. Block tensor trains of a
given rank are another arm than those of the fewest blocks. What ended best at the lowest or the highest of its rates
has no gap, since its search did not end.

A gap counts under an optimizer with which dense training itself ends below the n-gram model of its size, with every
seed: what has learned no more than an n-gram tells nothing of what a smaller model loses.
"""

import functools
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from bench.advise.arms import MUON, NARROW, SMALL, AdvisedArm
from bench.core.record import Record, read_all

#: Where the records are, and the experiments with the evidence.
RECORDS = Path(__file__).resolve().parents[2] / "results" / "reference"
EXPERIMENTS = ("formats_tiny", "formats_small")
PROBES = "probe_text"

#: The optimizers under which gaps were measured, as the table calls them.
OPTIMIZERS: Mapping[str, str] = {"adamw": "AdamW", "muon": "Muon"}


#: The settings of an arm that are part of its name, where they are given.
_NAMED = {"btt": ("rank", "depth"), "grouped": ("groups", "depth"), "dense": ("depth",)}


class GapRange(NamedTuple):
    """The least and the greatest gap over test beds, in nats.

    >>> str(GapRange(0.05, 0.22)), str(GapRange(0.1, 0.1)), str(GapRange(0.0, 0.0))
    ('+0.05 to +0.22', '+0.10', '0')
    """

    low: float
    high: float

    def __str__(self) -> str:
        texts = [f"{value:+.2f}" if value else "0" for value in self]
        return " to ".join(dict.fromkeys(texts))


@dataclass(frozen=True)
class LossBed:
    """Measured gaps on one test bed, in nats above dense training under the same optimizer."""

    words: str  # the model and its steps
    gaps: Mapping[float, Mapping[tuple[str, str], float]]  # by times smaller, then by arm and optimizer
    muon: float  # loss of dense training under Muon, less that under AdamW

    def nearest(self, ratio: float) -> float:
        """Return the measured ratio that is nearest to one that is asked for, as a factor."""
        return min(self.gaps, key=lambda measured: abs(math.log(measured / ratio)))


@dataclass(frozen=True)
class Evidence:
    """Measured gaps on all test beds."""

    beds: tuple[LossBed, ...]

    @property
    def words(self) -> str:
        """Name the beds."""
        return " and ".join(bed.words for bed in self.beds)

    @property
    def optimizers(self) -> set[str]:
        """Return the optimizers under which a gap counts on a bed."""
        return {optimizer for bed in self.beds for gaps in bed.gaps.values() for _, optimizer in gaps}

    def nearest(self, ratio: float) -> float:
        """Return the measured ratio that is nearest to one that is asked for, on the bed where it is farthest."""
        return max((bed.nearest(ratio) for bed in self.beds), key=lambda measured: abs(math.log(measured / ratio)))

    def gap(self, arm: AdvisedArm, share: float = 1.0) -> dict[str, GapRange]:
        """Return the range of an arm's gaps by optimizer, at the nearest ratios; empty where none is recorded.

        ``share`` is the share of the blocks that ``dense:small`` has. The arms of exact arithmetic are dense training
        itself, so their gap is 0 by construction.
        """
        small = f"{SMALL} depth {share:.3g}"
        base = {NARROW: NARROW, SMALL: small}.get(arm.base, arm.parsed.method)
        if arm.base == "dense":
            return dict.fromkeys(OPTIMIZERS, GapRange(0.0, 0.0))
        found: dict[str, list[float]] = defaultdict(list)
        for bed in self.beds:
            if arm.base == MUON:
                found["adamw"].append(bed.muon)
            elif arm.ratio is not None:
                for (name, optimizer), gap in bed.gaps[bed.nearest(arm.ratio)].items():
                    if name == base:
                        found[optimizer].append(gap)
        return {name: GapRange(min(found[name]), max(found[name])) for name in OPTIMIZERS if name in found}


@functools.cache
def evidence(root: Path = RECORDS) -> Evidence | None:
    """Read the evidence from the records below ``root``; None where they hold none."""
    beds = (_bed(root, name) for name in EXPERIMENTS)
    found = tuple(bed for bed in beds if bed is not None)
    return Evidence(found) if found else None


def _bed(root: Path, experiment: str) -> LossBed | None:
    """Read one bed; a ratio counts where arms were trained at it under every optimizer."""
    records = [record for record in read_all(root, experiment) if record.status == "ok"]
    losses = {key: chosen for key, some in _by_arm(records).items() if (chosen := _chosen(some))}
    dense = {name: loss for name in OPTIMIZERS if (loss := losses.get((None, "dense", "", name))) is not None}
    if len(dense) < len(OPTIMIZERS):
        return None
    n_gram = _n_gram(root, next(record for record in records if record.ratio is None))
    learned = {name for name, loss in dense.items() if max(loss) < n_gram}
    gaps: dict[float, dict[tuple[str, str], float]] = defaultdict(dict)
    for (ratio, name, _, optimizer), loss in losses.items():
        if ratio is not None:
            gap = fmean(loss) - fmean(dense[optimizer])
            gaps[ratio][name, optimizer] = min(gap, gaps[ratio].get((name, optimizer), math.inf))
    whole = {
        ratio: {key: gap for key, gap in some.items() if key[1] in learned}
        for ratio, some in gaps.items()
        if {name for _, name in some} == {*OPTIMIZERS}
    }
    if not whole or not learned:
        return None
    by_matrices = {_matrices_ratio(records, ratio): some for ratio, some in sorted(whole.items())}
    bed = records[0].config
    settings, steps = bed["workload_settings"], bed["training"]["stages"][-1]["steps"]
    words = f"a {settings['blocks']}-block GPT of width {settings['width']} ({steps:,} steps)"
    return LossBed(words, by_matrices, fmean(dense["muon"]) - fmean(dense["adamw"]))


def _by_arm(records: list[Record]) -> dict[tuple[float | None, str, str, str], dict[float, list[Record]]]:
    """Return records by ratio, arm, start and optimizer, then by rate; the rule of rates is the common one."""
    found: dict[tuple[float | None, str, str, str], dict[float, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        recipe = record.config["training"]["recipe"]
        if not recipe.get("per_core"):
            name, start = _arm(record)
            found[record.ratio, name, start, recipe["optimizer"]][recipe["lr"]].append(record)
    return found


def _arm(record: Record) -> tuple[str, str]:
    """Return the arm of a record as gaps name it, and how its cores started."""
    settings, variant = record.config["method_settings"], record.variant or ""
    named = f"dense:{variant}" if record.method == "dense" and variant else record.method
    for name in _NAMED.get(record.method, ()):
        if settings.get(name) is not None:
            named += f" {name} {settings[name]:.3g}"
    return named, "" if record.method == "dense" else variant


def _n_gram(root: Path, dense: Record) -> float:
    """Return the loss of the n-gram model of dense's size on a bed's data; minus infinity where none is recorded."""
    settings = {**dense.config["workload_settings"], "probe_numbers": dense.parameters}
    for record in read_all(root, PROBES):
        own = record.config["workload_settings"]
        if record.data_hash == dense.data_hash and own == {**settings, "probe_tokens": own["probe_tokens"]}:
            return record.samples["probes"]["equal-size n-gram model"]["metrics"]["test_loss"]
    return -math.inf


def _chosen(rates: Mapping[float, list[Record]]) -> list[float]:
    """Return the test losses of the seeds of the rate whose first seed has the lowest validation loss.

    There are none where that rate is the lowest or the highest of all.
    """
    first = {rate: min(some, key=lambda record: record.seed) for rate, some in rates.items()}
    best = min(rates, key=lambda rate: first[rate].metrics["loss"])
    return [record.metrics["test_loss"] for record in rates[best]] if min(rates) < best < max(rates) else []


def _matrices_ratio(records: list[Record], ratio: float) -> float:
    """Return how many times smaller the blocks' matrices were at a ratio of the whole model, by block tensor trains."""
    dense = next(record for record in records if record.ratio is None)
    btt = next(record for record in records if record.method == "btt" and record.ratio == ratio)
    settings = dense.config["workload_settings"]
    width, hidden = settings["width"], settings["feed_forward"] or 4 * settings["width"]
    matrices = settings["blocks"] * (4 * width**2 + 2 * width * hidden)
    return round(matrices / (matrices - (dense.parameters or 0) + (btt.parameters or 0)), 2)
