"""What workloads of a single layer share: they draw their data, have no epoch and nothing to evaluate."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from torch import nn

from bench.data.corpus import DataError
from bench.protocol import Batch


class MicroWorkload(abc.ABC):
    """One layer and batches drawn for it, in the protocol's form (:class:`bench.protocol.Workload`).

    Args:
        dataset: one of :attr:`distributions`; ``auto`` is the first.

    Raises:
        DataError: another dataset.
    """

    examples_per_epoch: int | None = None

    #: What the layer is called in a sentence, what it draws, and from which distributions.
    layer: ClassVar[str]
    drawn: ClassVar[str]
    distributions: ClassVar[tuple[str, ...]]

    def __init__(self, dataset: str = "auto") -> None:
        if dataset not in ("auto", *self.distributions):
            allowed = ", ".join(self.distributions)
            raise DataError(f"dataset is {dataset!r}; {self.layer} draws its {self.drawn}: {allowed}.")
        self.dataset = self.distributions[0] if dataset == "auto" else dataset

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

    def batches_per_epoch(self, batch_size: int) -> int:
        """There is no epoch; raises ValueError."""
        raise ValueError(f"{self.layer} has no epoch, so none of batches of {batch_size}")

    def evaluate(self, model: nn.Module) -> dict[str, Any]:  # noqa: ARG002 - the protocol passes it
        """Nothing."""
        return {}
