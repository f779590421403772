"""A batched matrix product that writes its result, and every gradient, in the memory order that its user needs.

``torch.bmm`` reads operands of any strides whose rows or columns are contiguous, but writes each result row by row.
Where an operand came from a permutation, its gradient then has to be permuted back number by number, which takes as
long as the products of small blocks. :func:`batched_product` writes a gradient in the order of its operand, and the
result in a given order, so that no permutation needs a copy.

Letters in names of dimensions: G products, A rows, K inner numbers, C columns.
"""

from __future__ import annotations

from typing import Any

import torch

from comera.compatibility.autocast import autocast_type

#: The dimensions of a result, the one with the largest stride first.
Order = tuple[int, int, int]

ROW_BY_ROW: Order = (0, 1, 2)
ROWS_OUTSIDE: Order = (1, 0, 2)  #: As (A, G, C) in memory: the columns of all products lie side by side in a row.


def plain_product(
    left_GAK: torch.Tensor, right_GKC: torch.Tensor, bias_G1C: torch.Tensor | None = None, order: Order = ROW_BY_ROW
) -> torch.Tensor:
    """Multiply matrix by matrix, (G, A, K) by (G, K, C) to (G, A, C), and add a bias (G, 1, C) to each row.

    ``order`` has no effect: a compiler chooses its own, and with few rows a copy is cheap.

    Example:
        >>> plain_product(torch.ones(2, 4, 3), torch.ones(2, 3, 5)).shape
        torch.Size([2, 4, 5])
    """
    del order
    return torch.bmm(left_GAK, right_GKC) if bias_G1C is None else torch.baddbmm(bias_G1C, left_GAK, right_GKC)


def batched_product(
    left_GAK: torch.Tensor, right_GKC: torch.Tensor, bias_G1C: torch.Tensor | None = None, order: Order = ROW_BY_ROW
) -> torch.Tensor:
    """Multiply as :func:`plain_product` does, with the result in a memory order, and gradients in that of the operands.

    The gradient of an operand with the memory order of (K, G, A), such as a view of it, has that order as well. Under
    autocast the product is formed in autocast's type.

    Example:
        >>> left = torch.ones(2, 4, 3).transpose(1, 2).requires_grad_()
        >>> product = batched_product(left, torch.ones(2, 4, 5), order=ROWS_OUTSIDE)
        >>> product.sum().backward()
        >>> product.transpose(0, 1).is_contiguous(), left.grad.stride() == left.stride()
        (True, True)
    """
    kind = autocast_type(left_GAK.device.type)
    if kind is not None and left_GAK.dtype != torch.float64:  # which autocast leaves as it is
        # autocast ends before backward: cast where autograd sees it
        left_GAK, right_GKC = left_GAK.to(kind), right_GKC.to(kind)
        bias_G1C = None if bias_G1C is None else bias_G1C.to(kind)
    product: torch.Tensor = _BatchedProduct.apply(left_GAK, right_GKC, bias_G1C, order)
    return product


class _BatchedProduct(torch.autograd.Function):
    @staticmethod
    def forward(left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None, order: Order) -> torch.Tensor:
        sizes = (left.shape[0], left.shape[1], right.shape[2])
        strides, numbers = [0, 0, 0], 1
        for dimension in reversed(order):
            strides[dimension], numbers = numbers, numbers * sizes[dimension]
        product = left.new_empty_strided(sizes, strides)
        # Column by column, PyTorch 2.13 multiplies bfloat16 on a CPU by a plain loop.
        if strides[1] == 1 != strides[2] and (left.device.type, left.dtype) == ("cpu", torch.bfloat16):
            torch.bmm(right.transpose(1, 2), left.transpose(1, 2), out=product.transpose(1, 2))
        else:
            torch.bmm(left, right, out=product)
        return product if bias is None else product.add_(bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG004
        left, right, *_ = inputs
        ctx.save_for_backward(left, right)
        ctx.save_for_forward(left, right)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        left, right = ctx.saved_tensors
        of_left, of_right, of_bias, _ = ctx.needs_input_grad
        product = _BatchedProduct.apply
        return (
            product(gradient, right.transpose(1, 2), None, _order_of(left)) if of_left else None,
            product(left.transpose(1, 2), gradient, None, _order_of(right)) if of_right else None,
            gradient.sum(1, keepdim=True) if of_bias else None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None, _: None) -> torch.Tensor:
        saved_left, saved_right = ctx.saved_tensors
        tangent = torch.bmm(left, saved_right) + torch.bmm(saved_left, right)
        return tangent if bias is None else tangent + bias

    @staticmethod
    def vmap(
        info: Any,  # noqa: ARG004
        in_dims: tuple[int | None, ...],
        left: torch.Tensor,
        right: torch.Tensor,
        bias: torch.Tensor | None,
        order: Order,  # noqa: ARG004
    ) -> tuple[torch.Tensor, int]:
        return torch.vmap(plain_product, in_dims[:3])(left, right, bias), 0


def _order_of(operand: torch.Tensor) -> Order:
    first, second, third = sorted(range(3), key=operand.stride, reverse=True)
    return first, second, third
