"""The encoder model: the paper's counts, and arithmetic that agrees with torch's own layers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F

import comera.dropout
from bench.core.checked import build_dataclass
from bench.errors import ConfigError
from bench.protocol import Data
from bench.workloads.encoder import EncoderClassifier, EncoderSettings, EncoderWorkload
from comera.protocol import LINEAR_ROLES

SMALL = EncoderSettings(
    layers=2, width=24, heads=3, feed_forward=40, vocabulary=500, positions=64, dropout=0.1, sequence_length=48
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """So small a model only loses by a second thread, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random_batch(lengths: list[int], width: int, vocabulary: int = SMALL.vocabulary) -> dict[str, torch.Tensor]:
    """Token ids for examples of these lengths, padded to ``width``."""
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, vocabulary, (len(lengths), width)) * mask
    types = torch.randint(0, 2, (len(lengths), width)) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


class TestCounts:
    def test_the_model_has_the_papers_parameters(self):
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

    def test_targets_are_37_linear_weights_and_the_word_embedding(self):
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

    def test_the_model_builds_and_runs_on_fake_tensors(self):
        with FakeTensorMode():
            model = EncoderClassifier(SMALL)
            assert all(isinstance(parameter, FakeTensor) for parameter in model.parameters())
            scores = model(**random_batch([5, 7], 8))
            scores.sum().backward()
        assert scores.shape == (2, 3)
        assert all(parameter.grad is not None for parameter in model.parameters())


class TestModel:
    def test_it_starts_as_documented(self):
        torch.manual_seed(0)
        model = EncoderClassifier(dataclasses.replace(SMALL, width=96))
        for name, parameter in model.named_parameters():
            if "norm" in name:
                assert bool((parameter == (1 if name.endswith("weight") else 0)).all()), name
            elif name.endswith("bias"):
                assert not parameter.any(), name
            elif parameter.numel() > 1_000:
                assert parameter.std().item() == pytest.approx(0.02, rel=0.1), name
        assert not model.embeddings.word.weight[0].any()

    def test_the_seed_decides_the_start(self):
        def first_weights(seed):
            torch.manual_seed(seed)
            return torch.cat([parameter.flatten() for parameter in EncoderClassifier(SMALL).parameters()])

        assert torch.equal(first_weights(1), first_weights(1))
        assert not torch.equal(first_weights(1), first_weights(2))

    def test_the_blocks_compute_what_torchs_own_encoder_layer_does(self):
        """nn.TransformerEncoderLayer, post-LN with GELU, given the same weights."""
        torch.manual_seed(0)
        model = EncoderClassifier(SMALL).double().eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        batch = random_batch([9, 4, 1], 9)
        x = model.embeddings(batch["input_ids"], batch["token_type_ids"])
        for block in model.blocks:
            layer = nn.TransformerEncoderLayer(
                SMALL.width, SMALL.heads, SMALL.feed_forward, 0.1, F.gelu, 1e-9, batch_first=True, dtype=torch.float64
            ).eval()
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
        hidden, classes = model.classifier.hidden, model.classifier.classes
        expected = torch.tanh(x[:, 0] @ hidden.weight.T + hidden.bias) @ classes.weight.T + classes.bias
        torch.testing.assert_close(model(**batch), expected)

    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(0, 12))
    def test_padding_does_not_change_what_is_said_of_real_tokens(self, lengths, more):
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

    def test_order_and_segments_matter(self):
        torch.manual_seed(0)
        model = EncoderClassifier(SMALL).double().eval()
        batch = random_batch([6], 6)
        scores = model(**batch)
        turned = batch | {"input_ids": batch["input_ids"][:, [0, 2, 1, 3, 4, 5]]}
        other = batch | {"token_type_ids": 1 - batch["token_type_ids"]}
        assert not torch.allclose(model(**turned), scores, atol=1e-9)
        assert not torch.allclose(model(**other), scores, atol=1e-9)

    def test_dropout_acts_once_after_the_embeddings_and_after_each_sub_layer(self, monkeypatch):
        calls = []
        real = comera.dropout.dropout
        monkeypatch.setattr(
            comera.dropout, "dropout", lambda x, *rest: calls.append((x.shape, *rest)) or real(x, *rest)
        )
        model = EncoderClassifier(SMALL)
        model(**random_batch([7, 3], 7))
        assert calls == [((2, 7, SMALL.width), 0.1, True)] * (1 + 2 * SMALL.layers)

    def test_a_sequence_beyond_the_positions_is_refused(self):
        with pytest.raises(ValueError, match="the sequence has 65 tokens; the model has positions for 64"):
            EncoderClassifier(SMALL)(**random_batch([65], 65))

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"layers": 0}, "model.layers is 0; allowed: whole numbers from 1 to 10,000."),
            ({"width": 76.8}, "model.width is 76.8; allowed: whole numbers from 1 to 262,144."),
            ({"vocabulary": True}, "model.vocabulary is True; allowed: whole numbers from 1 to 134,217,728."),
            ({"heads": 5}, "model: heads is 5; allowed: divisors of the width 24 (1, 2, 3, 4, 6, 8, 12, 24)"),
            ({"classes": 1}, "model.classes is 1; allowed: whole numbers from 2 to 262,144."),
            ({"sequence_length": 4}, "model.sequence_length is 4; allowed: whole numbers from 5 to 1,048,576."),
            ({"sequence_length": 65}, "model: sequence_length is 65; allowed: 5 to positions (64)"),
            ({"dropout": 1.0}, "model.dropout is 1.0; allowed: numbers from 0 to below 1."),
            ({"dropout": float("nan")}, "model.dropout is nan; allowed: numbers from 0 to below 1."),
            ({"dropout": "0.1"}, "model.dropout is '0.1'; allowed: numbers from 0 to below 1."),
        ],
    )
    def test_a_wrong_setting_is_one_sentence(self, changes, sentence):
        with pytest.raises(ConfigError) as caught:
            build_dataclass(EncoderSettings, {**dataclasses.asdict(SMALL), **changes}, "model")
        assert str(caught.value) == sentence
