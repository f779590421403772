"""Operations that run inside a test, by the shapes and types of what goes in and comes out."""

from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Operation(NamedTuple):
    """An operation by its name, with shapes and types of the tensors that it was given, and shapes of those it made.

    ``layouts`` has sizes and strides of all these tensors.
    """

    name: str
    given: list[tuple[tuple[int, ...], torch.dtype]]
    made: list[tuple[int, ...]]
    layouts: list[tuple[tuple[int, ...], tuple[int, ...]]]

    def is_read_by_cublas(self) -> bool:
        """Return whether CUDA's batched product takes all tensors as they lie: rows or columns are contiguous."""
        return all(
            (by_column == 1 and (rows == 1 or by_row >= columns))
            or (by_row == 1 and (columns == 1 or by_column >= rows))
            for (_, rows, columns), (_, by_row, by_column) in self.layouts
        )


class NotedOperations(TorchDispatchMode):
    """Notes every operation that runs inside of it, as ``operations``."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        everything = [*args, *(kwargs or {}).values(), *(result if isinstance(result, tuple) else (result,))]
        layouts = [(tuple(each.shape), each.stride()) for each in everything if torch.is_tensor(each)]
        given = [(tuple(each.shape), each.dtype) for each in args if isinstance(each, torch.Tensor)]
        made = [
            tuple(each.shape) for each in (result if isinstance(result, tuple) else (result,)) if torch.is_tensor(each)
        ]
        self.operations.append(Operation(func.overloadpacket.__name__.rstrip("_"), given, made, layouts))
        return result

    def named(self, *names: str) -> list[Operation]:
        """The operations of these names, in place or not."""
        return [each for each in self.operations if each.name in names]
