"""``python -m bench advise``: laws of the prediction, hand counts, the rule, and what is refused."""

import dataclasses
import json
import re
from unittest import mock

import pandas as pd
import pytest
from advised import CONFIGS, answer, assert_one_error, row, saved
from small_cells import one_line, run_bench

import bench.advise.command
import bench.processes.process
from bench.advise.arms import ARMS, AdvisedArm, Kind, arms_of
from bench.advise.evidence import RECORDS, Evidence, GapRange, LossBed, evidence
from bench.advise.linear import Steps
from bench.advise.model import AdvisedModel, task_of
from bench.advise.moments import trace
from bench.advise.question import question_of
from bench.advise.rule import advice
from bench.advise.table import text
from bench.errors import ConfigError
from bench.estimate.memory import predict_memory

_KEEPING = ("muon", "galore:8bit_per_layer", "lora+checkpoint")
_STRUCTURED = ("btt+checkpoint", "comera:lean")


def steps_of(path, name, ratio=None, device="cuda", precision="bf16"):
    model, arm = AdvisedModel(path, 32, ""), AdvisedArm(name, ratio)
    return Steps(model, arm.method, precision, device, arm.checkpoint)


def whole(steps, batch_size):
    model = steps.model
    return trace(model, steps.method(model), batch_size, steps.precision, steps.device, steps.checkpoint, model.blocks)


def assert_same(found, expected, within=0.0):
    assert found.peak_bytes == pytest.approx(expected.peak_bytes, rel=within, abs=0.5)
    for name, value in expected.numbers.items():
        assert found.numbers[name] == pytest.approx(value, rel=within, abs=0.5), name


@pytest.mark.parametrize(
    ("name", "ratio", "within"),
    [
        ("dense+checkpoint", None, 0.0),
        pytest.param("comera", 4, 0.02, marks=pytest.mark.slow),
        *(pytest.param(name, None, 1e-4, marks=pytest.mark.slow) for name in _KEEPING),
        *(pytest.param(name, 4, 0.02, marks=pytest.mark.slow) for name in _STRUCTURED),
    ],
)
def test_two_short_models_give_the_whole_one_of_every_arm(name, ratio, within, tmp_path):
    sizes = {"hidden_size": 256, "intermediate_size": 512}
    steps = steps_of(saved(tmp_path, "llama", **sizes), name, ratio)
    assert_same(steps.at(4), whole(steps, 4), within)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "dense+checkpoint", "galore:per_layer"])
def test_the_largest_batch_fits_and_the_next_does_not(name, tmp_path):
    path = saved(tmp_path, "llama", hidden_size=256, intermediate_size=256)
    steps = steps_of(path, name)
    known = steps.at(3)
    room = 1.7 * known.peak_bytes
    largest = steps.largest_batch(known, 3, room)
    assert largest > 3
    assert steps.at(largest).peak_bytes <= room < steps.at(largest + 1).peak_bytes


@pytest.mark.parametrize(
    ("kind", "device"), [("gpt2", "cuda"), pytest.param("llama", "cpu", marks=pytest.mark.slow), ("llama", "cuda")]
)
def test_the_peak_is_that_of_a_prediction_without_meters(kind, device, tmp_path):
    steps = steps_of(saved(tmp_path, kind), "dense", device=device, precision="fp32")
    memory = predict_memory(steps.model, steps.method(steps.model), 4, "fp32", device, 0)
    moment, held = steps.at(4).peak()
    assert {name: round(value) for name, value in held.items()} == {name: getattr(memory, name) for name in held}
    assert moment.words.startswith(("forward pass", "backward pass", "the optimizer's step"))


def test_parameters_and_flops_of_a_gpt2_by_hand(tmp_path):
    batch, length, width, blocks, words, positions = 4, 32, 64, 5, 512, 64
    found = steps_of(saved(tmp_path, "gpt2"), "dense").at(batch).numbers
    block = 12 * width**2 + 13 * width  # four matrices, their biases, two norms
    assert found["parameters"] == (words + positions) * width + blocks * block + 2 * width  # the head is the table
    products = 12 * width**2 * blocks + width * words  # per token, in multiplications
    attention = 2 * length * width * blocks  # scores and their sums over values
    # backward takes two products for each of forward, and attention's forms the scores once more
    assert found["flops"] == 2 * batch * length * (3 * products + 3.5 * attention)


@pytest.mark.slow
def test_matrices_are_as_many_times_smaller_as_was_asked_for(tmp_path):
    path = saved(tmp_path, "llama", hidden_size=128, intermediate_size=512)
    dense = steps_of(path, "dense").at(2).numbers["parameters"]
    matrices = 5 * (2 * 128**2 + 2 * 128 * 64 + 3 * 128 * 512)
    for name in ("low_rank@size", "btt", "comera"):
        left = steps_of(path, name, 4).at(2).numbers["parameters"] - (dense - matrices)
        assert left == pytest.approx(matrices / 4, rel=0.05), name


@pytest.mark.parametrize(
    ("content", "task"),
    [
        ({"model_type": "llama"}, "causal"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "masked"),
        ({"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}, "classification"),
        ({"model_type": "t5"}, "seq2seq"),
        ({"model_type": "no such thing"}, "causal"),
    ],
)
def test_the_task_is_the_configuration_s_own(content, task):
    assert task_of(content) == task


def test_an_architecture_that_transformers_lacks_needs_a_task(tmp_path):
    assert task_of({"model_type": "bert", "architectures": ["BertModel"]}) == "masked"
    with one_line(ConfigError, "FooModel", "task=causal"):
        task_of({"model_type": "gpt2", "architectures": ["FooModel"]})
    assert AdvisedModel(saved(tmp_path, "gpt2", architectures=["FooModel"]), 8, "causal").task == "causal"


def test_an_architecture_is_checked_before_the_processes_of_the_arms_start(tmp_path, monkeypatch):
    monkeypatch.setattr(bench.advise.command, "prepare_processes", lambda _: pytest.fail("processes were started"))
    path = saved(tmp_path, "gpt2", architectures=["FooModel"])
    with one_line(ConfigError, "FooModel", "task=causal"):
        bench.advise.command.main([f"model={path}"])


@pytest.mark.parametrize(("bed", "page"), [*enumerate(("tiny", "small"))])
def test_the_measured_gaps_are_those_of_the_committed_table(bed, page):
    found = evidence().beds[bed]
    [path] = (RECORDS.parents[1] / "figures" / "rendered" / "reference").glob(f"formats-*-{page}.csv")
    table = pd.read_csv(path)
    dense = table[table["arm"] == "dense"].set_index("optimizer")["test_loss"]
    arms = table[table["ratio"].notna() & ~table["arm"].str.contains("per core")]
    optimizers = arms.groupby("ratio")["optimizer"].nunique()
    ratios = sorted(optimizers.index[optimizers == 2])
    assert [4, 8][: len(ratios)] == list(found.gaps)
    for ratio, gaps in zip(ratios, found.gaps.values(), strict=True):
        searched = arms[~arms["at_edge"] & (arms["ratio"] == ratio)]
        assert {arm for arm, _ in gaps if " " in arm} <= set(searched["arm"])  # others have several starts
        for (arm, optimizer), gap in gaps.items():
            rows = arms[(arms["ratio"] == ratio) & (arms["optimizer"] == optimizer)]
            starts = rows["arm"].str.fullmatch(re.escape(arm) + r"(@size)?(:(orthogonal|spectral|spectron|normal))?")
            best = rows.loc[starts, "test_loss"].min()
            assert gap == pytest.approx(best - dense[optimizer], abs=1e-5), (ratio, arm)
    assert found.muon == pytest.approx(dense["muon"] - dense["adamw"], abs=1e-5)


@pytest.mark.parametrize(("ratio", "nearest"), [(2, 4), (4, 4), (5.6, 4), (5.7, 8), (10, 8), (100, 8)])
def test_an_arm_is_given_the_gap_at_the_nearest_measured_ratio(ratio, nearest):
    gaps = {measured: {("btt", "adamw"): measured / 100} for measured in (4.0, 8.0)}
    found = Evidence((LossBed("a bed", gaps, -0.3),)).gap(AdvisedArm("btt", ratio))
    assert found == {"adamw": GapRange(nearest / 100, nearest / 100)}


def test_a_gap_is_the_range_over_beds_and_the_beds_are_named():
    found = evidence()
    assert [bed.words.split()[1] for bed in found.beds] == ["2-block", "4-block"]
    gaps = {name: str(gap) for name, gap in found.gap(AdvisedArm("comera", 4.0)).items()}
    assert gaps == {"muon": "+0.23 to +0.32"}
    assert found.gap(AdvisedArm("dense:narrow", 4.0)).keys() == {"muon"}


def test_an_arm_whose_best_rate_is_at_an_edge_of_those_tried_has_no_gap(monkeypatch):
    small, three_quarters = AdvisedArm("dense:small", 4.0), evidence().gap(AdvisedArm("dense:small", 4.0), 0.75)
    assert three_quarters.keys() == {"muon"}
    every = bench.advise.evidence.read_all

    def without_higher_rates(root, experiment):
        records = every(root, experiment)
        rates = [(one.config.get("training") or {}).get("recipe", {}).get("lr", 0) for one in records]
        return [one for one, rate in zip(records, rates, strict=True) if one.variant != "small" or rate <= 0.015]

    monkeypatch.setattr("bench.advise.evidence.read_all", without_higher_rates)
    assert evidence.__wrapped__().gap(small, 0.75) == {}


def test_a_gap_counts_where_dense_ends_below_the_n_gram_of_its_size(monkeypatch):
    assert evidence().optimizers == {"muon"}  # under AdamW dense ends above it on both beds
    monkeypatch.setattr("bench.advise.evidence._n_gram", lambda *_: 9.0)
    found = evidence.__wrapped__()
    assert found.optimizers == {"adamw", "muon"}
    assert str(found.gap(AdvisedArm("comera", 4.0))["adamw"]) == "+0.05 to +0.22"
    monkeypatch.setattr("bench.advise.evidence._n_gram", lambda *_: 0.1)
    assert evidence.__wrapped__() is None


def test_a_narrower_model_has_about_the_parameters_of_the_formats(tmp_path):
    for kind in ("gpt2", "llama", "bert", "t5"):
        sizes = {"gpt2": {"n_embd": 512}, "t5": {"d_model": 512, "d_ff": 1024}}
        model = AdvisedModel(saved(tmp_path, kind, **sizes.get(kind, {"hidden_size": 512})), 32, "")
        wanted = steps_of(tmp_path / "config.json", "dense").at(2).numbers["parameters"] / model.whole_ratio(2.0)
        arm = AdvisedArm("dense:narrow", 2.0)
        [narrow] = arm.models(model)
        assert narrow.blocks == model.blocks
        found = Steps(narrow, arm.method, "fp32", "cpu", False).at(2).numbers["parameters"]
        assert found == pytest.approx(wanted, rel=0.05), kind


def test_without_records_no_gap_is_claimed(tmp_path):
    assert evidence(tmp_path) is None


LEVEL, BELOW = {"adamw": 0.0, "muon": 0.0}, {"adamw": -0.1, "muon": -0.1}
WORSE, WORST = {"adamw": 0.05, "muon": 0.2}, {"adamw": 0.06, "muon": 0.3}


@pytest.mark.parametrize(
    ("rows", "taken"),
    [
        ([row("dense"), row("dense+checkpoint"), row("btt", 4, gap=WORSE, least_ms=1)], "dense,"),
        ([row("dense", largest=4), row("dense+checkpoint")], "dense+checkpoint,"),
        ([row("dense", largest=4), row("dense+checkpoint", largest=8), row("dense:adamw8bit")], "dense:adamw8bit,"),
        ([row("dense", largest=4), row("dense+checkpoint", largest=8)], "dense+checkpoint in batches of 8"),
        ([row("dense", largest=0), row("muon", peak=2), row("apollo_mini", peak=1)], "apollo_mini in batches of 32"),
        ([row("dense", largest=0), row("comera", 4, gap=WORST), row("btt", 4, gap=WORSE)], "btt, 1/4 in"),
        ([row("dense", largest=0), row("comera", 4, gap=WORSE, peak=0), row("btt", 4, gap=WORSE)], "btt, 1/4 in"),
        ([row("dense"), row("comera", 4, gap={}, least_ms=1, peak=0)], "dense,"),  # no evidence
        ([row("dense"), row("comera", 10, gap=BELOW, least_ms=1)], "dense,"),  # measured at another ratio
        ([row("dense"), row("comera", 4, gap=LEVEL | {"muon": 0.2}, least_ms=1)], "dense,"),
        ([row("dense"), row("comera", 4, gap=LEVEL, least_ms=11)], "dense,"),  # it gains nothing
        ([row("dense"), row("comera", 4, gap=LEVEL, least_ms=1)], "comera, 1/4,"),
        ([row("dense"), row("comera", 4, gap=LEVEL, least_ms=1), row("btt", 4, gap=LEVEL, least_ms=9)], "btt, 1/4,"),
        ([row("dense", largest=0), row("lora")], None),
        ([row("dense", largest=0), row("comera", 4)], None),
    ],
)
def test_the_rule(rows, taken):
    found = advice(answer(*rows))
    assert found.startswith(f"Take {taken}" if taken else "Nothing fits")
    assert found.endswith(".")


def test_of_the_arms_as_they_are_measured_comera_is_taken_only_behind_all_others():
    found = evidence()
    arms = [AdvisedArm(name, 4.0) for name in ("comera", "comera:lean", "low_rank@size", "dense:narrow")]
    rows = [row(arm.name, arm.ratio, gap=found.gap(arm), least_ms=1) for arm in arms]
    assert advice(answer(row("dense", largest=0), *rows)).startswith("Take dense:narrow")
    assert advice(answer(row("dense", largest=0), *rows[:-1])).startswith("Take low_rank@size")
    assert advice(answer(row("dense"), *rows)).startswith("Take dense,")


def test_where_nothing_fits_the_memory_that_was_asked_for_is_named():
    own = answer(row("dense", largest=0))
    assert "larger device" in advice(own)
    small = dataclasses.replace(own, question=dataclasses.replace(own.question, memory_gib=0.1))
    assert "memory_gib=0.1" in advice(small)
    assert "larger device" not in advice(small)


WRONG_WORDS = [
    ("model", ""),
    ("device", "gtx"),
    ("batch_size", "0"),
    ("batch_size", "1.5"),
    ("batch_size", "99999999999"),
    ("sequence_length", "-1"),
    ("ratio", "1"),
    ("ratio", "nan"),
    ("ratio", "4,4"),
    ("precision", "fp64"),
    ("task", "regression"),
    ("arms", "dence"),
    ("arms", "dense,dense"),
    ("memory_gib", "0"),
    ("colour", "red"),
]


@pytest.mark.parametrize(("field", "value"), WRONG_WORDS)
def test_a_wrong_word_is_one_line_that_names_it(field, value):
    words = {"model": "config.json", field: value}
    with one_line(ConfigError, field):
        question_of([f"{name}={given}" for name, given in words.items()])


WRONG_MODELS = [
    ({"model_type": "no_such"}, "no_such"),
    ({"max_position_embeddings": 16}, "sequence_length"),
    ({"hidden_size": "wide"}, "hidden_size"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "named"), WRONG_MODELS)
def test_a_model_that_cannot_be_used_is_one_sentence(changes, named, tmp_path):
    path = saved(tmp_path, "llama", **changes)
    ended = run_bench(tmp_path, "advise", f"model={path}", "sequence_length=32", "arms=dense")
    assert_one_error(ended)
    assert named in ended.error


def test_its_processes_are_prepared_as_those_of_a_sweep_are(tmp_path, monkeypatch):
    """Else each imports all libraries by itself, with their notes on the terminal."""
    loaded = []
    monkeypatch.setattr(bench.processes.process, "_PRELOADED", loaded)
    monkeypatch.setattr(bench.advise.command, "answer_to", mock.Mock(side_effect=ConfigError("no answer here")))
    with pytest.raises(ConfigError):
        bench.advise.command.main([f"model={saved(tmp_path, 'llama')}", "sequence_length=32"])
    assert loaded == [f"bench.runner.preload.{name}" for name in ("each_cell", "galore", "lora")]


@pytest.mark.slow
def test_the_command_answers_in_a_table_and_in_json(tmp_path):
    path = saved(tmp_path, "llama", hidden_size=128, intermediate_size=512)
    words = [f"model={path}", "sequence_length=32", "batch_size=4", "ratio=4", "arms=dense,dense+checkpoint,btt,galore"]
    ended = run_bench(tmp_path, "advise", *words, "--json")
    assert ended.status == 0, ended.error
    found = json.loads(ended.output)
    arms = {arm["arm"]: arm for arm in found["arms"]}
    assert list(arms) == ["dense", "dense+checkpoint", "btt", "galore"]
    assert found["advice"].startswith("Take dense, because batch 4 fits")
    assert "galore.rank is 128" in arms["galore"]["left_out"]  # above the narrowest matrix
    for arm in (arms["dense"], arms["btt"]):
        assert sum(arm["at_peak_bytes"].values()) == pytest.approx(arm["peak_bytes"], abs=3)
        assert arm["least_time_ms"] > 0
    assert arms["btt"]["parameters"] < arms["dense"]["parameters"]


def test_memory_is_in_gib_of_1024_mib():
    found = answer(row("dense", peak=3.5 * 2**30))
    printed = text(found)
    assert " 80.0 GiB " in printed
    assert all(len(each) <= 100 for each in printed.splitlines())
    [line] = [each.split() for each in printed.splitlines() if each.startswith("dense ")]
    assert line[2] == "3.50"


def test_every_arm_has_a_kind_and_structured_ones_a_ratio():
    arms = arms_of(ARMS, (2.0, 4.0))
    assert {arm.kind for arm in arms} == set(Kind)
    assert all((arm.kind is Kind.STRUCTURED) == (arm.ratio is not None) for arm in arms)
    assert len(arms) == 8 + 2 * 7
    assert {"grouped", "dense:small", "btt"} < {arm.name for arm in arms}
    assert [arm.ratio for arm in question_of(["model=config.json", "arms=grouped"]).arms] == [2, 4, 8]


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(CONFIGS))
@pytest.mark.parametrize("arm", ["low_rank@size", "btt", "comera"])
def test_structured_arms_train_every_family(kind, arm, tmp_path):
    assert steps_of(saved(tmp_path, kind), arm, 2).at(2).peak_bytes > 0


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
}
ROBERTA = {"model_type": "roberta", **SMALL, "max_position_embeddings": 66, "pad_token_id": 1}
TEXT = {"model_type": "gemma3_text", **SMALL, "num_key_value_heads": 1, "head_dim": 16}
GEMMA = {"model_type": "gemma3", "text_config": TEXT, "vision_config": {"model_type": "siglip_vision_model"}}
WHISPER = {"model_type": "whisper", "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 100}
BERT = {"model_type": "bert", **SMALL}
VIT = {"model_type": "vit", **SMALL, "image_size": 32, "patch_size": 16, "num_channels": 3}


def advised(folder, content, length=None, task=""):
    (folder / "config.json").write_text(json.dumps(content))
    return AdvisedModel(folder, length, task)


@pytest.mark.parametrize(
    ("content", "length", "named"),
    [
        ({**WHISPER, "architectures": ["WhisperForConditionalGeneration"]}, None, "architectures .* input_features"),
        (WHISPER, None, "model_type .* input_features"),
        ({"model_type": "wav2vec2", "hidden_size": 32}, None, "model_type .* input_values"),
        ({**VIT, "model_type": "vit_mae"}, None, "model_type .* pixel_values"),
        ({**VIT, "patch_size": [16, 16]}, None, "patch_size"),
        (VIT, 5, "sequence_length is 5, but image_size"),
        (ROBERTA, 65, "sequence_length is 65; allowed: 1 to the 64"),
        ({**BERT, "quantization_config": {"quant_method": "comera", "layers": {}}}, None, "quantization_config"),
    ],
)
def test_a_model_that_would_be_taken_for_another_is_refused_by_the_key(content, length, named, tmp_path):
    with pytest.raises(ConfigError, match=named):
        advised(tmp_path, content, length)


@pytest.mark.parametrize(
    ("content", "task", "named"),
    [
        (GEMMA, "", "text_config.*vision_config"),
        ({**BERT, "quantization_config": {"quant_method": "gptq", "bits": 4}}, "", "quantization_config"),
        ({**BERT, "rope_thing": 3, "torch_dtype": "float16", "max_length": 20}, "", "rope_thing,"),
        ({**BERT, "auto_map": {"AutoConfig": "own.Config"}}, "", "auto_map"),
        ({"model_type": "bart", "d_model": 32, "vocab_size": 100, **SMALL}, "causal", "is_encoder_decoder"),
    ],
)
def test_what_of_a_configuration_is_not_predicted_is_named_by_its_key(content, task, named, tmp_path):
    if "bart" in content.values():
        heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "is_encoder_decoder": True}
        content = content | heads
    found = advised(tmp_path, content, 16, task).left_out
    assert any(re.search(named, sentence.replace(" so that", "")) for sentence in found)


def test_a_configuration_that_is_understood_as_a_whole_has_nothing_left_out(tmp_path):
    for kind in CONFIGS:
        assert AdvisedModel(saved(tmp_path, kind), 16, "").left_out == ()


def test_rows_have_as_many_tokens_as_there_are_positions(tmp_path):
    assert advised(tmp_path, ROBERTA).sequence_length == 64  # the first two of 66 are before and of the padding
    assert advised(tmp_path, GEMMA).sequence_length == 2048
