"""Steps of an optimizer that are no training steps: those by which tools fill its state before they save or load it.

``torch.distributed.checkpoint.state_dict`` needs an optimizer's state to know what is to be saved or loaded. If there
is none, it sets all gradients and all learning rates to zero, steps, and puts the rates back; FSDP of accelerate and
Lightning call it. A training step differs: a warm-up may begin at a rate of zero, but then its gradients are not zero.

Such a step moves no parameter, and yet it leaves a trace: AdamW then counts its first training step as the second.
:class:`FilledStates` takes that back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from comera.compatibility.optimizer_states import held_by


def is_dummy_step(optimizer: Optimizer) -> bool:
    """Return whether all learning rates are zero and all parameters have gradients, each of them zero.

    Gradients are read, which waits for the device, only if all rates are zero. A rate on a device other than the CPU is
    not read: the tools that are meant put a number or a tensor on the CPU in its place.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = torch.optim.SGD([weight], lr=0.0)
        >>> weight.grad = torch.zeros(2)
        >>> is_dummy_step(optimizer)
        True
        >>> weight.grad = torch.ones(2)
        >>> is_dummy_step(optimizer)
        False
    """
    rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
    if any(isinstance(rate, torch.Tensor) and rate.device.type != "cpu" for rate in rates) or any(map(float, rates)):
        return False
    gradients = [parameter.grad for parameter in held_by(optimizer) if parameter.requires_grad]
    if not gradients or any(gradient is None or gradient.is_sparse for gradient in gradients):
        return False
    return not any(bool(gradient.any()) for gradient in gradients if gradient is not None)


@dataclass(frozen=True)
class _Filled:
    """The state of a parameter as a dummy step has left it: its tensors, with their versions, and its numbers."""

    leaves: list[tuple[Any, int | None]]

    @classmethod
    def of(cls, state: Any) -> _Filled:
        return cls([(leaf, _version(leaf)) for leaf in tree_leaves(state)])

    def is_still(self, state: Any) -> bool:
        """Return whether the state is the same, and no tensor of it has been written to."""
        leaves = tree_leaves(state)
        return len(leaves) == len(self.leaves) and all(
            _version(now) == version and (now is then if version is not None else now == then)
            for now, (then, version) in zip(leaves, self.leaves, strict=True)
        )


def _version(leaf: Any) -> int | None:
    """Return the number of writes to a tensor so far; None for anything else."""
    return leaf._version if isinstance(leaf, torch.Tensor) else None


class FilledStates:
    """The states of an optimizer that a dummy step has filled and no training step has used.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = torch.optim.AdamW([weight], lr=0.0)
        >>> filled = FilledStates()
        >>> filled.before(optimizer)
        >>> weight.grad = torch.zeros(2)
        >>> _ = optimizer.step()
        >>> filled.after(optimizer)
        >>> optimizer.state[weight]["step"]
        tensor(1.)
        >>> filled.empty(optimizer)
        >>> weight in optimizer.state
        False
    """

    def __init__(self) -> None:
        self._empty: list[torch.Tensor] = []
        self._filled: dict[torch.Tensor, _Filled] = {}

    def before(self, optimizer: Optimizer) -> None:
        """Note which parameters have no state yet."""
        self._empty = [parameter for parameter in held_by(optimizer) if not optimizer.state.get(parameter)]

    def after(self, optimizer: Optimizer) -> None:
        """Note the states that the dummy step has filled."""
        states = {parameter: optimizer.state.get(parameter) for parameter in self._empty}
        self._filled |= {parameter: _Filled.of(state) for parameter, state in states.items() if state}

    def empty(self, optimizer: Optimizer) -> None:
        """Drop these states, so that the training step to come fills them anew; not those loaded in the meantime."""
        for parameter, filled in self._filled.items():
            if filled.is_still(optimizer.state.get(parameter)):
                del optimizer.state[parameter]
        self._filled = {}
