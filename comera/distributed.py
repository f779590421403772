"""Parameters whose size a distributed wrapper has fixed, which truncation therefore refuses to change.

:class:`~torch.nn.parallel.DistributedDataParallel` lays gradients out in buckets and hooks the nodes that accumulate
them, both made for the parameters' shapes when it wraps the model. A parameter of another shape has a new node without
a hook, so its gradients would no longer be averaged, without an error. Sharded parameters hold only part of their
entries in each process.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All entries of a tensor that is sharded over processes (DTensor), gathered with its gradient; others as they are.

    The gathered tensor is the same in all processes, and so is what is computed from it: each keeps its own share of
    the gradient, and nothing is averaged.
    """
    gather = getattr(tensor, "full_tensor", None)  # importing DTensor costs more than all of comera
    return tensor if gather is None else gather()


def refuse_sharded(action: str, parameter: torch.Tensor, entries: int) -> None:
    """Raise ValueError if this process does not hold the ``entries`` of a parameter as one plain tensor."""
    if hasattr(parameter, "full_tensor") or parameter.numel() != entries:
        raise ValueError(
            f"{action} needs the cores whole, but they are sharded over processes; gather the state dict, call "
            f"{action} on an unsharded model that has loaded it, and shard that model anew."
        )


def refuse_replicated(action: str, parameters: Iterable[nn.Parameter]) -> None:
    """Raise ValueError if a living DistributedDataParallel manages one of the parameters.

    The wrapper leaves no mark on the module inside, so that it is looked for among all living objects; this takes
    some tenths of a second, and happens only in a process of a process group.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        return
    sought = {id(parameter) for parameter in parameters}
    if sought & _replicated() and (gc.collect(), sought & _replicated())[1]:  # one may be part of a dead cycle
        raise ValueError(
            f"{action} changes the shapes of parameters, and DistributedDataParallel would no longer average their "
            f"gradients; delete the wrapper, call {action} on the module inside, and wrap it again."
        )


def _replicated() -> set[int]:
    """The parameters, by ``id``, that living wrappers manage."""
    wrappers = [each for each in gc.get_objects() if issubclass(type(each), DistributedDataParallel)]
    return {id(parameter) for wrapper in wrappers for parameter in wrapper.parameters()}
