"""The workload ``text``: its corpus and splits, its model, its n-gram probes, and its way from a folder to a record."""

import contextlib
import io
import math
import os

import numpy as np
import pytest
import torch
from small_cells import run_bench
from tokenizers import Tokenizer, models, pre_tokenizers

from bench.core.record import read_all
from bench.data.corpus import DataError
from bench.errors import ConfigError
from bench.protocol import Data
from bench.workloads.text import ngrams
from bench.workloads.text.corpus import FEW, corpus_of
from bench.workloads.text.model import CausalLanguageModel, TextSettings
from bench.workloads.text.saved import continued, load
from bench.workloads.text.workload import TextWorkload

SMALL = TextSettings(blocks=1, width=16, heads=2, context=8, validation_tokens=64, test_tokens=80)


def write_texts(folder):
    """Files of drawn words, so that there is something to learn."""
    folder.mkdir(parents=True, exist_ok=True)
    source = np.random.default_rng(0)
    known = ["red", "green", "blue", "door", "opens", "closes", "on", "the", "hill"]
    for number in range(FEW + 80):
        (folder / f"{number:03}.txt").write_text(" ".join(source.choice(known, 60)) + ".\n")
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


def test_copies_of_a_file_are_one_text_on_one_side(tmp_path):
    folder = write_texts(tmp_path / "texts")
    alone = corpus(folder)
    for number, path in enumerate(sorted(folder.iterdir())):
        (folder / f"copy-{number}.txt").write_text(path.read_text().replace(" ", "\n"))
        (folder / f"link-{number}.txt").symlink_to(path)
    assert len(alone.test)
    assert corpus(folder).data_hash == alone.data_hash


def test_a_folder_whose_name_is_no_utf8_is_named(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    (folder / os.fsdecode(b"na\xefve.txt")).write_text("a file's own name does not count")
    with pytest.raises(DataError, match=r"^data_folder is '.*caf\\udce9', whose name has bytes that are no UTF-8"):
        corpus(folder)
    assert corpus(folder.rename(tmp_path / "caf\u00e9\u00a0noir")).train.size


def test_a_file_stays_on_its_side_when_others_come(tmp_path):
    folder = write_texts(tmp_path / "texts")
    before = corpus(folder)
    (folder / "zzz.txt").write_text("another one")
    after = corpus(folder)
    assert set(bytes(before.test.astype(np.uint8)).split(b"\0")) <= set(bytes(after.test.astype(np.uint8)).split(b"\0"))
    assert before.data_hash != after.data_hash
    assert before.name != after.name


@pytest.mark.parametrize(
    ("folder", "pattern", "said"),
    [
        ("", "*", "data_folder is empty"),
        (" ", "*", "data_folder is empty"),
        ("missing", "*", "which is not a folder"),
        (".", "/tmp/*.txt", "text.files is '/tmp/[*].txt'"),
        (".", "", "text.files is ''"),
        (".", "*.md", "no file named like '[*].md'"),
        ("blank", "*", "whose files are all empty"),
        ("bytes", "*", "byte 2 is no UTF-8"),
    ],
)
def test_a_folder_without_text_is_one_sentence(tmp_path, monkeypatch, folder, pattern, said):
    monkeypatch.chdir(tmp_path)
    for name, content in (("one.txt", b"text"), ("blank/one.txt", b" "), ("bytes/one.txt", b"ab\xff")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        corpus_of(folder, pattern, ("python",), "bytes")


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
            counts = [len([*workload.batches("train", size, seed, True)]) for seed in range(5)]
            assert min(counts) >= workload.training_examples // size == workload.batches_per_epoch(size)


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


@pytest.mark.parametrize("ratio", [1.0, 3.0, 8.0])
def test_a_narrower_model_has_the_wanted_size_and_the_same_targets(ratio):
    with torch.device("meta"):
        model = CausalLanguageModel(TextSettings(), 256)
        dense = sum(parameter.numel() for parameter in model.parameters())
        narrow = model.narrowed(round(dense / ratio))
    size = sum(parameter.numel() for parameter in narrow.parameters())
    assert size == pytest.approx(dense / ratio, rel=0.02)
    assert {name for name, _ in narrow.named_modules()} == {name for name, _ in model.named_modules()}
    assert narrow.settings.width < 128 or ratio == 1


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


def tokenizer(change=lambda _: None):
    """A tokenizer of whole words, changed before it is saved."""
    made = Tokenizer(models.WordLevel({"?": 0, "red": 3, "green": 1, "blue": 9}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    change(made)
    return made


def test_a_tokenizer_that_truncates_or_pads_leaves_the_text_whole(tmp_path):
    folder = write_texts(tmp_path / "texts")
    changes = (lambda _: None, lambda made: made.enable_truncation(8), lambda made: made.enable_padding(length=90))
    found = []
    for number, change in enumerate(changes):
        tokenizer(change).save(path := str(tmp_path / f"{number}.json"))
        found.append(corpus_of(str(folder), "*", (), path))
    assert len(found[0].train) > 60 * FEW
    for other in found[1:]:
        assert np.array_equal(other.train, found[0].train)
        assert np.array_equal(other.test, found[0].test)


def test_a_vocabulary_may_leave_numbers_out(tmp_path):
    tokenizer().save(path := str(tmp_path / "tokenizer.json"))
    found = corpus_of(str(write_texts(tmp_path / "texts")), "*", (), path)
    assert (found.train.max(), found.vocabulary) == (9, 10)


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


class Guess(torch.nn.Module):
    """The same scores everywhere, so that the loss of a token is known by hand."""

    def __init__(self):
        super().__init__()
        self.scores = torch.nn.Parameter(torch.linspace(-3, 3, 256))

    def forward(self, tokens):
        return self.scores.expand(*tokens.shape, -1)


def test_the_loss_is_per_token_and_each_of_the_side_it_names(workload, monkeypatch):
    monkeypatch.setattr("bench.workloads.text.workload._EVALUATED_TOKENS", 3 * SMALL.context)  # uneven batches
    model, found = Guess(), workload.evaluate(Guess())
    by_hand = []
    for rows in workload._windows:
        predicted = torch.from_numpy(rows[:, 1:].astype(np.int64)).flatten()
        by_hand.append(float(-torch.log_softmax(model.scores, 0)[predicted].mean()))
    assert by_hand[0] != pytest.approx(by_hand[1], abs=1e-3)
    assert [found.metrics["loss"], found.metrics["test_loss"]] == pytest.approx(by_hand, abs=1e-5)
    assert found.examples == SMALL.validation_tokens
    assert not {bytes(row) for row in workload._windows[0]} & {bytes(row) for row in workload._windows[1]}


def test_training_on_a_text_ends_with_a_table_and_models_that_continue_a_prompt(tmp_path, monkeypatch):
    sizes = "text={blocks: 1, width: 16, heads: 2, context: 8, validation_tokens: 64, test_tokens: 64, files: '*.txt'}"
    folder = write_texts(tmp_path / "texts")
    own = [f"data_folder={folder}", "batch_size=4", "training.steps=4", "ratio=1.15", sizes]
    ended = run_bench(tmp_path, "experiment=text", *own)
    assert ended.status == 0, ended.error
    lines = ended.output.splitlines()
    assert max(map(len, lines)) <= 100
    rows = {line.split("  ")[0]: line.split() for line in lines if line}
    records = {record.arm: record for record in read_all(tmp_path / "results")}
    assert set(records) == {"btt", "dense:narrow"}
    for name, record in records.items():
        losses = [f"{record.metrics[metric]:.4f}" for metric in ("loss", "test_loss")]
        assert rows[name][1:4] == [f"{record.parameters:,}", *losses]
    assert {"best n-gram", "equal-size n-gram"} < set(rows)
    monkeypatch.chdir(tmp_path)
    [start] = [number for number, line in enumerate(lines) if line.startswith("from bench")]
    program = "\n".join(lines[start : start + 3])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program)
    assert printed.getvalue().startswith("The ")
    for name, record in records.items():
        model = load(rows[name][4])
        assert sum(parameter.numel() for parameter in model.parameters()) == record.parameters
        again = TextWorkload.open(model.settings, Data(data_folder=str(folder)), check=True).evaluate(model)
        assert again.metrics["test_loss"] == pytest.approx(record.metrics["test_loss"], abs=1e-5)
    assert continued(model, "a", 5) == continued(model, "a", 5)
    with pytest.raises(ConfigError, match="holds no model"):
        load(tmp_path)


def test_packages_beside_a_folder_are_refused(tmp_path):
    folder = write_texts(tmp_path / "texts")
    data = Data(data_folder=str(folder))
    assert TextWorkload.open(TextSettings(), data, check=True).dataset.startswith("texts")
    with pytest.raises(DataError, match=r"text\.packages is json, but data_folder"):
        TextWorkload.open(TextSettings(packages=("json",)), data, check=True)
