"""APOLLO-Mini: gradients, scaled as Adam scales them by moments of rank one.

Source: arXiv 2412.05270, Algorithm 1 with rank 1 and one scale per matrix. For the gradient G of a weight, with m rows
on its shorter side and n on the other:

* a random vector p, of m draws from N(0, 1), projects it: r = pᵀG, (n,);
* Adam's moments are kept of r alone; they turn it into the direction d;
* the update is the gradient itself, scaled: ``weight -= lr · √scale · (‖d‖ / ‖r‖) · G``;
* an update may be at most ``growth`` times as long as the one before it, unless that one was zero: a matrix behind one
  that starts at zero has a first gradient of zero.

Moments thus have n numbers in the place of two of the weight's size. The vector p is drawn anew every ``update_gap``
steps from a seed that follows from the step and the weight's place, so it is never stored. Every other parameter is
under fused AdamW. Ours, since the authors' package is not licensed for commercial use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from baselines._arm import (
    JoinedOptimizer,
    TrainedArm,
    check_count,
    check_positive,
    check_variant,
    fused_adamw,
    linear_targets,
    parameters_apart,
)
from comera.protocol import CaptureScope

VARIANTS = ("",)

_SEEDS = 2**20  # weights that one renewal has seeds for


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of APOLLO-Mini.

    Args:
        update_gap: steps between two projections (paper: 200).
        scale: its root is a factor on the update (paper: 128).
        growth: how many times longer than the last one an update may be (paper: 1.01).
        lr: rate of all parameters.
        eps: Adam's epsilon for all parameters.

    Raises:
        ValueError: when the gap is not a whole number from 1 up, or another number is not finite and above 0.
    """

    update_gap: int = 200
    scale: float = 128.0
    growth: float = 1.01
    lr: float = 5e-5
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_count("apollo_mini.update_gap", self.update_gap)
        for name in ("scale", "growth", "lr", "eps"):
            check_positive(f"apollo_mini.{name}", getattr(self, name))


class ApolloMini(torch.optim.Optimizer):
    """The update of APOLLO-Mini on matrices.

    The state of a weight holds ``exp_avg`` and ``exp_avg_sq`` (n,), ``length`` of its last update and ``step``.

    Args:
        matrices: weights with two dimensions.
        settings: hyperparameters.

    Example:
        >>> weight = nn.Parameter(torch.ones(2, 3))
        >>> optimizer = ApolloMini([weight], Settings(lr=0.1, scale=1.0))
        >>> weight.sum().backward()
        >>> optimizer.step()  # in Adam's first step d is the sign of r, which has three equal entries here
        >>> optimizer.state[weight]["exp_avg"].shape, len(weight.unique())
        (torch.Size([3]), 1)
    """

    def __init__(self, matrices: Iterable[nn.Parameter], settings: Settings = Settings()) -> None:
        self._settings = settings
        super().__init__(matrices, {"lr": settings.lr, "betas": (0.9, 0.999), "eps": settings.eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        place = 0
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, place, group)
                place += 1
        return loss

    def _update(self, weight: nn.Parameter, gradient: torch.Tensor, place: int, group: Mapping[str, Any]) -> None:
        state, settings = self.state[weight], self._settings
        step = state.get("step", 0)
        projected = _projected(gradient, step // settings.update_gap * _SEEDS + place).float()  # (n,)
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(projected), torch.zeros_like(projected)
        state["step"] = step + 1
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(projected, 1 - beta1)
        state["exp_avg_sq"].lerp_(projected.square(), 1 - beta2)
        mean, square = state["exp_avg"] / (1 - beta1 ** (step + 1)), state["exp_avg_sq"] / (1 - beta2 ** (step + 1))
        direction = mean / square.sqrt_().add_(group["eps"])
        factor = settings.scale**0.5 * direction.norm() / (projected.norm() + group["eps"])
        length = factor * torch.linalg.vector_norm(gradient, dtype=torch.float32)
        if (last := state.get("length")) is not None:
            over = (length / last / settings.growth).nan_to_num_(1.0, posinf=1.0).clamp_min_(1.0)
            factor, length = factor / over, length / over
        state["length"] = length
        weight.addcmul_(gradient, factor.to(gradient.dtype), value=-group["lr"])


def _projected(gradient: torch.Tensor, seed: int) -> torch.Tensor:
    """Return a random combination of the rows of a gradient along its shorter side."""
    shorter = min(gradient.shape)
    generator = torch.Generator(gradient.device).manual_seed(seed)
    draws = torch.randn(shorter, generator=generator, device=gradient.device).to(gradient.dtype)
    return draws @ gradient if gradient.shape[0] == shorter else gradient @ draws


class Apollo(TrainedArm):
    """APOLLO-Mini on the linear targets, fused AdamW on everything else."""

    capture: CaptureScope = "forward_backward"
    capture_reason = (
        "it counts steps and corrects Adam's bias in Python: a captured optimizer step would repeat the values of the "
        "step that was captured."
    )

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._names: list[str] = []

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Note which weights have moments of rank one; the model stays as it is."""
        self._names = list(linear_targets(model, targets))
        return model

    def optimizer(self, model: nn.Module) -> JoinedOptimizer:
        """Build the joint optimizer of the adapted ``model``."""
        weights = [model.get_parameter(f"{name}.weight") for name in self._names]
        matrices = [weight for weight in dict.fromkeys(weights) if weight.requires_grad]  # shared ones once
        others = fused_adamw((parameters_apart(model, matrices), self.settings.lr))
        others.param_groups[0]["eps"] = self.settings.eps
        return JoinedOptimizer(*([ApolloMini(matrices, self.settings)] if matrices else []), others)


def build(settings: Settings, variant: str = "") -> Apollo:
    """Build the APOLLO-Mini arm.

    Args:
        settings: hyperparameters.
        variant: ``""``, the only one.

    Raises:
        ValueError: for an unknown variant.

    Example:
        >>> model = nn.Sequential(nn.Linear(6, 4))
        >>> arm = build(Settings())
        >>> optimizer = arm.optimizer(arm.adapt(model, {"0": "classifier"}))
        >>> model(torch.ones(1, 6)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[model[0].weight]["exp_avg"].shape  # instead of 4 × 6
        torch.Size([6])
    """
    check_variant("apollo_mini", variant, VARIANTS)
    return Apollo(settings)
