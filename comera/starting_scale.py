"""At which scale the factors of a table start: that of the entries they replace, for CoMERA and its rivals alike."""

from __future__ import annotations

import math

import torch


def scale_of(weight: torch.Tensor) -> torch.Tensor:
    """The root of the mean square of a weight's entries, a scalar; 1 where they are all zero or not all finite.

    Example:
        >>> scale_of(torch.tensor([[3.0, -4.0], [0.0, 5.0]])), scale_of(torch.zeros(2, 2))
        (tensor(3.5355), tensor(1.))
    """
    kind = torch.promote_types(weight.dtype, torch.float32)
    scale = torch.linalg.vector_norm(weight.detach(), dtype=kind) / math.sqrt(weight.numel())
    return torch.where((scale > 0) & scale.isfinite(), scale, 1.0)
