"""Triton kernels between thin products and after them: where they can run, and the operations that they make up.

Nothing here imports triton before the first call that needs it: ``comera`` needs only torch and numpy.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor

from comera.dropout import acts_as_on_cuda
from comera.kernels.configurations import arithmetic, candidates, padded_rank

if TYPE_CHECKING:
    from torch import nn

#: Which way computes what a kernel can: the faster one, as timed once per shape; the kernels; torch's operations.
Fused = Literal["auto", "kernels", "torch"]

#: The least compute capability that is served, times ten.
_CAPABILITY = 80

#: The most features of a row that a program of :func:`add_norm` holds.
_MOST_FEATURES = 8192

#: Use the kernels for tensors on a CPU too, which needs ``TRITON_INTERPRET=1`` from the start; for tests.
interpreted = False


def possible() -> bool:
    """Return whether this process can have tensors that the kernels serve, or shapes of such tensors."""
    return interpreted or acts_as_on_cuda() or (torch.cuda.is_available() and _offered(torch.device("cuda", 0)))


def serve(x: torch.Tensor) -> bool:
    """Return whether the kernels can run on the device of a tensor; of a fake one, on the device it stands for.

    Example:
        >>> serve(torch.ones(2))
        False
    """
    if x.device.type == "cpu":
        return interpreted or (acts_as_on_cuda() and isinstance(x, FakeTensor))
    return _offered(x.device)


def hidden_served(x: torch.Tensor, dtype: torch.dtype, *ranks: int) -> bool:
    """Return whether :func:`hidden` takes products of a type at these middle ranks, where ``x`` lies.

    Example:
        >>> hidden_served(torch.ones(2), torch.bfloat16, 30, 30)
        False
    """
    kind, padded = arithmetic(dtype), padded_rank(*ranks)
    return kind is not None and padded is not None and serve(x) and bool(candidates(kind, padded))


def add_norm_served(residual: torch.Tensor, y: torch.Tensor, norm: nn.LayerNorm) -> bool:
    """Return whether :func:`add_norm` takes a sum and its LayerNorm.

    Example:
        >>> add_norm_served(torch.ones(2, 4), torch.ones(2, 4), torch.nn.LayerNorm(4))
        False
    """
    alike = residual.shape == y.shape and norm.normalized_shape == residual.shape[-1:] and residual.device == y.device
    kinds = {residual.dtype, y.dtype} <= {torch.float32, torch.bfloat16, torch.float16}
    affine = norm.weight is not None and norm.bias is not None
    return alike and kinds and affine and residual.shape[-1] <= _MOST_FEATURES and serve(residual)


@functools.cache
def _offered(device: torch.device) -> bool:
    """Return whether a device is one of NVIDIA's that the kernels are compiled for, and Triton is there."""
    if device.type != "cuda" or torch.version.cuda is None or importlib.util.find_spec("triton") is None:
        return False
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor >= _CAPABILITY


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


def add_norm(residual: torch.Tensor, y: torch.Tensor, norm: nn.LayerNorm, p: float, dtype: torch.dtype) -> torch.Tensor:
    """Compute ``norm(residual + dropout(y))``, (…, M); keeps the sum and a bit per entry for backward.

    Args:
        residual, y: (…, M), maybe of two types.
        norm: over the last dimension, with weight and bias.
        p: probability of dropout, from 0 to 1; the mask is drawn anew by each call, from the device's generator.
        dtype: of the result.
    """
    from comera.kernels.autograd import AddNorm

    rows = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (y, residual))
    result: torch.Tensor = AddNorm.apply(p, norm.eps, dtype, *rows, norm.weight, norm.bias)
    return result.view(residual.shape)
