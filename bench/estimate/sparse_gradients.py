"""Sparse gradients of embedding tables in traces of a step, on real tensors and on fake ones.

A sparse tensor has no storage of its own: its bytes are those of its indices and its values (:func:`parts`). Two things
would make a trace differ from a step without a trace, and are put right here:

* autograd hands a sparse gradient over to ``.grad`` as it is, but copies it while a dispatch mode is active, because
  the mode holds a reference (:func:`handed_over`);
* how many rows a gradient has after its coalescing is in the data, which fake tensors lack. A batch of the bench has
  it (``unique_count``), and :class:`SparseShapes` gives results of that shape.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

aten = torch.ops.aten

#: PyTorch itself asks fake tensors for their device in this way, through all modes and more often than it runs
#: operations; the first mode answers.
ASKS_DEVICE = torch.ops.prim.device.default


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors that hold the bytes of ``tensor``: itself, or the indices and the values of a sparse one.

    >>> [tuple(part.shape) for part in parts(torch.eye(3)[:, :2].to_sparse())]
    [(2, 2), (2,)]
    """
    if tensor.layout is not torch.sparse_coo:
        return (tensor,)
    with _disable_current_modes():  # looking is no operation of the step
        return tensor._indices(), tensor._values()


def handed_over(func: Any, arguments: Any) -> torch.Tensor | None:
    """Return the sparse gradient that autograd hands over instead of the copy ``func``, or None where there is none."""
    in_backward = torch._C._current_graph_task_id() != -1
    if func is not aten.clone.default or not in_backward or arguments[0].layout is not torch.sparse_coo:
        return None
    indices, values = parts(arguments[0])
    return torch.sparse_coo_tensor(indices, values, arguments[0].shape, check_invariants=False)


class SparseShapes(TorchDispatchMode):
    """Gives operations on sparse fake tensors results with as many entries as real ones would have.

    Meant to be entered right after ``FakeTensorMode``. Where a table has a padding row, all entries are taken to be
    others: an upper bound.

    Args:
        indices: tensors of row numbers; how many of them differ is their ``unique_count``, else all are taken to.
        device: "cpu" or "cuda", whose kernels are traced.
    """

    def __init__(self, indices: Iterable[torch.Tensor], device: str) -> None:
        super().__init__()
        self._device = device
        self._counts: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        for tensor in indices:
            self._know(tensor, getattr(tensor, "unique_count", None))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ASKS_DEVICE:
            return args[0].device
        first = args[0] if args else None
        if isinstance(first, FakeTensor):
            if (gradient := handed_over(func, args)) is not None:
                return gradient
            if func is aten._coalesce.default:
                return self._coalesced(first)
            if func is aten.add_.Tensor and getattr(args[1], "is_sparse", False):
                return first
            if func is aten.sparse_mask.default:
                indices, values = parts(args[1])
                return _sparse(indices.clone(), first.new_empty(values.shape), first.shape)
            if func is aten.index.Tensor and args[1][0] is not None and args[1][0].dtype == torch.bool:
                return self._masked(first, args[1][0])
        return func(*args, **(kwargs or {}))

    def _coalesced(self, gradient: torch.Tensor) -> torch.Tensor:
        indices, values = parts(gradient)
        count = self._count(indices)
        count = values.shape[0] if count is None else min(count, values.shape[0])
        room = (
            count if self._device == "cuda" else values.shape[0]
        )  # the CPU's kernel has room for all and returns views
        rows, sums = indices.new_empty(1, room), values.new_empty(room, *values.shape[1:])
        return _sparse(rows[:, :count], sums[:count], gradient.shape)

    def _masked(self, entries: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the entries other than those of the padding row."""
        kept = entries.new_empty(mask.numel(), *entries.shape[mask.dim() :])
        self._know(kept, self._count(entries))
        return kept

    def _know(self, indices: torch.Tensor, count: int | None) -> None:
        if count is not None:
            storage = indices.untyped_storage()
            self._counts[id(storage)] = weakref.ref(storage), count

    def _count(self, indices: torch.Tensor) -> int | None:
        storage = indices.untyped_storage()
        known, count = self._counts.get(id(storage), (None, None))
        return count if known is not None and known() is storage else None


def _sparse(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False, is_coalesced=True)
