"""Made-up records of sweeps over whole-model ratios: plausible in shape, invented in every number, never a result."""

from __future__ import annotations

import json
import random
from typing import Any

from made_up_records import CPU, CUDA, blocks, record

from bench.core.record import Record
from figures.records.sizes import FULL_SIZE_PARAMETERS

RATIOS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0)
LIMITS = {"comera": 145.073, "low_rank": 116.44}
REASONS = {
    "comera": "for the whole model, where 459,267 of its 66,957,315 parameters stay dense",
    "low_rank": "for two-factor layers, since 459,267 of the model's 66,957,315 parameters are not factorised",
}


def out_of_reach(arm: str, ratio: float) -> str:
    """The sentence of a method that cannot make the model so small."""
    limit = f"the largest within reach is {LIMITS[arm]:.6g}, with all ranks 1."
    return f"ratio={ratio:g} is out of reach {REASONS[arm]}; {limit}"


def swept(
    arm: str,
    ratio: float | None = 2.0,
    batch: int = 8,
    *,
    measure: str = "run",
    device: str = CPU,
    settings: dict[str, Any] | None = None,
    **columns: Any,
) -> Record:
    """A record that is ``ok`` and empty unless ``columns`` say otherwise; ``ratio`` of dense is that of its job."""
    target = columns.get("predicted_for") or ("cuda" if device == CUDA else "cpu")
    own = {} if arm in ("dense", "galore") else {"ratio": ratio}
    config = {"device": target, "method_settings": {**own, **(settings or {})}, "workload_settings": {"width": 768}}
    experiment = "ratios" if measure == "run" else "ratios_memory"
    values = {
        "cell_id": f"{experiment}-{arm}-{ratio}-{batch}-{target}-{columns.get('precision', '')}".replace(":", "-"),
        "experiment": experiment,
        "ratio": ratio,
        "config_json": json.dumps(config),
    }
    return record(arm, batch, measure=measure, device=device, **(values | columns))


def timed_beside(arm: str, means: list[float], ratio: float = 2.0, batch: int = 8, **columns: Any) -> Record:
    """A timed record with the given block means, paired with all others of its batch size and ratio."""
    samples = blocks(means, columns.pop("disturbed", ()))
    return swept(arm, ratio, batch, samples=samples, **({"pairing": f"together-{batch}-{ratio}"} | columns))


def time_share(arm: str, ratio: float) -> float:
    """Invented time over dense's: tensorizing loses at small ratios."""
    return {"comera": 0.16 + 2.1 / ratio, "low_rank": 0.18 + 1.1 / ratio, "dense": 1.0}[arm]


def sizes(arm: str, ratio: float, batch: int, target: str) -> dict[str, float | int]:
    """Invented peak by category, in MiB, work and parameters."""
    trained = 255.0 / (1.0 if arm == "dense" else ratio)
    activations = batch * {"cuda": 37.0, "cpu": 41.0}[target] * (1.0 + (1.2 / ratio if arm == "comera" else 0.0))
    split = {
        "parameters": trained,
        "gradients": trained if arm != "comera" else 1.0,
        "optimizer": 2 * trained,
        "activations": activations,
        "temporaries": 4.0 + 0.03 * activations,
    }
    work = batch * 33e9 * {"dense": 1.0, "comera": 0.05 + 1.6 / ratio, "low_rank": 0.03 + 1.0 / ratio}[arm]
    return {f"predicted_{name}_mib": size for name, size in split.items()} | {
        "peak_memory_predicted_mib": sum(split.values()),
        "flops_per_step": round(work),
        "parameters": round(FULL_SIZE_PARAMETERS / (1.0 if arm == "dense" else 1.003 * ratio)),
    }


def sweep_campaign(
    device: str = CPU, seed: int = 3, ratios: tuple[float, ...] = RATIOS, batches: tuple[int, ...] = (), **columns: Any
) -> list[Record]:
    """A whole Fig. 12 of one device; a ratio beyond a method's limit is out of its reach."""
    noise = random.Random(seed)
    kind = "cuda" if device == CUDA else "cpu"
    speed = 0.01 if device == CUDA else 1.0
    records = []
    for batch in batches or ((1, 32, 64, 128) if device == CUDA else (8,)):
        for ratio in ratios:
            rounds = [1 + noise.uniform(-0.06, 0.06) for _ in range(5)]
            for arm in ("comera", "low_rank", "dense"):
                common: dict[str, Any] = {"device": device} | columns
                if ratio > LIMITS.get(arm, ratio):
                    words = {"status": "unsupported", "message": out_of_reach(arm, ratio)}
                    records.append(swept(arm, ratio, batch, **common, **words))
                    continue
                common |= sizes(arm, ratio, batch, kind)
                if device == CUDA:
                    common["peak_memory_allocated_mib"] = common["peak_memory_predicted_mib"] * 1.04
                    common["peak_memory_reserved_mib"] = common["peak_memory_predicted_mib"] * 1.2
                cost = 200.0 * batch * speed * time_share(arm, ratio)
                means = [cost * share * (1 + noise.uniform(-0.03, 0.03)) for share in rounds]
                records.append(timed_beside(arm, means, ratio, batch, **common))
    for batch in (32, 128):
        for arm, ratio in [("dense", None), *((arm, ratio) for arm in LIMITS for ratio in ratios)]:
            plan = {"measure": "predict", "device": device, "predicted_for": "cuda"} | columns
            if ratio is not None and ratio > LIMITS[arm]:
                words = {"status": "unsupported", "message": out_of_reach(arm, ratio)}
                records.append(swept(arm, ratio, batch, **plan, **words))
            else:
                records.append(swept(arm, ratio, batch, **plan, **sizes(arm, ratio or 1.0, batch, "cuda")))
    return records
