"""``python -m bench advise``: known models by name, smaller dense models, and the width of the tables."""

import dataclasses
import json

import pytest
from advised import CONFIGS, answer, row, saved
from small_cells import one_line, run_bench

from bench.advise.answer import row_of
from bench.advise.arms import ARMS, RATIOS, AdvisedArm, arms_of
from bench.advise.evidence import Evidence, GapRange, LossBed, evidence
from bench.advise.measure import measured, one_block
from bench.advise.model import SHARES, AdvisedModel
from bench.advise.question import question_of
from bench.advise.table import text
from bench.core.reading import known_models, model_path, model_words
from bench.errors import ConfigError
from bench.estimate.devices import GPUS

#: Millions of parameters that the authors state, or that follow from the tables of their papers.
PUBLISHED = {
    "bert_base": 110,
    "bert_large": 336,
    "gpt2_small": 124,
    "gpt2_medium": 355,
    "llama_1b": 1_100,
    "llama_8b": 8_030,
    "mistral_7b": 7_240,
    "qwen2_0.5b": 494,
    "roberta_base": 125,
    "t5_base": 223,
    "t5_small": 60.5,
    "vit_base": 86.6,
}


def parameters_of(model):
    return sum(parameter.numel() for parameter in model.shapes.parameters())


@pytest.mark.parametrize("name", sorted({*PUBLISHED, *known_models()}))
def test_a_known_model_has_the_published_size_and_names_its_source(name):
    path = model_path(name)
    model = AdvisedModel(path, None, "")
    assert parameters_of(model) / 1e6 == pytest.approx(PUBLISHED[name], rel=0.01)
    assert model.left_out == ()
    assert model.words.model.startswith(f"{name} (")
    assert "/" in json.loads(path.read_text())["_name_or_path"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("gpt2_medum", "nearest names: gpt2_medium"),
        ("Mistral-7B", "mistral_7b"),
        ("zzz", "names: bert_base, .*vit_base"),
    ],
)
def test_a_misspelt_name_is_one_sentence_with_the_nearest_names(given, named):
    with one_line(ConfigError, given):
        question_of([f"model={given}"])
    with pytest.raises(ConfigError, match=named):
        model_path(given)


def test_a_path_is_a_path_whatever_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "gpt2_small").mkdir()
    assert [str(model_path(given)) for given in ("own", "./gpt2_small", "x/y", "no.json")] == [
        *("own", "gpt2_small", "x/y", "no.json")
    ]
    assert model_path("gpt2_small") == known_models()["gpt2_small"]
    assert [model_words(model_path(given)) for given in ("gpt2_small", "own")] == ["gpt2_small", "own"]


def test_the_help_lists_the_known_models_and_the_arms_in_100_columns(tmp_path):
    printed = run_bench(tmp_path, "advise", "--help").output
    words = printed.replace("\n", " ").replace("(", " ").replace(")", " ").replace(",", " ").split()
    assert {*known_models(), *ARMS} <= {*words}
    assert max(map(len, printed.splitlines())) <= 101  # a comma behind the longest list


@pytest.mark.parametrize("name", ["bert_base", "llama_1b", "mistral_7b"])
def test_the_tables_of_the_default_arms_fit_100_columns(name):
    model, found = AdvisedModel(model_path(name), None, ""), evidence()
    count = parameters_of(model)
    rows = [
        dataclasses.replace(
            row(arm.name, arm.ratio, peak=300 * count, largest=65_536, least_ms=4_096.7, gap=found.gap(arm)),
            parameters=count,
            flops=10**15,
            shape=model.shape,
        )
        for arm in arms_of(ARMS, RATIOS)
    ]
    device = GPUS["rtx4090"]
    asked = dataclasses.replace(answer(*rows), model=model.words.model, device=device, evidence=found)
    for parts in (False, True):
        lines = text(asked, parts).splitlines()
        assert [line for line in lines if len(line) > 100] == []
        assert lines[0].startswith("Take ")
        heads = [line for line in lines if line.startswith("arm ")]
        columns = [each.strip() for each in heads[0].split("  ") if each]
        assert columns == ["arm", "params", "peak GiB", "max batch", "least ms", "tokens/s", "loss gap"]
        assert len(heads) == (3 if parts else 1)
    assert heads[1].split()[2:] == ["weights", "gradients", "optimizer", "activations", "temporaries"]


def test_a_gap_that_no_record_has_is_not_recorded():
    printed = text(answer(row("dense", gap={"adamw": 0.0, "muon": 0.0}), row("grouped", 4))).splitlines()
    [line] = [line for line in printed if line.startswith("grouped, 1/4")]
    assert line.endswith("not recorded")


def test_a_gap_is_of_the_same_shape_as_the_arm():
    gaps = {("dense:small depth 0.75", "muon"): 0.1, ("btt rank 2", "muon"): 0.2, ("grouped", "muon"): 0.3}
    found = Evidence((LossBed("a bed", {4.0: gaps}, -0.3),))
    small = AdvisedArm("dense:small", 4.0)
    assert found.gap(small, 0.75) == {"muon": GapRange(0.1, 0.1)}
    assert found.gap(small, 0.5) == found.gap(AdvisedArm("btt", 4.0)) == {}
    assert found.gap(AdvisedArm("grouped", 4.0)) == {"muon": GapRange(0.3, 0.3)}


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_a_smaller_model_has_fewer_blocks_and_the_parameters_of_the_formats(kind, tmp_path):
    sizes = {"gpt2": {"n_embd": 512}, "t5": {"d_model": 512, "d_ff": 1024}}
    model = AdvisedModel(saved(tmp_path, kind, **sizes.get(kind, {"hidden_size": 512})), 32, "")
    narrow = model.narrowed(2.0)
    found = {small.share: small for small in model.smaller(2.0)}
    assert {share: small.blocks for share, small in found.items()} == {0.5: 2, 0.75: 4}
    for small in found.values():
        assert parameters_of(small) == pytest.approx(parameters_of(narrow), rel=0.1)
        assert small.config.hidden_size >= narrow.config.hidden_size
        assert {name.count(".") for name in small.targets()} == {name.count(".") for name in model.targets()}


@pytest.mark.parametrize("on_record", [False, True])
def test_of_the_shapes_one_on_record_is_taken_else_that_of_the_lower_peak(tmp_path, monkeypatch, on_record):
    """Three quarters of the blocks have a loss on record, half of them has none."""
    if not on_record:
        monkeypatch.setattr("bench.advise.answer.evidence", lambda: None)
    path = saved(tmp_path, "llama", hidden_size=256, intermediate_size=512)
    question, model, device = question_of([f"model={path}"]), AdvisedModel(path, 32, ""), GPUS["h100"]
    arm = AdvisedArm("dense:small", 2.0)
    found = row_of(question, model, arm, device)
    shapes = model.smaller(2.0)
    peaks = {each.shape: row_of(question, each, AdvisedArm("dense"), device).peak for each in shapes}
    assert len(peaks) == len(SHARES)
    taken, other = (max, min) if on_record else (min, max)
    assert found.peak == taken(peaks.values())
    assert found.shape.startswith(f"{taken(peaks, key=peaks.get)}; {other(peaks, key=peaks.get)} would peak at")
    assert bool(found.gap) == on_record
    assert found.parameters == next(parameters_of(each) for each in shapes if found.shape.startswith(each.shape))


BLOOM = {"model_type": "bloom", "hidden_size": 64, "n_layer": 4, "n_head": 2, "vocab_size": 100}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"model_type": "bert", **CONFIGS["bert"], "num_hidden_layers": 1}, "1 block"),
        ({"model_type": "t5", **CONFIGS["t5"], "num_decoder_layers": 2}, "different numbers of blocks"),
        (BLOOM, "configuration of bloom"),
    ],
)
def test_a_model_that_cannot_be_made_smaller_leaves_the_arm_out_with_the_reason(content, reason, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(content))
    model = AdvisedModel(tmp_path, 16, "")
    found = row_of(question_of(["model=config.json"]), model, AdvisedArm("dense:small", 2.0), GPUS["h100"])
    assert reason in found.left_out
    assert found.left_out.count(". ") == 0


def test_fewer_blocks_are_not_measured_by_the_block(tmp_path):
    question = question_of([f"model={saved(tmp_path, 'llama')}", "device=cpu", "sequence_length=32", "ratio=2"])
    found = measured(question, AdvisedArm("dense:small", 2.0), memory_alone=True, threads=1)
    assert "fewer blocks" in found.left_out


def test_an_image_s_patches_and_class_token_are_the_tokens_of_a_row():
    model = AdvisedModel(model_path("vit_base"), None, "")
    assert (model.sequence_length, model.task) == (1 + (224 // 16) ** 2, "image")
    batch = next(model.batches("train", 2, 0, True))
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == {
        "pixel_values": (2, 3, 224, 224),
        "labels": (2,),
    }
    question = question_of(["model=vit_base", "batch_size=2"])
    for arm in (AdvisedArm("dense"), AdvisedArm("grouped", 4.0), AdvisedArm("dense:narrow", 4.0)):
        found = row_of(question, model, arm, GPUS["h100"])
        assert found.left_out == ""
        assert found.flops > 0
    assert one_block(question).blocks == 1


@pytest.mark.slow
def test_the_command_takes_a_name_and_prints_parts(tmp_path):
    words = ["advise", "model=gpt2_small", "batch_size=2", "sequence_length=64", "ratio=4"]
    ended = run_bench(tmp_path, *words, "arms=dense,grouped,dense:small,btt", "--parts")
    assert ended.status == 0, ended.error
    lines = ended.output.splitlines()
    assert lines[0].startswith("Take dense, because batch 2 fits and it is exact.")
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("gpt2_small (gpt2, causal language model), 12 blocks") for line in lines), lines
    assert any(line.startswith("dense:small, 1/4: 9 blocks, width ") for line in lines)
