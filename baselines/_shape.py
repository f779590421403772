"""Models of a wanted size in another shape: other blocks, and the columns that make up the size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn

#: The number of a block in the name of a module: the only one.
_BLOCK = re.compile(r"\.\d+(\.|$)")


class Narrowing(Protocol):
    """Protocol of a model that can say what it is like in another shape."""

    def narrowed(self, parameters: int, depth: float = 1, compression: float = 1, multiple: int = 1) -> nn.Module:
        """Return the model with about ``parameters`` parameters and ``depth`` times the blocks, newly drawn.

        Modules are named alike, and columns make up the size. It is that of the model whose matrices in blocks are then
        made ``compression`` times smaller; the features of those are multiples of ``multiple``.

        Raises:
            ValueError: none has so few, or comes within 2 %, or the depth gives no whole number of blocks; the sentence
                names the nearest.
        """


def cannot_narrow(arm: str, model: nn.Module) -> str | None:
    """Explain why an arm finds no other shape of a model; None if the model can say which there are."""
    if hasattr(model, "narrowed"):
        return None
    return f"{arm} needs a model that can be made narrower, as workload=text, pointer and teacher have."


def count(model: nn.Module) -> int:
    """Return the parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


def narrowed(model: Any, ratio: float, depth: float, compression: float = 1, multiple: int = 1) -> nn.Module:
    """Return a model in another shape, of ``ratio`` times fewer parameters; see :meth:`Narrowing.narrowed`."""
    found: nn.Module = model.narrowed(round(count(model) / ratio), depth, compression, multiple)
    return found.train(model.training)


def targets_at_depth(model: nn.Module, targets: Mapping[str, str]) -> dict[str, str]:
    """Return the targets of a model of another depth: those given, in as many blocks as it has."""
    roles = {_BLOCK.sub(".*.", name): role for name, role in targets.items()}
    places = {name: _BLOCK.sub(".*.", name) for name, _ in model.named_modules()}
    return {name: roles[place] for name, place in places.items() if place in roles}
