"""Closing tensorized layers whose output no longer reaches the loss.

A linear layer with a bond that is closed as a whole puts out its bias, an embedding zeros, whatever goes in. So what
reached the loss through such layers alone reaches it no longer: where the output projection of attention is closed,
query, key and value of that block do nothing, and yet count. Small gradients do not tell them apart from layers that
learn slowly, and gradients of one batch that are zero may be so by chance; the graph of the loss does:

* One forward pass is recorded by autograd. Every call of a tensorized layer becomes a node that leads from its output
  to its inputs, so that the graph is one of what depends on what, whatever the values are.
* The graph is followed back from the loss twice, through all layers, and only through layers that are not closed. A
  layer that the first walk finds and the second does not is used, and each way from it to the loss leads through a
  closed layer. By the chain rule its gradient is zero, exactly and for every batch that takes this graph.
* What autograd does not record, such as ``detach``, ``argmax`` or a branch on a value, may lead to the loss as well.
  The found layers therefore get other cores for one more pass, and only those stay found under which the loss is the
  same to the bit.

Limits. A model whose graph depends on the batch must be given one in which its layers are used as they ever are; a
layer that the pass does not use at all is left alone. Zeros of arithmetic are not seen: attention over keys that are
all equal, since their layer is closed, is uniform whatever the queries are, and the layer of the queries is kept. Nor
are closed layers whose ``weight`` is read instead of their being called, as ``nn.MultiheadAttention`` does with its
output projection: what lies behind them is kept. A closed rank may be opened again by an optimizer's momentum, and with
it the way that it barred; truncate at once.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from comera.compatibility.arguments import check_callable, check_module
from comera.layers import TensorTrainLayer, TiedTTMLinear
from comera.truncation import layers_by_cores, refuse_distributed_layers

#: Layers that share their cores, under the cores.
Chains = dict[torch.Tensor, list[TensorTrainLayer]]


class _Passage(torch.autograd.Function):
    """A node from the output of a layer to its inputs; gradients go the usual way, by the output's own graph."""

    @staticmethod
    def forward(
        ctx: Any, layer: TensorTrainLayer, output: torch.Tensor, _: torch.Tensor, *inputs: torch.Tensor
    ) -> torch.Tensor:
        ctx.passage_of, ctx.count = layer, len(inputs)
        return output.clone()  # what follows may write to it

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return None, gradient, None, *([None] * ctx.count)


def _is_closed(layer: TensorTrainLayer) -> bool:
    return not all(layer.active_ranks())


def _chain_of(module: nn.Module) -> TensorTrainLayer | None:
    """Return the layer whose cores a module multiplies with when it is called, if any."""
    if isinstance(module, TiedTTMLinear):
        return module.embedding
    return module if isinstance(module, TensorTrainLayer) else None


@contextlib.contextmanager
def _passages(model: nn.Module) -> Iterator[None]:
    """Have calls of tensorized layers leave a :class:`_Passage` in the graph, also where none of them is trained."""
    token = torch.zeros((), requires_grad=True)

    def pass_on(module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> torch.Tensor:
        layer = _chain_of(module)
        assert layer is not None
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        # Shared merging ties the graphs of all layers together: of one that is closed, nothing but the node is left.
        output = output.detach() if _is_closed(layer) else output
        return _Passage.apply(layer, output, token, *inputs)

    modules = [module for module in model.modules() if _chain_of(module) is not None]
    handles = [module.register_forward_hook(pass_on, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _reached(roots: Iterable[Any], through_closed: bool) -> set[torch.Tensor]:
    """Return the packed cores of the layers that the graph leads to from these nodes."""
    found: set[torch.Tensor] = set()
    seen: set[Any] = set()
    ahead = list(roots)
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        layer = getattr(node, "passage_of", None)
        if isinstance(layer, TensorTrainLayer):
            found.add(layer.packed_cores)
            following = node.next_functions[2:] if through_closed or not _is_closed(layer) else ()
        else:
            following = node.next_functions
            if (variable := getattr(node, "variable", None)) is not None:
                found.add(variable)  # cores that were read otherwise than by a call, as part of a weight
        ahead += [after for after, _ in following]
    return found


def _without_compiled_code() -> AbstractContextManager[Any]:
    """Run compiled modules eagerly, since compiled code has no calls of layers; never import the compiler."""
    known = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if known else contextlib.nullcontext()


class _Passes:
    """Forward passes that all draw the same random numbers and leave the model as it was."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], Any]) -> None:
        self._model, self._loss = model, loss
        parameters = [*model.parameters(), *model.buffers()]
        self._devices = sorted({tensor.device.index or 0 for tensor in parameters if tensor.is_cuda})

    def once(self) -> list[torch.Tensor]:
        """Return the tensors that the loss returns."""
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        try:
            with torch.random.fork_rng(self._devices), torch.enable_grad(), _without_compiled_code():
                result = self._loss(self._model)
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
        return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]

    def values(self) -> list[torch.Tensor]:
        return [tensor.detach() for tensor in self.once()]

    @torch.no_grad()
    def same_with_other_cores(self, cores: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> bool:
        """Return whether the loss is what it was when these cores hold other numbers of about the same size.

        Factors that differ from number to number leave no symmetry: with both sides of a weight merely exchanged, the
        sum of its entries would be what it was. No side is left at zero, as one is of a weight that starts so.
        """
        kept = [packed.clone() for packed in cores]
        try:
            for packed, values in zip(cores, kept, strict=True):
                factors = torch.linspace(-1.5, -0.5, len(values), dtype=values.dtype, device=values.device)
                packed.copy_((values.flip(0) + values.abs().mean()) * factors)
            found = self.values()
        finally:
            for packed, values in zip(cores, kept, strict=True):
                packed.copy_(values)
        return len(found) == len(wanted) and all(map(torch.equal, found, wanted))


def _unreachable(model: nn.Module, loss: Callable[[nn.Module], Any], chains: Chains) -> list[torch.Tensor]:
    passes = _Passes(model, loss)
    with _passages(model):
        roots = [tensor.grad_fn for tensor in passes.once() if tensor.grad_fn is not None]
        if not roots:
            raise ValueError("loss returned no tensor that depends on the model; give a function from model to loss.")
        cut_off = _reached(roots, through_closed=True) - _reached(roots, through_closed=False)
        del roots
    cores = [packed for packed, layers in chains.items() if packed in cut_off and not _is_closed(layers[0])]
    if not cores:
        return []
    wanted = passes.values()
    if passes.same_with_other_cores(cores, wanted):
        return cores
    return [packed for packed in cores if passes.same_with_other_cores([packed], wanted)]


def drop_unreachable(model: nn.Module, loss: Callable[[nn.Module], Any]) -> list[str]:
    """Close every tensorized layer whose output reaches the loss through closed layers alone.

    The function of the model does not change; how this is known, and what is not found, says the module.

    Args:
        model: a tensorized model, in the mode in which it is trained.
        loss: from the model to the loss of a batch, or to anything made of tensors, all of which then count. It is
            called up to three times, or once more for each layer where the model has ways that autograd does not
            record; random numbers, buffers and gradients are left as they were.

    Returns:
        The names of the layers that were closed; of layers that share their cores, the first. Truncate at once
        (:func:`comera.truncate`).

    Raises:
        ValueError: a loss that does not depend on the model, or parameters that are sharded over processes.

    Example:
        >>> from comera import TT, tensorize, truncate
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1))
        >>> model = tensorize(model, {"0": TT(ranks=2, order=2), "2": TT(ranks=2, order=2)})
        >>> _ = model[2].diagonals.data.zero_()  # from here on its bias goes to the last layer, whatever comes in
        >>> drop_unreachable(model, lambda model: model(torch.randn(4, 8)).square().mean())
        ['0']
        >>> truncate(model)["0"].after
        (0, 0, 0)
    """
    check_module(model)
    check_callable("loss", loss, "lambda model: model(x).mean()")
    chains: Chains = {layers[0].packed_cores: layers for layers in layers_by_cores(model)}
    refuse_distributed_layers("drop_unreachable", [layers[0] for layers in chains.values()], resizes=False)
    if not any(_is_closed(layers[0]) for layers in chains.values()):
        return []
    closed = [chains[packed][0] for packed in _unreachable(model, loss, chains)]
    with torch.no_grad():
        for layer in closed:
            layer.diagonals.zero_()
    return [name for name, module in model.named_modules() if any(module is layer for layer in closed)]
