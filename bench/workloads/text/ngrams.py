"""N-gram models on held-out text: the probes that a language model must beat to have learned anything.

An n-gram model predicts a token from up to n - 1 before it, by counts of the training text. Orders are interpolated as
Witten and Bell do (1991), with a weight γ on the number of different tokens that have followed a context::

    p_n(t | c) = (count(c, t) + γ·followers(c)·p_{n-1}(t | c')) / (count(c) + γ·followers(c))

where c' is c without its first token and p_0 is uniform. Order and γ are the best *on the validation text itself*,
which is in the probe's favour, as is the choice of how often an entry (c, t) must have occurred to be kept. In a model
of a limited size an entry counts as one stored number, and neither keys nor contexts do, again in its favour.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_HIGHEST = 8  # order of a model
_GAMMAS = (0.5, 1.0, 2.0)
_LEAST = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 1024)  # occurrences of an entry that is kept

Ids = NDArray[np.uint32]
Keys = NDArray[np.uint64]
Losses = NDArray[np.float64]


class Reached(NamedTuple):
    """A model and its loss in nats per token."""

    order: int
    numbers: int  # that it stores
    validation: float
    test: float


@dataclass(frozen=True)
class _Order:
    """Counts of one order: entries in the order of their keys, which begin with the context's."""

    keys: Keys
    counts: NDArray[np.int64]
    vocabulary: int

    @functools.cached_property
    def contexts(self) -> tuple[Keys, NDArray[np.int64], NDArray[np.int64]]:
        """Keys of the contexts, how often each occurred, and how many different tokens have followed it."""
        keys, firsts = np.unique(self.keys // np.uint64(self.vocabulary), return_index=True)
        return keys, np.add.reduceat(self.counts, firsts), np.diff(firsts, append=len(self.keys))

    def kept(self, least: int) -> "_Order":
        enough = self.counts >= least
        return self if least == 1 else _Order(self.keys[enough], self.counts[enough], self.vocabulary)


def highest_order(vocabulary: int) -> int:
    """Return the largest n whose n tokens fit into 64 bits.

    >>> highest_order(256), highest_order(50_257)
    (8, 4)
    """
    order = 1
    while order < _HIGHEST and vocabulary ** (order + 1) <= 2**64:
        order += 1
    return order


def _packed(rows: NDArray[np.integer], order: int, vocabulary: int) -> Keys:
    """Return the keys of all runs of ``order`` tokens within rows (..., T): (..., T - order + 1)."""
    length = rows.shape[-1] - order + 1
    keys = np.zeros((*rows.shape[:-1], length), dtype=np.uint64)
    for place in range(order):
        keys = keys * np.uint64(vocabulary) + rows[..., place : place + length].astype(np.uint64)
    return keys


def counted(stream: Ids, vocabulary: int) -> list[_Order]:
    """Count the n-grams of every order of a token stream."""
    orders = []
    for order in range(1, min(highest_order(vocabulary), len(stream)) + 1):
        keys, counts = np.unique(_packed(stream, order, vocabulary), return_counts=True)
        orders.append(_Order(keys, counts.astype(np.int64), vocabulary))
    return orders


class _Rows:
    """Rows to predict, (R, T + 1): every token but the first of a row, from those before it."""

    def __init__(self, rows: Ids, vocabulary: int) -> None:
        self.rows, self.vocabulary = rows, vocabulary
        highest = min(highest_order(vocabulary), rows.shape[1])
        self._keys = [_packed(rows, order, vocabulary) for order in range(1, highest + 1)]

    def refined(self, below: Losses, counts: _Order, order: int, gamma: float) -> Losses:
        """Return chances (R, T) of the tokens by the model of an order, from those by the one below it."""
        chances = below.copy()
        if not len(counts.keys):
            return chances
        keys = self._keys[order - 1] if order > 1 else self._keys[0][:, 1:]
        places = slice(max(order - 2, 0), None)  # a token with fewer before it is left to the order below
        base = np.uint64(self.vocabulary)
        contexts, totals, followers = counts.contexts
        at = np.minimum(np.searchsorted(contexts, keys // base), len(contexts) - 1)
        known = contexts[at] == keys // base
        entry = np.minimum(np.searchsorted(counts.keys, keys), len(counts.keys) - 1)
        found = np.where(counts.keys[entry] == keys, counts.counts[entry], 0)
        weight = gamma * followers[at]
        mixed = (found + weight * below[:, places]) / (totals[at] + weight)
        chances[:, places] = np.where(known, mixed, below[:, places])
        return chances

    def losses(self, orders: Sequence[_Order], gamma: float) -> list[float]:
        """Mean loss in nats by the models of all orders, from the lowest."""
        chances = np.full((len(self.rows), self.rows.shape[1] - 1), 1 / self.vocabulary)
        found = []
        for number, counts in enumerate(orders[: len(self._keys)], 1):
            chances = self.refined(chances, counts, number, gamma)
            found.append(float(-np.log(chances).mean()))
        return found


class NGrams:
    """All n-gram models of a token stream, tried on validation rows.

    >>> stream = np.tile(np.array([0, 1, 2, 1], dtype=np.uint32), 200)
    >>> rows = stream[:24].reshape(4, 6)
    >>> models = NGrams(stream, 3, rows, rows)
    >>> models.best().validation < 0.3 < models.best(most=1).validation
    True
    """

    def __init__(self, stream: Ids, vocabulary: int, validation: Ids, test: Ids) -> None:
        self.vocabulary, self._test = vocabulary, _Rows(test, vocabulary)
        self._orders = counted(stream, vocabulary)
        rows = _Rows(validation, vocabulary)
        self._tried: list[tuple[float, int, int, float, int]] = []  # loss, order, numbers, γ, least occurrences
        for least in _LEAST:
            kept = self._kept(least)
            sizes = np.cumsum([len(order.keys) for order in kept]).tolist()
            for gamma in _GAMMAS:
                found = rows.losses(kept, gamma)
                self._tried += [(loss, n + 1, sizes[n], gamma, least) for n, loss in enumerate(found)]

    def _kept(self, least: int) -> list[_Order]:
        """Return counts of the entries that occurred at least ``least`` times; of single tokens all."""
        return [self._orders[0], *(order.kept(least) for order in self._orders[1:])]

    def best(self, numbers: int | None = None, most: int = _HIGHEST) -> Reached:
        """Return the best model on the validation rows, within a number of stored values and of order ``most``."""
        usable = [one for one in self._tried if one[1] <= most and (numbers is None or one[2] <= numbers)]
        if not usable:  # not even the single tokens fit: all alike
            uniform = float(np.log(self.vocabulary))
            return Reached(0, 0, uniform, uniform)
        loss, order, size, gamma, least = min(usable)
        return Reached(order, size, loss, self._test.losses(self._kept(least)[:order], gamma)[-1])
