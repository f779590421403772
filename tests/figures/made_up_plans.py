"""Made-up records of contraction plans for tests: the planner's own plans, with invented times, never a result."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from made_up_records import CPU, CUDA, record

from bench.core.record import Record
from bench.measures.shapes import described_shape
from comera.contraction import candidates, plan_contraction
from comera.modes import balanced_modes
from comera.tensor_train import TTShape

LAYERS = ((256, 256), (1024, 1024), (768, 3072), (4096, 4096))
ORDERS, RANKS, TOKENS = (2, 3, 4), (4, 32, 256), (1, 16, 256, 4096, 65536)
TOO_LARGE = "made up: too large for a CPU."


def planned(
    times: Mapping[str, Sequence[float]] | None = None,
    layer: tuple[int, int] = (768, 768),
    tokens: int = 128,
    *,
    order: int = 3,
    ranks: int = 30,
    device: str = CPU,
    dense_ms: Sequence[float] = (5.0, 5.0),
    **columns: Any,
) -> Record:
    """The plans of a layer. Those that ``times`` lacks have no time; without it all take twice their estimate.

    ``contraction``, the chosen plan, is the planner's unless ``columns`` say otherwise.
    """
    kind = "cuda" if device == CUDA else "cpu"
    shape = TTShape(*layer, balanced_modes(layer[0], order), balanced_modes(layer[1], order)[::-1], ranks)
    rows: list[dict[str, Any]] = [
        {
            **{name: getattr(plan, name) for name in ("name", "segments", "trees", "flops")},
            "products": [dataclasses.asdict(product) for product in plan.products],
            "saved_mib": plan.saved * 4 / 2**20,
            "largest_mib": plan.largest * 4 / 2**20,
            "estimated_ms": 1e3 * plan.seconds(kind),
            "ms": [],
            "message": "",
        }
        for plan in candidates(shape, tokens)
    ]
    for row in rows:
        row["ms"] = list(times.get(row["name"], [])) if times is not None else [2 * row["estimated_ms"]] * 2
    config = {
        "device": kind,
        "method_settings": {"order": order, "ranks": ranks},
        "workload_settings": {"in_features": layer[0], "out_features": layer[1], "optimizer_step": True},
    }
    samples = {"shape": described_shape(shape), "plans": rows, "dense_ms": list(dense_ms)}
    values = {
        "cell_id": f"{layer[0]}-{layer[1]}-{order}-{ranks}-{tokens}",
        "experiment": "contraction",
        "workload": "linear",
        "dataset": "normal",
        "sequence_length": 1,
        "contraction": plan_contraction(shape, tokens, kind).name,
        "samples": json.loads(json.dumps(samples)),
        "config_json": json.dumps(config),
    }
    return record("comera", tokens, measure="plan", device=device, **(values | columns))


def grid(device: str = CPU, seed: int = 3) -> list[Record]:
    """A whole grid of one device, every time within a fifth of twice its estimate; large shapes are not measured."""
    noise = random.Random(seed)
    records = []
    for layer in LAYERS:
        for order in ORDERS:
            for ranks in RANKS:
                for tokens in TOKENS:
                    where: dict[str, Any] = {"layer": layer, "order": order, "ranks": ranks, "device": device}
                    one = planned(tokens=tokens, **where)
                    if device == CPU and tokens * layer[0] * layer[1] > 7e10:
                        one = planned(tokens=tokens, **where, status="unsupported", message=TOO_LARGE)
                        one.samples, one.contraction = {}, ""
                    rows = one.samples.get("plans", [])
                    for row in rows:
                        typical = 2 * row["estimated_ms"] * noise.uniform(0.85, 1.2)
                        row["ms"] = [typical * noise.uniform(0.97, 1.06) for _ in range(5)]
                    if rows:
                        fastest = min(row["ms"][0] for row in rows)
                        for row in rows:
                            row["ms"] = row["ms"][: 1 if row["ms"][0] > 4 * fastest else 5]
                        flops = 6 * tokens * layer[0] * layer[1]
                        typical = 0.05 + 1.5 * 1e3 * flops / 1.2e11
                        one.samples["dense_ms"] = [typical * noise.uniform(0.97, 1.06) for _ in range(5)]
                    records.append(one)
    return records
