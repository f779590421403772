"""Precisions of a step: what runs, what is recorded of it, and what is refused."""

import pytest
import torch
from small_cells import a_layer_cell
from tiny import TinyMethod, TinyWorkload
from torch import nn

from bench.estimate.roofline import FORMS
from bench.measures.fp8 import fp8_columns
from bench.protocol import Data
from bench.step.low_precision import adapted_model, arithmetic_of, fp8_unsupported, to_bf16, to_fp8
from bench.step.train_step import TrainStep
from bench.workloads import open_cell_workload
from comera import TT, tensorize

TARGETS = {"0": "feed_forward", "2": "feed_forward"}


def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32), nn.Linear(32, 3))


def tensorized():
    return tensorize(dense(), {"0": TT(ranks=12), "2": TT(ranks=12)})


@pytest.mark.parametrize("built", [dense, tensorized])
def test_linear_targets_multiply_in_fp8_with_the_parameters_that_they_had(built):
    model, plain = built(), built()
    plain.load_state_dict(model.state_dict())
    before = [id(parameter) for parameter in model.parameters()]
    to_fp8(model, TARGETS, "emulated")
    assert [id(parameter) for parameter in model.parameters()] == before
    x = torch.randn(20, 64)  # no multiple of 16
    exact, found = plain(x), model(x)
    assert 1e-4 < ((found - exact).norm() / exact.norm()).item() < 0.1
    found.square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    by = "torchao" if built is dense else "comera.low_precision"
    assert arithmetic_of(model, "fp8") == f"fp8 emulated in 2 of 3 linear layers ({by}, tensor current)"


def test_what_has_no_fp8_products_is_refused_in_a_sentence():
    model = nn.Sequential(nn.Bilinear(2, 2, 2), nn.ReLU(), nn.ReLU())
    assert "torch's Bilinear" in (fp8_unsupported("fp8", model, TARGETS) or "")
    with pytest.raises(ValueError, match="torch's Bilinear"):
        to_fp8(model, TARGETS, "emulated")


def test_weights_and_states_in_bf16_but_for_rank_entries():
    model = tensorized()
    to_bf16(model)
    kinds = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert {kind for name, kind in kinds.items() if "diagonals" in name} == {torch.float32}
    assert {kind for name, kind in kinds.items() if "diagonals" not in name} == {torch.bfloat16}
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(8, 64)).float().square().mean()
    loss.backward()
    optimizer.step()
    for parameter in model.parameters():
        assert parameter.grad.dtype == optimizer.state[parameter]["exp_avg"].dtype == parameter.dtype


@pytest.mark.parametrize("precision", ["fp8", "bf16_weights"])
def test_a_step_learns_and_says_what_ran(precision):
    workload, method = TinyWorkload(), TinyMethod(lr=3e-3)
    model = adapted_model(method, workload.build(), workload.targets(), precision, "emulated")
    step = TrainStep(model, method, method.optimizer(model), workload.loss, precision, "cpu")
    batch = next(workload.batches("train", 8, 0, True))
    losses = [step(batch).item() for _ in range(12)]
    assert losses[-1] < losses[0]
    assert step.arithmetic.startswith("fp8 emulated in" if precision == "fp8" else "bf16_weights")


@pytest.mark.parametrize("method", ["dense", "comera"])
def test_a_layer_is_measured_in_every_precision(method):
    cell = a_layer_cell(64, 96, measure="fp8", batch_size=48, method=method)
    columns = fp8_columns(cell, open_cell_workload(cell, Data()))
    rows = {row["name"]: row for row in columns["samples"]["precisions"]}
    assert rows["tf32"]["message"] == "needs a CUDA device"
    errors = [rows[name]["error"] for name in ("fp32", "bf16", "fp8")]
    assert errors == sorted(errors)
    for row in rows.values():
        assert row["message"] or 0 < row["largest"] < row["bound"]
    assert "emulated" in columns["arithmetic"]
    assert [line["form"] for line in columns["samples"]["rooflines"]] == list(FORMS)
