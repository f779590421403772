"""The type in which autocast forms products, on any device."""

from __future__ import annotations

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
