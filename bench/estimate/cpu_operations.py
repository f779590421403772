"""Tensors inside operations of a CPU, which are gone when these return, so that no trace shows them."""

from collections.abc import Mapping
from typing import Any

import torch

from bench.estimate import cuda_operations

#: bitsandbytes' update on a CPU forms in float32: both moments, the gradient, the root of the second moment and that
#: root over its correction. Its kernel on CUDA holds none of them.
_EIGHT_BIT_UPDATE, _FORMED = "bitsandbytes::optimizer_update_8bit_blockwise", 5


def held_inside(operation: Any, given: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return tensors as large as those that an operation holds at its peak, beside arguments and result.

    Args:
        operation: of torch's dispatcher, in a trace on the CPU's own operations.
        given: its arguments by name.
    """
    if operation.name() != _EIGHT_BIT_UPDATE or cuda_operations.active():
        return []
    return [torch.empty_like(given["g"], dtype=torch.float32) for _ in range(_FORMED)]
