"""Sweeps over whole-model ratios: which cells the experiments have, and what becomes of a ratio out of reach."""

from __future__ import annotations

from collections.abc import Iterator

import hydra
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from omegaconf import open_dict
from small_cells import run_bench, small

import bench.runner.sweep
from bench.core.record import read_all
from bench.errors import CONF
from bench.runner.resolve import Job, resolve
from figures.records.missing import limit_of

TIMED = "1.5,2,4,8,16,32,64,100"


@pytest.fixture(params=["cpu", "cuda"])
def device(request, monkeypatch) -> Iterator[str]:
    """The device that this machine is made to have, with the configuration ready to be composed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param == "cuda")
    GlobalHydra.instance().clear()
    bench.runner.sweep.register_resolvers()
    bench.runner.sweep.register_settings()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        yield request.param


def composed(pairs, *arguments: str) -> tuple[dict[str, str], Job]:
    """The axes of an experiment's sweep, and the job of one point of it."""
    overrides = [*arguments, "dataset=auto", f"data_folder={pairs}"]
    config = hydra.compose("config", overrides, return_hydra_config=True)
    axes = {str(name): str(values) for name, values in config.hydra.sweeper.params.items()}
    with open_dict(config):
        del config["hydra"]
    return axes, resolve(bench.runner.sweep.plain(config))


def test_times_are_asked_for_at_every_ratio_beside_dense(device, pairs):
    axes, job = composed(pairs, "experiment=ratios", "ratio=100", "batch_size=8")
    assert axes == {"ratio": TIMED, "batch_size": {"cpu": "8", "cuda": "1,32,64,128"}[device]}
    found = {cell.arm: (cell.ratio, cell.method_settings.get("ratio")) for cell in job.cells}
    assert found == {
        "comera": (100, 100),
        "low_rank@size": (100, 100),
        "low_rank@rank": (100, None),
        "dense": (100, None),
    }
    for cell in job.cells:
        assert (cell.measure, cell.device, cell.workload_settings["layers"]) == ("run", device, 6)


def test_memory_is_predicted_for_cuda_anywhere(device, pairs):  # noqa: ARG001 - whichever there is
    axes, job = composed(pairs, "experiment=ratios_memory", "ratio=2", "batch_size=32")
    assert axes == {"ratio": TIMED, "batch_size": "32,128"}
    found = {cell.arm: (cell.measure, cell.device, cell.ratio) for cell in job.cells}
    assert found == {
        arm: ("predict", "cuda", ratio)
        for arm, ratio in (("comera", 2), ("low_rank@size", 2), ("low_rank@rank", 2), ("dense", None))
    }


@pytest.mark.parametrize(
    ("name", "ratios", "seeds", "layers"),
    [
        ("ratios_accuracy", "2,8,32,100", {"cpu": "0", "cuda": "0,1,2"}, 6),
        ("ratios_accuracy_small", "1.5,2,4,8,16", {"cpu": "0", "cuda": "0"}, 2),
    ],
)
def test_accuracy_is_asked_for_after_equal_training(device, pairs, name, ratios, seeds, layers):
    axes, job = composed(pairs, f"experiment={name}", "ratio=2", "seed=0")
    assert axes == {"ratio": ratios, "seed": seeds[device]}
    assert {cell.arm: cell.ratio for cell in job.cells} == {"comera": 2, "low_rank@size": 2, "dense": None}
    assert len({str(cell.training["stages"]) for cell in job.cells}) == 1
    for cell in job.cells:
        assert [stage["name"] for stage in cell.training["stages"]] == ["early"]
        assert (cell.measure, cell.workload_settings["layers"]) == ("train", layers)


def test_axes_and_settings_can_be_replaced(tmp_path, pairs, monkeypatch):
    cells = []
    monkeypatch.setattr(bench.runner.sweep, "run_job", lambda job, *_: cells.extend(job.cells))
    arguments = ("experiment=ratios", *small(pairs, tmp_path / "results"), "ratio=2,20", "precision=bf16")
    ended = run_bench(tmp_path, *arguments)
    assert (ended.status, ended.output) == (0, ""), ended.error
    found = [(cell.arm, cell.ratio, cell.precision) for cell in cells]
    assert found == [
        (arm, ratio, "bf16") for ratio in (2, 20) for arm in ("comera", "low_rank@size", "low_rank@rank", "dense")
    ]


def test_a_ratio_that_is_none_is_one_sentence(tmp_path, pairs):
    ended = run_bench(tmp_path, "experiment=ratios", *small(pairs, tmp_path / "results"), "ratio=2,0.5")
    assert (ended.status, ended.error.count("\n")) == (2, 1)
    assert "ratio is 0.5; allowed: numbers from 1" in ended.error
    assert read_all(tmp_path / "results") == []


@pytest.mark.usefixtures("cell_processes")
def test_a_ratio_out_of_reach_is_recorded_with_the_largest_within(tmp_path, pairs, monkeypatch):
    monkeypatch.setattr(
        bench.runner.sweep, "outcomes_of", lambda _, cells, __: pytest.fail(f"{cells} were to be measured")
    )
    arguments = ("methods=[comera,low_rank]", "ratio=1000")
    ended = run_bench(tmp_path, "experiment=ratios", *small(pairs, tmp_path / "results"), *arguments)
    assert ended.status == 0
    records = read_all(tmp_path / "results", "ratios")
    assert {record.arm: record.status for record in records} == {
        "comera": "unsupported",
        "low_rank@size": "unsupported",
    }
    for record in records:
        reach = limit_of(record.message)
        assert reach is not None, record.message
        assert (record.ratio, reach.side, 1 < reach.ratio < 1000) == (1000, "most", True)
