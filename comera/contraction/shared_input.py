"""One product for several TT layers that read the same input, as query, key and value do.

Each layer's first product is thin: ``rank`` columns for a read of the whole input, and a sum of full width in backward
for every layer but the first. Stacked, the left halves read it once, and the gradient of the input is one product.
Halves that were merged together lie behind each other, so that stacking them copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from comera.compatibility.autocast import autocast_type, without_autocast


def _stacked(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return matrices (P_i, N) as one: without a copy where they follow each other, as halves merged together do."""
    first = parts[0]
    end = first.storage_offset()
    for part in parts:
        is_same = part.untyped_storage()._cdata == first.untyped_storage()._cdata
        if not (is_same and part.storage_offset() == end and part.is_contiguous()):
            return torch.cat(list(parts))
        end += part.numel()
    return first.as_strided((sum(map(len, parts)), first.shape[1]), first.stride())


class _StackedProducts(torch.autograd.Function):
    """``left_i · xᵀ`` for several left halves; a half whose product took no part has no gradient."""

    @staticmethod
    def forward(ctx: Any, x_TN: torch.Tensor, *lefts_PN: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x_TN, *lefts_PN)
        return torch.mm(_stacked(lefts_PN), x_TN.t()).split([len(left) for left in lefts_PN])

    @staticmethod
    def backward(ctx: Any, *dz_PT: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        x_TN, *lefts_PN = ctx.saved_tensors
        used = [place for place, gradient in enumerate(dz_PT) if gradient is not None]
        gradients: list[torch.Tensor | None] = [None] * (1 + len(lefts_PN))
        if used:
            stacked = torch.cat([gradient for gradient in dz_PT if gradient is not None])
            if ctx.needs_input_grad[0]:
                gradients[0] = torch.mm(stacked.t(), _stacked([lefts_PN[place] for place in used]))
            if any(ctx.needs_input_grad[1 + place] for place in used):
                parts = torch.mm(stacked, x_TN).split([len(lefts_PN[place]) for place in used])
                for place, part in zip(used, parts, strict=True):
                    gradients[1 + place] = part
        return tuple(gradients)


def stacked_products(x: torch.Tensor, lefts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return ``left · xᵀ`` for each left half, with one read of ``x``.

    Args:
        x: (…, N).
        lefts: (P_i, N) each.

    Returns:
        (P_i, T) each, T the number of rows of ``x``, in the type of autocast where that is on.

    Example:
        >>> x, lefts = torch.ones(2, 3, 8), [torch.ones(2, 8), torch.ones(4, 8)]
        >>> [tuple(z.shape) for z in stacked_products(x, lefts)]
        [(2, 6), (4, 6)]
    """
    x_TN = x.reshape(-1, x.shape[-1])
    kind = autocast_type(x.device.type)
    if kind is None or x.dtype == torch.float64:  # which autocast leaves as it is
        return _StackedProducts.apply(x_TN, *lefts)
    with without_autocast(x.device.type):
        return _StackedProducts.apply(x_TN.to(kind), *(left.to(kind) for left in lefts))
