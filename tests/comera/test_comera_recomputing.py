"""Keeping ranks instead of activations changes what is kept and nothing else, to the bit."""

import copy

import pytest
import torch
from model_states import assert_same_bits, kept_bytes
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM

import comera
from comera import TT, tensorize
from comera.recomputing import keep_ranks

WIDTH, TOKENS = 64, 32


class Block(nn.Module):
    """A block of an encoder, with dropout where BERT has it."""

    def __init__(self, activation=F.gelu) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.activation, self.dropout = activation, 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = x.shape
        query, key, value = (layer(x).view(rows, tokens, 4, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(rows, tokens, width)
        x = self.norm_1(x + F.dropout(self.o(mixed), self.dropout, self.training))
        hidden = self.activation(self.wide(x))
        return self.norm_2(x + F.dropout(self.narrow(hidden), self.dropout, self.training))


def pair(activation=F.gelu):
    """The same model that keeps activations, and that keeps ranks."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), Block(activation), Block(activation))
    tensorize(plain, {f"[12].{name}": TT(ranks=4, order=2) for name in ("[qkvo]", "wide", "narrow")})
    lean = copy.deepcopy(plain)
    keep_ranks(lean)
    return plain, lean


def drawn():
    return torch.randn(3, TOKENS, WIDTH, generator=torch.Generator().manual_seed(5))


def result(model):
    """Loss and gradients with random numbers from the same seed."""
    torch.manual_seed(1)
    model.zero_grad()
    loss = model(drawn()).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None), torch.get_rng_state()]


def kept(model):
    return kept_bytes(lambda: model(drawn()))


@pytest.mark.parametrize(
    "activation",
    [F.gelu, nn.GELU("tanh"), F.relu, F.silu, torch.tanh],
    ids=["gelu", "gelu_tanh", "relu", "silu", "tanh"],
)
def test_losses_and_gradients_are_the_same_to_the_bit(activation):
    plain, lean = pair(activation)
    for _ in range(2):
        assert_same_bits(result(lean), result(plain))


def test_a_block_keeps_three_activations_of_its_width_and_masks():
    """Block input, attention's output and what enters the feed-forward; the rest is as narrow as the ranks."""
    plain, lean = pair()
    width = drawn().nbytes
    assert kept(lean) < 0.4 * kept(plain)
    of_halves = sum(p.nbytes for p in lean.parameters()) * 8  # halves, scaled cores and partial products
    ranks = 2 * 6 * 3 * TOKENS * 4 * 4
    masks, statistics = 2 * 2 * width // 4, 2 * 8 * 3 * TOKENS * 4 * 4
    assert kept(lean) <= (2 * 3 + 1 + 1) * width + masks + ranks + statistics + of_halves


def test_each_output_is_formed_again_at_most_once(monkeypatch):
    _, lean = pair()
    formed, original = [], comera.recomputing._Recipe.value

    def noted(recipe):
        if recipe._value is None:
            formed.append(id(recipe))
        return original(recipe)

    result(lean)  # so that no object of a later pass lies where one of an earlier was
    monkeypatch.setattr(comera.recomputing._Recipe, "value", noted)
    torch.manual_seed(1)
    loss = lean(drawn()).square().mean()
    loss.backward()
    assert formed
    assert len(formed) == len(set(formed))


def test_an_operand_changed_in_place_before_backward_is_refused():
    _, lean = pair()
    loss = lean(drawn()).sum()
    with torch.no_grad():
        lean[1].wide.bias.mul_(2)
    with pytest.raises(RuntimeError, match="changed by an operation in place"):
        loss.backward()


def test_function_transforms_and_export_take_the_plain_path():
    plain, lean = pair()
    for model in (plain, lean):
        model.eval()
    wanted = plain(drawn())
    torch.testing.assert_close(torch.export.export(lean, (drawn(),)).module()(drawn()), wanted)
    torch.testing.assert_close(torch.func.vmap(lean)(drawn().unsqueeze(1)).squeeze(1), wanted)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
SMALL |= {"vocab_size": 100, "max_position_embeddings": 40}


class Blocks(nn.Module):
    """Blocks in a list, with dropout on attention's probabilities if asked for."""

    def __init__(self, number: int = 3) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList(Block() for _ in range(number))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def triple():
    """The same model that keeps activations, outputs' ranks, and the inputs of blocks."""
    torch.manual_seed(0)
    plain = tensorize(Blocks(), {"blocks.*": TT(ranks=4, order=2)})
    outputs, block = copy.deepcopy(plain), copy.deepcopy(plain)
    keep_ranks(outputs, "outputs")
    keep_ranks(block, "block")
    return plain, outputs, block


def test_blocks_keep_their_input_and_ranks():
    plain, outputs, block = triple()
    for _ in range(2):
        wanted = result(plain)
        assert_same_bits(result(outputs), wanted)
        assert_same_bits(result(block), wanted)
    width = drawn().nbytes
    assert kept(block) <= kept(outputs) - 3 * 2 * width + 3 * width // 8


def test_attention_in_a_block_is_formed_again_once_with_its_random_numbers(monkeypatch):
    torch.manual_seed(0)
    config = BertConfig(**SMALL, attention_probs_dropout_prob=0.3)
    plain = tensorize(BertForMaskedLM(config), {"*.layer.*": TT(ranks=2, order=2)})
    lean = copy.deepcopy(plain)
    keep_ranks(lean, "block")
    tokens = torch.randint(5, 100, (4, 16), generator=torch.Generator().manual_seed(2))
    calls, again = [], comera.recomputing._Attention.again
    monkeypatch.setattr(comera.recomputing._Attention, "again", lambda *a: calls.append(1) or again(*a))
    found = []
    for model in (plain, lean):
        torch.manual_seed(1)
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([loss.detach(), *grads, torch.get_rng_state()])
    assert_same_bits(*found)
    assert len(calls) == SMALL["num_hidden_layers"]
