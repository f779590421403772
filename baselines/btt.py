"""Block tensor trains on the linear targets; everything else stays dense.

The layers are :class:`comera.BTTLinear`. The start is spectral unless a variant says otherwise: each core is drawn as a
layer of its own (:data:`STARTS`). The rank and balanced blocks are given, or blocks follow from a wanted compression
ratio of the whole model (:func:`comera.ratio.blocks.solve_block_model`).
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, get_args

import torch
from torch import nn

from baselines._arm import (
    TrainedArm,
    cannot_narrow,
    check_count,
    check_positive,
    check_ratio,
    check_variant,
    count,
    fused_adamw,
    linear_targets,
    narrowed,
    parameters_apart,
    targets_at_depth,
)
from comera.formats.block_linear import BlockInit, BlockLinear
from comera.formats.block_tensor_train import BTTLinear
from comera.protocol import LATER, OPTIMIZERS
from comera.ratio.blocks import solve_block_model
from comera.specs import BTT, Spec
from comera.tensorize import tensorize

#: What features are multiples of in another shape than the model's own, so that blocks of many sizes divide them.
_DIVIDED_BY = 8

#: How cores start, the usual one first; see :meth:`comera.BTTLinear.reset_parameters`.
STARTS: tuple[BlockInit, ...] = ("spectral", *(start for start in get_args(BlockInit) if start != "spectral"))

VARIANTS = ("", *STARTS[1:])


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of block tensor trains.

    Args:
        rank: of every block, with or without a ratio. None: 2, or with a ratio the one that each layer's size asks for.
        ratio: how many times smaller the whole model is to be; blocks then follow from it, without a rank the fewest
            with which each weight can have full rank. None: they are balanced.
        depth: how many times the blocks of the model that of the arm has, such as 0.75. Each matrix is then as many
            times smaller as the ratio asks for in the model's own shape, and columns make up the size. None: the shape
            stays.
        lr_cores, lr: constant rates of AdamW, of the cores and of everything else.

    Raises:
        ValueError: when the rank is not a whole number from 1 up, the ratio below 1, or a rate not finite and above 0.
    """

    rank: int | None = None
    ratio: float | None = field(default=None, metadata=LATER)
    depth: float | None = field(default=None, metadata=LATER)
    lr_cores: float = 1e-3
    lr: float = 1e-3

    def __post_init__(self) -> None:
        if self.rank is not None:
            check_count("btt.rank", self.rank)
        check_ratio("btt.ratio", self.ratio)
        check_depth("btt", self.depth, self.ratio)
        check_positive("btt.lr_cores", self.lr_cores)
        check_positive("btt.lr", self.lr)


class BlockSettings(Protocol):
    """The settings that every arm with layers of blocks has."""

    @property
    def ratio(self) -> float | None: ...
    @property
    def depth(self) -> float | None: ...
    @property
    def lr_cores(self) -> float: ...
    @property
    def lr(self) -> float: ...


def check_depth(method: str, depth: float | None, ratio: float | None) -> None:
    """Raise ValueError unless ``depth``, where it is given, is a finite number above 0 beside a ratio."""
    if depth is not None:
        check_positive(f"{method}.depth", depth)
        if ratio is None:
            raise ValueError(f"{method}.depth is {depth:g} without a ratio, which gives the size; set ratio as well.")


S = TypeVar("S", bound=BlockSettings)


class BlockArm(TrainedArm, Generic[S]):
    """Layers of blocks in the place of the linear targets."""

    method: str
    optimizers = OPTIMIZERS

    def __init__(self, settings: S, start: BlockInit) -> None:
        self.settings = settings
        self.start = start

    @abc.abstractmethod
    def plan(self, model: nn.Module, names: Iterable[str], ratio: float | None) -> Mapping[str, Spec]:
        """Return what takes the place of each linear target of a model that is to be ``ratio`` times smaller.

        Raises:
            ValueError: none is of the wanted size.
        """

    @abc.abstractmethod
    def compression(self, model: nn.Module, names: Iterable[str], ratio: float) -> tuple[float, int]:
        """Return how many times smaller each linear target gets, and what divides its features in another shape.

        Raises:
            ValueError: none is of the wanted size.
        """

    def model_unsupported(self, model: nn.Module, targets: Mapping[str, str]) -> str | None:
        """Explain why the settings are impossible, with the nearest possible one; None if it is not. Shapes suffice."""
        if not linear_targets(model, targets):
            return f"{self.method} needs a linear layer among the targets, this model has none; use dense."
        if self.settings.depth is not None and (reason := cannot_narrow(f"{self.method} with a depth", model)):
            return reason
        try:
            with torch.device("meta"):
                shaped, plan = self._planned(model, targets)
                for name, spec in plan.items():
                    spec.build(shaped.get_submodule(name), decompose=False)
        except ValueError as reason:
            return str(reason)
        return None

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Put freshly drawn layers in the place of the linear targets; biases start at zero.

        With a depth the model is a new one, and ``model`` is left as it is.
        """
        return tensorize(*self._planned(model, targets))

    def targets_in(self, model: nn.Module, targets: Mapping[str, str]) -> dict[str, str]:
        """Return the targets of an adapted model: those given, in as many blocks as it has."""
        return dict(targets) if self.settings.depth is None else targets_at_depth(model, targets)

    def _planned(self, model: nn.Module, targets: Mapping[str, str]) -> tuple[nn.Module, Mapping[str, Spec]]:
        """Return the model in the shape that is set, and what takes the place of each of its linear targets."""
        names, settings = linear_targets(model, targets), self.settings
        if settings.depth is None or settings.ratio is None:
            return model, self.plan(model, names, settings.ratio)
        shaped = narrowed(model, settings.ratio, settings.depth, *self.compression(model, names, settings.ratio))
        ratio = settings.ratio * count(shaped) / count(model)
        return shaped, self.plan(shaped, linear_targets(shaped, self.targets_in(shaped, targets)), ratio)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return fused AdamW over cores and, at their own rate, all other parameters."""
        cores = [
            core for module in model.modules() if isinstance(module, BlockLinear) for core in module.core_parameters()
        ]
        return fused_adamw((cores, self.settings.lr_cores), (parameters_apart(model, cores), self.settings.lr))


class BlockTensorTrains(BlockArm[Settings]):
    """Block tensor trains in the place of the linear targets."""

    method = "btt"

    def plan(self, model: nn.Module, names: Iterable[str], ratio: float | None) -> dict[str, Spec]:
        """Return blocks of the rank that is set and of the ratio."""
        rank = self.settings.rank
        if ratio is None:
            return dict.fromkeys(names, BTT(rank, init=self.start))
        shapes = solve_block_model(model, names, ratio, rank)
        return {
            name: BTT(shape.rank, shape.in_blocks, shape.out_blocks, init=self.start) for name, shape in shapes.items()
        }

    def compression(self, model: nn.Module, names: Iterable[str], ratio: float) -> tuple[float, int]:
        """Return how many times smaller matrices get in the model's own shape, and a number of many divisors."""
        shapes = solve_block_model(model, names, ratio, self.settings.rank).values()
        blocks = sum(shape.parameter_count for shape in shapes)
        matrices = sum(shape.in_features * shape.out_features for shape in shapes)
        return matrices / blocks, _DIVIDED_BY

    def factor_ranks(self, model: nn.Module) -> dict[str, int]:
        """Return the rank of the blocks of each layer, by its name."""
        return {name: module.shape.rank for name, module in model.named_modules() if isinstance(module, BTTLinear)}


def start_of(method: str, variant: str) -> BlockInit:
    """Return the start that a variant names; raises ValueError for an unknown variant."""
    check_variant(method, variant, VARIANTS)
    return next((start for start in STARTS if start == variant), STARTS[0])


def build(settings: Settings, variant: str = "") -> BlockTensorTrains:
    """Return the arm of block tensor trains.

    Args:
        settings: hyperparameters.
        variant: how cores start: ``""`` for spectral, or one of the other :data:`STARTS`.

    Raises:
        ValueError: for an unknown variant.

    Example:
        >>> model = build(Settings(rank=1)).adapt(nn.Sequential(nn.Linear(64, 64)), {"0": "feed_forward"})
        >>> model[0].shape.parameter_count
        1024
    """
    return BlockTensorTrains(settings, start_of("btt", variant))
