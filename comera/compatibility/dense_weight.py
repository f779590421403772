"""What a tensorized layer's ``weight`` is: the dense matrix, formed by the operation that uses it.

Models read a layer's weight not only to multiply with it: T5 reads its dtype eight times a pass. Of a
:class:`DenseWeight` such attributes are had without the entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

#: What does not depend on the entries.
_ATTRIBUTES = {
    *(getattr(torch.Tensor, name).__get__ for name in ("device", "dtype", "is_cuda", "is_meta", "layout", "ndim")),
    *(getattr(torch.Tensor, name).__get__ for name in ("requires_grad", "shape", "itemsize", "nbytes")),
    *(getattr(torch.Tensor, name) for name in ("__len__", "dim", "element_size", "get_device", "is_complex")),
    *(getattr(torch.Tensor, name) for name in ("is_floating_point", "ndimension", "nelement", "numel", "size")),
    *(torch.is_complex, torch.is_floating_point, torch.numel),
}


class DenseWeight(torch.Tensor):
    """A tensor of some shape, type and device whose entries are formed anew by every operation that needs them.

    Args:
        form: gives the entries, with a gradient where it is enabled.
        shape: of the entries.
        like: a tensor of their type, on their device.
        requires_grad: whether they have a gradient, where it is enabled.

    Writing to it changes nothing, as with every result of an operation.

    Example:
        >>> weight = DenseWeight(lambda: torch.ones(2, 3), (2, 3), like=torch.ones(1))
        >>> weight.shape, weight.dtype, weight.sum()
        (torch.Size([2, 3]), torch.float32, tensor(6.))
    """

    _form: Callable[[], torch.Tensor]

    @staticmethod
    def __new__(
        cls, form: Callable[[], torch.Tensor], shape: Sequence[int], like: torch.Tensor, requires_grad: bool = False
    ) -> DenseWeight:
        # One number stands for all entries: NaN, lest anything that passes by __torch_function__ goes unnoticed.
        number = torch.full((), math.nan, dtype=like.dtype, device=like.device)
        entries = number.expand(shape).requires_grad_(requires_grad and torch.is_grad_enabled())
        weight = entries.as_subclass(cls)
        weight._form = form
        return weight

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _ATTRIBUTES:
            return super().__torch_function__(func, types, args, kwargs)
        args, kwargs = tree_map_only(DenseWeight, lambda weight: weight._form(), (args, dict(kwargs or {})))
        return func(*args, **kwargs)
