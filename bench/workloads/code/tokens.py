"""Byte-level BPE of a corpus, and its token streams, kept on disk.

What lies in the cache is a function of its folder's name, a hash of the corpus's manifest and of what is asked for.
Files are written whole, the streams in parts, so that whatever a kill leaves is right and the next start goes on there.
"""

import hashlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the library warns about every fork after it used threads

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.core.files import locked, remove_abandoned, write_whole
from bench.data.corpus import DataError
from bench.workloads.code.corpus import HELD_OUT, Document, Sources

CACHE_VARIABLE = "COMERA_CACHE"  # the environment variable that names the folder of what can be made again
SPECIAL_TOKENS = ("[PAD]", "[SEP]", "[MASK]")  # ids 0, 1, 2; a separator ends every document
SEPARATOR_ID, MASK_ID, FIRST_ID = 1, 2, 3
_FORMAT = "1"  # of what is cached
_PART = 256  # documents that are tokenised together
_LEAST = len(SPECIAL_TOKENS) + 256  # entries of the smallest vocabulary: a byte each

Ids = NDArray[np.uint32]


@dataclass(frozen=True)
class Streams:
    """Token ids of a corpus: all of the training documents, and each held-out one."""

    train: Ids
    held_out: tuple[Ids, ...]
    tokens: int  # of the vocabulary, which a small corpus may not fill
    folder: Path  # of the cache


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for files that the bench can make again: ``COMERA_CACHE``, or the user's cache.

    >>> cache_folder({"COMERA_CACHE": "/tmp/kept"}).as_posix()
    '/tmp/kept'
    """
    if named := environ.get(CACHE_VARIABLE):
        return Path(named).expanduser()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "comera-bench"


def train_tokenizer(texts: Sequence[str], size: int) -> Tokenizer:
    """Return a byte-level BPE of at most ``size`` tokens, the same for the same texts in every process.

    Ties between equally frequent pairs are broken by the numbers of the bytes, which therefore stand first, in order.

    >>> tokenizer = train_tokenizer(["return self"] * 9, 300)
    >>> tokenizer.encode("return").tokens
    ['return']
    """
    if size < _LEAST:
        raise DataError(f"code.vocabulary is {size}; the bytes and {', '.join(SPECIAL_TOKENS)} alone need {_LEAST}.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    first = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    # The bytes were special for the numbering alone; as such they would be cut out of every text.
    content = tokenizer.model
    plain = Tokenizer(content)
    plain.pre_tokenizer, plain.decoder = tokenizer.pre_tokenizer, tokenizer.decoder
    return plain


def streams(sources: Sources, size: int, report: Callable[[str], None] | None = None) -> Streams:
    """Return the tokenised corpus, from the cache or made now; ``report`` gets lines of progress."""
    identity = hashlib.sha256(f"{_FORMAT} {HELD_OUT}\n{sources.content_hash}\n{size}".encode()).hexdigest()
    folder = cache_folder() / "code" / identity[:32]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            tokenizer_path, done = folder / "tokenizer.json", folder / "parts.txt"
            if not done.exists():
                _make(sources, size, folder, report or _to_terminal)
            numbers = [int(number) for number in done.read_text().split()]
            train, held_out = (
                np.concatenate([np.load(folder / f"{side}-{part}.npy") for part in range(count)])
                for side, count in zip(("train", "held_out"), numbers, strict=True)
            )
            tokens = Tokenizer.from_file(str(tokenizer_path)).get_vocab_size()
    except OSError as error:
        raise DataError(f"the cache {folder} cannot be used ({error}); name another in {CACHE_VARIABLE}.") from None
    ends = np.flatnonzero(held_out == SEPARATOR_ID) + 1
    return Streams(train, tuple(np.split(held_out, ends)[:-1]), tokens, folder)


def _make(sources: Sources, size: int, folder: Path, report: Callable[[str], None]) -> None:
    """Fill the folder; what is there already is left as it is, but for what a kill left half written."""
    remove_abandoned(folder)
    sides = dict(zip(("train", "held_out"), sources.split(), strict=True))
    path = folder / "tokenizer.json"
    if not path.exists():
        report(f"training a vocabulary of {size:,} tokens on {len(sides['train']):,} files")
        trained = train_tokenizer([document.text for document in sides["train"]], size)
        write_whole({path: trained.to_str().encode()})
    tokenizer = Tokenizer.from_file(str(path))
    for side, documents in sides.items():
        for part, first in enumerate(range(0, len(documents), _PART)):
            target = folder / f"{side}-{part}.npy"
            if not target.exists():
                report(f"tokenising {first:,} of {len(documents):,} files ({side.replace('_', ' ')})")
                content = io.BytesIO()
                np.save(content, np.concatenate([*_encoded(tokenizer, documents[first : first + _PART])]))
                write_whole({target: content.getvalue()})
    counts = [-(-len(documents) // _PART) for documents in sides.values()]
    write_whole({folder / "parts.txt": " ".join(map(str, counts)).encode()})


def _encoded(tokenizer: Tokenizer, documents: Sequence[Document]) -> Iterator[Ids]:
    for encoding in tokenizer.encode_batch([document.text for document in documents], add_special_tokens=False):
        yield np.array([*encoding.ids, SEPARATOR_ID], dtype=np.uint32)


def _to_terminal(line: str) -> None:
    if sys.stderr.isatty():
        print(f"corpus: {line}", file=sys.stderr)
