"""The train step: the one loop body that every method of the bench runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import nn

from bench.protocol import Batch, Change, Method

#: In what arithmetic the forward and backward run; a property of the step, the same for every method.
PRECISIONS = ("fp32", "tf32", "bf16", "fp8")

#: Where a step is; between two steps it is idle.
Phase = Literal["idle", "forward", "backward", "update"]


def precision_unsupported(precision: str, device: str | torch.device) -> str | None:
    """Return why ``precision`` cannot be had on ``device``, or None.

    Raises:
        ValueError: ``precision`` is none of :data:`PRECISIONS`.

    >>> precision_unsupported("tf32", "cpu")
    'precision=tf32 needs a CUDA device, this one is cpu; use fp32 or bf16.'
    """
    kind = torch.device(device).type
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; allowed: {', '.join(PRECISIONS)}.")
    if precision == "fp8":
        return "precision=fp8 is not implemented yet in this version; use fp32, tf32 or bf16."
    if precision == "tf32" and kind != "cuda":
        return f"precision=tf32 needs a CUDA device, this one is {kind}; use fp32 or bf16."
    return None


class TrainStep:
    """One training step: forward, loss, backward, optimizer, the method's hooks. Calling it runs all of them.

    :meth:`forward_backward` and :meth:`update` are its two halves, for whoever captures or times them apart; one call
    of each, in this order, is one step. Nothing here waits for the device: the loss stays a tensor.

    Args:
        model: what ``method.adapt`` returned; it is put into training mode.
        method: the arm; its ``objective`` and ``after_step`` are called every step.
        optimizer: what ``method.optimizer(model)`` returned.
        loss: ``workload.loss``, from model and batch to the mean task loss.
        precision: one of :data:`PRECISIONS`. ``bf16`` is autocast over forward and task loss (parameters, gradients
            and optimizer stay float32); ``tf32`` lets float32 products run in TF32 for the whole step.
        device: where the model lies.

    Attributes:
        number: steps done so far, which is the number of the next step.
        phase: where the step is now; memory and work are attributed by it.
        last_change: what the last ``after_step`` did to the model.

    Raises:
        ValueError: an unknown precision, or one that ``device`` does not offer.
    """

    def __init__(
        self,
        model: nn.Module,
        method: Method,
        optimizer: torch.optim.Optimizer,
        loss: Callable[[nn.Module, Batch], torch.Tensor],
        precision: str,
        device: str | torch.device,
    ) -> None:
        if reason := precision_unsupported(precision, device):
            raise ValueError(reason)
        self.model = model.train()
        self.method = method
        self.optimizer = optimizer
        self.loss = loss
        self.precision = precision
        self.device = torch.device(device)
        self.number = 0
        self.phase: Phase = "idle"
        self.last_change: Change = "nothing"

    def __call__(self, batch: Batch) -> torch.Tensor:
        """Run one step and return its task loss, detached."""
        loss = self.forward_backward(batch)
        self.update()
        return loss

    def forward_backward(self, batch: Batch) -> torch.Tensor:
        """The first half: fresh gradients of the method's objective. Returns the task loss, detached."""
        self.optimizer.zero_grad(set_to_none=True)
        self.phase = "forward"
        with self._products():
            with self.autocast():
                task_loss = self.loss(self.model, batch)
            objective = self.method.objective(task_loss, self.model)
            self.phase = "backward"
            objective.backward()
        self.phase = "idle"
        return task_loss.detach()

    def update(self) -> None:
        """The second half: the optimizer's step, then the method's ``after_step``."""
        self.phase = "update"
        with self._products():
            self.optimizer.step()
            self.last_change = self.method.after_step(self.model, self.optimizer, self.number)
        self.number += 1
        self.phase = "idle"

    def autocast(self) -> AbstractContextManager[object]:
        """The arithmetic of forward and task loss, for whoever runs the model outside a step."""
        if self.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def _products(self) -> AbstractContextManager[object]:
        return _tf32_products() if self.precision == "tf32" else contextlib.nullcontext()


@contextlib.contextmanager
def _tf32_products() -> Iterator[None]:
    """float32 matrix products on TF32 tensor cores; the process's own setting comes back afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
