"""Simple models of the labels, called like the dense model: words (B, T) to class scores (B, T, H, 8).

A linear probe has features of each word, which are keys. It stores a row of scores for each key and adds the rows of a
word's keys. Single words have rows of their own. Groups of words share the rows that are left, by a hash.

Shapes: B windows, T words, K keys of a word, H hops, V vocabulary.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bench.protocol import Batch
from bench.workloads.pointer.corpus import CLASSES, FARTHEST, Ids

_RATE = 0.05  # of Adam at the first step; it falls to zero along a line
_MIXED = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing

Hashes = NDArray[np.uint64]


class Features(NamedTuple):
    """Keys of each word of some windows."""

    single: list[Ids]  # each (B, T), keys of words that have rows of their own
    kinds: int  # so many times V keys are there
    grouped: list[Hashes]  # each (B, T)


#: Features of windows (B, T), given V and H.
Featured = Callable[[Ids, int, int], Features]


def bag(windows: Ids, vocabulary: int, hops: int) -> Features:  # noqa: ARG001 - all features are called alike
    """Return the word itself, and every word of its window wherever it stands."""
    everywhere = [np.broadcast_to(vocabulary + word[:, None], windows.shape) for word in windows.T]
    return Features([windows, *everywhere], 2, [])


def ngrams(windows: Ids, vocabulary: int, hops: int) -> Features:  # noqa: ARG001
    """Return the word itself, and the groups of neighbours among it and the next two words."""
    following, next_but_one = _ahead(windows, 1), _ahead(windows, 2)
    groups = (windows, following), (following, next_but_one), (windows, following, next_but_one)
    return Features([windows], 1, [_hash(kind, *words) for kind, words in enumerate(groups)])


def skip_pairs(windows: Ids, vocabulary: int, hops: int) -> Features:
    """Return the word itself, each word that its way can reach, and the pairs of the two."""
    reached = [(places, _ahead(windows, places)) for places in range(1, FARTHEST * hops + 1)]
    singles = [places * vocabulary + word for places, word in reached]
    return Features([windows, *singles], 1 + len(reached), [_hash(places, windows, word) for places, word in reached])


def _ahead(windows: Ids, places: int) -> Ids:
    """Return the word so many places ahead of each word; padding beyond the window.

    >>> _ahead(np.array([[8, 9, 10]]), 2).tolist()
    [[10, 0, 0]]
    """
    kept = windows[:, places:]
    return np.pad(kept, ((0, 0), (0, windows.shape[1] - kept.shape[1])))


def _hash(kind: int, *words: Ids) -> Hashes:
    """Return one number (B, T) for the words at the same place of several arrays."""
    key = np.full(words[0].shape, kind + 1, np.uint64)
    for word in words:
        key = (key ^ word.astype(np.uint64)) * _MIXED
        key ^= key >> np.uint64(29)
    return key


class LinearProbe(nn.Module):
    """A model that adds the rows of a word's keys, of at most ``numbers`` stored numbers.

    >>> probe = LinearProbe(skip_pairs, vocabulary=50, hops=1, numbers=8000)
    >>> probe(torch.tensor([[9, 8, 30], [1, 9, 20]])).shape
    torch.Size([2, 3, 1, 8])
    """

    def __init__(self, featured: Featured, vocabulary: int, hops: int, numbers: int) -> None:
        super().__init__()
        self.featured, self.vocabulary, self.hops = featured, vocabulary, hops
        self.rows = max(numbers // (CLASSES * hops), 1)
        self.table = nn.EmbeddingBag(self.rows, CLASSES * hops, mode="sum", sparse=True)
        nn.init.zeros_(self.table.weight)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        found = self.featured(windows.numpy(), self.vocabulary, self.hops)
        own = found.kinds * self.vocabulary
        if own >= self.rows:  # too few rows for the single words alone: all keys share them
            own = 0
        shared = np.uint64(self.rows - own)
        single = [key if own else key % self.rows for key in found.single]
        grouped = [own + (key % shared).astype(np.int64) for key in found.grouped]
        keys = torch.from_numpy(np.stack([*single, *grouped], -1))  # (B, T, K)
        scores: torch.Tensor = self.table(keys.flatten(0, 1))
        return scores.unflatten(-1, (self.hops, CLASSES)).unflatten(0, windows.shape)

    def fit(self, batches: Iterable[Batch], steps: int, loss: Callable[[nn.Module, Batch], torch.Tensor]) -> None:
        """Fit the rows to so many batches."""
        optimizer = torch.optim.SparseAdam(self.parameters(), lr=_RATE)
        for step, batch in enumerate(batches):
            optimizer.param_groups[0]["lr"] = _RATE * (1 - step / steps)
            optimizer.zero_grad()
            loss(self, batch).backward()
            optimizer.step()


class Frequencies(nn.Module):
    """A model that gives every word the frequencies of the classes in ``labels`` (B, T, H)."""

    def __init__(self, labels: Ids) -> None:
        super().__init__()
        counts = [np.bincount(each[each >= 0], minlength=CLASSES) + 1.0 for each in np.moveaxis(labels, -1, 0)]
        shares = np.stack([each / each.sum() for each in counts])
        self.scores = nn.Parameter(torch.from_numpy(np.log(shares)).float())

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        return self.scores.expand(*windows.shape, *self.scores.shape)
