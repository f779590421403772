"""Sweeps over whole-model ratios: which cells the experiments have, and what becomes of a ratio out of reach."""

from collections.abc import Iterator

import hydra
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from omegaconf import open_dict

import bench.runner.sweep
from bench.errors import CONF
from bench.runner.resolve import Job, resolve

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
