"""The ``weight`` of a tensorized layer: the dense matrix, formed by the operation that uses it.

Models read a layer's weight not only to multiply with it: T5 reads its dtype eight times a pass. Of a
:class:`DenseWeight` such attributes are had without the entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map_only

#: Attributes and operations that do not depend on the entries.
_ATTRIBUTES = {
    *(getattr(torch.Tensor, name).__get__ for name in ("device", "dtype", "is_cuda", "is_meta", "layout", "ndim")),
    *(getattr(torch.Tensor, name).__get__ for name in ("requires_grad", "shape", "itemsize", "nbytes")),
    *(getattr(torch.Tensor, name) for name in ("__len__", "dim", "element_size", "get_device", "is_complex")),
    *(getattr(torch.Tensor, name) for name in ("is_floating_point", "ndimension", "nelement", "numel", "size")),
    *(torch.is_complex, torch.is_floating_point, torch.numel),
}


#: Through which code writes to a tensor beside its gradient. What ``detach`` returns is a copy to do anything with.
_DATA = getattr(torch.Tensor, "data").__get__  # noqa: B009 - a descriptor

#: Operations that change whether a tensor has a gradient.
_REQUIRES_GRAD = {getattr(torch.Tensor, "requires_grad").__set__, torch.Tensor.requires_grad_}  # noqa: B009

#: Operations that write to their first argument, beside those whose names end in an underscore.
_WRITING = {"__set__", "__setitem__"} | {f"__i{name}__" for name in ("add", "sub", "mul", "div", "truediv", "floordiv")}

#: Methods that act on their own tensor, without effect on one that is formed anew.
_HOOKS = {"register_hook", "register_post_accumulate_grad_hook", "retain_grad"}


class DenseWeight(torch.Tensor):
    """A tensor of some shape, type and device whose entries are formed anew by every operation that needs them.

    Its ``data`` is such a tensor too, without a gradient. Under ``FakeTensorMode`` it is a fake tensor of that shape.

    Args:
        form: gives the entries, with a gradient where it is enabled.
        shape: of the entries.
        like: a tensor of their type, on their device.
        requires_grad: whether they have a gradient, where it is enabled.

    Raises:
        RuntimeError: from an operation that writes to it or hooks it, which would have no effect.

    Example:
        >>> weight = DenseWeight(lambda: torch.ones(2, 3), (2, 3), like=torch.ones(1))
        >>> weight.shape, weight.dtype, weight.sum()
        (torch.Size([2, 3]), torch.float32, tensor(6.))
    """

    _form: Callable[[], torch.Tensor]
    _trained: bool

    #: By this mark transformers draws no entries behind a loading, as GPT-2 does for its output projections.
    _is_hf_initialized = True

    @staticmethod
    def __new__(
        cls, form: Callable[[], torch.Tensor], shape: Sequence[int], like: torch.Tensor, requires_grad: bool = False
    ) -> DenseWeight:
        # One number stands for all entries: NaN, lest anything that passes by __torch_function__ goes unnoticed.
        number = torch.full((), math.nan, dtype=like.dtype, device=like.device)
        entries = number.expand(shape).requires_grad_(requires_grad and torch.is_grad_enabled())
        if isinstance(entries, FakeTensor):  # it has no entries, and can be of no class but its own
            return entries  # type: ignore[return-value]
        weight = entries.as_subclass(cls)
        weight._form, weight._trained = form, requires_grad
        return weight

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _ATTRIBUTES:
            return super().__torch_function__(func, types, args, kwargs)
        if func == _DATA:
            weight = args[0]
            return DenseWeight(lambda: weight._form().detach(), weight.shape, like=weight)
        _refuse_writing(func, args, kwargs)
        if func in _REQUIRES_GRAD:  # which is as it is wanted
            return args[0]
        args, kwargs = tree_map_only(DenseWeight, lambda weight: weight._form(), (args, kwargs))
        return func(*args, **kwargs)


def weight_of(
    form: Callable[[], torch.Tensor], shape: Sequence[int], parameters: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return the ``weight`` of a layer whose entries follow from parameters: a :class:`DenseWeight` where it can be.

    Compilation leaves out what is not used, and ``torch.func`` allows no tensor that only looks as if it had entries:
    there it is formed.

    Example:
        >>> core = torch.nn.Parameter(torch.ones(1))
        >>> weight_of(lambda: core.expand(2, 3), (2, 3), [core]).requires_grad
        True
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return form()
    return DenseWeight(form, shape, parameters[0], any(parameter.requires_grad for parameter in parameters))


def _refuse_writing(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise RuntimeError if an operation would change the entries, or an attribute, of a :class:`DenseWeight`."""
    name, given = getattr(func, "__name__", ""), (*args, *kwargs.values())
    in_place = name in _WRITING or (name.endswith("_") and not name.startswith("__")) or bool(kwargs.get("inplace"))
    written = tree_leaves([given[:1] if in_place or name in _HOOKS else (), kwargs.get("out")])
    weight = next((each for each in written if isinstance(each, DenseWeight)), None)
    if weight is None:
        return
    if func in _REQUIRES_GRAD:
        wanted = bool(given[1]) if len(given) > 1 else True
        if wanted == weight._trained:
            return
        remedy = f"call requires_grad_({wanted}) of the layer, or of its packed_cores and diagonals"
    elif name in _HOOKS:
        remedy = "call it on the layer's packed_cores and diagonals"
    elif name == "__set__" and given[1] is None:  # such as the gradient, which it never has
        return
    else:
        remedy = (
            "write to the layer's packed_cores, put a layer of its class's from_dense(weight, ...) in its place, or "
            "write before comera.tensorize(model, plan, start='weights'); weight.detach().clone() is a copy to write to"
        )
    action = "an assignment" if name in ("__set__", "__setitem__") else name
    raise RuntimeError(
        f"{action} has no effect on the weight of a tensorized layer, which each operation forms anew from cores; "
        f"{remedy}."
    )
