"""Coefficients of a fixed orthonormal basis: any size at full rank.

The weight of a linear target is W = Q₁ C Q₂ with fixed random orthogonal Q₁ (N, N) and Q₂ (M, M) and a C (N, M) of
which k entries at fixed random places are trained, the others zero. Products of a column of Q₁ and a row of Q₂ are an
orthonormal basis of all (N, M) matrices, so k coefficients span a random subspace of that dimension. The basis follows
from a seed, and is neither stored nor counted. This format tells a low rank from a low number of parameters (arXiv
2604.04440); it is no cheaper than dense in anything but what is stored, since its products are a dense layer's.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from baselines._arm import (
    TrainedArm,
    check_count,
    check_positive,
    check_ratio,
    check_variant,
    fused_adamw,
    linear_targets,
    parameters_apart,
    replace_module,
)
from comera.protocol import LATER, OPTIMIZERS, starts_at_zero

VARIANTS = ("",)


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of the arm.

    Args:
        ratio: how many times smaller the whole model is to be. None: each target has a quarter of its entries.
        basis_seed: from which the basis of every layer follows, with the layer's name.
        lr_coefficients, lr: constant rates of AdamW, of the coefficients and of everything else.

    Raises:
        ValueError: when the ratio is below 1, the seed no whole number from 1 up, or a rate not finite and above 0.
    """

    ratio: float | None = field(default=None, metadata=LATER)
    basis_seed: int = 1
    lr_coefficients: float = 1e-3
    lr: float = 1e-3

    def __post_init__(self) -> None:
        check_ratio("basis.ratio", self.ratio)
        check_count("basis.basis_seed", self.basis_seed)
        check_positive("basis.lr_coefficients", self.lr_coefficients)
        check_positive("basis.lr", self.lr)


class BasisLinear(nn.Module):
    """A linear layer whose weight is a combination of fixed orthonormal matrices; see the module.

    Args:
        in_features, out_features: N and M.
        count: k, from 1 to N·M.
        bias: whether there is a bias (M,).
        seed: of the basis.
        dtype, device: of all tensors.

    Shapes:
        input (..., N), output (..., M); ``coefficients`` (k,).

    Example:
        >>> layer = BasisLinear(8, 6, count=12)
        >>> layer(torch.ones(5, 3, 8)).shape, sum(parameter.numel() for parameter in layer.parameters())
        (torch.Size([5, 3, 6]), 18)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        count: int,
        bias: bool = True,
        seed: int = 1,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= count <= in_features * out_features:
            raise ValueError(f"count is {count}; allowed: 1 to the {in_features * out_features} entries of the weight.")
        self.in_features, self.out_features, self.seed = in_features, out_features, seed
        self.places: torch.Tensor
        self.first: torch.Tensor
        self.second: torch.Tensor
        place: dict[str, Any] = {"dtype": dtype, "device": device}
        self.coefficients = nn.Parameter(torch.empty(count, **place))
        self.bias = nn.Parameter(torch.zeros(out_features, **place)) if bias else None
        for name, buffer in (
            ("places", torch.empty(count, dtype=torch.int64, device=device)),
            ("first", torch.empty(in_features, in_features, **place)),
            ("second", torch.empty(out_features, out_features, **place)),
        ):
            self.register_buffer(name, buffer, persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Form the basis, and draw coefficients so that W has the spread of a dense layer: 1/N·min(1, M/N) an entry."""
        if self.coefficients.device.type != "meta":
            source = torch.Generator().manual_seed(self.seed)
            n, m = self.in_features, self.out_features
            self.places.copy_(torch.randperm(n * m, generator=source)[: self.coefficients.numel()])
            for buffer, size in ((self.first, n), (self.second, m)):
                buffer.copy_(torch.linalg.qr(torch.randn(size, size, generator=source))[0])
        entries = self.in_features * self.out_features / self.coefficients.numel()
        spread = math.sqrt(entries / self.in_features) * min(1.0, math.sqrt(self.out_features / self.in_features))
        self.coefficients.normal_(std=spread)

    def _sparse(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return C as a dense matrix (N, M)."""
        flat = coefficients.new_zeros(self.in_features * self.out_features)
        return flat.scatter(0, self.places, coefficients).view(self.in_features, self.out_features)

    def to_dense(self) -> torch.Tensor:
        """Return the weight as ``nn.Linear.weight`` has it: (M, N)."""
        return (self.first @ self._sparse(self.coefficients) @ self.second).t()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., N) to (..., M)."""
        return F.linear(x, self.to_dense(), self.bias)

    def matrix_parameters(self) -> tuple[str, ...]:
        """Return the coefficients, for :class:`comera.Muon`."""
        return ("coefficients",)

    def to_matrices(self, name: str, values: torch.Tensor) -> list[torch.Tensor]:  # noqa: ARG002 - there is one
        """Return the coefficients as (1, N, M). Q₁ and Q₂ are orthogonal, so C may be orthogonalized for Q₁ C Q₂."""
        return [self._sparse(values).unsqueeze(0)]

    def from_matrices(self, name: str, matrices: Sequence[torch.Tensor]) -> torch.Tensor:  # noqa: ARG002
        """Return the coefficients of the matrix's projection onto the subspace."""
        [[matrix]] = matrices
        return matrix.reshape(-1).gather(0, self.places)


class Basis(TrainedArm):
    """Coefficients of a fixed basis in the place of the linear targets."""

    optimizers = OPTIMIZERS

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def model_unsupported(self, model: nn.Module, targets: Mapping[str, str]) -> str | None:
        """Explain why the ratio cannot be met, with the largest that can; None if it can. Shapes suffice."""
        linears = linear_targets(model, targets)
        if not linears:
            return "basis needs a linear layer among the targets, this model has none; use dense."
        try:
            self._share(model, linears)
        except ValueError as reason:
            return str(reason)
        return None

    def _share(self, model: nn.Module, linears: Mapping[str, nn.Linear]) -> float:
        """Return the part of its entries that each layer has as coefficients."""
        ratio = self.settings.ratio
        if ratio is None:
            return 0.25
        dense = sum(parameter.numel() for parameter in model.parameters())
        matrices = sum(linear.weight.numel() for linear in linears.values())
        share = (dense / ratio - dense + matrices) / matrices
        if share * min(linear.weight.numel() for linear in linears.values()) < 1:
            kept = dense - matrices
            raise ValueError(
                f"ratio={ratio:g} is out of reach for coefficients of a basis, since {kept:,} of the model's {dense:,} "
                f"parameters stay dense; the largest within reach is below {dense / max(kept, 1):.6g}."
            )
        return share

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Put fresh coefficients in the place of the linear targets, whose biases are kept."""
        linears = linear_targets(model, targets)
        share = self._share(model, linears)
        for name, linear in linears.items():
            sizes, weight = (linear.in_features, linear.out_features), linear.weight
            count, seed = round(share * weight.numel()), zlib.crc32(f"{self.settings.basis_seed} {name}".encode())
            place: dict[str, Any] = {"dtype": weight.dtype, "device": weight.device}
            layer = BasisLinear(*sizes, count, linear.bias is not None, seed, **place)
            layer.bias = linear.bias
            if starts_at_zero(linear):
                nn.init.zeros_(layer.coefficients)
            replace_module(model, name, layer)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return fused AdamW over coefficients and, at their own rate, all other parameters."""
        coefficients = [module.coefficients for module in model.modules() if isinstance(module, BasisLinear)]
        return fused_adamw(
            (coefficients, self.settings.lr_coefficients),
            (parameters_apart(model, coefficients), self.settings.lr),
        )


def build(settings: Settings, variant: str = "") -> Basis:
    """Return the arm of coefficients.

    Args:
        settings: hyperparameters.
        variant: ``""``; there is no other.

    Raises:
        ValueError: for an unknown variant.

    Example:
        >>> model = build(Settings()).adapt(nn.Sequential(nn.Linear(8, 6)), {"0": "feed_forward"})
        >>> model[0].coefficients.shape
        torch.Size([12])
    """
    check_variant("basis", variant, VARIANTS)
    return Basis(settings)
