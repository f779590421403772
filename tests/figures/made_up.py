"""Made-up records: plausible in shape, invented in every number, never a result.

:func:`record` makes any record; the others fill in the samples and settings of one measure or workload.
"""

import dataclasses
import json
import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.core.record import Record
from bench.core.samples import packed
from figures.artifacts import fig5

CPU, CUDA = "Made-up CPU, 2 threads", "Made-up GPU 9000"
OLD, NEW = "2000-01-01T00:00:00+00:00", "2009-01-01T00:00:00+00:00"
OLDER_CODE = {"code_id": "code-0", "recorded_at": OLD}
ARMS = (
    *("comera", "low_rank@size", "low_rank@rank", "low_rank@rank:linear"),
    *("lora", "lte", "galore", "dense"),
)
ENCODER = {
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


def kind_of(device: str) -> str:
    return "cuda" if device == CUDA else "cpu"


def settings(**sections: Any) -> str:
    """The cell of a record."""
    return json.dumps({"workload_settings": {}, "timing_settings": CALM, **sections})


def record(arm: str = "comera", batch: int = 1, *, measure: str = "run", device: str = CPU, **columns: Any) -> Record:
    """A record that is ``ok`` and empty unless ``columns`` say otherwise."""
    named, _, variant = arm.partition(":")
    method, _, match = named.partition("@")
    target = columns.get("predicted_for") or kind_of(device)
    experiment = "fig1" if measure == "run" else "fig1_memory"
    values: dict[str, Any] = {
        "cell_id": f"{experiment}-{named}-{variant}-{batch}-{target}".replace("@", "-"),
        "code_id": "code-a",
        "recorded_at": "2001-02-03T04:05:06+00:00",
        "experiment": experiment,
        "workload": "encoder",
        "workload_words": ENCODER if columns.get("workload", "encoder") == "encoder" else {},
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
        "config_json": settings(device=target, method_settings=MATCHED[match.partition("+")[0]]),
    }
    return Record(**(values | columns))


def failed(one: Record, status: str = "oom", message: str = "made up: no room.", **columns: Any) -> Record:
    """The record of the same cell where it failed."""
    sizes = [name for name in vars(one) if re.match("(peak|predicted)_.*mib$", name)]
    kept = dict.fromkeys(sizes)
    nothing = {"step_time_median_ms": None, "epoch_time_s": None, "samples": {}, "metrics": {}}
    return dataclasses.replace(one, status=status, message=message, **(kept | nothing | columns))


def blocks(means: Sequence[float], disturbed: Sequence[int] = (), launches: int = 1) -> dict[str, Any]:
    """Samples whose block ``i`` has the mean ``means[i]``, in as many launches of as many blocks."""
    each = -(-len(means) // launches)
    rows = [
        {
            **({"launch": i // each, "block": i % each} if launches > 1 else {"block": i}),
            "disturbed": i in disturbed,
            "calibration_ms": 1.0,
            "ms": [mean * 0.9, mean * 1.1],
        }
        for i, mean in enumerate(means)
    ]
    return {"blocks": rows, "rare": {}}


def timed(
    arm: str,
    means: Sequence[float],
    batch: int = 1,
    disturbed: Sequence[int] = (),
    launches: int = 1,
    **columns: Any,
) -> Record:
    """A timed record with these block means, paired with all others of its batch size."""
    samples = blocks(means, disturbed, launches)
    return record(arm, batch, samples=samples, **({"pairing": f"together-{batch}"} | columns))


def peaks(size: float, kind: str = "cpu") -> dict[str, float]:
    """Predicted peak of so many MiB by category, a tenth of it in none; on a GPU measured peaks besides."""
    split = {"parameters": 0.1, "gradients": 0.1, "optimizer": 0.2, "activations": 0.5}
    found = {f"predicted_{name}_mib": size * share for name, share in split.items()}
    on_gpu = {"peak_memory_allocated_mib": 1.04 * size, "peak_memory_reserved_mib": 1.2 * size}
    return found | {"peak_memory_predicted_mib": size} | (on_gpu if kind == "cuda" else {})


def epochs(device: str = CPU, batches: Sequence[int] = (1, 8), **columns: Any) -> list[Record]:
    """A small Fig. 1: three arms at some batch sizes, and predictions for CUDA."""
    found = []
    for arm, cost in (("comera", 1.0), ("galore", 2.5), ("dense", 2.0)):
        for batch in batches:
            means = [cost * batch * ms for ms in (10.0, 12.0, 11.0)]
            size = 100.0 * cost * batch
            held = peaks(size, kind_of(device))
            found.append(timed(arm, means, batch, device=device, **held, **columns))
            plan = {"measure": "predict", "predicted_for": "cuda", "device": device}
            found.append(record(arm, batch, **plan, **peaks(0.9 * size)))
    return found


def looked_up(variant: str, means: Sequence[float], batch: int = 10_000, **columns: Any) -> Record:
    """A timed look-up of Fig. 5: CoMERA's with an order of products, or a dense table."""
    dense = {words: arm for arm, words in fig5.TABLES.items()}.get(variant)
    method = {"lr": 1.0} if dense else {"lookup": variant, "table_ranks": 32}
    layer = {"rows": 30522, "columns": 768, "optimizer_step": columns.pop("step", False)}
    values = {
        "cell_id": f"{variant}-{batch}-{layer['optimizer_step']}-{columns.get('dataset')}".replace(", ", "-"),
        "experiment": "fig5",
        "workload": "lookup",
        "dataset": "zipf",
        "sequence_length": 1,
        "config_json": settings(
            device=kind_of(columns.get("device", CPU)), method_settings=method, workload_settings=layer
        ),
    }
    return timed(dense or "comera", means, batch, **(values | columns))


def toggled(arm: str, on: str, means: Sequence[float], batch: int = 32, **columns: Any) -> Record:
    """A timed step of Fig. 7 with what is ``on``, such as ``"bf16 graph"``, paired with the other arm."""
    values = {
        "cell_id": f"fig7-{arm}-{batch}-{on}",
        "experiment": "fig7",
        "precision": "bf16" if "bf16" in on else "fp32",
        "compile": "compile" in on,
        "cuda_graph": "graph" in on,
        "device": CUDA,
        "pairing": f"together-{batch}-{on}",
    }
    return timed(arm, means, batch, **(values | columns))


ROUNDS = (10.0, 12.0, 11.0, 13.0, 14.0)


def raced(
    ratios: dict[int, float], rival: str, device: str = CUDA, spread: float = 0.01, **columns: Any
) -> list[Record]:
    """CoMERA and one rival, whose time is ``ratios[batch]`` times CoMERA's; with CUDA Graph on a GPU."""
    columns = {"cuda_graph": device == CUDA, "device": device} | columns
    found = []
    for batch, ratio in ratios.items():
        found.append(timed("comera", ROUNDS, batch, **columns))
        noisy = [ms * (ratio + spread * (i - 2)) for i, ms in enumerate(ROUNDS)]
        found.append(timed(rival, noisy, batch, **columns))
    return found


def graphs(ratios: dict[int, float], on: str = "graph", spread: float = 0.01, **columns: Any) -> list[Record]:
    """Fig. 7: dense takes ``ratios[batch]`` times CoMERA's time."""
    found = []
    for batch, ratio in ratios.items():
        noisy = [ms * (ratio + spread * (i - 2)) for i, ms in enumerate(ROUNDS)]
        found += [toggled("comera", on, ROUNDS, batch, **columns)]
        found += [toggled("dense", on, noisy, batch, **columns)]
    return found


def lookups(
    ratio: float,
    device: str = CUDA,
    batches: Sequence[int] = (10_000, 20_000, 40_000),
    **place: Any,
) -> list[Record]:
    """Fig. 5: the plain look-up takes ``ratio`` times as long and as much memory."""
    found = []
    for batch in batches:
        for variant, size in (("optimized", 1e6), ("plain", 1e6 * ratio)):
            own = {"device": device, **peaks(size, kind_of(device)), **place}
            found.append(looked_up(variant, [size] * 5, batch, **own))
    return found


def swept(arm: str, ratio: float | None, means: Sequence[float], batch: int = 8, **columns: Any) -> Record:
    """A step of Fig. 12 at a whole-model ratio; dense has that of its job, beside which it was timed."""
    own = {} if arm == "dense" else {"ratio": ratio}
    own |= columns.pop("settings", {})
    target = columns.get("predicted_for") or kind_of(columns.get("device", CPU))
    values = {
        "cell_id": f"ratios-{arm}-{ratio}-{batch}-{columns.get('measure')}",
        "experiment": "ratios",
        "ratio": ratio,
        "pairing": f"together-{batch}-{ratio}",
        "parameters": round(66_957_315 / (1.0 if arm == "dense" else 1.003 * (ratio or 1.0))),
        "config_json": settings(device=target, method_settings=own, workload_settings={"width": 768}),
    }
    return timed(arm, means, batch, **(values | columns))


def out_of_reach(ratio: float, limit: float) -> dict[str, Any]:
    """The columns of a cell whose method cannot make the model so small."""
    end = f"the largest within reach is {limit:.6g}, with all ranks 1."
    return {
        "status": "unsupported",
        "message": f"ratio={ratio:g} is out of reach for what there is; {end}",
        "samples": {"reach": {"largest": limit}},
    }


# trainings

FULL_SIZE = {"layers": 6, "width": 768, "heads": 12, "feed_forward": 3072}
FULL_SIZE |= {"vocabulary": 30522, "classes": 3}
SMALL = {**FULL_SIZE, "layers": 2, "width": 128}
FULL_SIZE_MIB = PARAMETERS["dense"] * 4 / 2**20
EARLY_SIZE = {"stored_mib": 5.68, "tensorized_mib": 3.92, "dense_tensorized_mib": 253.67}
EARLY_SIZE |= {"size_fraction": 1.0}
ROLES = (
    *("attention.query", "attention.key", "attention.value", "attention.output"),
    *("feed_forward.expand", "feed_forward.contract"),
)


def metric(name: str, higher: bool, guess: float, **more: Any) -> dict[str, Any]:
    """The words of a leading metric."""
    words = {"name": name.lower(), "text": f"validation {name}", "higher_is_better": higher}
    return {**words, "guess": guess, **more}


AUC = metric("AUC", True, 0.5, probe=0.7)
LOSS = metric("loss", False, 3.0, unit="nats")


def encoder_metric(dataset: str, classes: int) -> dict[str, Any]:
    """Accuracy of the encoder; data of two sentences have a probe."""
    probe = 52.0 if dataset in ("nli_pool", "mnli_12k", "mnli") else None
    words = {"unit": "%", "probe": probe, "probe_text": "bag of words"}
    return metric("accuracy", True, 100 / classes, **words)


def ranks(share: float, layers: int = 6, removed: str = "") -> dict[str, list[int]]:
    """Ranks of every layer at a share of the full ones; a layer whose name ends with ``removed`` has none."""
    names = [f"blocks.{i}.{role}" for i in range(layers) for role in ROLES]
    full = {"embeddings.word": [32, 32, 32]} | {name: [12, 30, 30, 30, 12] for name in names}
    found = {name: [max(1, round(rank * share)) for rank in values] for name, values in full.items()}
    gone = [name for name in names if removed and name.endswith(removed)]
    return found | {name: [0] * 5 for name in gone}


def point(right: Sequence[bool], step: int, stage: str, ranks_now: dict[str, list[int]]) -> dict[str, Any]:
    """A row of a learning curve with these answers."""
    return {
        "epoch": step / 100,
        "step": step,
        "stage": stage,
        "train_loss": 0.5,
        "metrics": {"accuracy": 100 * sum(right) / len(right), "loss": 0.5},
        "validation_examples": len(right),
        "per_example": packed(right),
        "ranks": ranks_now,
    }


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
    """A training of the encoder that ends with the last point of ``curve``; without one it has a status."""
    early = {"name": "early", "steps": 600, "target": None, "target_mib": None}
    late = {"name": "late", "steps": 300, "target": target, "target_mib": target_mib}
    stages = [early] if stage == "early" else [early, late]
    plan = {"stages": stages, "steps_per_epoch": 100, "static": False}
    metric = encoder_metric(columns.get("dataset", "sst2"), model.get("classes", 3))
    values: dict[str, Any] = {
        "experiment": "accuracy",
        "dataset": "sst2",
        "precision": "bf16",
        "seed": seed,
        "measure": "train",
        "cell_id": f"{arm}-{stage}-{target}-{target_mib}-{seed}",
        "config_json": json.dumps(
            {
                "method_settings": method_settings or {},
                "workload_settings": model,
                "training": plan | (training or {}),
            }
        ),
        "workload_words": {**ENCODER, "example": "example", "metric": metric},
    }
    if columns.get("ratio"):
        values["parameters"] = round(1e6 / columns["ratio"])
    samples = columns.pop("samples", {})
    if curve is not None:
        before = ranks(1.0, model.get("layers", 0)) if arm.startswith("comera") else {}
        samples = {"curve": curve, "ranks_before": before, **samples}
        values |= {
            "stage": stage,
            "target_ratio": target,
            "target_mib": target_mib,
            "train_steps": curve[-1]["step"],
            "dense_mib": FULL_SIZE_MIB,
            "metrics": curve[-1]["metrics"],
        }
    return record(arm, 32, **(values | columns | {"samples": samples}))


def answered(
    arm: str = "comera",
    stage: str = "late",
    target: float | None = None,
    share: float = 0.8,
    examples: int = 1000,
    wrong_first: int = 0,
    removed: str = "",
    **columns: Any,
) -> Record:
    """A finished training; its wrong answers are the last ones, and the ``wrong_first`` first ones besides."""
    right = [wrong_first <= i < share * examples for i in range(examples)]
    now = {} if arm.startswith("dense") else ranks(target or 1.0, removed=removed)
    curve = [point(right, 600 if stage == "early" else 900, stage, now)]
    if arm.startswith("dense") and stage != "early":
        curve = [point(right, 600, "early", {}), *curve]
    sizes = {"stored_mib": FULL_SIZE_MIB} if arm.startswith("dense") else EARLY_SIZE
    return trained(arm, stage, target, curve, **{**sizes, **columns})


def stages_of_accuracy(seeds: Sequence[int] = (0,), **columns: Any) -> list[Record]:
    """A whole experiment ``accuracy``: dense, the early stage and a late one per target, per seed."""
    found = []
    for seed in seeds:
        common = {"seed": seed, "examples": 100, **columns}
        found.append(answered("dense", share=0.8, **common, **peaks(1500.0)))
        found.append(answered("comera", "early", share=0.78 + 0.01 * seed, **common, **peaks(900.0)))
        for target in (0.8, 0.5, 0.2):
            cores = 3.9 * target
            sizes = {"tensorized_mib": cores, "stored_mib": 1.76 + cores, "size_target": target}
            sizes |= {"size_fraction": 0.99 * target} | peaks(500 + 250 * target)
            full = [[900.0, 910.0], [950.0, 960.0], [990.0, 980.0]]
            cut = [[ms * (0.3 + 0.6 * target) for ms in times] for times in full]
            samples = {"step_ms": {"trained": cut, "full": full}}
            removed = "blocks.4.attention.query" if target < 0.5 else ""
            late = {"share": 0.79 - 0.02 / target, "removed": removed, "samples": samples}
            found.append(answered("comera", "late", target, **late, **{**sizes, **common}))
    return found


def other_run(
    arm: str,
    values: Sequence[float],
    metric: dict[str, Any] = AUC,
    *,
    target: float | None = None,
    seed: int = 0,
    size: float = 10.0,
    **columns: Any,
) -> Record:
    """A training of another workload with one point per stage; AUC has no values per example, losses have."""
    names = ("warm-up", "main", "tail")[: len(values)]
    steps = [{"name": name, "steps": 100, "target": None, "target_mib": None} for name in names]
    steps[-1]["target"] = target
    noise = np.array([random.Random(i).uniform(-0.2, 0.2) for i in range(40)])
    noise -= noise.mean()
    end = {"bags": [4, 4] if target is None else [2, 1], "top.0": [3, 3]}
    end = {} if arm.startswith("dense") else end
    curve = [
        {
            "epoch": float(number),
            "step": 100 * number,
            "stage": names[number - 1],
            "train_loss": 0.4,
            "metrics": {metric["name"]: value, "other": 1.0},
            "validation_examples": 40,
            "per_example": packed((value * (1 + noise)).tolist()) if metric["name"] == "loss" else None,
            "ranks": end,
        }
        for number, value in enumerate(values, start=1)
    ]
    words = {"model": "click model", "epoch": "", "example": "click", "examples_per_epoch": None}
    if columns.get("workload") == "code":
        words["validated"] = "held-out file"
    about: dict[str, Any] = {
        "workload": "clicks",
        "dataset": "drawn",
        "sequence_length": 1,
        "experiment": "clicks",
        "stored_mib": size,
        "dense_mib": 20.0,
        "cell_id": f"{arm}-{len(values)}-{target}-{seed}-{columns.get('ratio')}",
        "model": {"fields": 4},
        "seed": seed,
        "training": {"stages": steps},
        "workload_words": {**words, "metric": {"probe_text": "unigrams", **metric}},
    }
    if not arm.startswith("dense"):
        about |= {"tensorized_mib": size / 2, "dense_tensorized_mib": 15.0}
    finished = {} if "status" in columns else {"curve": curve}
    before = {"ranks_before": {"bags": [4, 4], "top.0": [3, 3]} if end else {}}
    return trained(arm, **(about | {"samples": before} | finished | columns))


DLRM = {"model": "DLRM", "epoch": "", "example": "line", "examples_per_epoch": None}


def clicked(arm: str, seed: int = 0, worse: float = 0.0, dataset: str = "criteo", **columns: Any) -> Record:
    """A training of DLRM with two points, whose groups of lines vary alike for all arms."""
    noise = np.random.default_rng(seed).normal(0, 0.01, 50)
    curve = []
    for step in (500, 1000):
        levels = {"nce": 0.85 + worse - step / 1e4, "auc": 0.76 - worse}
        levels |= {"accuracy": 76.0 - worse, "log_loss": 0.48}
        metrics = {name: level + noise.mean() for name, level in levels.items()}
        curve.append(
            {
                "epoch": step / 1000,
                "step": step,
                "stage": "early",
                "train_loss": 0.5,
                "metrics": metrics | {"teacher_auc": 0.8, "teacher_nce": 0.79},
                "groups": {name: packed((level + noise).tolist()) for name, level in levels.items()},
                "validation_examples": 500_000,
                "ranks": {},
                "active_ranks": {},
            }
        )
    plan = {"stages": [{"name": "early", "steps": 1000}], "steps_per_epoch": 1000, "curve_steps": 500}
    nce = {"name": "nce", "text": "normalised cross entropy", "unit": "", "higher_is_better": False}
    words = {**DLRM, "epoch": "An epoch is made up.", "examples_per_epoch": 1_000_000}
    probe = {"guess": 1.0, "probe": 0.92, "probe_text": "logistic regression on the counts"}
    values = {
        "experiment": "fig9",
        "cell_id": f"{arm}-{seed}",
        "workload": "dlrm",
        "workload_words": {**words, "metric": {**nce, **probe}},
        "sequence_length": 1,
        "config_json": json.dumps({"training": plan, "method_settings": {}, "workload_settings": {"preset": "kaggle"}}),
        "parameters": 1000,
        "samples": {"curve": curve},
        "stage": "early",
        "metrics": curve[-1]["metrics"],
        "stored_mib": 20.0 if arm == "comera" else 2100.0,
        "dense_mib": 2100.0,
        "train_steps": 1000,
    }
    return record(arm, 2048, measure="train", seed=seed, dataset=dataset, **(values | columns))


def clicks(dataset: str = "criteo", worse: float = 0.001, **columns: Any) -> list[Record]:
    """Three seeds of four arms; CoMERA is so much worse than dense."""
    shifts = {"comera": worse, "dense": 0.0, "dense:sparse": 0.0005, "hashing": 0.01}
    found = []
    for arm, shift in shifts.items():
        found += [clicked(arm, seed, shift, dataset, **columns) for seed in range(3)]
    return found


def dlrm_steps(device: str = CPU, dataset: str = "criteo", faster: float = 5.0) -> list[Record]:
    """Predictions for CUDA and times of DLRM at three batch sizes; dense takes so many times CoMERA's time."""
    arms = {
        ("comera", "optimized"): (1000.0, 42.0, 100.0),
        ("comera", "plain"): (9000.0, 42.0, 150.0),
        ("dense", ""): (17_000.0, 4187.1, 100.0 * faster),
        ("dense:sparse", ""): (13_000.0, 4187.1, 300.0),
        ("dense:row_wise", ""): (5000.0, 4187.1, 250.0),
    }
    found = []
    for batch in (10_000, 20_000, 40_000):
        for (arm, lookup), (peak, stored, step) in arms.items():
            common = {
                "device": device,
                "workload": "dlrm",
                "workload_words": DLRM,
                "dataset": dataset,
                "sequence_length": 1,
                "peak_memory_predicted_mib": peak * batch / 10_000,
                "stored_mib": stored,
                "parameters": 1_097_631_297 if arm.startswith("dense") else None,
            }
            name = f"{arm}-{lookup}-{batch}".replace(":", "-")
            run = ("run", kind_of(device), "fig8")
            for measure, target, experiment in (("predict", "cuda", "fig8_memory"), run):
                own = {"lookup": lookup, "ratio": 99.5} if lookup else {}
                model = {"preset": "paper", "tables": "kaggle"}
                cell = settings(device=target, method_settings=own, workload_settings=model)
                about = {"predicted_for": target, "config_json": cell, "experiment": experiment}
                one = record(arm, batch, measure=measure, cell_id=f"{name}-{measure}", **common, **about)
                if measure == "run":
                    samples = blocks([step * (1 + 0.01 * block) for block in range(5)])
                    one = dataclasses.replace(one, samples=samples, pairing=f"together-{batch}")
                found.append(one)
    return found


# source code, layers by precision, contraction plans

CODE = {"model": "24-encoder masked language model", "epoch": "", "example": "row"}
CODE |= {"examples_per_epoch": 100}


def code_steps(sizes: dict[str, float], device: str = CUDA, ratios: tuple[float, float] = (2.0, 2.4)) -> list[Record]:
    """Steps of both phases of Fig. 10, dense slower than CoMERA by these ratios; ``sizes`` are parameters by arm."""
    found = []
    for number, (length, batch) in enumerate(((128, 8), (512, 2))):
        for arm, count in sizes.items():
            ratio = ratios[number] if arm == "dense" else 1.0
            common = {"sequence_length": length, "workload": "code", "workload_words": CODE}
            common |= {"device": device, "parameters": round(count)} | peaks(100.0 if arm != "dense" else 400.0)
            name = f"{arm}-{length}".replace("@", "-")
            means = [100 * ratio * (1 + 0.001 * block) for block in range(6)]
            about = {"experiment": "fig10_time", "cell_id": name, "pairing": f"phase-{number}"}
            found.append(timed(arm, means, batch, **common, **about))
            plan = {"measure": "predict", "predicted_for": "cuda", "experiment": "fig10_memory"}
            found.append(record(arm, batch, cell_id=f"{name}-plan", **common, **plan))
    return found


def code_runs(last: float, parameters: float, device: str = CPU) -> list[Record]:
    """Both phases of dense, from 2.0 to 1.5 nats in twice the time, and of CoMERA, from 2.0 to ``last``."""
    found = []
    metric = {**LOSS, "probe": 1.8, "probe_text": "bigram model"}
    for arm, end, seconds in (("dense", 1.5, 2), ("comera", last, 1)):
        one = other_run(arm, (2.0, end), metric, target=None if arm == "dense" else 0.5, workload="code")
        curve = [{**row, "seconds": 60.0 * row["step"] * seconds} for row in one.samples["curve"]]
        changes = {"experiment": "code_phases", "device": device}
        changes |= {"dense_mib": parameters * 4 / 2**20, "samples": {**one.samples, "curve": curve}}
        found.append(dataclasses.replace(one, **changes))
    return found


def layer_in(arm: str, out_features: int, ms: dict[str, Sequence[float]], rows: int = 10_000, **columns: Any) -> Record:
    """A layer of 1,024 in-features by precision, with times; forms without any have least times by estimate."""
    precisions = [
        {
            "name": name,
            "ms": list(ms.get(name, ())),
            "largest": error,
            "bound": 1.0,
            "error": error,
            "gradient_error": error,
            "arithmetic": name,
            "message": "" if name in ms else "made-up reason.",
        }
        for name, error in (("fp32", 1e-7), ("bf16", 1e-3), ("fp8", 1e-2))
    ]
    least = {"fp32": (4.0, 1.0), "bf16": (1.0, 2.0), "fp8": (0.5, 2.0)}
    least |= {"fp8, bf16": (0.5, 2.0), "fp8 stored": (0.5, 1)}
    rooflines = []
    for form, (work, traffic) in least.items():
        h100 = {"operations_ms": work, "traffic_ms": traffic}
        rooflines.append({"form": form, "mib": 10.0, "gpus": {"h100": h100}})
    layer = {"in_features": 1024, "out_features": out_features}
    values = {
        "experiment": "table_fp8",
        "cell_id": f"{arm}-{out_features}-{rows}",
        "device": CUDA,
        "driver": "made up",
        "workload": "linear",
        "samples": {"precisions": precisions, "rooflines": rooflines},
    }
    values = {**values, **columns}
    kind = kind_of(values["device"])
    values |= {"driver": "made up" if kind == "cuda" else ""}
    cell = settings(device=kind, workload_settings=layer)
    return record(arm, rows, measure="fp8", config_json=cell, **values)
