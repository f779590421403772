"""Made-up records of the encoder's matrices: true in modes, ranks and counts, invented in every other number."""

from __future__ import annotations

import json
import random
from typing import Any

from made_up_records import CALM, CPU, CUDA, blocks, record

from bench.core.record import Record
from figures.artifacts.tables.tensorization import MATRICES, Cores, Matrix

BY_NAME = {matrix.name: matrix for matrix in MATRICES}
SOLVED = {
    "attention": MATRICES[0].published,  # where the solver finds what was published
    "feed-forward 1": Cores((48, 16), (48, 64), (10, 20, 30), is_table=False),
    "feed-forward 2": Cores((64, 48), (16, 48), (9, 20, 30), is_table=False),
    "word embedding": Cores((14, 13, 13, 13), (4, 4, 6, 8), (35, 36, 35), is_table=True),
}
STEP_MS = {"dense": 200.0, "paper": 50.0, "solver": 40.0}
COMERA = {"order": 3, "ranks": 30, "table_order": 4, "table_ranks": 32, "lookup": "optimized"}


def described(cores: Cores) -> list[dict[str, Any]]:
    """The cores as a record's samples hold them."""
    names = ("row_modes", "column_modes") if cores.is_table else ("in_modes", "out_modes")
    modes = zip((*names, "ranks"), (cores.row_modes, cores.column_modes, cores.ranks), strict=True)
    return [{"layers": 1, **{name: list(sizes) for name, sizes in modes}}]


def counted(matrix: Matrix, cores: Cores | None) -> int:
    """Parameters as a record counts them: bias and rank-control entries included."""
    return matrix.bias + (cores.parameters + cores.rank_entries if cores else matrix.size)


def measured(name: str, setting: str, means: list[float], *, batch: int = 4096, **columns: Any) -> Record:
    """A timed record with the given block means, paired with the others of its matrix.

    ``settings`` and ``workload_settings`` add to those of the method and the workload; ``cores`` take the place of the
    setting's own.
    """
    matrix = BY_NAME[name]
    cores = columns.pop("cores", {"paper": matrix.published, "solver": SOLVED[name]}.get(setting))
    ratio = round(matrix.ratio(matrix.published), 3) if setting == "solver" else None
    names = ("rows", "columns") if matrix.workload == "lookup" else ("in_features", "out_features")
    layer = {names[0]: matrix.rows, names[1]: matrix.columns, "optimizer_step": False}
    own = {"lr": 5e-5} if setting == "dense" else COMERA
    config = {
        "device": "cuda" if columns.get("device") == CUDA else "cpu",
        "method_settings": own | columns.pop("settings", {}),
        "workload_settings": layer | columns.pop("workload_settings", {}),
        "timing_settings": CALM,
    }
    values = {
        "cell_id": f"{matrix.rows}x{matrix.columns}-{setting}",
        "experiment": "tensorization",
        "workload": matrix.workload,
        "dataset": "uniform" if matrix.workload == "lookup" else "normal",
        "sequence_length": 1,
        "ratio": ratio,
        "pairing": f"together-{name}",
        "parameters": counted(matrix, cores),
        "flops_per_step": 1_000_000 * matrix.size // len(setting),
        "peak_memory_predicted_mib": 75.5,
        "config_json": json.dumps(config),
        "samples": blocks(means) | ({"tensorized": described(cores)} if cores else {}),
    }
    return record("dense" if setting == "dense" else "comera", batch, **(values | columns))


def tensorization_campaign(device: str = CPU, seed: int = 3) -> list[Record]:
    """The whole table of one device."""
    noise = random.Random(seed)
    records = []
    peaks = {"peak_memory_allocated_mib": 80.0, "peak_memory_reserved_mib": 96.0} if device == CUDA else {}
    for name in BY_NAME:
        rounds = [1 + noise.uniform(-0.08, 0.08) for _ in range(5)]
        for setting, cost in STEP_MS.items():
            means = [cost * share * (1 + noise.uniform(-0.02, 0.02)) for share in rounds]
            records.append(measured(name, setting, means, device=device, **peaks))
    return records
