"""Words of a text as ids, the three sides of the text, and the labels that the words point to.

A word is a run of the letters a to z in the lower-cased text. A word with n letters points ``1 + n % 4`` words ahead.
Its label is the range of the alphabet in which the word there begins. Eight ranges are about equally frequent.

The text is cut into blocks of 20,000 words, or into 40 blocks if it is shorter. Of 40 blocks one is for choosing, one
is for reporting, and the others are trained on. A window lies inside a block, so that no side sees words of another.

A token is a word, or with ``wordpiece`` a piece of one. Pointers count words in both cases. The label lies at the first
piece of a word, and is that of the word pointed to if its first piece lies in the window. A block keeps as many pieces
as it has words, so that all blocks are of one length; the pieces beyond are left out. The vocabulary is BERT's, or one
that is trained on the blocks to train on (:mod:`bench.data.wordpiece`), which is kept in the cache.

The text is that of the workload ``text``, whose three sides follow one another. A folder of few files has each file cut
in three, and with it perhaps a word.

Shapes: N tokens of the text, W words, H hops, D different words.
"""

import functools
import hashlib
import re
import sys
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.core.files import write_whole
from bench.data.corpus import Corpus, DataError, Pair
from bench.data.wordpiece import UNKNOWN as UNKNOWN_PIECE
from bench.data.wordpiece import PairTokenizer, bert_vocabulary, read_vocabulary, train_vocabulary
from bench.workloads.code.tokens import cache_folder
from bench.workloads.text.corpus import corpus_of

UNKNOWN, FIRST_WORD = 1, 8  # ids of words; 0 is padding, and those between are not used
CLASSES = 8  # ranges of the alphabet
FARTHEST = 4  # words that a word points ahead at most
NO_LABEL = -100
_BLOCK = 20_000  # words
_CYCLE = 40  # blocks, after which the sides repeat
_HELD_OUT = {"validation": 7, "test": 27}  # places in the cycle
_VOCABULARY = "1"  # version of a trained vocabulary in the cache

Side = Literal["train", "validation", "test"]
Tokens = Literal["words", "wordpiece"]
Ids = NDArray[np.int64]


class _Words(NamedTuple):
    """Words of a text in order, as numbers of its different words."""

    name: str
    data_hash: str
    different: tuple[bytes, ...]
    numbers: NDArray[np.int32]


class _Pieces(NamedTuple):
    """Token ids of the different words, one word after another."""

    ids: Ids
    counts: Ids  # (D,): ids of each word
    known: NDArray[np.bool_]  # (D,)
    vocabulary_hash: str  # empty where ids follow from the text alone


@dataclass(frozen=True, eq=False)
class PointerText:
    """Token ids of a text in blocks of one length, and the properties of its words that labels are made of."""

    name: str  # with a hash of the text
    data_hash: str
    ids: Ids  # (N,)
    block: int  # tokens of a block
    places: Ids  # (W,): the token at which each word begins
    ranges: Ids  # (W,): the range of the alphabet in which each word begins, 0 to 7, or NO_LABEL if it is unknown
    steps: Ids  # (W,): how many words ahead each word points, 1 to 4

    def blocks(self, side: Side) -> Ids:
        """Return the first place of each block of a side."""
        return _sides(len(self.ids) // self.block)[side] * self.block

    def grid(self, side: Side, context: int, most: int) -> Ids:
        """Return the first places of at most ``most`` windows of a side that do not overlap, evenly spread over it."""
        starts = (self.blocks(side)[:, None] + np.arange(0, self.block - context + 1, context)).ravel()
        chosen = np.linspace(0, len(starts) - 1, min(most, len(starts))).astype(np.int64)
        return starts[chosen]

    def draw(self, side: Side, context: int, count: int, source: np.random.Generator) -> Ids:
        """Return the first places (count,) of random windows of a side."""
        blocks = self.blocks(side)
        within = source.integers(self.block - context + 1, size=count)
        return blocks[source.integers(len(blocks), size=count)] + within

    def ways(self, hops: int) -> tuple[Ids, Ids]:
        """Return how many tokens ahead of each token its way has come after each hop, and the label there, (N, H) each.

        A label is :data:`NO_LABEL` where no word begins, and where the way leaves the text or meets an unknown word.
        A window that the way leaves has no label there either.
        """
        words = len(self.places)
        here, lost = np.arange(words), self.ranges == NO_LABEL
        ahead = np.zeros((len(self.ids), hops), np.int64)
        labels = np.full((len(self.ids), hops), NO_LABEL, np.int64)
        for hop in range(hops):
            here = here + self.steps[here]
            lost = lost | (here >= words)
            here = np.minimum(here, words - 1)
            lost = lost | (self.ranges[here] == NO_LABEL)
            ahead[self.places, hop] = self.places[here] - self.places
            labels[self.places, hop] = np.where(lost, NO_LABEL, self.ranges[here])
        return ahead, labels


@functools.lru_cache(maxsize=4)
def pointer_text(
    folder: str | None, files: str, packages: tuple[str, ...], vocabulary: int, context: int, tokens: Tokens = "words"
) -> PointerText:
    """Return the tokens of a folder's files, or of the sources of installed packages, made once per process.

    Raises DataError: no text, no words, too few for three sides of windows, or a vocabulary without room for letters.
    """
    words = _read(folder, files, packages)
    total, least = len(words.numbers), _CYCLE * 2 * context
    if total < least:
        raise DataError(
            f"the text of {words.name} has {total:,} words; pointer.context={context} needs at least {least:,}; "
            "give more text, or a shorter context."
        )
    block = min(_BLOCK, total // _CYCLE)
    numbers = words.numbers[: total // block * block]
    trained = numbers.reshape(-1, block)[_sides(total // block)["train"]]
    counts = np.bincount(trained.ravel(), minlength=len(words.different))
    pieces = _frequent(words, counts, vocabulary) if tokens == "words" else _wordpieces(words, trained, vocabulary)
    first = np.array([word[0] - ord("a") for word in words.different])
    ranges = alphabet_ranges(first[pieces.known], counts[pieces.known])[first]
    ranges[~pieces.known] = NO_LABEL
    steps = np.array([1 + len(word) % FARTHEST for word in words.different])

    ends = np.cumsum(pieces.counts[numbers])  # of words, in all pieces of the text
    begins, lengths = ends - pieces.counts[numbers], pieces.counts[numbers]
    behind = np.cumsum(pieces.counts) - pieces.counts  # where each different word begins in pieces.ids
    ids = pieces.ids[np.repeat(behind[numbers] - begins, lengths) + np.arange(ends[-1])]
    within = begins.reshape(-1, block) - begins[::block, None]  # places of words in their blocks
    kept = (within < block).ravel()
    places = (np.arange(len(within))[:, None] * block + within).ravel()[kept]
    ids = ids[begins[::block, None] + np.arange(block)].ravel()
    digest = words.data_hash
    if pieces.vocabulary_hash:
        digest = hashlib.sha256(f"{digest} {pieces.vocabulary_hash}".encode()).hexdigest()
    return PointerText(words.name, digest, ids, block, places, ranges[numbers[kept]], steps[numbers[kept]])


def alphabet_ranges(first: Ids, counts: Ids) -> Ids:
    """Return the range (26,) of each letter, so that the eight ranges are about equally frequent.

    Args:
        first: letters with which the words begin, 0 to 25.
        counts: how often each word occurs.

    >>> alphabet_ranges(np.arange(26), np.ones(26, np.int64)).tolist()[:8]
    [0, 0, 0, 1, 1, 1, 2, 2]
    """
    share = np.bincount(first, weights=counts, minlength=26) / counts.sum()
    middle = np.cumsum(share) - share / 2
    return np.minimum((CLASSES * middle).astype(np.int64), CLASSES - 1)


def _frequent(words: _Words, counts: Ids, vocabulary: int) -> _Pieces:
    """Return an id for each of the most frequent words, and one for all others."""
    order = sorted(np.flatnonzero(counts).tolist(), key=lambda number: (-counts[number], words.different[number]))
    known = order[: vocabulary - FIRST_WORD]
    ids = np.full(len(words.different), UNKNOWN)
    ids[known] = FIRST_WORD + np.arange(len(known))
    return _Pieces(ids, np.ones_like(ids), ids != UNKNOWN, "")


def _wordpieces(words: _Words, trained: NDArray[np.int32], vocabulary: int) -> _Pieces:
    """Return the word pieces of each word."""
    tokenizer = PairTokenizer(_vocabulary(words, trained, vocabulary))
    different = [word.decode() for word in words.different]
    longest = max(map(len, different)) + 2  # a token per letter, and two around them
    encoded = [ids[1:-1] for ids, _ in tokenizer.encode([(word, "") for word in different], longest)]
    unknown = tokenizer.vocabulary.index(UNKNOWN_PIECE)
    return _Pieces(
        np.array([each for ids in encoded for each in ids], np.int64),
        np.array([len(ids) for ids in encoded], np.int64),
        np.array([unknown not in ids for ids in encoded]),
        tokenizer.vocabulary_hash,
    )


def _vocabulary(words: _Words, trained: NDArray[np.int32], size: int) -> tuple[str, ...]:
    """Return BERT's vocabulary if it is at hand and fits, else one trained on these blocks, once."""
    if found := bert_vocabulary(size):
        return found
    key = hashlib.sha256(f"{words.data_hash} {size}".encode()).hexdigest()[:32]
    folder = cache_folder() / "pointer"
    path = folder / f"wordpiece-{_VOCABULARY}-{key}.txt"
    try:
        if not path.exists():
            if sys.stderr.isatty():
                print("pointer: training the vocabulary, once", file=sys.stderr)
            blocks = [Pair(" ".join(words.different[n].decode() for n in row), "", 0) for row in trained.tolist()]
            found = train_vocabulary(Corpus(words.name, words.data_hash, blocks, ()), size)
            folder.mkdir(parents=True, exist_ok=True)
            write_whole({path: "\n".join(found).encode()})
        return read_vocabulary(path)
    except DataError as error:
        said = str(error).replace("vocabulary is", "pointer.vocabulary is", 1)
        raise DataError(f"{said}.") from None
    except OSError as error:
        raise DataError(f"the cache {folder} cannot be used ({error}); name another in COMERA_CACHE.") from None


def _sides(blocks: int) -> dict[Side, Ids]:
    """Return the numbers of the blocks of each side."""
    place = np.arange(blocks) % _CYCLE
    validation, test = (place == held_out for held_out in _HELD_OUT.values())
    return {
        "train": np.flatnonzero(~validation & ~test),
        "validation": np.flatnonzero(validation),
        "test": np.flatnonzero(test),
    }


@functools.lru_cache(maxsize=4)
def _read(folder: str | None, files: str, packages: tuple[str, ...]) -> _Words:
    """Return the words of a text, read once per process."""
    try:
        corpus = corpus_of(folder, files, packages, "bytes")
    except DataError as error:
        raise DataError(str(error).replace("text.files", "pointer.files")) from None
    known: dict[bytes, int] = {}
    numbers = [
        known.setdefault(word, len(known))
        for side in (corpus.train, corpus.validation, corpus.test)
        for word in re.findall(rb"[a-z]+", side.astype(np.uint8).tobytes().lower())
    ]
    if not numbers:
        raise DataError(f"the text of {corpus.name} has no words of the letters a to z; name a folder that has some.")
    digest = hashlib.sha256(f"words\n{corpus.data_hash}".encode()).hexdigest()
    return _Words(corpus.name, digest, tuple(known), np.array(numbers, np.int32))
