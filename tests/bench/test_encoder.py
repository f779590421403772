"""The encoder workload: its batches, its loss and its evaluation. The model has tests of its own."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bench.core.samples import packed
from bench.data.corpus import Corpus, Pair
from bench.data.synthetic import synthetic_corpus
from bench.data.wordpiece import SPECIAL_TOKENS, PairTokenizer, train_vocabulary
from bench.workloads.encoder import EncoderSettings, EncoderWorkload

SMALL = EncoderSettings(
    layers=2, width=24, heads=3, feed_forward=40, vocabulary=500, positions=64, dropout=0.1, sequence_length=48
)


@pytest.fixture(scope="module")
def workload() -> EncoderWorkload:
    corpus = synthetic_corpus(train=300, validation=99)
    return EncoderWorkload(SMALL, corpus, PairTokenizer(train_vocabulary(corpus, SMALL.vocabulary)))


class CountingRows:
    """Rows that remember which of them were read."""

    def __init__(self, size: int) -> None:
        self.size, self.read = size, []

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Pair:
        self.read.append(index)
        return Pair("a " * (1 + index % 7), f"b {'c ' * (index % 5)}", index % 3)


@pytest.fixture
def counted() -> EncoderWorkload:
    corpus = Corpus("counted", "0", CountingRows(70), CountingRows(35))
    return EncoderWorkload(SMALL, corpus, PairTokenizer([*SPECIAL_TOKENS, "a", "b", "c"]))


def test_a_batch_holds_its_pairs(counted):
    batch = next(counted.batches("validation", 3, seed=0, static=False))
    assert {name: tensor.dtype for name, tensor in batch.items()} == {
        "input_ids": torch.int64,
        "attention_mask": torch.bool,
        "token_type_ids": torch.int64,
        "labels": torch.int64,
    }
    start, separator, a, b, c = 2, 3, 5, 6, 7
    assert batch["input_ids"].tolist() == [
        [start, a, separator, b, separator, 0, 0, 0, 0],
        [start, a, a, separator, b, c, separator, 0, 0],
        [start, a, a, a, separator, b, c, c, separator],
    ]
    assert batch["token_type_ids"].tolist() == [
        [0, 0, 0, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 1, 1],
    ]
    assert torch.equal(batch["attention_mask"], batch["input_ids"] != 0)
    assert batch["labels"].tolist() == [0, 1, 2]


def test_dynamic_batches_leave_nothing_out(counted):
    batches = list(counted.batches("train", 16, seed=0, static=False))
    assert sorted(len(batch["labels"]) for batch in batches) == [6, 16, 16, 16, 16]
    assert sorted(counted.corpus.train.read) == list(range(70))
    assert all(bool(batch["attention_mask"].any(0).all()) for batch in batches)  # no wider than the longest pair


def test_the_seed_shuffles_training_and_nothing_else(counted):
    def order(split, seed, static):
        batches = counted.batches(split, 8, seed=seed, static=static)
        return [tuple(ids[ids > 0].tolist()) for batch in batches for ids in batch["input_ids"]]

    for static in (True, False):
        assert order("train", 1, static) == order("train", 1, static)
        assert order("train", 1, static) != order("train", 2, static)
        assert order("validation", 1, static) == order("validation", 2, static)
    assert sorted(order("train", 1, static=False)) == sorted(order("train", 2, static=False))


def test_a_run_that_goes_on_gets_the_batches_it_would_have_had(counted):
    for static in (True, False):
        whole = list(counted.batches("train", 8, seed=5, static=static))
        rest = list(counted.batches("train", 8, seed=5, static=static, start=3))
        assert len(rest) == len(whole) - 3
        for one, other in zip(whole[3:], rest, strict=True):
            assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("static", [True, False])
def test_a_batch_is_no_view(counted, static, batch_size):
    """A step that keeps its ids or labels for backward would keep whole rows, and be predicted to need them."""
    for workload in (counted, counted.held_on("cpu")):
        batch = next(workload.batches("train", batch_size, 5, static=static))
        assert {name for name, each in batch.items() if each.untyped_storage().nbytes() != each.nbytes} == set()


def test_a_workload_held_on_a_device_has_the_same_batches_and_reads_each_row_once(counted):
    held = counted.held_on("cpu")
    for split, seed in (("train", 5), ("train", 6), ("validation", 5)):
        whole = list(counted.batches(split, 8, seed, static=True))
        again = list(held.batches(split, 8, seed, static=True))
        for one, other in zip(whole, again, strict=True):
            assert {name: tensor.dtype for name, tensor in one.items()} == {
                name: tensor.dtype for name, tensor in other.items()
            }
            assert all(torch.equal(one[name], other[name]) for name in one)
    counted.corpus.train.read.clear()
    anew = counted.held_on("cpu")
    for seed in (5, 6, 7):
        assert len(list(anew.batches("train", 8, seed, static=True))) == 8
    assert len(counted.corpus.train.read) == len({*counted.corpus.train.read}) <= 70
    on_meta = next(counted.held_on("meta").batches("train", 8, 3, static=True))
    assert {tensor.device.type for tensor in on_meta.values()} == {"meta"}


def test_the_data_hash_follows_corpus_vocabulary_and_length(workload):
    def changed(settings=SMALL, corpus=workload.corpus, tokenizer=workload.tokenizer):
        return EncoderWorkload(settings, corpus, tokenizer).data_hash

    assert changed() == workload.data_hash == changed(settings=dataclasses.replace(SMALL, layers=1))
    others = {
        changed(settings=dataclasses.replace(SMALL, sequence_length=40)),
        changed(corpus=synthetic_corpus(train=300, validation=99, seed=1)),
        changed(tokenizer=PairTokenizer(workload.tokenizer.vocabulary[:-1])),
    }
    assert len(others | {workload.data_hash}) == 4


class TestLearning:
    def test_evaluation_counts_every_row_and_keeps_the_mode(self, workload):
        class Constant(nn.Module):
            """Says the same of every pair and remembers how many it saw in which mode."""

            def __init__(self) -> None:
                super().__init__()
                self.scores = nn.Parameter(torch.tensor([0.0, 2.0, 1.0]))
                self.seen: list[tuple[int, bool]] = []

            def forward(self, input_ids, _attention_mask, _token_type_ids):
                self.seen.append((len(input_ids), self.training))
                return self.scores.expand(len(input_ids), 3)

        model = Constant()
        for mode in (True, False):
            model.train(mode)
            model.seen = []
            evaluation = workload.evaluate(model)
            assert model.training is mode
            assert sum(rows for rows, _ in model.seen) == 99
            assert not any(training for _, training in model.seen)
        assert evaluation.metrics == {
            "accuracy": pytest.approx(100 / 3),
            "loss": pytest.approx(-F.log_softmax(model.scores, 0).mean().item(), rel=1e-6),
        }
        # The second label is right in every third row: 010 010 …
        assert packed(evaluation.per_example) == {"bits": "492" * 8 + "4", "count": len(evaluation.per_example)}
        assert len(evaluation.per_example) == 99

    def test_the_loss_is_the_mean_cross_entropy_of_the_batch(self, workload):
        torch.manual_seed(0)
        model = workload.build().eval()
        batch = next(workload.batches("train", 5, seed=0, static=False))
        labels = batch["labels"]
        scores = model(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
        by_hand = -scores.log_softmax(-1)[torch.arange(5), labels].mean()
        torch.testing.assert_close(workload.loss(model, batch), by_hand)
