"""LTE against the formulas: sharding, merging, evaluation."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from toy_encoder import TARGETS, ToyEncoder, batch, train

from baselines import lte
from baselines.lte import LTELinear

DOUBLE = {"dtype": torch.float64}


def trained_layer(n: int, m: int, rank: int, heads: int, *, bias: bool = True, reset: bool = False) -> LTELinear:
    """A layer as it is in the midst of training: heads apart, and one merge behind it."""
    layer = LTELinear(nn.Linear(n, m, bias=bias, **DOUBLE), rank, heads, alpha=3.0, reset=reset)
    move_adapters(layer)
    layer.merge()
    move_adapters(layer)
    return layer


@torch.no_grad()
def move_adapters(layer: LTELinear) -> None:
    layer.adapter_a.add_(torch.randn_like(layer.adapter_a))
    layer.adapter_b.add_(torch.randn_like(layer.adapter_b))


def changes(layer: LTELinear) -> list[torch.Tensor]:
    """The unmerged change of every head, (M, N), from its definition."""
    found = []
    for head in range(layer.heads):
        change = layer.adapter_b[head] @ layer.adapter_a[head]
        if layer.merged_a is not None:
            change = change - layer.merged_b[head] @ layer.merged_a[head]
        found.append(layer.scale * change)
    return found


sizes = st.integers(1, 7)
drawn = given(
    n=sizes, m=sizes, rank=st.integers(1, 4), heads=st.integers(1, 4), bias=st.booleans(), reset=st.booleans()
)
laws = settings(max_examples=25, deadline=None)


@laws
@drawn
def test_each_head_sees_its_shard(n, m, rank, heads, bias, reset):
    layer = trained_layer(n, m, rank, heads, bias=bias, reset=reset)
    for inner in ((), (3,), (2, 3)):
        x = torch.randn(2 * heads, *inner, n, **DOUBLE)
        shards = zip(x.chunk(heads), changes(layer), strict=True)
        expected = torch.cat([nn.functional.linear(part, layer.weight + c, layer.bias) for part, c in shards])
        torch.testing.assert_close(layer(x), expected)


@laws
@drawn
def test_a_merge_moves_the_average_into_the_weight(n, m, rank, heads, bias, reset):
    layer = trained_layer(n, m, rank, heads, bias=bias, reset=reset)
    average, x = layer.weight + sum(changes(layer)) / heads, torch.randn(heads, n, **DOUBLE)
    evaluated, a, b = layer.eval()(x), layer.adapter_a.clone(), layer.adapter_b.clone()
    layer.merge()
    torch.testing.assert_close(layer.weight.detach(), average.detach())
    assert torch.equal(layer.adapter_a, a)
    assert torch.equal(layer.adapter_b, torch.zeros_like(b) if reset else b)
    torch.testing.assert_close(layer(x), evaluated)
    # After a merge all heads agree, so training and evaluation are one function.
    torch.testing.assert_close(layer.train()(x), evaluated)
    layer.merge()
    torch.testing.assert_close(layer.weight.detach(), average.detach())


def lora_with_merge(base: nn.Linear, start_a: torch.Tensor, scale: float, reset: bool, batches: list) -> list:
    """Plain LoRA by hand: AdamW on A, B and bias; after each step the product moves into the weight."""
    weight, bias = base.weight.detach().clone(), nn.Parameter(base.bias.detach().clone())
    a, b = nn.Parameter(start_a.clone()), nn.Parameter(torch.zeros(base.out_features, start_a.shape[0], **DOUBLE))
    already = torch.zeros_like(weight)  # what the weight holds of the present adapters
    moments = {key: (torch.zeros_like(p), torch.zeros_like(p), 0) for key, p in (("a", a), ("b", b), ("bias", bias))}
    losses = []
    for x, y in batches:
        loss = ((x @ (weight + scale * b @ a - already).T + bias - y) ** 2).mean()
        gradients = torch.autograd.grad(loss, (a, b, bias))
        losses.append(loss.item())
        with torch.no_grad():
            for (key, p), g in zip((("a", a), ("b", b), ("bias", bias)), gradients, strict=True):
                first, second, count = moments[key]
                first, second, count = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2, count + 1
                corrected = (second / (1 - 0.999**count)).sqrt() + 1e-8
                p -= 0.02 * first / (1 - 0.9**count) / corrected
                moments[key] = (first, second, count)
            weight += scale * b @ a - already
            already = scale * b @ a
            if reset:
                b.zero_()
                already = torch.zeros_like(already)
                moments["a"] = (torch.zeros_like(a), torch.zeros_like(a), 0)
                moments["b"] = (torch.zeros_like(b), torch.zeros_like(b), 0)
    return [losses, weight, a, b, bias]


@pytest.mark.parametrize("reset", [False, True])
def test_one_head_merged_every_step_is_lora_with_merge(reset):
    torch.manual_seed(0)
    base = nn.Linear(6, 5, **DOUBLE)
    target = torch.randn(6, 5, **DOUBLE)
    batches = [(x, x @ target) for x in (torch.randn(9, 6, **DOUBLE) for _ in range(12))]
    chosen = lte.Settings(rank=2, heads=1, merge_every=1, alpha=4.0, reset=reset, lr_adapters=0.02, lr=0.02)
    arm = lte.build(chosen, "")
    model = nn.Sequential(nn.Linear(6, 5, **DOUBLE))
    model[0].load_state_dict(base.state_dict())
    model = arm.adapt(model, {"0": "classifier"})
    layer = model[0]
    by_hand = lora_with_merge(base, layer.adapter_a.detach()[0], 2.0, reset, batches)
    optimizer, losses = arm.optimizer(model), []
    for step, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        assert arm.after_step(model, optimizer, step) == "values"
        losses.append(loss.item())
    ours = [losses, layer.weight, layer.adapter_a[0], layer.adapter_b[0], layer.bias]
    for one, other in zip(ours, by_hand, strict=True):
        torch.testing.assert_close(torch.as_tensor(one).detach(), torch.as_tensor(other).detach())


def test_one_reset_less_head_is_lora_whenever_it_merges():
    runs = []
    for merge_every in (1, 3, 100):
        torch.manual_seed(0)
        chosen = lte.Settings(rank=2, heads=1, merge_every=merge_every, alpha=4.0, lr_adapters=0.01, lr=0.01)
        arm = lte.build(chosen, "")
        model = arm.adapt(ToyEncoder().double(), TARGETS)
        runs.append(train(arm, model, arm.optimizer(model), batch(), range(8)))
    assert runs[1] == pytest.approx(runs[0], rel=1e-6)
    assert runs[2] == pytest.approx(runs[0], rel=1e-6)


def test_merges_come_on_time():
    arm = lte.build(lte.Settings(rank=2, heads=4, merge_every=3), "")
    model = arm.adapt(ToyEncoder(), TARGETS)
    optimizer = arm.optimizer(model)
    (event,) = arm.rare_events()
    due = [step for step in range(9) if arm.after_step(model, optimizer, step) == "values"]
    assert due == [2, 5, 8]
    assert due == [step for step in range(9) if step % event.period_steps == event.offset_steps]


def test_the_rare_merge_is_a_merge():
    torch.manual_seed(0)
    arm = lte.build(lte.Settings(rank=2, heads=4, merge_every=100, lr_adapters=0.01), "")
    model = arm.adapt(ToyEncoder(), TARGETS)
    optimizer = arm.optimizer(model)
    train(arm, model, optimizer, batch(), range(3))
    expected = model.hidden.averaged_weight()
    (event,) = arm.rare_events()
    assert event.name == "merge"
    assert not torch.equal(model.hidden.weight, expected)
    event.run(model, optimizer)
    assert torch.equal(model.hidden.weight, expected)


@pytest.mark.parametrize(("size", "runs"), [(1, False), (8, False), (16, True), (17, False), (128, True)])
def test_a_batch_that_cannot_be_sharded_is_unsupported(size, runs):
    reason = lte.build(lte.Settings(), "").unsupported(SimpleNamespace(batch_size=size))
    if runs:
        assert reason is None
    else:
        assert reason == f"LTE shards the batch over 16 heads, and batch size {size} is no multiple of that."


@pytest.mark.parametrize(("batch", "shares"), [(9, (3, 3, 3)), (7, (3, 3, 1)), (4, (2, 2, 0)), (1, (1, 0, 0))])
def test_the_last_heads_have_fewer_of_a_smaller_batch(batch, shares):
    """As in the last batch of an epoch: the values and all gradients are those of each head on its share."""
    torch.manual_seed(0)
    layer = trained_layer(5, 4, rank=2, heads=3)
    x = torch.randn(batch, 2, 5, **DOUBLE)
    y = layer(x)
    parts = zip(x.split(shares), changes(layer), strict=True)
    expected = torch.cat([nn.functional.linear(part, layer.weight + change, layer.bias) for part, change in parts])
    torch.testing.assert_close(y, expected)
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    for ours, theirs in zip(
        torch.autograd.grad(y.square().sum(), trained),
        torch.autograd.grad(expected.square().sum(), trained),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("rank", "n"), [(3, 8), (4, 4), (1, 5)])
def test_a_starts_with_orthogonal_rows_of_stated_length(rank, n):
    layer = LTELinear(nn.Linear(n, 6), rank, heads=5)
    expected = (n / rank) * torch.eye(rank).expand(5, rank, rank)
    torch.testing.assert_close(layer.adapter_a @ layer.adapter_a.mT, expected)
    assert not layer.adapter_b.any()
