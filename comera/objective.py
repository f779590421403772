"""Training objectives that pull ranks down while the task is learnt.

Training is a problem of two objectives, the task loss L and the model size S. Sizes are fractions of the full
tensorized size, the one before any rank was cut, so that they live on the scale of the loss.

* The **early stage** is a linear scalarization (paper, section 3.2): ``L + γ·Ŝ(D) + β·‖G‖²``. β keeps the scale from
  escaping into the cores while D shrinks. The released code: ``L + 0.01·p``, p the mean of the rank entries above the
  threshold.
* The **late stage** is an achievement scalarization toward a target point (L0, S0) (paper, section 3.2):
  ``max{w1·(L − L0), w2·(S(D) − S0)} + ρ·(L + Ŝ(D)) + β·‖G‖²``. The exact size S decides which of the two is larger, and
  where it is the size, its surrogate Ŝ is what is differentiated. The released code: ``0.1·L + 0.01·p + (p if
  (L − 0.8)/L < (S − S0)/S else L)``.
* The surrogate replaces counts by sums of magnitudes,
  ``Ŝ(D) = Σ_cores modes_i·‖D[i-1]‖₁·‖D[i]‖₁ / Σ_cores modes_i·R[i-1]·R[i]``.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from comera.compatibility.arguments import check_module, check_number, check_scalar, shown
from comera.compatibility.distributed import whole
from comera.compatibility.living import living
from comera.compatibility.optimizer_states import held_by
from comera.contraction.joint_merging import take_entries
from comera.layers import TensorTrainLayer
from comera.modes import check_whole
from comera.rank_control import chain_size

ObjectiveVariant = Literal["paper", "released"]
OBJECTIVE_VARIANTS: tuple[ObjectiveVariant, ...] = ("paper", "released")

#: The released code's weights of p in both stages, of L in the late one, and its target loss.
RELEASED_SIZE_WEIGHT = 0.01
RELEASED_LOSS_WEIGHT = 0.1
RELEASED_LOSS_TARGET = 0.8

#: How far, in multiples of the way from 1 to 0, the rank entries must be able to move in the late stage.
RANK_REACH = 2.0


def tensorized_layers(model: nn.Module) -> list[TensorTrainLayer]:
    """Return the TT and TTM layers of a model; of those that share their cores, the first."""
    check_module(model)
    layers = [module for module in model.modules() if isinstance(module, TensorTrainLayer)]
    by_cores = {layer.packed_cores: layer for layer in reversed(layers)}
    return [layer for layer in layers if by_cores[layer.packed_cores] is layer]


def full_size(layers: list[TensorTrainLayer]) -> int:
    """Return the core entries at the present shapes, of which S is a fraction.

    Raises ValueError: what is no list of tensorized layers.
    """
    _check_layers(layers)
    return sum(layer.shape.parameter_count for layer in layers)


def exact_size(layers: list[TensorTrainLayer]) -> int:
    """Return S(D): core entries that remain after dead ranks are cut, every mode of both formats counted.

    A chain with a bond that is dead as a whole carries nothing, so nothing of it remains.

    Raises ValueError: what is no list of tensorized layers.
    """
    _check_layers(layers)
    ranks = [layer.active_ranks() for layer in layers]
    return sum(chain_size(layer.mode_sizes(), alive) for layer, alive in zip(layers, ranks, strict=True) if all(alive))


def _check_layers(layers: object) -> None:
    if not isinstance(layers, list | tuple) or not all(isinstance(layer, TensorTrainLayer) for layer in layers):
        raise ValueError(
            f"layers is {shown(layers)}; it must be a list of layers, as tensorized_layers(model) gives it."
        )


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
    ``entries`` are the values; the gradient goes to ``diagonals``, which are the same in parts.
    """

    @staticmethod
    def forward(
        ctx: Any,
        bond_of_entry: torch.Tensor,
        bonds: int,
        before: torch.Tensor,
        behind: torch.Tensor,
        fractions: torch.Tensor,
        entries: torch.Tensor,
        *diagonals: torch.Tensor,
    ) -> torch.Tensor:
        norms = entries.new_zeros(bonds + 1).index_add_(0, bond_of_entry, entries.abs())
        norms[-1:].fill_(1)  # an assignment would copy the number from the CPU, which no capture allows
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
        return None, None, None, None, None, None, *(gradient * slopes).split(ctx.lengths)


class ModelSize:
    """S and Ŝ of all tensorized layers of a model, in a few operations for all of them together.

    Args:
        model: its tensorized layers are found now; their ranks may shrink later.
        full: core entries that count as 1; those at the present shapes if None.

    Example:
        >>> from comera import TTLinear
        >>> layer = TTLinear(16, 16, (4, 4), (4, 4), ranks=(2, 2, 2))
        >>> size = ModelSize(layer)
        >>> _ = layer.diagonals.data[0].zero_()
        >>> size.full, size.exact().item()  # 8 + 16 + 16 + 8 entries; the first bond lost one rank of two
        (48, 0.75)
    """

    def __init__(self, model: nn.Module, full: int | None = None) -> None:
        if full is not None:
            check_number("full", check_whole("full", full), "0 or more", lambda value: value >= 0)
        self.layers = tensorized_layers(model)
        self.full = full_size(self.layers) if full is None else full
        self._indexed: list[Any] = []

    def entries(self) -> torch.Tensor:
        """Return the diagonals of all layers in one vector."""
        return torch.cat(self._gathered("diagonals"))

    def squared_norm(self) -> torch.Tensor:
        """Return ‖G‖² of all cores, with a gradient."""
        return _SquaredNorm.apply(*self._gathered("packed_cores"))

    def _gathered(self, name: str) -> list[torch.Tensor]:
        """Return a parameter of each layer, whole also where it is sharded."""
        return [whole(getattr(layer, name)) for layer in self.layers]

    def alive(self) -> torch.Tensor:
        """Return a mask of the entries above their layer's threshold."""
        self._index_bonds()
        return self.entries().detach().abs() > self._thresholds

    def surrogate(self) -> torch.Tensor:
        """Return Ŝ(D), with a gradient; 1 at full ranks while every entry is 1."""
        self._index_bonds()
        indexed = (self._bond_of_entry, self._bonds, self._before, self._behind, self._fractions)
        return _Surrogate.apply(*indexed, self.entries().detach(), *self._joined_diagonals())

    def _joined_diagonals(self) -> list[torch.Tensor]:
        """Return the diagonals of all layers; those that were merged together in one vector, if it is still theirs."""
        joined: list[torch.Tensor] = []
        place = 0
        while place < len(self.layers):
            taken = None if torch.compiler.is_compiling() else take_entries(self.layers[place:])
            entries, count = taken or (whole(self.layers[place].diagonals), 1)
            joined.append(entries)
            place += count
        return joined

    def exact(self) -> torch.Tensor:
        """Return S(D), without a gradient: 1 at full ranks; a chain with an entirely dead bond counts as 0."""
        alive = self.alive().to(self._fractions.dtype)
        ranks = alive.new_zeros(self._bonds + 1).index_add_(0, self._bond_of_entry, alive)
        ranks[-1:].fill_(1)
        dead = alive.new_zeros(len(self.layers)).index_add_(0, self._chain_of_bond, (ranks[:-1] == 0).to(alive.dtype))
        sizes = self._fractions * ranks[self._before] * ranks[self._behind]
        return torch.dot(sizes, (dead[self._chain_of_core] == 0).to(alive.dtype))

    def _index_bonds(self) -> None:
        """Index the bonds of all layers; again only after a shape, a threshold, or the device or type has changed."""
        like = self.layers[0].diagonals
        present = [like.device, like.dtype, *((layer.shape, layer.threshold) for layer in self.layers)]
        if self._indexed == present:
            return
        end = sum(len(layer.shape.ranks) for layer in self.layers)
        before: list[int] = []
        behind: list[int] = []
        modes: list[int] = []
        chain_of_core: list[int] = []
        chain_of_bond: list[int] = []
        lengths: list[int] = []
        for number, layer in enumerate(self.layers):
            bonds = range(len(lengths), len(lengths) + len(layer.shape.ranks))
            before += [end, *bonds]
            behind += [*bonds, end]
            modes += layer.mode_sizes()
            lengths += layer.shape.ranks
            chain_of_core += [number] * len(layer.mode_sizes())
            chain_of_bond += [number] * len(bonds)
        device = like.device

        def whole(numbers: list[int]) -> torch.Tensor:
            return torch.tensor(numbers, device=device, dtype=torch.long)  # the type also of an empty list

        self._bonds = end
        self._bond_of_entry = whole([bond for bond, rank in enumerate(lengths) for _ in range(rank)])
        self._before, self._behind = whole(before), whole(behind)
        self._chain_of_core, self._chain_of_bond = whole(chain_of_core), whole(chain_of_bond)
        self._thresholds = torch.tensor(
            [layer.threshold for layer in self.layers for _ in range(sum(layer.shape.ranks))],
            device=device,
            dtype=like.dtype,
        )
        exact = torch.promote_types(like.dtype, torch.float32)  # numbers of entries are beyond what fewer bits count
        self._fractions = torch.tensor(modes, device=device, dtype=exact) / max(self.full, 1)
        self._indexed = present


@dataclass(frozen=True)
class _Begun:
    """A late stage as it began: its target, what counts as 1, the rank entries, and which of them were open."""

    size_target: float
    full: int
    entries: torch.Tensor
    alive: torch.Tensor


#: The last late stage of each model, by the model's first tensorized layer; and core entries when an early one began.
_begun: WeakKeyDictionary[TensorTrainLayer, _Begun] = WeakKeyDictionary()
_begun_early: WeakKeyDictionary[TensorTrainLayer, int] = WeakKeyDictionary()

#: An early stage that has moved no entry by this much had too few steps to close one.
_EARLY_REACH = 0.5


def early_stage_without_effect(model: nn.Module) -> str | None:
    """Explain that an :class:`EarlyStage` had too few steps to close a rank; None if it had enough, or has closed one.

    Example:
        >>> from comera import TTLinear
        >>> layer = TTLinear(4, 4, (4,), (4,), ranks=4)
        >>> _ = EarlyStage(gamma=0.1)(torch.tensor(1.0), layer)
        >>> early_stage_without_effect(layer)[:52]
        'EarlyStage has closed no rank, and rank entries have'
    """
    layers = tensorized_layers(model)
    begun = _begun_early.get(layers[0]) if layers else None
    if begun is None or begun != full_size(layers) or layers[0] in _begun:
        return None
    if not any(layer.diagonals.requires_grad for layer in layers):  # no rate would move them
        return None
    size = ModelSize(model)
    if not size.entries().numel() or not bool(size.alive().all()):
        return None
    moved = float((1 - size.entries().detach().abs()).abs().max())  # they start at 1
    if moved >= _EARLY_REACH:
        return None
    return (
        f"EarlyStage has closed no rank, and rank entries have moved by at most {moved:.3g} of the way from 1 to 0; "
        f"lr_ranks times its steps must be at least {RANK_REACH:g}, as with comera.parameter_groups(rank_steps=...)."
    )


def late_stage_without_effect(model: nn.Module) -> str | None:
    """Explain that a :class:`LateStage` has closed no rank of a model; None if it has, or has met its target.

    Example:
        >>> from comera import TTLinear
        >>> layer = TTLinear(4, 4, (4,), (4,), ranks=4)
        >>> _ = LateStage(0.5)(torch.tensor(1.0), layer)
        >>> late_stage_without_effect(layer)[:45]
        'LateStage(size_target=0.5) has closed no rank'
        >>> _ = layer.diagonals.data[:2].zero_()
        >>> late_stage_without_effect(layer) is None
        True
    """
    layers = tensorized_layers(model)
    begun = _begun.get(layers[0]) if layers else None
    if begun is None:
        return None
    size = ModelSize(model, begun.full)
    entries = size.entries().detach()
    if entries.shape != begun.entries.shape or bool((begun.alive & ~size.alive()).any()):
        return None
    exact = float(size.exact())
    if exact <= begun.size_target:
        return None
    moved = float((entries - begun.entries).abs().max())
    return (
        f"LateStage(size_target={begun.size_target:g}) has closed no rank so far: S is {exact:.3g}, and rank entries "
        f"have moved by at most {moved:.3g} since it began. lr_ranks times its steps must be at least "
        f"{RANK_REACH:g}; give it more steps, or call comera.close_smallest(model, {begun.size_target:g}) "
        "before comera.truncate."
    )


def check_weight(name: str, value: float) -> None:
    """Raise ValueError unless a weight or a rate is a finite number, 0 or more."""
    check_number(name, value, "0 or more, and finite", lambda number: number >= 0)


class _Stage:
    """Base class of both stages: checks the settings and holds the model's size."""

    def __init__(self, variant: ObjectiveVariant, full: int | None, **weights: float) -> None:
        if variant not in OBJECTIVE_VARIANTS:
            raise ValueError(f"variant is {variant!r}; allowed: {', '.join(OBJECTIVE_VARIANTS)}.")
        for name, value in weights.items():
            check_weight(name, value)
        self.variant = variant
        if full is not None and check_whole("full", full) < 0:
            raise ValueError(f"full is {full}; it must be at least 0.")
        self._full = full
        self._size: ModelSize | None = None
        self._versions: list[int] | None = None  # of what is trained, at the first call
        self._moves = False  # whether some of it has changed since, or there is nothing more to be found out

    def size(self, model: nn.Module) -> ModelSize:
        """Return the size of ``model``'s tensorized layers, which are looked for once.

        Raises:
            ValueError: a layer in half precision, whose spacing below 1 swallows the steps of its diagonals.

        Warns:
            UserWarning: a model without a tensorized layer.
        """
        if self._size is None:
            self._size = ModelSize(model, self._full)
            if not self._size.layers:
                warnings.warn(
                    f"the model has no tensorized layer, so {type(self).__name__} returns the loss of the task alone; "
                    "call comera.tensorize.",
                    stacklevel=3,
                )
        halves = {layer.diagonals.dtype for layer in self._size.layers} & {torch.bfloat16, torch.float16}
        if halves:
            raise ValueError(
                f"a tensorized layer is in {halves.pop()}, in which rank entries near 1 do not move at usual rates; "
                "keep the model in torch.float32 and train under torch.autocast."
            )
        return self._size

    def _watch_optimizer(self, layers: list[TensorTrainLayer]) -> None:
        """Warn at the second call if nothing has moved since the first, and no living optimizer holds the layers."""
        if self._moves or torch.compiler.is_compiling():
            return
        trained = [each for layer in layers for each in (layer.packed_cores, layer.diagonals) if each.requires_grad]
        versions = [parameter._version for parameter in trained]
        if self._versions is None:
            self._versions = versions
            return
        self._moves = True
        if versions != self._versions or not trained:
            return
        optimizers = living([Optimizer])
        if optimizers and all(set(trained).isdisjoint(held_by(each)) for each in optimizers):
            warnings.warn(
                f"{type(self).__name__} is called again and no optimizer holds the cores and rank entries of the "
                "model, so that they stay as they are; build it after comera.tensorize, of "
                "comera.parameter_groups(model).",
                stacklevel=3,
            )

    @staticmethod
    def _mean_rank_entry(size: ModelSize) -> torch.Tensor:
        """Return p, the mean of the rank entries above the threshold, as the released code defines it."""
        alive = size.alive() & (size.entries().detach() > 0)
        return (size.entries() * alive).sum() / alive.sum().clamp(min=1)


class EarlyStage(_Stage):
    """The objective of the early stage.

    Args:
        variant: ``"paper"`` or ``"released"``.
        gamma: weight of the size surrogate, a fraction between 0 and 1 for shrinking diagonals.
        beta: weight of the squared norm of all cores.
        full: core entries at full ranks; those of the model at the first call if None.

    Raises:
        ValueError: an unknown variant, a weight that is negative or not finite, or ``full`` that is no count.

    Warns:
        UserWarning: when called, for a model without a tensorized layer, or if no optimizer holds its cores by the
            second call.

    Example:
        >>> from comera import TT, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": TT(ranks=2, order=2)})
        >>> EarlyStage(gamma=0.5, beta=0.0)(torch.tensor(1.0), model).item()
        1.5
    """

    def __init__(
        self, variant: ObjectiveVariant = "paper", gamma: float = 0.01, beta: float = 1e-6, full: int | None = None
    ) -> None:
        super().__init__(variant, full, gamma=gamma, beta=beta)
        self.gamma, self.beta = gamma, beta

    def __call__(self, task_loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
        """Return the scalar to differentiate, from the task loss L."""
        check_scalar("task_loss", task_loss)
        begins = self._size is None
        size = self.size(model)
        if not size.layers:
            return task_loss
        self._watch_optimizer(size.layers)
        if begins and self.gamma and not torch.compiler.is_compiling():
            _begun_early[size.layers[0]] = full_size(size.layers)
        if self.variant == "released":
            return task_loss + RELEASED_SIZE_WEIGHT * self._mean_rank_entry(size)
        objective = task_loss
        if self.gamma:
            objective = objective + self.gamma * size.surrogate()
        if self.beta:
            objective = objective + self.beta * size.squared_norm()
        return objective


class LateStage(_Stage):
    """The objective of the late stage: achievement scalarization toward (``loss_target``, ``size_target``).

    Args:
        size_target: S0, the target size as a fraction of the full tensorized size, above 0 and at most 1.
        variant: ``"paper"`` or ``"released"``; the latter has weights and a target loss of its own.
        loss_target: L0, the target of the task loss. None: the present loss at every step, so that the size leads
            exactly as long as it exceeds S0; with a number, the size also goes on shrinking below S0 while the
            loss is below L0, and stays above S0 while the loss is too high.
        loss_weight, size_weight: w1 and w2, which scale the two distances from the target point.
        rho: ρ, the weight of L + Ŝ beside the maximum. While the size leads, 1 + w2/ρ is the price of size in units of
            loss by which ranks are chosen: too high, and all fall alike, whatever they do for the loss. While the loss
            leads, ρ/(w1 + ρ) is that price: what still shrinks below S0.
        beta: weight of the squared norm of all cores.
        full: core entries at full ranks; those of the model at the first call if None.

    Raises:
        ValueError: an unknown variant, a target outside (0, 1], or a number that is negative or not finite.

    Warns:
        UserWarning: when called, as :class:`EarlyStage` does. Whether it has steps enough is known when ranks are cut:
            :func:`comera.truncate` warns if it has closed none.

    Example:
        >>> from comera import TT, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": TT(ranks=2, order=2)})
        >>> late = LateStage(0.5, loss_target=0.0, loss_weight=1.0, size_weight=4.0, rho=0.0, beta=0.0)
        >>> late(torch.tensor(1.0), model).item()  # 4·(1 - 0.5) exceeds 1·(1 - 0)
        2.0
    """

    def __init__(
        self,
        size_target: float,
        variant: ObjectiveVariant = "paper",
        loss_target: float | None = None,
        loss_weight: float = 10.0,
        size_weight: float = 10.0,
        rho: float = 1.0,
        beta: float = 1e-6,
        full: int | None = None,
    ) -> None:
        super().__init__(variant, full, loss_weight=loss_weight, size_weight=size_weight, rho=rho, beta=beta)
        check_number("size_target", size_target, "a number above 0, at most 1", lambda value: 0 < value <= 1)
        if loss_target is not None:
            check_number("loss_target", loss_target, "a finite number or None")
        self.size_target, self.loss_target = size_target, loss_target
        self.loss_weight, self.size_weight, self.rho, self.beta = loss_weight, size_weight, rho, beta

    def __call__(self, task_loss: torch.Tensor, model: nn.Module) -> torch.Tensor:
        """Return the scalar to differentiate, from the task loss L. Nothing here waits for the device."""
        check_scalar("task_loss", task_loss)
        begins = self._size is None
        size = self.size(model)
        if not size.layers:
            return task_loss
        self._watch_optimizer(size.layers)
        if begins and not torch.compiler.is_compiling():
            _begun[size.layers[0]] = _Begun(self.size_target, size.full, size.entries().detach().clone(), size.alive())
        loss, exact = task_loss.detach(), size.exact()
        if self.variant == "released":
            p = self._mean_rank_entry(size)
            size_leads = (loss - RELEASED_LOSS_TARGET) / loss < (exact - self.size_target) / exact
            rest = RELEASED_LOSS_WEIGHT * task_loss + RELEASED_SIZE_WEIGHT * p
            return rest + torch.where(size_leads, p, task_loss)
        surrogate = size.surrogate()
        loss_target = loss if self.loss_target is None else self.loss_target
        by_loss = self.loss_weight * (task_loss - loss_target)
        by_size = self.size_weight * (surrogate - self.size_target)
        size_leads = self.size_weight * (exact - self.size_target) > by_loss.detach()
        objective = torch.where(size_leads, by_size, by_loss) + self.rho * (task_loss + surrogate)
        return objective + self.beta * size.squared_norm() if self.beta else objective
