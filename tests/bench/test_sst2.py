"""Reading SST-2: its two files as GLUE ships them, one sentence for whatever is wrong, and its way into a batch."""

import os
from pathlib import Path

import pytest
from small_cells import one_line
from test_nli import rows_of

import bench.workloads
from bench.data.corpus import DataError, Pair
from bench.data.nli import find_corpus
from bench.protocol import Data
from bench.workloads import open_workload
from bench.workloads.encoder import EncoderSettings

HEADER = "sentence\tlabel\n"
TRAIN = HEADER + "a dull film \t0\n``  quite '' moving\t1\nÉric's best \t1\n"
VALIDATION = HEADER + "it 's a charming journey . \t1\n"
SMALL = EncoderSettings(
    layers=1, width=16, heads=2, feed_forward=32, vocabulary=500, positions=32, classes=2, sequence_length=16
)


def write_sst2(root: Path, train: str = TRAIN) -> dict[str, str]:
    """A data folder with these two files, as the environment that names it."""
    (root / "sst2").mkdir(parents=True)
    for name, text in (("train.tsv", train), ("dev.tsv", VALIDATION)):
        (root / "sst2" / name).write_text(text, encoding="utf-8", newline="")
    return {"COMERA_DATA": str(root)}


def test_sentences_come_with_their_sentiment(tmp_path):
    corpus = find_corpus("sst2", environ=write_sst2(tmp_path))
    assert (corpus.name, corpus.labels) == ("sst2", ("negative", "positive"))
    assert rows_of(corpus.train) == [
        Pair("a dull film", "", 0),
        Pair("``  quite '' moving", "", 1),
        Pair("Éric's best", "", 1),
    ]
    assert rows_of(corpus.validation) == [Pair("it 's a charming journey .", "", 1)]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a film\t1\n", ", line 1:"),
        (TRAIN.replace("\n", "\r\n"), ", line 1:"),
        (HEADER, " has no rows"),
        (HEADER + "a film\t1\na film\n", ", line 3:"),
        (HEADER + "a film\t2\n", ", line 2:"),
        (HEADER + "a film\t1 \n", ", line 2:"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path, text, place):
    environ = write_sst2(tmp_path, train=text)
    with one_line(DataError, f"{tmp_path / 'sst2' / 'train.tsv'}{place}"):
        find_corpus("sst2", environ=environ)


def test_a_batch_holds_one_segment_and_two_classes(tmp_path, monkeypatch):
    monkeypatch.setenv("COMERA_DATA", write_sst2(tmp_path)["COMERA_DATA"])
    monkeypatch.setattr(bench.workloads, "_opened", {})
    workload = open_workload("encoder", SMALL, Data("sst2"), check=True)
    batch = next(workload.batches("train", 3, seed=0, static=False))
    assert not batch["token_type_ids"].any()
    assert sorted(batch["labels"].tolist()) == [0, 1, 1]
    assert [ids.count(3) for ids in batch["input_ids"].tolist()] == [1, 1, 1]  # one [SEP], at the end
    assert workload.build().classifier.classes.out_features == 2


@pytest.mark.skipif("COMERA_DATA" not in os.environ, reason="COMERA_DATA is not set")
def test_the_real_sentences_are_all_there():
    corpus = find_corpus("sst2")
    assert (len(corpus.train), len(corpus.validation)) == (67_349, 872)
    assert [sum(pair.label for pair in rows) for rows in (corpus.train, corpus.validation)] == [37_569, 444]
