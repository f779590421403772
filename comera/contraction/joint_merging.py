"""Merging the cores of all TT layers of a model in one batch per forward pass, equally shaped halves together.

A tensorized step is made of many small operations, so merging layer by layer costs more than its arithmetic. The halves
that are merged together belong to one call of the root module, whose forward has a stand-in (:class:`JointMerging`):
the first layer that runs inside it has all of them merged, and a layer takes its own only where they are what it would
merge itself. Everything else merges alone, which is slower and always right:

* a layer that runs outside the root's forward, or in another thread;
* a layer whose parameters are other objects than those that were merged, or have been changed since;
* under another grad mode than that of the call, or under saved-tensor hooks that the call was not entered with
  (activation checkpointing runs a region again after the call has ended, and must find the same operations);
* a layer that the first to run has left out, since so few tokens are cheaper by its own plan (:meth:`_Call.halves`);
* under ``torch.func`` transforms, while exporting, with sharded parameters.

Under ``torch.compile`` the stand-in merges at once, as the first operations of its graph. Either way the layers find
what belongs to their call in a place of their thread, which has its former content again when the call has ended,
however it ended. A compiled layer merges alone where its parameters or the grad mode are others than those of the
merge, and where it has forward pre-hooks, which may write to its parameters. What the compiler cannot see is a root
whose forward itself writes in place to the parameters of a layer that runs later in the same call: a graph has no
versions of tensors to compare. Such a root needs ``merge_jointly=False``.

Parameters stay where they are: nothing here writes to them or moves them.

Layers of a call that read one input, as query, key and value do, also share their first product
(:mod:`comera.contraction.shared_input`): the first of them that runs forms those of all, and each other one takes its
own if its halves are those of the call and its input is the very tensor, not written to since.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from comera.compatibility.autocast import autocast_type
from comera.contraction.merging import cast_together, merge_cores, merge_with_entries
from comera.contraction.plans import element_bytes_of, joint_halves_pay, machine_of
from comera.contraction.shared_input import stacked_products
from comera.recomputing import Notes, StandIn
from comera.tensor_train import TTShape

Halves = tuple[torch.Tensor, torch.Tensor]

#: Kinds of tensors that are whole and plain; a sharded one is of none of them.
_PLAIN = (nn.Parameter, torch.Tensor, FakeTensor)


class Layer(Protocol):
    """The members of :class:`comera.layers.TTLinear` that joint merging uses."""

    shape: TTShape
    threshold: float
    merge_tf32: bool
    packed_cores: nn.Parameter
    bias: nn.Parameter | None
    _parameters: dict[str, nn.Parameter | None]
    _forward_pre_hooks: Any

    @property
    def diagonals(self) -> nn.Parameter: ...


#: Layers with those that read one input together, themselves among them.
Siblings = Mapping[Any, Sequence[Layer]]


class _Merged(NamedTuple):
    """The halves of a layer and what they were made from."""

    halves: Halves
    source: tuple[Any, ...]


def _source(layer: Layer) -> tuple[Any, ...]:
    """Return the values that the halves of a layer depend on; while they are equal, merging gives the same halves."""
    packed, diagonals = layer.packed_cores, layer.diagonals
    settings = layer.shape, layer.threshold, layer.merge_tf32, autocast_type(packed.device.type)
    return (*_state(packed), *_state(diagonals), *settings)


def _state(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what differs once a tensor is another one or has been written to."""
    address = 0 if isinstance(tensor, FakeTensor) else tensor.data_ptr()
    return id(tensor), address, tensor._version, tensor.requires_grad


def _can_be_merged_jointly(layer: Layer) -> bool:
    tensors = (layer.packed_cores, layer.diagonals)
    return layer.shape.parameter_count > 0 and all(_is_plain(layer, tensor) for tensor in tensors)


def _is_plain(layer: Layer, tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a parameter of the layer that lies where the layer will find it."""
    # Pruning and parametrization replace a parameter by a tensor made anew when the layer runs.
    registered = any(tensor is parameter for parameter in layer._parameters.values())
    # Offloaded parameters are on the meta device until their layer runs.
    return type(tensor) in _PLAIN and registered and not tensor.is_inference() and not tensor.is_meta


def _mode() -> tuple[Any, ...]:
    """Return the state of autograd that an operation depends on: grad mode, and the hooks on saved tensors."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    while hooks is not None and isinstance(notes := getattr(hooks[0], "__self__", None), Notes):
        hooks = notes.outer  # it keeps less, of the same operations
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), None if hooks is None else id(hooks[0])


class _Shared(NamedTuple):
    """First products of layers that read one input, of those that have not run yet."""

    input: torch.Tensor
    version: int
    autocast: torch.dtype | None
    products: dict[Layer, torch.Tensor]


class _Call:
    """One call of a root module."""

    def __init__(self, layers: Iterable[Layer], siblings: Siblings) -> None:
        self.layers = dict.fromkeys(layers)  # a set with an order: that of merging must be the same in every run
        self.siblings, self.mode = siblings, _mode()
        self._merged: dict[torch.dtype | None, dict[Layer, _Merged]] = {}  # by the type of autocast
        self._biases: dict[torch.dtype, dict[Layer, tuple[torch.Tensor, tuple[Any, ...]]]] = {}
        self._shared: _Shared | None = None

    def halves(self, layer: Layer, x: torch.Tensor | None = None) -> Halves | None:
        """Return the halves of a layer, if they were merged jointly and are still those of its parameters.

        The first layer that asks has them merged, with ``x`` only those of layers for whose products with as many
        tokens they pay.
        """
        kind = autocast_type(layer.packed_cores.device.type)
        if kind not in self._merged:
            layers: Iterable[Layer] = self.layers
            if x is not None:
                tokens = max(x.numel() // layer.shape.in_features, 1)
                asked = (tokens, machine_of(x), element_bytes_of(x))
                if not joint_halves_pay(layer.shape, *asked):
                    return None
                layers = [each for each in layers if joint_halves_pay(each.shape, *asked)]
            self._merged[kind] = _merge_jointly(layers)
        found = self._merged[kind].get(layer)
        return found.halves if found is not None and found.source == _source(layer) else None

    def bias(self, layer: Layer) -> torch.Tensor | None:
        """Return the bias of a layer with halves of this call, under autocast in its type, cast with those of all."""
        bias = layer.bias
        kind = None if bias is None else autocast_type(bias.device.type)
        if bias is None or kind is None:
            return bias
        if kind not in self._biases:
            self._biases[kind] = _cast_jointly(self.layers, kind)
        cast, state = self._biases[kind].get(layer, (bias, None))
        return cast if state == _state(bias) else bias

    def product(self, layer: Layer, x: torch.Tensor) -> torch.Tensor | None:
        """Return the first product of a layer with halves of this call, formed with its siblings'; None without."""
        siblings, device = self.siblings.get(layer), x.device.type
        if siblings is None or type(x) not in _PLAIN or x.is_inference():
            return None
        autocast = autocast_type(device)
        shared = self._shared
        if shared is None or shared.input is not x or (shared.version, shared.autocast) != (x._version, autocast):
            shared = None
        if shared is None or layer not in shared.products:
            lefts = {each: halves[0] for each in siblings if (halves := self.halves(each)) is not None}
            if len(lefts) < 2:
                return None
            products = dict(zip(lefts, stacked_products(x, [*lefts.values()]), strict=True))
            shared = _Shared(x, x._version, autocast, products)
        product = shared.products.pop(layer)
        self._shared = shared if shared.products else None
        return product


def _merge_jointly(layers: Iterable[Layer]) -> dict[Layer, _Merged]:
    together: dict[tuple[Any, ...], list[Layer]] = {}
    for layer in filter(_can_be_merged_jointly, layers):
        packed, diagonals = layer.packed_cores, layer.diagonals
        kept = layer.threshold, layer.merge_tf32
        key = (*kept, packed.device, packed.dtype, packed.requires_grad, diagonals.requires_grad)
        together.setdefault(key, []).append(layer)
    merged: dict[Layer, _Merged] = {}
    for equal in together.values():
        shapes = [layer.shape for layer in equal]
        cores, entries = [layer.packed_cores for layer in equal], [layer.diagonals for layer in equal]
        halves, in_one = merge_with_entries(cores, entries, shapes, equal[0].threshold, equal[0].merge_tf32)
        merged |= {layer: _Merged(pair, _source(layer)) for layer, pair in zip(equal, halves, strict=True)}
        if in_one is not None and in_one.requires_grad:
            _last_entries[equal[0]] = in_one, [_state(layer.diagonals) for layer in equal]
    return merged


def _cast_jointly(layers: Iterable[Layer], kind: torch.dtype) -> dict[Layer, tuple[torch.Tensor, tuple[Any, ...]]]:
    """Return the biases of layers that autocast would cast, all of them in its type, with their states."""
    together: dict[tuple[Any, ...], list[tuple[Layer, nn.Parameter]]] = {}
    for layer in layers:
        bias = layer.bias
        if bias is not None and _is_plain(layer, bias) and bias.dtype not in (kind, torch.float64):
            together.setdefault((bias.device, bias.dtype, bias.requires_grad), []).append((layer, bias))
    cast: dict[Layer, tuple[torch.Tensor, tuple[Any, ...]]] = {}
    for equal in together.values():
        vectors = cast_together([bias for _, bias in equal], kind)
        cast |= {layer: (vector, _state(bias)) for (layer, bias), vector in zip(equal, vectors, strict=True)}
    return cast


#: The entries of the layers that were last merged together, by the first of these, and the states of their diagonals.
_last_entries: WeakKeyDictionary[Any, tuple[torch.Tensor, list[tuple[Any, ...]]]] = WeakKeyDictionary()


def take_entries(layers: Sequence[Any]) -> tuple[torch.Tensor, int] | None:
    """Return the entries of the first layers of these, as the last call merged them, and how many layers these are.

    A function of them has its gradient added to those of all diagonals at once, where each diagonal would take an
    operation. They are given once, and only while gradients are formed and nothing has changed since the call.
    """
    found = _last_entries.pop(layers[0], None) if torch.is_grad_enabled() else None
    if found is None or torch._C._are_functorch_transforms_active():
        return None
    entries, states = found
    same = [_state(layer.diagonals) for layer in layers[: len(states)]] == states
    return (entries, len(states)) if same else None


class _Calls(threading.local):
    """The calls that this thread is in, the outermost first."""

    def __init__(self) -> None:
        self.open: tuple[_Call, ...] = ()


_calls = _Calls()


def _call_of(layer: Layer) -> _Call | None:
    """Return the call of a root module that a layer runs in; None where it merges alone."""
    if not _calls.open or torch._C._are_functorch_transforms_active():
        return None
    mode = _mode()
    return next((call for call in _calls.open if call.mode == mode and layer in call.layers), None)


def jointly_merged_halves(layer: Layer) -> Halves | None:
    """Return a layer's halves from the call of a root that it runs in; None where it merges alone."""
    call = _call_of(layer)
    return None if call is None else call.halves(layer)


def jointly_merged(layer: Layer, x: torch.Tensor) -> tuple[Halves, torch.Tensor | None, torch.Tensor | None] | None:
    """Return :func:`jointly_merged_halves`, the bias, and for a shared input the first product, (R, T); else None."""
    call = _call_of(layer)
    halves = None if call is None else call.halves(layer, x)
    return None if call is None or halves is None else (halves, call.bias(layer), call.product(layer, x))


class _Traced(NamedTuple):
    """The halves of a layer in a graph that is being compiled, and what they were made from."""

    halves: Halves
    packed: torch.Tensor
    diagonals: torch.Tensor
    grad_enabled: bool


class _TracedHalves(threading.local):
    """The halves of the layers of the compiled call that this thread is in; empty outside of one."""

    def __init__(self) -> None:
        self.by_layer: dict[Layer, _Traced] = {}


_traced = _TracedHalves()


def compiled_halves(layer: Layer) -> Halves | None:
    """Return a compiled layer's halves from the call of its root; None where it merges alone."""
    found = _traced.by_layer.get(layer)
    if found is None or found.grad_enabled != torch.is_grad_enabled():
        return None
    same = found.packed is layer.packed_cores and found.diagonals is layer.diagonals
    return found.halves if same else None


def _can_be_merged_in_a_graph(layer: Layer) -> bool:
    tensors = (layer.packed_cores, layer.diagonals)
    plain = all(type(tensor) in _PLAIN and not tensor.is_meta for tensor in tensors)
    return plain and layer.shape.parameter_count > 0 and not layer._forward_pre_hooks


def _encoded(shapes: Iterable[TTShape]) -> list[int]:
    """Encode shapes as an operator takes them."""
    numbers: list[int] = []
    for shape in shapes:
        modes = (*shape.in_modes, *shape.out_modes)
        numbers += [len(shape.in_modes), shape.in_features, shape.out_features, *modes, *shape.ranks]
    return numbers


def _decoded(numbers: Sequence[int]) -> list[TTShape]:
    """Return the inverse of :func:`_encoded`."""
    shapes, rest = [], list(numbers)
    while rest:
        order, in_features, out_features, *rest = rest
        modes, ranks, rest = rest[: 2 * order], rest[2 * order : 4 * order - 1], rest[4 * order - 1 :]
        shapes.append(TTShape(in_features, out_features, tuple(modes[:order]), tuple(modes[order:]), tuple(ranks)))
    return shapes


def _merged_halves(
    shapes: Sequence[int],
    threshold: float,
    tf32: bool,
    packed: Sequence[torch.Tensor],
    diagonals: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    return [half for halves in merge_cores(packed, diagonals, _decoded(shapes), threshold, tf32) for half in halves]


# An operator, so that the compiler's front end takes the merge as one step. What it looks into gets a gradient for
# every input, zeros for a layer that took no part, which then would decay; autograd, which follows it, gives None.
_LIBRARY = torch.library.Library("comera", "FRAGMENT")
_LIBRARY.define(
    "merged_halves(int[] shapes, float threshold, bool tf32, Tensor[] packed, Tensor[] diagonals) -> Tensor[]"
)
_LIBRARY.impl("merged_halves", _merged_halves, "CompositeImplicitAutograd")


def _merge_in_a_graph(layers: Iterable[Layer]) -> dict[Layer, _Traced]:
    together: dict[tuple[Any, ...], list[Layer]] = {}
    for layer in layers:
        if _can_be_merged_in_a_graph(layer):
            packed, diagonals = layer.packed_cores, layer.diagonals
            kept = layer.threshold, layer.merge_tf32
            key = (*kept, packed.device, packed.dtype, packed.requires_grad, diagonals.requires_grad)
            together.setdefault(key, []).append(layer)
    merged: dict[Layer, _Traced] = {}
    for equal in together.values():
        cores, entries = [layer.packed_cores for layer in equal], [layer.diagonals for layer in equal]
        shapes = _encoded([layer.shape for layer in equal])
        first = equal[0]
        halves = torch.ops.comera.merged_halves(shapes, first.threshold, first.merge_tf32, cores, entries)
        for layer, left_RN, right_RM in zip(equal, halves[::2], halves[1::2], strict=True):
            merged[layer] = _Traced((left_RN, right_RM), layer.packed_cores, layer.diagonals, torch.is_grad_enabled())
    return merged


class JointMerging(StandIn):
    """Stands in for the forward of a root module, within whose calls its layers merge jointly.

    Args:
        root: gets the stand-in.
        layers: of the root, all that may be merged jointly.
        siblings: layers that read one input together.
    """

    def __init__(self, root: nn.Module, layers: Sequence[Layer], siblings: Siblings) -> None:
        super().__init__(root)
        self.layers, self.siblings = layers, siblings
        root.forward = self

    @classmethod
    def of(cls, root: nn.Module) -> JointMerging | None:
        """Return the one that stands in for the root's forward, if any."""
        forward = root.__dict__.get("forward")
        while isinstance(forward, StandIn) and not isinstance(forward, cls):
            forward = forward._given
        return forward if isinstance(forward, cls) else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._run(*args, **kwargs) if torch.compiler.is_exporting() else self._in_a_graph(*args, **kwargs)
        if hasattr(self._module, "_get_fsdp_state"):  # what FSDP2 adds to a module whose parameters it shards
            return self._run(*args, **kwargs)
        before = _calls.open
        try:
            _calls.open = (*before, _Call(self.layers, self.siblings))
            return self._run(*args, **kwargs)
        finally:
            _calls.open = before

    def _in_a_graph(self, *args: Any, **kwargs: Any) -> Any:
        before = _traced.by_layer
        merged = _merge_in_a_graph([layer for layer in self.layers if layer not in before])
        _traced.by_layer = {**before, **merged}
        try:
            return self._run(*args, **kwargs)
        finally:
            _traced.by_layer = before
