"""The operators of the kernels as functions with a backward pass.

Shape suffixes as in :mod:`comera.kernels.feed_forward` and :mod:`comera.kernels.epilogue`.
"""

from __future__ import annotations

from typing import Any

import torch

import comera.kernels.operators  # noqa: F401 - it registers them

_ops = torch.ops.comera


class Hidden(torch.autograd.Function):
    """See :func:`comera.kernels.hidden`. Saved for backward: z1, and what is multiplied with it."""

    @staticmethod
    def forward(
        ctx: Any,
        activation: str,
        z1_PT: torch.Tensor,
        right1_PH: torch.Tensor,
        bias1_H: torch.Tensor | None,
        left2_QH: torch.Tensor,
    ) -> torch.Tensor:
        z1_PT, right1_PH, left2_QH = z1_PT.contiguous(), right1_PH.contiguous(), left2_QH.contiguous()
        ctx.activation = activation
        ctx.save_for_backward(z1_PT, right1_PH, bias1_H, left2_QH)
        result: torch.Tensor = _ops.hidden(activation, z1_PT, right1_PH, bias1_H, left2_QH)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dz2_QT: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        z1_PT, right1_PH, bias1_H, left2_QH = ctx.saved_tensors
        given = (ctx.activation, z1_PT, right1_PH, bias1_H, left2_QH, dz2_QT.contiguous())
        dz1_PT = _ops.hidden_rows(*given) if ctx.needs_input_grad[1] else None
        gradients = [None, None, None]
        if any(ctx.needs_input_grad[2:]):
            sums = _ops.hidden_columns(*given).sum(0).to(z1_PT.dtype)
            dright1_PH, dleft2_QH, last = sums.split([len(right1_PH), len(left2_QH), 1])
            gradients = [dright1_PH, None if bias1_H is None else last[0], dleft2_QH]
        return None, dz1_PT, *gradients


class AddNorm(torch.autograd.Function):
    """See :func:`comera.kernels.add_norm`. Saved for backward: the sum, two numbers per token, dropout's bits."""

    @staticmethod
    def forward(
        ctx: Any,
        p: float,
        eps: float,
        dtype: torch.dtype,
        y_TM: torch.Tensor,
        residual_TM: torch.Tensor,
        weight_M: torch.Tensor,
        shift_M: torch.Tensor,
    ) -> torch.Tensor:
        given = (y_TM.contiguous(), residual_TM.contiguous(), weight_M, shift_M, p, eps, dtype)
        out_TM, total_TM, statistics, bits = _ops.add_norm(*given)
        ctx.p, ctx.kinds = p, (residual_TM.dtype, y_TM.dtype)
        ctx.save_for_backward(total_TM, weight_M, statistics, bits)
        result: torch.Tensor = out_TM
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout_TM: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        given = (dout_TM.contiguous(), *ctx.saved_tensors, ctx.p, *ctx.kinds)
        dresidual_TM, dy_TM, sums = _ops.add_norm_backward(*given)
        dweight_M, dshift_M = sums.sum(0).to(ctx.saved_tensors[1].dtype)
        return None, None, None, dy_TM, dresidual_TM, dweight_M, dshift_M
