"""Reading SST-2, single sentences with a sentiment, as GLUE ships it: ``train.tsv`` and ``dev.tsv``.

A file has a header line, then a sentence, a tab and a label, 0 or 1, on each line.
"""

import hashlib
from pathlib import Path

from bench.data.corpus import Corpus, DataError, Pair

#: A label is an index into this tuple.
SST2_LABELS = ("negative", "positive")

_HEADER = "sentence\tlabel"


def sst2_corpus(folder: Path) -> Corpus:
    """The corpus "sst2" from its folder. Raises DataError: a missing file, or a malformed row, with file and line."""
    (train, train_hash), (validation, validation_hash) = (_read(folder / name) for name in ("train.tsv", "dev.tsv"))
    content_hash = hashlib.sha256(f"sst2\n{train_hash}\n{validation_hash}".encode()).hexdigest()
    return Corpus("sst2", content_hash, train, validation, SST2_LABELS)


def _read(path: Path) -> tuple[tuple[Pair, ...], str]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from None
    try:
        header, *lines = content.decode("utf-8").rstrip("\n").split("\n")
    except (UnicodeDecodeError, ValueError) as error:
        raise DataError(f"{path} is no table of UTF-8 text ({error})") from None
    if header != _HEADER:
        raise DataError(f"{path}, line 1: the header is {header!r}; it must be {_HEADER!r}")
    if not lines:
        raise DataError(f"{path} has no rows; it needs at least one")
    rows = []
    for number, line in enumerate(lines, 2):
        sentence, tab, label = line.rpartition("\t")
        if not tab or label not in ("0", "1"):
            raise DataError(f"{path}, line {number}: the row is {line[:60]!r}; it must be a sentence, a tab and 0 or 1")
        rows.append(Pair(sentence.strip(), "", int(label)))
    return tuple(rows), hashlib.sha256(content).hexdigest()
