"""A step that ends before the optimizer's: forward and backward of the task loss, for whatever method."""

from typing import Any

import torch
from torch import nn

from bench.protocol import Change, Method


class NoUpdate(torch.optim.Optimizer):
    """Clears gradients as any optimizer does, changes no parameter and keeps no state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing."""


class ForwardBackward:
    """A method that adapts the model as another does, and then neither adds to the task loss nor updates anything.

    It has the form of :class:`bench.protocol.Method`, so that timing, capture and memory need not know it.
    """

    def __init__(self, method: Method) -> None:
        self._method = method

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """One without effect or state."""
        return NoUpdate(model)

    def objective(self, task_loss: torch.Tensor, model: nn.Module) -> torch.Tensor:  # noqa: ARG002
        """The task loss."""
        return task_loss

    def after_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Change:  # noqa: ARG002
        """Nothing."""
        return "nothing"

    def rare_events(self) -> list[Any]:
        """None: they serve updates."""
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)
