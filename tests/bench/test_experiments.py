"""What an experiment measures on each kind of device."""

import pytest
import torch
from small_cells import run_bench

import bench.runner.sweep


@pytest.fixture
def swept(monkeypatch, tmp_path, pairs):
    """A function from an experiment, its arguments and whether there is a CUDA device to the jobs of the sweep."""

    def jobs(experiment, *arguments, cuda=False):
        found = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        for name in ("check", "claim", "is_done"):  # they would ask the device for its name
            monkeypatch.setattr(bench.runner.sweep.Results, name, lambda *_: None)
        monkeypatch.setattr(bench.runner.sweep, "run_job", lambda job, *_: found.append(job.cells))
        ended = run_bench(tmp_path, f"experiment={experiment}", f"data_folder={pairs}", *arguments)
        assert (ended.status, ended.output) == (0, ""), ended.error
        return found

    return jobs


PLAIN, COMPILED, GRAPH = (False, False), (False, True), (True, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cuda", "arguments", "toggles", "batches", "precision"),
    [
        (False, (), (PLAIN, COMPILED), (1, 8, 16), "fp32"),
        (True, (), (PLAIN, GRAPH), (32, 64, 128), "fp32"),
        (True, ("precision=bf16", "batch_size=32"), (PLAIN, GRAPH), (32,), "bf16"),
    ],
)
def test_fig7_times_both_arms_with_each_toggle_side_by_side(swept, cuda, arguments, toggles, batches, precision):
    jobs = swept("fig7", *arguments, cuda=cuda)
    assert [cells[0].batch_size for cells in jobs] == list(batches)
    for cells in jobs:
        wanted = [(arm, *toggle) for toggle in toggles for arm in ("comera", "low_rank@size", "low_rank@rank", "dense")]
        assert [(cell.arm, cell.cuda_graph, cell.compile) for cell in cells] == wanted
        for cell in cells:
            assert (cell.experiment, cell.measure, cell.workload) == ("fig7", "run", "encoder")
            assert cell.sequence_length == 128
            assert cell.device == ("cuda" if cuda and "device=cpu" not in arguments else "cpu")
        assert cells[-1].precision == precision


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("accuracy_small", "dataset=auto"), ("formats_pruned",)])
def test_the_rank_entries_of_an_experiment_can_reach_zero_in_its_late_stages(swept, arguments):
    cells = [cell for job in swept(*arguments) for cell in job]
    assert any(stage["target"] for cell in cells for stage in cell.training["stages"])
