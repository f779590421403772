"""Dropout by bits: its law, what it keeps, and where torch's own is taken."""

import contextlib
import copy

import pytest
import torch
from torch import nn

from comera import TT, tensorize
from comera.dropout import Dropout, as_on_cuda, drawn_bits, dropout, met_probability
from comera.recomputing import keep_ranks


@pytest.mark.parametrize("p", [0.1, 1 / 3])
def test_each_entry_is_kept_with_the_probability(p):
    torch.manual_seed(0)
    n = 2_000_000
    found = dropout(torch.ones(n), p)
    keep = met_probability(p)
    assert abs(keep - (1 - p)) <= 2**-17
    assert set(found.unique().tolist()) == {0.0, torch.tensor(1 / keep).item()}
    deviation = (n * keep * (1 - keep)) ** 0.5
    assert abs((found > 0).sum().item() - n * keep) < 5 * deviation
    per_place = (found > 0).view(-1, 64).double().mean(0)  # each of the 64 bits of a word
    assert (per_place - keep).abs().max() < 5 * (keep * (1 - keep) / (n / 64)) ** 0.5


def test_the_mean_is_that_of_the_input_and_gradients_have_the_mask():
    torch.manual_seed(0)
    x = torch.randn(3, 5, 7, requires_grad=True)
    y = dropout(x, 0.4)
    kept = y.detach() != 0
    y.backward(torch.full_like(y, 2.0))
    scale = 1 / met_probability(0.4)
    torch.testing.assert_close(y.detach(), x.detach() * kept * scale)
    torch.testing.assert_close(x.grad, 2 * scale * kept.float())
    mean = torch.stack([dropout(x.detach(), 0.4) for _ in range(4000)]).mean(0)
    torch.testing.assert_close(mean, x.detach(), atol=0.15, rtol=0)


def test_a_bit_per_entry_is_kept():
    kept = []
    x = torch.ones(64 * 100, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):
        dropout(x, 0.1)
    assert kept == [800]


def test_the_seed_and_a_restored_state_give_the_same_bits():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = drawn_bits(1000, 0.7), drawn_bits(1000, 0.7)
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(drawn_bits(1000, 0.7), first)
    torch.manual_seed(3)
    assert torch.equal(drawn_bits(1000, 0.7), first)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (63,), (2, 65)])
def test_any_shape_and_type(dtype, shape):
    x = torch.ones(shape, dtype=dtype)
    y = dropout(x, 0.5)
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert bool(((y == 0) | (y == 2)).all())


def test_compiled_calls_draw_bits_of_their_own_and_seeds_repeat_them():
    torch.compiler.reset()
    both = torch.compile(lambda x: (dropout(x, 0.25), dropout(x, 0.25)), backend="aot_eager", fullgraph=True)
    x = torch.ones(8, 777, requires_grad=True)
    torch.manual_seed(0)
    first, second = both(x)
    torch.testing.assert_close(first.unique(), torch.tensor([0, 1 / met_probability(0.25)]))
    assert 0.3 < ((first > 0) != (second > 0)).double().mean() < 0.45  # 2 · 0.25 · 0.75, where masks are independent
    (2 * first).sum().backward()
    torch.testing.assert_close(x.grad, 2 * first.detach())
    assert not torch.equal(both(x)[0], first)
    torch.manual_seed(0)
    assert torch.equal(both(x)[0], first)


class Block(nn.Module):
    def __init__(self, drop) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(64, 64), drop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.drop(self.layer(x))).square()


class NativeDropout(nn.Module):
    """What a GPU's dropout computes, on a CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout(x, 0.3, True)[0]


@pytest.mark.parametrize("drop", [Dropout(0.3), nn.Dropout(0.3), NativeDropout()], ids=["own", "torch", "cuda"])
def test_recomputed_activations_have_the_same_mask(drop):
    torch.manual_seed(0)
    plain = tensorize(nn.Sequential(Block(drop), Block(drop)), {"*.layer": TT(ranks=2, order=2)})
    lean = copy.deepcopy(plain)
    keep_ranks(lean)
    found = []
    with as_on_cuda() if isinstance(drop, NativeDropout) else contextlib.nullcontext():
        for block in lean:
            block.drop = nn.Dropout(0.3) if isinstance(drop, NativeDropout) else drop
        for model in (plain, lean):
            torch.manual_seed(1)
            loss = model(torch.ones(9, 64)).mean()
            loss.backward()
            found.append([loss.detach(), *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
