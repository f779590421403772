"""Every arm learns: on a handful of batches of the generated corpus, each lowers the loss of a small encoder."""

from __future__ import annotations

import itertools
import statistics

import pytest
import torch
from small_cells import MODEL
from tiny import one_thread  # noqa: F401

from bench.protocol import Data
from bench.protocol.methods import available, build, checked_settings, parse_arm
from bench.step.train_step import TrainStep
from bench.workloads import open_workload
from bench.workloads.encoder import EncoderSettings

STEPS, BATCHES, BATCH_SIZE = 100, 4, 16

#: Arms with rates for a model this small; the defaults suit the full one.
ARMS = {
    "apollo_mini": {"lr": 2e-3, "scale": 64.0},
    "dense": {"lr": 2e-3},
    "dense:adamw8bit": {"lr": 2e-3},
    "galore": {"lr": 2e-3, "lr_projected": 8e-3, "rank": 16, "update_gap": 20},
    "lora": {"lr": 2e-3, "lr_adapters": 2e-3, "rank": 8, "alpha": 16.0},
    "lte": {"lr": 2e-3, "lr_adapters": 2e-3, "rank": 4, "alpha": 8.0, "merge_every": 10},
    "btt": {"lr": 2e-3, "lr_cores": 2e-3},
    "basis": {"lr": 2e-3, "lr_coefficients": 2e-3},
    "low_rank": {"lr": 2e-3, "lr_factors": 4e-3, "rank": 16},
    "low_rank:linear": {"lr": 2e-3, "lr_factors": 2e-3, "rank": 16},
    "hashing": {"lr": 2e-3, "table_ratio": 4.0},
    "quotient_remainder": {"lr": 2e-3, "table_ratio": 4.0},
    "comera": {"lr_cores": 1e-3, "lr_ranks": 1e-3, "lr_dense": 2e-3, "ranks": 16},
    "comera:released": {"lr_cores": 1e-3, "lr_ranks": 1e-3, "lr_dense": 2e-3, "ranks": 16},
}


@pytest.fixture(scope="module")
def workload(pairs):
    settings = EncoderSettings(**{**MODEL, "layers": 2, "width": 64, "feed_forward": 128}, sequence_length=32)
    return open_workload("encoder", settings, Data(data_folder=str(pairs)), check=False)


def losses_of(arm, workload, steps):
    torch.manual_seed(0)
    name, variant, *_ = parse_arm(arm)
    method = build(name, variant, checked_settings(name, ARMS[arm]))
    model = method.adapt(workload.build(), workload.targets())
    step = TrainStep(model, method, method.optimizer(model), workload.loss, "fp32", "cpu")
    batches = list(itertools.islice(workload.batches("train", BATCH_SIZE, 0, static=True), BATCHES))
    return [step(batches[number % BATCHES]).item() for number in range(steps)]


def test_no_method_is_left_out():
    assert {parse_arm(arm).method for arm in ARMS} == set(available())


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_lowers_the_loss(arm, workload):
    losses = losses_of(arm, workload, STEPS)
    first, last = statistics.fmean(losses[:BATCHES]), statistics.fmean(losses[-BATCHES:])
    assert last < 0.6 * first, f"{arm}: {first:.3f} to {last:.3f}"


@pytest.mark.parametrize("arm", ARMS)
def test_the_same_seed_gives_the_same_losses(arm, workload):
    assert losses_of(arm, workload, 5) == losses_of(arm, workload, 5)
