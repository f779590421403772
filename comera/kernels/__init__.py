"""Triton kernels of the fused feed-forward: where they can run, and the operation that they make up.

Nothing here imports triton before the first call that needs it: ``comera`` needs only torch and numpy.
"""

from __future__ import annotations

import functools
import importlib.util

import torch

from comera.kernels.configurations import ARCHITECTURES, allowed, arithmetic, padded_rank

#: The kernels behind :func:`hidden`.
HIDDEN = ("hidden_forward", "hidden_backward_rows", "hidden_backward_columns")

#: Use the kernels for tensors on a CPU too, which needs ``TRITON_INTERPRET=1`` from the start; for tests.
interpreted = False


def usable(kernels: tuple[str, ...], device: torch.device, dtype: torch.dtype, *ranks: int) -> bool:
    """Return whether the kernels can multiply numbers of a type on a device, at these middle ranks.

    Example:
        >>> usable(HIDDEN, torch.device("cpu"), torch.bfloat16, 30, 30)
        False
    """
    kind, padded = arithmetic(dtype), padded_rank(*ranks)
    if kind is None or padded is None or not (interpreted if device.type == "cpu" else _offered(device)):
        return False
    return all(allowed(kernel, kind, padded) for kernel in kernels)


@functools.cache
def _offered(device: torch.device) -> bool:
    """Return whether a device is one of NVIDIA's that the kernels are compiled for, and Triton is there."""
    if device.type != "cuda" or torch.version.hip is not None or importlib.util.find_spec("triton") is None:
        return False
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor >= min(ARCHITECTURES)


def hidden(
    activation: str,
    z1_PT: torch.Tensor,
    right1_PH: torch.Tensor,
    bias1_H: torch.Tensor | None,
    left2_QH: torch.Tensor,
) -> torch.Tensor:
    """Compute ``left2 · activation(z1ᵀ · right1 + bias1)ᵀ``, (Q, T); keeps ``z1`` for backward.

    Args:
        activation: one of :data:`comera.functional.ACTIVATIONS`.
        z1_PT, right1_PH, bias1_H, left2_QH: of one type, that of the result.
    """
    from comera.kernels.autograd import Hidden

    result: torch.Tensor = Hidden.apply(activation, z1_PT, right1_PH, bias1_H, left2_QH)
    return result
