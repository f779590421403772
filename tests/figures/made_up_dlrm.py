"""Made-up records of DLRM: plausible in shape, invented in every number, never a result."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from made_up_records import CALM, CPU, CUDA, record, timed

from bench.core.record import Record
from bench.core.samples import packed

FULL_SIZE = 1_097_631_297
WORDS = {
    "model": "DLRM",
    "epoch": "An epoch is made up.",
    "example": "line",
    "examples_per_epoch": 1_000_000,
    "metric": {
        "name": "nce",
        "text": "normalised cross entropy",
        "unit": "",
        "higher_is_better": False,
        "guess": 1.0,
        "probe": 0.92,
        "probe_text": "logistic regression on the counts",
    },
}

#: Arm and look-up: predicted peak at batch 10,000 in MiB, stored MiB, step in ms.
ARMS = {
    ("comera", "optimized"): (1000.0, 42.0, 100.0),
    ("comera", "plain"): (9000.0, 42.0, 150.0),
    ("dense", ""): (17_000.0, 4187.1, 500.0),
    ("dense:sparse", ""): (13_000.0, 4187.1, 300.0),
    ("dense:row_wise", ""): (5000.0, 4187.1, 250.0),
}


def of_dlrm(arm: str, lookup: str = "", dataset: str = "synthetic_low_rank", **columns: Any) -> dict[str, Any]:
    method = {"lookup": lookup, "ratio": 99.5} if arm == "comera" else {}
    config = {
        "method_settings": method,
        "timing_settings": CALM,
        "device": "cuda",
        "workload_settings": {"preset": "paper", "tables": "kaggle"},
    }
    common = {"workload": "dlrm", "workload_words": WORDS, "dataset": dataset, "sequence_length": 1}
    count = {"parameters": FULL_SIZE} if arm.startswith("dense") else {}
    return {**common, "config_json": json.dumps(config), **count, **columns}


def grid(device: str = CPU, dataset: str = "synthetic_low_rank", faster: float = 5.0) -> list[Record]:
    """Predictions for CUDA, and times; dense takes ``faster`` times as long as CoMERA."""
    records = []
    for batch in (10_000, 20_000, 40_000):
        for (arm, lookup), (peak, stored, step) in ARMS.items():
            size = {"peak_memory_predicted_mib": peak * batch / 10_000, "stored_mib": stored, "predicted_for": "cuda"}
            about = {"device": device, "cell_id": f"{arm}-{lookup}-{batch}".replace(":", "-"), **size}
            fields = of_dlrm(arm, lookup, dataset, **about)
            records.append(record(arm, batch, measure="predict", experiment="fig8_memory", **fields))
            kind = "cuda" if device == CUDA else "cpu"
            own = json.dumps({**json.loads(fields["config_json"]), "device": kind})
            fields |= {"cell_id": f"{fields['cell_id']}-run", "predicted_for": kind, "config_json": own}
            step = 100.0 * faster if arm == "dense" else step
            means = [step * (1 + 0.01 * block) for block in range(5)]
            records.append(timed(arm, means, batch, experiment="fig8", **fields))
    return records


def trained_clicks(arm: str, seed: int, shift: float, dataset: str, **columns: Any) -> Record:
    """A training run of two points whose groups vary alike for all arms."""
    noise = np.random.default_rng(seed).normal(0, 0.01, 50)
    curve = []
    for step in (500, 1000):
        levels = {"nce": 0.85 + shift - step / 1e4, "auc": 0.76 - shift, "accuracy": 76.0 - shift, "log_loss": 0.48}
        groups = {name: packed((level + noise).tolist()) for name, level in levels.items()}
        metrics = {
            **{name: level + noise.mean() for name, level in levels.items()},
            "teacher_auc": 0.8,
            "teacher_nce": 0.79,
        }
        curve.append(
            {
                "epoch": step / 1000,
                "step": step,
                "stage": "early",
                "train_loss": 0.5,
                "metrics": metrics,
                "groups": groups,
                "validation_examples": 500_000,
                "ranks": {},
                "active_ranks": {},
            }
        )
    training = {"stages": [{"name": "early", "steps": 1000}], "steps_per_epoch": 1000, "curve_steps": 500}
    config = {"training": training, "method_settings": {}, "workload_settings": {"preset": "kaggle"}}
    fields = of_dlrm(arm, dataset=dataset) | {"config_json": json.dumps(config), "parameters": 1000}
    size = {"stored_mib": 20.0 if arm == "comera" else 2100.0, "dense_mib": 2100.0, "train_steps": 1000}
    return record(
        arm,
        2048,
        measure="train",
        seed=seed,
        samples={"curve": curve},
        stage="early",
        metrics=curve[-1]["metrics"],
        **{"experiment": "fig9", "cell_id": f"{arm}-{seed}".replace(":", "-"), **fields, **size, **columns},
    )


def click_runs(dataset: str = "synthetic_low_rank", worse: float = 0.001, device: str = CPU) -> list[Record]:
    shifts = {"comera": worse, "dense": 0.0, "dense:sparse": 0.0005, "hashing": 0.01}
    return [
        trained_clicks(arm, seed, shift, dataset, device=device) for arm, shift in shifts.items() for seed in (0, 1, 2)
    ]
