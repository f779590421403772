"""Tensorized models saved, opened and resized by the package transformers itself."""

from __future__ import annotations

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
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    LlamaConfig,
)

import comera
from comera.contraction.joint_merging import JointMerging
from comera.exchange import hook

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


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_comes_back_in_the_type_in_which_it_was_saved(name, kind, tmp_path):
    model = built(name, kind)
    model.save_pretrained(tmp_path, max_shard_size=5_000)
    loaded, report = MODELS[name][0].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    torch.manual_seed(1)
    for each in (
        loaded,
        comera.load_pretrained(tmp_path),
        comera.load_pretrained(tmp_path, dense(name, kind)),
    ):
        assert_same(each, model)
        if kind != "mixed":  # dense layers take one type
            assert torch.equal(logits(each), logits(model))
    assert (tmp_path / "model.safetensors.index.json").exists()


def test_a_type_that_is_asked_for_is_given_to_all_but_what_the_class_makes(tmp_path):
    built("llama", "mixed").save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float16}
    assert loaded.model.rotary_emb.inv_freq.dtype == torch.float32


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_all_that_hugging_face_writes_is_written(name, tmp_path):
    model, twin = built(name), dense(name)
    for each in (model, twin):
        if each.can_generate():
            each.generation_config.max_new_tokens = 7
    comera.save_pretrained(model, tmp_path / "tensorized")
    twin.save_pretrained(tmp_path / "dense")
    written = {path.name for path in (tmp_path / "tensorized").iterdir()}
    assert written == {path.name for path in (tmp_path / "dense").iterdir()}
    assert ("generation_config.json" in written) == model.can_generate()
    if model.can_generate():
        loaded = comera.load_pretrained(tmp_path / "tensorized")
        assert loaded.generation_config.to_dict() == model.generation_config.to_dict()
    added = json.loads((tmp_path / "tensorized" / "config.json").read_text())
    described, versions = added.pop("quantization_config"), (comera.__version__, torch.__version__)
    assert added.pop("fusion_config") == {"comera": True}
    assert added == json.loads((tmp_path / "dense" / "config.json").read_text())
    assert (described["quant_method"], described["comera"], described["torch"]) == ("comera", *versions)


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


@pytest.mark.parametrize(
    ("script", "printed"), [(WITHOUT_COMERA_THEN_WITH, ["True", "True", "5"]), (BEFORE_TRANSFORMERS, ["False", "5"])]
)
def test_a_process_without_comera_stops_and_names_it_and_one_with_comera_opens_the_folder(script, printed, tmp_path):
    built("gpt2").save_pretrained(tmp_path)
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == printed


def test_registering_again_changes_nothing():
    finders, save = list(sys.meta_path), BertForMaskedLM.save_pretrained
    hook.register()
    assert sys.meta_path == finders
    assert BertForMaskedLM.save_pretrained is save


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("device_map", ["auto", {"": "cpu"}])
def test_a_device_map_places_the_layers(name, device_map, tmp_path):
    model = built(name)
    model.save_pretrained(tmp_path)
    loaded = MODELS[name][0].from_pretrained(tmp_path, device_map=device_map)
    assert_same(loaded, model)
    assert torch.equal(logits(loaded), logits(model))


def test_layers_on_disk_are_read_as_they_run(tmp_path):
    model = built("llama")
    model.save_pretrained(tmp_path)
    places = {
        "model.embed_tokens": "cpu",
        "model.layers.0": "cpu",
        "model.layers.1": "disk",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
    }
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, device_map=places, offload_folder=tmp_path / "offload")
    assert loaded.model.layers[1].mlp.up_proj.packed_cores.is_meta
    torch.testing.assert_close(logits(loaded), logits(model))


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


@pytest.fixture
def seen_where_not_drawn():
    """Memory that is not written to reads as NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("seen_where_not_drawn")
@pytest.mark.parametrize("name", MODELS)
def test_what_a_folder_has_no_weights_for_is_drawn(name, tmp_path):
    model = built(name)
    model.base_model.save_pretrained(tmp_path)
    loaded = MODELS[name][0].from_pretrained(tmp_path)
    for tensors in (loaded.named_parameters(remove_duplicate=False), loaded.named_buffers()):
        assert not [key for key, tensor in tensors if tensor.isnan().any()]
    assert logits(loaded).isfinite().all()


def test_a_model_of_other_layers_is_refused(tmp_path):
    built("bert").save_pretrained(tmp_path)
    config = GPT2Config(**MODELS["gpt2"][1].to_diff_dict())
    config.quantization_config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    with pytest.raises(ValueError, match="GPT2LMHeadModel"):
        AutoModelForCausalLM.from_pretrained(tmp_path, config=config)


def test_layers_below_a_model_that_is_saved_are_described_too(tmp_path):
    """What was given to ``tensorize`` may be less than the model, or more."""
    torch.manual_seed(0)
    model = dense("bert")
    comera.tensorize(model.bert.encoder, {"*": LINEAR})
    truncated(model).save_pretrained(tmp_path / "less")
    assert_same(AutoModelForMaskedLM.from_pretrained(tmp_path / "less"), model)
    outer = comera.tensorize(nn.ModuleDict({"inner": dense("bert")}), {"*.encoder.*": LINEAR})
    truncated(outer)["inner"].save_pretrained(tmp_path / "more")
    assert_same(AutoModelForMaskedLM.from_pretrained(tmp_path / "more"), outer["inner"])


@pytest.mark.parametrize(
    ("name", "part", "plan"),
    [
        ("bert", "bert", {"*.word_embeddings": TABLE}),
        ("llama, tied", "lm_head", {"": LINEAR}),
        ("gpt2", "transformer", {"wte": TABLE}),
    ],
)
def test_a_tie_that_was_parted_stays_parted(name, part, plan, tmp_path):
    """A table was tensorized without the output layer that is tied to it, or the other way round."""
    model = dense(name)
    layers = comera.tensorize(model.get_submodule(part), plan)
    setattr(model, part, layers)
    truncated(model).save_pretrained(tmp_path)
    loaded, report = MODELS[name][0].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert_same(loaded, model)
    assert torch.equal(logits(loaded), logits(model))


def test_a_dense_model_is_saved_as_one_whatever_its_configuration_was_read_from(tmp_path):
    built("bert").save_pretrained(tmp_path / "tensorized")
    fresh = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(tmp_path / "tensorized"))
    made = comera.to_dense_model(AutoModelForMaskedLM.from_pretrained(tmp_path / "tensorized"))
    for index, model in enumerate((fresh.eval(), made, dense("bert"))):
        model.save_pretrained(tmp_path / str(index))
        assert "comera" not in (tmp_path / str(index) / "config.json").read_text()
        loaded, report = AutoModelForMaskedLM.from_pretrained(tmp_path / str(index), output_loading_info=True)
        assert not any(report.values()), report
        assert not comera.tensorized_layers(loaded)
        assert torch.equal(logits(loaded), logits(model))


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


def test_a_loaded_model_trains_and_is_saved_again(tmp_path):
    built("gpt2").save_pretrained(tmp_path / "first")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    optimizer = torch.optim.AdamW(comera.parameter_groups(model))
    model(TOKENS, labels=TOKENS).loss.backward()
    assert all(layer.packed_cores.grad is not None for layer in comera.tensorized_layers(model))
    optimizer.step()
    truncated(copy.deepcopy(model)).save_pretrained(tmp_path / "second")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "second")
    assert {layer.threshold for layer in comera.tensorized_layers(loaded)} == {0.02}


def test_options_of_tensorize_are_applied_where_layers_are_built(tmp_path):
    model = built("bert")
    model.save_pretrained(tmp_path / "tensorized")
    loaded = comera.load_pretrained(tmp_path / "tensorized", recompute="outputs", merge_jointly=False)
    assert_same(loaded, model)
    assert any("forward" in vars(module) for module in loaded.modules())
    assert JointMerging.of(loaded) is None
    assert JointMerging.of(comera.load_pretrained(tmp_path / "tensorized")) is not None
    dense("bert").save_pretrained(tmp_path / "dense")
    with pytest.raises(ValueError, match="recompute"):
        comera.load_pretrained(tmp_path / "dense", recompute="outputs")


def test_a_folder_of_version_0_2_0_is_loaded(tmp_path):
    """Its description is a file of its own."""
    model = built("bert")
    model.save_pretrained(tmp_path)
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


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 40),
        lambda folder: (folder / "config.json").write_text("{"),
        lambda folder: (folder / "config.json").unlink(),
    ],
)
def test_a_file_that_cannot_be_read_is_one_error_that_names_the_folder(damage, tmp_path):
    built("gpt2").save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=tmp_path.name):
        comera.load_pretrained(tmp_path)


def test_layers_in_a_model_that_is_quantized_too_are_refused_before_anything_is_written(tmp_path):
    model = built("gpt2")
    model.config.quantization_config = {"quant_method": "another"}
    with pytest.raises(ValueError, match="another"):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    assert model.config.quantization_config == {"quant_method": "another"}


TIED = ["gpt2", "llama, tied", "bert"]


@pytest.mark.parametrize("rows", [90, 101, 125])
@pytest.mark.parametrize("name", [*TIED, "llama"])
def test_a_vocabulary_takes_the_padded_rows(name, rows, tmp_path):
    model = built(name)
    before = logits(model)
    table = model.get_input_embeddings()
    assert model.resize_token_embeddings(rows) is table
    kept = min(rows, 100)
    assert (model.config.vocab_size, table.num_embeddings, *table.weight.shape) == (rows, rows, rows, 48)
    tokens = TOKENS.clamp(max=kept - 1)
    assert model(tokens).logits.shape == (2, 6, rows)
    model.tie_weights()
    with torch.no_grad():
        assert model(torch.tensor([[rows - 1]])).logits.isfinite().all()
        with pytest.raises(IndexError):
            model(torch.tensor([[rows]]))
        if rows >= 100:
            torch.testing.assert_close(logits(model)[..., :100], before)
    assert (model.get_output_embeddings().weight.shape[0], name in TIED) == (
        rows,
        isinstance(model.get_output_embeddings(), comera.TiedTTMLinear),
    )
    model.save_pretrained(tmp_path)
    assert_same(MODELS[name][0].from_pretrained(tmp_path), model)
    assert comera.to_dense_model(model).get_input_embeddings().weight.shape == (rows, 48)


def test_a_vocabulary_is_padded_to_a_multiple():
    model = built("bert")
    model.resize_token_embeddings(pad_to_multiple_of=8)
    assert model.config.vocab_size == 104
    model.resize_token_embeddings(105, pad_to_multiple_of=4)
    assert model.config.vocab_size == 108
    assert model.resize_token_embeddings() is model.get_input_embeddings()


def test_a_padding_index_beyond_the_rows_is_dropped():
    config = copy.deepcopy(BERT)
    config.pad_token_id = 99
    model = comera.tensorize(BertForMaskedLM(config), {"*.word_embeddings": TABLE})
    assert model.get_input_embeddings().padding_idx == 99
    model.resize_token_embeddings(99)
    assert model.get_input_embeddings().padding_idx is None


DENSE_TABLE = {"*.layers.*": LINEAR, "lm_head": LINEAR}


@pytest.mark.parametrize(
    ("name", "plan", "rows", "named"),
    [
        ("gpt2", None, 126, r"transformer\.wte.*row_modes=\(5, 5, 5\).*125.*126"),
        ("bert", None, 0, "0"),
        ("llama, tensorized head", None, 101, r"lm_head.*100.*101"),
        ("llama", DENSE_TABLE, 101, r"lm_head.*100.*101"),
    ],
)
def test_what_cannot_be_resized_is_named_and_left_and_there_is_a_way(name, plan, rows, named):
    model = comera.tensorize(dense(name), plan or MODELS[name][2])
    before, outputs = {key: value.clone() for key, value in model.state_dict().items()}, logits(model)
    with pytest.raises(ValueError, match=named):
        model.resize_token_embeddings(rows)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert model.config.vocab_size == 100
    assert torch.equal(logits(model), outputs)
    if rows:
        again = comera.to_dense_model(model)
        again.resize_token_embeddings(rows)
        table = "*.wte" if name == "gpt2" else "*.embed_tokens"
        again = comera.tensorize(again, {table: comera.TTM(8)}, start="weights")
        assert logits(again).shape == (2, 6, rows)


def test_a_model_without_tables_of_ours_is_resized_by_transformers_alone():
    for plan in ({}, {"*.encoder.*": LINEAR}):
        model = comera.tensorize(dense("bert"), plan)
        model.resize_token_embeddings(130, mean_resizing=False)
        assert model(TOKENS).logits.shape == (2, 6, 130)
