"""Words of a text as ids, the three sides of the text, and the labels that the words point to.

A word is a run of the letters a to z in the lower-cased text. A word with n letters points ``1 + n % 4`` words ahead.
Its label is the range of the alphabet in which the word there begins. Eight ranges are about equally frequent.

The text is cut into blocks of 20,000 words, or into 40 blocks if it is shorter. Of 40 blocks one is for choosing, one
is for reporting, and the others are trained on. A window lies inside a block, so that no side sees words of another.

The text is that of the workload ``text``, whose three sides follow one another. A folder of few files has each file cut
in three, and with it perhaps a word.

Shapes: B windows, T words of a window, H hops, V vocabulary.
"""

import functools
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.data.corpus import DataError
from bench.workloads.text.corpus import corpus_of

UNKNOWN, FIRST_WORD = 1, 8  # ids; 0 is padding, and those between are not used
CLASSES = 8  # ranges of the alphabet
FARTHEST = 4  # words that a word points ahead at most
NO_LABEL = -100
_BLOCK = 20_000  # words
_CYCLE = 40  # blocks, after which the sides repeat
_HELD_OUT = {"validation": 7, "test": 27}  # places in the cycle

Side = Literal["train", "validation", "test"]
Ids = NDArray[np.int64]


class _Words(NamedTuple):
    """Words of a text in order, as numbers of its different words."""

    name: str
    data_hash: str
    different: tuple[bytes, ...]
    numbers: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class PointerText:
    """Ids of all words of a text, and the properties of each id that labels are made of."""

    name: str  # with a hash of the text
    data_hash: str
    ids: Ids
    block: int  # words of a block
    ranges: Ids  # (V,): the range of the alphabet in which the word begins, 0 to 7
    steps: Ids  # (V,): how many words ahead the word points, 1 to 4

    def blocks(self, side: Side) -> Ids:
        """Return the first place of each block of a side."""
        return _sides(len(self.ids) // self.block)[side] * self.block

    def grid(self, side: Side, context: int, most: int) -> Ids:
        """Return at most ``most`` windows (B, T) of a side that do not overlap, evenly spread over it."""
        starts = (self.blocks(side)[:, None] + np.arange(0, self.block - context + 1, context)).ravel()
        chosen = np.linspace(0, len(starts) - 1, min(most, len(starts))).astype(np.int64)
        return self.windows(starts[chosen], context)

    def draw(self, side: Side, context: int, count: int, source: np.random.Generator) -> Ids:
        """Return the first places (count,) of random windows of a side."""
        blocks = self.blocks(side)
        within = source.integers(self.block - context + 1, size=count)
        return blocks[source.integers(len(blocks), size=count)] + within

    def windows(self, starts: Ids, context: int) -> Ids:
        """Return the windows (B, T) that begin at these places (B,)."""
        return self.ids[starts[:, None] + np.arange(context)]

    def labels(self, windows: Ids, hops: int) -> Ids:
        """Return the labels (B, T, H) of the first H words on each word's way.

        A label is :data:`NO_LABEL` where the way leaves the window or meets an unknown word.
        """
        last = windows.shape[1] - 1
        rows, at = np.arange(len(windows))[:, None], np.broadcast_to(np.arange(last + 1), windows.shape)
        here, lost = windows, windows == UNKNOWN
        found = []
        for _ in range(hops):
            at = at + self.steps[here]
            here = windows[rows, np.minimum(at, last)]
            lost = lost | (at > last) | (here == UNKNOWN)
            found.append(np.where(lost, NO_LABEL, self.ranges[here]))
        return np.stack(found, -1)


def pointer_text(folder: str | None, files: str, packages: Sequence[str], vocabulary: int, context: int) -> PointerText:
    """Return the words of a folder's files, or of the sources of installed packages.

    Raises DataError: no text, no words, or too few for three sides of windows.
    """
    words = _read(folder, files, tuple(packages))
    total, least = len(words.numbers), _CYCLE * 2 * context
    if total < least:
        raise DataError(
            f"the text of {words.name} has {total:,} words; pointer.context={context} needs at least {least:,}; "
            "give more text, or a shorter context."
        )
    block = min(_BLOCK, total // _CYCLE)
    trained = words.numbers[: total // block * block].reshape(-1, block)[_sides(total // block)["train"]]
    counts = np.bincount(trained.ravel(), minlength=len(words.different))
    order = sorted(np.flatnonzero(counts).tolist(), key=lambda number: (-counts[number], words.different[number]))
    known = order[: vocabulary - FIRST_WORD]
    id_of = np.full(len(words.different), UNKNOWN)
    id_of[known] = FIRST_WORD + np.arange(len(known))
    first = np.array([words.different[number][0] - ord("a") for number in known])
    ranges, steps = np.zeros(vocabulary, np.int64), np.ones(vocabulary, np.int64)
    ranges[FIRST_WORD : FIRST_WORD + len(known)] = alphabet_ranges(first, counts[known])[first]
    steps[FIRST_WORD : FIRST_WORD + len(known)] = [1 + len(words.different[number]) % FARTHEST for number in known]
    return PointerText(words.name, words.data_hash, id_of[words.numbers], block, ranges, steps)


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
