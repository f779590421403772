"""Parameters whose size a distributed wrapper has fixed, which are therefore not changed.

* :class:`~torch.nn.parallel.DistributedDataParallel` lays gradients out in buckets and hooks the nodes that accumulate
  them, both made for the parameters' shapes when it wraps the model. A parameter of another shape has a new node
  without a hook, so its gradients would no longer be averaged, without an error.
* Sharded parameters hold only part of their entries in each process, and where they are whole for a while, what is
  written to them is lost.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from comera.compatibility.living import living


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all entries of a sharded tensor (DTensor), gathered with its gradient; other tensors as they are.

    The gathered tensor is the same in all processes, and so is what is computed from it: each keeps its own share of
    the gradient, and nothing is averaged.
    """
    gather = getattr(tensor, "full_tensor", None)  # importing DTensor costs more than all of comera
    return tensor if gather is None else gather()


#: True while a caller will wrap a model anew after its parameters have other shapes.
_wrapped_anew = False


@contextlib.contextmanager
def wrapped_anew() -> Iterator[None]:
    """Allow parameters under DistributedDataParallel to be replaced within the block.

    The caller promises to delete the wrapper, and to wrap the module inside again, before the next forward pass. All
    processes must do the same; :func:`check_same_ranks` makes sure of it.

    Example:
        >>> with wrapped_anew():
        ...     refuse_distributed("truncate", {})
    """
    global _wrapped_anew
    before, _wrapped_anew = _wrapped_anew, True
    try:
        yield
    finally:
        _wrapped_anew = before


class RanksDiffer(RuntimeError):
    """Error for processes of one training run that cut their tensor trains differently; one sentence."""


def check_same_ranks(ranks: Mapping[str, object], group: distributed.ProcessGroup | None = None) -> None:
    """Make sure that all processes of a group have the same ranks, by their hash; each of them must call it.

    Args:
        ranks: of every tensorized layer by name, as :func:`comera.ranks_of` returns them, with whatever else must be
            the same.
        group: the processes; None for all.

    Raises:
        RanksDiffer: on all processes, naming those that differ from the first.

    Example:
        >>> check_same_ranks({"0": (1, 2, 1)})  # a process alone has nobody to differ from
    """
    if not distributed.is_available() or not distributed.is_initialized():
        return
    text = repr(sorted(ranks.items()))
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")  # fits into an int64
    backend = distributed.get_backend(group)
    own = torch.tensor([number], device="cuda" if backend == "nccl" else "cpu")
    found = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(found, own, group=group)
    differing = [str(rank) for rank, other in enumerate(found) if other.item() != found[0].item()]
    if differing:
        raise RanksDiffer(
            f"the tensor trains of process {', '.join(differing)} have other ranks than those of process 0, so that "
            "their gradients no longer fit together."
        )


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
    if resizes and not _wrapped_anew and _managed(sizes, (DistributedDataParallel,)):
        raise ValueError(
            f"{action} puts parameters of other shapes in place, and DistributedDataParallel would no longer average "
            f"their gradients; delete the wrapper, call {action} on the module inside, and wrap it again."
        )


def _sharding_wrappers() -> tuple[type, ...]:
    """Return the classes of modules with sharded parameters, if their module is imported; importing takes long."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return () if fsdp is None else (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)


def _held_by(wrapper: Any) -> Iterable[torch.Tensor]:
    """Return the parameters whose sizes a wrapper has fixed: for ``fully_shard`` without the ignored ones."""
    state = getattr(wrapper, "_get_fsdp_state", None)
    groups = getattr(state(), "_fsdp_param_groups", None) if state is not None else None
    if groups is None:
        return wrapper.parameters()
    held = [each for group in groups for each in group.fsdp_params]
    # Sharded, and whole for a while; PyTorch keeps both, under these names, at least from 2.11 to 2.13.
    names = ("sharded_param", "_unsharded_param")
    return [getattr(each, name) for each in held for name in names if hasattr(each, name)]


def _managed(parameters: Mapping[torch.Tensor, int], wrappers: tuple[type, ...]) -> bool:
    """Return whether a living wrapper of one of these classes holds one of the parameters.

    A wrapper leaves no mark on the module inside, so that it is looked for among all living objects. This happens only
    in a process of a process group.
    """
    if not wrappers or not distributed.is_available() or not distributed.is_initialized():
        return False
    for _ in range(2):
        found = living(wrappers)
        if not any(parameter in parameters for wrapper in found for parameter in _held_by(wrapper)):
            return False
        del found
        gc.collect()  # a deleted wrapper may have been part of a cycle
    return True
