"""A synthetic click log: Criteo's cardinalities, Zipf-distributed categories, and clicks drawn by a planted teacher.

The teacher gives a line the logit

    b + weights · counts + Σ_t effect_t(row),

and the click is drawn with that probability, so that the teacher's own log loss and area under the curve are the best
that any model can reach. Its effects are

* ``synthetic_independent``: one independent normal number per row of a table: nothing to compress;
* ``synthetic_low_rank``: in tables of 1,000 rows or more, a tensor of CP rank 4 over the digits of the row's number in
  mixed radix, which is what CoMERA assumes of a table, and so its best case. Smaller tables stay independent.

Nothing is stored: rows' effects are hashes of their numbers, and a block of lines has a generator of its own, so that
any line can be made at any time. A row's number is its rank by frequency, or with ``numbering="hash"`` scattered over
the table.
"""

import functools
import hashlib
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bench.workloads.dlrm.click_log import SPLITS, Clicks, Lines
from bench.workloads.dlrm.model import COUNTS, TABLES
from bench.workloads.dlrm.scores import Scores, metrics
from comera.modes import padded_modes

TEACHERS = ("synthetic_low_rank", "synthetic_independent")

_BLOCK = 2048  # lines that are drawn together
_ZIPF = 1.05  # the k-th most frequent row is drawn in proportion to k^-1.05
_SEED = 20240521
_RANK, _DIGITS, _STRUCTURED = 4, 4, 1000  # of the low-rank teacher, and the rows from which a table is
_BASE_RATE = 0.256  # share of clicks, Criteo Kaggle's
_TABLES_STD, _COUNTS_STD = 1.0, 0.6  # of the logit
_CALIBRATION = 20 * _BLOCK  # lines on which the intercept is found


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of every number, by the finaliser of SplitMix64 (Steele et al. 2014)."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _normal(*keys: NDArray[np.int64] | int) -> Scores:
    """Return a standard normal number for every combination of keys, by Box and Muller's transform of a hash.

    >>> drawn = _normal(3, np.arange(100_000))
    >>> bool(abs(drawn.mean()) < 0.02 and abs(drawn.std() - 1) < 0.02 and drawn[7] == _normal(3, 7))
    True
    """
    with np.errstate(over="ignore"):
        hashed = np.asarray(np.uint64(_SEED))
        for key in keys:
            hashed = _mixed(np.asarray(hashed + np.asarray(key).astype(np.uint64)))
    first = ((hashed >> np.uint64(32)).astype(np.float64) + 1) / 2**32
    second = (hashed & np.uint64(0xFFFFFFFF)).astype(np.float64) / 2**32
    return np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)


class SyntheticLog:
    """A synthetic log in the form of :class:`bench.workloads.dlrm.click_log.ClickLog`.

    >>> log = SyntheticLog("synthetic_low_rank", (100,) * 26, {"train": 50, "validation": 20, "test": 20}, False)
    >>> log.lines("train", 10, 14).categories.shape
    (26, 4)
    """

    ceilings: ClassVar[int] = 100_000  # validation lines on which the teacher's own metrics are computed

    def __init__(self, name: str, rows: tuple[int, ...], sizes: dict[str, int], scattered: bool) -> None:
        self.name, self._rows, self._sizes = name, rows, sizes
        self._low_rank = name == TEACHERS[0]
        self._stride = [_coprime(size) if scattered else 1 for size in rows]
        identity = (name, rows, sizes["train"], sizes["validation"], scattered, _SEED, _ZIPF, _RANK)
        self.content_hash = hashlib.sha256(repr(identity).encode()).hexdigest()

    def size(self, split: str) -> int:
        return self._sizes[split]

    def lines(self, split: str, first: int, last: int) -> Lines:
        """Return the lines from ``first`` to before ``last``."""
        parts = [self._drawn(split, block)[:3] for block in range(first // _BLOCK, -(-last // _BLOCK))]
        start = first // _BLOCK * _BLOCK
        keep = slice(first - start, last - start)
        counts, categories, clicks = (list(column) for column in zip(*parts, strict=True))
        return Lines(
            np.concatenate(counts)[keep], np.concatenate(categories, axis=1)[:, keep], np.concatenate(clicks)[keep]
        )

    @functools.cached_property
    def ceiling(self) -> dict[str, float]:
        """The metrics of the teacher itself on the first validation lines: what no model can surely beat."""
        blocks = range(-(-min(self.ceilings, self._sizes["validation"]) // _BLOCK))
        drawn = [self._drawn("validation", block) for block in blocks]
        return metrics(np.concatenate([one[3] for one in drawn]), np.concatenate([one[2] for one in drawn]))

    @functools.lru_cache(maxsize=4)  # noqa: B019 - neighbouring batches share a block
    def _drawn(self, split: str, block: int) -> tuple[NDArray[np.float32], NDArray[np.int64], Clicks, Scores]:
        source = np.random.default_rng([_SEED, SPLITS.index(split), block])
        counts, categories, logits = self._inputs(source)
        logits = logits + self._intercept
        clicks = source.random(_BLOCK) < 1 / (1 + np.exp(-logits))
        return counts, categories, clicks, logits

    def _inputs(self, source: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64], Scores]:
        """Draw counts, categories and the logits without the intercept."""
        ranks = _zipf(source.random((TABLES, _BLOCK)), np.array(self._rows)[:, None])
        sizes, strides = np.array(self._rows)[:, None], np.array(self._stride)[:, None]
        rows = ranks * strides % sizes
        location, spread = np.linspace(0.2, 4.0, COUNTS), np.linspace(0.8, 1.6, COUNTS)
        logs = np.log1p(np.floor(np.exp(source.normal(location, spread, (_BLOCK, COUNTS)))))
        logs[source.random((_BLOCK, COUNTS)) < 0.1] = 0.0  # missing
        weights = _normal(99, np.arange(COUNTS)) * _COUNTS_STD / COUNTS**0.5
        structured = [table for table in range(TABLES) if self._low_rank and self._rows[table] >= _STRUCTURED]
        others = np.setdiff1d(np.arange(TABLES), structured)
        effects = _normal(others[:, None], rows[others]).sum(axis=0)
        effects += sum(self._low_rank_effects(table, rows[table]) for table in structured)
        logits = logs @ weights + effects * (_TABLES_STD / TABLES**0.5)
        return logs.astype(np.float32), rows, logits

    def _low_rank_effects(self, table: int, rows: NDArray[np.int64]) -> Scores:
        """Return the effect of rows of a table, of about unit variance."""
        product, rest = np.ones((_RANK, rows.size)), rows
        for factor in self._factors[table]:
            rest, digit = np.divmod(rest, factor.shape[1])
            product *= factor[:, digit]
        return product.sum(axis=0) / _RANK**0.5

    @functools.cached_property
    def _factors(self) -> list[list[Scores]]:
        """By table and digit, the last one first, the factor of each term and value of the digit (terms, mode)."""
        terms, tables = np.arange(_RANK)[:, None], []
        for table, size in enumerate(self._rows):
            modes = padded_modes(size, _DIGITS)[::-1]
            drawn = [_normal(table, 1 + digit, terms, np.arange(mode)) for digit, mode in enumerate(modes)]
            # Square roots, since products of four normal numbers are nearly all of them close to zero; E|z| is 0.893².
            tables.append([np.sign(one) * np.abs(one) ** 0.5 / 0.893 for one in drawn])
        return tables

    @functools.cached_property
    def _intercept(self) -> float:
        """At which the base rate is Criteo's, by bisection."""
        blocks = [self._inputs(np.random.default_rng([_SEED, 7, block]))[2] for block in range(_CALIBRATION // _BLOCK)]
        logits, low, high = np.concatenate(blocks), -20.0, 20.0
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if (1 / (1 + np.exp(-logits - middle))).mean() < _BASE_RATE else (low, middle)
        return low


def _zipf(uniform: Scores, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Map uniform numbers to ranks from 0, the most frequent first, by the inverse of the continuous distribution."""
    power = 1.0 - _ZIPF
    last = (rows + 1.0) ** power
    ranks = (1.0 - uniform * (1.0 - last)) ** (1.0 / power)
    return np.minimum(ranks.astype(np.int64) - 1, rows - 1)


def _coprime(rows: int) -> int:
    """Return a step near the golden ratio of the table that visits every row once."""
    step = max(1, int(0.618034 * rows))
    while np.gcd(step, rows) != 1:
        step += 1
    return step
