"""``nn.MultiheadAttention`` with its projections as layers of their own, so that each can be tensorized.

torch keeps the weights of query, key and value in one parameter, which no layer stands for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class SplitAttention(nn.Module):
    """``nn.MultiheadAttention`` with its projections as four linear layers: q_proj, k_proj, v_proj, out_proj.

    Args:
        attention: which must be one that :func:`unsplittable` has nothing against; its weights are copied, its output
            projection is taken over.

    Shape:
        as ``nn.MultiheadAttention``, with and without a batch, masks alike. Nested tensors are not taken.

    Example:
        >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.randn(3, 5, 8)
        >>> torch.allclose(SplitAttention(attention)(x, x, x)[0], attention(x, x, x)[0], atol=1e-6)
        True
    """

    #: Attributes that layers of torch read before they bypass the attention's forward.
    in_proj_bias = in_proj_weight = None
    _qkv_same_embed_dim = False

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout = attention.embed_dim, attention.num_heads, attention.dropout
        self.batch_first = attention.batch_first
        packed, biases = attention.in_proj_weight, attention.in_proj_bias
        weights = [getattr(attention, f"{name}_weight") for name in PROJECTIONS] if packed is None else packed.chunk(3)
        parts = [None] * 3 if biases is None else biases.chunk(3)
        for name, weight, bias in zip(PROJECTIONS, weights, parts, strict=True):
            linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
            trained = weight.requires_grad if packed is None else packed.requires_grad
            linear.weight = nn.Parameter(weight.detach().clone(), trained)
            if bias is not None and biases is not None:
                linear.bias = nn.Parameter(bias.detach().clone(), biases.requires_grad)
            self.add_module(name, linear.train(attention.training))
        self.out_proj = attention.out_proj
        self.train(attention.training)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if is_causal and attn_mask is None:
            raise ValueError("is_causal says what attn_mask is, and there is none; give both.")
        batched = query.dim() == 3
        q, k, v = (self._projected(name, x, batched) for name, x in zip(PROJECTIONS, (query, key, value), strict=True))
        mask = _mask(attn_mask, key_padding_mask if batched else _one(key_padding_mask), q, k)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
            heads = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        output = self.out_proj(heads.transpose(1, 2).flatten(2))  # (B, L, D)
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _projected(self, name: str, x: torch.Tensor, batched: bool) -> torch.Tensor:
        """Return the projections as (B, heads, L, D / heads)."""
        y = getattr(self, name)(x)
        if not batched:
            y = y.unsqueeze(0)
        elif not self.batch_first:
            y = y.transpose(0, 1)
        return y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def _one(mask: torch.Tensor | None) -> torch.Tensor | None:
    return None if mask is None else mask.unsqueeze(0)


def _mask(
    attn_mask: torch.Tensor | None, padding: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor
) -> torch.Tensor | None:
    """Return both masks as numbers to add to scores, (B or 1, heads or 1, L or 1, S)."""
    added = None
    if attn_mask is not None:
        added = _numbers(attn_mask, q.dtype)
        added = added[None, None] if added.dim() == 2 else added.view(q.shape[0], -1, q.shape[2], k.shape[2])
    if padding is not None:
        numbers = _numbers(padding, q.dtype)[:, None, None]
        added = numbers if added is None else added + numbers
    return added


def _numbers(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a mask that is true, or -inf, where nothing is attended to."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


def unsplittable(module: nn.Module) -> str | None:
    """Explain why an attention cannot be split, to complete "the attention …"; None if it can.

    Example:
        >>> unsplittable(nn.MultiheadAttention(8, 2, add_zero_attn=True))
        'uses add_zero_attn'
    """
    if type(module) is not nn.MultiheadAttention or "forward" in vars(module):
        return "has a forward of its own"
    if module.bias_k is not None or module.add_zero_attn:
        return "uses add_zero_attn" if module.add_zero_attn else "uses add_bias_kv"
    if module._forward_pre_hooks or module._forward_hooks or hasattr(module, "parametrizations"):
        return "has hooks or parametrizations"
    return None


def split_attention(model: nn.Module, wanted: Callable[[str], bool]) -> tuple[nn.Module, Callable[[], None]]:
    """Put a :class:`SplitAttention` in place of attention modules of torch whose names match.

    Returns:
        The model, or what replaces it if it is an attention itself, and a function that puts everything back.
    """
    places: list[tuple[nn.Module, str, nn.Module]] = []
    split: dict[nn.Module, SplitAttention] = {}
    for name, module in [*model.named_modules(remove_duplicate=False)]:
        if isinstance(module, nn.MultiheadAttention) and unsplittable(module) is None and wanted(name):
            split.setdefault(module, SplitAttention(module))
            if name:
                parent, _, child = name.rpartition(".")
                places.append((model.get_submodule(parent), child, module))
    for parent, child, module in places:
        setattr(parent, child, split[module])

    def undo() -> None:
        for parent, child, module in places:
            setattr(parent, child, module)

    return split.get(model, model), undo
