"""Values beyond what the machine, the model or the method has a use for: one sentence and status 2, before any work."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest
from small_cells import MODEL, a_cell, run_bench, small
from transformers import BertConfig

import bench.runner.sweep
import bench.workloads
from bench.errors import ConfigError
from bench.runner.results import Results

PREDICT = [f"model.{name}={value}" for name, value in MODEL.items()] + ["sequence_length=32", "device=h100"]
SIZES = {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 500}
BERT = BertConfig(**SIZES, num_hidden_layers=1, max_position_embeddings=64).to_dict()


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    """A mistake must be found before the first job, or the first prediction."""

    def started(*_, **__):
        pytest.fail("work has started")

    monkeypatch.setattr(bench.runner.sweep, "run_job", started)
    monkeypatch.setattr("bench.commands.predict.command.answer_to", started)
    monkeypatch.setattr(bench.workloads, "_opened", {})


def assert_refused(ended, folder, field, given):
    assert (ended.status, ended.output) == (2, "")
    assert ended.error.startswith("error: ")
    assert ended.error.count("\n") == 1
    assert field in ended.error
    assert given in ended.error
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "field", "given"),
    [
        ("method=galore settings.galore.rank=100000", "galore.rank", "100000"),
        ("method=lora settings.lora.rank=2000", "lora.rank", "2000"),
        ("method=low_rank settings.low_rank.embedding_rank=2000", "low_rank.embedding_rank", "2000"),
        ("method=comera settings.comera.table_ranks=100000", "comera.table_ranks", "100000"),
        ("method=dense batch_size=9223372036854775807", "batch_size", "9223372036854775807"),
        ("method=dense model.layers=1000000000", "model.layers", "1000000000"),
        ("method=dense workload=lookup table.rows=1000000000000", "table.rows", "1000000000000"),
        ("method=lora ratio=10", "ratio", "10"),
        (f"shapes={'9' * 5000}x1x1", "shape", "999"),
    ],
)
def test_predictions(tmp_path, pairs, arguments, field, given):
    words = arguments.split()
    usual = [] if "shapes" in arguments else [*PREDICT, f"data_folder={pairs}"]
    if "workload" in arguments:
        usual = ["device=h100"]
    ended = run_bench(tmp_path, "predict", *usual, *words)
    assert_refused(ended, tmp_path, field, given)


@pytest.mark.parametrize(
    ("arguments", "field", "given"),
    [
        ("timing.launches=1000000000000", "timing.launches", "1000000000000"),
        ("timing.block_seconds=1e300", "timing.block_seconds", "1e+300"),
        ("world_size=1000000000", "world_size", "1000000000"),
        ("batch_size=2,2", "batch_size", "2"),
        ("batch_size=range(1,0)", "batch_size", "range(1,0)"),
        ("ratio=10 methods=[dense,lora]", "ratio", "10"),
        ("results=/", "results", "/"),
        ("results='~nobody-of-this-name/x'", "results", "nobody-of-this-name"),
    ],
)
def test_sweeps(tmp_path, pairs, arguments, field, given):
    words = ["experiment=fig1", *small(pairs, tmp_path / "results"), *arguments.split()]
    assert_refused(run_bench(tmp_path, *words), tmp_path, field, given)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ("experiment=fig1 experiment=fig1_memory", "experiment"),
        ("experiment=fig1 +batch_size=2 batch_size=2", "batch_size"),
        ("predict method=dense batch_size=2 batch_size=4", "batch_size"),
    ],
)
def test_a_setting_given_twice(tmp_path, arguments, field):
    assert_refused(run_bench(tmp_path, *arguments.split(), as_given=True), tmp_path, field, field)


@pytest.mark.parametrize(
    ("content", "field", "words"),
    [
        (json.dumps({**BERT, "num_hidden_layers": 0}), "num_hidden_layers", []),
        (json.dumps({**BERT, "vocab_size": 10**12}), "vocab_size", []),
        (json.dumps(BERT).replace('"hidden_size": 48', '"hidden_size": 48, "hidden_size": 64'), "hidden_size", []),
        (json.dumps(BERT), "batch_size", ["batch_size=100000000000"]),
    ],
)
def test_models(tmp_path, tmp_path_factory, content, field, words):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(content)
    ended = run_bench(tmp_path, "predict", "method=dense", f"model={path}", "sequence_length=16", "device=h100", *words)
    assert_refused(ended, tmp_path, field, field)


@pytest.mark.parametrize("given", ["100000", "0", "many"])
def test_threads(tmp_path, monkeypatch, given):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert_refused(run_bench(tmp_path, "experiment=fig1"), tmp_path, "OMP_NUM_THREADS", given)


def test_a_batch_fits_into_memory_or_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.runner.resolve.free_memory_mib", lambda _: 64.0)
    words = ["experiment=widths_linear", "methods=[dense]", "device=cpu", f"results={tmp_path / 'results'}"]
    ended = run_bench(tmp_path, *words, "linear.in_features=1024", "linear.out_features=4", "batch_size=8193")
    assert_refused(ended, tmp_path, "batch_size", "8,192")


LOCK = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if len(sys.argv) > 2 else 0))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_cell_is_claimed_by_one_process(tmp_path):
    """A claim keeps other processes away, another's keeps this one away, and a killed one leaves none."""
    cells = [a_cell(batch_size=2), a_cell(batch_size=4)]
    results = Results(tmp_path, reuse="exact")
    results.claim(cells, "hash")
    [file] = [path for path in (tmp_path / ".claims").rglob("*") if path.is_file()]
    tried = subprocess.run(
        [sys.executable, "-c", LOCK, str(file), "now"], check=False, capture_output=True, stdin=subprocess.DEVNULL
    )
    assert b"BlockingIOError" in tried.stderr

    elsewhere = Path(tmp_path / "other")
    Results(elsewhere, reuse="exact").claim(cells[:1], "hash")
    [file] = [path for path in (elsewhere / ".claims").rglob("*") if path.is_file()]
    with file.open("r+b") as own:  # closing it gives up what this process has claimed in it
        fcntl.lockf(own, fcntl.LOCK_UN)
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match="results") as error:
        Results(elsewhere, reuse="exact").claim(cells[1:], "hash")
    assert str(elsewhere) in str(error.value)
    holder.kill()
    holder.communicate()
    Results(elsewhere, reuse="exact").claim(cells, "hash")
