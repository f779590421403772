"""Interrupting a program where a test says, and comparing what it leaves behind byte for byte."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from small_cells import environment, last_of_each, run_bench, small

from bench.core.record import COLUMNS, paths_below, read_all

#: Columns that differ from one measurement of a cell to the next.
TIMES = {
    *("recorded_at", "step_time_median_ms", "step_time_p20_ms", "step_time_p80_ms", "epoch_time_s"),
    *("calibration_drift", "pairing"),
}
PATIENCE_S = 120.0


class Killed(Exception):
    """Stands for whatever ends a program in the middle of something."""


def kill_at(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """Let the call of that number (from 1) of ``owner.name``, and every later one, raise :class:`Killed` instead."""
    original, calls = getattr(owner, name), itertools.count(1)

    def dying(*arguments: Any, **named: Any) -> Any:
        if next(calls) >= call:
            raise Killed(f"call {call} of {name}")
        return original(*arguments, **named)

    patch.setattr(owner, name, dying)


def as_bytes(value: Any) -> Any:
    """The value with each tensor as data type, shape and bytes, so that ``==`` is equality to the bit."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().reshape(-1)
        return str(value.dtype), tuple(value.shape), bytes(flat.view(torch.uint8).tolist())
    if isinstance(value, dict):
        return {key: as_bytes(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_bytes(item) for item in value]
    return value


def files_in(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def arguments(folder, pairs, grid):
    """Command line arguments of a small sweep with its records in ``folder``; the first of the grid's names it."""
    return last_of_each([*grid[:1], *small(pairs, folder / "results"), *grid[1:]])


class Sweep:
    """``python -m bench`` in a process group of its own, for killing."""

    def __init__(self, folder, pairs, grid, **streams):
        self.results = folder / "results"
        command = [sys.executable, "-m", "bench", *arguments(folder, pairs, grid)]
        self.process = psutil.Popen(
            command, cwd=folder, env=environment(), start_new_session=True, **{"stderr": subprocess.DEVNULL, **streams}
        )
        self.recorded_before = self.recorded()

    def recorded(self):
        return len(record_files(self.results))

    def checkpoints(self):
        """How many runs have a checkpoint."""
        return len(list(self.results.glob(".checkpoints/*/*/state.json")))

    def wait_for(self, records, checkpoints=0):
        """Until that many new records and so many checkpoints are there, or the sweep has ended."""
        deadline = time.monotonic() + PATIENCE_S
        wanted = self.recorded_before + records
        while (self.recorded() < wanted or self.checkpoints() < checkpoints) and self.process.poll() is None:
            assert time.monotonic() < deadline, "the sweep makes no progress"
            time.sleep(0.01)

    def kill(self, whole_group):
        """Kill the sweep at once, workers and all, or the coordinator alone; either way nothing must stay."""
        workers = self.process.children(recursive=True)
        if whole_group:
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait()
        _, alive = psutil.wait_procs(workers, timeout=20)
        alive = [worker for worker in alive if is_running(worker)]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        assert not alive, f"left behind: {alive}"


def record_files(results):
    """Files of records, without those of checkpoints and those being written, which lie hidden."""
    return paths_below(results)


def is_running(process):
    """Whether a process still does something; one that nobody has waited for does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def sweep(folder, pairs, grid):
    """The whole sweep, undisturbed."""
    folder.mkdir(exist_ok=True)
    ended = run_bench(folder, *arguments(folder, pairs, grid))
    assert ended.status == 0, ended.error
    return ended


def records_by_file(folder, but):
    """Columns of all records but some, and learning curves without their clock, by the file that each record is in."""
    columns = [name for name in COLUMNS if name not in but]
    files = record_files(folder / "results")
    records = read_all(folder / "results")
    return {
        str(path.relative_to(folder)): {name: getattr(record, name) for name in columns} | {"curve": curve_of(record)}
        for path, record in zip(files, records, strict=True)
    }


def curve_of(record):
    """The learning curve of a training run, without the seconds that it took; empty for other records."""
    curve = record.samples.get("curve", ()) if record.measure == "train" else ()
    return [{name: value for name, value in point.items() if name != "seconds"} for point in curve]
