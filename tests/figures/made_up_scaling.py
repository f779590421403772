"""Made-up records of steps on two ranks, and of what ranks would exchange: invented in every number, never a result."""

from __future__ import annotations

import random
from typing import Any

from made_up_records import CPU, record, timed

from bench.core.record import Record
from bench.distributed.links import PAYLOAD_SHARE
from bench.estimate.communication import Training, shaped, tensors_of

RATES = (10.0, 100.0, 1000.0, 10_000.0)

#: By arm: its step without exchange in ms, and what the exchange takes of the processor.
STEPS = {
    "comera": (300.0, 10.0),
    "low_rank@size": (290.0, 15.0),
    "lora": (900.0, 60.0),
    "galore": (1700.0, 160.0),
    "dense": (1600.0, 150.0),
    "dense+ddp_bf16": (1600.0, 260.0),
    "dense+powersgd_4": (1600.0, 500.0),
    "dense+powersgd_32": (1600.0, 700.0),
}


def tensors(workload: str, arm: str) -> list[dict[str, Any]]:
    """Parameters in rough proportion to those of the models."""
    layers, width, rows = {"encoder": (36, 1024, 30_000), "code": (200, 1024, 52_000), "dlrm": (10, 512, 4_000_000)}[
        workload
    ]
    table = {"shape": [rows, width if workload != "dlrm" else 16], "kind": "table"}
    if arm == "comera":
        return [{"shape": [layers * width * 40], "kind": "core"}, {"shape": [width], "kind": "vector"}]
    if arm.startswith("low_rank"):
        return [{"shape": [width, 30], "kind": "matrix"}] * (2 * layers) + [{"shape": [rows, 32], "kind": "table"}]
    if arm == "lora":
        return [table, *[{"shape": [width, 32], "kind": "matrix"}] * (2 * layers)]
    return [table, *[{"shape": [width, width], "kind": "matrix"}] * layers]


def size_mib(rows: list[dict[str, Any]]) -> float:
    return Training(tensors=tensors_of(rows), compute_ms=1.0).gradient_mib


def exchanged(workload: str, arm: str, step_ms: float) -> Record:
    """What an arm would exchange, and the least times of its step on a GPU."""
    rows, batch = tensors(workload, arm), {"encoder": 32, "code": 8, "dlrm": 2048}[workload]
    points = [[batch // 8, step_ms / 8, step_ms / 3], [batch, step_ms, step_ms / 2]]
    h100 = {"words": "NVIDIA H100 SXM, 80 GB", "operations": 9.9e14, "bytes": 3.4e12, "points": points}
    return record(
        arm,
        batch,
        measure="exchanged",
        experiment="scaling_model",
        workload=workload,
        precision="bf16",
        predicted_for="cuda",
        gradient_mib=size_mib(rows),
        samples={"tensors": rows, "bounds": {"h100": h100}},
        cell_id=f"{workload}-{arm}".replace(":", "-").replace("@", "-"),
    )


def on_paper() -> list[Record]:
    """Three models."""
    encoder = {"comera": 0.2, "low_rank@size": 0.25, "lora": 0.9, "galore": 1.1, "dense": 1.1}
    found = [exchanged("encoder", arm, step) for arm, step in encoder.items()]
    found += [exchanged("code", arm, step) for arm, step in {"comera": 3.0, "low_rank@size": 3.2, "dense": 8.0}.items()]
    return [*found, *(exchanged("dlrm", arm, step) for arm, step in {"comera": 0.1, "dense:row_wise": 0.3}.items())]


def measured(arm: str, mbit: float | None, factor: float = 1.0, device: str = CPU, seed: int = 0) -> Record:
    """A step on two ranks, ``factor`` times what the model says of it."""
    base, _, exchange = arm.partition("+")
    exchange, (step, extra) = exchange or "ddp", STEPS[arm]
    rows = tensors("encoder", base)
    plain = Training(
        tensors=tensors_of(rows),
        compute_ms=step,
        exchange=exchange,
        extra_ms=extra,
        overlaps=not exchange.startswith("powersgd"),
    )
    expected = plain.step_ms(2, shaped(mbit, PAYLOAD_SHARE)) * factor
    noise = random.Random(f"{arm}-{mbit}-{seed}")
    means = [expected * (1 + noise.uniform(-0.04, 0.04)) for _ in range(5)]
    sent = plain.sent_mib(2)
    return timed(
        base,
        means,
        8,
        experiment="scaling",
        device=device,
        threads=1,
        world_size=2,
        exchange=exchange,
        backend="gloo",
        link_mbit=mbit,
        gradient_mib=size_mib(rows),
        sent_buckets_mib=sent,
        sent_analytic_mib=sent,
        sent_interface_mib=sent * 1.006,
        compute_time_ms=step,
        exchange_memory_mib=sent,
        cell_id=f"{arm}-{mbit}".replace("+", "-").replace("@", "-"),
        pairing=f"together-{mbit}",
    )


def scaling_campaign(device: str = CPU) -> list[Record]:
    """Every arm at every rate, and three models on paper."""
    return [*(measured(arm, mbit, device=device) for mbit in RATES for arm in STEPS), *on_paper()]


def of_settings(mbit: float = 100.0, small: float = 1.1) -> list[Record]:
    """CoMERA and dense over bucket sizes, ``small`` times the step with small ones, and local steps; the gain is less
    where averages are rare.
    """
    found = []
    for arm in ("comera", "dense"):
        plain = measured(arm, mbit)
        for size in (1.0, 25.0):
            found.append(varied(plain, "scaling_buckets", small if size == 1.0 else 1.0, bucket_mib=size))
        for steps in (1, 16):
            less = 1.0 if steps == 1 else {"comera": 0.5, "dense": 0.25}[arm]
            found.append(varied(plain, "scaling_local", less, exchange="local_steps", local_steps=steps))
    return found


def varied(plain: Record, experiment: str, factor: float, **columns: Any) -> Record:
    """The record with other columns, and ``factor`` times its times."""
    blocks = [{**block, "ms": [factor * ms for ms in block["ms"]]} for block in plain.samples["blocks"]]
    name = "-".join(map(str, (plain.cell_id, *columns.values())))
    pairing = "-".join(map(str, (plain.pairing, *columns.values())))
    more = {"experiment": experiment, "samples": {"blocks": blocks}, "cell_id": name, "pairing": pairing, **columns}
    return Record(**{**vars(plain), **more})
