"""Text to learn from, as three token streams: to train on, to choose settings by, and to report.

A folder is split by file: which side a file is on follows from its words, so that it stays there when the folder grows
and copies of it come to the same side; a text counts once. A folder of fewer than :data:`FEW` files is split within
each file instead: its first nine tenths are trained on, and the halves of the last tenth are for choosing and
reporting. Without a folder the text is the Python source of installed packages, split by package as in the workload
``code``.
"""

import functools
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the library warns about every fork after it used threads

from bench.core.reading import open_regular
from bench.data.corpus import DataError
from bench.workloads.code.corpus import installed, is_held_out

FEW = 20  # files; of fewer, each is split
HELD_OUT = 0.1  # share of files, or of each of few files, that is held out
SEPARATOR = 0  # the token between two files, where tokens are bytes
_LARGEST = 2**30  # bytes of a folder that are read at most

Ids = NDArray[np.uint32]


@dataclass(frozen=True)
class TextCorpus:
    """Token streams and what they are of."""

    name: str  # with a hash of all of its text
    train: Ids
    validation: Ids
    test: Ids
    vocabulary: int  # how many different tokens there can be
    data_hash: str


@dataclass(frozen=True)
class _Texts:
    """Texts by side, before they are cut into tokens."""

    title: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]

    @property
    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        return self.train, self.validation, self.test

    @functools.cached_property
    def content_hash(self) -> str:
        digest = hashlib.sha256()
        for side in self.sides:
            for text in side:
                digest.update(hashlib.sha256(text.encode()).digest())
            digest.update(b"|")
        return digest.hexdigest()


def corpus_of(folder: str | None, pattern: str, packages: Sequence[str], tokens: str) -> TextCorpus:
    """Return the corpus of a folder, or of installed packages.

    Raises DataError: no text, bytes that are no UTF-8, an unknown way to cut text, or too little for three sides.
    """
    if folder is not None and not folder.strip():
        raise DataError("data_folder is empty; name a folder that holds text files, or leave it out.")
    texts = _of_packages(packages) if folder is None else _of_folder(Path(folder).expanduser(), pattern)
    codec = codec_of(tokens)
    vocabulary = codec.vocabulary
    train, validation, test = (_stream(side, codec.encode) for side in texts.sides)
    digest = hashlib.sha256(f"{tokens} {vocabulary}\n{texts.content_hash}".encode()).hexdigest()
    return TextCorpus(f"{texts.title}-{digest[:8]}", train, validation, test, vocabulary, digest)


def _of_folder(folder: Path, pattern: str) -> _Texts:
    try:
        folder.name.encode()  # records carry it
    except UnicodeEncodeError:
        raise DataError(f"data_folder is {str(folder)!a}, whose name has bytes that are no UTF-8; rename it.") from None
    if not folder.is_dir():
        raise DataError(f"data_folder is {folder}, which is not a folder; name one that holds text files.")
    if not pattern or Path(pattern).is_absolute():
        raise DataError(f"text.files is {pattern!r}; allowed: a pattern for names within data_folder, as in '*.txt'.")
    paths = sorted(path for path in folder.rglob(pattern) if path.is_file() and not _is_hidden(path, folder))
    if not paths:
        where = "which holds no file named like"
        raise DataError(f"data_folder is {folder}, {where} {pattern!r} outside linked folders; see text.files.")
    if (size := sum(path.stat().st_size for path in paths)) > _LARGEST:
        raise DataError(f"data_folder is {folder}, whose {size:,} bytes of files are above {_LARGEST:,}; choose fewer.")
    read: dict[bytes, str] = {}  # by the hash of their words, so that a copy with other blanks is the same text
    for text in map(_read, paths):
        if words := text.split():
            read.setdefault(hashlib.sha256(" ".join(words).encode()).digest(), text)
    if not read:
        raise DataError(f"data_folder is {folder}, whose files are all empty; name one that holds text files.")
    title = folder.name or "folder"
    return _by_file(title, read) if len(read) >= FEW else _by_place(title, read.values())


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _read(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.read().decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"byte {error.start:,} is no UTF-8"
        raise DataError(f"{path} is no text: {where}; leave it out by text.files, as in text.files='*.txt'.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None


def _by_file(title: str, texts: dict[bytes, str]) -> _Texts:
    """Split texts by what identifies them, whatever their number."""
    sides: tuple[list[str], list[str], list[str]] = ([], [], [])
    for identity, text in texts.items():
        drawn = int.from_bytes(hashlib.sha256(identity).digest()[:8], "big") / 2**64
        sides[0 if drawn >= HELD_OUT else 1 if drawn < HELD_OUT / 2 else 2].append(text)
    if not all(sides):  # none of few files fell to one of them
        return _by_place(title, texts.values())
    return _Texts(title, *map(tuple, sides))


def _by_place(title: str, texts: Iterable[str]) -> _Texts:
    def part(text: str, first: float, last: float) -> str:
        return text[round(first * len(text)) : round(last * len(text))]

    ends = (0.0, 1 - HELD_OUT, 1 - HELD_OUT / 2, 1.0)
    pieces = [tuple(part(text, a, b) for text in texts) for a, b in itertools.pairwise(ends)]
    return _Texts(title, *pieces)


def _of_packages(packages: Sequence[str]) -> _Texts:
    title, documents = "-".join(packages), list(installed(packages).documents())
    sides: tuple[list[str], list[str], list[str]] = ([], [], [])
    for document in documents:
        side = 0 if not is_held_out(document.package) else 1 + is_test(document.package)
        sides[side].append(document.text)
    if not all(sides):  # few packages, none of which is held out for one of them
        return _by_file(title, {document.name.encode(): document.text for document in documents})
    return _Texts(title, *map(tuple, sides))


def is_test(package: str) -> bool:
    """Return whether a package that is held out is for reporting, not for choosing, by its name alone.

    >>> [name for name in ("json", "sqlite3", "logging", "unittest") if is_test(name)]
    ['sqlite3', 'logging']
    """
    return hashlib.sha256(f"test {package}".encode()).digest()[0] % 2 == 0


@dataclass(frozen=True)
class Codec:
    """Functions from text to tokens and back, and how many different tokens there can be."""

    encode: Callable[[str], Ids]
    decode: Callable[[Sequence[int]], str]
    vocabulary: int


def codec_of(tokens: str) -> Codec:
    """Return how text is cut into tokens; ``tokens`` is that of the settings.

    Raises DataError: there is no such tokenizer, or it cannot be read.

    >>> codec = codec_of("bytes")
    >>> codec.decode(codec.encode("a b").tolist())
    'a b'
    """
    if tokens == "bytes":
        return Codec(
            lambda text: np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32),
            lambda ids: bytes(ids).decode("utf-8", errors="replace"),
            256,
        )
    from tokenizers import Tokenizer

    if tokens == "gpt2":
        tokenizer = _gpt2()
    else:
        path = Path(tokens).expanduser()
        if not path.is_file():
            raise DataError(f"text.tokens is {tokens!r}; allowed: bytes, gpt2, or the path of a tokenizer.json.")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises Exception itself
            raise DataError(
                f"text.tokens is {tokens!r}, which is no tokenizer of the library tokenizers ({error})."
            ) from None
    tokenizer.no_truncation()  # many published files ask for one, which would drop text, or for padding
    tokenizer.no_padding()
    return Codec(
        lambda text: np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint32),
        lambda ids: str(tokenizer.decode(ids)),
        max(tokenizer.get_vocab().values(), default=-1) + 1,  # numbers may be left out
    )


def _gpt2() -> Any:
    """Load GPT-2's byte-level BPE from the cache of Hugging Face."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError
    from tokenizers import Tokenizer

    try:
        path = hf_hub_download("openai-community/gpt2", "tokenizer.json", local_files_only=True)
    except LocalEntryNotFoundError:
        raise DataError(
            "text.tokens is gpt2, whose vocabulary is not in this machine's cache of Hugging Face; fetch it once by "
            "hf download openai-community/gpt2 tokenizer.json, or give the path of a tokenizer.json."
        ) from None
    return Tokenizer.from_file(path)


def _stream(texts: Iterable[str], encode: Callable[[str], Ids]) -> Ids:
    """Return the tokens of all texts, a separator after each."""
    end = np.array([SEPARATOR], dtype=np.uint32)
    pieces = [piece for text in texts for piece in (encode(text), end)]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.uint32)
