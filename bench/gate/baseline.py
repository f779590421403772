"""The baseline: what the exact benchmarks counted when their numbers were last accepted, a file per version of PyTorch.

A file holds the numbers by benchmark, sorted, and a hash over its content, so that a number written in by hand is not
taken for one that was counted. ``make gate-accept`` writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bench.gate.errors import GateError
from bench.gate.exact import QUANTITIES, Numbers

FOLDER = Path(__file__).parent / "baselines"
SCHEMA = 1

_FIELDS = ("schema", "torch", "content_hash", "benchmarks")
_REMEDY = "make gate-accept writes it"


def torch_version() -> str:
    """The version of PyTorch without its local part: builds for a CPU and for CUDA trace the same operations."""
    return str(torch.__version__).partition("+")[0]


def baseline_path() -> Path:
    """Where the baseline of this version of PyTorch lies."""
    return FOLDER / f"torch-{torch_version()}.json"


def read_baseline() -> dict[str, Numbers]:
    """The accepted numbers by benchmark.

    Raises:
        GateError: there is none for this version of PyTorch, or it is not as :func:`write_baseline` left it.
    """
    path = baseline_path()
    if not path.is_file():
        there = ", ".join(sorted(file.stem.removeprefix("torch-") for file in FOLDER.glob("torch-*.json"))) or "none"
        raise GateError(f"There is no baseline for torch {torch_version()} (there are: {there}); {_REMEDY}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GateError(f"{path.name} cannot be read ({' '.join(str(error).split())}); {_REMEDY}.") from None
    if not isinstance(content, dict) or set(content) != set(_FIELDS):
        raise GateError(f"{path.name} is no baseline, which has {', '.join(_FIELDS)}; {_REMEDY}.")
    if content["schema"] != SCHEMA:
        raise GateError(f"{path.name} has schema {content['schema']!r}, this gate reads {SCHEMA}; {_REMEDY}.")
    if content["content_hash"] != _content_hash(content):
        raise GateError(f"{path.name} was edited by hand: its content does not have the hash it states; {_REMEDY}.")
    if content["torch"] != torch_version():
        raise GateError(f"{path.name} holds numbers of torch {content['torch']}; {_REMEDY}.")
    benchmarks: dict[str, Numbers] = content["benchmarks"]
    for name, numbers in benchmarks.items():
        if numbers != "unsupported" and set(numbers) != set(QUANTITIES):
            raise GateError(f"{path.name} has other quantities than this gate counts, in {name}; {_REMEDY}.")
    return benchmarks


def write_baseline(benchmarks: Mapping[str, Numbers]) -> None:
    """Write the baseline of this version of PyTorch."""
    content = {"schema": SCHEMA, "torch": torch_version(), "benchmarks": dict(sorted(benchmarks.items()))}
    text = json.dumps({"content_hash": _content_hash(content), **content}, indent=1)
    baseline_path().parent.mkdir(exist_ok=True)
    baseline_path().write_text(text + "\n", encoding="utf-8")


def _content_hash(content: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != "content_hash"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
