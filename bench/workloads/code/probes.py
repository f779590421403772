"""Probes on the held-out files: a unigram and a bigram model, in nats per chosen token.

The bigram model takes the token on either side where that is visible: p(t | l, r) ∝ p(t | l) p(t | r) / p(t), each
factor interpolated with the unigram model, p(t | l) = (count(l, t) + κ p(t)) / (count(l) + κ), and left out where
the neighbour is masked or missing. Both use the masking rule: a chosen token that is visible is either the right one,
or a random one in its place, with equal prior, so p(t | x, …) ∝ p(t | …) (1[t = x] + 1/V). κ is the best of a few *on
the held-out files themselves*, which is in the probe's favour.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bench.protocol import Batch
from bench.workloads.code.tokens import FIRST_ID, MASK_ID, Ids

_KAPPAS = (3.0, 10.0, 30.0, 100.0)
_TOGETHER = 2**22  # probabilities that are formed at a time

Array = NDArray[np.float64]


class Counts:
    """Counts of tokens that follow, and precede, each other one."""

    def __init__(self, stream: Ids, tokens: int) -> None:
        self.tokens = tokens
        left, right = stream[:-1].astype(np.int64), stream[1:].astype(np.int64)
        self.unigram = (np.bincount(stream, minlength=tokens) + 1.0) / (len(stream) + tokens)
        self.unigram[:FIRST_ID] = 1e-12  # never chosen
        self.unigram /= self.unigram.sum()
        self._after, self._before = (
            np.unique(keys * tokens + of, return_counts=True) for keys, of in ((left, right), (right, left))
        )

    def given(self, neighbours: NDArray[np.int64], before: bool, kappa: float) -> Array:
        """Return p(t | neighbour) / p(t), (n, V), of tokens before these neighbours or after; 1 without one (-1)."""
        keys, counts = self._before if before else self._after
        ratio = np.ones((len(neighbours), self.tokens))
        starts, ends = (np.searchsorted(keys, (neighbours + one) * self.tokens) for one in (0, 1))
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if neighbours[row] >= 0:
                others, found = keys[start:end] % self.tokens, counts[start:end]
                ratio[row] *= kappa
                ratio[row, others] += found / self.unigram[others]
                ratio[row] /= kappa + found.sum()
        return ratio


def _losses(counts: Counts, batch: Batch, kappa: float | None) -> Array:
    """Return the nats of each chosen token (B, K); without κ of the unigram model."""
    ids, places, labels = (batch[name].numpy() for name in ("input_ids", "positions", "labels"))
    padded = np.pad(ids, ((0, 0), (1, 1)), constant_values=MASK_ID)
    beside = [np.take_along_axis(padded, places + shift, 1).ravel() for shift in (0, 2)]
    before, after = (np.where(tokens == MASK_ID, -1, tokens) for tokens in beside)
    seen, labels = np.take_along_axis(ids, places, 1).ravel(), labels.ravel()
    losses = np.empty(len(labels))
    step = max(_TOGETHER // counts.tokens, 1)
    for first in range(0, len(labels), step):
        some = slice(first, first + step)
        chances = np.broadcast_to(counts.unigram, (len(labels[some]), counts.tokens)).copy()
        if kappa is not None:
            chances *= counts.given(before[some], False, kappa) * counts.given(after[some], True, kappa)
        chances /= chances.sum(1, keepdims=True)
        rows = np.arange(len(chances))
        visible = seen[some] != MASK_ID
        right, shown = chances[rows, labels[some]], chances[rows, seen[some]]
        known = right * ((seen[some] == labels[some]) + 1 / counts.tokens) / (shown + 1 / counts.tokens)
        losses[some] = -np.log(np.where(visible, known, right))
    return losses.reshape(places.shape)


def probe_losses(
    stream: Ids, tokens: int, batches: Iterable[tuple[Batch, NDArray[np.int64]]], files: int
) -> dict[str, float]:
    """Mean over files of each probe's mean loss; batches come with the file that each row is of."""
    counts, batches = Counts(stream, tokens), list(batches)
    found = {}
    for kappa in (None, *_KAPPAS):
        sums, numbers = np.zeros(files), np.zeros(files)
        for batch, of in batches:
            losses = _losses(counts, batch, kappa)
            np.add.at(sums, of, losses.sum(1))
            np.add.at(numbers, of, losses.shape[1])
        found[kappa] = float((sums / numbers).mean())
    return {"unigram": found[None], "bigram": min(found[kappa] for kappa in _KAPPAS)}
