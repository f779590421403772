"""The workload ``linear``: its draws, its one layer, and its way from a configuration to cells and records."""

from __future__ import annotations

import doctest
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_cells import TIMING, a_configuration, changed, run_bench

import bench.workloads.linear
from bench.core.record import read_all
from bench.data.corpus import DataError
from bench.estimate.memory import predict_memory, trace_memory
from bench.protocol.methods import ConfigError, ForwardBackward, build, checked_settings
from bench.runner.resolve import resolve
from bench.step.train_step import TrainStep
from bench.workloads.linear import LinearSettings, LinearWorkload
from comera import TTLinear

SMALL = LinearSettings(in_features=24, out_features=36)
LAYER = {"in_features": 24, "out_features": 36, "optimizer_step": True}


def a_method(name="comera", **settings):
    return build(name, "", checked_settings(name, settings))


def first(batch_size, seed=0, settings=SMALL, start=0):
    return next(LinearWorkload(settings).batches("train", batch_size, seed, True, start))["rows"]


@given(st.integers(1, 60), st.integers(1, 200), st.integers(0, 2**31 - 1))
def test_a_seed_draws_the_same_rows(width, batch_size, seed):
    settings = LinearSettings(in_features=width)
    rows = first(batch_size, seed, settings)
    assert (rows.shape, rows.dtype) == ((batch_size, width), torch.float32)
    assert bool(rows.isfinite().all())
    assert torch.equal(rows, first(batch_size, seed, settings))


def test_batches_differ_and_can_be_started_anywhere():
    stream = LinearWorkload(SMALL).batches("train", 50, 3, True)
    batches = [batch["rows"] for batch in itertools.islice(stream, 4)]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(batches, 2))
    assert torch.equal(first(50, 3, start=2), batches[2])
    assert not torch.equal(first(50, 4), batches[0])


def test_the_rows_are_standard_normal():
    rows = first(20_000)
    assert abs(float(rows.mean())) < 0.01
    assert abs(float(rows.std()) - 1) < 0.01
    assert abs(float((rows.abs() < 1).float().mean()) - math.erf(math.sqrt(0.5))) < 0.01


def test_the_data_hash_tells_widths_apart():
    assert LinearWorkload(SMALL).data_hash == LinearWorkload(SMALL, "normal").data_hash
    assert LinearWorkload(SMALL).data_hash != LinearWorkload(LinearSettings(in_features=25)).data_hash
    assert LinearWorkload(SMALL).dataset == "normal"


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, True])
def test_a_wrong_batch_size_is_refused_at_once(batch_size):
    with pytest.raises(ValueError, match=r"^batch_size is .*from 1$"):
        LinearWorkload(SMALL).batches("train", batch_size, 0, True)


def test_the_loss_is_the_mean_square_of_the_layer_s_output():
    workload = LinearWorkload(SMALL)
    model, batch = workload.build(), next(workload.batches("train", 7, 0, True))
    output = batch["rows"] @ model.linear.weight.T + model.linear.bias
    assert output.shape == (7, 36)
    torch.testing.assert_close(workload.loss(model, batch), (output**2).sum() / output.numel())
    assert workload.evaluate(model).metrics == {}
    with pytest.raises(ValueError, match="has no epoch"):
        workload.batches_per_epoch(7)


@pytest.mark.parametrize("name", ["comera", "dense", "low_rank"])
def test_the_layer_is_every_method_s_target(name):
    workload = LinearWorkload(SMALL)
    assert list(workload.targets()) == [path for path, _ in workload.build().named_children()]
    model = a_method(name).adapt(workload.build(), workload.targets())
    assert isinstance(model.linear, TTLinear) == (name == "comera")
    dense = sum(parameter.numel() for parameter in workload.build().parameters())
    assert (sum(parameter.numel() for parameter in model.parameters()) == dense) == (name == "dense")


def test_a_step_without_the_optimizer_s_leaves_the_layer_and_keeps_no_state():
    workload = LinearWorkload(SMALL)
    for name in ("comera", "dense"):
        method = ForwardBackward(a_method(name))
        model = method.adapt(workload.build(), workload.targets())
        before = [parameter.clone() for parameter in model.parameters()]
        step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
        for batch in itertools.islice(workload.batches("train", 40, 0, True), 2):
            torch.testing.assert_close(step(batch), workload.loss(model, batch).detach())
        for parameter, old in zip(model.parameters(), before, strict=True):
            assert torch.equal(parameter, old)
            assert bool(parameter.grad.any())
        assert not step.optimizer.state


@pytest.mark.parametrize("name", ["comera", "dense"])
def test_a_prediction_books_what_a_step_takes(name):
    workload, method = LinearWorkload(SMALL), ForwardBackward(a_method(name))
    predicted = predict_memory(workload, method, 300, "fp32", "cpu", 0)
    model = method.adapt(workload.build(), workload.targets())
    step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
    booked = trace_memory(step, next(workload.batches("train", 300, 0, True)))
    assert math.isclose(predicted.peak, booked.peak, rel_tol=0.02)


@pytest.fixture
def config(tmp_path):
    """A job of a tensorized layer and the dense one."""
    changes = {"workload": "linear", "data_folder": None, "linear": dict(LAYER), "methods": ["comera", "dense"]}
    return a_configuration(tmp_path, **changes)


def test_a_job_is_one_cell_per_method(config):
    job = resolve(config)
    assert [cell.arm for cell in job.cells] == ["comera", "dense"]
    for cell in job.cells:
        assert (cell.dataset, cell.sequence_length, cell.workload_settings) == ("normal", 1, LAYER)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("linear.in_features", 0, "in_features is 0; allowed: whole numbers from 1"),
        ("linear.out_features", 2.5, "out_features is 2.5"),
        ("linear.optimizer_step", "no", "optimizer_step is 'no'; allowed: a value of type bool"),
        ("linear.width", 3, "width is unknown; allowed: in_features, out_features, optimizer_step"),
        ("linear", 3, "linear.NAME=VALUE"),
        ("measure", "train", "linear has no epoch; allowed: run, predict"),
        ("data_folder", "somewhere", "draws its data and reads none"),
        ("fetch", True, "draws its data and reads none"),
    ],
)
def test_a_wrong_value_is_one_sentence(config, field, value, words):
    with pytest.raises(ConfigError) as error:
        resolve(changed(config, field, value))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_distribution_is_one_sentence(config):
    with pytest.raises(DataError, match=r"^dataset is 'zipf'; workload=linear has: normal\.$"):
        resolve(config | {"dataset": "zipf"})


@pytest.mark.usefixtures("cell_processes")
def test_a_layer_is_timed_like_any_workload(tmp_path):
    timing = [f"timing.{name}={value}" for name, value in TIMING.items()]
    layer = ["+shapes=256x256", "linear.in_features=24", "linear.out_features=36", "settings.comera.order=2"]
    arms = ["measure=run", "methods=[comera,dense]", "settings.comera.ranks=3", "batch_size=20", "device=cpu"]
    ended = run_bench(tmp_path, "experiment=fig11", "results=records", *layer, *arms, *timing)
    assert (ended.status, ended.output) == (0, "")
    records = {record.method: record for record in read_all(tmp_path / "records", "fig11")}
    for record in records.values():
        assert (record.status, record.workload, record.dataset) == ("ok", "linear", "normal")
        assert (record.epoch_time_s, record.contraction) == (None, "")
        assert record.step_time_median_ms > 0
        assert record.pairing
    assert records["comera"].parameters < records["dense"].parameters == 24 * 36 + 36


def test_the_example_of_the_docstring_runs():
    assert doctest.testmod(bench.workloads.linear) == (0, 3)
