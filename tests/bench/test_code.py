"""Masked language modelling on source files: the corpus and its split, tokens, masks, probes, the model, whole runs."""

import dataclasses
import gzip
import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from interrupted import Killed, kill_at
from small_cells import a_training_cell

from bench.protocol import Data, Stage
from bench.protocol.recipe import Recipe
from bench.training.run import TrainingRun, Upkeep, checked_metric, scheduled_share
from bench.workloads import open_workload, recorded_words
from bench.workloads.code import tokens as code_tokens
from bench.workloads.code.corpus import Document, Sources, code_search_net, is_held_out
from bench.workloads.code.masking import chosen_count, masked
from bench.workloads.code.model import CodeSettings, MaskedLanguageModel
from bench.workloads.code.probes import probe_losses
from bench.workloads.code.tokens import FIRST_ID, MASK_ID, SEPARATOR_ID, streams, train_tokenizer
from bench.workloads.code.workload import MaskedPlan

SMALL = CodeSettings(
    layers=2,
    width=32,
    heads=2,
    feed_forward=64,
    vocabulary=300,
    positions=64,
    dropout=0.1,
    sequence_length=16,
    windows=2,
)
SIDES = {
    out: [name for name in map("package{}".format, range(300)) if is_held_out(name) == out] for out in (True, False)
}


def function(number: int) -> str:
    return f"def area_{number}(width, height):\n    return width * height + {number}\n" * 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Functions in the form of CodeSearchNet, in two files, with one that is there twice."""
    place = tmp_path_factory.mktemp("functions")
    names = [*SIDES[False][:8], *SIDES[True][:6]]
    rows = [
        {"repo": name, "path": "a.py", "func_name": f"f{number}", "original_string": function(7 * place + number)}
        for place, name in enumerate(names)
        for number in range(6)
    ]
    rows.append({**rows[0], "func_name": "again"})
    for number in (0, 1):
        with gzip.open(place / f"python_{number}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows[number::2])
    return place


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(code_tokens.CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def workload(folder):
    return open_workload("code", SMALL, Data(data_folder=str(folder)), check=True)


def test_the_papers_has_as_many_parameters_as_published():
    with torch.device("meta"):
        model = MaskedLanguageModel(CodeSettings())
    assert sum(parameter.numel() for parameter in model.parameters()) == 357_189_408


def test_the_head_shares_the_embedding_and_scores_chosen_places_alone():
    model = MaskedLanguageModel(SMALL).eval()
    ids = torch.randint(FIRST_ID, 300, (2, 16))
    every = torch.arange(16).expand(2, -1)
    some = torch.tensor([[3, 8], [0, 15]])
    scores = model(ids, every)
    assert torch.allclose(model(ids, some), scores.gather(1, some[..., None].expand(-1, -1, 300)), atol=1e-6)
    word = model.embeddings.word.weight
    assert [n for n, p in model.named_parameters() if p.shape == word.shape] == ["embeddings.word.weight"]


def test_a_content_counts_once_and_held_out_files_go_first():
    train, out = SIDES[False][0], SIDES[True][0]
    documents = [
        Document(train, "a", "x = 1\n"),
        Document(train, "b", "x = 1   \n\n"),
        Document(train, "c", "y = 2"),
    ]
    documents += [Document(out, "d", "y = 2\n"), Document(out, "e", "   \n"), Document(train, "f", "z = 3")]
    kept = Sources("some", (), lambda: iter(documents)).split()
    assert [[document.name for document in side] for side in kept] == [["a", "f"], ["d"]]


def test_any_text_comes_back():
    tokenizer = train_tokenizer([function(1)] * 3, 290)
    text = "def naïve(width):\n\treturn '✓', x  # [MASK]\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text
    assert min(ids) >= FIRST_ID
    assert tokenizer.token_to_id("[MASK]") == MASK_ID
    assert len(ids) < len(text.encode())
    assert tokenizer.get_vocab_size() <= 290


def test_a_killed_start_goes_on_where_it_was(folder, tmp_path, monkeypatch):
    sources = code_search_net(folder)
    monkeypatch.setattr(code_tokens, "_PART", 8)
    monkeypatch.setenv(code_tokens.CACHE_VARIABLE, str(tmp_path / "whole"))
    whole = streams(sources, 300)
    monkeypatch.setenv(code_tokens.CACHE_VARIABLE, str(tmp_path / "killed"))
    for call in (1, 2, 4):
        with monkeypatch.context() as patch:
            kill_at(patch, code_tokens, "write_whole", call)
            with pytest.raises(Killed):
                streams(sources, 300)
    made: list[str] = []
    again = streams(sources, 300, made.append)
    assert 0 < len(made) < 11  # parts that were there are not made again
    assert np.array_equal(again.train, whole.train)
    assert all(np.array_equal(*files) for files in zip(again.held_out, whole.held_out, strict=True))
    streams(sources, 300, lambda line: pytest.fail(f"made again: {line}"))


def test_documents_end_with_a_separator(folder):
    cached = streams(code_search_net(folder), 300)
    train, held_out = code_search_net(folder).split()
    assert int((cached.train == SEPARATOR_ID).sum()) == len(train) == 8 * 6
    assert len(cached.held_out) == len(held_out) == 6 * 6
    assert all(file[-1] == SEPARATOR_ID and (file != SEPARATOR_ID).sum() == len(file) - 1 for file in cached.held_out)


def test_the_rule():
    rows = np.random.default_rng(0).integers(FIRST_ID, 1000, (4000, 64))
    batch = {name: tensor.numpy() for name, tensor in masked(rows, (1, 2), 1000).items()}
    seen = np.take_along_axis(batch["input_ids"], batch["positions"], 1)
    assert np.array_equal(np.take_along_axis(rows, batch["positions"], 1), batch["labels"])
    assert batch["positions"].shape == (4000, chosen_count(64)) == (4000, 10)
    assert all(len(set(row)) == 10 for row in batch["positions"].tolist())
    assert np.bincount(batch["positions"].ravel()).std() < 40  # every place about 625 times
    kept = seen == batch["labels"]
    shares = [(seen == MASK_ID).mean(), (~kept & (seen != MASK_ID)).mean(), kept.mean()]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    untouched = np.ones(rows.shape, dtype=bool)
    np.put_along_axis(untouched, batch["positions"], False, 1)
    assert np.array_equal(batch["input_ids"][untouched], rows[untouched])
    assert seen.min() >= MASK_ID


def test_every_arm_and_every_resumed_run_sees_the_same(workload):
    whole = list(workload.batches("train", 8, seed=5, static=False))
    rest = list(workload.batches("train", 8, seed=5, static=True, start=3))
    assert len(rest) == len(whole) - 3 == workload.batches_per_epoch(8) - 3
    for one, other in zip(whole[3:], rest, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    first = next(workload.batches("train", 8, seed=6, static=True))
    assert not torch.equal(first["input_ids"], whole[0]["input_ids"])


def test_an_epoch_has_every_row_once(workload):
    def restored(batch):
        return batch["input_ids"].scatter(1, batch["positions"], batch["labels"]).tolist()

    rows = [tuple(row) for batch in workload.batches("train", 1, 3, True) for row in restored(batch)]
    length = workload.sequence_length
    stream = workload.train[: workload.training_examples * length].reshape(-1, length)
    assert Counter(rows) == Counter(map(tuple, stream.tolist()))


def test_a_late_stage_has_longer_rows_of_as_many_tokens(folder):
    settings = dataclasses.replace(SMALL, late_length=64)
    longer = open_workload("code", settings, Data(data_folder=str(folder)), True)
    early, late = (longer.in_stage(Stage(name, 1)) for name in ("early", "late"))
    assert early is longer
    assert late is longer.in_stage(Stage("late", 2, target=0.5))
    batches = [next(one.batches("train", 8, 0, True)) for one in (early, late)]
    assert [tuple(batch["input_ids"].shape) for batch in batches] == [(8, 16), (2, 64)]
    assert late.training_examples // 2 >= early.batches_per_epoch(8)
    with pytest.raises(ValueError, match="batch_size is 6; allowed with rows of 64 tokens: multiples of 4"):
        late.batches("train", 6, 0, True)


def test_they_are_the_textbook_models():
    """A chain of two words: after 3 comes 4, after 4 comes 3 or 5; what is masked has visible neighbours."""
    source = np.random.default_rng(0)
    stream = np.array([3, 4, 3, 4, 5] * 2000, dtype=np.uint32)
    rows = np.array([stream[start : start + 20] for start in source.integers(0, 9000, 200)])
    found = probe_losses(stream, 6, [(masked(rows, (0,), 6), np.arange(200))], 200)
    entropy = -sum(share * math.log(share) for share in (0.4, 0.4, 0.2))
    assert entropy - 0.25 < found["unigram"] < entropy  # what stays visible tells a little
    assert found["bigram"] < 0.35 * found["unigram"]


def test_it_is_a_mean_over_files(workload):
    torch.manual_seed(0)
    model = workload.build()
    found = workload.evaluate(model)
    assert checked_metric(found, workload).name == "loss"
    assert model.training
    assert len(found.per_example) == 6 * 6
    assert recorded_words(workload)["validated"] == "held-out file"
    assert found.metrics["loss"] == pytest.approx(math.log(300), abs=0.5)
    assert found.metrics["loss"] == pytest.approx(np.mean(found.per_example))
    assert workload.evaluate(model) == found


def test_a_step_has_its_rate(workload, tmp_path):
    run = TrainingRun(code_cell(), workload, Upkeep(tmp_path / "run", "mine", "c"), lambda _: None)
    rates = []
    step = run.step.optimizer.step
    run.step.optimizer.step = lambda: (rates.append(run.step.optimizer.param_groups[0]["lr"]), step())
    run.run()
    expected = [scheduled_share(step, steps, 0.25, 0.5) for steps in (8, 4) for step in range(steps)]
    assert rates == pytest.approx([1e-3 * share for share in expected])
    assert [row["step"] for row in run.columns()["samples"]["curve"]] == [3, 6, 8, 9, 12]


def test_a_plan_has_the_optimizer_of_the_method_or_of_a_recipe():
    assert MaskedPlan().recipe is None
    assert MaskedPlan(optimizer="muon", lr=0.02).recipe == Recipe(optimizer="muon", lr=0.02, lr_rest=3e-3).identity()
    with pytest.raises(ValueError, match=r"lr is 0\.02, but optimizer=own takes its rates from the method's settings"):
        MaskedPlan(lr=0.02)


def test_with_pre_norm_a_last_norm_follows_the_blocks():
    model = MaskedLanguageModel(dataclasses.replace(SMALL, pre_norm=True, dropout=0.0))
    tokens, places = torch.randint(FIRST_ID, 300, (2, 16)), torch.tensor([[1, 5], [0, 2]])
    seen = []
    model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(tokens, places)
    assert torch.allclose(seen[0].mean(-1), torch.zeros(2, 2), atol=1e-5)
    assert torch.allclose(seen[0].var(-1, unbiased=False), torch.ones(2, 2), atol=1e-2)
    assert MaskedLanguageModel(SMALL).norm is None


def code_cell():
    """Eight early steps and four late ones, with longer rows."""
    cell = a_training_cell()
    stages = [dataclasses.asdict(Stage("early", 8)), dataclasses.asdict(Stage("late", 4))]
    training = {**cell.training, "stages": stages, "steps_per_epoch": 5, "static": False, "curve_steps": 3}
    training["schedule"] = {"warmup": 0.25, "final": 0.5}
    settings = dataclasses.asdict(dataclasses.replace(SMALL, late_length=64))
    return dataclasses.replace(cell, workload="code", workload_settings=settings, training=training, batch_size=8)
