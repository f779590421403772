"""Finding and reading corpora: natural-language inference, and the sentiment of SST-2.

Without a name, in this order: a folder the user names (MNLI as JSON lines, fetched into it on request), the folder
``mnli_12k`` under the environment variable ``COMERA_DATA``, and the generated corpus of :mod:`bench.data.synthetic`.

A folder holds ``train.jsonl`` and ``dev_matched.jsonl`` or the files as MultiNLI 1.0 ships them. A row has the keys
``premise``, ``hypothesis``, ``label``, or MultiNLI's ``sentence1``, ``sentence2``, ``gold_label``. MultiNLI marks rows
without a majority label with ``-``; these are left out, as everywhere in the literature. SST-2, single sentences with a
sentiment, comes as GLUE ships it: ``train.tsv`` and ``dev.tsv``, below a header a sentence, a tab and 0 or 1 per line.
"""

import contextlib
import hashlib
import json
import mmap
import os
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch.utils import data

from bench.core.files import write_whole
from bench.core.reading import open_regular
from bench.core.vocabulary import MNLI_TRAIN_ROWS
from bench.data.corpus import LABELS, Corpus, DataError, Pair
from bench.data.synthetic import synthetic_corpus

DATA_VARIABLE = "COMERA_DATA"  # the environment variable that names the folder of real data

#: File names of (train, validation), in the order they are looked for.
LAYOUTS = (("train.jsonl", "dev_matched.jsonl"), ("multinli_1.0_train.jsonl", "multinli_1.0_dev_matched.jsonl"))
_EXPECTED = ", or ".join(" and ".join(names) for names in LAYOUTS)

#: Training files of the pool, below ``COMERA_DATA``; it is scored on MNLI-12k's matched development pairs.
POOL_FILES = (
    "mnli_12k/train.jsonl",
    "snli_devtest/dev.jsonl",
    "snli_devtest/test.jsonl",
    "semiauto_nli_wiki/train.jsonl",
    "semiauto_nli_wiki/test.jsonl",
)

#: Keys of premise, hypothesis and label, in the order they are looked for.
ROW_KEYS = (("premise", "hypothesis", "label"), ("sentence1", "sentence2", "gold_label"))
SST2_LABELS = ("negative", "positive")  # a label is an index into this tuple
_SST2_HEADER = "sentence\tlabel"

#: Names that promise a particular content; a user's folder of that name does not earn it.
_RESERVED_NAMES = ("auto", "mnli", "nli_pool", "sst2", "synthetic")


class JsonLines(data.Dataset[Pair]):
    """The labelled rows of one JSON-lines file, parsed when asked for; a wrong one raises :class:`DataError`.

    Opening reads the file once, to find its lines and hash them. The content stays in a memory map, which the
    processes of a run share.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts, self._ends, self._line_numbers = array("q"), array("q"), array("q")
        digest = hashlib.sha256()
        position = 0
        try:
            with open_regular(path) as file:
                for number, line in enumerate(file, 1):
                    start, position = position, position + len(line)
                    digest.update(line)
                    if line.strip() and not _is_unlabelled(line):
                        self._starts.append(start)
                        self._ends.append(position)
                        self._line_numbers.append(number)
                if not self._starts:
                    raise DataError(f"{path} has no labelled rows; it needs at least one")
                self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror or error})") from None
        self.sha256 = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Pair:
        line = self._content[self._starts[index] : self._ends[index]]
        return _parse(line, f"{self.path}, line {self._line_numbers[index]}")


def _is_unlabelled(line: bytes) -> bool:
    """Return whether the row carries MultiNLI's mark for "the annotators did not agree"."""
    if b'"-"' not in line:  # nearly always; parsing every row here would be slow
        return False
    with contextlib.suppress(ValueError, RecursionError):  # malformed rows are reported when they are read
        row = json.loads(line)
        return isinstance(row, dict) and row.get("gold_label") == "-"
    return False


def _parse(line: bytes, where: str) -> Pair:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise DataError(f"{where}: the row is not JSON; a row is one JSON object on one line") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: the row is a JSON {type(row).__name__}; it must be an object")
    keys = next((keys for keys in ROW_KEYS if keys[0] in row), ROW_KEYS[0])
    for key in keys:
        if key not in row:
            allowed = " or ".join(", ".join(names) for names in ROW_KEYS)
            raise DataError(f"{where}: the key {key!r} is missing; a row has the keys {allowed}")
        if not isinstance(row[key], str):
            raise DataError(f"{where}: {key} is {row[key]!r}; it must be a string")
    premise, hypothesis, label = (row[key] for key in keys)
    if label not in LABELS:
        raise DataError(f"{where}: {keys[2]} is {label!r}; allowed: {', '.join(LABELS)}")
    return Pair(premise, hypothesis, LABELS.index(label))


def find_corpus(
    dataset: str = "auto",
    data_folder: str | Path | None = None,
    fetch: bool = False,
    environ: Mapping[str, str] = os.environ,
    check: bool = True,
) -> Corpus:
    """Find the sentence pairs to train on.

    "auto" takes the first source of sentence pairs there is; any other name takes that one or fails. A ``data_folder``
    holds JSON lines, and its corpus is called "mnli" when it has all 392,702 training rows, otherwise like the folder.
    ``fetch`` downloads MNLI into it where its files are missing (needs the extra ``data``). ``check`` parses every row
    now: 0.1 s for 20,000 rows, a few seconds for full MNLI. What is missing or malformed raises DataError, with file
    and line where there are any.

    >>> find_corpus(environ={}).name
    'synthetic'
    """
    if data_folder is not None:
        corpus = _corpus_in_named_folder(Path(data_folder).expanduser(), dataset, fetch)
    elif fetch:
        raise DataError("fetch is true but data_folder is not set; name the folder that MNLI should be saved in")
    elif dataset in ("auto", "mnli_12k", "nli_pool", "sst2"):  # below COMERA_DATA
        corpus = _corpus_in_environment(dataset, environ)
    elif dataset == "synthetic":
        corpus = synthetic_corpus()
    elif dataset == "mnli":
        raise DataError("dataset is 'mnli' but data_folder is not set; name a folder that holds MNLI or is to hold it")
    else:
        allowed = "auto, mnli (in data_folder), mnli_12k, nli_pool, sst2, synthetic, or the name of data_folder"
        raise DataError(f"dataset is {dataset!r}; allowed: {allowed}")
    if check:
        corpus.check()
    return corpus


def _corpus_in_named_folder(folder: Path, dataset: str, fetch: bool) -> Corpus:
    if fetch and _layout_in(folder) is None:
        _fetch_mnli(folder)
    if (layout := _layout_in(folder)) is None:
        wrong = "lacks data files" if folder.is_dir() else "is not a folder"
        raise DataError(f"data_folder is {folder}, which {wrong}; it must hold {_EXPECTED}")
    corpus = _read_folder(folder, layout)
    if dataset not in ("auto", corpus.name):
        rows = len(corpus.train)
        raise DataError(
            f"dataset is {dataset!r} but data_folder {folder} holds {corpus.name!r} with {rows:,} training rows "
            f"(mnli has {MNLI_TRAIN_ROWS:,}); allowed: auto, {corpus.name}"
        )
    return corpus


def _corpus_in_environment(dataset: str, environ: Mapping[str, str]) -> Corpus:
    """Return the pairs under ``COMERA_DATA``; for "auto" the generated ones if there are none."""
    root = environ.get(DATA_VARIABLE, "")
    if not root and dataset == "auto":
        return synthetic_corpus()
    if not root:
        missing = f"{DATA_VARIABLE} is not set; set it to the folder that holds {dataset}/"
        raise DataError(f"dataset is {dataset!r} but {missing}")
    if not Path(root).is_dir():
        raise DataError(f"{DATA_VARIABLE} is {root}, which is not a folder; set it to the data folder or unset it")
    if dataset == "sst2":
        return sst2_corpus(Path(root) / "sst2")
    if dataset == "nli_pool":
        return _pooled_corpus(Path(root))
    folder = Path(root) / "mnli_12k"
    if (layout := _layout_in(folder)) is not None:
        return _read_folder(folder, layout)
    if dataset == "auto" and not folder.exists():
        return synthetic_corpus()
    raise DataError(f"{folder} lacks data files; it must hold {_EXPECTED}")


def _pooled_corpus(root: Path) -> Corpus:
    """Return all NLI pairs at hand, about 47,000 for training; scored on MNLI-12k."""
    train = [JsonLines(root / name) for name in POOL_FILES]
    validation = JsonLines(root / "mnli_12k" / "dev_matched.jsonl")
    return Corpus("nli_pool", _joint_hash("nli_pool", *train, validation), data.ConcatDataset(train), validation)


def sst2_corpus(folder: Path) -> Corpus:
    """Return the corpus "sst2" from its folder; raises DataError for a missing file or a malformed row."""
    (train, one), (validation, other) = (_read_table(folder / name) for name in ("train.tsv", "dev.tsv"))
    content_hash = hashlib.sha256(f"sst2\n{one}\n{other}".encode()).hexdigest()
    return Corpus("sst2", content_hash, train, validation, SST2_LABELS)


def _read_table(path: Path) -> tuple[tuple[Pair, ...], str]:
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from None
    try:
        header, *lines = content.decode("utf-8").rstrip("\n").split("\n")
    except (UnicodeDecodeError, ValueError) as error:
        raise DataError(f"{path} is no table of UTF-8 text ({error})") from None
    if header != _SST2_HEADER:
        raise DataError(f"{path}, line 1: the header is {header!r}; it must be {_SST2_HEADER!r}")
    if not lines:
        raise DataError(f"{path} has no rows; it needs at least one")
    rows = []
    for number, line in enumerate(lines, 2):
        sentence, tab, label = line.rpartition("\t")
        if not tab or label not in ("0", "1"):
            raise DataError(f"{path}, line {number}: the row is {line[:60]!r}; it must be a sentence, a tab and 0 or 1")
        rows.append(Pair(sentence.strip(), "", int(label)))
    return tuple(rows), hashlib.sha256(content).hexdigest()


def _layout_in(folder: Path) -> tuple[str, str] | None:
    return next((names for names in LAYOUTS if all((folder / name).is_file() for name in names)), None)


def _read_folder(folder: Path, layout: tuple[str, str]) -> Corpus:
    train, validation = (JsonLines(folder / name) for name in layout)
    name = folder.resolve().name
    if len(train) == MNLI_TRAIN_ROWS:
        name = "mnli"
    elif name in _RESERVED_NAMES:
        name = f"{name}_{len(train)}"
    return Corpus(name, _joint_hash(name, train, validation), train, validation)


def _joint_hash(name: str, *files: JsonLines) -> str:
    return hashlib.sha256("\n".join((name, *(file.sha256 for file in files))).encode()).hexdigest()


def _fetch_mnli(folder: Path) -> None:
    """Download MNLI through Hugging Face ``datasets`` and save it as JSON lines, whole or not at all."""
    try:
        import datasets
    except ImportError:
        raise DataError("fetch is true but the package datasets is missing; install the extra 'data'") from None
    try:
        splits = datasets.load_dataset("nyu-mll/glue", "mnli")
        rows = [splits[split] for split in ("train", "validation_matched")]
    except Exception as error:  # the package raises its own, the hub's and the network's errors alike
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"fetching MNLI into data_folder {folder} failed ({reason})") from None
    try:
        write_whole({folder / name: _as_json_lines(of) for name, of in zip(LAYOUTS[0], rows, strict=True)})
    except OSError as error:
        raise DataError(f"data_folder {folder} cannot be written ({error.strerror or error})") from None


def _as_json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the labelled rows; Hugging Face writes -1 where there is no label."""
    labelled = ({**row, "label": LABELS[row["label"]]} for row in rows if row["label"] in range(len(LABELS)))
    lines = (json.dumps({key: row[key] for key in ROW_KEYS[0]}, ensure_ascii=False) + "\n" for row in labelled)
    return "".join(lines).encode()
