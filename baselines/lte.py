"""LTE (LoRA-the-Explorer): many adapter heads, averaged into the main weight.

Heads train on shards of the batch. Source: arXiv 2402.16828 and the facts of its public form; written here from the
formulas.

Legend: B batch, H heads, T rows of one head (B/H times the inner dimensions), R rank, N in-features, M out-features,
s = alpha / rank.

The reset-less merge. Head h has adapters A_h (R, N), B_h (M, R) and A'_h, B'_h, their values at the last merge (zero
before the first). What the main weight W already holds must not count twice, so the adapters count by their change:

    training   y_h = x_h Wᵀ + bias + s · x_h (B_h A_h − B'_h A'_h)ᵀ
    merge      W ← W + s/H · Σ_h (B_h A_h − B'_h A'_h),   then A'_h ← A_h, B'_h ← B_h

Hence a merge of one head leaves the function as it was, and the adapters keep their values and Adam moments. The price
is a second, gradient-free pair of products per layer and a second copy of the adapters. With ``reset`` the classical
form is used instead: no copies, and after a merge B is zeroed, A kept and the Adam state of both cleared.

Evaluation uses the averaged weight, W + s/H · Σ_h (B_h A_h − B'_h A'_h): what a merge at this moment would give. It
does not depend on when the last merge was, and takes any batch. (The public form evaluates with W alone, so without
what was learnt since the last merge; right after a merge the two agree.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from baselines._arm import (
    TrainedArm,
    check_count,
    check_flag,
    check_positive,
    check_variant,
    fused_adamw,
    linear_targets,
    parameters_apart,
    replace_module,
    stored_bytes,
)
from comera.protocol import CellView, Change, RareEvent

VARIANTS = ("",)


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of LTE.

    Args:
        rank: rank of each head (the comparison's: 32).
        heads: number of heads; the batch must be a multiple of it (the comparison's: 16).
        merge_every: steps between two merges. The public form merges every step by default and every 10 in its
            example; more than one is the point of the method.
        alpha: adapters are scaled by ``alpha / rank``. Ours: as in the LoRA arm. The public example uses 4096, for
            far smaller rates; under Adam mostly the product of scale and rate counts.
        reset: zero B and clear the adapters' Adam state at each merge instead of the reset-less form.
        lr_adapters: rate of the adapters.
        lr: rate of all other trainable parameters.

    Raises:
        ValueError: when a count is not a whole number from 1 up, or another number is not finite and above 0.
    """

    rank: int = 32
    heads: int = 16
    merge_every: int = 10
    alpha: float = 64.0
    reset: bool = False
    lr_adapters: float = 1e-4
    lr: float = 5e-5

    def __post_init__(self) -> None:
        check_count("lte.rank", self.rank)
        check_count("lte.heads", self.heads)
        check_count("lte.merge_every", self.merge_every)
        check_positive("lte.alpha", self.alpha)
        check_flag("lte.reset", self.reset)
        check_positive("lte.lr_adapters", self.lr_adapters)
        check_positive("lte.lr", self.lr)


class LTELinear(nn.Module):
    """A linear layer whose frozen weight is moved by merges of H adapter heads.

    Args:
        linear: the dense layer; its weight is frozen and its bias trains on.
        rank: R.
        heads: H.
        alpha: the scale is ``alpha / rank``.
        reset: use the classical merge instead of the reset-less one.

    Shapes:
        input (B, ..., N), output (B, ..., M); ``weight`` (M, N), ``bias`` (M,), ``adapter_a`` (H, R, N) with
        orthogonal rows of length √(N/R), ``adapter_b`` (H, M, R) zero; ``merged_a``, ``merged_b`` are their values at
        the last merge. In training each head takes ⌈B/H⌉ examples, in order; where B is no multiple of H, as in the
        last batch of an epoch, the last heads have fewer or none.

    Raises:
        ValueError: in training, an input without a batch dimension.

    Example:
        >>> layer = LTELinear(nn.Linear(6, 4), rank=2, heads=3)
        >>> layer(torch.ones(9, 5, 6)).shape
        torch.Size([9, 5, 4])
        >>> layer.eval()(torch.ones(1, 6)).shape
        torch.Size([1, 4])
    """

    bias: nn.Parameter | None
    merged_a: torch.Tensor | None
    merged_b: torch.Tensor | None

    def __init__(self, linear: nn.Linear, rank: int, heads: int, alpha: float = 64.0, reset: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.scale = alpha / rank
        self.weight = linear.weight.requires_grad_(False)
        self.register_parameter("bias", linear.bias)
        shape_a, shape_b = (heads, rank, linear.in_features), (heads, linear.out_features, rank)
        like = {"dtype": self.weight.dtype, "device": self.weight.device}
        self.adapter_a = nn.Parameter(_scaled_orthogonal(*shape_a).to(**like))  # type: ignore[call-overload]
        self.adapter_b = nn.Parameter(torch.zeros(shape_b, **like))  # type: ignore[call-overload]
        self.register_buffer("merged_a", None if reset else torch.zeros_like(self.adapter_a, requires_grad=False))
        self.register_buffer("merged_b", None if reset else torch.zeros_like(self.adapter_b, requires_grad=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, ..., N) to (B, ..., M): sharded over the heads in training, by the averaged weight otherwise."""
        if not self.training:
            return functional.linear(x, self.averaged_weight(), self.bias)
        if x.dim() < 2:
            raise ValueError(f"LTE got an input of shape {tuple(x.shape)}; its first dimension must be the batch.")
        if missing := -x.shape[0] % self.heads:  # rows of zeros fill the heads up: they add nothing to any gradient
            return self.forward(functional.pad(x, [0, 0] * (x.dim() - 1) + [0, missing]))[: x.shape[0]]
        y = functional.linear(x, self.weight, self.bias)
        shape = y.shape
        x_HTN = x.reshape(self.heads, -1, x.shape[-1])
        y = y.reshape(self.heads, -1, shape[-1])  # (H, T, M)
        y = _add_heads(y, x_HTN, self.adapter_a, self.adapter_b, self.scale)
        if self.merged_a is not None and self.merged_b is not None:
            y = _add_heads(y, x_HTN, self.merged_a, self.merged_b, -self.scale)
        return y.reshape(shape)

    def averaged_weight(self) -> torch.Tensor:
        """Return the main weight with the heads' unmerged change averaged in, (M, N)."""
        share = self.scale / self.heads
        weight = torch.addmm(self.weight, _side_by_side(self.adapter_b), self.adapter_a.flatten(0, 1), alpha=share)
        if self.merged_a is not None and self.merged_b is not None:
            weight = torch.addmm(weight, _side_by_side(self.merged_b), self.merged_a.flatten(0, 1), alpha=-share)
        return weight

    @torch.no_grad()
    def merge(self) -> None:
        """Move the heads' averaged change into the main weight, in place and in the weight's own precision."""
        with torch.autocast(self.weight.device.type, enabled=False):
            self.weight.copy_(self.averaged_weight())
        if self.merged_a is not None and self.merged_b is not None:
            self.merged_a.copy_(self.adapter_a)
            self.merged_b.copy_(self.adapter_b)
        else:
            self.adapter_b.zero_()

    def extra_repr(self) -> str:
        """Return the sizes, as torch.nn prints them."""
        heads, rank, in_features = self.adapter_a.shape
        return (
            f"in_features={in_features}, out_features={self.weight.shape[0]}, bias={self.bias is not None}, "
            f"rank={rank}, heads={heads}"
        )


def _add_heads(
    y_HTM: torch.Tensor, x_HTN: torch.Tensor, a_HRN: torch.Tensor, b_HMR: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return y_h + scale · x_h A_hᵀ B_hᵀ for every head, (H, T, M)."""
    return torch.baddbmm(y_HTM, torch.bmm(x_HTN, a_HRN.mT), b_HMR.mT, alpha=scale)


def _side_by_side(b_HMR: torch.Tensor) -> torch.Tensor:
    """Return the heads' B as one matrix (M, H·R), so that its product with the stacked A sums over the heads."""
    return b_HMR.transpose(0, 1).flatten(1)


def _scaled_orthogonal(heads: int, rank: int, in_features: int) -> torch.Tensor:
    """Return one A per head, (H, R, N): orthogonal rows of length √(N/R)."""
    stacked = torch.empty(heads, rank, in_features)
    for a_RN in stacked:
        nn.init.orthogonal_(a_RN, gain=math.sqrt(in_features / rank))
    return stacked


class LTE(TrainedArm):
    """LTE on the linear targets."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def unsupported(self, cell: CellView) -> str | None:
        """Return a batch that cannot be sharded equally over the heads."""
        heads = self.settings.heads
        if cell.batch_size % heads:
            return f"LTE shards the batch over {heads} heads, and batch size {cell.batch_size} is no multiple of that."
        return None

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Replace the linear targets in ``model`` by :class:`LTELinear`."""
        s = self.settings
        for name, linear in linear_targets(model, targets).items():
            replace_module(model, name, LTELinear(linear, s.rank, s.heads, s.alpha, s.reset))
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return fused AdamW over adapters and, at their own rate, all other trainable parameters."""
        adapters = [weight for layer in _layers(model) for weight in (layer.adapter_a, layer.adapter_b)]
        return fused_adamw(
            (adapters, self.settings.lr_adapters),
            (parameters_apart(model, adapters), self.settings.lr),
        )

    def after_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Change:
        """Merge after every ``merge_every`` steps."""
        if (step + 1) % self.settings.merge_every:
            return "nothing"
        self.merge(model, optimizer)
        return "values"

    def rare_events(self) -> list[RareEvent]:
        """Return the event ``merge``, as :meth:`after_step` makes it."""
        every = self.settings.merge_every
        return [RareEvent("merge", every, every - 1, self.merge)]

    def merge(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Merge every layer and, with ``reset``, clear the adapters' Adam state."""
        for layer in _layers(model):
            layer.merge()
            if self.settings.reset:
                for weight in (layer.adapter_a, layer.adapter_b):
                    for value in optimizer.state.get(weight, {}).values():
                        value.zero_()

    def stored_size(self, model: nn.Module) -> int:
        """Return the bytes of the model with all heads merged into the main weights, which is the dense size."""
        own = ("adapter_a", "adapter_b", "merged_a", "merged_b")
        names = {f"{path}.{name}" for path, m in model.named_modules() if isinstance(m, LTELinear) for name in own}
        return stored_bytes(tensor for name, tensor in model.state_dict().items() if name not in names)


def _layers(model: nn.Module) -> list[LTELinear]:
    return [module for module in model.modules() if isinstance(module, LTELinear)]


def build(settings: Settings, variant: str = "") -> LTE:
    """Return the LTE arm.

    Args:
        settings: hyperparameters.
        variant: ``""``, the only one.

    Raises:
        ValueError: for an unknown variant.

    Example:
        >>> model = nn.Sequential(nn.Linear(6, 4))
        >>> arm = build(Settings(rank=2, heads=3, merge_every=1))
        >>> model = arm.adapt(model, {"0": "classifier"})
        >>> optimizer = arm.optimizer(model)
        >>> model(torch.ones(9, 6)).sum().backward()
        >>> optimizer.step()
        >>> arm.after_step(model, optimizer, step=0)
        'values'
    """
    check_variant("lte", variant, VARIANTS)
    return LTE(settings)
