"""Keeping ranks instead of activations: what thin products put out is formed again in backward.

A tensorized layer's output is ``z · right + bias`` with z as wide as the middle rank, and autograd keeps z anyway. So
whatever keeps the output for backward, attention its query, GELU its input, need not: it can be formed from z again by
a thin product. The same holds for elementwise functions of such outputs: activations, dropout with its mask, a residual
added. Here is done so for the calls of one module, without a change of its code:

* a mode over torch's functions notes how each such tensor was made (its :class:`_Recipe`), by its storage;
* where autograd keeps a tensor whose storage has a recipe, a hook keeps the recipe instead;
* in backward the recipe is followed, once for all who wait for it. The operations, their shapes and their inputs are
  those of the forward pass, so the bits are too.

The rule looks at shapes, not at classes, so a factorised layer of any kind gains.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

#: A product with a matrix counts as thin where its result has at least so many times the columns of its left operand:
#: not the first layer of a dense feed-forward, whose result has four times as many.
_THIN = 8

#: Places of the left operand and of the matrix.
_PRODUCTS = {F.linear: (0, 1), torch.addmm: (1, 2), torch.mm: (0, 1), torch.matmul: (0, 1)}
_ELEMENTWISE = {F.gelu, F.relu, torch.relu, torch.Tensor.relu, F.silu, torch.tanh, torch.Tensor.tanh, F.tanh, torch.pow}
_ELEMENTWISE |= {torch.Tensor.pow, torch.Tensor.__pow__, torch.Tensor.mul, torch.mul, torch.Tensor.__mul__}
_ELEMENTWISE |= {torch.Tensor.__rmul__, torch.Tensor.div, torch.div, torch.Tensor.__truediv__}
_SUMS = {torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__}

_NOTED = {*_PRODUCTS, *_ELEMENTWISE, *_SUMS}


class _Operand:
    """A tensor that a recipe needs as it was: kept, and refused once it has been written to."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._version = tensor.detach(), tensor._version

    def value(self) -> torch.Tensor:
        if self._tensor._version != self._version:
            raise RuntimeError(
                "a tensor that backward needs has been changed by an operation in place since the forward pass; change "
                'it after backward, or tensorize with recompute="none" if it is an input of a recomputed activation.'
            )
        return self._tensor


class _Recipe:
    """How a tensor is made anew from operands and other recipes; the tensor is kept while others wait for it."""

    def __init__(self, make: Callable[..., torch.Tensor], inputs: list[Any], result: torch.Tensor, adds: bool) -> None:
        self._make, self._inputs, self.version, self.adds = make, inputs, result._version, adds
        device = result.device.type
        kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        self._autocast = device, kind
        self.waiting = 0
        self._value: torch.Tensor | None = None

    def value(self) -> torch.Tensor:
        """The tensor, in the layout that it had; kept until nobody waits for it."""
        if self._value is not None:
            return self._value
        device, kind = self._autocast
        inputs = [value.value() if isinstance(value, _Operand | _Recipe) else value for value in self._inputs]
        with torch.no_grad(), torch.autocast(device, kind, enabled=kind is not None, cache_enabled=False):
            value = self._make(*inputs)
        if self.waiting:
            self._value = value
        return value

    def taken(self) -> None:
        """One of those that waited has its tensor."""
        self.waiting -= 1
        if self.waiting <= 0:
            self._value = None


class _View:
    """A tensor that autograd would keep, as a view of a recipe's."""

    def __init__(self, recipe: _Recipe, tensor: torch.Tensor) -> None:
        self._recipe, self._place = recipe, (tensor.shape, tensor.stride(), tensor.storage_offset())
        recipe.waiting += 1

    def tensor(self) -> torch.Tensor:
        value = self._recipe.value()
        self._recipe.taken()
        return value.as_strided(*self._place)


class _MaskedDropout(torch.autograd.Function):
    """Dropout by the CPU's law and random numbers, with a mask of a byte per entry instead of four."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
        ctx.save_for_backward(mask)
        ctx.p = p
        return _masked(x, mask, p)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        [mask] = ctx.saved_tensors
        return _masked(gradient, mask, ctx.p), None, None


def _masked(x: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    return x * mask.to(x.dtype).div_(1 - p)


class Notes(TorchFunctionMode):
    """Notes during one call how tensors are made, and packs what autograd keeps accordingly."""

    def __init__(self) -> None:
        super().__init__()
        self._recipes: dict[int, tuple[weakref.ref[torch.UntypedStorage], _Recipe]] = {}
        self.outer = torch._C._autograd._top_saved_tensors_default_hooks(True)

    def pack(self, tensor: torch.Tensor) -> Any:
        recipe = self._recipe(tensor)
        if recipe is not None:
            return _View(recipe, tensor)
        if self.outer is not None:
            return (self.outer[0](tensor),)
        return _Operand(tensor)

    def unpack(self, packed: Any) -> torch.Tensor:
        if isinstance(packed, _View):
            return packed.tensor()
        return packed.value() if isinstance(packed, _Operand) else self.outer[1](packed[0])

    def _recipe(self, tensor: Any) -> _Recipe | None:
        if not isinstance(tensor, torch.Tensor) or not self._recipes:
            return None
        found = self._recipes.get(tensor.untyped_storage()._cdata)
        return found[1] if found is not None and found[1].version == tensor._version else None

    def _note(self, result: torch.Tensor, make: Callable[..., torch.Tensor], inputs: list[Any], adds: bool) -> None:
        storage = result.untyped_storage()
        key = storage._cdata
        kept = [self._input(value) for value in inputs]
        recipe = _Recipe(make, kept, result, adds)
        self._recipes[key] = weakref.ref(storage, lambda _: self._recipes.pop(key, None)), recipe

    def _input(self, value: Any) -> Any:
        """A tensor as a view of its recipe, if it has one, else itself; anything else as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        recipe = self._recipe(value)
        return _Operand(value) if recipe is None else _Inner(recipe, value)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout and self._packs():
            return self._dropout(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in _NOTED and result.requires_grad and self._packs():
            self._look_at(func, args, kwargs, result)
        return result

    def _packs(self) -> bool:
        """Whether the hooks in force are those of this call; a checkpointed region has its own and runs again whole."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return hooks is not None and getattr(hooks[0], "__self__", None) is self

    def _look_at(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> None:
        if func in _PRODUCTS and len(args) > max(_PRODUCTS[func]):
            left, right = (args[place] for place in _PRODUCTS[func])
            if not kwargs and right.dim() == 2 and left.shape[-1] * _THIN <= result.shape[-1]:
                self._note(result, func, list(args), adds=False)
        elif func in _ELEMENTWISE or func in _SUMS:
            recipes = [recipe for recipe in map(self._recipe, args) if recipe is not None]
            adds = func in _SUMS
            same_shape = all(not isinstance(a, torch.Tensor) or a.dim() == 0 or a.shape == result.shape for a in args)
            # A chain of sums, as of residuals over blocks, would be followed back to its beginning.
            if (
                recipes
                and same_shape
                and not {"inplace", "out"} & {*kwargs}
                and not (adds and any(r.adds for r in recipes))
            ):
                made = (lambda *a: func(*a, **kwargs)) if kwargs else func
                self._note(result, made, list(args), adds or any(recipe.adds for recipe in recipes))

    def _dropout(self, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or inplace or not 0 < p < 1 or not torch.is_grad_enabled() or not input.requires_grad:
            return F.dropout(input, p, training, inplace)
        if input.is_cuda:
            result, mask = torch.native_dropout(input, p, True)
            again: Callable[..., torch.Tensor] = torch.ops.aten.native_dropout_backward
            inputs = [input, mask, 1 / (1 - p)]
        else:
            mask = torch.empty_like(input).bernoulli_(1 - p).bool()
            result, again, inputs = _MaskedDropout.apply(input, mask, p), _masked, [input, mask, p]
        if (recipe := self._recipe(input)) is not None:
            self._note(result, again, inputs, recipe.adds)
        return result


class _Inner(_Operand):
    """An input of a recipe that is itself a view of a recipe's tensor."""

    def __init__(self, recipe: _Recipe, tensor: torch.Tensor) -> None:
        self._recipe, self._place = recipe, (tensor.shape, tensor.stride(), tensor.storage_offset())

    def value(self) -> torch.Tensor:
        return self._recipe.value().as_strided(*self._place)


class RecomputingForward:
    """Stands in for ``forward`` of one module, whose calls keep ranks instead of activations."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._given = module.__dict__.get("forward")  # one that the module has of its own

    @property
    def _forward(self) -> Callable[..., Any]:
        return self._given or type(self._module).forward.__get__(self._module)

    @property
    def __signature__(self) -> inspect.Signature:  # the Trainer of Hugging Face chooses columns by it
        return inspect.signature(self._forward)

    @property
    def __code__(self) -> Any:  # torch.export names its inputs by it
        return self._forward.__code__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self._forward
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
            return forward(*args, **kwargs)
        notes = Notes()
        with notes, torch.autograd.graph.saved_tensors_hooks(notes.pack, notes.unpack):
            return forward(*args, **kwargs)


def keep_ranks(module: nn.Module) -> None:
    """Have the calls of a module keep ranks instead of activations, whatever thin products they contain.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 4), nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 1))
        >>> keep_ranks(model)
        >>> model(torch.ones(2, 64)).sum().backward()
    """
    if not isinstance(module.__dict__.get("forward"), RecomputingForward):
        module.forward = RecomputingForward(module)
