"""Layers that read one input share their first product: the same function, gradients and independence as apart."""

import pytest
import torch
from drawn_chains import assert_all_close
from torch import nn
from torch.nn import functional as F

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
