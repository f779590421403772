"""Reading corpora of sentence pairs: layouts, precedence, names, hashes, and one sentence for whatever is wrong."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_cells import one_line

from bench.data.corpus import DataError, Pair
from bench.data.nli import find_corpus

TRAIN = [("A dog sleeps.", "An animal sleeps.", "entailment"), ("Él rió.", 'He "wept".', "contradiction")]
VALIDATION = [("A man eats.", "A man eats soup.", "neutral")]
PAIRS = [Pair("A dog sleeps.", "An animal sleeps.", 0), Pair("Él rió.", 'He "wept".', 2)]

PLAIN = ("train.jsonl", "dev_matched.jsonl")
OFFICIAL = ("multinli_1.0_train.jsonl", "multinli_1.0_dev_matched.jsonl")
PLAIN_KEYS = ("premise", "hypothesis", "label")
OFFICIAL_KEYS = ("sentence1", "sentence2", "gold_label")


def json_lines(rows, keys=PLAIN_KEYS) -> str:
    lines = [{"promptID": "7", **dict(zip(keys, row, strict=True))} for row in rows]
    return "".join(json.dumps(line) + "\n" for line in lines)


def write_folder(folder: Path, train=TRAIN, validation=VALIDATION, names=PLAIN, keys=PLAIN_KEYS) -> Path:
    folder.mkdir(parents=True)
    for name, rows in zip(names, (train, validation), strict=True):
        (folder / name).write_text(json_lines(rows, keys), encoding="utf-8")
    return folder


def rows_of(rows) -> list[Pair]:
    return [rows[index] for index in range(len(rows))]


@pytest.mark.parametrize("names", [PLAIN, OFFICIAL])
@pytest.mark.parametrize("keys", [PLAIN_KEYS, OFFICIAL_KEYS])
def test_every_layout_reads_the_same(tmp_path, names, keys):
    corpus = find_corpus(data_folder=write_folder(tmp_path / "pairs", names=names, keys=keys), environ={})
    assert corpus.name == "pairs"
    assert rows_of(corpus.train) == PAIRS
    assert rows_of(corpus.validation) == [Pair("A man eats.", "A man eats soup.", 1)]


def test_rows_without_a_majority_label_and_blank_lines_are_left_out(tmp_path):
    rows = [TRAIN[0], ("-", "-", "-"), ("-", "a dash", "neutral"), TRAIN[1]]
    folder = write_folder(tmp_path / "pairs", train=rows, names=OFFICIAL, keys=OFFICIAL_KEYS)
    with (folder / OFFICIAL[0]).open("a") as file:
        file.write("\n" + json_lines([("x", "y", "maybe")], OFFICIAL_KEYS) + "\n\n")
    corpus = find_corpus(data_folder=folder, environ={}, check=False)
    assert len(corpus.train) == 4
    assert [corpus.train[index] for index in range(3)] == [PAIRS[0], Pair("-", "a dash", 1), PAIRS[1]]
    with pytest.raises(DataError, match="line 6: gold_label is 'maybe'"):
        corpus.train[3]


@pytest.mark.parametrize(
    "line",
    [
        "{not json",
        '["a", "b", "neutral"]',
        '{"premise": "a", "label": "neutral"}',
        '{"sentence1": "a", "sentence2": "b"}',
        '{"premise": 3, "hypothesis": "b", "label": "neutral"}',
        '{"premise": "a", "hypothesis": "b", "label": "Neutral"}',
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(tmp_path, line):
    folder = write_folder(tmp_path / "pairs")
    good = json_lines(TRAIN[:1])
    (folder / PLAIN[1]).write_text(f"{good}{line}\n{good}")
    with one_line(DataError, f"{folder / PLAIN[1]}, line 2: "):
        find_corpus(data_folder=folder, environ={})


def test_sources_come_in_the_stated_order(tmp_path):
    named = write_folder(tmp_path / "named")
    write_folder(tmp_path / "data" / "mnli_12k", train=VALIDATION)
    environ = {"COMERA_DATA": str(tmp_path / "data")}
    assert find_corpus(data_folder=named, environ=environ).name == "named"
    assert find_corpus(environ=environ).name == "mnli_12k"
    assert find_corpus("synthetic", environ=environ).name == "synthetic"
    for nothing in ({}, {"COMERA_DATA": ""}, {"COMERA_DATA": str(tmp_path)}):
        assert find_corpus(environ=nothing).name == "synthetic"


def test_the_hash_follows_the_content_and_not_the_place(tmp_path):
    first, again = (find_corpus(data_folder=write_folder(tmp_path / at / "pairs"), environ={}) for at in ("a", "b"))
    swapped = find_corpus(data_folder=write_folder(tmp_path / "c" / "pairs", train=TRAIN[::-1]), environ={})
    other = find_corpus(data_folder=write_folder(tmp_path / "d" / "pairs", validation=TRAIN), environ={})
    assert first.content_hash == again.content_hash
    assert len({first.content_hash, swapped.content_hash, other.content_hash}) == 3


@pytest.mark.parametrize(
    ("arguments", "environ", "named"),
    [
        ({"dataset": "snli"}, {}, "snli"),
        ({"dataset": "mnli"}, {}, "data_folder"),
        ({"dataset": "mnli_12k"}, {}, "COMERA_DATA"),
        ({}, {"COMERA_DATA": "{tmp}/gone"}, "COMERA_DATA"),
        ({"data_folder": "{tmp}/half"}, {}, "{tmp}/half"),
        ({"data_folder": "{tmp}/blank"}, {}, "{tmp}/blank/train.jsonl"),
        ({"dataset": "synthetic", "data_folder": "{tmp}/pairs"}, {}, "data_folder"),
        ({"fetch": True}, {}, "fetch"),
    ],
)
def test_what_is_missing_is_named_in_one_line(tmp_path, arguments, environ, named):
    def fill(value):
        return value.replace("{tmp}", str(tmp_path)) if isinstance(value, str) else value

    write_folder(tmp_path / "pairs")
    write_folder(tmp_path / "blank", train=[])
    (write_folder(tmp_path / "half") / "dev_matched.jsonl").unlink()
    with one_line(DataError, fill(named)):
        find_corpus(
            **{name: fill(value) for name, value in arguments.items()},
            environ={name: fill(value) for name, value in environ.items()},
        )


class TestFetch:
    """Fetching, with a stand-in for Hugging Face ``datasets``."""

    @staticmethod
    def offer(monkeypatch, load_dataset):
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))

    def test_what_was_fetched_is_saved_and_not_fetched_again(self, tmp_path, monkeypatch):
        calls = []

        def load_dataset(*names):
            calls.append(names)
            train = [{"premise": pair.premise, "hypothesis": pair.hypothesis, "label": pair.label} for pair in PAIRS]
            unlabelled = {"premise": "p", "hypothesis": "h", "label": -1}
            return {"train": [*train, unlabelled], "validation_matched": train[:1], "test_matched": []}

        self.offer(monkeypatch, load_dataset)
        for _ in range(2):
            corpus = find_corpus(data_folder=tmp_path / "new" / "fetched", fetch=True, environ={})
            assert rows_of(corpus.train) == PAIRS
            assert rows_of(corpus.validation) == PAIRS[:1]
        assert len(calls) == 1
        assert sorted(path.name for path in (tmp_path / "new" / "fetched").iterdir()) == sorted(PLAIN)

    def test_a_failing_network_leaves_nothing_behind(self, tmp_path, monkeypatch):
        def load_dataset(*_names):
            raise ConnectionError("no route to the hub\nwith a second line")

        self.offer(monkeypatch, load_dataset)
        with one_line(DataError, "no route to the hub"):
            find_corpus(data_folder=tmp_path / "fetched", fetch=True, environ={})
        assert not (tmp_path / "fetched").exists()


class TestPool:
    """All pairs at hand, file behind file, scored on MNLI-12k's matched ones."""

    FILES = ("mnli_12k/train", "snli_devtest/dev", "snli_devtest/test", "semiauto_nli_wiki/train")
    FILES += ("semiauto_nli_wiki/test", "mnli_12k/dev_matched")

    @pytest.fixture
    def root(self, tmp_path) -> Path:
        """A data folder whose files hold one, two, three … rows that name their file."""
        for rows, name in enumerate(self.FILES, 1):
            path = tmp_path / f"{name}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json_lines((f"{name} {row}", "so", "neutral") for row in range(rows)))
        return tmp_path

    def test_the_files_follow_one_another(self, root):
        corpus = find_corpus("nli_pool", environ={"COMERA_DATA": str(root)})
        assert corpus.name == "nli_pool"
        names = [f"{name} {row}" for rows, name in enumerate(self.FILES, 1) for row in range(rows)]
        assert [pair.premise for pair in rows_of(corpus.train)] == names[:15]
        assert [pair.premise for pair in rows_of(corpus.validation)] == names[15:]


@pytest.mark.skipif("COMERA_DATA" not in os.environ, reason="COMERA_DATA is not set")
def test_the_real_pairs_are_all_there():
    corpus = find_corpus()
    assert (corpus.name, len(corpus.train), len(corpus.validation)) == ("mnli_12k", 12_023, 7_719)
    labels = [row.label for row in rows_of(corpus.train)]
    assert [labels.count(label) for label in range(3)] == [3_820, 4_293, 3_910]
