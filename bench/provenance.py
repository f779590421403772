"""Where a number comes from: machine, driver, versions, and the code that ran."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent

#: Source whose change makes a measurement a different one: the methods, and what builds, runs and measures a step.
MEASURING_CODE = (
    "comera",
    "baselines",
    "bench/workloads",
    "bench/data",
    "bench/step.py",
    "bench/forward_backward.py",
    "bench/memory.py",
    "bench/work.py",
    "bench/cuda_operations.py",
    "bench/timing.py",
    "bench/training.py",
    "bench/trained_step.py",
    "bench/worker.py",
    "bench/interleave.py",
    "bench/plans.py",
    "bench/witness.py",
    "bench/checks.py",
    "bench/eight_bit.py",
    "bench/products.py",
    "bench/profiling.py",
)

#: Libraries whose version can change a measurement.
LIBRARIES = ("numpy", "peft", "galore-torch", "bitsandbytes", "tokenizers", "transformers", "triton")

#: The commit, where git's own data did not travel with the tree.
COMMIT_VARIABLE = "BENCH_COMMIT"


@dataclass(frozen=True)
class Provenance:
    """The record columns that say who measured."""

    code_id: str
    device: str
    driver: str
    threads: int
    torch_version: str
    library_versions: str
    git_commit: str
    git_dirty: bool


@functools.cache
def code_id(root: Path = ROOT) -> str:
    """Hash of the measuring code's source."""
    digest = hashlib.sha256()
    for entry in MEASURING_CODE:
        path = root / entry
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(root).as_posix()}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def device_name(on_cpu: bool = False) -> str:
    """What this machine's training device is called: the GPU where there is one, or the processor with its threads."""
    if torch.cuda.is_available() and not on_cpu:
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread" + "s" * (threads != 1)


def _driver(on_cpu: bool) -> str:
    if on_cpu or not torch.cuda.is_available():
        return ""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return f"unknown, CUDA {torch.version.cuda}"
    return f"{output.splitlines()[0].strip()}, CUDA {torch.version.cuda}"


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(library: str) -> str | None:
    try:
        return f"{library} {importlib.metadata.version(library)}"
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def provenance(on_cpu: bool = False) -> Provenance:
    """Who measures, found out once per process; ``on_cpu`` for what runs on the processor of a machine with a GPU.

    The commit is git's, or that of ``BENCH_COMMIT`` for an exported tree, or the word "unversioned"; never blank.
    ``git_dirty`` tells of measuring code that this commit lacks or has otherwise, new files too.
    """
    in_tree = _git("rev-parse", "--show-toplevel")
    own_tree = in_tree is not None and Path(in_tree).resolve() == ROOT
    commit = _git("rev-parse", "HEAD") if own_tree else None
    changes = _git("status", "--porcelain", "--untracked-files=all", "--", *MEASURING_CODE) if commit else None
    return Provenance(
        code_id=code_id(),
        device=device_name(on_cpu),
        driver=_driver(on_cpu),
        threads=torch.get_num_threads(),
        torch_version=torch.__version__,
        library_versions=", ".join(version for name in LIBRARIES if (version := _version(name))),
        git_commit=commit or os.environ.get(COMMIT_VARIABLE) or "unversioned",
        git_dirty=bool(changes),
    )
