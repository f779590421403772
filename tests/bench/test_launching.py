"""Sweeps whose jobs are processes of their own, through submitit's local executor: the same records, none lost."""

import pytest
from hydra import compose
from interrupted import sweep as run_sweep
from omegaconf import OmegaConf

from bench.core.record import read_all
from bench.runner.configuration import configuration
from bench.runner.launching import Launch

pytestmark = pytest.mark.usefixtures("cell_processes")

LOCAL = "hydra/launcher=submitit_local"
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


def composed(*overrides):
    """The parameters of a launcher, as it would get them."""
    with configuration():
        config = compose("config", [f"hydra/launcher={overrides[0]}", *overrides[1:]], return_hydra_config=True)
        return OmegaConf.to_container(config.hydra.launcher, resolve=True)


@pytest.mark.parametrize(
    ("overrides", "gpus"),
    [
        (("experiment=fig1", "device=cuda"), 1),
        (("experiment=fig1", "device=cpu"), None),
        (("experiment=fig1", "measure=predict"), None),
        (("experiment=accuracy", "device=cuda"), 1),
    ],
)
def test_a_job_asks_for_one_gpu_where_it_needs_one(overrides, gpus):
    parameters = composed("submitit_slurm", *overrides)
    assert parameters["gpus_per_node"] == gpus
    assert (parameters["nodes"], parameters["tasks_per_node"]) == (1, 1)
    assert parameters["submitit_folder"].startswith("results/local/.hydra/sweeps/20")
    assert parameters["submitit_folder"].endswith("/logs/%j")


@pytest.mark.parametrize(
    ("error", "failed", "words"),
    [
        (None, ["ValueError: wrong.", "ValueError: too."], ["error: 2 job(s) failed, one of them with: ValueError: w"]),
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
