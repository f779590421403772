"""Matrix products of layers in FP8, forward and backward: those of a tensor train's halves and of two-factor layers.

Operands are scaled and rounded from what the layer has, FP32 or BF16, in every product: activations and weights to
e4m3, gradients to e5m2. Each of the three products of a linear map sums over another dimension, so operands are rounded
along that one, with rows and columns of zeros behind them up to multiples of 16: ranks, and tokens, which the gradient
of a weight is summed over. What lies between the products, biases and rank entries among it, stays as it is.

A map through a rank rounds twice as many operands as a dense one. Those that are as thin as the rank are a small share
of the bytes, which bound such products, so they may be sums of two FP8 terms (:attr:`FP8.terms`), the second of
which holds what rounding the first has left: then only activations and gradients of the full width lose what FP8 loses.
Terms go through one product: beside each other along a summed rank, or as further rows, whose results are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function

from comera.lowprec.scaling import (
    FORWARD,
    GRADIENTS,
    Kernel,
    Quantized,
    Scales,
    kernel_on,
    largest,
    padded,
    quantize,
    refuse_kernel,
    scaled_product,
)

#: Source of a factor: the tensor at hand, or the largest of those before it.
Scaling = Literal["current", "delayed"]


@dataclass(frozen=True)
class FP8:
    """Settings of products in FP8.

    Args:
        scales: ``"tensor"`` for one factor per operand, ``"row"`` for one per row of it.
        scaling: ``"current"``: factors from the tensor at hand. ``"delayed"``: from the largest magnitude of the
            ``history`` calls before (arXiv 2209.05433), with which a device need not read a tensor twice; what is
            larger saturates. Only with one factor per tensor.
        history: of how many calls the largest magnitudes are kept.
        terms: of operands that are as thin as the rank: the merged halves, what lies between the two products, and its
            gradient; 1 or 2.
        kernel: ``"native"``, ``"emulated"``, or None for what :func:`products_on` says of the device.

    Raises:
        ValueError: an unknown value, or delayed factors per row.

    Example:
        >>> FP8(scales="row").scaling
        'current'
    """

    scales: Scales = "tensor"
    scaling: Scaling = "current"
    history: int = 16
    kernel: Kernel | None = None
    terms: int = 1

    def __post_init__(self) -> None:
        kinds: tuple[tuple[str, Any], ...] = (("scales", Scales), ("scaling", Scaling), ("kernel", Kernel))
        for name, kind in kinds:
            value, allowed = getattr(self, name), get_args(kind)
            if value not in allowed and not (name == "kernel" and value is None):
                raise ValueError(f"{name} is {value!r}; allowed: {', '.join(allowed)}.")
        if self.scaling == "delayed" and self.scales == "row":
            raise ValueError('scaling is "delayed", which has one factor per tensor; use scales="tensor".')
        if self.history < 1:
            raise ValueError(f"history is {self.history}; allowed: whole numbers from 1 up.")
        if self.terms not in (1, 2):
            raise ValueError(f"terms is {self.terms}; allowed: 1, 2.")


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


class AmaxHistory(nn.Module):
    """Largest magnitudes of a product's last calls, for delayed scaling: (3, history).

    They are those of operands ``a`` and ``b`` and of the gradient; a buffer, so that a checkpoint has it.

    A buffer, so that a checkpoint has it.
    """

    amax: torch.Tensor

    def __init__(self, history: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.register_buffer("amax", torch.zeros(3, history, device=device))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load as any module does; a state dict without magnitudes, of a model that had none, starts empty."""
        state_dict.setdefault(f"{prefix}amax", torch.zeros_like(self.amax))
        super()._load_from_state_dict(state_dict, prefix, *others)

    @torch.no_grad()
    def factor(self, operand: int, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the factor for this call from those before it, or the present one; then keep the present one.

        NaN and infinity give a factor of NaN, and are not kept.
        """
        row, now = self.amax[operand], largest(x)
        before = row.amax()
        used = torch.where(before > 0, before, now)
        finite = torch.isfinite(now)
        row.copy_(torch.where(finite, torch.cat([now[None], row[:-1]]), row))
        factor = (used / torch.finfo(dtype).max).clamp(min=torch.finfo(torch.float32).tiny)
        return torch.where(finite, factor, torch.nan)


#: Operands of a product that are as thin as the rank: ``a``, ``b``, and the gradient of the result.
Thin = tuple[bool, bool, bool]
_NONE_THIN: Thin = (False, False, False)
_INTO_RANK: Thin = (False, True, True)
_OUT_OF_RANK: Thin = (True, True, False)


def product(
    a: torch.Tensor, b: torch.Tensor, fp8: FP8, history: AmaxHistory | None = None, thin: Thin = _NONE_THIN
) -> torch.Tensor:
    """Multiply ``a · bᵀ`` in FP8, with gradients in FP8: (T, K), (M, K) to (T, M).

    Args:
        a, b: matrices of one type; any sizes.
        fp8: how.
        history: for ``scaling="delayed"``.
        thin: which of ``a``, ``b`` and the gradient of the result have ``fp8.terms`` terms; the others have one.

    Returns:
        In the type of autocast where that is on, else in that of ``a``.

    Raises:
        ValueError: delayed scaling without a history, or a kernel that the device does not have.

    Example:
        >>> a, b = torch.randn(5, 30), torch.randn(7, 30)
        >>> error = product(a, b, FP8()) - a @ b.t()
        >>> bool((error.abs() <= 0.15 * (a.abs() @ b.abs().t())).all())
        True
    """
    if has_torch_function((a, b)):
        options: dict[str, Any] = {} if history is None else {"history": history}
        return handle_torch_function(product, (a, b), a, b, fp8, thin=thin, **options)
    if fp8.scaling == "delayed" and history is None:
        raise ValueError('scaling="delayed" needs a history, as lowprec.use_fp8 gives to layers.')
    device = a.device.type
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else a.dtype
    terms = tuple(fp8.terms if one else 1 for one in thin)
    return _Product.apply(fp8, history, kind, terms, a, b)


class _Product(torch.autograd.Function):
    """The three products of a linear map. Kept are ``a`` and ``b`` themselves, which other operations keep as well."""

    @staticmethod
    def forward(
        ctx: Any,
        fp8: FP8,
        history: AmaxHistory | None,
        kind: torch.dtype,
        terms: tuple[int, int, int],
        a_TK: torch.Tensor,
        b_MK: torch.Tensor,
    ) -> torch.Tensor:
        ctx.fp8, ctx.history, ctx.terms = fp8, history, terms
        factors = [
            None if history is None else history.factor(place, x, FORWARD) for place, x in enumerate((a_TK, b_MK))
        ]
        ctx.save_for_backward(a_TK, b_MK, *factors)
        left = _operand(a_TK, FORWARD, fp8, factors[0], terms[0])
        right = _operand(b_MK, FORWARD, fp8, factors[1], terms[1])
        return _multiplied(left, right, fp8, kind)[: len(a_TK), : len(b_MK)]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_TM: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a_TK, b_MK, a_factor, b_factor = ctx.saved_tensors
        fp8, history = ctx.fp8, ctx.history
        a_terms, b_terms, terms = ctx.terms
        factor = None if history is None else history.factor(2, gradient_TM, GRADIENTS)
        da_TK = db_MK = left = None
        if ctx.needs_input_grad[4]:
            left = _operand(gradient_TM, GRADIENTS, fp8, factor, terms)
            right = _operand(b_MK.t(), FORWARD, fp8, b_factor, b_terms)
            da_TK = _multiplied(left, right, fp8, a_TK.dtype)[: a_TK.shape[0], : a_TK.shape[1]]
        if ctx.needs_input_grad[5]:
            if left is not None and fp8.scales == "tensor":  # turned round it has the same numbers
                left = [Quantized(term.values.t().contiguous(), term.scale) for term in left]
            else:
                left = _operand(gradient_TM.t(), GRADIENTS, fp8, factor, terms)
            right = _operand(a_TK.t(), FORWARD, fp8, a_factor, a_terms)
            db_MK = _multiplied(left, right, fp8, b_MK.dtype)[: b_MK.shape[0], : b_MK.shape[1]]
        return None, None, None, None, da_TK, db_MK


def _operand(x: torch.Tensor, dtype: torch.dtype, fp8: FP8, factor: torch.Tensor | None, terms: int) -> list[Quantized]:
    """Return the padded operand in one term or two of the same factor, in rows, as kernels require."""
    x = padded(x)
    first = quantize(x, dtype, fp8.scales, factor)
    found = [first] if terms == 1 else [first, quantize(x - first.dequantized(), dtype, fp8.scales, first.scale)]
    return [Quantized(term.values.contiguous(), term.scale) for term in found]


def _multiplied(left: Sequence[Quantized], right: Sequence[Quantized], fp8: FP8, kind: torch.dtype) -> torch.Tensor:
    """Return the sum of the products of all terms, but for that of the two second ones, in one call of the kernel."""
    put_out = torch.bfloat16 if kind == torch.bfloat16 else torch.float32
    kernel = products_on(left[0].values.device, fp8)
    if len(left) == len(right) == 2:  # the rank is summed over
        left = [_beside([left[0], left[1], left[0]], 1)]
        right = [_beside([right[0], right[0], right[1]], 1)]
    rows = len(left), len(right)
    found = scaled_product(_beside(left, 0), _beside(right, 0), put_out, kernel)
    for dim, count in enumerate(rows):
        if count == 2:
            first, second = found.chunk(2, dim)
            found = first + second
    return found.to(kind)


def _beside(terms: Sequence[Quantized], dim: int) -> Quantized:
    """Join terms of one operand: as more rows (``dim`` 0), or as more summands (1)."""
    if len(terms) == 1:
        return terms[0]
    scale = terms[0].scale
    if dim == 0 and scale.dim():
        scale = torch.cat([term.scale for term in terms])
    # Concatenation has no FP8; its bytes are those of whole numbers.
    values = torch.cat([term.values.view(torch.uint8) for term in terms], dim).view(terms[0].values.dtype)
    return Quantized(values, scale)


def thin_linear(
    x: torch.Tensor,
    left_RN: torch.Tensor,
    right_RM: torch.Tensor,
    bias: torch.Tensor | None,
    fp8: FP8,
    histories: Sequence[AmaxHistory] = (),
) -> torch.Tensor:
    """Compute ``(x · leftᵀ) · right + bias``, (…, N) to (…, M), both products in FP8.

    Args:
        x: activations.
        left_RN, right_RM: the merged halves of a tensor train, or the factors of a two-factor layer.
        bias: (M,), added in the type of the products.
        fp8: how.
        histories: two, for ``scaling="delayed"``.

    Example:
        >>> x, left, right = torch.ones(2, 5, 48), torch.ones(3, 48), torch.ones(3, 24)
        >>> thin_linear(x, left, right, None, FP8())[0, 0, :2].round()
        tensor([144., 144.])
    """
    first, second = histories or (None, None)
    z_TR = product(x.reshape(-1, x.shape[-1]), left_RN.to(x.dtype), fp8, first, _INTO_RANK)
    y_TM = product(z_TR, right_RM.t().to(z_TR.dtype), fp8, second, _OUT_OF_RANK)
    y_TM = y_TM if bias is None else y_TM + bias.to(y_TM.dtype)
    return y_TM.view(*x.shape[:-1], right_RM.shape[1])


def histories_of(layer: nn.Module) -> list[AmaxHistory]:
    """Return the histories that :func:`use_fp8` gave a layer for delayed scaling; empty without."""
    return [module for module in layer._modules.get("histories") or () if isinstance(module, AmaxHistory)]  # type: ignore[union-attr]


def use_fp8(model: nn.Module, fp8: FP8 | None = None) -> list[str]:
    """Have the layers of a model that can form their products in FP8 do so: tensorized linear ones, two-factor ones.

    Args:
        model: any module; its layers with an attribute ``fp8`` are meant.
        fp8: how; None ends it.

    Returns:
        The names of these layers. Delayed scaling gives each of them two more buffers.

    Example:
        >>> from comera import TT, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)), {"0": TT(ranks=4)})
        >>> use_fp8(model, FP8())
        ['0']
    """
    found = {name: module for name, module in model.named_modules() if hasattr(type(module), "fp8")}
    for module in found.values():
        module.fp8 = fp8
        module._modules.pop("histories", None)
        if fp8 is not None and fp8.scaling == "delayed":
            device = next(module.parameters()).device
            module.histories = nn.ModuleList([AmaxHistory(fp8.history, device) for _ in range(2)])
    return list(found)
