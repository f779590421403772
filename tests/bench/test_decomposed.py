"""A model trained dense, then decomposed into a format: what the format takes over, and runs killed on the way."""

import pytest
import torch
from small_cells import a_configuration
from test_training_run import a_run
from torch import nn

from baselines import btt, low_rank
from baselines.low_rank import TwoFactorLinear
from bench.runner.resolve import resolve
from bench.workloads.teacher import TeacherSettings, TeacherWorkload
from comera.tensor_train import balance_cores, spectral_std
from comera.training import Settings as CoMERASettings
from comera.training import build as build_comera

SIZES = {
    "width": 16,
    "layers": 2,
    "teacher_width": 8,
    "teacher_layers": 1,
    "teacher_seed": 1,
    "validation_samples": 60,
    "test_samples": 60,
}
ARMS = {
    "btt": {"btt": {"rank": 1}},
    "low_rank": {"low_rank": {"rank": 4}},
    "comera": {"comera": {"ranks": 5, "order": 2}},
    "comera, spectral": {"comera:spectral": {"ranks": 5, "order": 2}},
}


@pytest.fixture
def workload():
    return TeacherWorkload(TeacherSettings(**SIZES))


@pytest.fixture
def cell(tmp_path):
    def of(arm, optimizer="adamw", **training):
        config = a_configuration(tmp_path, workload="teacher", data_folder=None, measure="train", methods=[ARMS[arm]])
        config |= {"teacher": SIZES, "batch_size": 32, "settings": {}}
        config["training"] |= {"steps": 12, "dense_steps": 8, "curve_steps": 4, "optimizer": optimizer, **training}
        [one, *_] = resolve(config).cells
        return one

    return of


@pytest.mark.parametrize(("arm", "optimizer"), [("btt", "muon"), ("low_rank", "adamw"), ("comera", "muon")])
def test_the_format_goes_on_where_dense_training_ended(arm, optimizer, cell, workload, tmp_path):
    run = a_run(cell(arm, optimizer), workload, tmp_path / "run")
    dense = sum(parameter.numel() for parameter in workload.build().parameters())
    run.run()
    curve = run.at.curve
    assert [(row["stage"], row["step"]) for row in curve] == [("dense", 4), ("dense", 8), ("train", 8), ("train", 12)]
    assert [row["parameters"] == dense for row in curve] == [True, True, False, False]
    assert run.columns()["parameters"] == curve[-1]["parameters"] < dense
    before, after = curve[1]["metrics"]["loss"], curve[2]["metrics"]["loss"]
    assert after == pytest.approx(before, rel=0.5)  # nearer than what is drawn anew would be
    assert curve[3]["train_loss"] != curve[2]["train_loss"] == curve[1]["train_loss"]


def methods():
    yield btt.build(btt.Settings(rank=16))
    yield low_rank.build(low_rank.Settings(rank=16), "linear")
    yield build_comera(CoMERASettings(ranks=99, order=2), "")


@pytest.mark.parametrize("number", range(3))
def test_at_full_rank_nothing_is_lost(number):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16, bias=False)).double()
    x = torch.randn(4, 16, dtype=torch.float64)
    before = model(x).detach()
    method = [*methods()][number]
    torch.testing.assert_close(method.decompose(model, {"0": "classifier", "1": "classifier"})(x), before)


def test_two_factors_are_the_nearest():
    torch.manual_seed(0)
    linear = nn.Linear(12, 20)
    layer = TwoFactorLinear.from_dense(linear, 5)
    values = torch.linalg.svdvals(linear.weight.detach())
    error = torch.linalg.matrix_norm(layer.second.t() @ layer.first - linear.weight)
    assert float(error) == pytest.approx(float(values[5:].square().sum().sqrt()), rel=1e-5)
    assert layer.bias is linear.bias
    assert float(layer.first.norm()) == pytest.approx(float(layer.second.norm()), rel=1e-5)


def test_balanced_cores_keep_the_product_and_share_its_size():
    torch.manual_seed(0)
    cores = [torch.randn(1, 4, 6), 1e3 * torch.randn(6, 5, 3), 1e-3 * torch.randn(3, 4, 5), torch.randn(5, 6, 1)]
    before = torch.einsum("aib,bjc,ckd,dle->ijkl", *cores)
    balance_cores(cores)
    torch.testing.assert_close(torch.einsum("aib,bjc,ckd,dle->ijkl", *cores), before)
    sides = [(4, 6), (30, 3), (3, 20), (5, 6)]
    shares = [float(core.square().mean().sqrt()) / spectral_std(*side) for core, side in zip(cores, sides, strict=True)]
    assert max(shares) == pytest.approx(min(shares), rel=1e-5)
