"""Bytes that travel between ranks, as collectives are called.

They are what one rank sends, as :func:`bench.estimate.communication.sent_bytes` does on paper. Over ``n`` ranks an
all-reduce of ``s`` bytes sends ``2 (n - 1) / n · s`` (ring or any other algorithm that is optimal in bandwidth), a
gather or scatter ``(n - 1) / n · s`` of its whole.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import distributed

#: Collectives of ``torch.distributed``: passes over the wire in units of (n - 1) / n, and which argument is the whole.
_COLLECTIVES = {
    "all_reduce": (2, 0),
    "all_gather_into_tensor": (1, 0),
    "reduce_scatter_tensor": (1, 1),
    "all_gather_single": (1, 0),  # what PyTorch 2.13 calls these two
    "reduce_scatter_single": (1, 1),
}


class SentBytes:
    """A context in which ``sent`` adds up what this rank sends by collectives, from the tensors that they are given.

    It stands in the place of the functions, since some are called from threads of the process group, where no mode of
    PyTorch's dispatcher is in force.
    """

    def __init__(self, ranks: int) -> None:
        self._share = (ranks - 1) / ranks
        self.sent = 0.0

    def __enter__(self) -> "SentBytes":
        self._originals = {name: getattr(distributed, name) for name in _COLLECTIVES if hasattr(distributed, name)}
        for name, original in self._originals.items():
            setattr(distributed, name, self._counting(original, *_COLLECTIVES[name]))
        return self

    def __exit__(self, *error: object) -> None:
        for name, original in self._originals.items():
            setattr(distributed, name, original)

    def _counting(self, original: Callable[..., Any], passes: int, place: int) -> Callable[..., Any]:
        name = list(inspect.signature(original).parameters)[place]

        @functools.wraps(original)
        def counting(*args: Any, **kwargs: Any) -> Any:
            tensor = args[place] if len(args) > place else kwargs[name]
            self.sent += passes * self._share * tensor.nbytes
            return original(*args, **kwargs)

        return counting


def gradient_bytes(parameters: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the gradients of trained parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters if parameter.requires_grad)
