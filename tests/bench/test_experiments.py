"""Experiments on each kind of device: the axes of a sweep, and the cells of one point of it."""

import hydra
import pytest
import torch
from omegaconf import open_dict

from bench.runner.configuration import configuration, plain
from bench.runner.resolve import Job, resolve


def composed(experiment: str, *words: str) -> tuple[dict[str, str], Job]:
    """The axes of an experiment's sweep, and the job of one point of it."""
    with configuration():
        config = hydra.compose("config", [f"experiment={experiment}", *words], return_hydra_config=True)
        axes = {str(name): str(values) for name, values in config.hydra.sweeper.params.items()}
        with open_dict(config):
            del config["hydra"]
        return axes, resolve(plain(config))


#: By experiment and device, the axes, one point, and its cells: arm, ratio, own ratio, CUDA graph, compiled.
SIZE = pytest.approx(66_957_315 / (1_026_528 + 4_362 + 459_267), rel=1e-5)  # of dense over CoMERA's, by the paper
FIG7 = [("comera", None, None), ("low_rank@size", SIZE, SIZE), ("low_rank@rank", None, None), ("dense", None, None)]
RATIOS = [("comera", 100, 100), ("low_rank@size", 100, 100), ("low_rank@rank", 100, None), ("dense", 100, None)]
CASES = {
    ("fig7", "cpu"): (
        {"toggles": "[{},{compile:true}]", "batch_size": "1,8,16"},
        ("toggles=[{},{compile:true}]", "batch_size=8"),
        [(*arm, False, compiled) for compiled in (False, True) for arm in FIG7],
    ),
    ("fig7", "cuda"): (
        {"toggles": "[{},{cuda_graph:true}]", "batch_size": "32,64,128"},
        ("toggles=[{},{cuda_graph:true}]", "batch_size=32", "precision=bf16"),
        [(*arm, captured, False) for captured in (False, True) for arm in FIG7],
    ),
    ("ratios", "cpu"): (
        {"ratio": "1.5,2,4,8,16,32,64,100", "batch_size": "8"},
        ("ratio=100", "batch_size=8"),
        [(*arm, False, False) for arm in RATIOS],
    ),
    ("ratios", "cuda"): (
        {"ratio": "1.5,2,4,8,16,32,64,100", "batch_size": "1,32,64,128"},
        ("ratio=100", "batch_size=8"),
        [(*arm, False, False) for arm in RATIOS],
    ),
}


@pytest.mark.parametrize(("experiment", "device"), CASES)
def test_arms_are_timed_side_by_side_along_the_axes_of_the_device(experiment, device, pairs, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    wanted, point, arms = CASES[experiment, device]
    axes, job = composed(experiment, "dataset=auto", f"data_folder={pairs}", *point)
    assert axes == wanted
    found = [(c.arm, c.ratio, c.method_settings.get("ratio"), c.cuda_graph, c.compile) for c in job.cells]
    assert found == arms
    for cell in job.cells:
        assert (cell.experiment, cell.measure, cell.workload, cell.device) == (experiment, "run", "encoder", device)
        assert (cell.sequence_length, cell.workload_settings["layers"]) == (128, 6)
        assert cell.precision == ("bf16" if "precision=bf16" in point else "fp32")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("accuracy_small", "dataset=auto")])
def test_the_rank_entries_of_an_experiment_can_reach_zero_in_its_late_stages(words, pairs):
    _, job = composed(*words, f"data_folder={pairs}")
    assert any(stage["target"] for cell in job.cells for stage in cell.training["stages"])
