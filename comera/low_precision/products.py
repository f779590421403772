"""Matrix products of layers in FP8, forward and backward: those of a tensor train's halves and of two-factor layers.

Operands are scaled and rounded from what the layer has, FP32 or BF16, in every product: activations and weights to
e4m3, gradients to e5m2. Each of the three products of a linear map sums over another dimension, so operands are laid
out along that one, with rows and columns of zeros behind them up to multiples of 16: ranks, and tokens, which the
gradient of a weight is summed over. What lies between the products, biases and rank entries among it, stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function

from comera.compatibility.autocast import autocast_type
from comera.low_precision.scaling import (
    FORWARD,
    GRADIENTS,
    Kernel,
    Quantized,
    kernel_on,
    padded,
    quantize,
    refuse_kernel,
    scaled_product,
)


@dataclass(frozen=True)
class FP8:
    """Settings of products in FP8, with one factor per operand, found from the tensor at hand.

    Args:
        kernel: ``"native"``, ``"emulated"``, or None for what :func:`products_on` says of the device.

    Raises:
        ValueError: an unknown kernel.

    Example:
        >>> FP8(kernel="emulated").kernel
        'emulated'
    """

    kernel: Kernel | None = None

    def __post_init__(self) -> None:
        if self.kernel is not None and self.kernel not in get_args(Kernel):
            raise ValueError(f"kernel is {self.kernel!r}; allowed: {', '.join(get_args(Kernel))}.")


def products_on(device: torch.device | str, fp8: FP8) -> Kernel:
    """Return the kernel that multiplies in FP8 on a device: the requested one, else the device's own if it has one.

    Raises:
        ValueError: a kernel is asked for that the device does not have.

    Example:
        >>> products_on("cpu", FP8()), products_on("cpu", FP8(kernel="native"))
        ('emulated', 'native')
    """
    kernel = fp8.kernel or kernel_on(device)
    refuse_kernel(kernel, device)
    return kernel


def product(a: torch.Tensor, b: torch.Tensor, fp8: FP8) -> torch.Tensor:
    """Multiply ``a · bᵀ`` in FP8, with gradients in FP8: (T, K), (M, K) to (T, M).

    Args:
        a, b: matrices of one type; any sizes.
        fp8: how.

    Returns:
        In the type of autocast where that is on, else in that of ``a``.

    Raises:
        ValueError: a kernel that the device does not have.

    Example:
        >>> a, b = torch.randn(5, 30), torch.randn(7, 30)
        >>> error = product(a, b, FP8()) - a @ b.t()
        >>> bool((error.abs() <= 0.15 * (a.abs() @ b.abs().t())).all())
        True
    """
    if has_torch_function((a, b)):
        return handle_torch_function(product, (a, b), a, b, fp8)
    return _Product.apply(fp8, autocast_type(a.device.type) or a.dtype, a, b)


class _Product(torch.autograd.Function):
    """The three products of a linear map. Kept are ``a`` and ``b`` themselves, which other operations keep as well."""

    @staticmethod
    def forward(ctx: Any, fp8: FP8, kind: torch.dtype, a_TK: torch.Tensor, b_MK: torch.Tensor) -> torch.Tensor:
        ctx.fp8 = fp8
        ctx.save_for_backward(a_TK, b_MK)
        return _multiplied(_operand(a_TK), _operand(b_MK), fp8, kind)[: len(a_TK), : len(b_MK)]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_TM: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a_TK, b_MK = ctx.saved_tensors
        gradient = _operand(gradient_TM, GRADIENTS)
        da_TK = db_MK = None
        if ctx.needs_input_grad[2]:
            da_TK = _multiplied(gradient, _operand(b_MK.t()), ctx.fp8, a_TK.dtype)
            da_TK = da_TK[: a_TK.shape[0], : a_TK.shape[1]]
        if ctx.needs_input_grad[3]:  # turned round, the gradient has the same numbers
            turned = Quantized(gradient.values.t().contiguous(), gradient.scale)
            db_MK = _multiplied(turned, _operand(a_TK.t()), ctx.fp8, b_MK.dtype)
            db_MK = db_MK[: b_MK.shape[0], : b_MK.shape[1]]
        return None, None, da_TK, db_MK


def _operand(x: torch.Tensor, dtype: torch.dtype = FORWARD) -> Quantized:
    """Return the padded operand, in rows, as kernels require."""
    values, scale = quantize(padded(x), dtype)
    return Quantized(values.contiguous(), scale)


def _multiplied(left: Quantized, right: Quantized, fp8: FP8, kind: torch.dtype) -> torch.Tensor:
    put_out = torch.bfloat16 if kind == torch.bfloat16 else torch.float32
    return scaled_product(left, right, put_out, products_on(left.values.device, fp8)).to(kind)


def thin_linear(
    x: torch.Tensor, left_RN: torch.Tensor, right_RM: torch.Tensor, bias: torch.Tensor | None, fp8: FP8
) -> torch.Tensor:
    """Compute ``(x · leftᵀ) · right + bias``, (…, N) to (…, M), both products in FP8.

    Args:
        x: activations.
        left_RN, right_RM: the merged halves of a tensor train, or the factors of a two-factor layer.
        bias: (M,), added in the type of the products.
        fp8: how.

    Example:
        >>> x, left, right = torch.ones(2, 5, 48), torch.ones(3, 48), torch.ones(3, 24)
        >>> thin_linear(x, left, right, None, FP8())[0, 0, :2].round()
        tensor([144., 144.])
    """
    z_TR = product(x.reshape(-1, x.shape[-1]), left_RN.to(x.dtype), fp8)
    y_TM = product(z_TR, right_RM.t().to(z_TR.dtype), fp8)
    y_TM = y_TM if bias is None else y_TM + bias.to(y_TM.dtype)
    return y_TM.view(*x.shape[:-1], right_RM.shape[1])


def use_fp8(model: nn.Module, fp8: FP8 | None = None) -> list[str]:
    """Have the layers of a model that can form their products in FP8 do so: tensorized linear ones, two-factor ones.

    Args:
        model: any module; its layers with an attribute ``fp8`` are meant.
        fp8: how; None ends it.

    Returns:
        The names of these layers.

    Example:
        >>> from comera import TT, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)), {"0": TT(ranks=4)})
        >>> use_fp8(model, FP8())
        ['0']
    """
    found = {name: module for name, module in model.named_modules() if hasattr(type(module), "fp8")}
    for module in found.values():
        module.fp8 = fp8
    return list(found)
