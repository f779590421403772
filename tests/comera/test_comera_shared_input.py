"""Layers that read one input share their first product: the same function, gradients and independence as apart."""

from __future__ import annotations

import copy

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from comera import TT, tensorize, truncate
from comera.contraction import joint_merging
from comera.contraction.shared_input import stacked_products
from comera.tracing import siblings_in

WIDTH, HEADS = 12, 2


class Attention(nn.Module):
    """Attention whose key may be left out, and whose value may read something else."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return self.output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.fixture
def pair():
    """The same model with and without joint merging, in float64."""
    torch.manual_seed(0)
    plan = {"*": TT(ranks=4, order=2)}
    together = tensorize(Model().double(), plan)
    alone = tensorize(Model().double(), plan, merge_jointly=False)
    alone.load_state_dict(together.state_dict())
    return together, alone


@pytest.fixture
def reads(monkeypatch):
    """How many layers shared each product that was formed."""
    seen = []

    def counted(x, lefts):
        seen.append(len(lefts))
        return stacked_products(x, lefts)

    monkeypatch.setattr(joint_merging, "stacked_products", counted)
    return seen


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def gradients(model: nn.Module, loss: torch.Tensor) -> list[torch.Tensor | None]:
    model.zero_grad()
    loss.backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def test_query_key_and_value_are_found_and_read_their_input_once(pair, reads):
    together, alone = pair
    x, again = drawn(3, 5).requires_grad_(), drawn(3, 5).requires_grad_()
    for _ in range(2):
        found = gradients(together, together(x).square().sum())
        wanted = gradients(alone, alone(again).square().sum())
        assert_all_close([*found, x.grad], [*wanted, again.grad])
    assert reads == [3] * 4
    block = together.blocks[0]
    assert siblings_in(together)[block.key] == (block.query, block.key, block.value)
    assert block.output not in siblings_in(together)


def test_gradients_of_gradients(pair):
    found = []
    for model in pair:
        x = drawn(2, 3).requires_grad_()
        with sdpa_kernel(SDPBackend.MATH):
            [first] = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(first.square().sum(), [x, *model.parameters()]))
    assert_all_close(*found)


def test_a_layer_that_took_no_part_has_no_gradient(pair, reads):
    def without_key(block, x):
        q, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (block.query, block.value))
        return block.output(F.scaled_dot_product_attention(q, q, v).transpose(1, 2).flatten(-2))

    found = []
    for model in pair:
        for block in model.blocks:
            block.forward = without_key.__get__(block)
        found.append(gradients(model, model(drawn(2, 3)).square().sum()))
        assert model.blocks[1].key.packed_cores.grad is None
    assert reads == [3, 3]
    assert [g is None for g in found[0]] == [g is None for g in found[1]]
    assert_all_close(*([g for g in one if g is not None] for one in found))


@pytest.mark.parametrize("changed", ["another tensor", "in place", "autocast", "a frozen sibling", "no ranks"])
def test_only_what_a_layer_would_compute_itself_is_taken(changed, pair):
    """Whatever happens between query and key."""

    def other_key(block, x):
        q = block.query(x)
        with torch.no_grad():
            x = x.clone() if changed == "another tensor" else x
            if changed == "in place":
                x += 1.0
        with torch.autocast("cpu", enabled=changed == "autocast"):
            k = block.key(x).to(x.dtype)
        heads = (value.unflatten(-1, (HEADS, -1)).transpose(1, 2) for value in (q, k, block.value(x)))
        return block.output(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2))

    results = []
    for model in pair:
        model.float() if changed == "autocast" else None
        for block in model.blocks:
            block.forward = other_key.__get__(block)
            if changed == "a frozen sibling":
                block.key.requires_grad_(False)
            if changed == "no ranks":
                with torch.no_grad():
                    block.key.diagonals.zero_()
        if changed == "no ranks":
            truncate(model)
        with torch.no_grad():
            results.append(model(drawn(2, 3).to(next(model.parameters()).dtype)))
        if changed in ("a frozen sibling", "no ranks"):
            results[-1] = torch.stack([results[-1], model(drawn(2, 3))])
    torch.testing.assert_close(
        *results, rtol=1e-10 if changed != "autocast" else 1e-2, atol=1e-3 * (changed == "autocast")
    )


def test_heads_of_one_input_stay_independent():
    """Two losses, each with its own backward pass and no retained graph."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.one(x), self.other(x)

    model = tensorize(Heads(), {"*": TT(ranks=4, order=2)})
    assert siblings_in(model) == {}
    one, other = model(torch.ones(2, WIDTH))
    one.sum().backward()
    other.sum().backward()


def test_autocast_and_a_copy(pair, reads):
    together, alone = (copy.deepcopy(model).float() for model in pair)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = together(drawn(2, 3).float()), alone(drawn(2, 3).float())
    assert reads == [3, 3]
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    assert (together.blocks[0].query(drawn(2).float()).dtype, len(reads)) == (torch.float32, 2)  # outside of a call
