"""The micro workload ``lookup``: rows of one table, and nothing else.

A batch is so many row numbers, drawn independently: evenly, or by Zipf's law, where a few rows make up most of a batch
as words and items do. The gradient of the rows comes with the batch, as it would come from the layer behind: a loss
computed from the rows would take as long as the look-up and be timed with it. There is no epoch and nothing to
evaluate.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bench.core.checked import Rows, Width
from bench.protocol import Batch, Gated, Role, Words
from bench.workloads.base import DrawnWorkload
from comera.lookup import VARIANTS

DISTRIBUTIONS = ("uniform", "zipf")
ZIPF_EXPONENT = 1.05  # the k-th most frequent row is drawn in proportion to k^-1.05

#: Part of the table by which frequent rows lie apart from one another: the golden ratio scatters them evenly.
_SCATTER = 0.618034


@dataclass(frozen=True)
class LookupSettings:
    """The table and what a step does with it. The defaults are the paper's word embedding."""

    rows: Rows = 30522  # V, as in nn.Embedding
    columns: Width = 768  # D
    optimizer_step: bool = True  # whether a step is more than forward and backward of the task loss


class Lookup(nn.Module):
    """The dense model: a table; row numbers (T,) to rows (T, D)."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, columns)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.table(indices)


class LookupWorkload(DrawnWorkload):
    """Micro workload: look-up of rows in one embedding table.

    Batches are row numbers ``indices``, int64 (T,), and ``upstream``, the gradient of the rows (T, D).

    >>> workload = LookupWorkload(LookupSettings(rows=10, columns=4), "zipf")
    >>> batch = next(workload.batches("train", batch_size=6, seed=0, static=True))
    >>> workload.build()(batch["indices"]).shape
    torch.Size([6, 4])
    """

    name, Settings, section, datasets = "lookup", LookupSettings, "table", DISTRIBUTIONS
    words = Words("embedding table", example="row")
    #: Each way to look up rows of the tensorized word embedding.
    _arms: ClassVar[Any] = {variant: ("comera", {"lookup": variant}) for variant in VARIANTS}
    gated = (Gated("lookup-30522x768", LookupSettings(), (10_000, 40_000), "{}-rows", _arms, dataset="zipf"),)
    settings: LookupSettings

    def build(self) -> Lookup:
        return Lookup(self.settings.rows, self.settings.columns)

    def targets(self) -> dict[str, Role]:
        return {"table": "embedding"}

    @functools.cached_property
    def _cumulative(self) -> NDArray[np.float64]:
        """Return the cumulative probability of the ranks, the most frequent first."""
        return np.cumsum(np.arange(1, self.settings.rows + 1, dtype=np.float64) ** -ZIPF_EXPONENT)

    def draw(self, source: np.random.Generator, batch_size: int) -> Batch:
        size = self.settings.rows
        if self.dataset == "zipf":
            drawn = source.random(batch_size) * self._cumulative[-1]
            ranks = np.minimum(np.searchsorted(self._cumulative, drawn, side="right"), size - 1)
            rows = ranks * _stride(size) % size
        else:
            rows = source.integers(0, size, batch_size)
        return {"indices": torch.from_numpy(rows), "upstream": torch.ones(batch_size, self.settings.columns)}

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Zero, with the gradient ``upstream`` of the rows."""
        return _GivenGradient.apply(model(batch["indices"]), batch["upstream"])


class _GivenGradient(torch.autograd.Function):
    """The end of a graph whose gradient is known: forward gives zero, backward what was given."""

    @staticmethod
    def forward(ctx: Any, rows_TD: torch.Tensor, upstream_TD: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(upstream_TD.to(rows_TD.dtype))
        return rows_TD.new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004 - one, at a loss
        return *ctx.saved_tensors, None


def _stride(rows: int) -> int:
    """Return a step that visits every row once before it comes back."""
    return next(step for step in itertools.count(max(1, int(_SCATTER * rows))) if math.gcd(step, rows) == 1)


WORKLOAD = LookupWorkload
