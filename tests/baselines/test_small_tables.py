"""Hashed and quotient-remainder tables: the rows they make, their sizes, and what they refuse."""

import pytest
import torch
from torch import nn

from baselines import dense, hashing, quotient_remainder
from baselines._arm import JoinedOptimizer

METHODS = {"hashing": hashing, "quotient_remainder": quotient_remainder}


def full_table(small: nn.Module) -> torch.Tensor:
    """The table (V, D) that a small one stands for."""
    return small.rows(torch.arange(small.num_embeddings))


def models(rows: int = 900, mode: str = "sum") -> nn.Sequential:
    return nn.Sequential(nn.EmbeddingBag(rows, 6, mode=mode), nn.Linear(6, 40), nn.Linear(40, 1))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_bag_is_pooled_as_the_dense_one_of_its_rows(name: str, mode: str) -> None:
    module = METHODS[name]
    small = module.build(module.Settings(table_ratio=9.0)).adapt(models(mode=mode), {"0": "embedding"})[0]
    bag = nn.EmbeddingBag.from_pretrained(full_table(small).detach(), mode=mode)
    items, offsets = torch.randint(0, 900, (12,)), torch.tensor([0, 5, 5, 8])
    torch.testing.assert_close(small(items, offsets), bag(items, offsets))
    torch.testing.assert_close(small(items.view(4, 3)), bag(items.view(4, 3)))
    torch.testing.assert_close(small(items[:, None]), bag(items[:, None]))
    if mode == "sum":
        weights = torch.rand(12)
        torch.testing.assert_close(small(items, offsets, weights), bag(items, offsets, weights))


def test_every_index_has_a_pair_of_rows_of_its_own() -> None:
    settings = quotient_remainder.Settings(table_ratio=9.0)
    small = quotient_remainder.build(settings).adapt(models(), {"0": "embedding"})[0]
    assert len(full_table(small).unique(dim=0)) == 900
    hashed = hashing.build(hashing.Settings(table_ratio=9.0)).adapt(models(), {"0": "embedding"})[0]
    assert len(full_table(hashed).unique(dim=0)) == 100


@pytest.mark.parametrize("name", METHODS)
def test_the_whole_model_gets_the_size_that_is_asked_for(name: str) -> None:
    module, model = METHODS[name], models(rows=100_000)
    dense_count = sum(parameter.numel() for parameter in model.parameters())
    arm = module.build(module.Settings(ratio=50.0))
    small = arm.adapt(model, {"0": "embedding"})
    assert sum(p.numel() for p in small.parameters()) == pytest.approx(dense_count / 50, rel=0.02)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "hashing",
            r"^ratio=9000 is out of reach for hashed tables; the nearest within reach is [\d.]+, since 321 param",
        ),
        ("quotient_remainder", r"^ratio=9000 is out of reach for quotient-remainder tables; the nearest within"),
    ],
)
def test_a_ratio_beyond_what_other_layers_hold_is_named(name: str, sentence: str) -> None:
    module = METHODS[name]
    arm = module.build(module.Settings(ratio=9000.0))
    with torch.device("meta"):
        model = models(rows=100_000)
    with pytest.raises(ValueError, match=sentence):
        arm.adapt(model, {"0": "embedding"})
    assert arm.model_unsupported(model, {"0": "embedding"}).startswith("ratio=9000 is out of reach")
    assert "this model has none" in arm.model_unsupported(model, {"1": "feed_forward"})


def test_tables_may_have_a_rate_of_their_own_and_plain_descent_keeps_nothing() -> None:
    model = models()
    arm = dense.build(dense.Settings(lr=0.25, lr_tables=0.5), "sgd")
    optimizer = arm.optimizer(arm.adapt(model, {"0": "embedding"}))
    assert isinstance(optimizer, JoinedOptimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model(torch.tensor([[3, 4]])).sum().backward()
    gradients = {name: parameter.grad.to_dense() for name, parameter in model.named_parameters()}
    optimizer.step()
    for name, parameter in model.named_parameters():
        rate = 0.5 if name.startswith("0") else 0.25
        torch.testing.assert_close(parameter.detach(), before[name] - rate * gradients[name])
    assert not any(optimizer.state.values())
