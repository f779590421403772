"""Joint merging, which is on by default, under wrappers that hold or move the parameters: as one process, to 1e-5."""

import pytest
import torch
from test_comera_distributed import assert_agree, build, outputs
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from two_processes import in_two_processes, train

from comera.tensorize import tt_layers

pytestmark = pytest.mark.slow  # processes start and import torch


class Outer(nn.Module):
    """A module around a model that merges jointly, sharded in the model's place."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def sharded(rank: int, where: str) -> tuple[list[float], torch.Tensor]:
    mesh, model = init_device_mesh("cpu", (2,)), build()
    if where == "layers":
        for layer in tt_layers(model):
            fully_shard(layer, mesh=mesh)
    if where == "outside":
        model = Outer(model)
    fully_shard(model, mesh=mesh)
    return train(model, rank, 2), outputs(model)


@pytest.mark.parametrize("where", ["root", "outside"])
def test_sharded_models_train_as_one_process(where):
    model = build()
    assert_agree(in_two_processes(sharded, where), (train(model), outputs(model)))


def parted(rank: int) -> tuple[list[float], torch.Tensor]:
    model = nn.parallel.DistributedDataParallel(build())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, lr=1e-2, weight_decay=0.0
    )
    return train(model, rank, 2, optimizer), outputs(model)


def test_optimizer_state_parted_with_parameters_as_views_of_buckets():
    model = build()
    assert_agree(in_two_processes(parted), (train(model), outputs(model)))
