"""Campaigns of real cells: training that stops in time and goes on, and processes that can use a device."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from small_campaigns import small_stage
from small_cells import ROOT, TRAINED, a_training_cell, environment, run_bench

import bench.campaign.stages
from bench.campaign.archive import CHECKPOINTS, RECORDS, checkpoints_in
from bench.core.record import read_all
from bench.measures import named
from bench.measures.train import train_cell
from bench.processes.process import CellFailure, CellProcess, Outcome
from bench.protocol import Data
from bench.runner.results import Results
from bench.training.run import Upkeep

pytestmark = pytest.mark.usefixtures("cell_processes")


def trained(cell, upkeep, pairs):
    """What becomes of a training run: its columns, or the failure."""
    process = CellProcess(train_cell, cell, Data("auto", str(pairs)), 600.0, upkeep)
    try:
        while "columns" not in (answer := process.answer()):
            pass
    except CellFailure as failure:
        return failure
    finally:
        process.stop()
    return answer["columns"]


@pytest.mark.slow
def test_a_run_that_is_told_to_stop_goes_on_as_if_it_had_not(tmp_path, pairs):
    cell = a_training_cell("comera", early=8, late=0)
    whole = trained(cell, Upkeep(tmp_path / "whole", "made up", "code"), pairs)
    stopped = trained(cell, Upkeep(tmp_path / "parts", "made up", "code", stop_after_s=0.0), pairs)
    assert isinstance(stopped, CellFailure)
    assert stopped.status == "timeout"
    assert "stopped after 1 of 8 steps, goes on from a checkpoint" in stopped.message
    again = trained(cell, Upkeep(tmp_path / "parts", "made up", "code"), pairs)
    names = ("train_loss", "train_steps", "metrics")
    assert {name: again[name] for name in names} == {name: whole[name] for name in names}


@pytest.mark.slow
def test_a_campaign_trains_on_where_the_last_one_stopped(tmp_path, pairs, monkeypatch):
    """The archive alone travels: records, diary and checkpoints."""
    words = [word for word in TRAINED if not word.startswith("dataset=")]
    stage = small_stage(
        "trained", pairs, words[0], *words[1:], "methods=[comera]", "training.targets=[]", "batch_size=40"
    )
    predicted = small_stage("predicted", pairs, "experiment=fig1_memory", "methods=[dense,lte]", "batch_size=2")
    monkeypatch.setattr(bench.campaign.stages, "STAGES", (predicted, stage))
    monkeypatch.setitem(vars(named("train")), "seconds", 0.0)
    monkeypatch.setattr("bench.campaign.run.TRAINING_STOPS_S", 1e6)  # at once
    first = run_bench(tmp_path, "campaign", "output=first", "device=cpu", "budget=5m")
    assert first.status == 0, first.error
    assert first.output.splitlines() == [
        "predicted: 2 ran, 0 done before, 0 left",
        "trained: 0 ran, 0 done before, 1 left",
        "call again: 1 cells left",
    ]
    assert {path.name for path in (tmp_path / "first").iterdir()} == {
        *(RECORDS, f"{CHECKPOINTS}.0", "campaign.json", "records"),
    }
    for path in [*(tmp_path / "first" / "records").rglob("*")]:
        if path.is_file():
            path.unlink()  # nothing but the archives comes back
    monkeypatch.setattr("bench.campaign.run.TRAINING_STOPS_S", 0.0)
    archive = tmp_path / "first" / RECORDS
    second = run_bench(tmp_path, "campaign", "output=second", "device=cpu", "budget=5m", f"records={archive}")
    assert second.output.splitlines() == [
        "predicted: 0 ran, 2 done before, 0 left",
        "trained: 1 ran, 0 done before, 0 left",
        "everything is done",
    ]
    [run] = [record for record in read_all(tmp_path / "second" / "records") if record.measure == "train"]
    assert (run.status, run.train_steps) == ("ok", 20)
    assert run.samples["curve"][0]["step"] == 6
    assert checkpoints_in(tmp_path / "second" / "records") != []
    assert not (tmp_path / "second" / f"{CHECKPOINTS}.0").exists()  # nothing would go on from it
    report = json.loads((tmp_path / "second" / "campaign.json").read_text())
    assert [stage["left"] for stage in report["stages"]] == [0, 0]


def test_an_outcome_of_no_use_is_tried_again(tmp_path):
    cell = a_training_cell()
    results = Results(tmp_path, "config")
    results.record([Outcome(cell, "timeout", "stopped after 1 of 15 steps")], "d", Data("synthetic"))
    assert not results.is_done(cell, "d")


ASKING = """
import torch

asked = []
torch.cuda.is_available = lambda: asked.append("is_available") or True
torch.cuda.device_count = lambda: asked.append("device_count") or 1
torch.cuda.get_device_capability = lambda *_: asked.append("get_device_capability") or (9, 0)
import bench.processes.preload
print(list(asked), torch.cuda.is_available())
"""


@pytest.mark.slow
def test_what_cells_processes_are_forked_from_leaves_the_device_alone(tmp_path):
    """Else none of them could use it."""
    done = subprocess.run(
        [sys.executable, "-c", ASKING],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "[] True\n", done.stderr
