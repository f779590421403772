"""Batches of any size: a step can be predicted for one that is larger than the data."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from bench.errors import ConfigError
from bench.estimate.devices import LIMIT
from bench.protocol import Batch, Method, Workload

_FEW = 3  # examples that are enough to see whether every tensor of a batch has a row for each

#: Batch sizes among which the smallest that a method takes is looked for.
_SMALLEST = range(1, 1025)


def smallest_batch(method: Method, view: Any) -> int:
    """Return the smallest batch that a method takes, of which what it takes are multiples.

    ``view`` is a dataclass in the form of :class:`bench.protocol.CellView`; its own batch stands where none is found.
    """
    accepted = (size for size in _SMALLEST if method.unsupported(replace(view, batch_size=size)) is None)
    return next(accepted, view.batch_size)


class AnyBatch:
    """A workload with batches that may be larger than its data: rows then come again.

    Rows can be told from one another where every tensor of a batch has one per example, as it has not where examples
    of several lengths lie end to end. Batches are then no larger than the data. ``limit`` is the number of examples of
    the largest batch that is tried.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload, self.limit = workload, LIMIT
        if workload.training_examples is not None:
            few = min(workload.training_examples, _FEW)
            batch = next(iter(workload.batches("train", few, 0, static=True)))
            if any(tensor.shape[:1] != (few,) for tensor in batch.values()):
                self.limit = workload.training_examples

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:
        rows = min(batch_size, self._workload.training_examples or batch_size)
        if rows == self.limit < batch_size:
            raise ConfigError(f"batch_size is {batch_size}; allowed: 1 to the {rows} training rows.")
        batch = next(iter(self._workload.batches(split, rows, seed, static, start)))
        places = torch.arange(batch_size) % rows
        yield batch if rows == batch_size else {name: tensor[places] for name, tensor in batch.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)
