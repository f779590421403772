"""What workloads of a single layer share: they draw their data, have no epoch and nothing to evaluate."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from bench.data.corpus import DataError
from bench.protocol import Batch
from bench.workloads.base import BaseWorkload


class MicroWorkload(BaseWorkload):
    """One layer and batches drawn for it.

    Args:
        settings: of the layer.
        dataset: one of :attr:`datasets`; ``auto`` is the first.

    Raises:
        DataError: another dataset.
    """

    #: What the layer is called in a sentence, and what it draws.
    layer: ClassVar[str]
    drawn: ClassVar[str]

    def __init__(self, settings: object, dataset: str = "auto") -> None:
        if dataset not in ("auto", *self.datasets):
            allowed = ", ".join(self.datasets)
            raise DataError(f"dataset is {dataset!r}; {self.layer} draws its {self.drawn}: {allowed}.")
        super().__init__(settings, dataset)

    @abc.abstractmethod
    def draw(self, source: np.random.Generator, batch_size: int) -> Batch:
        """One batch."""

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:  # noqa: ARG002
        """Batches without end and of one shape; the split makes no difference.

        Args:
            split, static: of no consequence here.
            batch_size: T, rows of a batch.
            seed: of the draws.
            start: number of the first batch wanted; those before it cost nothing.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size is {batch_size!r}; allowed: whole numbers from 1")
        return (self.draw(np.random.default_rng([seed, number]), batch_size) for number in itertools.count(start))
