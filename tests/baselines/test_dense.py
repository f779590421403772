"""Tables with sparse gradients: their optimizers against formulas, and what they leave alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from toy_encoder import TARGETS, ToyEncoder, batch, loss_of, train

from baselines import dense
from baselines.dense import RowWiseAdagrad, Settings

VARIANTS = ("sparse", "row_wise")


def built(variant: str):
    torch.manual_seed(0)
    arm = dense.build(Settings(lr=1e-2), variant)
    model = arm.adapt(ToyEncoder(), TARGETS)
    return arm, model, arm.optimizer(model)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 9), columns=st.integers(1, 7), data=st.data())
def test_row_wise_adagrad_against_its_formula(rows, columns, data):
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    lr, eps = 0.3, 1e-8
    table = nn.Embedding(rows, columns, sparse=True, dtype=torch.float64)
    by_hand, sums = table.weight.detach().clone(), [0.0] * rows
    optimizer = RowWiseAdagrad(table.parameters(), lr=lr, eps=eps)
    for _ in range(3):
        indices = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), max_size=12)), dtype=torch.int64)
        upstream = torch.randn(len(indices), columns, dtype=torch.float64)
        optimizer.zero_grad()
        table(indices).backward(upstream)
        optimizer.step()
        for row in set(indices.tolist()):
            gradient = upstream[indices == row].sum(0)
            sums[row] += gradient.square().mean().item()
            by_hand[row] -= lr * gradient / (sums[row] ** 0.5 + eps)
        torch.testing.assert_close(table.weight.detach(), by_hand, rtol=1e-10, atol=1e-12)
    assert optimizer.state[table.weight]["sum"].tolist() == pytest.approx(sums)


def test_sparse_adam_is_adam_while_every_row_is_looked_up():
    torch.manual_seed(0)
    arm = dense.build(Settings(lr=1e-2), "sparse")
    model = arm.adapt(nn.Sequential(nn.Embedding(6, 4)), {"0": "embedding"})
    dense_table = nn.Embedding.from_pretrained(model[0].weight.detach().clone(), freeze=False)
    ours, adam = arm.optimizer(model), torch.optim.Adam(dense_table.parameters(), lr=1e-2)
    for _ in range(4):
        indices, upstream = torch.cat([torch.arange(6), torch.randint(0, 6, (5,))]), torch.randn(11, 4)
        for table, optimizer in ((model[0], ours), (dense_table, adam)):
            optimizer.zero_grad()
            table(indices).backward(upstream)
            optimizer.step()
        torch.testing.assert_close(model[0].weight, dense_table.weight)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_that_were_not_looked_up_stay(variant):
    arm, model, optimizer = built(variant)
    before = model.word.weight.detach().clone()
    tokens = torch.tensor([[1, 2, 3], [2, 5, 5]])
    train(arm, model, optimizer, tokens, range(3))
    changed = (model.word.weight != before).any(1).nonzero().flatten().tolist()
    assert changed == [1, 2, 3, 5]
    for tensor in optimizer.state[model.word.weight].values():
        if isinstance(tensor, torch.Tensor) and tensor.shape[:1] == (12,):
            assert tensor.reshape(12, -1).any(1).nonzero().flatten().tolist() == [1, 2, 3, 5]


@pytest.mark.parametrize("variant", VARIANTS)
def test_everything_else_is_under_the_same_adamw(variant):
    """After one step from one start, all parameters but the table are those of dense training."""
    _, plain, plain_optimizer = built("")
    _, model, optimizer = built(variant)
    for net, one in ((plain, plain_optimizer), (model, optimizer)):
        loss_of(net, batch()).backward()
        one.step()
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert name == "word.weight" or torch.equal(ours, theirs), name
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, len(list(model.parameters())) - 1]


def test_row_wise_adagrad_keeps_one_number_per_row():
    arm, model, optimizer = built("row_wise")
    train(arm, model, optimizer, batch(), range(1))
    assert {name: tuple(held.shape) for name, held in optimizer.state[model.word.weight].items()} == {"sum": (12,)}
