"""The experiment ``tensorization``: its cells, and that each matrix is solved for the published setting's own ratio."""

import json

import pytest
import torch
from small_cells import TIMING, run_bench

import bench.runner.sweep
from bench.commands.reproduce import targets
from bench.core.record import read_all
from bench.measures.shapes import tensorized_shapes
from bench.protocol import Data
from bench.protocol.methods import build
from bench.workloads import open_cell_workload
from comera import TTLinear, TTMEmbedding

#: Of the paper's six-encoder model: the layer, and the published count of its cores.
PUBLISHED = {
    "attention": (TTLinear(768, 768, (12, 8, 8), (8, 8, 12), (12, 30, 30, 30, 12)), 20_448),
    "feed_forward_1": (TTLinear(768, 3072, (12, 8, 8), (12, 16, 16), (12, 30, 30, 30, 16)), 28_960),
    "feed_forward_2": (TTLinear(3072, 768, (16, 16, 12), (8, 8, 12), (16, 30, 30, 30, 12)), 28_960),
    "word_embedding": (TTMEmbedding(30522, 768, (16, 20, 10, 10), (4, 4, 8, 6), (32, 32, 32)), 167_808),
}


def dense_count(layer):
    """Parameters of the dense layer, its bias included."""
    bias = getattr(layer, "bias", None)
    return layer.dense_count() + (0 if bias is None else bias.numel())


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """The jobs of the target, by matrix; nothing is measured."""
    found = []
    monkeypatch.setattr(bench.runner.sweep, "run_job", lambda job, *_: found.append(job))
    for words in targets()["reproduce-table-tensorization"].runs:
        ended = run_bench(tmp_path, *words.split(), "device=cpu")
        assert (ended.status, ended.output) == (0, "")
    return dict(zip(PUBLISHED, found, strict=True))


def test_a_matrix_asks_for_the_published_setting_s_own_ratio(jobs):
    for name, (layer, count) in PUBLISHED.items():
        assert layer.shape.parameter_count == count
        solved = round(dense_count(layer) / layer.parameter_count(), 3)
        found = [(cell.method, cell.ratio) for cell in jobs[name].cells]
        assert found == [("dense", None), ("comera", None), ("comera", solved)]


def test_the_arms_are_the_published_layer_and_one_of_about_its_size(jobs):
    for name, job in jobs.items():
        layer, _ = PUBLISHED[name]
        counts = []
        for cell in job.cells:
            assert bench.runner.sweep.cell_unsupported(cell, Data()) is None
            workload = open_cell_workload(cell, Data())
            with torch.device("meta"):
                method = build(cell.method, cell.variant, cell.method_settings)
                model = method.adapt(workload.build(), workload.targets())
            counts.append(sum(parameter.numel() for parameter in model.parameters()))
            if (cell.method, cell.ratio) == ("comera", None):
                assert [module.shape for module in model.children()] == [layer.shape]
            assert len(tensorized_shapes(model)) == (cell.method == "comera")
        assert counts[:2] == [dense_count(layer), layer.parameter_count()]
        assert counts[2] == pytest.approx(layer.parameter_count(), rel=0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("cell_processes")
def test_records_hold_modes_and_ranks_and_the_arms_are_timed_together(tmp_path):
    timing = [f"timing.{name}={value}" for name, value in TIMING.items()]
    arguments = ("results=records", "device=cpu", "batch_size=16", *timing)
    ended = run_bench(tmp_path, "experiment=tensorization", *arguments)
    assert (ended.status, ended.output) == (0, "")
    records = {(record.method, record.ratio): record for record in read_all(tmp_path / "records", "tensorization")}
    assert set(records) == {("dense", None), ("comera", None), ("comera", 27.688)}
    assert len({record.pairing for record in records.values()}) == 1
    published = {"in_modes": [12, 8, 8], "out_modes": [8, 8, 12], "ranks": [12, 30, 30, 30, 12]}
    for (method, _), record in records.items():
        assert (record.status, record.epoch_time_s) == ("ok", None)
        assert record.step_time_median_ms > 0
        assert json.loads(record.config_json)["workload_settings"]["optimizer_step"] is False
        layers = [{"layers": 1, **published}] if method == "comera" else None
        assert record.samples.get("tensorized") == layers
