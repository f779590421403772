"""Made-up records for tests: plausible in shape, invented in every number, never a result."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

from bench.core.record import Record

CPU = "Made-up CPU, 2 threads"
CUDA = "Made-up GPU 9000"
ARMS = ("comera", "low_rank@size", "low_rank@rank", "low_rank@rank:linear", "lora", "lte", "galore", "dense")
STEP_MS = dict(zip(ARMS, (60.0, 56.0, 58.0, 110.0, 150.0, 320.0, 300.0, 240.0), strict=True))
WORDS = {
    "model": "six-encoder transformer",
    "epoch": "An epoch is the paper's whatever the data: 392,702 examples padded to 128 tokens.",
    "examples_per_epoch": 392_702,
}
LTE_REASON = "batch_size is no multiple of LTE's 16 heads; allowed: 16, 32, 48 and so on."

#: Parameters of the arms that a claim may have to compare by size.
PARAMETERS = {
    "comera": 1_490_157,
    "low_rank@size": 1_487_547,
    "low_rank@rank": 3_994_947,
    "low_rank@rank:linear": 26_434_563,
    "dense": 66_957_315,
}

#: Settings of two-factor layers that have what their arm names after the @.
MATCHED = {"": {}, "size": {"ratio": 44.9}, "rank": {"rank": 30, "embedding_rank": 32}}

#: Settings under which no made-up block counts as disturbed, however its mean differs from the others'.
CALM = {"disturbed": 1e9}


def record(arm: str = "comera", batch: int = 1, *, measure: str = "run", device: str = CPU, **columns: Any) -> Record:
    """A record that is ``ok`` and empty unless ``columns`` say otherwise."""
    named, _, variant = arm.partition(":")
    method, _, match = named.partition("@")
    target = columns.get("predicted_for") or ("cuda" if device == CUDA else "cpu")
    experiment = "fig1" if measure == "run" else "fig1_memory"
    values: dict[str, Any] = {
        "cell_id": f"{experiment}-{named}-{variant}-{batch}-{target}".replace("@", "-"),
        "code_id": "code-a",
        "recorded_at": "2001-02-03T04:05:06+00:00",
        "experiment": experiment,
        "workload": "encoder",
        "workload_words": WORDS if columns.get("workload", "encoder") == "encoder" else {},
        "dataset": "synthetic",
        "data_hash": "data-a",
        "method": method,
        "variant": variant,
        "measure": measure,
        "batch_size": batch,
        "sequence_length": 128,
        "precision": "fp32",
        "cuda_graph": False,
        "compile": False,
        "seed": 0,
        "status": "ok",
        "predicted_for": target,
        "device": device,
        "threads": 2,
        "torch_version": "0.0.made-up",
        "git_commit": "0" * 40,
        "git_dirty": False,
        "parameters": PARAMETERS.get(arm),
        "config_json": json.dumps(
            {
                "device": target,
                "method_settings": MATCHED[match.partition("+")[0]],
                "workload_settings": {},
                "timing_settings": CALM,
            }
        ),
    }
    return Record(**(values | columns))


def blocks(means: list[float], disturbed: tuple[int, ...] = ()) -> dict[str, Any]:
    """Samples whose block ``i`` has the mean ``means[i]``."""
    return {
        "blocks": [
            {"block": i, "disturbed": i in disturbed, "calibration_ms": 1.0, "ms": [mean * 0.9, mean * 1.1]}
            for i, mean in enumerate(means)
        ],
        "rare": {},
    }


def timed(arm: str, means: list[float], batch: int = 1, **columns: Any) -> Record:
    """A timed record with the given block means; blocks in ``disturbed`` are flagged."""
    samples = blocks(means, columns.pop("disturbed", ()))
    return record(arm, batch, samples=samples, **({"pairing": f"together-{batch}"} | columns))


def sizes(arm: str, batch: int, target: str) -> dict[str, float]:
    """Invented peak by category, in MiB."""
    trained = {"comera": 6.0, "lora": 102.0, "lte": 420.0}.get(arm, 255.0)
    trained = {"low_rank@size": 6.0, "low_rank@rank": 9.0, "low_rank@rank:linear": 100.0}.get(arm, trained)
    state = {"galore": 150.0, "lora": 200.0}.get(arm, 2 * trained)
    activations = batch * {"cuda": 70.0, "cpu": 98.0}[target] * (1.3 if arm == "lte" else 1.0)
    split = {
        "parameters": trained + (160.0 if arm in ("lora", "lte") else 0.0),
        "gradients": trained,
        "optimizer": state,
        "activations": activations,
        "temporaries": 4.0 + 0.03 * activations,
    }
    peak = sum(split.values())
    return {f"predicted_{name}_mib": size for name, size in split.items()} | {"peak_memory_predicted_mib": peak}


def unsupported(record: Record) -> Record:
    columns = {name: None for name in vars(record) if name.startswith(("peak_", "predicted_")) and name.endswith("mib")}
    return dataclasses.replace(record, status="unsupported", message=LTE_REASON, samples={}, **columns)


def campaign(device: str = CPU, seed: int = 7) -> list[Record]:
    """A whole Fig. 1 of one device, LTE unsupported where 16 heads do not divide the batch."""
    noise = random.Random(seed)
    target, grid = ("cuda", (1, 32, 64, 128)) if device == CUDA else ("cpu", (1, 8, 16))
    speed = 0.02 if device == CUDA else 1.0
    records = []
    for batch in grid:
        rounds = [1 + noise.uniform(-0.08, 0.08) for _ in range(6)]  # what all arms of a block share
        for arm in ARMS:
            cost = STEP_MS[arm] * speed * (0.4 + 0.6 * batch)
            means = [cost * r * (1 + noise.uniform(-0.02, 0.02)) for r in rounds]
            peaks: dict[str, Any] = sizes(arm, batch, target)
            if device == CUDA:
                peak = peaks["peak_memory_predicted_mib"]
                peaks |= {"peak_memory_allocated_mib": peak * 1.04, "peak_memory_reserved_mib": peak * 1.15 + 20}
            if arm in ("galore", "lte"):
                peaks |= {"rare_time_ms": 9000.0 * speed, "rare_period_steps": 200 if arm == "galore" else 1000}
            one = timed(arm, means, batch, device=device, disturbed=(2,) if arm == "lora" else (), **peaks)
            records.append(unsupported(one) if arm == "lte" and batch % 16 else one)
    for goal in ("cpu", "cuda"):
        for batch in (1, 32, 64, 128):
            for arm in ARMS:
                one = record(
                    arm, batch, measure="predict", device=device, predicted_for=goal, **sizes(arm, batch, goal)
                )
                records.append(unsupported(one) if arm == "lte" and batch % 16 else one)
    return records
