"""Modules whose forward ends sub-layers by ``norm(residual + dropout(y))``: found by a trace, run by one kernel.

Under autocast the value at the start of a sub-layer is cast once there, for the products that read it, and the residual
is taken beside the cast (:class:`_CastApart`). Backward then adds the products' narrow gradient to the residual's
without a wide copy of it.
"""

from __future__ import annotations

import inspect
import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from comera import kernels
from comera.compatibility.autocast import autocast_type
from comera.dropout import Dropout
from comera.kernels import Fused
from comera.kernels.choice import fastest
from comera.layers import TTLinear
from comera.recomputing import StandIn, has_hooks, runs_as_written
from comera.tracing import traced

if TYPE_CHECKING:
    from torch.fx import Node

_SUMS = (operator.add, torch.add)
_DROPOUTS = (nn.Dropout, Dropout)
_LINEAR = (nn.Linear, TTLinear)


@dataclass(frozen=True)
class _ChildCall:
    """A call of a child; of a norm that ends a sub-layer, with what it normalises: a residual, a value, its dropout."""

    result: str
    child: str
    operands: tuple[str | None, ...]
    dropout: str | None = None
    ends: bool = False


class _CastApart(torch.autograd.Function):
    """Return a value in the type of products, and as it is; backward adds the gradients of both by one operation."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        ctx.wide = x.dtype
        return x.to(kind), x

    @staticmethod
    def backward(ctx: Any, dcast: torch.Tensor | None, dx: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        if dcast is None or dx is None:
            return dx if dcast is None else dcast.to(ctx.wide), None
        return dx + dcast, None


class FusedNorms(StandIn):
    """A forward that is calls of children and sums, whose norms run together with the sum and the dropout before them.

    Off a GPU that the kernels serve, without gradients, and under the compiler or ``torch.func`` it runs as written.

    Args:
        calls: the calls in their order; the last one gives the result.
        not_none: the arguments whose None would change the calls; then it runs as written.
        fused: as :func:`comera.functional.tt_feed_forward` takes it.
    """

    def __init__(self, module: nn.Module, calls: list[_ChildCall], not_none: frozenset[str], fused: Fused) -> None:
        super().__init__(module)
        self._calls, self._not_none, self._fused = calls, not_none, fused
        later = [{name for call in calls[place + 1 :] for name in call.operands} for place in range(len(calls))]
        results = {call.result for call in calls}
        self._last_uses = [
            (results & {*call.operands}) - used if len({*call.operands}) == len(call.operands) else set()
            for call, used in zip(calls, later, strict=True)
        ]
        children = [module._modules[call.child] for call in calls]
        readers = [{} if call.ends else _linear_readers(child) for call, child in zip(calls, children, strict=True)]
        # By call: values that are used again later and that only linear layers of the child read, with these layers.
        self._read_by_products = [
            {
                name: [layer for place in _places_of(name, call) for layer in found[place]]
                for name in {*call.operands} & used
                if all(place in found for place in _places_of(name, call))
            }
            for call, used, found in zip(calls, later, readers, strict=True)
        ]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(self._forward).bind(*args, **kwargs)
        given.apply_defaults()
        values: dict[str | None, Any] = {None: None}
        values.update(given.arguments)
        first = next(iter(given.arguments.values()), None)
        missing = any(given.arguments.get(name) is None for name in self._not_none)
        if missing or not isinstance(first, torch.Tensor) or not self._applies(first):
            return self._run(*args, **kwargs)
        for call, last, read in zip(self._calls, self._last_uses, self._read_by_products, strict=True):
            child = self._module._modules[call.child]
            assert child is not None
            cast: dict[str | None, torch.Tensor] = {}
            for name, layers in read.items():
                if kind := _type_of_products(child, layers, values[name]):
                    cast[name], values[name] = _CastApart.apply(values[name], kind)
            # Values go with their last use, as in the forward itself, so that no memory is held for longer.
            operands = [cast.get(name, values.pop(name) if name in last else values[name]) for name in call.operands]
            del cast
            if call.ends:
                dropout = None if call.dropout is None else self._module._modules[call.dropout]
                values[call.result] = self._end(child, dropout, operands)
            else:
                values[call.result] = child(*operands)
        return values[self._calls[-1].result]

    def _applies(self, x: torch.Tensor) -> bool:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not kernels.serve(x):
            return False
        if self._fused == "torch" or torch._C._are_functorch_transforms_active() or _has_any_global_hook():
            return False
        names = {name for call in self._calls if call.ends for name in (call.child, call.dropout) if name}
        children = [child for name in names if (child := self._module._modules.get(name)) is not None]
        known = (nn.LayerNorm, *_DROPOUTS)
        return len(children) == len(names) and all(type(one) in known and runs_as_written(one) for one in children)

    def _end(self, norm: Any, dropout: Any, operands: list[torch.Tensor]) -> torch.Tensor:
        """Return ``norm(residual + dropout(y))``, and empty the list of the two operands."""
        y, residual = operands.pop(), operands.pop()
        p = dropout.p if dropout is not None and dropout.training else 0.0
        if kernels.add_norm_served(residual, y, norm) and self._pays(norm, p, residual, y):
            return kernels.add_norm(residual, y, norm, p, _type_of_norm(residual, y))
        dropped = y if dropout is None else dropout(y)
        del y
        total = residual + dropped
        del residual, dropped
        result: torch.Tensor = norm(total)
        return result

    def _pays(self, norm: nn.LayerNorm, p: float, residual: torch.Tensor, y: torch.Tensor) -> bool:
        if self._fused == "kernels":
            return True
        out = _type_of_norm(residual, y)

        def in_torch(residual: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(residual + F.dropout(y, p), norm.normalized_shape, norm.weight, norm.bias, norm.eps)

        def by_kernel(residual: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return kernels.add_norm(residual, y, norm, p, out)

        ways = {"kernels": by_kernel, "torch": in_torch}
        key = ("add_norm", residual.dtype, y.dtype, out, y.numel().bit_length(), y.shape[-1], p > 0)
        otherwise = "torch" if y.dtype == torch.float32 else "kernels"
        return fastest(key, y.device, ways, lambda: (residual, y), otherwise) == "kernels"


def _type_of_norm(residual: torch.Tensor, y: torch.Tensor) -> torch.dtype:
    """Return the type of LayerNorm's result: under autocast FP32, else the sum's."""
    if autocast_type(y.device.type) is not None:
        return torch.float32
    return torch.promote_types(residual.dtype, y.dtype)


def _type_of_products(child: nn.Module, layers: list[str], x: Any) -> torch.dtype | None:
    """Return autocast's type if all that a child makes of a value is products in it, by its layers of these names."""
    wide = isinstance(x, torch.Tensor) and x.dtype == torch.float32 and x.requires_grad
    kind = autocast_type(x.device.type) if wide else None
    written = child.__dict__.get("forward")
    if kind is None or has_hooks(child) or not (written is None or isinstance(written, StandIn)):
        return None
    readers = [child.get_submodule(name) for name in layers]
    plain = all(type(one) in _LINEAR and getattr(one, "fp8", None) is None for one in readers)
    return kind if plain and all(one is child or runs_as_written(one) for one in readers) else None


def _places_of(name: str | None, call: _ChildCall) -> list[int]:
    return [place for place, operand in enumerate(call.operands) if operand == name]


def _linear_readers(child: nn.Module | None) -> dict[int, list[str]]:
    """Return the arguments that only linear layers read, by place, with the names of these layers; "" is the child."""
    if child is None or type(child) in _LINEAR:
        return {} if child is None else {0: [""]}
    was, found = child.training, []
    try:
        for child.training in (True, False):
            arguments = [node for node in traced(child) if node.op == "placeholder"]
            found.append(
                {
                    place: [str(user.target) for user in node.users]
                    for place, node in enumerate(arguments)
                    if node.users and all(_is_call(user, child) and user.args == (node,) for user in node.users)
                }
            )
    finally:
        child.training = was
    return found[0] if found[0] == found[1] else {}


def fuse_norms(model: nn.Module, fused: Fused = "auto") -> list[str]:
    """Have every module whose forward is calls of children and sums run its ends of sub-layers by one kernel each.

    An end is an ``nn.LayerNorm`` of a sum of two values, one of which may have passed dropout, as behind attention and
    feed-forward of an encoder whose blocks normalise last.

    Args:
        fused: as :func:`comera.functional.tt_feed_forward` takes it.

    Returns:
        The names of these modules.

    Example:
        >>> class End(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer, self.dropout, self.norm = nn.Linear(8, 8), nn.Dropout(0.1), nn.LayerNorm(8)
        ...
        ...     def forward(self, x):
        ...         return self.norm(x + self.dropout(self.layer(x)))
        >>> fuse_norms(nn.Sequential(End(), nn.LayerNorm(8)))
        ['0']
    """
    found = []
    for name, module in model.named_modules():
        has_norm = any(type(child) is nn.LayerNorm for child in module.children())
        if has_norm and "forward" not in module.__dict__:
            calls, not_none = _calls_of(module)
            if calls:
                module.forward = FusedNorms(module, calls, not_none, fused)
                found.append(name)
    return found


def _calls_of(module: nn.Module) -> tuple[list[_ChildCall], frozenset[str]]:
    """Return the calls of a forward, none if there is no end; and the arguments whose None would change them."""
    was, found = module.training, []
    names = list(inspect.signature(module.forward).parameters)
    not_none = frozenset[str]()
    try:
        for module.training in (True, False):
            calls = _fused_calls(module, {})
            found.append(calls)
            not_none |= {name for name in names if _fused_calls(module, {name: None}) != _with_none(calls, name)}
    finally:
        module.training = was
    in_one_way = found[0] == found[1] and any(call.ends for call in found[0])
    return (found[0], not_none) if in_one_way else ([], not_none)


def _with_none(calls: list[_ChildCall], name: str) -> list[_ChildCall]:
    """Return the calls with None in the place of an argument."""
    return [replace(call, operands=tuple(None if one == name else one for one in call.operands)) for call in calls]


def _fused_calls(module: nn.Module, arguments: dict[str, Any]) -> list[_ChildCall]:
    """Return the calls of one trace; none if the forward is more than calls of children and sums for ends."""
    calls: list[_ChildCall] = []
    sums: set[Node] = set()
    absorbed: set[Node] = set()  # sums and dropouts that run together with their norm
    result = None
    for node in traced(module, arguments):
        if node.op == "output":
            result = node.args[0]
        elif end := _end_of(node, module):
            residual, y, dropout = end
            absorbed |= {node.all_input_nodes[0], *([] if dropout is None else [dropout])}
            name = None if dropout is None else str(dropout.target)
            calls.append(_ChildCall(node.name, str(node.target), (_place(residual), _place(y)), name, ends=True))
        elif _is_call(node, module) and all(value is None or _is_node(value) for value in node.args):
            calls.append(_ChildCall(node.name, str(node.target), tuple(map(_place, node.args))))
        elif node.op == "call_function" and node.target in _SUMS:
            sums.add(node)
        elif node.op != "placeholder" and "_assert" not in str(node.target):
            return []
    calls = [call for call in calls if call.result not in {node.name for node in absorbed}]
    whole = bool(calls) and _is_node(result) and _place(result) == calls[-1].result
    return calls if whole and sums <= absorbed else []


def _is_node(value: object) -> bool:
    from torch.fx import Node

    return isinstance(value, Node)


def _is_call(node: Node, module: nn.Module) -> bool:
    """Return whether an operation is a call of a child without arguments by name."""
    return node.op == "call_module" and not node.kwargs and str(node.target) in module._modules


def _place(value: Any) -> str | None:
    """Return the name under which a value lies at a call."""
    return None if value is None else str(value.target if value.op == "placeholder" else value.name)


def _end_of(node: Node, module: nn.Module) -> tuple[Any, Any, Any] | None:
    """Return residual, value and dropout (or None) of a norm that ends a sub-layer; None for all else."""
    if not _is_call(node, module) or type(module._modules[str(node.target)]) is not nn.LayerNorm:
        return None
    total: Any = node.args[0]
    if not _is_node(total) or total.target not in _SUMS or len(total.users) > 1 or total.kwargs:
        return None
    pair = total.args
    if len(pair) != 2 or not all(map(_is_node, pair)):
        return None
    for residual, value in (pair, pair[::-1]):
        is_dropout = _is_call(value, module) and type(module._modules[str(value.target)]) in _DROPOUTS
        if is_dropout and len(value.users) == 1 and len(value.args) == 1:
            return residual, value.args[0], value
    return (*pair, None)
