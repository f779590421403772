"""GaLore: gradients are projected to low rank, so Adam's moments are small.

Source: arXiv 2403.03507, run by its own package, galore-torch 1.0. A weight of shape (M, N) gets an orthogonal matrix
from the SVD of its gradient, (R, N) where M ≥ N and (M, R) where M < N, renewed every ``update_gap`` steps. Its moments
have the shape of the projected gradient, (M, R) or (R, N); Adam's direction is projected back and scaled.

The package takes its first basis from the first gradient. That of a matrix behind one that starts at zero is zero, and
would give unit vectors until the next renewal. Here the first basis comes from the first gradient that is not zero, and
a renewal that falls on a gradient of zero is left out.

What else is ours: one optimizer joins the package's AdamW (projected weights) with torch's fused AdamW (all other
parameters), saves its state as tensors and JSON values, and keeps projection matrices at their own size. The package
leaves each as a view into its full SVD factor, which would hold N·min(M, N) numbers instead of R·N.

The variant ``per_layer`` is how the paper saves the memory of gradients (section 4.4, per-layer weight updates): each
parameter is updated as soon as its gradient is there, and the gradient is freed, all inside the backward pass. ``8bit``
keeps Adam's moments in 8 bits (8-bit GaLore), by bitsandbytes; ``8bit_per_layer`` is both, the least memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

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
from baselines._eight_bit import BYTES, LEAST, EightBitAdamW, restore_bytes
from baselines._quiet import quiet_import
from comera.protocol import CaptureScope, RareEvent

VARIANTS = ("", "per_layer", "8bit", "8bit_per_layer")


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of GaLore.

    Args:
        rank: rank of the projected gradients (paper: 128).
        update_gap: steps between two renewals of the projection matrices (package default).
        scale: factor on the update that is projected back (package default).
        lr_projected: rate of the projected weights. Ours: the default makes ``scale · lr_projected`` the dense rate.
        lr: rate of all other parameters, under fused AdamW.
        eps: Adam's epsilon for all parameters. The package's default is 1e-6; torch's 1e-8 makes the arms agree.

    Raises:
        ValueError: when a count is not a whole number from 1 up, or another number is not finite and above 0.
    """

    rank: int = 128
    update_gap: int = 200
    scale: float = 0.25
    lr_projected: float = 2e-4
    lr: float = 5e-5
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_count("galore.rank", self.rank)
        check_count("galore.update_gap", self.update_gap)
        check_positive("galore.scale", self.scale)
        check_positive("galore.lr_projected", self.lr_projected)
        check_positive("galore.lr", self.lr)
        check_positive("galore.eps", self.eps)


class Projection:
    """The package's projector for one weight, its matrix held in storage of its own size."""

    def __init__(self, hyperparameters: Mapping[str, Any], matrix: torch.Tensor | None = None) -> None:
        self.hyperparameters = dict(hyperparameters)
        self._projector = _package().galore_projector.GaLoreProjector(**self.hyperparameters)
        self._projector.ortho_matrix = matrix
        self._has_basis = matrix is not None and not _is_zero(matrix)

    @property
    def matrix(self) -> torch.Tensor | None:
        """The orthogonal matrix, (R, N) or (M, R); None before the first gradient, zeros while all have been zero."""
        return self._projector.ortho_matrix

    def project(self, gradient: torch.Tensor, step: int) -> torch.Tensor:
        """Project ``gradient``, renewing the matrix first where ``step`` asks for it and the gradient is not zero."""
        before = self.matrix
        due = not self._has_basis or step % self.hyperparameters["update_proj_gap"] == 0
        if due and _is_zero(gradient):
            (rows, columns), rank = gradient.shape, self.hyperparameters["rank"]
            if before is None:
                self._projector.ortho_matrix = gradient.new_zeros((rank, columns) if rows >= columns else (rows, rank))
            return gradient.new_zeros((rows, rank) if rows >= columns else (rank, columns))
        if not self._has_basis:
            self._projector.ortho_matrix, self._has_basis = None, True
        projected = self._projector.project(gradient, step)
        if self.matrix is not None and self.matrix is not before:
            self._projector.ortho_matrix = self.matrix.clone(memory_format=torch.contiguous_format)
        return projected

    def project_back(self, direction: torch.Tensor) -> torch.Tensor:
        """Bring a low-rank ``direction`` back to the weight's shape, scaled."""
        return self._projector.project_back(direction)

    def renewed(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the matrix that a renewal on ``gradient`` would give; the matrix in use does not change."""
        side = "right" if gradient.shape[0] >= gradient.shape[1] else "left"
        rank = self.hyperparameters["rank"]
        matrix = self._projector.get_orthogonal_matrix(gradient, rank, type=side)
        return matrix.clone(memory_format=torch.contiguous_format)


def _is_zero(tensor: torch.Tensor) -> bool:
    """Return whether all entries are zero; False for a tensor without entries, as in a prediction of memory."""
    return not isinstance(tensor, FakeTensor) and not bool(tensor.any())


class GaLoreWithFusedAdamW(JoinedOptimizer):
    """The package's AdamW on projected weights and torch's fused AdamW on the rest, as one optimizer.

    A projected weight's state holds ``exp_avg``, ``exp_avg_sq`` and ``projection`` tensors, its ``step`` and its
    ``projector``.

    Args:
        projected: linear weights, each (M, N).
        plain: all other parameters.
        settings: hyperparameters.
        eight_bit: keep moments in 8 bits, but for those of small plain parameters.
    """

    def __init__(
        self,
        projected: Iterable[nn.Parameter],
        plain: Iterable[nn.Parameter],
        settings: Settings = Settings(),
        eight_bit: bool = False,
    ) -> None:
        self._hyperparameters = {
            "rank": settings.rank,
            "update_proj_gap": settings.update_gap,
            "scale": settings.scale,
            "proj_type": "std",
        }
        others = list(plain)
        first = {"params": list(projected), "lr": settings.lr_projected, "eps": settings.eps, **self._hyperparameters}
        parts: list[torch.optim.Optimizer]
        if eight_bit:
            large = [parameter for parameter in others if parameter.numel() >= LEAST]
            others = [parameter for parameter in others if parameter.numel() < LEAST]
            parts = [EightBitAdamW([first])]
            parts += [EightBitAdamW([{"params": large, "lr": settings.lr, "eps": settings.eps}])] if large else []
        else:
            parts = [_package().GaLoreAdamW([first], weight_decay=0.0, no_deprecation_warning=True)]
        if others:
            parts.append(fused_adamw((others, settings.lr)))
            parts[-1].param_groups[0]["eps"] = settings.eps
        super().__init__(*parts)
        for weight in self.param_groups[0]["params"]:
            self.state[weight]["projector"] = Projection(self._hyperparameters)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step both optimizers."""
        loss = super().step(closure)
        self._show_projections()
        return loss

    def _show_projections(self) -> None:
        """Keep each projection matrix in sight as a tensor of the state."""
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            if state["projector"].matrix is not None:
                state["projection"] = state["projector"].matrix

    def state_dict(self) -> dict[str, Any]:
        """Return the state as torch lays it out, in tensors and JSON values only, so that no pickle is needed.

        A projector appears as its hyperparameters (``projector``) and its matrix (``projection``).
        """
        packed = super().state_dict()
        packed["state"] = {
            index: {
                key: dict(value.hyperparameters) if isinstance(value, Projection) else value
                for key, value in state.items()
            }
            for index, state in packed["state"].items()
        }
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`; training then continues as if it had not stopped.

        Raises:
            ValueError: when the parameter groups differ (raised by torch).
        """
        # torch's loader rebuilds any iterable it finds in a state, which ruins strings, and gives every tensor its
        # parameter's type: hyperparameters and bytes go around it.
        plain_state = {
            index: {key: value for key, value in state.items() if key not in ("projector", *BYTES)}
            for index, state in state_dict["state"].items()
        }
        super().load_state_dict({**state_dict, "state": plain_state})
        restore_bytes(self, state_dict)
        indices = state_dict["param_groups"][0]["params"]
        for index, weight in zip(indices, self.param_groups[0]["params"], strict=True):
            state = self.state[weight]
            state["projector"] = Projection(state_dict["state"][index]["projector"], state.get("projection"))


class PerLayerUpdates(GaLoreWithFusedAdamW):
    """The same updates, each made when its parameter's gradient is there, which is then freed; ``step`` has none left.

    A gradient that other code still needs, as for clipping by a norm over all of them, is gone when backward ends.
    """

    def __init__(
        self,
        projected: Iterable[nn.Parameter],
        plain: Iterable[nn.Parameter],
        settings: Settings = Settings(),
        eight_bit: bool = False,
    ) -> None:
        super().__init__(projected, plain, settings, eight_bit)
        for group, optimizer in zip(self.param_groups, self._parts, strict=True):
            for parameter in group["params"]:
                parameter.register_post_accumulate_grad_hook(functools.partial(self._update, optimizer))

    def _update(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
        [group] = optimizer.param_groups
        optimizer.param_groups = [{**group, "params": [parameter]}]
        try:
            optimizer.step()
        finally:
            optimizer.param_groups = [group]
        parameter.grad = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Run ``closure`` and nothing else, since backward has made the updates."""
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        self._show_projections()
        return loss


class GaLore(TrainedArm):
    """GaLore on the linear targets, fused AdamW on everything else."""

    capture: CaptureScope = "forward_backward"
    capture_reason = (
        "galore-torch counts steps and corrects Adam's bias in Python: a captured optimizer step would repeat the "
        "values of the step that was captured."
    )

    def __init__(self, settings: Settings, variant: str = "") -> None:
        self.settings = settings
        per_layer = variant.endswith("per_layer")
        optimizer = PerLayerUpdates if per_layer else GaLoreWithFusedAdamW
        self._optimizer = functools.partial(optimizer, settings=settings, eight_bit=variant.startswith("8bit"))
        if per_layer:
            self.capture = "none"
            self.capture_reason = (
                "its updates are made inside the backward pass, by an optimizer that counts in Python."
            )
        self._names: list[str] = []

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Note which weights are projected; the model stays as it is."""
        self._names = list(linear_targets(model, targets))
        return model

    def optimizer(self, model: nn.Module) -> GaLoreWithFusedAdamW:
        """Return the joint optimizer of the adapted ``model``.

        Raises:
            ValueError: when the rank exceeds the smaller side of a projected weight.
        """
        weights = {f"{name}.weight": model.get_parameter(f"{name}.weight") for name in self._names}
        for name, weight in weights.items():
            if self.settings.rank > min(weight.shape):
                raise ValueError(
                    f"galore.rank is {self.settings.rank}; {name} of shape {tuple(weight.shape)} allows whole numbers "
                    f"from 1 to {min(weight.shape)}."
                )
        projected = list({id(weight): weight for weight in weights.values() if weight.requires_grad}.values())
        return self._optimizer(projected, parameters_apart(model, projected))

    def rare_events(self) -> list[RareEvent]:
        """Return the event ``svd``: the renewal of all projection matrices."""
        return [RareEvent("svd", self.settings.update_gap, 0, renew_projections)]


@torch.no_grad()
def renew_projections(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG001
    """Compute every projection matrix anew from the current gradients and drop the result.

    This is the rare work at its full cost; nothing of the training changes. Where gradients are freed at once, the
    weights stand in for them: what a decomposition costs hangs on the shape.

    Raises:
        RuntimeError: when a projected weight has no gradient, since the work would then be cut short unnoticed.
    """
    for weight in optimizer.param_groups[0]["params"]:
        freed = isinstance(optimizer, PerLayerUpdates)
        if weight.grad is None and not freed:
            raise RuntimeError("GaLore renews its projections from gradients: run a backward pass first.")
        optimizer.state[weight]["projector"].renewed(weight if freed else weight.grad)


def _package() -> Any:
    """Load galore_torch when first needed, since it imports transformers and bitsandbytes."""
    with quiet_import():
        import galore_torch
        import galore_torch.galore_projector
    return galore_torch


def build(settings: Settings, variant: str = "") -> GaLore:
    """Return the GaLore arm.

    Args:
        settings: hyperparameters.
        variant: ``""``; ``"per_layer"`` for updates inside the backward pass, ``"8bit"`` for moments of 8 bits, or
            ``"8bit_per_layer"`` for both.

    Raises:
        ValueError: for an unknown variant.

    Example:
        >>> model = nn.Sequential(nn.Linear(6, 4))
        >>> arm = build(Settings(rank=2))
        >>> optimizer = arm.optimizer(arm.adapt(model, {"0": "classifier"}))
        >>> model(torch.ones(1, 6)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[model[0].weight]["exp_avg"].shape  # rank × in-features instead of 4 × 6
        torch.Size([2, 6])
    """
    check_variant("galore", variant, VARIANTS)
    return GaLore(settings, variant)
