"""The measure ``allocator_peak``: real steps, whose peak stands beside the prediction in one record."""

from pathlib import Path

import pytest
import torch
from small_cells import run_bench, small

from bench.core.record import read_all
from bench.measures.allocator_peak import cpu_peak
from bench.step.allocator import workspaces_mib

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
FLOAT = 4
SCALARS = 16  # bytes of the tensors that PyTorch makes of a number


def test_what_is_given_back_before_the_work_does_not_count():
    def prepare():
        big = torch.ones(100_000)
        del big
        kept = torch.ones(1000)
        return lambda: kept + 1

    assert cpu_peak(prepare) == pytest.approx(FLOAT * 2000, abs=SCALARS)


def test_what_the_work_gives_back_counts_at_its_peak():
    def prepare():
        kept = torch.ones(1000)

        def work():
            first = kept * 2
            del first
            second, third = kept + 1, kept + 2
            del second
            return third

        return work

    assert cpu_peak(prepare) == pytest.approx(FLOAT * 3000, abs=SCALARS)


@pytest.mark.slow
@pytest.mark.usefixtures("cell_processes")
def test_every_arm_is_run_and_agrees_with_its_prediction(tmp_path, pairs):
    # Wide enough that the few kilobytes of kernels' own buffers do not matter.
    wide = ["model.width=128", "model.feed_forward=512", "batch_size=16"]
    ranks = ["settings.lte.rank=8", "settings.comera.ranks=8", "settings.comera.table_ranks=8"]
    arguments = ["experiment=prediction", *small(pairs, tmp_path / "results"), *wide, *ranks]
    ended = run_bench(tmp_path, *arguments)
    assert ended.status == 0, ended.error
    records = read_all(tmp_path / "results")
    assert len({record.arm for record in records}) == 8
    for record in records:
        assert (record.status, record.measure, record.predicted_for) == ("ok", "allocator_peak", "cpu"), record.message
        assert record.peak_memory_allocated_mib == pytest.approx(record.peak_memory_predicted_mib, rel=0.02), record.arm
        assert record.step_time_median_ms is None
    assert "8/8 cells" in run_bench(tmp_path, *arguments).error
    assert read_all(tmp_path / "results") == records


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.cuda
@pytest.mark.usefixtures("cell_processes")
def test_on_a_gpu_the_allocator_s_statistic_is_recorded(tmp_path, pairs):
    ended = run_bench(tmp_path, "experiment=prediction", *small(pairs, tmp_path / "results"), "device=cuda")
    assert ended.status == 0, ended.error
    for record in read_all(tmp_path / "results"):
        if record.status == "ok":
            assert record.predicted_for == "cuda"
            assert record.peak_memory_allocated_mib > 0


def test_a_captured_step_keeps_workspaces_for_a_second_stream() -> None:
    """Peaks of reference records with CUDA Graph and without differ by what the second stream takes."""
    records = [one for one in read_all(REFERENCE, "fig7") if one.workspaces_mib and one.status == "ok"]
    peaks = {(one.arm, one.batch_size, one.cuda_graph): one.peak_memory_allocated_mib for one in records}
    pairs = [(peaks[arm, batch, True], peaks[arm, batch, False]) for arm, batch, graph in peaks if graph]
    taken = 64 * 2**20
    second = workspaces_mib(taken, captured=True) - workspaces_mib(taken, captured=False)
    assert pairs
    for captured, plain in pairs:
        assert captured - plain == pytest.approx(second, rel=0.05)
