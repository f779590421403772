"""The micro workload ``linear``: one linear layer, and nothing else.

A batch is so many rows of standard normal numbers. The loss is the mean square of the layer's output, the cheapest one
whose gradient differs in every entry. There is no epoch and nothing to evaluate.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from bench.core.checked import FromOne
from bench.protocol import Batch, Gated, Role, Words
from bench.workloads.base import DrawnWorkload

#: Numbers that stand for all of them in the hash of the data.
_HASHED = 1000


@dataclass(frozen=True)
class LinearSettings:
    """The layer and what a step does with it. The defaults are a projection of the paper's attention.

    Args:
        in_features, out_features: N and M, as in ``nn.Linear``.
        optimizer_step: whether a step ends with the optimizer's, or is forward and backward of the task loss alone.
    """

    in_features: FromOne = 768
    out_features: FromOne = 768
    optimizer_step: bool = True


class Linear(nn.Module):
    """The dense model: a linear layer with bias."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """(T, N) to (T, M)."""
        return self.linear(rows)


class LinearWorkload(DrawnWorkload):
    """The linear layer in the protocol's form (:class:`bench.protocol.Workload`). Batches are ``rows``, float32 (T, N).

    Example:
        >>> workload = LinearWorkload(LinearSettings(in_features=6, out_features=4))
        >>> batch = next(workload.batches("train", batch_size=3, seed=0, static=True))
        >>> workload.build()(batch["rows"]).shape
        torch.Size([3, 4])
    """

    name, Settings, datasets = "linear", LinearSettings, ("normal",)
    words = Words("linear layer", example="row")
    gated = tuple(  # a TT layer of each shape in the encoder, at few tokens and at those of the encoder's batches
        Gated(f"linear-{n}x{m}", LinearSettings(n, m), (16, 128, 4096), "{}-tokens", {"comera": ("comera", {})})
        for n, m in ((768, 768), (768, 3072), (3072, 768))
    )
    settings: LinearSettings

    @functools.cached_property
    def data_hash(self) -> str:
        """sha256 over the distribution, the width and the first numbers drawn."""
        rows = -(-_HASHED // self.settings.in_features)
        first = next(self.batches("train", rows, 0, static=True))["rows"].flatten()[:_HASHED].tolist()
        return hashlib.sha256(repr((self.dataset, self.settings.in_features, first)).encode()).hexdigest()

    def build(self) -> Linear:
        """A freshly initialised layer; works under ``FakeTensorMode``."""
        return Linear(self.settings.in_features, self.settings.out_features)

    def targets(self) -> dict[str, Role]:
        """The layer."""
        return {"linear": "feed_forward"}

    def draw(self, source: np.random.Generator, batch_size: int) -> Batch:
        rows = source.standard_normal((batch_size, self.settings.in_features), dtype=np.float32)
        return {"rows": torch.from_numpy(rows)}

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean square of the output."""
        return model(batch["rows"]).square().mean()


WORKLOAD = LinearWorkload
