"""Scaled FP8 operands and the product of two of them, by the device's kernel or emulated.

An operand is a matrix whose rows are contracted, ``(rows, K)``, in FP8, with a factor that brings its values back.
Forward operands are in e4m3 (three bits of mantissa, up to 448), gradients in e5m2 (two bits, up to 57,344), the
formats of arXiv 2209.05433.

Shape suffixes: ``T`` and ``M`` rows of the two operands, ``K`` what is summed over.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch
from torch.nn import functional as F

FORWARD, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2

#: Kernels on CUDA take sizes that are multiples of this; that of the CPU takes any, so it is asserted here.
MULTIPLE = 16

#: Who multiplies: the device's own FP8 kernel (``torch._scaled_mm``), or FP32 on the values of the operands.
Kernel = Literal["native", "emulated"]

#: The first compute capability whose tensor cores multiply FP8.
_CAPABILITY = (8, 9)


class Quantized(NamedTuple):
    """An operand: ``values`` (rows, K) in FP8, and ``scale`` () in float32, to multiply them with."""

    values: torch.Tensor
    scale: torch.Tensor

    def dequantized(self) -> torch.Tensor:
        """Return the values that the product has, in float32."""
        return self.values.float() * self.scale


def widened(values: torch.Tensor) -> torch.Tensor:
    """Widen FP8 to float32 for emulated products, equal to ``values.float()``.

    PyTorch's own cast of e4m3 on a CPU goes entry by entry and takes four times as long. Shifted into place, the bits
    of e4m3 are those of a float32 whose exponent is too small by the difference of the formats' biases, 127 - 7; that
    holds for subnormal numbers too. The one pattern of NaN would be 480.

    >>> widened(torch.tensor([0.3, -448.0, 0.002, float("nan")]).to(FORWARD))
    tensor([ 3.1250e-01, -4.4800e+02,  1.9531e-03,         nan])
    """
    if values.dtype != FORWARD or values.device.type != "cpu" or torch.compiler.is_compiling():
        return values.float()
    bits = values.view(torch.int8).to(torch.int32).bitwise_left_shift_(20)  # the sign fills what lies above
    wide = bits.bitwise_and_(~0x78000000).view(torch.float32).mul_(2.0**120)
    return wide.masked_fill_(wide.abs() > torch.finfo(FORWARD).max, math.nan)


def quantize(x: torch.Tensor, dtype: torch.dtype = FORWARD) -> Quantized:
    """Round a matrix to FP8.

    Args:
        x: (rows, K), of any floating type.
        dtype: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.

    Returns:
        Values and factor; a matrix of zeros has a factor too. NaN and infinity in ``x`` make NaN of all products with
        it: they are not cut to the largest number of the format, as a bare cast may do.

    Raises:
        ValueError: another type.

    Example:
        >>> x = torch.tensor([[1.0, -3.5], [0.3, 100.0]])
        >>> quantize(x).dequantized()
        tensor([[  1.0045,  -3.5714],
                [  0.3069, 100.0000]])
    """
    if dtype not in (FORWARD, GRADIENTS):
        raise ValueError(f"dtype is {dtype}; allowed: {FORWARD}, {GRADIENTS}.")
    limit = torch.finfo(dtype).max
    largest = x.abs().amax().float() if x.numel() else x.new_zeros((), dtype=torch.float32)
    # A smaller factor would be no normal number, and that of zeros would divide by zero; NaN stays.
    factor = (largest / limit).clamp(min=torch.finfo(torch.float32).tiny)
    values = (x.float() / factor).clamp_(-limit, limit)
    return Quantized(values.to(dtype), factor)


def kernel_on(device: torch.device | str) -> Kernel:
    """Return ``"native"`` where the device multiplies FP8 itself, else ``"emulated"``.

    A CPU has a kernel too, which is slower than FP32 on most: it counts as emulated unless asked for.
    """
    device = torch.device(device)
    if device.type != "cuda" or not torch.cuda.is_available():
        return "emulated"
    return "native" if torch.cuda.get_device_capability(device) >= _CAPABILITY else "emulated"


def refuse_kernel(kernel: str, device: torch.device | str) -> None:
    """Raise ValueError over an unknown kernel, or one that the device does not have."""
    device = torch.device(device)
    if kernel not in get_args(Kernel):
        raise ValueError(f"kernel is {kernel!r}; allowed: {', '.join(get_args(Kernel))}.")
    if kernel == "native" and device.type == "cuda" and kernel_on(device) != "native":
        here = ".".join(map(str, torch.cuda.get_device_capability(device))) if torch.cuda.is_available() else "none"
        raise ValueError(
            f"FP8 products need a CUDA device of compute capability {'.'.join(map(str, _CAPABILITY))} or more; this "
            f'one has {here}. Use kernel="emulated".'
        )


def padded(x: torch.Tensor) -> torch.Tensor:
    """Return a matrix with zeros behind its rows and columns, up to multiples of :data:`MULTIPLE`.

    >>> padded(torch.ones(30, 768)).shape
    torch.Size([32, 768])
    """
    rows, columns = (-size % MULTIPLE for size in x.shape)
    return F.pad(x, (0, columns, 0, rows)) if rows or columns else x


def scaled_product(
    left_TK: Quantized, right_MK: Quantized, dtype: torch.dtype = torch.float32, kernel: Kernel = "emulated"
) -> torch.Tensor:
    """Compute ``left · rightᵀ`` (T, M) of two operands, summed in float32, in ``dtype``.

    Args:
        left_TK, right_MK: at most one of them in e5m2.
        dtype: float32 or bfloat16.
        kernel: ``"native"``: ``torch._scaled_mm``. ``"emulated"``: the same numbers up to the order of sums.

    Raises:
        ValueError: sizes that are no multiples of 16 (see :func:`padded`) or do not fit, two operands in e5m2, a type
            that is not put out, or a kernel that the device lacks.

    Example:
        >>> left, right = quantize(torch.full((16, 32), 2.0)), quantize(torch.full((48, 32), 0.5))
        >>> scaled_product(left, right)[0, :3].round()
        tensor([32., 32., 32.])
    """
    (left, left_scale), (right, right_scale) = left_TK, right_MK
    shapes = f"{tuple(left.shape)} and {tuple(right.shape)}"
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"operands are {shapes}; both must have the same number of columns, which are summed over.")
    if any(size % MULTIPLE for size in (*left.shape, *right.shape)):
        raise ValueError(f"operands are {shapes}; FP8 products need multiples of {MULTIPLE}, see low_precision.padded.")
    if left.dtype == right.dtype == GRADIENTS:
        raise ValueError(f"both operands are {GRADIENTS}, which no device multiplies; one must be {FORWARD}.")
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"dtype is {dtype}; allowed: torch.float32, torch.bfloat16.")
    refuse_kernel(kernel, left.device)
    if kernel == "native":
        return torch._scaled_mm(left, right.t(), left_scale, right_scale, out_dtype=dtype, use_fast_accum=False)
    with torch.autocast(left.device.type, enabled=False):
        sums_TM = torch.mm(widened(left), widened(right).t())
    return sums_TM.mul_(left_scale).mul_(right_scale).to(dtype)
