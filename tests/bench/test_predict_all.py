"""``python -m bench predict model=PATH``: every arm and batch as its own prediction says, and the page of them."""

import json
import os
import shlex

import pytest
from small_cells import run_bench
from test_predict_command import number
from test_predict_hugging_face import small

import bench.commands.predict.model
from bench.errors import ConfigError
from bench.estimate.devices import GPUS
from bench.processes.process import each
from bench.protocol import CellFailure


@pytest.fixture(autouse=True)
def small_search(monkeypatch):
    """A search that ends soon: what is tested here is not how it goes."""
    monkeypatch.setattr("bench.estimate.any_batch.LIMIT", 64)


def answered(word: str) -> str:
    """What a process makes of a word."""
    if word == "dies":
        os._exit(1)
    if word == "fails":
        raise RuntimeError("no such word")
    if word == "mistaken":
        raise ConfigError("the word is wrong.")
    return word.upper()


@pytest.mark.slow
@pytest.mark.usefixtures("cell_processes")
def test_a_process_that_ends_or_fails_takes_no_other_with_it():
    words = ("dies", "one", "fails", "two")
    found = dict(each(answered, {word: (word,) for word in words}, parallel=2))
    assert (found["one"], found["two"]) == ("ONE", "TWO")
    assert isinstance(found["dies"], CellFailure)
    assert str(found["dies"]) == "the process ended unexpectedly (exit code 1)"
    assert str(found["fails"]) == "RuntimeError: no such word"
    with pytest.raises(ConfigError, match="the word is wrong"):
        list(each(answered, {"mistaken": ("mistaken",), "one": ("one",)}, parallel=2))


@pytest.mark.slow
def test_arms_and_batches_are_those_of_single_predictions(tmp_path, tmp_path_factory, monkeypatch):
    path = small(tmp_path_factory.mktemp("model"), "bert")
    monkeypatch.setattr(bench.commands.predict.model, "arms", lambda: ["comera", "dense", "galore"])
    monkeypatch.setattr(bench.commands.predict.model, "BATCHES", (4,))
    ended = run_bench(tmp_path, "predict", f"model={path}", "sequence_length=32")
    assert ended.status == 0, ended.error
    folder = tmp_path / "figures" / "rendered" / "local"
    assert {file.name for file in folder.iterdir()} == {"explorer.html", "predictions.json"}
    content = json.loads((folder / "predictions.json").read_text())
    points = content["points"]
    found = {(point["arm"], point["batch_size"], point["device"]) for point in points}
    assert len(found) == len(points) == 2 * len(GPUS)  # arms
    assert [note for note in content["notes"] if note.startswith("galore is left out: galore.rank is 128")]
    assert {(one["arm"], one["words"]) for one in content["largest"]} == {
        ("comera", "65,536 at least"),
        ("dense", "65,536 at least"),
    }
    point = next(point for point in points if point["arm"] == "comera" and "H100" in point["device"])
    alone = run_bench(tmp_path, *shlex.split(point["command"])[3:])
    assert alone.status == 0, alone.error
    peak = point["peak_memory_predicted_mib"]
    assert number(alone.output, "peak memory, MiB") == pytest.approx(peak, abs=0.05)
    assert number(alone.output, "time of a step, ms: at least") == pytest.approx(point["least_time_ms"], abs=0.0005)
    page = (folder / "explorer.html").read_text(encoding="utf-8")
    assert "Your model: " in page
    assert "65,536 at least" in page
