"""A sweep that is killed and started again ends with the records of one that was left alone."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
from small_cells import environment, run_bench, small

from bench.record import COLUMNS, read_all

pytestmark = pytest.mark.usefixtures("cell_processes")

PREDICTED = ("experiment=fig1_memory", "methods=[dense,low_rank]", "batch_size=1,2,4,8", "parallel=1")
TIMED = ("experiment=fig1", "methods=[comera,dense]", "batch_size=2,4")

#: Columns that differ from one measurement of a cell to the next.
TIMES = {
    *("recorded_at", "step_time_median_ms", "step_time_p20_ms", "step_time_p80_ms", "epoch_time_s"),
    *("calibration_drift", "pairing"),
}
PATIENCE_S = 120.0


class Sweep:
    """``python -m bench`` in a process group of its own, for killing."""

    def __init__(self, folder, pairs, grid):
        self.results = folder / "results"
        command = [sys.executable, "-m", "bench", *grid[:1], *small(pairs, self.results), *grid[1:]]
        self.process = psutil.Popen(
            command, cwd=folder, env=environment(), start_new_session=True, stderr=subprocess.DEVNULL
        )
        self.recorded_before = self.recorded()

    def recorded(self):
        return len(list(self.results.rglob("*.json")))

    def wait_for(self, records):
        """Until that many new records are there, or the sweep has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while self.recorded() < self.recorded_before + records and self.process.poll() is None:
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


def is_running(process):
    """Whether a process still does something; one that nobody has waited for does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def sweep(folder, pairs, grid):
    """The whole sweep, undisturbed."""
    folder.mkdir(exist_ok=True)
    ended = run_bench(folder, *grid[:1], *small(pairs, folder / "results"), *grid[1:])
    assert ended.status == 0
    return ended


def records_by_file(folder, but):
    """Columns of all records but some, by the file that each is in."""
    columns = [name for name in COLUMNS if name not in but]
    files = sorted((folder / "results").rglob("*.json"))
    records = read_all(folder / "results")
    return {
        str(path.relative_to(folder)): {name: getattr(record, name) for name in columns}
        for path, record in zip(files, records, strict=True)
    }


def shapes_of_samples(folder):
    return {
        record.cell_id: [(block["block"], len(block["ms"])) for block in record.samples["blocks"]]
        for record in read_all(folder / "results")
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, pairs, cell_processes):  # noqa: ARG001
    folder = tmp_path_factory.mktemp("undisturbed")
    sweep(folder / "predicted", pairs, PREDICTED)
    sweep(folder / "timed", pairs, TIMED)
    return folder


def test_predictions_killed_at_random_moments(tmp_path, pairs, undisturbed):
    moments = random.Random(2)
    for new_records in (0, moments.randint(1, 4)):
        running = Sweep(tmp_path, pairs, PREDICTED)
        running.wait_for(new_records)
        time.sleep(moments.uniform(0.0, 0.4) if new_records else moments.uniform(0.5, 4.0))
        running.kill(whole_group=True)
        assert all(record.status == "ok" for record in read_all(tmp_path / "results"))
    kept = len(read_all(tmp_path / "results"))
    assert 1 <= kept <= 8
    assert sweep(tmp_path, pairs, PREDICTED).error.count("done before") == kept
    whole = records_by_file(undisturbed / "predicted", but=["recorded_at"])
    assert len(whole) == 8
    assert records_by_file(tmp_path, but=["recorded_at"]) == whole


def test_timing_killed_at_a_random_moment(tmp_path, pairs, undisturbed):
    """The first job is kept, the second is measured anew, all arms of it together.

    Here the coordinator dies alone; its workers notice.
    """
    running = Sweep(tmp_path, pairs, TIMED)
    running.wait_for(2)
    time.sleep(random.Random(3).uniform(0.0, 0.8))
    running.kill(whole_group=False)
    first = {record.cell_id: record for record in read_all(tmp_path / "results")}
    assert len(first) >= 2
    sweep(tmp_path, pairs, TIMED)
    whole = records_by_file(undisturbed / "timed", but=TIMES)
    assert len(whole) == 4
    assert records_by_file(tmp_path, but=TIMES) == whole
    assert shapes_of_samples(tmp_path) == shapes_of_samples(undisturbed / "timed")
    records = read_all(tmp_path / "results")
    assert {cell: record for cell, record in first.items() if record not in records} == {}
    assert len({(record.batch_size, record.pairing) for record in records}) == 2
