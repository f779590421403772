"""Operations that run inside a test, by the shapes and types of what goes in and comes out."""

from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Operation(NamedTuple):
    """An operation by its name, with shapes and types of the tensors that it was given, and shapes of those it made."""

    name: str
    given: list[tuple[tuple[int, ...], torch.dtype]]
    made: list[tuple[int, ...]]


class NotedOperations(TorchDispatchMode):
    """Notes every operation that runs inside of it, as ``operations``."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [(tuple(each.shape), each.dtype) for each in args if isinstance(each, torch.Tensor)]
        made = [
            tuple(each.shape) for each in (result if isinstance(result, tuple) else (result,)) if torch.is_tensor(each)
        ]
        self.operations.append(Operation(func.overloadpacket.__name__.rstrip("_"), given, made))
        return result

    def named(self, *names: str) -> list[Operation]:
        """The operations of these names, in place or not."""
        return [each for each in self.operations if each.name in names]
