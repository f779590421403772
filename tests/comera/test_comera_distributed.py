"""Two processes train as one does: the same losses over twenty steps, the same outputs behind them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from two_processes import FEATURES, STEPS, batches, in_two_processes, train

import comera

pytestmark = pytest.mark.slow  # processes start and import torch

AGREEMENT = 1e-5


def build() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, FEATURES) for _ in range(3)]
    model = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2]).double()
    return comera.tensorize(model, {"*": comera.TT(ranks=4, order=2)})


@torch.no_grad()
def outputs(model: nn.Module) -> torch.Tensor:
    return model(batches()[0][0])


def assert_agree(ranks: list[tuple[list[float], torch.Tensor]], one: tuple[list[float], torch.Tensor]) -> None:
    (losses_0, outputs_0), (losses_1, outputs_1) = ranks
    mean = [(a + b) / 2 for a, b in zip(losses_0, losses_1, strict=True)]
    assert len(mean) == STEPS
    assert mean == pytest.approx(one[0], abs=AGREEMENT)
    for answer in (outputs_0, outputs_1):
        torch.testing.assert_close(answer, one[1], rtol=0, atol=AGREEMENT)


def replicated(rank: int) -> tuple[list[float], torch.Tensor]:
    model = DistributedDataParallel(build())
    return train(model, rank, 2), outputs(model)


def test_data_parallel_replicas_train_as_one_process():
    model = build()
    assert_agree(in_two_processes(replicated), (train(model), outputs(model)))
