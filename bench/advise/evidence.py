"""What is measured of an arm's loss: its gap to dense training on the test bed, from the committed records.

The bed is a small language model on one corpus of repetitive text (experiment ``formats_tiny``). Each arm had its own
search of rates; the rate is the one with the lowest validation loss, the gap the mean over seeds on the test data. An
arm with several starts is given its best one. Matrices were 4 times smaller there, whatever ratio is asked for here.
"""

import functools
import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.advise.arms import MUON, AdvisedArm
from bench.core.record import Record, read_all

#: Where the records are, and the experiment with the evidence.
RECORDS = Path(__file__).resolve().parents[2] / "results" / "reference"
EXPERIMENT = "formats_tiny"

#: The optimizers under which gaps were measured, as the table calls them.
OPTIMIZERS: Mapping[str, str] = {"adamw": "AdamW", "muon": "Muon"}


@dataclass(frozen=True)
class Evidence:
    """Measured gaps on the test bed, in nats above dense training under the same optimizer.

    Attributes:
        gaps: by method and optimizer.
        muon: loss of dense training under Muon, less that under AdamW.
        ratio: how many times smaller the matrices were.
        words: the bed, in words.
    """

    gaps: Mapping[tuple[str, str], float]
    muon: float
    ratio: float
    words: str

    def gap(self, arm: AdvisedArm) -> dict[str, float]:
        """Return the gap of an arm by optimizer; empty where none was measured.

        The arms of exact arithmetic are dense training itself, so their gap is 0 by construction.
        """
        base = arm.base.partition(":")[0].partition("@")[0]
        if arm.base == "dense":
            return dict.fromkeys(OPTIMIZERS, 0.0)
        if arm.base == MUON:
            return {"adamw": self.muon}
        if arm.ratio is None:
            return {}
        return {name: self.gaps[base, name] for name in OPTIMIZERS if (base, name) in self.gaps}


@functools.cache
def evidence(root: Path = RECORDS) -> Evidence | None:
    """Read the evidence from the records below ``root``; None where they hold none."""
    records = _of_one_ratio([record for record in read_all(root, EXPERIMENT) if record.status == "ok"])
    losses = {key: _chosen(some) for key, some in _by_arm(records).items()}
    dense = {name: losses.get(("dense", "", name)) for name in OPTIMIZERS}
    if any(loss is None for loss in dense.values()):
        return None
    gaps: dict[tuple[str, str], float] = {}
    for (method, _, optimizer), loss in losses.items():
        gap = loss - (dense[optimizer] or math.nan)
        gaps[method, optimizer] = min(gap, gaps.get((method, optimizer), math.inf))
    return Evidence(gaps, (dense["muon"] or 0) - (dense["adamw"] or 0), _matrices_ratio(records), _words(records))


def _of_one_ratio(records: list[Record]) -> list[Record]:
    """Return dense training and the arms of the ratio that most optimizers have, the smallest of several."""
    optimizers: dict[float, set[str]] = defaultdict(set)
    for record in records:
        if record.ratio is not None:
            optimizers[record.ratio].add(_config(record)["training"]["recipe"]["optimizer"])
    chosen = min(optimizers, key=lambda ratio: (-len(optimizers[ratio]), ratio), default=None)
    return [record for record in records if record.ratio in (None, chosen)]


def _by_arm(records: list[Record]) -> dict[tuple[str, str, str], dict[float, list[Record]]]:
    """Return records by method, variant and optimizer, then by rate; narrower dense models are no arm of the table."""
    found: dict[tuple[str, str, str], dict[float, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        recipe = _config(record)["training"]["recipe"]
        if (record.method, record.variant) != ("dense", "narrow"):
            found[record.method, record.variant or "", recipe["optimizer"]][recipe["lr"]].append(record)
    return found


def _chosen(rates: Mapping[float, list[Record]]) -> float:
    """Mean test loss over the seeds of the rate whose first seed has the lowest validation loss."""
    first = {rate: min(some, key=lambda record: record.seed) for rate, some in rates.items()}
    best = min(rates, key=lambda rate: first[rate].metrics["loss"])
    return fmean(record.metrics["test_loss"] for record in rates[best])


def _matrices_ratio(records: list[Record]) -> float:
    """How many times smaller the matrices of the blocks were than the dense model's."""
    sizes = {record.method: record.parameters for record in records if record.variant != "narrow"}
    dense, btt = sizes["dense"] or 0, sizes["btt"] or 0
    settings = _config(records[0])["workload_settings"]
    width, hidden = settings["width"], settings["feed_forward"] or 4 * settings["width"]
    matrices = settings["blocks"] * (4 * width**2 + 2 * width * hidden)
    return float(matrices / (matrices - dense + btt))


def _words(records: list[Record]) -> str:
    settings = _config(records[0])["workload_settings"]
    steps = _config(records[0])["training"]["stages"][-1]["steps"]
    model = f"a {settings['blocks']}-block GPT of width {settings['width']}"
    return f"{model} on one corpus of repetitive text, {steps:,} steps"


def _config(record: Record) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(record.config_json)
    return config
