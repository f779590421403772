"""The encoder model: the paper's counts, and arithmetic that agrees with torch's own layers."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from bench.protocol import Data
from bench.workloads.encoder import EncoderClassifier, EncoderSettings, EncoderWorkload
from comera.protocol import LINEAR_ROLES

SMALL = EncoderSettings(
    layers=2, width=24, heads=3, feed_forward=40, vocabulary=500, positions=64, dropout=0.1, sequence_length=48
)


def random_batch(lengths: list[int], width: int) -> dict[str, torch.Tensor]:
    """Token ids for examples of these lengths, padded to ``width``."""
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, SMALL.vocabulary, (len(lengths), width)) * mask
    types = torch.randint(0, 2, (len(lengths), width)) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def test_the_model_has_the_papers_parameters():
    with torch.device("meta"):
        model = EncoderClassifier(EncoderSettings())
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert sum(sizes.values()) == 66_957_315
    targets = [f"{name}.weight" for name in EncoderWorkload.open(EncoderSettings(), Data(), True, {}).targets()]
    dense = {name: size for name, size in sizes.items() if name not in targets}
    assert sum(dense.values()) == 459_267
    assert sizes["embeddings.word.weight"] == 23_440_896
    groups = {
        "embeddings.position.weight": 512 * 768,
        "embeddings.segment.weight": 2 * 768,
        "classifier.classes": 3 * 768 + 3,
        "norm": (1 + 2 * 6) * 2 * 768,
        "bias": 6 * (5 * 768 + 3072) + 768,
    }
    for key, expected in groups.items():
        found = [name for name in dense if key in name and (key != "bias" or "norm" not in name)]
        assert sum(dense[name] for name in found) == expected, key
        for name in found:
            del dense[name]
    assert not dense


def test_targets_are_37_linear_weights_and_the_word_embedding():
    full = EncoderWorkload.open(EncoderSettings(), Data(), True, {})
    with torch.device("meta"):
        modules = dict(full.build().named_modules())
    targets = full.targets()
    assert {name for name, role in targets.items() if role == "embedding"} == {"embeddings.word"}
    linear = [name for name, role in targets.items() if role in LINEAR_ROLES]
    assert len(linear) == 37
    assert all(isinstance(modules[name], nn.Linear) for name in linear)
    others = {name for name, module in modules.items() if isinstance(module, nn.Linear)} - set(linear)
    assert others == {"classifier.classes"}
    assert isinstance(modules["embeddings.word"], nn.Embedding)
    assert [list(targets.values()).count(role) for role in LINEAR_ROLES] == [24, 12, 1]


@pytest.mark.parametrize("pre_norm", [False, True])
def test_the_blocks_compute_what_torchs_own_encoder_layer_does(pre_norm):
    """nn.TransformerEncoderLayer with GELU, given the same weights; a last norm follows pre-LN blocks."""
    torch.manual_seed(0)
    model = EncoderClassifier(dataclasses.replace(SMALL, pre_norm=pre_norm)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    batch = random_batch([9, 4, 1], 9)
    x = model.embeddings(batch["input_ids"], batch["token_type_ids"])
    for block in model.blocks:
        sizes = (SMALL.width, SMALL.heads, SMALL.feed_forward, 0.1, F.gelu, 1e-9)
        layer = nn.TransformerEncoderLayer(*sizes, batch_first=True, norm_first=pre_norm, dtype=torch.float64).eval()
        attention, feed_forward = block.attention, block.feed_forward
        for kind in ("weight", "bias"):
            parts = [getattr(part, kind) for part in (attention.query, attention.key, attention.value)]
            getattr(layer.self_attn, f"in_proj_{kind}").data = torch.cat(parts).detach()
            for ours, theirs in (
                (attention.output, layer.self_attn.out_proj),
                (feed_forward.expand, layer.linear1),
                (feed_forward.contract, layer.linear2),
                (block.attention_norm, layer.norm1),
                (block.feed_forward_norm, layer.norm2),
            ):
                getattr(theirs, kind).data = getattr(ours, kind).detach()
        x = layer(x, src_key_padding_mask=~batch["attention_mask"])
    x = x if model.norm is None else model.norm(x)
    hidden, classes = model.classifier.hidden, model.classifier.classes
    expected = torch.tanh(x[:, 0] @ hidden.weight.T + hidden.bias) @ classes.weight.T + classes.bias
    torch.testing.assert_close(model(**batch), expected)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(0, 12))
def test_padding_does_not_change_what_is_said_of_real_tokens(lengths, more):
    torch.manual_seed(len(lengths) + more)
    model = EncoderClassifier(SMALL).double().eval()
    width = max(lengths) + more
    batch = random_batch(lengths, width)
    scores = model(**batch)
    for row, length in enumerate(lengths):
        alone = {name: tensor[row : row + 1, :length] for name, tensor in batch.items()}
        torch.testing.assert_close(model(**alone), scores[row : row + 1], rtol=1e-12, atol=1e-12)
    noise = torch.randint(0, SMALL.vocabulary, (len(lengths), width))
    batch["input_ids"] = torch.where(batch["attention_mask"], batch["input_ids"], noise)
    torch.testing.assert_close(model(**batch), scores, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("autocast", [False, True])
def test_the_mask_as_numbers_gives_the_bits_of_the_mask_itself(autocast):
    torch.manual_seed(0)
    settings = EncoderSettings(layers=2, width=16, heads=2, feed_forward=32, vocabulary=50, dropout=0.0)
    model = EncoderClassifier(settings)
    x, mask = torch.randn(3, 7, 16), (torch.arange(7) < torch.tensor([[7], [4], [1]]))[:, None, None, :]
    found = []
    for blocks in (model.encode, lambda x, mask: model.blocks[1](model.blocks[0](x, mask), mask)):
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = blocks(leaf, mask)
        y.square().sum().backward()
        found.append((y, leaf.grad))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
