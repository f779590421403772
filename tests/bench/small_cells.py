"""Cells small enough to run in a test, records of them, and the command line as a function."""

import contextlib
import copy
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

import bench.__main__
from bench.core.cell import Cell
from bench.core.record import Record
from bench.data.corpus import LABELS
from bench.data.synthetic import synthetic_corpus
from bench.errors import CONF
from bench.protocol.methods import checked_settings
from bench.workloads import config_sections

ROOT = Path(bench.__main__.__file__).parent.parent

MODEL = {"layers": 1, "width": 32, "heads": 2, "feed_forward": 64, "vocabulary": 2000, "positions": 64, "classes": 3}
MODEL |= {"dropout": 0.1}
TIMING = {"blocks": 2, "extra_blocks": 0, "block_seconds": 0.05, "max_steps": 3, "warmup_steps": 2}
TIMING |= {"disturbed": 1e6, "time_limit_s": 60.0, "launches": 1}

#: Settings under which a few steps of the small encoder move weights and close ranks.
FAST = {
    "dense": {"lr": 1e-3},
    "comera": {"lr_cores": 1e-3, "lr_ranks": 0.3, "lr_dense": 1e-3, "ranks": 8, "table_ranks": 8},
    "low_rank": {"lr": 1e-3, "lr_factors": 1e-3},
}


def a_cell(**changes) -> Cell:
    """A cell of the small encoder; ``settings`` are those of the method that differ from its defaults."""
    fields = {
        "experiment": "made_up",
        "workload": "encoder",
        "dataset": "synthetic",
        "method": "dense",
        "variant": "",
        "measure": "run",
        "device": "cpu",
        "batch_size": 2,
        "precision": "fp32",
        "cuda_graph": False,
        "compile": False,
        "seed": 0,
        "ratio": None,
        "workload_settings": {**MODEL, "sequence_length": 32},
        "timing_settings": dict(TIMING),
    }
    settings = changes.pop("settings", {})
    fields |= changes
    return Cell(method_settings=checked_settings(fields["method"], settings), **fields)


def a_layer_cell(in_features: int, out_features: int, **changes) -> Cell:
    """A cell of one linear layer."""
    sizes = {"in_features": in_features, "out_features": out_features, "optimizer_step": True}
    return a_cell(**({"workload": "linear", "dataset": "normal", "workload_settings": sizes} | changes))


def a_training_cell(method="dense", early=8, late=7, target=0.5, static=False, settings=(), **changes) -> Cell:
    """A training run of six steps per epoch on the small corpus; without late steps it has an early stage only."""
    stages = [{"name": "early", "steps": early, "target": None, "target_mib": None}]
    if late:
        shrinks = method == "comera"
        stages.append({"name": "late", "steps": late, "target": target if shrinks else None, "target_mib": None})
    training = {"stages": stages, "steps_per_epoch": 6, "static": static, "time_limit_s": 60.0}
    fields = {"measure": "train", "batch_size": 40, "timing_settings": {}, "training": training, **changes}
    return a_cell(method=method, settings={**FAST[method], **dict(settings)}, **fields)


def a_configuration(pairs: Path, **changes) -> dict[str, Any]:
    """A job as Hydra would compose it, made small."""
    plain = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"))
    for name in ("defaults", "hydra"):
        del plain[name]
    plain = {**config_sections(), **plain, "name": "made_up", "settings": {}, "device": "cpu"}
    plain |= {"data_folder": str(pairs), "model": {**MODEL, "sequence_length": 32}, "timing": dict(TIMING)}
    return plain | changes


def changed(config: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A copy of the configuration with one value, named with dots, put in the place of another."""
    result = copy.deepcopy(config)
    *parents, leaf = name.split(".")
    place = result
    for parent in parents:
        place = place.setdefault(parent, {})
    place[leaf] = value
    return result


def a_record(**changes) -> Record:
    """A record as a finished cell leaves it."""
    fields = {
        "cell_id": "0123456789abcdef",
        "code_id": "fedcba9876543210",
        "recorded_at": "2026-01-02T03:04:05+00:00",
        "experiment": "made_up",
        "workload": "encoder",
        "dataset": "synthetic",
        "data_hash": "d",
        "method": "dense",
        "variant": "",
        "measure": "run",
        "batch_size": 2,
        "sequence_length": 32,
        "precision": "fp32",
        "cuda_graph": False,
        "compile": False,
        "seed": 0,
        "status": "ok",
        "device": "Some Processor, 1 threads",
        "threads": 1,
        "torch_version": "2.0",
        "git_commit": "c",
        "git_dirty": False,
        "config_json": "{}",
    }
    return Record(**(fields | changes))


def write_pairs(folder: Path, rows: int = 240) -> None:
    """A corpus so small that a cell's process reads it in no time."""
    corpus = synthetic_corpus(rows, 30)
    folder.mkdir(parents=True, exist_ok=True)
    for name, split in (("train", corpus.train), ("dev_matched", corpus.validation)):
        lines = (
            json.dumps({"premise": pair.premise, "hypothesis": pair.hypothesis, "label": LABELS[pair.label]}) + "\n"
            for pair in (split[index] for index in range(len(split)))
        )
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def small(pairs: Path, results: Path) -> list[str]:
    """Command line arguments that make an experiment small."""
    model = [f"model.{name}={value}" for name, value in MODEL.items()]
    timing = [f"timing.{name}={value}" for name, value in TIMING.items()]
    where = [f"data_folder={pairs}", f"results={results}", "device=cpu", "batch_size=2"]
    return [*model, *timing, *where, "sequence_length=32", "settings.galore.rank=8"]


def last_of_each(arguments: Sequence[str]) -> list[str]:
    """Arguments without those whose setting a later one gives again, which the command refuses."""
    last = {argument.partition("=")[0]: number for number, argument in enumerate(arguments) if "=" in argument}
    return [
        argument for number, argument in enumerate(arguments) if last.get(argument.partition("=")[0], number) == number
    ]


#: Arguments, beside :func:`small`, of a sweep with three training runs: an early one, a late one, and a dense one.
TRAINED = (
    *("experiment=accuracy_small", "dataset=auto", "batch_size=40", "training.early_steps=20"),
    *("training.late_steps=200", "training.targets=[0.5]", "settings.comera.lr_ranks=0.01"),
)


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status and what it wrote."""

    status: int
    output: str
    error: str


def run_bench(folder: Path, *arguments: str, as_given: bool = False) -> Ended:
    """``python -m bench`` with these arguments in ``folder``, without starting a process for it.

    The last of each setting counts, so that a test can change those of :func:`small`, unless they go ``as_given``.
    """
    words = list(arguments) if as_given else last_of_each(arguments)
    GlobalHydra.instance().clear()
    output, error, status = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["bench", *words]),
        mock.patch.dict(os.environ),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(error),
    ):
        try:
            bench.__main__.main()
        except SystemExit as end:
            status = end.code
    return Ended(status, output.getvalue(), error.getvalue())


def run_bench_apart(folder: Path, *arguments: str, **changes: str) -> Ended:
    """``python -m bench`` with these arguments in a process of its own, with these changes of its environment.

    Processes of cells have the environment of the one that starts them, such as what ``BENCH_PLUGINS`` names.
    """
    places = os.pathsep.join([str(ROOT), str(Path(__file__).parent), str(ROOT / "tests" / "shared")])
    ours = environment(**({"PYTHONPATH": places} | changes))
    command = [sys.executable, "-m", "bench", *last_of_each(arguments)]
    done = subprocess.run(command, cwd=folder, env=ours, capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


def git(folder: Path, *arguments: str) -> str:
    """Return what git answers in a folder, to an author of no name."""
    command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def environment(**changes: str) -> dict[str, str]:
    """The environment of a bench in a process of its own: this tree, one thread, generated data."""
    ours = {name: value for name, value in os.environ.items() if name != "COMERA_DATA"}
    return {**ours, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **changes}


def assert_refused(ended: Ended, *named: Any, folder: Path | None = None) -> None:
    """Check that a command ended with status 2 and one sentence, which names these, and left ``folder`` empty."""
    assert (ended.status, ended.output) == (2, "")
    [line] = [line for line in ended.error.splitlines() if not line.startswith(("predicting", "reading "))]
    assert line.startswith("error: ")
    for word in named:
        assert str(word) in line
    assert folder is None or list(folder.iterdir()) == []


@contextlib.contextmanager
def one_line(kind: type[Exception] | tuple[type[Exception], ...], *named: Any) -> Iterator[None]:
    """Check that what runs inside ends with an error of this kind, one line that names these."""
    with pytest.raises(kind) as error:
        yield
    assert_one_line(error, *named)


def assert_one_line(error: Any, *named: Any) -> None:
    """Check that an error is one line that names these: a field, a value, a place."""
    message = str(getattr(error, "value", error))
    assert "\n" not in message
    for name in named:
        assert str(name) in message
