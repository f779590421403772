"""Structured pruning of a dense model while it trains: whole attention heads and whole inner columns go.

What a user without tensor trains would do for a smaller model. The size follows the cubic curve of gradual pruning (Zhu
and Gupta, arXiv 1710.01878), and what goes next has the least saliency per weight that it frees: the change of the loss
to first order if the part is taken out, |Σ w · dL/dw| over its outgoing weights (Molchanov et al., arXiv 1906.10771),
averaged over steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

#: Decay of the average of saliencies from one step to the next.
_DECAY = 0.97

#: A head that would take the size below this share of the target stays.
LEAST_SHARE = 0.95


@dataclass
class Parts:
    """The parts of one sub-layer that can go: heads of an attention, inner columns of a feed-forward.

    Args:
        owner: the sub-layer; where it has ``heads``, their number.
        readers: layers whose outputs are the parts, ``width`` of them each.
        writer: the layer whose inputs are the parts.
        width: columns of a part.
    """

    owner: nn.Module
    readers: tuple[nn.Linear, ...]
    writer: nn.Linear
    width: int = 1
    saliency: torch.Tensor = field(init=False)
    is_open: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        count = self.writer.in_features // self.width
        self.saliency = torch.zeros(count, device=self.writer.weight.device)
        self.is_open = [True] * count

    @property
    def weights(self) -> int:
        """The weights of one part."""
        return self.width * (sum(layer.in_features for layer in self.readers) + self.writer.out_features)

    @torch.no_grad()
    def average(self) -> None:
        """Take the gradient of a step into the average."""
        if self.writer.weight.grad is not None:
            change = (self.writer.weight * self.writer.weight.grad).sum(0).unflatten(0, (-1, self.width)).sum(1)
            self.saliency.lerp_(change.abs(), 1 - _DECAY)

    def columns(self) -> torch.Tensor:
        """Return whether each inner column is open."""
        return torch.tensor(self.is_open, device=self.writer.weight.device).repeat_interleave(self.width)

    @torch.no_grad()
    def hold(self) -> None:
        """Keep what has gone at zero, whatever a step did to it."""
        if all(self.is_open):
            return
        is_open = self.columns()
        self.writer.weight.mul_(is_open)
        for layer in self.readers:
            layer.weight.mul_(is_open.unsqueeze(1))
            if layer.bias is not None:
                layer.bias.mul_(is_open)

    @torch.no_grad()
    def cut(self, optimizer: torch.optim.Optimizer) -> None:
        """Take what has gone out of the weights and of the optimizer's state."""
        kept = self.columns().nonzero().squeeze(1)
        for layer in self.readers:
            for parameter in layer.parameters():
                _keep(parameter, 0, kept, optimizer)
            layer.out_features = len(kept)
        _keep(self.writer.weight, 1, kept, optimizer)
        self.writer.in_features = len(kept)
        if hasattr(self.owner, "heads"):
            self.owner.heads = len(kept) // self.width  # type: ignore[assignment]
        self.saliency, self.is_open = self.saliency[self.is_open], [True] * sum(self.is_open)


def _keep(parameter: torch.Tensor, dim: int, kept: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Keep some rows or columns of a parameter, and of what an optimizer's state holds of its shape."""
    state = optimizer.state.get(parameter, {})
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
            state[name] = value.index_select(dim, kept)
    parameter.data = parameter.data.index_select(dim, kept)
    parameter.grad = None


def resize_as_loaded(owner: nn.Module, state: Mapping[str, torch.Tensor], prefix: str, *_: Any) -> None:
    """Give the layers of a sub-layer the sizes of a state that is about to be loaded, which may be a pruned one's.

    A hook of :meth:`torch.nn.Module.register_load_state_dict_pre_hook`.
    """
    for name, layer in owner.named_children():
        if isinstance(layer, nn.Linear) and (key := f"{prefix}{name}.weight") in state:
            width = layer.out_features // getattr(owner, "heads", 1)
            shape = tuple(state[key].shape)
            if shape != tuple(layer.weight.shape):
                layer.weight.data = layer.weight.data.new_empty(shape)
                if layer.bias is not None:
                    layer.bias.data = layer.bias.data.new_empty(shape[0])
                layer.out_features, layer.in_features = shape
                if hasattr(owner, "heads") and name == "query":
                    owner.heads = shape[0] // width  # type: ignore[assignment]


def parts_of(model: nn.Module, targets: Mapping[str, str]) -> list[Parts]:
    """Return what can go of a model, in sub-layers whose layers are all among the targets.

    An attention has layers ``query``, ``key``, ``value`` and ``output`` and the number ``heads``, a feed-forward the
    layers ``expand`` and ``contract``.
    """
    wanted = {model.get_submodule(name) for name in targets}
    found = []
    for module in model.modules():
        attention = [getattr(module, name, None) for name in ("query", "key", "value", "output")]
        feed_forward = [getattr(module, name, None) for name in ("expand", "contract")]
        for layers in (attention, feed_forward):
            if all(isinstance(layer, nn.Linear) and layer in wanted for layer in layers):
                *readers, writer = layers
                width = writer.in_features // module.heads if layers is attention else 1  # type: ignore[union-attr]
                found.append(Parts(module, tuple(readers), writer, width))  # type: ignore[arg-type]
    return found


class Pruning:
    """Closes parts along a curve.

    Args:
        parts: what can go; each sub-layer keeps one part at least.
    """

    def __init__(self, parts: list[Parts]) -> None:
        self.parts = parts
        self.full = self.size

    @property
    def size(self) -> int:
        """The weights of open parts."""
        return sum(sum(one.is_open) * one.weights for one in self.parts)

    @property
    def least(self) -> int:
        """The weights that are left when each sub-layer has one part."""
        return sum(one.weights for one in self.parts)

    def follow(self, done: int, steps: int, start: float, target: float) -> None:
        """Close what the curve asks for after ``done`` of ``steps`` steps, and keep it closed."""
        wanted = target + (start - target) * (1 - min(done / max(steps, 1), 1.0)) ** 3
        left = self.size
        for one, at in self._next() if left > wanted and done <= steps else ():
            if left <= wanted:
                break
            if sum(one.is_open) > 1 and left - one.weights >= LEAST_SHARE * target:
                one.is_open[at] = False
                left -= one.weights
        self.hold()

    def _next(self) -> Iterator[tuple[Parts, int]]:
        """Yield open parts, those of least saliency per weight first."""
        scores = [
            (score / one.weights, place, at)
            for place, one in enumerate(self.parts)
            for at, score in enumerate(one.saliency.tolist())
            if one.is_open[at]
        ]
        for _, place, at in sorted(scores):
            yield self.parts[place], at

    def average(self) -> None:
        """Take the gradients of a step into the averages."""
        for one in self.parts:
            one.average()

    def hold(self) -> None:
        """Keep at zero what has gone."""
        for one in self.parts:
            one.hold()

    def cut(self, optimizer: torch.optim.Optimizer) -> bool:
        """Take out what has gone; whether there was any."""
        gone = [one for one in self.parts if not all(one.is_open)]
        for one in gone:
            one.cut(optimizer)
        return bool(gone)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and what is open."""
        return {
            "full": self.full,
            "saliency": [one.saliency.tolist() for one in self.parts],
            "open": [list(one.is_open) for one in self.parts],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.full = state["full"]
        for one, saliency, is_open in zip(self.parts, state["saliency"], state["open"], strict=True):
            one.saliency, one.is_open = torch.tensor(saliency, device=one.saliency.device), list(is_open)
