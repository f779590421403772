"""Made-up training records: plausible in shape, invented in every number, never a result."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from typing import Any

from made_up_records import CPU, record

from bench.core.record import Record
from bench.core.samples import packed
from figures.claims.claims import read_claims
from figures.page.drawn import Drawn
from figures.registry import artifacts

EARLY_STEPS, LATE_STEPS, STEPS_PER_EPOCH = 600, 300, 100
TARGETS = (0.8, 0.5, 0.2)
FULL_SIZE = {"layers": 6, "width": 768, "heads": 12, "feed_forward": 3072, "vocabulary": 30522, "classes": 3}
FULL_SIZE_MIB = 66_957_315 * 4 / 2**20
ROLES = (
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "feed_forward.expand",
    "feed_forward.contract",
)
EARLY_SIZE = {"stored_mib": 5.68, "tensorized_mib": 3.92, "size_fraction": 1.0, "dense_tensorized_mib": 253.67}


PROBED = ("nli_pool", "mnli_12k", "mnli")


def pages_of(name: str, records: Sequence[Record]) -> list[Drawn]:
    """The pages of an artifact on records of whatever experiments."""
    artifact = artifacts()[name]
    experiments = tuple(dict.fromkeys(record.experiment for record in records))
    return dataclasses.replace(artifact, experiments=experiments or artifact.experiments).render(records, read_claims())


def text_of(page: Drawn, ending: str) -> str:
    """The content of the page's file with this ending."""
    return next(page.files[name] for name in page.files if name.endswith(ending)).decode()


def words(dataset: str, classes: int) -> dict[str, Any]:
    """What records of the encoder hold about it."""
    metric = {
        "name": "accuracy",
        "text": "validation accuracy",
        "unit": "%",
        "higher_is_better": True,
        "guess": 100 / classes,
        "probe": 52.0 if dataset in PROBED else None,
        "probe_text": "bag of words",
    }
    return {"model": "six-encoder transformer", "example": "example", "examples_per_epoch": 392_702, "metric": metric}


def ranks(share: float, blocks: int = 6, removed: tuple[str, ...] = ()) -> dict[str, list[int]]:
    """Ranks of every layer at ``share`` of the full ones; layers whose name ends with one in ``removed`` have none."""
    names = ["embeddings.word", *(f"blocks.{i}.{role}" for i in range(blocks) for role in ROLES), "classifier.hidden"]
    full = {name: [32, 32, 32] if "word" in name else [12, 30, 30, 30, 12] for name in names}
    return {
        name: [0 if name.endswith(removed) and removed else max(1, round(rank * share)) for rank in values]
        for name, values in full.items()
    }


def point(right: list[bool], step: int, stage: str, ranks_now: dict[str, list[int]]) -> dict[str, Any]:
    """A row of a learning curve with these answers."""
    return {
        "epoch": step / STEPS_PER_EPOCH,
        "step": step,
        "stage": stage,
        "train_loss": 0.5,
        "metrics": {"accuracy": 100 * sum(right) / len(right), "loss": 0.5},
        "validation_examples": len(right),
        "per_example": packed(right),
        "ranks": ranks_now,
    }


def stages(stage: str, target: float | None, target_mib: float | None = None) -> list[dict[str, Any]]:
    early = {"name": "early", "steps": EARLY_STEPS, "target": None, "target_mib": None}
    late = {"name": "late", "steps": LATE_STEPS, "target": target, "target_mib": target_mib}
    return [early] if stage == "early" else [early, late]


RATIOS = (1.5, 2.0, 4.0, 8.0, 16.0)
REACH = {"comera": 10.4374, "low_rank": 9.56637}
BEYOND = {
    "comera": "for the whole model, where 69,891 of its 735,491 parameters stay dense",
    "low_rank": "for two-factor layers, since 69,891 of the model's 735,491 parameters are not factorised",
}
SMALL = {"layers": 2, "width": 128, "heads": 4, "feed_forward": 512, "vocabulary": 2000, "classes": 3}
SMALL_MIB = 735_491 * 4 / 2**20


def trained(
    arm: str = "comera",
    stage: str = "late",
    target: float | None = None,
    curve: list[dict[str, Any]] | None = None,
    *,
    seed: int = 0,
    target_mib: float | None = None,
    model: dict[str, int] = FULL_SIZE,
    method_settings: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    **columns: Any,
) -> Record:
    """A training record whose run ends with the last point of ``curve``; one without a curve has a status to say."""
    config = {
        "method_settings": method_settings or {},
        "workload_settings": model,
        "training": {
            "stages": stages(stage, target, target_mib),
            "steps_per_epoch": STEPS_PER_EPOCH,
            "static": False,
        }
        | (training or {}),
    }
    values: dict[str, Any] = {
        "experiment": "accuracy",
        "dataset": "sst2",
        "precision": "bf16",
        "seed": seed,
        "measure": "train",
        "cell_id": f"{arm}-{stage}-{target}-{target_mib}-{seed}",
        "config_json": json.dumps(config),
        "workload_words": words(columns.get("dataset", "sst2"), model.get("classes", 3)),
    }
    if columns.get("ratio"):
        values["parameters"] = round(1e6 / columns["ratio"])
    if curve is not None:
        last = curve[-1]
        before = ranks(1.0, model.get("layers", 0)) if arm.startswith("comera") else {}
        values |= {
            "samples": {"curve": curve, "ranks_before": before},
            "stage": stage,
            "target_ratio": target,
            "target_mib": target_mib,
            "train_steps": last.get("step"),
            "dense_mib": FULL_SIZE_MIB,
            "metrics": last.get("metrics", {}),
        }
    samples = {**values.get("samples", {}), **columns.pop("samples", {})}
    device = columns.pop("device", CPU)
    return record(arm, 32, device=device, **(values | columns | {"samples": samples}))


def _answers(generator: random.Random, hardness: list[float], share: float) -> list[bool]:
    """Easy examples are answered by nearly every model, so that models agree as they do in life."""
    return [generator.random() < share + 0.35 * (1 - 2 * hard) * (1 - share) for hard in hardness]


def curve(seed: int, arm: str, share: float, examples: int = 300, late: float | None = None) -> list[dict[str, Any]]:
    """Six early epochs toward ``share`` right answers, then, with ``late``, three to ranks of that share."""
    hardness = [random.Random(i).random() for i in range(examples)]
    generator = random.Random(f"{seed}-{arm}")
    points = []
    for epoch in range(1, 10 if late is not None else 7):
        now = "early" if epoch <= 6 else "late"
        cut = 1.0 if epoch <= 8 or late is None else late
        removed = ("blocks.4.attention.query",) if cut < 0.5 else ()
        shape = {} if arm == "dense" else ranks(cut, removed=removed)
        grown = share * (1 - 0.35 * 0.5**epoch)
        points.append(point(_answers(generator, hardness, grown), epoch * 100, now, shape))
    return points


def step_ms(ratio: float, generator: random.Random) -> dict[str, list[list[float]]]:
    """Five blocks of two steps whose trained steps take about ``ratio`` of those at full ranks."""
    noise = [1 + generator.uniform(-0.1, 0.1) for _ in range(5)]
    return {
        "trained": [[900 * ratio * n * generator.uniform(0.96, 1.04) for _ in range(2)] for n in noise],
        "full": [[900 * n, 910 * n] for n in noise],
    }


def memory(tensorized: float, activations: float) -> dict[str, float]:
    """Invented predicted peak by category, in MiB."""
    split = {
        "parameters": tensorized,
        "gradients": tensorized,
        "optimizer": 2 * tensorized,
        "activations": activations,
        "temporaries": 40.0,
    }
    peaks = {f"predicted_{name}_mib": size for name, size in split.items()}
    return peaks | {"peak_memory_predicted_mib": sum(split.values())}


def training_campaign(
    dataset: str = "sst2", seeds: tuple[int, ...] = (0,), examples: int = 300, **columns: Any
) -> list[Record]:
    """A whole experiment ``accuracy``: dense, the early stage and a late one per target, per seed."""
    records = []
    for seed in seeds:
        generator = random.Random(seed)
        early = curve(seed, "comera", 0.8, examples)
        common = {"seed": seed, "dataset": dataset, "data_hash": f"data-{dataset}"} | columns
        dense = curve(seed, "dense", 0.82, examples, late=1.0)
        records.append(trained("dense", curve=dense, stored_mib=FULL_SIZE_MIB, **memory(255.0, 900.0), **common))
        records.append(trained("comera", "early", None, early, **EARLY_SIZE, **memory(5.7, 800.0), **common))
        for target in TARGETS:
            cores = 3.92 * target * generator.uniform(0.97, 0.999)
            later = early + curve(seed, f"comera-{target}", 0.79, examples, late=target)[6:]
            sizes = {
                "tensorized_mib": cores,
                "stored_mib": 1.76 + cores,
                "dense_tensorized_mib": 253.67,
                "size_fraction": cores / 3.92,
                "size_target": target,
            }
            timed = {"samples": {"step_ms": step_ms(0.3 + 0.6 * target, generator)}}
            peaks = memory(1.76 + cores, 500 + 250 * target)
            records.append(trained("comera", "late", target, later, **sizes, **peaks, **timed, **common))
    return records


def ratio_campaign(seeds: tuple[int, ...] = (0,), examples: int = 400, **columns: Any) -> list[Record]:
    """A whole experiment ``ratios_accuracy_small``: dense, and the two arms at every ratio within their reach."""
    common = {"experiment": "ratios_accuracy_small", "dataset": "synthetic", "model": SMALL, "dense_mib": SMALL_MIB}
    common |= columns
    records = []
    for seed in seeds:
        dense = curve(seed, "dense", 0.78, examples)
        records.append(trained("dense", "early", None, dense, seed=seed, stored_mib=SMALL_MIB, **common))
        for arm, ratio in [(arm, ratio) for arm in REACH for ratio in RATIOS]:
            own = {"ratio": ratio, "method_settings": {"ratio": ratio}, "cell_id": f"{arm}-{ratio}-{seed}"}
            own |= common | {"seed": seed}
            if ratio > REACH[arm]:
                end = f"the largest within reach is {REACH[arm]:.6g}, with all ranks 1."
                words = f"ratio={ratio:g} is out of reach {BEYOND[arm]}; {end}"
                records.append(trained(arm, "early", **own, status="unsupported", message=words))
            else:
                share = 0.78 - (0.012 * ratio if arm == "comera" else 0.05)
                size = SMALL_MIB / ratio * (1.004 if arm == "comera" else 0.997)
                points = curve(seed, f"{arm}-{ratio}", share, examples)
                records.append(trained(arm, "early", None, points, stored_mib=size, **own))
    return records


#: Stages of a training plan that is not the encoder's.
PHASES = ("warm-up", "main", "tail")

METRICS: dict[str, dict[str, Any]] = {
    "auc": {
        "name": "auc",
        "text": "validation AUC",
        "unit": "",
        "higher_is_better": True,
        "guess": 0.5,
        "probe": 0.7,
        "probe_text": "logistic regression",
    },
    "loss": {
        "name": "loss",
        "text": "validation loss",
        "unit": "nats",
        "higher_is_better": False,
        "guess": 1.0,
        "probe": 0.9,
        "probe_text": "unigrams",
    },
}


def other_run(
    arm: str,
    values: Sequence[float],
    metric: str = "auc",
    *,
    target: float | None = None,
    seed: int = 0,
    size: float = 10.0,
    **columns: Any,
) -> Record:
    """A run of a made-up workload with one point of the curve per stage; AUC has no values per example, losses have."""
    names = PHASES[: len(values)]
    steps = [{"name": name, "steps": 100, "target": None, "target_mib": None} for name in names]
    steps[-1]["target"] = target
    noise = [random.Random(i).uniform(-0.2, 0.2) for i in range(500)]
    curve = []
    for number, value in enumerate(values, start=1):
        per_example = [value * (1 + one - sum(noise) / len(noise)) for one in noise] if metric == "loss" else None
        curve.append(
            {
                "epoch": float(number),
                "step": 100 * number,
                "stage": names[number - 1],
                "train_loss": 0.4,
                "metrics": {metric: value, "other": 1.0},
                "validation_examples": 500,
                "per_example": None if per_example is None else packed(per_example),
                "ranks": {} if arm == "dense" else {"bags": [4, 4] if target is None else [2, 1], "top.0": [3, 3]},
            }
        )
    about = {
        "workload": "clicks",
        "dataset": "drawn",
        "sequence_length": 1,
        "experiment": "clicks",
        "stored_mib": size,
        "dense_mib": 20.0,
        "cell_id": f"{arm}-{len(values)}-{target}-{seed}",
        "model": {"fields": 4},
        "seed": seed,
        "training": {"stages": steps},
        "workload_words": {
            "model": "click model",
            "epoch": "",
            "example": "click",
            "examples_per_epoch": None,
            "metric": METRICS[metric],
        },
    }
    if arm != "dense":
        about |= {"tensorized_mib": size / 2, "dense_tensorized_mib": 15.0}
    finished = {} if "status" in columns else {"curve": curve}
    before = {"samples": {"ranks_before": {} if arm == "dense" else {"bags": [4, 4], "top.0": [3, 3]}}}
    return trained(arm, **({**about, **before, **finished} | columns))
