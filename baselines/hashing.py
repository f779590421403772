"""Hashing trick: all rows of a table share m rows, by ``index mod m``.

A table of m rows takes the place of V. Rows collide at random; where indices are ranks by frequency, as DLRM's are, the
m most frequent rows do not collide with one another. Source: Weinberger et al., Feature Hashing for Large Scale
Multitask Learning (ICML 2009), as the baseline of compressed recommenders has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from baselines import _small_tables
from baselines._arm import Table, check_variant
from baselines._small_tables import SmallTable, SmallTables, fresh_tables

VARIANTS = ("",)


@dataclass(frozen=True)
class Settings(_small_tables.Settings):  # noqa: D101 - its docstring is that of its base
    __doc__ = _small_tables.Settings.__doc__
    method = "hashing"


class HashedTable(SmallTable):
    """A table, or a bag, that looks up ``index mod m``.

    Args:
        like: the dense table or bag, of V rows and D columns; what it does with its rows stays.
        rows: m.

    Shapes:
        ``weight`` (m, D); output as of ``like``.

    Example:
        >>> table = HashedTable(nn.EmbeddingBag(100, 4, mode="sum"), rows=7)
        >>> torch.allclose(table(torch.tensor([[3, 8]])), table.weight[3] + table.weight[1])
        True
    """

    def __init__(self, like: Table, rows: int) -> None:
        super().__init__(like)
        [self.weight] = fresh_tables(like, [rows])

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(indices % self.weight.shape[0], self.weight)


class Hashing(SmallTables):
    """Dense training with hashed tables."""

    words = "hashed tables"

    @staticmethod
    def kept(rows: int, ratio: float) -> tuple[int, ...]:
        """Return the rows of the one table, at least one.

        >>> Hashing.kept(1000, 99.0)
        (10,)
        """
        return (max(round(rows / ratio), 1),)

    def small(self, table: Table, kept: tuple[int, ...]) -> HashedTable:
        return HashedTable(table, *kept)


def build(settings: Settings, variant: str = "") -> Hashing:
    """Return the arm ``hashing``; raises ValueError for a variant, since it has none.

    Example:
        >>> model = build(Settings(table_ratio=10)).adapt(nn.Sequential(nn.Embedding(90, 4)), {"0": "embedding"})
        >>> model[0].weight.shape
        torch.Size([9, 4])
    """
    check_variant("hashing", variant, VARIANTS)
    return Hashing(settings)
