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

_USUAL = 4  # groups, where neither they nor a ratio that decides them is given


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of grouped layers.

    Args:
        groups: of every layer, which divide its features. None: those of the ratio; without one, or with a depth, 4.
        ratio: how many times smaller the whole model is to be; given groups have to meet it, unless a depth is given.
        depth: how many times the blocks of the model that of the arm has, such as 0.75 or 1; columns then make up the
            size. None: the shape stays.
        lr_cores, lr: constant rates of AdamW, of the blocks and of everything else.

    Raises:
        ValueError: when groups are no whole number from 1 up, the ratio below 1, or a rate not finite and above 0.
    """

    groups: int | None = None
    ratio: float | None = field(default=None, metadata=LATER)
    depth: float | None = field(default=None, metadata=LATER)
    lr_cores: float = 1e-3
    lr: float = 1e-3

    def __post_init__(self) -> None:
        if self.groups is not None:
            check_count("grouped.groups", self.groups)
        check_ratio("grouped.ratio", self.ratio)
        btt.check_depth("grouped", self.depth, self.ratio)
        check_positive("grouped.lr_cores", self.lr_cores)
        check_positive("grouped.lr", self.lr)


class GroupedLayers(btt.BlockArm[Settings]):
    """Grouped layers in the place of the linear targets."""

    method = "grouped"

    def plan(self, model: nn.Module, names: Iterable[str], ratio: float | None) -> dict[str, Spec]:
        """Return as many groups for every layer as are set, or as give the ratio."""
        groups, names = self._groups, list(names)
        if ratio is not None and names:
            groups = solve_groups(model, names, ratio, groups)
        return dict.fromkeys(names, Grouped(groups or _USUAL, init=self.start))

    def compression(self, model: nn.Module, names: Iterable[str], ratio: float) -> tuple[float, int]:  # noqa: ARG002
        """Return the groups, by which features are divided."""
        groups = self._groups or _USUAL
        return groups, groups

    @property
    def _groups(self) -> int | None:
        """The groups that are set; where a depth is, width makes up for any number of them."""
        return self.settings.groups or (None if self.settings.depth is None else _USUAL)


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
