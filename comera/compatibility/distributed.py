"""Parameters whose size a distributed wrapper has fixed, which are therefore not changed.

* :class:`~torch.nn.parallel.DistributedDataParallel` lays gradients out in buckets and hooks the nodes that accumulate
  them, both made for the parameters' shapes when it wraps the model. A parameter of another shape has a new node
  without a hook, so its gradients would no longer be averaged, without an error.
* Sharded parameters hold only part of their entries in each process, and where they are whole for a while, what is
  written to them is lost.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All entries of a tensor that is sharded over processes (DTensor), gathered with its gradient; others as they are.

    The gathered tensor is the same in all processes, and so is what is computed from it: each keeps its own share of
    the gradient, and nothing is averaged.
    """
    gather = getattr(tensor, "full_tensor", None)  # importing DTensor costs more than all of comera
    return tensor if gather is None else gather()


def refuse_distributed(action: str, sizes: Mapping[torch.Tensor, int], resizes: bool = True) -> None:
    """Raise ValueError if parameters are not this process's to change.

    Args:
        action: the function that would change them, for the sentence.
        sizes: the parameters and how many entries each has.
        resizes: whether their shapes would change. Then they may not be managed by DistributedDataParallel either.
    """
    sharded = any(hasattr(parameter, "full_tensor") or parameter.numel() != size for parameter, size in sizes.items())
    if sharded or _managed(sizes, _sharding_wrappers()):
        raise ValueError(
            f"{action} needs parameters whole, but they are sharded over processes; gather the state dict, call "
            f"{action} on an unsharded model that has loaded it, and shard that model anew."
        )
    if resizes and _managed(sizes, (DistributedDataParallel,)):
        raise ValueError(
            f"{action} puts parameters of other shapes in place, and DistributedDataParallel would no longer average "
            f"their gradients; delete the wrapper, call {action} on the module inside, and wrap it again."
        )


def _sharding_wrappers() -> tuple[type, ...]:
    """The classes of modules with sharded parameters, if their module has been imported; importing it takes long."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return () if fsdp is None else (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)


def _managed(parameters: Mapping[torch.Tensor, int], wrappers: tuple[type, ...]) -> bool:
    """Whether a living wrapper of one of these classes holds one of the parameters.

    A wrapper leaves no mark on the module inside, so that it is looked for among all living objects. This takes some
    tenths of a second, and happens only in a process of a process group.
    """
    if not wrappers or not distributed.is_available() or not distributed.is_initialized():
        return False
    for _ in range(2):
        living = [each for each in gc.get_objects() if issubclass(type(each), wrappers)]
        if not any(parameter in parameters for wrapper in living for parameter in wrapper.parameters()):
            return False
        del living
        gc.collect()  # a deleted wrapper may have been part of a cycle
    return True
