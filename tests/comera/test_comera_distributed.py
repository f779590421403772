"""Two processes train as one does: the same losses over twenty steps, the same outputs behind them."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from two_processes import FEATURES, STEPS, batches, in_two_processes, train

import comera
from comera import recomputing
from comera.recomputing import Recompute

pytestmark = pytest.mark.slow  # processes start and import torch

AGREEMENT = 1e-5


def build(merge_jointly: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, FEATURES) for _ in range(3)]
    model = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2]).double()
    return comera.tensorize(model, {"*": comera.TT(ranks=4, order=2)}, merge_jointly=merge_jointly)


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


class Residual(nn.Module):
    """A block: attention over the features of a row, and a feed-forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm_1(x)
        heads = (layer(y).unflatten(-1, (2, -1)).transpose(-3, -2) for layer in (self.query, self.key, self.value))
        x = x + self.out(nn.functional.scaled_dot_product_attention(*heads).transpose(-3, -2).flatten(-2))
        return x + self.feed_forward(self.norm_2(x))


class Blocks(nn.Module):
    """(rows, FEATURES) to (rows, FEATURES), every feature a token."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, width), nn.Linear(width, 1)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x.unsqueeze(-1))
        for block in self.blocks:
            y = block(y)
        return self.last(y).squeeze(-1)


def lean(rank: int, recompute: Recompute, replicas: bool = True) -> tuple[list[float], torch.Tensor, int]:
    """Losses, outputs with the gradients of the last step, and how many tensors were formed again."""
    torch.manual_seed(0)
    model = comera.tensorize(Blocks().double(), {"blocks.*": comera.TT(ranks=2, order=2)}, recompute=recompute)
    formed, value = [], recomputing._Recipe.value
    recomputing._Recipe.value = lambda recipe: (formed.append(1), value(recipe))[1]  # type: ignore[method-assign]
    try:
        losses = train(DistributedDataParallel(model) if replicas else model, rank, 2 if replicas else 1)
    finally:
        recomputing._Recipe.value = value  # type: ignore[method-assign]
    gradients = [parameter.grad.flatten() for parameter in model.parameters()]
    return losses, torch.cat([outputs(model).flatten(), *gradients]), len(formed)


@pytest.mark.parametrize("recompute", ["outputs", "block"])
def test_replicas_that_recompute_train_as_one_process_that_does_not(recompute):
    *one, formed = lean(0, "none", replicas=False)
    assert not formed
    ranks = in_two_processes(lean, recompute)
    assert_agree([rank[:2] for rank in ranks], tuple(one))
    assert all(formed > STEPS for *_, formed in ranks)


@torch.no_grad()
def close_ranks(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Close the first rank of every bond, and give the ranks that truncation leaves."""
    for layer in comera.tensorized_layers(model):
        for bond in layer.diagonals.split(layer.shape.ranks):
            bond[0] = 0.0
    return {name: tuple(rank - 1 for rank in ranks) for name, ranks in comera.ranks_of(model).items()}


def assert_refused(action: str, call: object, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"^{action} .*{reason}"):
        call()  # type: ignore[operator]


def truncated_between(rank: int, replicas: bool = True) -> tuple[list[float], torch.Tensor]:
    """Ten steps, a truncation, ten more; with replicas as the library documents it."""
    model, ranks = build(), 2 if replicas else 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    trained = DistributedDataParallel(model) if replicas else model
    losses = train(trained, rank, ranks, optimizer, steps=slice(10))
    wanted, before = close_ranks(model), comera.ranks_of(model)
    if replicas:
        reason = "DistributedDataParallel would no longer average"
        assert_refused("truncate", lambda: comera.truncate(trained, optimizer), reason)
        assert_refused("truncate", lambda: comera.truncate(model, optimizer), reason)
        assert_refused("truncate", model[2].truncate, reason)
        assert_refused("set_ranks", lambda: comera.set_ranks(model, wanted), reason)
        assert comera.ranks_of(model) == before
        dense = DistributedDataParallel(nn.Sequential(nn.Linear(FEATURES, FEATURES)))
        assert_refused("tensorize", lambda: comera.tensorize(dense.module, {"0": comera.TT()}), reason)
        parted = ZeroRedundancyOptimizer(build().parameters(), torch.optim.AdamW)
        del trained
        assert_refused("truncate", lambda: comera.truncate(model, parted), "ZeroRedundancyOptimizer")
    assert comera.truncate(model, optimizer)
    assert comera.ranks_of(model) == wanted
    trained = DistributedDataParallel(model) if replicas else model
    losses += train(trained, rank, ranks, optimizer, steps=slice(10, STEPS))
    return losses, outputs(model)


def test_replicas_are_truncated_between_two_wrappers_and_never_inside_one():
    assert_agree(in_two_processes(truncated_between), truncated_between(0, replicas=False))


def sharded(rank: int, shards: bool = True) -> tuple[list[float], torch.Tensor]:
    """Each layer sharded on its own below the root, and trained for the late objective, which reads them whole."""
    model = build(merge_jointly=False)
    if shards:
        mesh = init_device_mesh("cpu", (2,))
        for layer in comera.tensorized_layers(model):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    objective = comera.LateStage(0.5, beta=1e-2)
    losses = train(model, rank, 2 if shards else 1, objective=objective)
    answer = outputs(model)
    if shards:
        assert_refused("truncate", lambda: comera.truncate(model), "sharded over processes")
        assert_refused("close_smallest", lambda: comera.close_smallest(model, 0.1), "sharded over processes")
        assert_refused("set_ranks", lambda: comera.set_ranks(model, {}), "sharded over processes")
        alone = fully_shard(build()[0], mesh=mesh)
        alone(batches()[0][0])  # a root keeps its parameters whole from here to its next step
        assert_refused("truncate", alone.truncate, "sharded over processes")
    return losses, answer


def test_layers_sharded_one_by_one_train_for_the_objective_as_one_process():
    assert_agree(in_two_processes(sharded), sharded(0, shards=False))
