"""Made-up records of steps by width: plausible in shape, invented in every number, never a result."""

from __future__ import annotations

import json
from typing import Any

from made_up_records import CALM, CUDA, timed

from bench.core.record import Record
from figures.records.select import Toggles

FORMS = (Toggles(cuda_graph=True), Toggles("bf16", cuda_graph=True), Toggles("bf16", compile=True, cuda_graph=True))
SPEED = {FORMS[0]: 1.0, FORMS[1]: 0.6, FORMS[2]: 0.4}


def step(workload: str, width: int, arm: str, toggles: Toggles, ms: float, **columns: Any) -> Record:
    """A timed record of one arm at one width."""
    settings = {"width": width, "heads": width // 64} if workload == "encoder" else {"in_features": width}
    words = f"{workload}-{width}-{'-'.join(toggles.names)}"
    values: dict[str, Any] = {
        "cell_id": f"{words}-{arm}",
        "experiment": "widths" if workload == "encoder" else "widths_linear",
        "workload": workload,
        **vars(toggles),
        "device": CUDA,
        "pairing": f"together-{words}",
        "parameters": 12 * width**2 if arm == "dense" else 200 * width,
        "config_json": json.dumps(
            {"device": "cuda", "workload_settings": settings, "method_settings": {}, "timing_settings": CALM}
        ),
    }
    return timed(arm, [ms, ms * 1.02, ms * 0.98], 32, **(values | columns))


def widths() -> list[Record]:
    """Two parts at three widths: tensor trains lose at the smallest and win by more the wider it gets."""
    records = []
    for workload in ("encoder", "linear"):
        for width in (768, 2048, 8192):
            for toggles in FORMS:
                dense = width**2 / 1e5 * SPEED[toggles]
                ours = width / 100 * (1.0 if toggles is FORMS[0] else 0.9)
                for arm, ms in (
                    ("comera", ours),
                    ("comera:lean", ours * 1.1),
                    ("low_rank", ours * 0.9),
                    ("dense", dense),
                ):
                    records.append(step(workload, width, arm, toggles, ms))
    return records
