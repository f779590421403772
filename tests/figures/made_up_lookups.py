"""Made-up look-up records for tests: plausible in shape, invented in every number, never a result."""

from __future__ import annotations

import json
import random
from typing import Any

from made_up_records import CPU, CUDA, blocks, record

from bench.core.record import Record
from figures.artifacts.fig5 import TABLES as ARMS
from figures.artifacts.fig5 import VARIANTS

STEP_MS = dict(zip(VARIANTS, (40.0, 95.0, 200.0, 190.0, 35.0, 12.0, 4.0), strict=True))
PEAK_MIB = dict(zip(VARIANTS, (150.0, 170.0, 350.0, 400.0, 236.0, 180.0, 90.0), strict=True))
TABLES = ((30522, 768), (10_000_000, 64))


def looked_up(
    variant: str,
    batch: int = 10_000,
    *,
    step: bool = False,
    table: tuple[int, int] = TABLES[0],
    dataset: str = "zipf",
    measure: str = "run",
    device: str = CPU,
    **columns: Any,
) -> Record:
    """A record that is ``ok`` and empty unless ``columns`` say otherwise."""
    arm = {table: arm for arm, table in ARMS.items()}.get(variant, "comera")
    method = arm.partition(":")[0]
    target = columns.get("predicted_for") or ("cuda" if device == CUDA else "cpu")
    config = {
        "device": target,
        "method_settings": {"lr": 1.0} if method == "dense" else {"lookup": variant, "table_ranks": 32},
        "workload_settings": {"rows": table[0], "columns": table[1], "optimizer_step": step},
    }
    values = {
        "cell_id": f"{measure}-{table[0]}-{dataset}-{step}-{batch}-{variant}-{target}".replace(", ", "-").replace(
            " ", "-"
        ),
        "experiment": "fig5" if measure == "run" else "fig5_memory",
        "workload": "lookup",
        "variant": arm.partition(":")[2],
        "dataset": dataset,
        "sequence_length": 1,
        "config_json": json.dumps(config),
    }
    return record(method, batch, measure=measure, device=device, **(values | columns))


def timed_lookup(variant: str, means: list[float], batch: int = 10_000, **columns: Any) -> Record:
    """A timed record with the given block means, paired with all others of its batch size."""
    return looked_up(variant, batch, samples=blocks(means), **({"pairing": f"together-{batch}"} | columns))


def sizes(variant: str, batch: int) -> dict[str, float]:
    """An invented peak with its categories, in MiB."""
    peak = PEAK_MIB[variant] * batch / 10_000
    return {"predicted_activations_mib": 0.9 * peak, "predicted_temporaries_mib": 0.1 * peak} | {
        "peak_memory_predicted_mib": peak
    }


def lookup_campaign(device: str = CPU, seed: int = 5) -> list[Record]:
    """A whole Fig. 5 of one device; the large dense table finds no memory for its optimizer."""
    noise = random.Random(seed)
    records = []
    for table in TABLES:
        for dataset in ("uniform", "zipf"):
            for step in (False, True):
                for batch in (10_000, 20_000, 40_000):
                    rounds = [1 + noise.uniform(-0.08, 0.08) for _ in range(6)]
                    for variant in VARIANTS:
                        common: dict[str, Any] = {"table": table, "dataset": dataset, "step": step, "device": device}
                        common |= sizes(variant, batch)
                        cost = STEP_MS[variant] * batch / 10_000 + (10.0 if step else 0.0)
                        means = [cost * share * (1 + noise.uniform(-0.02, 0.02)) for share in rounds]
                        if device == CUDA:
                            peak = PEAK_MIB[variant] * batch / 10_000
                            common |= {"peak_memory_allocated_mib": peak, "peak_memory_reserved_mib": 1.1 * peak}
                        one = timed_lookup(variant, means, batch, **common)
                        if (variant, table, step) == ("uncompressed", TABLES[1], True):
                            one.status, one.message, one.samples = "oom", "made up: no room.", {}
                        records.append(one)
                        if device == CPU:
                            plan = common | {"predicted_for": "cuda", "measure": "predict"}
                            records.append(looked_up(variant, batch, **plan))
    return records
