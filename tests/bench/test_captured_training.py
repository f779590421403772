"""A captured training run: its rates rise and fall, its ranks close, and it goes on from a checkpoint.

A stand-in for CUDA Graphs runs on the CPU; a run without capture is what it must equal.
"""

import dataclasses

import numpy as np
import pytest
import torch
from interrupted import Killed, kill_at
from recorded_graphs import RecordedGraphs
from small_cells import a_configuration

import bench.step.train_step
from bench.protocol import Data
from bench.runner.resolve import resolve
from bench.training.run import TrainingRun, Upkeep
from bench.workloads import open_workload
from bench.workloads.pointer.model import PointerSettings
from comera import ranks_of

MODEL = {"layers": 1, "width": 16, "heads": 2, "feed_forward": 32, "vocabulary": 90, "context": 12}
MODEL |= {"evaluated": 20, "probe_windows": 200, "tokens": "wordpiece"}
PLAN = {"steps": 24, "lr": 0.015625, "curve_steps": 8}
TWO_STAGES = {"prune_from": 0.5, "prune_targets": [0.5]}
SETTINGS = {
    "comera": {"late": "saliency", "ranks": 6, "order": 2, "recovery": 0.25, "lr_ranks": 0.0078125},
    "galore": {"rank": 4},
}
ARMS = {
    "dense, muon": ("dense", {"optimizer": "muon"}),
    "dense, adamw": ("dense", {"optimizer": "adamw"}),
    "comera, muon": ("comera", {"optimizer": "muon"}),
    "comera that closes ranks, muon": ("comera", {"optimizer": "muon", **TWO_STAGES}),
    "comera that closes ranks, adamw": ("comera", {"optimizer": "adamw", **TWO_STAGES}),
    "galore": ("galore", {"optimizer": "own", "lr": None}),
}


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A run of an arm, captured or not, and the stand-in that it is captured by."""
    monkeypatch.setenv("COMERA_CACHE", str(tmp_path / "cache"))
    source, text = np.random.default_rng(0), tmp_path / "text"
    text.mkdir()
    words = ["".join(source.choice([*"abcdefghijklm"], source.integers(1, 6))) for _ in range(40)]
    (text / "one.txt").write_text(" ".join(source.choice(words, 4000)))
    monkeypatch.setattr(bench.step.train_step, "toggles_unsupported", lambda *_: None)

    def make(name, captured, folder="run"):
        method, plan = ARMS[name]
        fields = {"workload": "pointer", "measure": "train", "methods": [method], "batch_size": 8, "settings": SETTINGS}
        config = a_configuration(text, **fields)
        config["pointer"] |= MODEL
        config["training"] |= PLAN | plan
        [cell] = resolve(config).cells
        graphs = RecordedGraphs()
        monkeypatch.setattr(bench.step.train_step, "CUDAGraphs", lambda: graphs)
        workload = open_workload("pointer", PointerSettings(**MODEL), Data(data_folder=str(text)), False)
        upkeep = Upkeep(tmp_path / folder, name, "c", checkpoint_steps=5)
        run = TrainingRun(dataclasses.replace(cell, cuda_graph=captured), workload, upkeep, lambda _: None)
        graphs.parameters = list(run.model.parameters())
        return run, graphs

    return make


def losses(run):
    return [[row["train_loss"], *row["metrics"].values()] for row in run.at.curve]


@pytest.mark.parametrize("name", ARMS)
def test_a_captured_run_trains_as_an_eager_one(start, name):
    runs = {captured: start(name, captured, f"{captured}")[0] for captured in (False, True)}
    for run in runs.values():
        run.run()
    eager, captured = runs.values()
    assert np.allclose(losses(captured), losses(eager), rtol=1e-3)
    assert ranks_of(captured.model) == ranks_of(eager.model)
    rates = [{float(group["lr"]) for group in run.step.optimizer.param_groups} for run in runs.values()]
    assert sorted(rates[0]) == pytest.approx(sorted(rates[1]), abs=1e-9)


@pytest.mark.parametrize(("name", "stages"), [("dense, muon", 1), ("comera that closes ranks, muon", 2)])
def test_the_graph_is_taken_again_where_the_objective_or_shapes_change(start, name, stages):
    run, graphs = start(name, True)
    before = ranks_of(run.model)
    run.run()
    assert (ranks_of(run.model) != before) == (stages == 2)
    captures = graphs.log.count("capture")
    assert captures >= stages
    assert graphs.log.count("warm up") >= 3 * captures
    assert graphs.log.count("warm up") + graphs.log.count("replay") == PLAN["steps"]


@pytest.mark.parametrize(("name", "call"), [("dense, adamw", 9), ("comera that closes ranks, muon", 19)])
def test_a_captured_run_goes_on_from_its_checkpoint(start, monkeypatch, name, call):
    whole, _ = start(name, True, "whole")
    whole.run()
    killed, _ = start(name, True)
    with monkeypatch.context() as patch:
        kill_at(patch, killed, "_next_batch", call)
        with pytest.raises(Killed):
            killed.run()
    again, _ = start(name, True)
    assert 0 < again.at.step < call
    again.run()
    assert losses(again) == losses(whole)
    for one, other in zip(again.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)
