"""The exact part of the gate: what is counted, and planted regressions that it names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
import torch
from planted import PLANTED, dropped_rank_mask, one_more_parameter
from tiny import ModelWorkload, TinyMethod, one_thread  # noqa: F401
from torch import nn

from bench.core.provenance import ROOT
from bench.estimate.work import predict
from bench.gate import Regression
from bench.gate.baseline import Difference, as_table, differences, refuse
from bench.gate.exact import QUANTITIES, Benchmark, OperatorCalls, all_benchmarks, measure
from bench.protocol.methods import available, build, checked_settings, parse_arm, variants
from bench.step.train_step import TrainStep
from bench.workloads.encoder import EncoderClassifier, EncoderSettings
from bench.workloads.linear import LinearSettings, LinearWorkload
from bench.workloads.lookup import LookupSettings
from comera.lookup import VARIANTS as LOOKUPS

FULL_SIZE = {benchmark.name: benchmark for benchmark in all_benchmarks()}
LAYER = FULL_SIZE["linear-768x768/comera/128-tokens/cpu"]
ENCODER = FULL_SIZE["encoder/comera/batch-32/cuda"]
SMALL = Benchmark("small", "linear", LinearSettings(8, 6), "dense", "cpu", batch_size=3)


@pytest.fixture(scope="module")
def unchanged():
    """Numbers of the layer and the encoder as they are."""
    return {benchmark: measure(FULL_SIZE[benchmark]) for benchmark in (LAYER.name, ENCODER.name)}


def test_every_arm_is_traced_at_full_size_at_both_batches_for_both_devices():
    encoder = [benchmark for benchmark in FULL_SIZE.values() if isinstance(benchmark.model, EncoderSettings)]
    arms = Counter(benchmark.arm for benchmark in encoder)
    assert set(arms) >= {"comera", "comera:released", "dense", "galore", "lora", "low_rank", "low_rank:linear", "lte"}
    assert len(arms) == sum(len(variants(method)) for method in available())
    assert set(arms.values()) == {4}
    assert {(benchmark.batch_size, benchmark.device) for benchmark in encoder} == {
        (1, "cpu"),
        (1, "cuda"),
        (32, "cpu"),
        (32, "cuda"),
    }
    assert all(benchmark.model == EncoderSettings() for benchmark in encoder)


def test_every_lookup_and_every_layer_shape_of_the_encoder_is_traced():
    lookups = [benchmark for benchmark in FULL_SIZE.values() if isinstance(benchmark.model, LookupSettings)]
    assert {benchmark.settings["lookup"] for benchmark in lookups} == set(LOOKUPS)
    assert {benchmark.model for benchmark in lookups} == {LookupSettings(30522, 768)}
    layers = {benchmark.model for benchmark in FULL_SIZE.values() if isinstance(benchmark.model, LinearSettings)}
    with torch.device("meta"):
        block = EncoderClassifier(EncoderSettings()).blocks[0]
    shapes = {LinearSettings(m.in_features, m.out_features) for m in block.modules() if isinstance(m, nn.Linear)}
    assert layers == shapes


def test_names_are_distinct():
    assert len(FULL_SIZE) == len(all_benchmarks())


def test_variants_have_the_names_that_arms_have():
    for method in available():
        for variant in variants(method):
            assert parse_arm(f"{method}:{variant}" if variant else method) == (method, variant, False, "", "")


def test_the_numbers_are_those_of_a_prediction():
    benchmark = Benchmark(
        "low", "linear", LinearSettings(12, 10), "low_rank", "cpu", batch_size=5, settings={"rank": 3}
    )
    numbers = measure(benchmark)
    assert tuple(numbers) == QUANTITIES
    method = build("low_rank", "", checked_settings("low_rank", {"rank": 3}))
    prediction = predict(LinearWorkload(LinearSettings(12, 10)), method, 5, "fp32", "cpu", 0)
    assert numbers["peak_bytes"] == prediction.memory.peak == sum(numbers[name] for name in QUANTITIES[-5:])
    assert numbers["flops_per_step"] == prediction.work.flops_per_step
    assert numbers["saved_for_backward_bytes"] == prediction.work.saved_for_backward
    assert (numbers["parameters"], numbers["stored_bytes"]) == (
        prediction.memory.parameter_count,
        prediction.memory.stored,
    )


def test_operator_calls_against_a_hand_count():
    x = torch.ones(4, 3)
    with OperatorCalls() as calls:
        (x @ x.t()).detach().add_(1)
    assert calls.count == 3  # t, mm, add_


def test_operator_calls_are_those_of_a_real_step():
    workload, method = ModelWorkload(lambda: nn.Sequential(nn.Linear(6, 5), nn.GELU()), (6,)), TinyMethod()
    model = workload.build()
    step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
    batch = next(workload.batches("train", 4, 0, True))
    step(batch)
    with OperatorCalls() as real:
        step(batch)
    assert real.count > 10
    with torch._subclasses.FakeTensorMode() as fake:
        model = workload.build()
        step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
        batch = {"x": fake.from_tensor(torch.zeros(4, 6))}
        step(batch)
        with OperatorCalls() as faked:
            step(batch)
    assert faked.count == real.count


def test_an_arm_that_does_not_support_a_cell_is_recorded_as_such():
    assert measure(FULL_SIZE["encoder/lte/batch-1/cpu"]) == "unsupported"
    [lost] = differences("cell", {"parameters": 1}, "unsupported")
    assert str(lost) == "cell: arm was supported, is unsupported (lost), worse than the baseline"
    [won] = differences("cell", "unsupported", {"parameters": 1})
    assert won.better
    assert differences("cell", "unsupported", "unsupported") == []


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_regression_is_named(plant, unchanged, monkeypatch):
    plant(monkeypatch)
    found = differences(LAYER.name, unchanged[LAYER.name], measure(LAYER))
    assert PLANTED[plant] <= {one.quantity for one in found}
    with pytest.raises(Regression) as error:
        refuse(found)
    for quantity in PLANTED[plant]:
        assert f"{LAYER.name}: {quantity} was " in str(error.value)


@pytest.mark.parametrize("plant", [dropped_rank_mask, one_more_parameter], ids=lambda plant: plant.__name__)
def test_the_smallest_of_them_are_named_in_the_whole_encoder_too(plant, unchanged, monkeypatch):
    plant(monkeypatch)
    found = differences(ENCODER.name, unchanged[ENCODER.name], measure(ENCODER))
    assert PLANTED[plant] <= {one.quantity for one in found}


def test_a_planted_regression_leaves_no_trace(unchanged):
    refuse(differences(LAYER.name, unchanged[LAYER.name], measure(LAYER)))


def test_a_dropped_rank_mask_looks_like_an_improvement_and_is_refused_all_the_same(unchanged, monkeypatch):
    dropped_rank_mask(monkeypatch)
    found = differences(LAYER.name, unchanged[LAYER.name], measure(LAYER))
    assert all(one.better for one in found)
    with pytest.raises(Regression, match="better than the baseline: accept with make gate-accept"):
        refuse(found)


def test_order_and_earlier_traces_change_nothing(unchanged):
    measure(SMALL)
    measure(FULL_SIZE["lookup-30522x768/plain/10000-rows/cuda"])
    assert measure(LAYER) == unchanged[LAYER.name]


@pytest.mark.slow
def test_another_process_counts_the_same(unchanged):
    code = (
        "import json, sys; from bench.gate.exact import all_benchmarks, measure;"
        "print(json.dumps({one.name: measure(one) for one in all_benchmarks() if one.name in sys.argv}))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", code, *reversed(unchanged)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == unchanged


@pytest.mark.parametrize(
    ("old", "new", "change", "better"),
    [
        (200, 201, "+0.5 %", False),
        (200, 100, "-50 %", True),
        (0, 4, "from nothing", False),
        ("absent", "present", "new", False),
        ("present", "absent", "vanished", False),
    ],
)
def test_a_change_in_a_word_or_in_percent(old, new, change, better):
    one = Difference("layer", "benchmark" if isinstance(old, str) else "peak_bytes", old, new)
    assert (one.change, one.better) == (change, better)
    assert as_table([one]).row_count == 1
