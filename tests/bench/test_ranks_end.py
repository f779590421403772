"""How cells of several ranks end: well, or all of them with one sentence; nothing of them is left."""

import contextlib
import subprocess
from pathlib import Path
from unittest import mock

import psutil
import pytest
from small_cells import a_cell, run_bench, run_bench_apart, small

from bench.core.record import read_all
from bench.distributed import launch
from bench.distributed.launch import slurm_command
from bench.errors import ConfigError

ONE_LATE = ["training.early_steps=6", "training.late_steps=6", "training.static=true", "batch_size=20", "world_size=2"]


def ranks_left() -> list[psutil.Process]:
    """Ranks that this process has started, through others."""
    children = psutil.Process().children(recursive=True)
    return [one for one in children if "bench.distributed.rank" in one.cmdline()]


@pytest.mark.slow
@pytest.mark.usefixtures("cell_processes")
def test_steps_of_two_ranks_are_timed_in_turns(pairs, tmp_path):
    asked = ["experiment=steps", *small(pairs, tmp_path / "results"), "methods=[comera,dense+powersgd_4]"]
    ended = run_bench(tmp_path, *asked, "world_size=2")
    assert ended.status == 0, ended.error
    comera, power = sorted(read_all(tmp_path / "results"), key=lambda record: record.arm)
    assert (comera.arm, comera.exchange, power.arm) == ("comera", "ddp", "dense+powersgd_4")
    assert comera.pairing == power.pairing != ""
    for record in (comera, power):
        assert (record.status, record.world_size, record.backend) == ("ok", 2, "gloo")
        assert record.sent_buckets_mib == pytest.approx(record.sent_analytic_mib, rel=1e-9)
        assert record.sent_interface_mib is None  # ranks share the loopback
        assert record.compute_time_ms > 0
        assert all(len(block["ms"]) == len(block["compute_ms"]) for block in record.samples["blocks"])
    assert comera.sent_analytic_mib == comera.gradient_mib
    assert power.sent_analytic_mib < power.gradient_mib
    assert power.exchange_memory_mib > 2 * power.gradient_mib
    assert not ranks_left()


@pytest.mark.slow
@pytest.mark.usefixtures("cell_processes")
def test_a_run_that_diverges_ends_all_its_ranks_with_one_sentence(pairs, tmp_path):
    asked = ["experiment=steps", "measure=train", *small(pairs, tmp_path / "results"), *ONE_LATE, "methods=[dense]"]
    ended = run_bench(tmp_path, *asked, "settings.dense.lr=1e30", "training.targets=[]")
    [record] = read_all(tmp_path / "results")
    assert record.status == "diverged", (record.message, ended.error)
    assert "not finite at step" in record.message
    assert "\n" not in record.message
    assert not ranks_left()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "words"), [("wanting", "allocate"), ("killed", "a rank was killed (signal 9)")])
def test_a_rank_without_memory_or_that_is_killed_ends_all_with_one_sentence(name, words, pairs, tmp_path):
    asked = [word.replace("model.", f"{name}.") for word in small(pairs, tmp_path / "results")]  # a section of its own
    asked += [*ONE_LATE, "methods=[dense]", f"workload={name}", f"{name}.sequence_length=32", "training.targets=[]"]
    asked.append("timing.time_limit_s=300")
    ended = run_bench_apart(tmp_path, "experiment=steps", "measure=train", *asked, BENCH_PLUGINS="ranks_that_end")
    [record] = read_all(tmp_path / "results")
    assert record.status == "oom", (record.message, ended.error)
    assert words in record.message
    assert "\n" not in record.message
    assert tmp_path not in map(folder_of, psutil.process_iter())


def folder_of(process: psutil.Process) -> Path | None:
    """The folder in which a process runs; None where it has ended."""
    with contextlib.suppress(psutil.Error):
        return Path(process.cwd())
    return None


class WaitingRanks(launch.Ranks):
    """A rank that says it has failed, and a torchrun that would wait for the others for ever."""

    def __enter__(self):
        self._torchrun = subprocess.Popen(["sleep", "1000"])
        self._connections = {0: mock.Mock()}
        self._ending = contextlib.ExitStack()
        self._ending.callback(self._kill)
        return self

    def receive(self, others):  # noqa: ARG002
        yield 0, ("failed", ("oom", "made up"))

    def has_lost_one(self):
        return False


def test_those_that_wait_for_a_failed_rank_are_not_waited_for(monkeypatch):
    def waits(_):
        pytest.fail("they are waited for")

    monkeypatch.setattr(launch, "Ranks", WaitingRanks)
    monkeypatch.setattr(launch, "packed", lambda *_: b"")
    monkeypatch.setattr(launch.time, "sleep", waits)
    said = mock.Mock()
    launch.relay(said, a_cell(world_size=2), print, combine=max)
    said.send.assert_called_once_with(("failed", ("oom", "made up")))


def test_torchrun_is_started_on_every_node_with_an_equal_part():
    command = slurm_command(["python", "-m", "torch.distributed.run"], ["-m", "bench.distributed.rank"], 8, 2)
    assert command[:4] == ["srun", "--overlap", "--nodes=2", "--ntasks=2"]
    assert "--nnodes=2 --nproc-per-node=4" in command[-1]
    assert '--node-rank="$SLURM_NODEID"' in command[-1]
    with pytest.raises(ConfigError, match="world_size is 3; allowed on 2 nodes: a multiple of 2"):
        slurm_command([], [], 3, 2)
