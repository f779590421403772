"""A batched matrix product whose gradients lie in memory as its operands do.

``torch.bmm`` takes operands whose matrices lie transposed as they are, but writes every gradient row by row. Where an
operand came from a permutation, its gradient then has to be permuted back number by number, which takes as long as the
products of small blocks. ``torch.mm`` picks the order by its operands; :func:`batched_product` does so for batches.

Letters in names of dimensions: G products, A rows, K inner numbers, C columns.
"""

from __future__ import annotations

from typing import Any

import torch


def plain_product(
    left_GAK: torch.Tensor, right_GKC: torch.Tensor, bias_G1C: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply matrix by matrix, (G, A, K) by (G, K, C) to (G, A, C), and add a bias (G, 1, C) to each row.

    Example:
        >>> plain_product(torch.ones(2, 4, 3), torch.ones(2, 3, 5)).shape
        torch.Size([2, 4, 5])
    """
    return torch.bmm(left_GAK, right_GKC) if bias_G1C is None else torch.baddbmm(bias_G1C, left_GAK, right_GKC)


def batched_product(
    left_GAK: torch.Tensor, right_GKC: torch.Tensor, bias_G1C: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply as :func:`plain_product` does, with gradients in the memory order of the operands.

    The gradient of an operand whose matrices lie column by column, such as a transposed view, lies so as well. Under
    autocast it multiplies in autocast's type.

    Example:
        >>> left = torch.ones(2, 4, 3).transpose(1, 2).requires_grad_()
        >>> batched_product(left, torch.ones(2, 4, 5)).sum().backward()
        >>> left.grad.stride() == left.stride()
        True
    """
    device = left_GAK.device.type
    if torch.is_autocast_enabled(device) and left_GAK.dtype != torch.float64:  # which autocast leaves as it is
        kind = torch.get_autocast_dtype(device)  # autocast ends before backward: cast where autograd sees it
        left_GAK, right_GKC = left_GAK.to(kind), right_GKC.to(kind)
        bias_G1C = None if bias_G1C is None else bias_G1C.to(kind)
    product: torch.Tensor = _BatchedProduct.apply(left_GAK, right_GKC, bias_G1C)
    return product


class _BatchedProduct(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return plain_product(left, right, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG004
        left, right, _ = inputs
        ctx.save_for_backward(left, right)
        ctx.save_for_forward(left, right)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        left, right = ctx.saved_tensors
        of_left, of_right, of_bias = ctx.needs_input_grad
        return (
            _product_like(left, gradient, right.transpose(1, 2)) if of_left else None,
            _product_like(right, left.transpose(1, 2), gradient) if of_right else None,
            gradient.sum(1, keepdim=True) if of_bias else None,
        )

    @staticmethod
    def jvp(ctx: Any, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        saved_left, saved_right = ctx.saved_tensors
        tangent = torch.bmm(left, saved_right) + torch.bmm(saved_left, right)
        return tangent if bias is None else tangent + bias


def _product_like(operand: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return ``left @ right`` with its matrices in memory as those of ``operand``."""
    if operand.stride(1) == 1 and operand.stride(2) != 1:
        return torch.bmm(right.transpose(1, 2), left.transpose(1, 2)).transpose(1, 2)
    return torch.bmm(left, right)
