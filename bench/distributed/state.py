"""State shared between ranks: values on which they must agree, and the part of a checkpoint that each holds."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed

from comera.compatibility.distributed import whole


def is_first() -> bool:
    """Return whether this process is the first rank or the only one."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def rank() -> int:
    """Return the number of this rank; 0 for a single one."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def decided(*flags: bool) -> list[bool]:
    """Return the first rank's flags, on all ranks: what depends on a clock is decided once."""
    if not distributed.is_initialized():
        return list(flags)
    numbers = torch.tensor([int(flag) for flag in flags])
    distributed.broadcast(numbers, 0)
    return [bool(number) for number in numbers.tolist()]


def wait_for_all() -> None:
    """Wait until all ranks are here."""
    if distributed.is_initialized():
        distributed.barrier()


def gathered(value: Any) -> list[Any]:
    """Return the values of all ranks, by rank, on the first rank; on others nothing."""
    values = [None] * distributed.get_world_size() if is_first() else None
    distributed.gather_object(value, values)
    return values or []


def unsharded(value: Any) -> Any:
    """Gather every sharded tensor in nested dictionaries and lists; all ranks must call it."""
    if isinstance(value, torch.Tensor):
        return whole(value)
    if isinstance(value, Mapping):
        return {key: unsharded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [unsharded(item) for item in value]
    return value


def shard_as_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Shard an optimizer's state for a sharded parameter as the parameter is."""
    if not any(hasattr(parameter, "placements") for parameter in optimizer.state):
        return
    from torch.distributed.tensor import DTensor, distribute_tensor  # takes long to import

    for parameter, state in optimizer.state.items():
        if not isinstance(parameter, DTensor):
            continue
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = distribute_tensor(value, parameter.device_mesh, parameter.placements)
