"""What workloads of a single layer share: they draw their data, have no epoch and nothing to evaluate."""

from __future__ import annotations

import abc
import functools
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import astuple

import numpy as np

from bench.protocol import Batch
from bench.workloads.base import BaseWorkload

#: Numbers that stand for all of them in the hash of the data.
_HASHED = 1000


class MicroWorkload(BaseWorkload):
    """One layer and batches drawn for it; the dataset and the first setting, a size, decide what is drawn."""

    @abc.abstractmethod
    def draw(self, source: np.random.Generator, batch_size: int) -> Batch:
        """One batch; its first tensor is what is drawn."""

    @functools.cached_property
    def data_hash(self) -> str:
        """sha256 over the distribution, the size and the first numbers drawn."""
        [drawn, *_] = next(self.batches("train", _HASHED, 0, static=True)).values()
        identity = (self.dataset, astuple(self.settings)[0], drawn.flatten()[:_HASHED].tolist())
        return hashlib.sha256(repr(identity).encode()).hexdigest()

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:  # noqa: ARG002
        """Batches without end, of so many rows; each depends on the seed and its number alone."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}; allowed: whole numbers from 1")
        return (self.draw(np.random.default_rng([seed, number]), batch_size) for number in itertools.count(start))
