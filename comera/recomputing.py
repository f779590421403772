"""Keeping ranks instead of activations: what thin products put out is formed again in backward.

A tensorized layer's output is ``z · right + bias`` with z as wide as the middle rank, and autograd keeps z anyway. So
whatever keeps the output for backward, attention its query, GELU its input, need not: it can be formed from z again by
a thin product. The same holds for elementwise functions of such outputs: activations, dropout with its mask, a residual
added. Here is done so for the calls of one module, without a change of its code:

* a mode over torch's functions notes how each such tensor was made (its :class:`_Recipe`), by its storage;
* where autograd keeps a tensor whose storage has a recipe, a hook keeps the recipe instead;
* in backward the recipe is followed, once for all who wait for it. The operations, their shapes and their inputs are
  those of the forward pass, so the bits are too.

The rule goes by shapes, not by classes, so a factorised layer of any kind gains. Masks of dropout are kept as bits.

A recipe must end somewhere, or it would lead back to the beginning of the model. Sums of two tensors are where chains
grow, residual by residual, so that a sum of a sum is kept. Within a block of a model it need not be: there the block's
input is what every recipe ends at, and norms, of the input too, and attention, with its random numbers, are formed
again.

What stays wide is what recipes end at: the inputs of narrower products, and attention's output.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import ParametrizationList
from torch.overrides import TorchFunctionMode

from comera.compatibility.autocast import autocast_of, autocast_type
from comera.dropout import applies, dropout, in_bits
from comera.low_precision.products import product

#: Tensors that are formed again in backward (:func:`keep_ranks`).
Recompute = Literal["none", "outputs", "block"]

_SDPA = F.scaled_dot_product_attention

#: A product with a matrix counts as thin where its result has at least so many times the columns of its left operand:
#: not the first layer of a dense feed-forward, whose result has four times as many. And its operands together are
#: smaller than its result: not the activations times the narrow matrix, whose result is the one to keep.
_THIN = 8

#: Places of the left operand and of the matrix.
_PRODUCTS = {F.linear: (0, 1), torch.addmm: (1, 2), torch.mm: (0, 1), torch.matmul: (0, 1), product: (0, 1)}
_ELEMENTWISE = {F.gelu, F.relu, torch.relu, torch.Tensor.relu, F.silu, torch.tanh, torch.Tensor.tanh, F.tanh, torch.pow}
_ELEMENTWISE |= {torch.Tensor.pow, torch.Tensor.__pow__, torch.Tensor.mul, torch.mul, torch.Tensor.__mul__}
_ELEMENTWISE |= {torch.Tensor.__rmul__, torch.Tensor.div, torch.div, torch.Tensor.__truediv__}
_SUMS = {torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__}
_NORMS = {F.layer_norm, F.rms_norm}

_CASTS = {torch.Tensor.to, torch.Tensor.float, torch.Tensor.bfloat16, torch.Tensor.half, torch.Tensor.type_as}

_NOTED = {*_PRODUCTS, *_CASTS, *_ELEMENTWISE, *_SUMS, *_NORMS, torch.cat}


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
    """Recipe that makes a tensor anew from operands and other recipes; the tensor is kept while others wait for it."""

    def __init__(self, make: Callable[..., torch.Tensor], inputs: list[Any], result: torch.Tensor, adds: bool) -> None:
        self._make, self._inputs, self.adds = make, inputs, adds
        device = result.device.type
        self._autocast = device, autocast_type(device)
        self.waiting = 0
        self._value: torch.Tensor | None = None

    def value(self) -> torch.Tensor:
        """Return the tensor, in the layout that it had; kept until nobody waits for it."""
        if self._value is not None:
            return self._value
        device, kind = self._autocast
        inputs = [value.value() if isinstance(value, _Operand | _Recipe) else value for value in self._inputs]
        with torch.no_grad(), autocast_of(device, kind):
            value = self._make(*inputs)
        if self.waiting:
            self._value = value
        return value

    def taken(self) -> None:
        """Note that one of the waiting recipes has its tensor."""
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


class _Attention:
    """Attention formed again, together with what its backward pass needs, which waits here for it."""

    def __init__(self, dropout_p: float, device: torch.device, options: dict[str, Any]) -> None:
        self._options = {"dropout_p": dropout_p, **options}
        self._devices = [device] if device.type == "cuda" else []
        self._random = _random_states(device) if dropout_p else None
        self._autocast = device.type, autocast_type(device.type)
        self._formed: tuple[torch.Tensor, list[torch.Tensor]] | None = None

    def once(self, inputs: Sequence[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        return _SDPA(inputs[0], inputs[1], inputs[2], mask, **self._options)

    def again(self, *inputs: Any) -> torch.Tensor:
        """Repeat attention of query, key, value and mask."""
        leaves, mask = [x.detach() for x in inputs[:3]], inputs[3]
        with (
            torch.random.fork_rng(self._devices, enabled=self._random is not None),
            autocast_of(*self._autocast),
            torch.enable_grad(),
        ):
            if self._random is not None:
                _set_random_states(self._random, *self._devices)
            output = self.once([leaf.requires_grad_() for leaf in leaves], mask)
        self._formed = output, leaves
        return output.detach()

    def gradients(self, gradient: torch.Tensor, *inputs: Any) -> tuple[torch.Tensor, ...]:
        if self._formed is None:
            self.again(*inputs)
        assert self._formed is not None
        (output, leaves), self._formed = self._formed, None
        return torch.autograd.grad(output, leaves, gradient)


def _random_states(device: torch.device) -> tuple[torch.Tensor, ...]:
    return (torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else []))


def _set_random_states(states: tuple[torch.Tensor, ...], *devices: torch.device) -> None:
    torch.set_rng_state(states[0])
    for state, device in zip(states[1:], devices, strict=True):
        torch.cuda.set_rng_state(state, device)


class _AttentionFunction(torch.autograd.Function):
    """Attention that keeps what its inputs are made from, and no output."""

    @staticmethod
    def forward(ctx: Any, attention: _Attention, *inputs: Any) -> torch.Tensor:
        ctx.attention = attention
        ctx.save_for_backward(*inputs)
        return attention.once(inputs[:3], inputs[3])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, *ctx.attention.gradients(gradient, *ctx.saved_tensors), None


class _ByStorage:
    """Map from tensors to recipes by storage, valid while the storage lives and is not written to."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[torch.UntypedStorage], int, _Recipe]] = {}

    def put(self, tensor: torch.Tensor, recipe: _Recipe) -> None:
        storage = tensor.untyped_storage()
        key, found = storage._cdata, self._found
        found[key] = weakref.ref(storage, lambda _: found.pop(key, None)), tensor._version, recipe

    def of(self, tensor: torch.Tensor) -> _Recipe | None:
        if not self._found:
            return None
        known = self._found.get(tensor.untyped_storage()._cdata)
        return known[2] if known is not None and known[1] == tensor._version else None


def _is_cast(result: Any, source: torch.Tensor) -> bool:
    """Return whether a tensor has the values of another in another type, in the same order in memory."""
    return (
        isinstance(result, torch.Tensor)
        and result.dtype != source.dtype
        and (result.shape, result.stride()) == (source.shape, source.stride())
        and _is_whole(result)
        and _is_whole(source)
    )


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is floating, wider than FP8, and the only one of its storage."""
    wide = tensor.is_floating_point() and tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return wide and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _named(func: Callable[..., torch.Tensor], positional: int, names: Sequence[str]) -> Callable[..., torch.Tensor]:
    """Return ``func`` with the arguments behind the positional ones given by name; it stores none of them."""
    return lambda *values: func(*values[:positional], **dict(zip(names, values[positional:], strict=True)))


class Notes(TorchFunctionMode):
    """Notes during one call how tensors are made, and packs what autograd keeps accordingly.

    Args:
        of_block: the call is that of a block, whose input may be where every recipe ends.
    """

    def __init__(self, of_block: bool = False) -> None:
        super().__init__()
        self._of_block = of_block
        self._recipes = _ByStorage()
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
        return self._recipes.of(tensor) if isinstance(tensor, torch.Tensor) else None

    def _note(self, result: torch.Tensor, make: Callable[..., torch.Tensor], inputs: list[Any], adds: bool) -> None:
        kept = [self._input(value) for value in inputs]
        self._recipes.put(result, _Recipe(make, kept, result, adds))

    def _input(self, value: Any) -> Any:
        """Return a tensor as a view of its recipe, if it has one, else itself; anything else as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        recipe = self._recipe(value)
        if recipe is None:
            return _Operand(value)
        return _Inner(recipe, value)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        own: Any = {F.dropout: self._dropout, dropout: self._own_dropout, _SDPA: self._attention}.get(func)
        if own is not None and torch.is_grad_enabled() and args and args[0].requires_grad and self._packs():
            return own(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in _NOTED and result.requires_grad and self._packs():
            self._look_at(func, args, kwargs, result)
        return result

    def _packs(self) -> bool:
        """Return whether the hooks in force are this call's; a checkpointed region has its own and runs again whole."""
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return hooks is not None and getattr(hooks[0], "__self__", None) is self

    def _look_at(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> None:
        if func in _PRODUCTS and len(args) > max(_PRODUCTS[func]):
            left, right = (args[place] for place in _PRODUCTS[func])
            thin = left.shape[-1] * _THIN <= result.shape[-1] and left.numel() + right.numel() <= result.numel()
            if not kwargs and right.dim() == 2 and thin:
                self._note(result, func, list(args), adds=False)
        elif func in _ELEMENTWISE or func in _SUMS:
            recipes = [recipe for recipe in map(self._recipe, args) if recipe is not None]
            adds = func in _SUMS and all(isinstance(a, torch.Tensor) and a.dim() for a in args[:2])
            same_shape = all(not isinstance(a, torch.Tensor) or a.dim() == 0 or a.shape == result.shape for a in args)
            # A chain of sums, as of residuals over blocks, would be followed back to its beginning.
            ends = self._of_block or not (adds and any(recipe.adds for recipe in recipes))
            if recipes and same_shape and ends and not {"inplace", "out"} & {*kwargs}:
                made, inputs = _named(func, len(args), [*kwargs]), [*args, *kwargs.values()]
                self._note(result, made, inputs, adds or any(recipe.adds for recipe in recipes))
        elif func in _CASTS:
            self._look_at_cast(_named(func, len(args), [*kwargs]), [*args, *kwargs.values()], result)
        elif func is torch.cat:
            if not kwargs.keys() - {"dim"}:
                self._look_at_joined(result, *args, **kwargs)
        elif self._of_block:  # a norm; its input is kept anyway, if it has no recipe
            recipe = self._recipe(args[0])
            adds = recipe is not None and recipe.adds
            self._note(result, _named(func, len(args), [*kwargs]), [*args, *kwargs.values()], adds)

    def _look_at_cast(self, make: Callable[..., torch.Tensor], inputs: list[Any], result: torch.Tensor) -> None:
        """Note a copy in another type of a tensor that has a recipe."""
        if _is_cast(result, inputs[0]) and (recipe := self._recipe(inputs[0])) is not None:
            self._note(result, make, inputs, recipe.adds)

    def _look_at_joined(self, result: torch.Tensor, tensors: Sequence[torch.Tensor], dim: int = 0) -> None:
        """Note keys and values behind those of an empty cache: a copy of tensors with a recipe."""
        recipes = [self._recipe(tensor) for tensor in tensors if tensor.numel()]
        if len(recipes) == 1 and recipes[0] is not None:
            self._note(result, lambda *parts: torch.cat(parts, dim), list(tensors), recipes[0].adds)

    def _dropout(self, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or inplace or not 0 < p < 1:
            return F.dropout(input, p, training, inplace)
        return self._dropped(input, p, own_law=False)

    def _own_dropout(self, input: torch.Tensor, p: float = 0.5, training: bool = True) -> Any:
        if not applies(input, p, training):
            return self._dropout(input, p, training)
        return self._dropped(input, p, own_law=True)

    def _dropped(self, input: torch.Tensor, p: float, own_law: bool) -> torch.Tensor:
        result, again, bits, scale = in_bits(input, p, own_law)
        if (recipe := self._recipe(input)) is not None:
            self._note(result, again, [input, bits, scale], recipe.adds)
        return result

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        **options: Any,
    ) -> Any:
        inputs = [query, key, value, attn_mask]
        known = all(self._recipe(x) is not None for x in inputs[:3])
        captured = query.is_cuda and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if not self._of_block or not known or captured or (attn_mask is not None and attn_mask.requires_grad):
            return _SDPA(query, key, value, attn_mask, dropout_p, **options)
        attention = _Attention(dropout_p, query.device, options)
        result = _AttentionFunction.apply(attention, *inputs)
        self._note(result, attention.again, inputs, adds=False)
        return result


class _Inner(_Operand):
    """An input of a recipe that is itself a view of a recipe's tensor."""

    def __init__(self, recipe: _Recipe, tensor: torch.Tensor) -> None:
        self._recipe, self._place = recipe, (tensor.shape, tensor.stride(), tensor.storage_offset())

    def value(self) -> torch.Tensor:
        return self._recipe.value().as_strided(*self._place)


class StandIn:
    """Stands in for ``forward`` of one module."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._given = module.__dict__.get("forward")  # one that the module has of its own

    @property
    def _forward(self) -> Callable[..., Any]:
        return self._given or type(self._module).forward.__get__(self._module)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward itself; calling the bound method would, behind a graph break, call its replacement."""
        if self._given is not None:
            return self._given(*args, **kwargs)
        return type(self._module).forward(self._module, *args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:  # the Trainer of Hugging Face chooses columns by it
        return inspect.signature(self._forward)

    @property
    def __code__(self) -> Any:  # torch.export names its inputs by it
        return self._forward.__code__


def runs_as_written(module: nn.Module) -> bool:
    """Return whether calling a module is calling its class's forward, and nothing more.

    Example:
        >>> runs_as_written(nn.Linear(2, 2))
        True
    """
    return "forward" not in module.__dict__ and not has_hooks(module)


def has_hooks(module: nn.Module) -> bool:
    """Return whether calling a module, or its backward pass, runs hooks.

    Example:
        >>> has_hooks(nn.Linear(2, 2))
        False
    """
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


class RecomputingForward(StandIn):
    """A forward whose calls keep ranks instead of activations."""

    def __init__(self, module: nn.Module, of_block: bool = False) -> None:
        super().__init__(module)
        self._of_block = of_block

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
            return self._run(*args, **kwargs)
        notes = Notes(self._of_block)
        with notes, torch.autograd.graph.saved_tensors_hooks(notes.pack, notes.unpack):
            return self._run(*args, **kwargs)


def keep_ranks(module: nn.Module, recompute: Recompute = "outputs") -> None:
    """Have the calls of a module keep ranks instead of activations, whatever thin products they contain.

    Args:
        recompute: ``"outputs"``: what thin products put out, and elementwise functions of it. ``"block"``: in the
            blocks of the module, everything between the block's input and the rank-wide activations, attention and
            norms with it. Blocks are the entries of the outermost ``nn.ModuleList``, or the module itself if it has
            none. ``"none"`` changes nothing.

    Raises:
        ValueError: an unknown value.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 4), nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 1))
        >>> keep_ranks(model)
        >>> model(torch.ones(2, 64)).sum().backward()
    """
    check_recompute(recompute)
    blocks = set(blocks_of(module)) or {module} if recompute == "block" else set()
    for each in [] if recompute == "none" else {module, *blocks}:
        if not isinstance(each.__dict__.get("forward"), RecomputingForward):
            each.forward = RecomputingForward(each, each in blocks)


def check_recompute(recompute: str) -> None:
    """Raise ValueError over an unknown value."""
    if recompute not in get_args(Recompute):
        raise ValueError(f"recompute is {recompute!r}; allowed: {', '.join(get_args(Recompute))}.")


def blocks_of(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks of a model: the entries of its outermost ``nn.ModuleList``, or of several side by side.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 3)]))
        >>> [block.out_features for block in blocks_of(model)]
        [2, 3]
    """
    for child in module.children():
        is_list = isinstance(child, nn.ModuleList) and not isinstance(child, ParametrizationList)
        yield from child.children() if is_list else blocks_of(child)
