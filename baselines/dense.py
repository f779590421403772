"""Dense training: the model as it is, under torch's fused AdamW. The yardstick of every comparison."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from baselines._arm import Arm, check_positive, check_variant, fused_adamw, parameters_apart

VARIANTS = ("",)


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of dense training.

    Args:
        lr: constant rate of AdamW; the rate that the paper's code gives dense parameters.

    Raises:
        ValueError: when the rate is not a finite number above 0.
    """

    lr: float = 5e-5

    def __post_init__(self) -> None:
        check_positive("dense.lr", self.lr)


class Dense(Arm):
    """Dense training with fused AdamW and no weight decay."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Fused AdamW over every trainable parameter."""
        return fused_adamw((parameters_apart(model, ()), self.settings.lr))


def build(settings: Settings, variant: str = "") -> Dense:
    """The dense arm.

    Args:
        settings: hyperparameters.
        variant: ``""``, the only one.

    Raises:
        ValueError: for an unknown variant.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 1))
        >>> arm = build(Settings(lr=0.1))
        >>> optimizer = arm.optimizer(arm.adapt(model, {"0": "classifier"}))
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.1]
    """
    check_variant("dense", variant, VARIANTS)
    return Dense(settings)
