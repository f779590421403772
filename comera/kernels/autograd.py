"""The kernels as a function with a backward pass. Shape suffixes as in :mod:`comera.kernels.feed_forward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton import cdiv

from comera.kernels import feed_forward
from comera.kernels.launch import Tile, launch

#: Tokens that a program of a columns kernel should at least sum over, and the most parts that there are.
_PART, _PARTS = 1024, 8

#: A multiple of every BLOCK_M, so that the parts of the tokens depend on nothing but their number.
_BLOCKS = 128


def _parts(tokens: int) -> tuple[int, int]:
    """Return the number of parts of the tokens, and the tokens of each but the last.

    >>> _parts(0), _parts(3000), _parts(100_000)
    ((1, 128), (2, 1536), (8, 12544))
    """
    wanted = min(max(tokens // _PART, 1), _PARTS)
    part = max(cdiv(tokens, wanted * _BLOCKS), 1) * _BLOCKS
    return max(cdiv(tokens, part), 1), part


def _over_tokens(tokens: int) -> Callable[[Tile], tuple[int, ...]]:
    """Return a grid of programs with BLOCK_M tokens each."""
    return lambda tile: (cdiv(tokens, tile["BLOCK_M"]),)


def _over_columns(columns: int, parts: int) -> Callable[[Tile], tuple[int, ...]]:
    """Return a grid of programs with BLOCK_N columns and a part of the tokens each."""
    return lambda tile: (cdiv(columns, tile["BLOCK_N"]), parts)


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
        P, Q, T = len(right1_PH), len(left2_QH), z1_PT.shape[1]
        z2_QT = z1_PT.new_empty(Q, T)
        if T:
            given = _hidden_arguments(activation, z1_PT, right1_PH, bias1_H, left2_QH)
            launch(feed_forward.hidden_forward, _over_tokens(T), (P, Q), **given, z2=z2_QT)
        ctx.activation = activation
        ctx.save_for_backward(z1_PT, right1_PH, bias1_H, left2_QH)
        return z2_QT

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dz2_QT: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        z1_PT, right1_PH, bias1_H, left2_QH = ctx.saved_tensors
        (P, H), Q, T = right1_PH.shape, len(left2_QH), z1_PT.shape[1]
        given = _hidden_arguments(ctx.activation, z1_PT, right1_PH, bias1_H, left2_QH) | {"dz2": dz2_QT.contiguous()}
        dz1_PT, gradients = None, [None, None, None]
        if ctx.needs_input_grad[1]:
            dz1_PT = torch.empty_like(z1_PT)
            if T:
                launch(feed_forward.hidden_backward_rows, _over_tokens(T), (P, Q), **given, dz1=dz1_PT)
        if any(ctx.needs_input_grad[2:]):
            parts, part = _parts(T)
            sums = z1_PT.new_empty(parts, P + Q + 1, H, dtype=torch.float32)
            over = _over_columns(H, parts)
            launch(feed_forward.hidden_backward_columns, over, (P, Q), **given, sums=sums, part=part)
            dright1_PH, dleft2_QH, last = sums.sum(0).to(z1_PT.dtype).split([P, Q, 1])
            gradients = [dright1_PH, None if bias1_H is None else last[0], dleft2_QH]
        return None, dz1_PT, *gradients


def _hidden_arguments(
    activation: str,
    z1_PT: torch.Tensor,
    right1_PH: torch.Tensor,
    bias1_H: torch.Tensor | None,
    left2_QH: torch.Tensor,
) -> dict[str, Any]:
    """Return the arguments that all three kernels of the hidden features share."""
    return {
        "z1": z1_PT,
        "right1": right1_PH,
        "bias1": bias1_H,
        "left2": left2_QH,
        "T": z1_PT.shape[1],
        "H": right1_PH.shape[1],
        "P": len(right1_PH),
        "Q": len(left2_QH),
        "HAS_BIAS": bias1_H is not None,
        "ACTIVATION": activation,
    }
