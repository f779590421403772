"""Reading corpora of sentence pairs: layouts, precedence, names, hashes, and one sentence for whatever is wrong."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.data import nli
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


def sentence_of(caught) -> str:
    """The message, after checking that it is one line that could be shown as it is."""
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message


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
    ("line", "complaint"),
    [
        ("{not json", "the row is not JSON"),
        ('["a", "b", "neutral"]', "the row is a JSON list; it must be an object"),
        ('{"premise": "a", "label": "neutral"}', "the key 'hypothesis' is missing"),
        ('{"text": "a"}', "the key 'premise' is missing"),
        ('{"sentence1": "a", "sentence2": "b"}', "the key 'gold_label' is missing"),
        ('{"premise": 3, "hypothesis": "b", "label": "neutral"}', "premise is 3; it must be a string"),
        ('{"premise": "a", "hypothesis": "b", "label": 1}', "label is 1; it must be a string"),
        (
            '{"premise": "a", "hypothesis": "b", "label": "Neutral"}',
            "label is 'Neutral'; allowed: entailment, neutral, contradiction",
        ),
    ],
)
@pytest.mark.parametrize("name", PLAIN)
def test_a_malformed_row_is_named_by_file_and_line(tmp_path, name, line, complaint):
    folder = write_folder(tmp_path / "pairs")
    good = json_lines(TRAIN[:1])
    (folder / name).write_text(f"{good}{line}\n{good}")
    with pytest.raises(DataError) as caught:
        find_corpus(data_folder=folder, environ={})
    assert sentence_of(caught).startswith(f"{folder / name}, line 2: {complaint}")


def test_bytes_that_are_not_text_are_named_by_file_and_line(tmp_path):
    folder = write_folder(tmp_path / "pairs")
    (folder / "train.jsonl").write_bytes(json_lines(TRAIN[:1]).encode() + b'{"premise": "\xff\xfe"}\n')
    with pytest.raises(DataError, match=r"train\.jsonl, line 2: the row is not JSON"):
        find_corpus(data_folder=folder, environ={})


def test_rows_are_parsed_when_asked_for(tmp_path):
    folder = write_folder(tmp_path / "pairs")
    with (folder / "train.jsonl").open("a") as file:
        file.write("broken\n")
    corpus = find_corpus(data_folder=folder, environ={}, check=False)
    assert corpus.train[0] == PAIRS[0]
    with pytest.raises(DataError, match="line 3"):
        corpus.check()


def test_sources_come_in_the_stated_order(tmp_path):
    named = write_folder(tmp_path / "named")
    write_folder(tmp_path / "data" / "mnli_12k", train=VALIDATION)
    environ = {"COMERA_DATA": str(tmp_path / "data")}
    assert find_corpus(data_folder=named, environ=environ).name == "named"
    assert find_corpus(environ=environ).name == "mnli_12k"
    assert find_corpus("synthetic", environ=environ).name == "synthetic"
    for nothing in ({}, {"COMERA_DATA": ""}, {"COMERA_DATA": str(tmp_path)}):
        assert find_corpus(environ=nothing).name == "synthetic"


def test_a_name_may_be_asked_for(tmp_path):
    folder = write_folder(tmp_path / "mnli_12k")
    environ = {"COMERA_DATA": str(tmp_path)}
    by_environment = find_corpus("mnli_12k", environ=environ)
    by_folder = find_corpus("mnli_12k", data_folder=str(folder), environ={})
    assert by_environment == by_folder
    assert hash(by_environment) == hash(by_folder)


def test_only_the_complete_corpus_is_called_mnli(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "mnli")
    assert find_corpus(data_folder=folder, environ={}).name == "mnli_2"
    with pytest.raises(DataError) as caught:
        find_corpus("mnli", data_folder=folder, environ={})
    assert "holds 'mnli_2' with 2 training rows (mnli has 392,702); allowed: auto, mnli_2" in sentence_of(caught)
    monkeypatch.setattr(nli, "MNLI_TRAIN_ROWS", 2)
    elsewhere = write_folder(tmp_path / "elsewhere")
    assert find_corpus("mnli", data_folder=elsewhere, environ={}).name == "mnli"


def test_the_hash_follows_the_content_and_not_the_place(tmp_path):
    first, again = (find_corpus(data_folder=write_folder(tmp_path / at / "pairs"), environ={}) for at in ("a", "b"))
    swapped = find_corpus(data_folder=write_folder(tmp_path / "c" / "pairs", train=TRAIN[::-1]), environ={})
    other = find_corpus(data_folder=write_folder(tmp_path / "d" / "pairs", validation=TRAIN), environ={})
    assert first.content_hash == again.content_hash
    assert len({first.content_hash, swapped.content_hash, other.content_hash}) == 3


@pytest.mark.parametrize(
    ("arguments", "environ", "sentence"),
    [
        ({"dataset": "snli"}, {}, "dataset is 'snli'; allowed: auto, mnli"),
        ({"dataset": "mnli"}, {}, "dataset is 'mnli' but data_folder is not set"),
        ({"dataset": "mnli_12k"}, {}, "dataset is 'mnli_12k' but COMERA_DATA is not set"),
        ({"dataset": "mnli_12k"}, {"COMERA_DATA": "{tmp}/empty"}, "{tmp}/empty/mnli_12k lacks data files"),
        ({}, {"COMERA_DATA": "{tmp}/gone"}, "COMERA_DATA is {tmp}/gone, which is not a folder"),
        ({"data_folder": "{tmp}/gone"}, {}, "data_folder is {tmp}/gone, which is not a folder; it must hold"),
        ({"data_folder": "{tmp}/empty"}, {}, "data_folder is {tmp}/empty, which lacks data files; it must hold"),
        ({"data_folder": "{tmp}/half"}, {}, "data_folder is {tmp}/half, which lacks data files; it must hold"),
        ({"data_folder": "{tmp}/blank"}, {}, "{tmp}/blank/train.jsonl has no labelled rows"),
        ({"dataset": "synthetic", "data_folder": "{tmp}/pairs"}, {}, "dataset is 'synthetic' but data_folder"),
        ({"fetch": True}, {}, "fetch is true but data_folder is not set"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(tmp_path, arguments, environ, sentence):
    def fill(value):
        return value.replace("{tmp}", str(tmp_path)) if isinstance(value, str) else value

    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "pairs")
    write_folder(tmp_path / "blank", train=[])
    (write_folder(tmp_path / "half") / "dev_matched.jsonl").unlink()
    with pytest.raises(DataError) as caught:
        find_corpus(
            **{name: fill(value) for name, value in arguments.items()},
            environ={name: fill(value) for name, value in environ.items()},
        )
    assert sentence_of(caught).startswith(fill(sentence))


def test_an_mnli_12k_folder_without_its_files_is_not_passed_over(tmp_path):
    (tmp_path / "mnli_12k").mkdir()
    with pytest.raises(DataError, match="lacks data files"):
        find_corpus(environ={"COMERA_DATA": str(tmp_path)})


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

    def test_a_missing_package_names_the_extra(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(DataError) as caught:
            find_corpus(data_folder=tmp_path / "fetched", fetch=True, environ={})
        assert "install the extra 'data'" in sentence_of(caught)
        assert not (tmp_path / "fetched").exists()

    def test_a_failing_network_leaves_nothing_behind(self, tmp_path, monkeypatch):
        def load_dataset(*_names):
            raise ConnectionError("no route to the hub\nwith a second line")

        self.offer(monkeypatch, load_dataset)
        with pytest.raises(DataError) as caught:
            find_corpus(data_folder=tmp_path / "fetched", fetch=True, environ={})
        assert sentence_of(caught).endswith("failed (no route to the hub)")
        assert not (tmp_path / "fetched").exists()

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path, monkeypatch):
        self.offer(monkeypatch, lambda *_names: {"train": [], "validation_matched": []})
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match="cannot be written"):
            find_corpus(data_folder=tmp_path / "file" / "fetched", fetch=True, environ={})


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

    @pytest.mark.parametrize("name", FILES)
    def test_every_file_is_needed_counts_for_the_hash_and_is_checked(self, root, name):
        environ, path = {"COMERA_DATA": str(root)}, root / f"{name}.jsonl"
        whole = find_corpus("nli_pool", environ=environ).content_hash
        path.write_text(path.read_text().replace('"so"', '"thus"'))
        assert find_corpus("nli_pool", environ=environ).content_hash != whole
        path.write_text(path.read_text() + json_lines([("a", "b", "maybe")]))
        with pytest.raises(DataError) as caught:
            find_corpus("nli_pool", environ=environ)
        line = self.FILES.index(name) + 2
        assert sentence_of(caught).startswith(f"{path}, line {line}: label is 'maybe'; allowed: entailment, neutral")
        path.unlink()
        with pytest.raises(DataError) as caught:
            find_corpus("nli_pool", environ=environ)
        assert sentence_of(caught) == f"{path} cannot be read (No such file or directory)"

    def test_without_a_data_folder(self):
        with pytest.raises(DataError, match="dataset is 'nli_pool' but COMERA_DATA is not set"):
            find_corpus("nli_pool", environ={})

    @pytest.mark.skipif("COMERA_DATA" not in os.environ, reason="COMERA_DATA is not set")
    def test_the_real_pool_is_all_there(self):
        corpus = find_corpus("nli_pool")
        assert (len(corpus.train), len(corpus.validation)) == (12_023 + 9_842 + 9_824 + 15_103 + 685, 7_719)


@pytest.mark.skipif("COMERA_DATA" not in os.environ, reason="COMERA_DATA is not set")
def test_the_real_pairs_are_all_there():
    corpus = find_corpus()
    assert (corpus.name, len(corpus.train), len(corpus.validation)) == ("mnli_12k", 12_023, 7_719)
    labels = [row.label for row in rows_of(corpus.train)]
    assert [labels.count(label) for label in range(3)] == [3_820, 4_293, 3_910]
