"""The micro workload ``linear``: one linear layer, and nothing else.

A batch is so many rows of standard normal numbers. The loss is the mean square of the layer's output, the cheapest one
whose gradient differs in every entry. There is no epoch and nothing to evaluate.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from bench.core.checked import Width
from bench.protocol import Batch, Gated, Role, Words
from bench.workloads.base import DrawnWorkload


@dataclass(frozen=True)
class LinearSettings:
    """The layer and what a step does with it. The defaults are a projection of the paper's attention."""

    in_features: Width = 768  # N, as in nn.Linear
    out_features: Width = 768  # M
    optimizer_step: bool = True  # whether a step is more than forward and backward of the task loss


class Linear(nn.Module):
    """The dense model: a linear layer with bias, (T, N) to (T, M)."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.linear(rows)


class LinearWorkload(DrawnWorkload):
    """Micro workload: one linear layer.

    Batches are ``rows``, float32 (T, N).

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

    def build(self) -> Linear:
        return Linear(self.settings.in_features, self.settings.out_features)

    def targets(self) -> dict[str, Role]:
        return {"linear": "feed_forward"}

    def draw(self, source: np.random.Generator, batch_size: int) -> Batch:
        rows = source.standard_normal((batch_size, self.settings.in_features), dtype=np.float32)
        return {"rows": torch.from_numpy(rows)}

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean square of the output."""
        return model(batch["rows"]).square().mean()


WORKLOAD = LinearWorkload
