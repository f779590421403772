"""Tensorized models saved, opened and resized by the package transformers itself."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from model_states import truncated
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    CLIPConfig,
    CLIPModel,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPVisionModel,
    GPT2Config,
    LlamaConfig,
)

import comera

ROOT = Path(comera.__file__).resolve().parents[1]
TOKENS = torch.randint(3, 100, (2, 6), generator=torch.Generator().manual_seed(0))
SPECIAL = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
LLAMA = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    **SPECIAL,
}
BERT = BertConfig(
    hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, vocab_size=100, num_labels=2
)
TABLE, LINEAR = comera.TTM(8, row_modes=(5, 5, 5), column_modes=(3, 4, 4)), comera.TT(8, order=2)
MODELS = {
    "gpt2": (
        AutoModelForCausalLM,
        GPT2Config(n_embd=48, n_layer=1, n_head=4, vocab_size=100, n_positions=16, **SPECIAL),
        {"*.wte": TABLE, "*.h.*": LINEAR},
    ),
    "llama": (AutoModelForCausalLM, LlamaConfig(**LLAMA), {"*.embed_tokens": TABLE, "*.layers.*": LINEAR}),
    "llama, tensorized head": (
        AutoModelForCausalLM,
        LlamaConfig(**LLAMA),
        {"*.embed_tokens": TABLE, "*.layers.*": LINEAR, "lm_head": LINEAR},
    ),
    "llama, tied": (
        AutoModelForCausalLM,
        LlamaConfig(**LLAMA, tie_word_embeddings=True),
        {"*.embed_tokens": TABLE, "*.layers.*": LINEAR},
    ),
    "bert": (AutoModelForMaskedLM, BERT, {"*.word_embeddings": TABLE, "*.encoder.*": LINEAR}),
}
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "mixed": torch.bfloat16}


def dense(name, kind="float32"):
    """A dense model with a configuration of its own, since types and resizing are written to it."""
    auto, config, _ = MODELS[name]
    return auto.from_config(copy.deepcopy(config), dtype=TYPES[kind]).eval()


def built(name, kind="float32"):
    torch.manual_seed(0)
    model = truncated(comera.tensorize(dense(name, kind), MODELS[name][2]))
    if kind == "mixed":
        for module in model.modules():
            if isinstance(module, nn.LayerNorm) or "Norm" in type(module).__name__:
                module.float()
        for layer in comera.tensorized_layers(model):
            layer.diagonals.data = layer.diagonals.data.float()
    return model


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def assert_same(loaded, model):
    """The class, names, types and entries of parameters and buffers, ties, ranks and thresholds."""
    assert type(loaded) is type(model)
    for tensors in ("named_parameters", "named_buffers"):
        found, wanted = dict(getattr(loaded, tensors)()), dict(getattr(model, tensors)())
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert found[name].dtype == tensor.dtype, name
            assert torch.equal(found[name], tensor), name
    assert comera.ranks_of(loaded) == comera.ranks_of(model)
    assert {layer.threshold for layer in comera.tensorized_layers(loaded)} == {0.02}
    for each in (loaded, model):
        assert not hasattr(each.config, "quantization_config")
        assert not hasattr(each.config, "fusion_config")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("llama, tied", kind) for kind in TYPES),
        *(("gpt2", "float32"), ("gpt2", "mixed"), ("bert", "bfloat16"), ("bert", "mixed")),
        *(("llama", "bfloat16"), ("llama, tensorized head", "float16")),
    ],
)
def test_every_tensor_comes_back_in_the_type_in_which_it_was_saved(name, kind, tmp_path):
    model = built(name, kind)
    model.save_pretrained(tmp_path, max_shard_size=5_000)
    loaded, report = MODELS[name][0].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    torch.manual_seed(1)
    for each in (loaded, comera.load_pretrained(tmp_path), comera.load_pretrained(tmp_path, dense(name, kind))):
        assert_same(each, model)
        if kind != "mixed":  # dense layers take one type
            assert torch.equal(logits(each), logits(model))
    assert (tmp_path / "model.safetensors.index.json").exists()


WITHOUT_COMERA_THEN_WITH = """
import sys
from transformers import AutoModelForCausalLM, GPT2LMHeadModel
for kind in (AutoModelForCausalLM, GPT2LMHeadModel):
    try:
        kind.from_pretrained(sys.argv[1])
    except ValueError as error:
        print("comera" in str(error))
import comera
print(len(comera.tensorized_layers(GPT2LMHeadModel.from_pretrained(sys.argv[1]))))
"""
BEFORE_TRANSFORMERS = """
import sys, comera
print("transformers" in sys.modules)
from transformers import AutoModelForCausalLM
print(len(comera.tensorized_layers(AutoModelForCausalLM.from_pretrained(sys.argv[1]))))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "printed"), [(WITHOUT_COMERA_THEN_WITH, ["True", "True", "5"]), (BEFORE_TRANSFORMERS, ["False", "5"])]
)
def test_a_process_without_comera_stops_and_names_it_and_one_with_comera_opens_the_folder(script, printed, tmp_path):
    built("gpt2").save_pretrained(tmp_path)
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == printed


def test_another_head_or_none_takes_the_layers_that_it_has(tmp_path):
    model = built("bert")
    model.save_pretrained(tmp_path / "masked")
    body = AutoModel.from_pretrained(tmp_path / "masked", add_pooling_layer=False)
    assert comera.ranks_of(body) == {
        name.removeprefix("bert."): ranks for name, ranks in comera.ranks_of(model).items()
    }
    body.save_pretrained(tmp_path / "body")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "body")
    assert comera.ranks_of(again) == comera.ranks_of(model)
    assert again.get_output_embeddings().embedding is again.get_input_embeddings()
    hidden = [each(TOKENS, output_hidden_states=True).hidden_states[-1] for each in (model, body, again)]
    assert torch.equal(hidden[0], hidden[1])
    assert torch.equal(hidden[0], hidden[2])
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "masked")
    assert comera.ranks_of(classifier) == comera.ranks_of(model)


def test_the_ranks_are_those_of_the_moment_and_a_control_is_no_part_of_the_model(tmp_path):
    model = built("gpt2")
    optimizer = torch.optim.AdamW(comera.parameter_groups(model))
    comera.control_ranks(model, optimizer, comera.RankPlan(early_steps=3))
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        model.get_input_embeddings().diagonals[0] = 0.0
    comera.truncate(model, optimizer)
    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert_same(loaded, model)
    assert_same(comera.load_pretrained(tmp_path), model)


def test_a_folder_of_version_0_2_0_is_loaded(tmp_path):
    """Its description is a file of its own."""
    model = built("bert")
    comera.save_pretrained(model, tmp_path)
    assert not (tmp_path / "comera.json").exists()
    config = json.loads((tmp_path / "config.json").read_text())
    description = config.pop("quantization_config")
    del config["fusion_config"], description["quant_method"], description["dtype"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "comera.json").write_text(json.dumps(description))
    assert_same(comera.load_pretrained(tmp_path), model)
    assert_same(comera.load_pretrained(tmp_path, dense("bert")), model)


def without_cores(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.0.mlp.c_fc.packed_cores"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


WTE = {"row_modes": [5, 5, 5], "column_modes": [3, 4, 4], "lookup": "optimized", "threshold": 0.02}


def described(**changes):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] |= changes
        (folder / "config.json").write_text(json.dumps(config))

    return change


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (without_cores, r"mlp\.c_fc\.packed_cores"),
        (described(format=2), "format"),
        (described(layers=None), "layers"),
        (described(layers={"no.such.layer": {}}), r"no\.such\.layer"),
        (described(layers={"transformer.wte": {"row_modes": [5, 5, 5]}}), "column_modes"),
        (described(layers={"transformer.wte": {**WTE, "ranks": [8]}}), r"8"),
    ],
)
def test_a_damaged_folder_gives_no_model(damage, named, tmp_path):
    built("gpt2").save_pretrained(tmp_path)
    damage(tmp_path)
    for load in (AutoModelForCausalLM.from_pretrained, comera.load_pretrained):
        with pytest.raises(ValueError, match=named):
            load(tmp_path)


def small_clip():
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = sizes | {"vocab_size": 64, "max_position_embeddings": 8, "projection_dim": 16}
    vision = sizes | {"image_size": 8, "patch_size": 4, "projection_dim": 16}
    torch.manual_seed(0)
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).eval()


def output_of(model, ids, image):
    """Return the output of CLIP or of one of its parts."""
    if isinstance(model, CLIPModel):
        return model(ids, image).logits_per_text
    if isinstance(model, CLIPTextModelWithProjection):
        return model(ids).text_embeds
    return model(image if isinstance(model, CLIPVisionModel) else ids).pooler_output


@pytest.mark.parametrize("plan", [{"*_model.encoder.*": LINEAR}, {"text_model.*": LINEAR, "text_projection": LINEAR}])
@pytest.mark.parametrize("kind", [CLIPModel, CLIPTextModel, CLIPVisionModel, CLIPTextModelWithProjection])
def test_a_part_of_a_composite_model_is_loaded_from_its_folder(kind, plan, tmp_path):
    clip = small_clip()
    if "text_projection" in plan:
        plan = {"text_model.embeddings.*": None, **plan}
    comera.tensorize(clip, plan)
    clip.save_pretrained(tmp_path / "whole")
    assert "comera" not in str(clip.config.to_dict())
    ids, image = torch.randint(0, 64, (2, 6)), torch.randn(2, 3, 8, 8)
    wanted = {
        CLIPModel: lambda: output_of(clip, ids, image),
        CLIPTextModel: lambda: clip.text_model(ids).pooler_output,
        CLIPVisionModel: lambda: clip.vision_model(image).pooler_output,
        CLIPTextModelWithProjection: lambda: clip.text_projection(clip.text_model(ids).pooler_output),
    }[kind]()
    for source, target in (("whole", "again"), ("again", "more")):  # what was loaded can be saved and loaded
        part = kind.from_pretrained(tmp_path / source).eval()
        assert "comera" not in str(part.config.to_dict())
        torch.testing.assert_close(output_of(part, ids, image), wanted)
        part.save_pretrained(tmp_path / target)
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert config["text_config"]["fusion_config"] == {"comera": True}  # stops a process without comera
