"""The type in which autocast forms products, and blocks without it, on any device."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch


def autocast_type(device: str) -> torch.dtype | None:
    """Return the type of autocast on a kind of device, such as ``cpu``; None where it is off or there is none.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     autocast_type("cpu"), autocast_type("meta")
        (torch.bfloat16, None)
    """
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return None


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a block in which autocast is off on a kind of device, so that operands keep their types.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16), without_autocast("cpu"):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    is_on = autocast_type(device) is not None
    return torch.autocast(device, enabled=False) if is_on else contextlib.nullcontext()


def autocast_of(device: str, kind: torch.dtype | None) -> AbstractContextManager[Any]:
    """Return a block with autocast of this type and without its cache, or with autocast off where there is no type.

    Example:
        >>> with autocast_of("cpu", torch.bfloat16):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.bfloat16
    """
    if kind is None:
        return without_autocast(device)
    return torch.autocast(device, kind, cache_enabled=False)
