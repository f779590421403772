"""Tensorized models on disk, made dense again, exported."""

import io
import json

import numpy as np
import onnx
import pytest
import torch
from drawn_chains import assert_all_close
from model_states import truncated
from onnx.reference import ReferenceEvaluator
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

import comera

BERT = BertConfig(
    hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, vocab_size=100, num_labels=2
)
GPT2 = GPT2Config(n_embd=48, n_layer=1, n_head=4, vocab_size=100, n_positions=16, bos_token_id=0, eos_token_id=0)
TOKENS = torch.randint(1, 100, (2, 6), generator=torch.Generator().manual_seed(0))


def tied_models():
    torch.manual_seed(0)
    bert = comera.tensorize(
        BertForMaskedLM(BERT), {"*.word_embeddings": comera.TTM(8, order=3), "*.encoder.*": comera.TT(8)}
    )
    plan = {"*.wte": comera.TTM(8, order=3), "*.h.*": comera.TT(ranks=8, order=2)}
    return {"bert": truncated(bert), "gpt2": truncated(comera.tensorize(GPT2LMHeadModel(GPT2), plan))}


def plain_model():
    model = nn.ModuleDict(
        {
            "table": nn.Embedding(40, 12, padding_idx=0),
            "bag": nn.EmbeddingBag(40, 12, mode="mean"),
            "attention": nn.MultiheadAttention(12, 2),
            "one": nn.Linear(12, 12),
            "other": nn.Linear(12, 12, bias=False),
            "norm": nn.BatchNorm1d(12),
        }
    )
    model["other"].weight = model["one"].weight
    return model


def plain_tensorized(dtype=torch.float32):
    torch.manual_seed(0)
    plan = {"table": comera.TTM(4, order=2), "bag": comera.TTM(4, order=2, lookup="plain"), "*": comera.TT(4, order=2)}
    return truncated(comera.tensorize(plain_model().to(dtype), plan))


def outputs(model):
    tokens = torch.arange(10).view(2, 5)
    x = model["table"](tokens) + model["bag"](tokens)[:, None]
    return [x, model["norm"](model["other"](model["one"](model["attention"](x, x, x)[0])).flatten(0, 1))]


def test_any_module_is_loaded_into_its_dense_twin(tmp_path):
    model = plain_tensorized(torch.bfloat16)
    comera.save_pretrained(model, tmp_path)
    loaded = comera.load_pretrained(tmp_path, plain_model().eval(), merge_jointly=False)
    assert all(map(torch.equal, outputs(loaded), outputs(model)))
    assert loaded["one"].packed_cores is loaded["other"].packed_cores
    assert (loaded["bag"].lookup, loaded["table"].padding_idx) == ("plain", 0)


def test_a_model_under_rank_control_is_saved_as_without(tmp_path):
    model = plain_tensorized()
    optimizer = torch.optim.AdamW(comera.parameter_groups(model))
    comera.control_ranks(model, optimizer, comera.RankPlan(early_steps=3))
    comera.save_pretrained(model, tmp_path)
    assert all(map(torch.equal, outputs(comera.load_pretrained(tmp_path, plain_model().eval())), outputs(model)))


def cut_short(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-20])


def described(**changes):
    def change(folder):
        content = json.loads((folder / "comera.json").read_text())
        content["layers"]["attention.q_proj"] |= changes
        (folder / "comera.json").write_text(json.dumps(content))

    return change


def without_an_entry(folder):
    content = json.loads((folder / "comera.json").read_text())
    del content["layers"]["attention.q_proj"]["threshold"]
    (folder / "comera.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: (folder / "comera.json").unlink(), "comera.json"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: (folder / "comera.json").write_text("{"), "comera.json"),
        (cut_short, "model.safetensors"),
        (described(ranks=[1, 2, 1]), r"attention\.q_proj\.\w+"),
        (described(ranks=[1, 2]), "comera.json"),
        (described(in_modes=[5, 5]), "comera.json"),
        (without_an_entry, "threshold"),
    ],
)
def test_a_damaged_folder_is_one_sentence_and_changes_nothing(damage, named, tmp_path):
    comera.save_pretrained(plain_tensorized(), tmp_path)
    damage(tmp_path)
    model = plain_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=named):
        comera.load_pretrained(tmp_path, model)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_dense_model_is_the_class_s_own(kind):
    """Its state dict loads into a fresh model of the class, whose ties hold again."""
    model = tied_models()[kind].double()
    dense = comera.to_dense_model(model)
    assert_all_close([dense(TOKENS).logits], [model(TOKENS).logits])
    assert not comera.tensorized_layers(dense)
    assert comera.tensorized_layers(model)
    assert dense.get_output_embeddings().weight is dense.get_input_embeddings().weight
    dense.tie_weights()
    fresh = type(model)(model.config).double().eval()
    assert {type(module) for module in dense.modules()} == {type(module) for module in fresh.modules()}
    assert (kind == "gpt2") == any(isinstance(module, Conv1D) for module in dense.modules())
    fresh.load_state_dict(dense.state_dict())
    assert torch.equal(fresh(TOKENS).logits, dense(TOKENS).logits)


def test_a_dense_model_of_any_module():
    model = plain_tensorized(torch.float64)
    for parameter in model["bag"].parameters():
        parameter.requires_grad_(False)
    dense = comera.to_dense_model(model)
    assert_all_close(outputs(dense), outputs(model))
    assert dense["one"].weight is dense["other"].weight
    assert (dense["table"].padding_idx, dense["bag"].mode) == (0, "mean")
    assert not dense["bag"].weight.requires_grad
    assert isinstance(comera.to_dense_model(comera.TTLinear(4, 4, (4,), (4,), 2)), nn.Linear)


class Classifier(nn.Module):
    """A table, attention and a feed-forward, as in an encoder."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 32)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.scores = nn.Linear(32, 3)

    def forward(self, tokens):
        return self.scores(self.block(self.table(tokens)).mean(1))


@pytest.fixture
def classifier():
    torch.manual_seed(0)
    plan = {"table": comera.TTM(8, order=3), "scores": None, "*": comera.TT(8, order=2)}
    return truncated(comera.tensorize(Classifier(), plan))


@pytest.mark.slow
def test_torch_export_takes_a_tensorized_model(classifier):
    program = torch.export.export(classifier, (TOKENS,))
    torch.testing.assert_close(program.module()(TOKENS), classifier(TOKENS))
    stored = io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    torch.testing.assert_close(torch.export.load(stored).module()(TOKENS), classifier(TOKENS))


@pytest.mark.slow
def test_onnx_takes_a_tensorized_model(classifier, tmp_path):
    file = tmp_path / "model.onnx"
    torch.onnx.export(classifier, (TOKENS,), file, dynamo=True, verbose=False)
    onnx.checker.check_model(str(file))
    [found] = ReferenceEvaluator(str(file)).run(None, {"tokens": TOKENS.numpy()})
    np.testing.assert_allclose(found, classifier(TOKENS).detach().numpy(), rtol=1e-4, atol=1e-5)
    stored = sum(np.prod(each.dims) for each in onnx.load(file).graph.initializer)
    assert stored < sum(parameter.numel() for parameter in Classifier().parameters())
