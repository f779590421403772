"""The one answer to the question whether a cell can run, as a table; a step that it allows runs."""

import pytest
import torch
from small_cells import a_cell

from bench.protocol import Data
from bench.protocol.methods import build_for
from bench.step.train_step import batches_on, build_step
from bench.step.unsupported import StepCell, toggles_unsupported, unsupported
from bench.workloads import open_cell_workload

LINEAR = {"workload": "linear", "dataset": "normal", "workload_settings": {"in_features": 32, "out_features": 48}}
GRAPH = {"cuda_graph": True, "device": "cuda"}

#: Changes of a cell, and how the reason begins; None where it can run.
CASES = [
    ({}, None),
    ({"checkpoint": True}, None),
    ({"precision": "bf16_weights"}, None),
    ({"precision": "fp8"}, None),
    ({"precision": "fp8", "method": "comera"}, None),
    ({"method": "lte", "batch_size": 16, "settings": {"heads": 16, "rank": 4}}, None),
    ({"method": "comera", "settings": {"ranks": 4, "table_ranks": 2}, "precision": "fp8"}, None),
    *(
        ({**GRAPH, "compile": True, "batch_size": 16, "method": method, "precision": precision}, None)
        for method in ("dense", "comera", "lora", "low_rank", "galore", "lte")
        for precision in ("fp32", "bf16")
    ),
    ({"precision": "tf32", "device": "cuda"}, None),
    ({"cuda_graph": True}, "cuda_graph=true needs a CUDA device"),
    ({**GRAPH, "checkpoint": True}, "cuda_graph=true does not work with checkpoint=true"),
    ({**GRAPH, "method": "galore", "variant": "per_layer"}, "cuda_graph=true does not work here: "),
    ({"compile": True, "world_size": 2}, "compile=true does not work with several ranks"),
    ({"precision": "tf32"}, "precision=tf32 needs a CUDA device"),
    ({**LINEAR, "checkpoint": True}, "checkpoint=true needs a model with blocks"),
    ({"method": "lte", "batch_size": 3}, "LTE shards the batch"),
    ({"method": "comera", "settings": {"ratio": 1e6}}, "ratio=1e+06 is out of reach"),
    ({"method": "comera", "settings": {"ranks": 500}}, "settings.comera.ranks is 500; allowed: 1 to "),
    (
        {"method": "low_rank", "settings": {"embedding_rank": 33}},
        "settings.low_rank.embedding_rank is 33; allowed: 1 to 32",
    ),
    ({"method": "low_rank", "settings": {"rank": 33, "ratio": 2.0}}, None),  # a ratio sets ranks aside
    ({"precision": "fp8", "method": "lora", "settings": {"rank": 4}}, "precision=fp8 has no FP8 products"),
]


def asked(changes):
    cell = a_cell(**changes)
    workload = open_cell_workload(cell, Data(cell.dataset))
    with torch.device("meta"):
        return cell, workload, workload.build()


@pytest.mark.parametrize(("changes", "reason"), CASES)
def test_a_cell_can_run_or_has_a_reason(monkeypatch, changes, reason):
    monkeypatch.setattr("bench.step.unsupported.compile_unsupported", lambda _: None)  # it has tests of its own
    cell, workload, model = asked(changes)
    found = unsupported(cell, build_for(cell), model, workload.targets())
    assert (found is None) if reason is None else (found or "").startswith(reason), found


@pytest.mark.parametrize("changes", [changes for changes, reason in CASES if not reason and "device" not in changes])
def test_what_can_run_runs(changes):
    cell, workload, _ = asked(changes)
    [batch] = batches_on(cell, workload, 1)
    assert torch.isfinite(build_step(cell, workload)(batch))


@pytest.mark.parametrize("changes", [changes for changes, _ in CASES if not {"world_size", "device"} & set(changes)])
def test_a_step_is_refused_by_the_same_sentence(changes):
    cell, workload, model = asked(changes)
    reason = toggles_unsupported(cell, build_for(cell), model)
    if reason is None:
        pytest.skip("it depends on more than how a step runs")
    with pytest.raises(ValueError) as error:  # noqa: PT011 - compared below
        build_step(cell, workload)
    assert str(error.value) == reason


def test_a_step_that_is_no_cell_s_is_asked_about_alike():
    cell, workload, model = asked({"method": "comera", "precision": "tf32"})
    view = StepCell(cell.batch_size, cell.precision, cell.device, cell.sequence_length)
    found = [unsupported(one, build_for(cell), model, workload.targets()) for one in (cell, view)]
    assert found[0] == found[1] is not None
