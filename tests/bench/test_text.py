"""The workload ``text``: its corpus and splits, its model, its n-gram probes, and its way from a folder to a record."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_cells import run_bench

from bench.core.record import read_all
from bench.data.corpus import DataError
from bench.protocol import Data
from bench.workloads import open_workload
from bench.workloads.text import ngrams
from bench.workloads.text.corpus import FEW, corpus_of
from bench.workloads.text.model import CausalLanguageModel, TextSettings
from bench.workloads.text.workload import TextWorkload

SMALL = TextSettings(blocks=1, width=16, heads=2, context=8, validation_tokens=64, test_tokens=80)


def write_texts(folder, files=FEW + 20, words=60):
    """Files of drawn words, so that there is something to learn."""
    folder.mkdir(parents=True, exist_ok=True)
    source = np.random.default_rng(0)
    known = ["red", "green", "blue", "door", "opens", "closes", "on", "the", "hill"]
    for number in range(files):
        (folder / f"{number:03}.txt").write_text(" ".join(source.choice(known, words)) + ".\n")
    return folder


def corpus(folder, pattern="*"):
    return corpus_of(str(folder), pattern, ("python",), "bytes")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMERA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def workload(tmp_path):
    return TextWorkload(SMALL, corpus(write_texts(tmp_path / "texts")))


def test_many_files_are_split_by_file(tmp_path):
    folder = write_texts(tmp_path / "texts")
    found = corpus(folder)
    by_content = {path.read_bytes() for path in folder.iterdir()}
    sides = [bytes(side.astype(np.uint8)).split(b"\0")[:-1] for side in (found.train, found.validation, found.test)]
    assert {text for side in sides for text in side} == by_content
    assert sum(map(len, sides)) == len(by_content)
    assert all(sides)


def test_a_file_stays_on_its_side_when_others_come(tmp_path):
    folder = write_texts(tmp_path / "texts")
    before = corpus(folder)
    (folder / "zzz.txt").write_text("another one")
    after = corpus(folder)
    assert set(bytes(before.test.astype(np.uint8)).split(b"\0")) <= set(bytes(after.test.astype(np.uint8)).split(b"\0"))
    assert before.data_hash != after.data_hash
    assert before.name != after.name


def test_few_files_are_split_within_each(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "book.txt").write_text("".join(chr(97 + n % 26) for n in range(1000)))
    found = corpus(tmp_path / "one")
    assert [len(side) for side in (found.train, found.validation, found.test)] == [901, 51, 51]
    assert bytes(found.validation[:3].astype(np.uint8)) == b"qrs"  # the 901st letter and on


def test_files_are_chosen_by_a_pattern_and_hidden_ones_left_out(tmp_path):
    folder = write_texts(tmp_path / "texts", files=3)
    (folder / "picture.bin").write_bytes(b"\xff\xfe\x00")
    (folder / ".git").mkdir()
    (folder / ".git" / "objects").write_bytes(b"\xff")
    assert corpus(folder, "*.txt").train.size
    with pytest.raises(DataError, match=r"picture\.bin is no text: byte 0 is no UTF-8; leave it out by text\.files"):
        corpus(folder)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: None, "which is not a folder; name one that holds text files."),
        (lambda folder: folder.mkdir(), "which holds no file named like '*'; see text.files."),
        (lambda folder: write_texts(folder, 1, 0), "the train text of"),
        (lambda folder: (folder.mkdir(), (folder / "a").write_text("  \n")), "whose files are all empty"),
    ],
)
def test_what_is_no_corpus_is_one_sentence(tmp_path, make, words):
    make(tmp_path / "texts")
    with pytest.raises(DataError) as error:
        open_workload("text", SMALL, Data(data_folder=str(tmp_path / "texts")), check=True)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_corpus_shorter_than_a_context_is_refused(tmp_path):
    folder = write_texts(tmp_path / "texts", files=1, words=30)
    settings = TextSettings(blocks=1, width=16, heads=2, context=500)
    with pytest.raises(DataError, match=r"the train text of texts-\w+ has \d+ tokens, no more than text\.context=500"):
        open_workload("text", settings, Data(data_folder=str(folder)), check=True)


def test_an_unknown_tokenizer_is_one_sentence(tmp_path):
    folder = write_texts(tmp_path / "texts")
    with pytest.raises(DataError, match=r"text\.tokens is 'words'; allowed: bytes, gpt2, or the path"):
        corpus_of(str(folder), "*", ("python",), "words")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="which is no tokenizer of the library tokenizers"):
        corpus_of(str(folder), "*", ("python",), str(tmp_path / "tokenizer.json"))


def test_gpt2_is_read_from_the_cache_or_asked_for(tmp_path, monkeypatch):
    from bench.workloads.code.tokens import train_tokenizer

    folder = write_texts(tmp_path / "texts")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(DataError, match=r"fetch it once by hf download openai-community/gpt2 tokenizer\.json, or give"):
        corpus_of(str(folder), "*", ("python",), "gpt2")
    kept = tmp_path / "hub" / "models--openai-community--gpt2"
    (kept / "snapshots" / "abc").mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")
    tokenizer = train_tokenizer([path.read_text() for path in folder.iterdir()], 280)
    tokenizer.save(str(kept / "snapshots" / "abc" / "tokenizer.json"))
    assert corpus_of(str(folder), "*", ("python",), "gpt2").vocabulary == tokenizer.get_vocab_size()


def test_a_tokenizer_of_a_file_is_used(tmp_path):
    from bench.workloads.code.tokens import train_tokenizer

    folder = write_texts(tmp_path / "texts")
    texts = [path.read_text() for path in sorted(folder.iterdir())]
    tokenizer = train_tokenizer(texts, 300)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = corpus_of(str(folder), "*", ("python",), str(tmp_path / "tokenizer.json"))
    assert found.vocabulary == tokenizer.get_vocab_size()
    assert 0 < found.train.size < corpus(folder).train.size / 2


def test_the_default_is_the_source_of_packages_split_by_package():
    found = corpus_of(None, "*", ("omegaconf",), "bytes")
    assert found.name.startswith("omegaconf-")
    assert min(map(len, (found.train, found.validation, found.test))) > 1000


def test_every_row_is_seen_once_and_a_later_start_is_the_same(workload):
    batches = [batch["tokens"] for batch in workload.batches("train", 4, 3, True)]
    again = [batch["tokens"] for batch in workload.batches("train", 4, 3, True, start=2)]
    assert all(map(torch.equal, batches[2:], again))
    assert batches[0].shape == (4, 9)
    stream = torch.from_numpy(workload.corpus.train.astype(np.int64))
    rows = {tuple(row.tolist()) for batch in batches for row in batch}
    windows = [tuple(stream[start : start + 9].tolist()) for start in range(len(stream) - 8)]
    assert rows <= set(windows)
    assert len(batches) >= workload.batches_per_epoch(4)
    other = next(workload.batches("train", 4, 4, True))["tokens"]
    assert not torch.equal(other, batches[0])


def test_every_epoch_has_the_batches_that_it_is_said_to_have(tmp_path):
    """Wherever rows begin, and however exactly they fill the batches."""
    for length in range(400, 410):
        (tmp_path / "one.txt").write_text("a" * length)
        workload = TextWorkload(SMALL, corpus(tmp_path))
        for size in (1, workload.training_examples):
            counts = [len([*workload.batches("train", size, seed, True)]) for seed in range(30)]
            assert min(counts) >= workload.training_examples // size == workload.batches_per_epoch(size)


@pytest.mark.parametrize("size", [0, -1, 10**6, True])
def test_a_wrong_batch_is_refused(workload, size):
    with pytest.raises(ValueError, match="batch_size is"):
        workload.batches("train", size, 0, True)


def test_the_model_sees_no_later_token_and_starts_by_guessing(workload):
    torch.manual_seed(0)
    model = workload.build()
    batch = next(workload.batches("train", 4, 0, True))
    assert float(workload.loss(model, batch)) == pytest.approx(math.log(256), abs=1e-5)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tokens = batch["tokens"][:, :-1]
    changed = tokens.clone()
    changed[:, 5:] = 1
    one, other = model(tokens), model(changed)
    assert torch.equal(one[:, :5], other[:, :5])
    assert not torch.allclose(one[:, 5:], other[:, 5:])


def test_the_loss_is_that_of_every_next_token(workload):
    model = workload.build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batch = next(workload.batches("train", 3, 0, True))
    chances = model(batch["tokens"][:, :-1]).softmax(-1)
    picked = chances.gather(2, batch["tokens"][:, 1:, None])
    assert float(workload.loss(model, batch)) == pytest.approx(float(-picked.log().mean()), rel=1e-5)


def test_both_held_out_texts_are_evaluated(workload):
    model = workload.build()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    found = workload.evaluate(model)
    for name, rows in zip(("loss", "test_loss"), workload._windows, strict=True):
        tokens = torch.from_numpy(rows.astype(np.int64))
        assert found.metrics[name] == pytest.approx(float(workload.loss(model, {"tokens": tokens})), rel=1e-5)
    assert found.examples == 64
    assert model.training


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0])
def test_a_narrower_model_has_the_wanted_size_and_the_same_targets(ratio):
    with torch.device("meta"):
        model = CausalLanguageModel(TextSettings(), 256)
        dense = sum(parameter.numel() for parameter in model.parameters())
        narrow = model.narrowed(round(dense / ratio))
    size = sum(parameter.numel() for parameter in narrow.parameters())
    assert size == pytest.approx(dense / ratio, rel=0.02)
    assert {name for name, _ in narrow.named_modules()} == {name for name, _ in model.named_modules()}
    assert narrow.settings.width < 128 or ratio == 1


def test_no_narrower_model_is_one_sentence():
    with pytest.raises(ValueError, match=r"no narrower model has about 10 parameters; the nearest has [\d,]+, with"):
        CausalLanguageModel(TextSettings(), 256).narrowed(10)


def plain_losses(stream, rows, vocabulary, order, gamma):
    """The interpolated model, token by token."""
    counts = {}
    for n in range(1, order + 1):
        for start in range(len(stream) - n + 1):
            context, token = tuple(stream[start : start + n - 1]), stream[start + n - 1]
            counts.setdefault(context, {}).setdefault(token, 0)
            counts[context][token] += 1

    def chance(context, token):
        below = 1 / vocabulary if not context else chance(context[1:], token)
        if context and not counts.get(context):
            return below
        found = counts[context]
        weight = gamma * len(found)
        lower = 1 / vocabulary if not context else below
        return (found.get(token, 0) + weight * lower) / (sum(found.values()) + weight)

    losses = [
        -math.log(chance(tuple(row[max(place - order + 1, 0) : place]), row[place]))
        for row in rows
        for place in range(1, len(row))
    ]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_n_grams_are_the_formula(order, gamma):
    source = np.random.default_rng(1)
    stream = source.choice(5, 300, p=[0.4, 0.3, 0.15, 0.1, 0.05]).astype(np.uint32)
    rows = source.choice(5, (4, 7)).astype(np.uint32)
    found = ngrams._Rows(rows, 5).losses(ngrams.counted(stream, 5)[:order], gamma)[-1]
    assert found == pytest.approx(plain_losses(stream.tolist(), rows.tolist(), 5, order, gamma), rel=1e-9)


def test_a_limit_of_numbers_is_kept_and_costs_loss():
    stream = np.tile(np.random.default_rng(2).integers(0, 20, 90), 30).astype(np.uint32)
    rows = stream[:400].reshape(20, 20)
    models = ngrams.NGrams(stream, 20, rows, rows)
    free = models.best()
    limits = [10, 20, 100, 1000]
    found = [models.best(limit) for limit in limits]
    assert all(one.numbers <= limit for one, limit in zip(found, limits, strict=True))
    losses = [one.validation for one in found]
    assert losses == sorted(losses, reverse=True)
    assert found[0] == (0, 0, math.log(20), math.log(20))
    assert free.validation <= losses[-1]


def test_probes_are_in_order_and_kept(workload, monkeypatch):
    probes = workload.probes()
    names = list(probes)
    assert names == ["unigram model", "best n-gram model", "equal-size n-gram model"]
    unigram, best, equal = (probes[name].metrics["loss"] for name in names)
    assert best <= equal < unigram < math.log(256)
    assert (workload.metric.guess, workload.metric.probe) == (unigram, equal)
    monkeypatch.setattr("bench.workloads.text.workload.NGrams", lambda *_: pytest.fail("counted anew"))
    assert workload.probes() == probes


def test_a_probe_counts_what_a_training_saw(tmp_path):
    folder = corpus(write_texts(tmp_path / "texts"))
    settings = TextSettings(blocks=1, width=16, heads=2, context=8, probe_tokens=500, probe_numbers=300)
    probes = TextWorkload(settings, folder).probes()
    assert [*probes][2:] == ["equal-size n-gram model", "n-gram of 500 tokens model"]
    assert probes["equal-size n-gram model"].metrics["numbers"] <= 300
    assert probes["n-gram of 500 tokens model"].metrics["loss"] > probes["best n-gram model"].metrics["loss"]


@pytest.mark.slow
def test_btt_is_trained_with_muon_on_a_folder_of_ones_own(tmp_path):
    sizes = "text={blocks: 1, width: 16, heads: 2, context: 8, validation_tokens: 64, test_tokens: 64, files: '*.txt'}"
    folder = write_texts(tmp_path / "texts")
    own = [f"data_folder={folder}", "batch_size=4", "training.steps=12", "ratio=1.15", sizes]
    ended = run_bench(tmp_path, "experiment=text", *own, "methods=[btt,dense,'dense:narrow',comera]")
    assert ended.status == 0, ended.error
    records = {record.arm: record for record in read_all(tmp_path / "results")}
    assert {*records} == {"btt", "dense", "dense:narrow", "comera"}
    sizes = {name: record.parameters for name, record in records.items()}
    for name in ("btt", "dense:narrow", "comera"):
        assert sizes[name] == pytest.approx(sizes["dense"] / 1.15, rel=0.02)
    for record in records.values():
        assert record.status == "ok"
        assert {"loss", "test_loss"} <= set(record.metrics)
        losses = [row["metrics"]["loss"] for row in record.samples["curve"]]
        assert losses[-1] < losses[0] < math.log(256)
        assert len(losses) == 4
    assert len({record.train_loss for record in records.values()}) == 4
