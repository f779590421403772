"""Steps whose blocks are checkpointed: the same training for less memory."""

import pytest
import torch
from small_cells import a_configuration
from tiny import TinyWorkload
from tiny_steps import ARMS

from bench.errors import ConfigError
from bench.estimate.memory import predict_memory
from bench.estimate.work import predict
from bench.protocol.methods import build, checked_settings
from bench.runner.resolve import resolve
from bench.step.train_step import TrainStep


def a_step(name: str, checkpoint: bool) -> TrainStep:
    """The step of an arm on a small encoder with dropout."""
    torch.manual_seed(0)
    method, variant, settings = ARMS[name]
    workload, built = TinyWorkload(dropout=0.2), build(method, variant, checked_settings(method, settings))
    model = built.adapt(workload.build(), workload.targets())
    return TrainStep(model, built, built.optimizer(model), workload.loss, "fp32", "cpu", checkpoint=checkpoint)


@pytest.mark.parametrize("name", ["dense", "comera", "galore"])
def test_it_trains_as_one_that_keeps_everything(name):
    losses = []
    for checkpoint in (False, True):
        step, source = a_step(name, checkpoint), TinyWorkload().batches("train", 8, 0, True)
        torch.manual_seed(1)
        losses.append([step(next(source)) for _ in range(6)])
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)  # dropout draws the same masks again


@pytest.mark.slow
def test_its_memory_is_predicted_for_a_gpu():
    workload = TinyWorkload(length=64, width=64, blocks=6)
    method, variant, settings = ARMS["dense"]

    def dense():
        return build(method, variant, checked_settings(method, settings))

    plain = predict_memory(workload, dense(), 32, "fp32", "cuda", 0)
    checkpointed = predict_memory(workload, dense(), 32, "fp32", "cuda", 0, checkpoint=True)
    assert checkpointed.activations < 0.3 * plain.activations
    assert (checkpointed.parameters, checkpointed.optimizer) == (plain.parameters, plain.optimizer)
    works = [predict(workload, dense(), 32, "fp32", "cuda", 0, checkpoint).work for checkpoint in (False, True)]
    assert 1.2 < works[1].flops_per_step / works[0].flops_per_step < 1.4  # forward once more: 4/3, the head apart
    assert works[1].saved_for_backward < 0.3 * works[0].saved_for_backward


def test_an_arm_and_the_toggle_ask_for_the_same_cell(pairs):
    by_arm = resolve(a_configuration(pairs, methods=["dense+checkpoint"]))
    by_toggle = resolve(a_configuration(pairs, methods=["dense"], checkpoint=True))
    assert by_arm == by_toggle
    assert [cell.arm for cell in by_arm.cells] == ["dense+checkpoint"]
    with pytest.raises(ConfigError, match="checkpoint is 'maybe'; allowed"):
        resolve(a_configuration(pairs, checkpoint="maybe"))
