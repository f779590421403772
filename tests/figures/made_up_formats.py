"""Made-up records of searched trainings: plausible in shape, invented in every number, never a result."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from made_up_records import CALM, CPU, record, timed

from bench.core.record import Record

WORDS = {
    "model": "two-block GPT of width 128",
    "epoch": "",
    "example": "row",
    "examples_per_epoch": 1000,
    "validated": "held-out text",
    "metric": {
        "name": "loss",
        "text": "validation loss",
        "unit": "nats",
        "higher_is_better": False,
        "guess": 3.0,
        "probe": 2.05,
        "probe_text": "best n-gram model",
    },
}
DENSE_SIZE = 470_000

#: The lowest loss of each arm, by optimizer: dense first, then the narrower model, then formats of its size.
LOWEST = {
    "adamw": {"dense": 1.95, "dense:narrow": 2.08, "btt": 1.96, "low_rank:spectral": 2.07, "comera": 2.09},
    "muon": {"dense": 1.72, "dense:narrow": 1.86, "btt": 1.88, "low_rank:spectral": 1.95, "comera": 2.0},
}


def config(arm: str, optimizer: str, lr: float, ratio: float | None, steps: bool = True) -> str:
    """The cell of a training or, without ``steps``, of a timed step."""
    recipe = {"optimizer": optimizer, "lr": lr, "lr_rest": 0.003, "clip": 1.0}
    training: dict[str, Any] = {"recipe": recipe}
    if steps:
        training |= {"stages": [{"name": "train", "steps": 1000}], "schedule": {"warmup": 0.05}}
    settings = {"rank": 2} if arm == "btt" else {}
    return json.dumps(
        {
            "device": "cpu",
            "method_settings": {**settings, **({} if ratio is None else {"ratio": ratio})},
            "workload_settings": {"width": 128},
            "timing_settings": CALM,
            "training": training,
        }
    )


def trained(arm: str, optimizer: str, lr: float, loss: float, seed: int = 0, **columns: Any) -> Record:
    """A training at a rate; its loss for choosing is 0.01 below that for reporting."""
    ratio = columns.pop("ratio", None if arm == "dense" else 2.7)
    values: dict[str, Any] = {
        "cell_id": f"{arm}-{optimizer}-{lr:g}-{seed}-{ratio}".replace(":", "-"),
        "experiment": "formats_tiny",
        "workload": "text",
        "workload_words": WORDS,
        "device": CPU,
        "seed": seed,
        "ratio": ratio,
        "parameters": DENSE_SIZE if ratio is None else round(DENSE_SIZE / ratio),
        "stored_mib": (DENSE_SIZE if ratio is None else DENSE_SIZE / ratio) * 4 / 2**20,
        "peak_memory_predicted_mib": 40.0 if arm == "dense" else 30.0,
        "metrics": {"loss": loss - 0.01, "test_loss": loss},
        "train_steps": 1000,
        "config_json": config(arm, optimizer, lr, ratio),
    }
    return record(arm, 32, measure="train", **(values | columns))


def searched(arms: dict[str, dict[str, float]] = LOWEST, seeds: int = 3) -> list[Record]:
    """Every arm at four rates, best at the second, and further seeds there."""
    found = []
    for optimizer, lowest in arms.items():
        for arm, loss in lowest.items():
            for number, rate in enumerate((0.5, 1.0, 2.0, 4.0)):
                found.append(trained(arm, optimizer, 0.01 * rate, loss + 0.05 * abs(number - 1)))
            found += [trained(arm, optimizer, 0.01, loss + 0.002 * seed, seed) for seed in range(1, seeds)]
    return found


def steps() -> list[Record]:
    """A timed step of every arm."""
    return [
        timed(
            arm,
            [80.0 if arm == "dense" else 50.0] * 3,
            32,
            cell_id=f"{arm}-{optimizer}-step".replace(":", "-"),
            experiment="formats_tiny_time",
            workload="text",
            workload_words=WORDS,
            ratio=2.7,
            config_json=config(arm, optimizer, 0.01, None if arm == "dense" else 2.7, steps=False),
        )
        for optimizer, lowest in LOWEST.items()
        for arm in lowest
    ]


def decomposed(arm: str, optimizer: str, loss: float, dense_steps: int = 800, **columns: Any) -> list[Record]:
    """Four rates and three seeds of a format that was dense first; the losses are of the second rate."""
    return _elsewhere(
        "formats_decomposed",
        arm,
        optimizer,
        loss,
        [{"name": "dense", "steps": dense_steps}, {"name": "train", "steps": 1000 - dense_steps}],
        **columns,
    )


def pruned(arm: str, optimizer: str, loss: float, share: float, parameters: int) -> list[Record]:
    """Likewise of a format whose ranks were cut to a share of its size."""
    stages = [{"name": "train", "steps": 1000}, {"name": "prune", "steps": 1000, "target": share}]
    columns = {"size_target": share, "parameters": parameters, "train_steps": 2000, "stage": "prune"}
    return _elsewhere("formats_pruned", arm, optimizer, loss, stages, **columns)


def _elsewhere(
    experiment: str, arm: str, optimizer: str, loss: float, stages: list[dict[str, Any]], **columns: Any
) -> list[Record]:
    found = []
    rates = [(0, 0.005, 0.04), (0, 0.01, 0.0), (0, 0.02, 0.03), (0, 0.04, 0.09), (1, 0.01, 0.001), (2, 0.01, 0.002)]
    for seed, rate, more in rates:
        [first] = [trained(arm, optimizer, rate, loss + more, seed, **columns)]
        cell = json.loads(first.config_json)
        cell["training"] |= {"stages": stages}
        cell["training"]["recipe"] |= {"dense_lr": 0.015 if optimizer == "muon" else 0.003}
        names = {"experiment": experiment, "cell_id": f"{experiment}-{first.size_target}-{first.cell_id}"}
        found.append(dataclasses.replace(first, config_json=json.dumps(cell), **names))
    return found
