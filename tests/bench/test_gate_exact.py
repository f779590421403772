"""The exact part of the gate: what is counted, and planted regressions that it names."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
import torch
from planted import PLANTED
from torch import nn

from bench.core.provenance import ROOT
from bench.estimate.work import predict
from bench.gate import Regression
from bench.gate.baseline import differences, refuse
from bench.gate.exact import QUANTITIES, ExactBenchmark, OperatorCalls, all_benchmarks, measure
from bench.protocol.methods import available, build, checked_settings, variants
from bench.workloads.encoder import EncoderClassifier, EncoderSettings
from bench.workloads.linear import LinearSettings, LinearWorkload
from bench.workloads.lookup import LookupSettings
from comera.lookup import VARIANTS as LOOKUPS

FULL_SIZE = {benchmark.name: benchmark for benchmark in all_benchmarks()}
LAYER = FULL_SIZE["linear-768x768/comera/128-tokens/cpu"]
ENCODER = FULL_SIZE["encoder/comera/batch-32/cuda"]


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


def test_the_numbers_are_those_of_a_prediction():
    benchmark = ExactBenchmark(
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


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_regression_is_named(plant, unchanged, monkeypatch):
    plant(monkeypatch)
    found = differences(LAYER.name, unchanged[LAYER.name], measure(LAYER))
    assert PLANTED[plant] <= {one.quantity for one in found}
    with pytest.raises(Regression) as error:
        refuse(found)
    for quantity in PLANTED[plant]:
        assert f"{LAYER.name}: {quantity} was " in str(error.value)


def test_a_planted_regression_leaves_no_trace(unchanged):
    refuse(differences(LAYER.name, unchanged[LAYER.name], measure(LAYER)))


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
