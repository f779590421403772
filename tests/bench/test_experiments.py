"""What an experiment measures on each kind of device."""

from __future__ import annotations

import itertools

import pytest
import torch
from small_cells import run_bench

import bench.sweep


@pytest.fixture
def swept(monkeypatch, tmp_path, pairs):
    """A function from an experiment, its arguments and whether there is a CUDA device to the jobs of the sweep."""

    def jobs(experiment, *arguments, cuda=False):
        found = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(bench.sweep.Results, "check", lambda *_: None)  # it would ask the device for its name
        monkeypatch.setattr(bench.sweep, "run_job", lambda job, *_: found.append(job.cells))
        ended = run_bench(tmp_path, f"experiment={experiment}", f"data_folder={pairs}", *arguments)
        assert (ended.status, ended.output) == (0, "")
        return found

    return jobs


OFF, ON, BOTH = (False,), (True,), (False, True)


@pytest.mark.parametrize(
    ("cuda", "arguments", "graphs", "compiled", "batches", "precision"),
    [
        (False, (), OFF, BOTH, (1, 8, 16), "fp32"),
        (True, (), BOTH, OFF, (32, 64, 128), "fp32"),
        (True, ("device=cpu",), OFF, BOTH, (1, 8, 16), "fp32"),
        (True, ("compile=true",), BOTH, ON, (32, 64, 128), "fp32"),
        (True, ("precision=bf16", "batch_size=32"), BOTH, OFF, (32,), "bf16"),
        (False, ("precision=bf16", "compile=false", "batch_size=8"), OFF, OFF, (8,), "bf16"),
    ],
)
def test_fig7_times_both_arms_with_each_toggle_the_device_has(
    swept, cuda, arguments, graphs, compiled, batches, precision
):
    jobs = swept("fig7", *arguments, cuda=cuda)
    wanted = itertools.product(graphs, compiled, batches)
    assert [(one.cuda_graph, one.compile, one.batch_size) for one, _ in jobs] == list(wanted)
    for cells in jobs:
        assert [cell.arm for cell in cells] == ["comera", "dense"]
        assert len({(cell.cuda_graph, cell.compile, cell.batch_size) for cell in cells}) == 1
        for cell in cells:
            assert (cell.experiment, cell.measure, cell.workload) == ("fig7", "run", "encoder")
            assert (cell.precision, cell.sequence_length) == (precision, 128)
            assert cell.device == ("cuda" if cuda and "device=cpu" not in arguments else "cpu")
