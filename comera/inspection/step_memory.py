"""Memory of a training step, from shapes alone."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from comera.compatibility.arguments import check_module, shown

#: A batch: arguments by name, in order, or the only one.
Batch = Mapping[str, Any] | tuple[Any, ...] | torch.Tensor


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a step with Adam, by what they are for.

    Attributes:
        parameters: all parameters and buffers, shared ones once.
        gradients: of the trained parameters.
        moments: Adam's two of each trained parameter.
        kept: what the forward pass of a batch leaves for the backward pass, its output included; None without a batch.
    """

    parameters: int
    gradients: int
    moments: int
    kept: int | None = None

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.moments + (self.kept or 0)

    def __str__(self) -> str:
        mib = {name: f"{(value or 0) / 2**20:,.1f}" for name, value in (*vars(self).items(), ("total", self.total))}
        kept = "without activations" if self.kept is None else f"activations of the batch {mib['kept']}"
        return (
            f"{mib['total']} MiB: parameters {mib['parameters']}, gradients {mib['gradients']}, "
            f"Adam's moments {mib['moments']}, {kept}"
        )


class _Storages(TorchDispatchMode):
    """Notes every storage that operations inside the block make, for as long as it lives."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._made[id(storage)] = weakref.ref(storage)
        return result

    def bytes_alive(self, without: set[int]) -> int:
        alive = {id(storage): storage for made in self._made.values() if (storage := made()) is not None}
        return sum(storage.nbytes() for key, storage in alive.items() if key not in without)


def step_memory(model: nn.Module, batch: Batch | None = None) -> StepMemory:
    """Return the memory of a training step with Adam at the end of its forward pass, without running it.

    The forward pass runs on tensors without data, in the mode that the model is in. Not counted are passing
    intermediates and what no tensor shows, such as workspaces of kernels.

    Args:
        model: on any device, the meta device included.
        batch: what the model is called with: arguments by name, a tuple of them in order, or a tensor.

    Example:
        >>> model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
        >>> print(step_memory(model, torch.zeros(64, 256)))
        8.3 MiB: parameters 2.0, gradients 2.0, Adam's moments 4.0, activations of the batch 0.3
    """
    check_module(model)
    is_batch = isinstance(batch, torch.Tensor) or (isinstance(batch, tuple | Mapping) and len(batch) > 0)
    if batch is not None and not is_batch:
        raise ValueError(f"batch is {shown(batch)}; allowed: arguments by name, a tuple of them, or a tensor.")
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    stored = sum(tensor.nbytes for tensor in tensors.values())
    trained = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    kept = None if batch is None else _kept(model, batch)
    return StepMemory(stored, trained, 2 * trained, kept)


def _kept(model: nn.Module, batch: Batch) -> int:
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:

        def fake_of(tensor: torch.Tensor) -> torch.Tensor:
            return fake.from_tensor(tensor)

        state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
        once = {id(tensor): fake_of(tensor) for tensor in state.values()}
        given = tree_map_only(torch.Tensor, fake_of, dict(batch) if isinstance(batch, Mapping) else batch)
        args = given if isinstance(given, tuple) else () if isinstance(given, dict) else (given,)
        leaves = [leaf for leaf in (*once.values(), *tree_leaves(given)) if isinstance(leaf, torch.Tensor)]
        held = {id(tensor.untyped_storage()) for tensor in leaves}
        with _Storages() as storages, torch.enable_grad():
            fakes = {name: once[id(tensor)] for name, tensor in state.items()}
            output = torch.func.functional_call(model, fakes, args, given if isinstance(given, dict) else {})
        kept = storages.bytes_alive(held)
        del output
    return kept
