"""The command line: a mistake is one sentence and exit status 2, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from small_cells import environment, run_bench, small

import bench.runner.sweep
import bench.workloads
from bench.errors import experiments
from bench.protocol.methods import available

METHODS, EXPERIMENTS = ", ".join(available()), ", ".join(experiments())


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    """A mistake must be found before the first job; and this machine has no CUDA device."""

    def job(*_):
        pytest.fail("the sweep has started")

    monkeypatch.setattr(bench.runner.sweep, "run_job", job)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(bench.workloads, "_opened", {})


def assert_one_sentence(status, output, error, words, folder):
    assert (status, output) == (2, "")
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert error.endswith("\n")
    assert "Traceback" not in error
    for word in words:
        assert word in error
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("experiment=fig1 methods=[sgd]", ["method is 'sgd'", METHODS]),
        ("experiment=fig1 methods=[comera,low_rank:odd]", ["'low_rank:odd'", "allowed: linear"]),
        ("experiment=fig1 methods=comera", ["methods is 'comera'", "list"]),
        ("experiment=fig99", ["experiment is 'fig99'", EXPERIMENTS]),
        ("experiment=fig1,fig1_memory", ["experiment is 'fig1,fig1_memory'", EXPERIMENTS]),
        ("experiment=", ["experiment is ''", EXPERIMENTS]),
        ("batch_size=2", ["experiment has no value", EXPERIMENTS]),
        ("run", ["experiment has no value", EXPERIMENTS]),
        ("walk", ["the first word is 'walk'", "run, search, reproduce, campaign, "]),
        ("walk experiment=fig1", ["the first word is 'walk'", "run, search, reproduce, campaign, "]),
        ("experiment=fig1 device=tpu", ["device is 'tpu'", "auto, cpu, cuda"]),
        ("experiment=fig1 device=cuda", ["device is 'cuda'", "no CUDA device", "auto, cpu"]),
        (
            "experiment=fig1 precision=fp7",
            [
                "precision is 'fp7'",
                "fp32, tf32, bf16, bf16_weights, fp8, fp8_row, fp8_delayed, fp8_split, fp8_filtered",
            ],
        ),
        ("experiment=fig1 batch_size=0", ["batch_size is 0", "from 1 up"]),
        ("experiment=fig1 batch_size=2,1000", ["batch_size is 1000", "1 to the 240 training rows"]),
        ("experiment=fig1_memory seed=18446744073709551616", ["seed is 18446744073709551616", "0 to 4,294,967,295"]),
        ("experiment=fig1 batch_size=-1", ["batch_size is -1", "from 1 up"]),
        ("experiment=fig1 batch_size=abc", ["batch_size is 'abc'", "from 1 up"]),
        ("experiment=fig1 batch_size=2,4,0", ["batch_size is 0", "from 1 up"]),
        ("experiment=fig1_memory batch_size=4,x", ["batch_size is 'x'", "from 1 up"]),
        ("experiment=fig1 batchsize=4", ["batchsize is no setting"]),
        ("experiment=fig1 batchsize=4,8", ["batchsize is no setting"]),
        ("experiment=fig1 model.depth=4", ["model.depth is no setting"]),
        ("experiment=fig1 +batchsize=4", ["batchsize is no setting", "batch_size"]),
        ("experiment=fig1 ~model", ["model has no value"]),
        ("experiment=fig1 model=4", ["model is 4"]),
        ("experiment=fig1 settings=4", ["settings is '4'", "settings.comera.ranks"]),
        ("experiment=fig1 settings.galore=4", ["settings.galore is 4"]),
        ("experiment=fig1 settings.galore.rank=x", ["settings.galore.rank is 'x'", "int"]),
        ("experiment=fig1 settings.sgd.rate=1", ["settings.sgd.rate is no setting"]),
        ("experiment=fig1 batch_size=[2", ["'batch_size=[2' cannot be read"]),
        ("experiment=fig1 =4", ["'=4' names no setting"]),
        ("experiment=fig1 --batch_size 4", ["--batch_size is no option", "key=value"]),
        ("experiment=fig1 seed=${sed}", ["sed"]),
        ("experiment=fig1 data_folder=/no/such/folder", ["data_folder is /no/such/folder", "train.jsonl"]),
        ("experiment=fig1 dataset=mnli data_folder=null", ["dataset is 'mnli'", "data_folder is not set"]),
        ("experiment=accuracy_small dataset=auto device=cuda", ["device is 'cuda'", "no CUDA device", "auto, cpu"]),
        ("experiment=accuracy_small dataset=auto training.targets=[1.5]", ["targets is [1.5]", "at most 1"]),
        ("experiment=accuracy_small dataset=auto training.early_step=9", ["training.early_step is no setting"]),
        (
            "experiment=accuracy_small dataset=auto training.late_steps=100 settings.comera.lr_ranks=0.004",
            ["lr_ranks is 0.004 and the late stage has 100 steps", "at least 2"],
        ),
        ("experiment=fig1 hydra/launcher=submitit_slurm device=auto", ["device is 'auto'", "allowed then: cpu, cuda"]),
        ("experiment=fig1 hydra/launcher=submitit_local device=cuda", ["device is 'cuda'", "no CUDA device"]),
        ("experiment=fig1 hydra/launcher=submitit_local batch_size=2,0", ["batch_size is 0", "from 1 up"]),
        ("experiment=fig1 hydra/launcher=submitit", ["hydra/launcher/submitit", "basic submitit_local submitit_slurm"]),
        (
            "experiment=fig1 hydra/launcher=submitit_slurm hydra.launcher.timeout_min=x batch_size=2,4",
            ["hydra.launcher.timeout_min=x cannot be used", "Value 'x'"],
        ),
        ("experiment=fig1 results=/dev/null/records", ["results is '/dev/null/records'", "name another"]),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, pairs, arguments, words):
    first, *others = arguments.split()
    settings = small(pairs, tmp_path / "results") if others else []
    ended = run_bench(tmp_path, first, *settings, *others)
    assert_one_sentence(ended.status, ended.output, ended.error, words, tmp_path)


def test_a_named_folder_of_data_that_is_not_there(tmp_path, pairs, monkeypatch):
    monkeypatch.setenv("COMERA_DATA", "/no/such/folder")
    ended = run_bench(tmp_path, "experiment=fig1", *small(pairs, tmp_path / "results"), "data_folder=null")
    words = ["COMERA_DATA is /no/such/folder", "not a folder"]
    assert_one_sentence(ended.status, ended.output, ended.error, words, tmp_path)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"premise": "a", "hypothesis": "b"}', "the key 'label' is missing"),
        ('{"premise": "a", "hypothesis": "b", "label": "maybe"}', "label is 'maybe'; allowed: entailment, neutral"),
        ("premise, hypothesis, label", "the row is not JSON"),
        ("[" * 100_000, "the row is not JSON"),
    ],
)
@pytest.mark.parametrize("named_by", ["COMERA_DATA", "data_folder"])
def test_a_malformed_row_is_named_with_its_file_and_line(
    tmp_path, tmp_path_factory, pairs, monkeypatch, row, reason, named_by
):
    data = tmp_path_factory.mktemp("malformed")
    folder = data / "mnli_12k"
    folder.mkdir()
    (folder / "dev_matched.jsonl").write_text((pairs / "dev_matched.jsonl").read_text())
    rows = (pairs / "train.jsonl").read_text().splitlines()
    (folder / "train.jsonl").write_text("\n".join([*rows[:9], row, *rows[9:]]))
    monkeypatch.setenv("COMERA_DATA", str(data))
    where = "null" if named_by == "COMERA_DATA" else folder
    ended = run_bench(tmp_path, "experiment=fig1", *small(pairs, tmp_path / "results"), f"data_folder={where}")
    words = [f"{folder / 'train.jsonl'}, line 10: {reason}"]
    assert_one_sentence(ended.status, ended.output, ended.error, words, tmp_path)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("run", "--help"), ("experiment=fig1", "--help")])
def test_help_names_experiments_and_methods(tmp_path, arguments):
    ended = run_bench(tmp_path, *arguments)
    assert (ended.status, ended.error) == (0, "")
    assert ended.output.startswith("usage: python -m bench")
    assert f"experiments: {EXPERIMENTS}\n" in ended.output
    assert f"methods:     {METHODS}\n" in ended.output
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_ends_a_process_with_status_2(tmp_path):
    command = [sys.executable, "-m", "bench", "experiment=fig1", "methods=[sgd]"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(COMERA_DATA="/no/such/folder"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert_one_sentence(done.returncode, done.stdout, done.stderr, ["method is 'sgd'", METHODS], tmp_path)


def test_a_place_that_cannot_hold_results_is_refused_before_the_heavy_imports(tmp_path):
    code = """if True:
        import sys
        import bench.__main__
        try:
            bench.__main__.main()
        finally:
            assert "torch" not in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", code, "experiment=fig1", "results=/proc/nowhere"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    words = ["results is '/proc/nowhere'", "name another folder"]
    assert_one_sentence(done.returncode, done.stdout, done.stderr, words, tmp_path)
