"""Sweeps whose jobs are processes of their own, through submitit's local executor: the same records, none lost."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hydra import compose, initialize_config_dir
from interrupted import arguments, record_files, records_by_file
from interrupted import sweep as run_sweep
from omegaconf import OmegaConf
from small_cells import environment, run_bench

import bench.runner.sweep
from bench.commands.merge import merge
from bench.core.provenance import provenance
from bench.core.record import device_folder, read_all
from bench.errors import CONF
from bench.runner.launching import Launch, register_launchers
from bench.runner.results import Results

pytestmark = pytest.mark.usefixtures("cell_processes")

LOCAL = "hydra/launcher=submitit_local"
PREDICTED = ("experiment=fig1_memory", "methods=[dense,low_rank]", "batch_size=2,4")
TIMED = ("experiment=fig1", "methods=[galore,dense],[dense,lora]", "batch_size=2")


def logs_of(folder):
    return [path.read_text() for path in sorted(folder.glob("results/local/.hydra/sweeps/*/logs/*/*_log.out"))]


@pytest.mark.slow
def test_jobs_record_into_one_folder_and_a_cell_they_share_is_measured_once(tmp_path, pairs):
    ended = run_sweep(tmp_path, pairs, (*TIMED, LOCAL))
    assert ended.output == ""
    first, second, table, last, *_ = ended.error.splitlines()  # a busy machine has a line of its own
    assert table == f"table: {tmp_path / 'results' / 'fig1.csv'}"
    assert first == "2 job(s), 3 cell(s) go to submitit_local; they go on even if this process ends"
    assert second.endswith(f"/logs; records: {tmp_path / 'results'}")
    assert last.startswith("all jobs have ended; logs: results/local/.hydra/sweeps/")
    records = {record.arm: record for record in read_all(tmp_path / "results")}
    assert {arm: record.status for arm, record in records.items()} == dict.fromkeys(("galore", "dense", "lora"), "ok")
    assert records["galore"].pairing == records["dense"].pairing != ""
    assert records["galore"].rare_time_ms > 0
    assert records["lora"].pairing == ""  # it was alone in its job
    logs = logs_of(tmp_path)
    assert sorted("2/2 cells  fig1 batch 2 on cpu  " in log for log in logs) == [False, True]
    assert sorted("1/1 cells  fig1 batch 2 on cpu  lora  ok: " in log for log in logs) == [False, True]
    assert run_sweep(tmp_path, pairs, TIMED).error.count("done before") == 3


@pytest.mark.slow
def test_a_failed_job_takes_no_other_s_records_along_and_separate_folders_are_merged(tmp_path, pairs, monkeypatch):
    """One job finds a record that it cannot read, and that the launching process is kept from seeing."""
    grid = (*PREDICTED, "results=worker-${batch_size}")
    broken = tmp_path / "worker-4" / "fig1_memory" / device_folder(provenance().device) / "broken.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    with monkeypatch.context() as patch:
        patch.setattr(Results, "check", lambda *_: None)
        ended = run_bench(tmp_path, *arguments(tmp_path, pairs, (*grid, LOCAL)))
    assert (ended.status, ended.output) == (1, "")
    first, second, *tables, last = ended.error.splitlines()
    assert first.startswith("2 job(s), 4 cell(s) go to submitit_local")
    assert "table: worker-2/fig1_memory.csv" in tables
    assert second.endswith("/logs; records: worker-2, worker-4")
    assert last.startswith("error: 1 job(s) failed, one of them with: RecordError: worker-4/fig1_memory/")
    assert "broken.json: not a readable JSON record" in last
    assert len(read_all(tmp_path / "worker-2")) == 2
    assert sum("Traceback" in log for log in logs_of(tmp_path)) == 1

    broken.unlink()
    again = run_bench(tmp_path, *arguments(tmp_path, pairs, grid))
    assert (again.status, again.error.count("done before"), again.error.count("ok: ")) == (0, 2, 2)

    copied, _ = merge([tmp_path / "worker-2", tmp_path / "worker-4"], tmp_path / "merged" / "results")
    assert len(copied) == 4
    run_sweep(tmp_path / "alone", pairs, PREDICTED)
    alone, merged = (records_by_file(tmp_path / name, but=["recorded_at"]) for name in ("alone", "merged"))
    assert merged == alone
    assert len(merged) == 4


def composed(*overrides):
    """The parameters of a launcher, as it would get them."""
    bench.runner.sweep.register_resolvers()
    bench.runner.sweep.register_settings()
    register_launchers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [f"hydra/launcher={overrides[0]}", *overrides[1:]], return_hydra_config=True)
        return OmegaConf.to_container(config.hydra.launcher, resolve=True)


@pytest.mark.parametrize(
    ("overrides", "gpus"),
    [
        (("experiment=fig1", "device=cuda"), 1),
        (("experiment=fig1", "device=cpu"), None),
        (("experiment=fig1_memory",), None),
        (("experiment=accuracy", "device=cuda"), 1),
    ],
)
@pytest.mark.parametrize("launcher", ["submitit_slurm", "submitit_local"])
def test_a_job_asks_for_one_gpu_where_it_needs_one(launcher, overrides, gpus):
    parameters = composed(launcher, *overrides)
    assert parameters["gpus_per_node"] == gpus
    assert (parameters["nodes"], parameters["tasks_per_node"]) == (1, 1)
    assert parameters["submitit_folder"].startswith("results/local/.hydra/sweeps/20")
    assert parameters["submitit_folder"].endswith("/logs/%j")


def test_jobs_of_a_cluster_have_a_time_limit_and_are_queued_again():
    parameters = composed("submitit_slurm", "experiment=fig1", "device=cuda", "hydra.launcher.timeout_min=30")
    assert parameters["timeout_min"] == 30
    assert parameters["max_num_timeout"] > 0
    assert parameters["cpus_per_task"] > 1


def test_cuda_is_accepted_for_machines_that_are_not_known_here(tmp_path, pairs, monkeypatch):
    """A machine without Slurm comes as far as the submission."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("PATH", "/no/such/folder")
    grid = ("experiment=fig1", "hydra/launcher=submitit_slurm", "device=cuda", "methods=[dense]", "batch_size=2,4")
    ended = run_bench(tmp_path, *arguments(tmp_path, pairs, grid))
    assert ended.status == 1
    first, _, last = ended.error.splitlines()
    assert first.startswith("4 job(s), 4 cell(s) go to submitit_slurm")  # with CUDA Graph and without
    assert last.startswith('error: the launch was ended by Could not detect "srun"')
    assert record_files(tmp_path / "results") == []


def test_without_the_extra_the_way_to_it_is_named(tmp_path, pairs):
    code = "import sys; sys.modules['hydra_plugins'] = None; import bench.__main__; bench.__main__.main()"
    grid = ("experiment=fig1", "hydra/launcher=submitit_slurm", "device=cuda")
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments(tmp_path, pairs, grid)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: hydra/launcher needs the extra slurm here; install it: pip install -e '.[slurm]'.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "failed", "words"),
    [
        (
            None,
            ["ValueError: wrong.", "ValueError: too."],
            ["error: 2 job(s) failed, one of them with: ValueError: w"],
        ),
        (KeyboardInterrupt(), [], ["error: the launch was ended by an interrupt; jobs already submitted go on; "]),
        (
            RuntimeError("no\nresult\nlog"),
            ["E: x"],
            ["ended by no result; jobs already submitted", "; 1 job(s) failed"],
        ),
    ],
)
def test_the_end_of_a_launch_is_one_sentence(tmp_path, capsys, error, failed, words):
    for number, sentence in enumerate(failed):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "failed.txt").write_text(f"{sentence}\n")
    with pytest.raises(SystemExit) as end:
        Launch("submitit_slurm", tmp_path).finish(error)
    assert end.value.code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert all(word in said for word in words)
    assert said.endswith(f"the same command runs what is missing; logs: {tmp_path / 'logs'}.\n")


def test_a_launch_ends_with_the_jobs_whose_machine_was_busy(tmp_path, capsys):
    launch = Launch("submitit_slurm", tmp_path)
    launch.finish()
    assert len(capsys.readouterr().err.splitlines()) == 1
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "busy.txt").write_text(f"busy as job {number}\n")
    launch.finish()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("2 job(s)")
    assert last.endswith("busy as job 0")


def test_a_check_that_breaks_ends_the_sweep(tmp_path, pairs, monkeypatch, capsys):
    """Hydra makes a warning of what a callback raises, and would run what has not been checked."""

    def broken(*_):
        raise TypeError("broken check")

    monkeypatch.setattr(bench.runner.sweep, "resolve", broken)
    ended = run_bench(tmp_path, *arguments(tmp_path, pairs, TIMED))
    assert ended.status == 1
    assert "TypeError: broken check" in ended.error + capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
