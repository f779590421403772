"""Grouped layers on the linear targets; everything else stays dense.

The layers are :class:`comera.GroupedLinear`. The start is spectral unless a variant says otherwise. The groups are
given, or follow from a wanted compression ratio of the whole model (:func:`comera.ratio.blocks.solve_groups`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn

from baselines import btt
from baselines._arm import check_count, check_positive, check_ratio
from comera.protocol import LATER
from comera.ratio.blocks import solve_groups
from comera.specs import Grouped, Spec

VARIANTS = btt.VARIANTS


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of grouped layers.

    Args:
        groups: of every layer, which divide its features. None: those of the ratio, without one 4.
        ratio: how many times smaller the whole model is to be; given groups have to meet it.
        lr_cores, lr: constant rates of AdamW, of the blocks and of everything else.

    Raises:
        ValueError: when groups are no whole number from 1 up, the ratio below 1, or a rate not finite and above 0.
    """

    groups: int | None = None
    ratio: float | None = field(default=None, metadata=LATER)
    lr_cores: float = 1e-3
    lr: float = 1e-3

    def __post_init__(self) -> None:
        if self.groups is not None:
            check_count("grouped.groups", self.groups)
        check_ratio("grouped.ratio", self.ratio)
        check_positive("grouped.lr_cores", self.lr_cores)
        check_positive("grouped.lr", self.lr)


class GroupedLayers(btt.BlockArm[Settings]):
    """Grouped layers in the place of the linear targets."""

    method = "grouped"

    def plan(self, model: nn.Module, names: Iterable[str]) -> dict[str, Spec]:
        """Return as many groups for every layer as are set, or as give the ratio."""
        settings, names = self.settings, list(names)
        groups = 4 if settings.groups is None else settings.groups
        if settings.ratio is not None and names:
            groups = solve_groups(model, names, settings.ratio, settings.groups)
        return dict.fromkeys(names, Grouped(groups, init=self.start))


def build(settings: Settings, variant: str = "") -> GroupedLayers:
    """Return the arm of grouped layers.

    Args:
        settings: hyperparameters.
        variant: how blocks start: ``""`` for spectral, or one of the other :data:`baselines.btt.STARTS`.

    Raises:
        ValueError: for an unknown variant.

    Example:
        >>> model = build(Settings(groups=2)).adapt(nn.Sequential(nn.Linear(64, 64)), {"0": "feed_forward"})
        >>> model[0].shape.parameter_count
        2048
    """
    return GroupedLayers(settings, btt.start_of("grouped", variant))
