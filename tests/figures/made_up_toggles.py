"""Made-up records of steps with and without toggles: plausible in shape, invented in every number, never a result."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from made_up_records import CALM, CUDA, sizes, timed

from bench.core.record import Record
from figures.artifacts.fig7 import BATCHES, EXPECTED
from figures.records.select import Toggles

STEP_MS = {"comera": 30.0, "dense": 95.0}
LAUNCHES_MS = {"comera": 12.0, "dense": 4.0}  # what a captured graph saves


def toggled(arm: str, toggles: Toggles, means: list[float], batch: int = 32, **columns: Any) -> Record:
    """A timed record with the given block means, paired with the other arm of its toggles and batch size."""
    precision, compiled, graph = toggles.precision, toggles.compile, toggles.cuda_graph
    device = columns.get("device", CUDA)
    words = f"{batch}-{precision}-{compiled}-{graph}"
    values = {
        "cell_id": f"fig7-{arm}-{words}",
        "experiment": "fig7",
        "precision": precision,
        "compile": compiled,
        "cuda_graph": graph,
        "device": device,
        "pairing": f"together-{words}",
        "config_json": json.dumps(
            {"device": "cuda" if device == CUDA else "cpu", "workload_settings": {}, "timing_settings": CALM}
        ),
    }
    return timed(arm, means, batch, **(values | columns))


def toggled_campaign(device: str = CUDA, more: Sequence[Toggles] = (), seed: int = 3) -> list[Record]:
    """A whole Fig. 7 of one device, with ``more`` sets of toggles than it is expected to have."""
    noise = random.Random(seed)
    kind = "cuda" if device == CUDA else "cpu"
    records = []
    for toggles in (*EXPECTED[kind], *more):
        for batch in BATCHES[kind]:
            rounds = [1 + noise.uniform(-0.05, 0.05) for _ in range(6)]
            for arm in ("comera", "dense"):
                columns: dict[str, Any] = sizes(arm, batch, kind)
                cost = STEP_MS[arm] * batch / 32 * (0.5 if toggles.precision == "bf16" else 1.0)
                cost *= 0.85 if toggles.compile else 1.0
                cost += 0.0 if toggles.cuda_graph else LAUNCHES_MS[arm]
                means = [cost * share * (1 + noise.uniform(-0.02, 0.02)) for share in rounds]
                if toggles.compile:
                    columns["compile_time_s"] = 40.0 + batch / 8
                if kind == "cuda":
                    peak = columns["peak_memory_predicted_mib"] * (1.2 if toggles.cuda_graph else 1.03)
                    columns |= {"peak_memory_allocated_mib": peak, "peak_memory_reserved_mib": 1.1 * peak + 20}
                if arm == "dense":
                    columns["parameters"] = 66_957_315
                records.append(toggled(arm, toggles, means, batch, device=device, **columns))
    return records
