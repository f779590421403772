"""Training objectives that pull ranks down while the task is learnt.

The early stage is a linear scalarization of task loss and model size. Sizes are fractions of the full tensorized size,
so that they live on the scale of the loss (METHOD.md, Objectives). ``variant="paper"`` (paper, section 3.2):

    L + γ·Ŝ(D) + β·‖G‖²       Ŝ(D) = Σ_cores modes_i·‖D[i-1]‖₁·‖D[i]‖₁ / Σ_cores modes_i·R[i-1]·R[i]

β keeps the scale from escaping into the cores while D shrinks. ``variant="released"``, what the authors' code computes:

    L + 0.01·p                p = mean of the rank entries above the threshold
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from comera.layers import TensorTrainLayer
from comera.rank_control import THRESHOLD, chain_size

ObjectiveVariant = Literal["paper", "released"]
OBJECTIVE_VARIANTS: tuple[ObjectiveVariant, ...] = ("paper", "released")

#: Weight of p in the released code.
RELEASED_WEIGHT = 0.01


def tensorized_layers(model: nn.Module) -> list[TensorTrainLayer]:
    """The TT and TTM layers of a model; of those that share their cores, the first."""
    layers = [module for module in model.modules() if isinstance(module, TensorTrainLayer)]
    by_cores = {layer.packed_cores: layer for layer in reversed(layers)}
    return [layer for layer in layers if by_cores[layer.packed_cores] is layer]


def full_size(layers: list[TensorTrainLayer]) -> int:
    """Core entries at the present shapes: what S is a fraction of."""
    return sum(layer.shape.parameter_count for layer in layers)


def exact_size(layers: list[TensorTrainLayer]) -> int:
    """S(D): core entries that remain when dead ranks are cut out, every mode of both formats counted.

    A chain with a bond that is dead as a whole carries nothing, so nothing of it remains.
    """
    ranks = [layer.active_ranks() for layer in layers]
    return sum(chain_size(layer.mode_sizes(), alive) for layer, alive in zip(layers, ranks, strict=True) if all(alive))


class _SquaredNorm(torch.autograd.Function):
    """Sum of squares over many tensors in a handful of operations."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return nn.utils.get_total_norm(tensors).square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch._foreach_mul(ctx.saved_tensors, 2 * gradient))


class _Surrogate(torch.autograd.Function):
    """Ŝ of all layers at once: Σ over cores of fraction · norm of the bond before · norm of the bond behind.

    ``bond_of_entry`` numbers the bond of every diagonal entry; the number after the last bond stands for the ends of
    the chains, whose norm is 1. One function of a few operations, since the sum is small beside its bookkeeping.
    """

    @staticmethod
    def forward(
        ctx: Any,
        bond_of_entry: torch.Tensor,
        bonds: int,
        before: torch.Tensor,
        behind: torch.Tensor,
        fractions: torch.Tensor,
        *diagonals: torch.Tensor,
    ) -> torch.Tensor:
        entries = torch.cat(diagonals)
        norms = entries.new_zeros(bonds + 1).index_add_(0, bond_of_entry, entries.abs())
        norms[-1] = 1
        weighted, following = fractions * norms[before], norms[behind]
        slopes = torch.zeros_like(norms).index_add_(0, behind, weighted)
        slopes.index_add_(0, before, fractions * following)
        ctx.save_for_backward(slopes[bond_of_entry] * entries.sign())
        ctx.lengths = [vector.numel() for vector in diagonals]
        return torch.dot(weighted, following)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        [slopes] = ctx.saved_tensors
        return None, None, None, None, None, *(gradient * slopes).split(ctx.lengths)


class EarlyStage:
    """The objective of the early stage.

    Args:
        variant: ``"paper"`` or ``"released"``.
        gamma: weight of the size surrogate, a fraction between 0 and 1 for shrinking diagonals.
        beta: weight of the squared norm of all cores.

    Raises:
        ValueError: an unknown variant, or a negative weight.

    Example:
        >>> from comera import TT, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": TT(ranks=2, order=2)})
        >>> EarlyStage(gamma=0.5, beta=0.0)(torch.tensor(1.0), model).item()
        1.5
    """

    def __init__(self, variant: ObjectiveVariant = "paper", gamma: float = 0.01, beta: float = 1e-6) -> None:
        if variant not in OBJECTIVE_VARIANTS:
            raise ValueError(f"variant is {variant!r}; allowed: {', '.join(OBJECTIVE_VARIANTS)}.")
        for name, value in (("gamma", gamma), ("beta", beta)):
            if value < 0:
                raise ValueError(f"{name} is {value}; it must be 0 or more.")
        self.variant, self.gamma, self.beta = variant, gamma, beta
        self._layers: list[TensorTrainLayer] = []
        self._shapes: list[Any] = []

    def __call__(self, task_loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
        """The scalar to differentiate.

        Args:
            task_loss: L, a scalar.
            model: the model; its tensorized layers are found at the first call.
        """
        if not self._layers:
            self._layers = tensorized_layers(model)
        if not self._layers:
            return task_loss
        if self.variant == "released":
            entries = torch.cat([layer.diagonals for layer in self._layers])
            alive = (entries > THRESHOLD).to(entries.dtype)
            return task_loss + RELEASED_WEIGHT * (entries * alive).sum() / alive.sum().clamp(min=1)
        objective = task_loss
        if self.gamma:
            objective = objective + self.gamma * self.surrogate()
        if self.beta:
            objective = objective + self.beta * _SquaredNorm.apply(*(layer.packed_cores for layer in self._layers))
        return objective

    def surrogate(self) -> torch.Tensor:
        """Ŝ(D) as a fraction of the full size; 1 while every entry is 1."""
        if self._shapes != [layer.shape for layer in self._layers]:
            self._index_bonds()
        diagonals = [layer.diagonals for layer in self._layers]
        return _Surrogate.apply(
            self._bond_of_entry, self._bonds, self._before, self._behind, self._fractions, *diagonals
        )

    def _index_bonds(self) -> None:
        """Number all bonds of all layers, so that the surrogate is a few operations for the whole model."""
        lengths = [rank for layer in self._layers for rank in layer.shape.ranks]
        end = len(lengths)
        before: list[int] = []
        behind: list[int] = []
        modes: list[int] = []
        bond = 0
        for layer in self._layers:
            count = len(layer.shape.ranks)
            chain = [end, *range(bond, bond + count), end]
            before += chain[:-1]
            behind += chain[1:]
            modes += layer.mode_sizes()
            bond += count
        like = self._layers[0].diagonals
        self._bonds = end
        self._bond_of_entry = torch.tensor(
            [number for number, length in enumerate(lengths) for _ in range(length)],
            device=like.device,
            dtype=torch.long,  # also where every rank is 0 and the list empty
        )
        self._before = torch.tensor(before, device=like.device)
        self._behind = torch.tensor(behind, device=like.device)
        fractions = torch.tensor(modes, device=like.device, dtype=like.dtype)
        self._fractions = fractions / max(full_size(self._layers), 1)
        self._shapes = [layer.shape for layer in self._layers]
