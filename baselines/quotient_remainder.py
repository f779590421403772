"""Quotient-remainder trick: each row is a product of two shared rows.

Row i is the product, entry by entry, of two rows of smaller tables. Of m rows for the remainder ``i mod m`` and ⌈V / m⌉
for the quotient ``⌊i / m⌋``, each index has a pair of its own, so that no two rows are the same. Source: Shi et al.,
Compositional Embeddings Using Complementary Partitions (KDD 2020), with its default operation, the product.
"""

from __future__ import annotations

import math
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
    method = "quotient_remainder"


class QuotientRemainderTable(SmallTable):
    """A table or bag of V rows as products of rows of two tables.

    Args:
        like: the dense table or bag, of V rows and D columns; what it does with its rows stays.
        remainders: m.
        quotients: at least ⌈V / m⌉.

    Shapes:
        ``remainder`` (m, D), ``quotient`` (quotients, D); output as of ``like``.

    Example:
        >>> table = QuotientRemainderTable(nn.EmbeddingBag(100, 4, mode="sum"), 20, 5)
        >>> torch.allclose(table(torch.tensor([[43]])), table.remainder[3] * table.quotient[2])
        True
    """

    def __init__(self, like: Table, remainders: int, quotients: int) -> None:
        super().__init__(like)
        self.remainder, self.quotient = fresh_tables(like, [remainders, quotients])
        with torch.no_grad():  # products then start as large as rows of the dense table
            self.quotient.uniform_(0.5, 1.5)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        size = self.remainder.shape[0]
        quotients = torch.div(indices, size, rounding_mode="floor")
        return nn.functional.embedding(indices % size, self.remainder) * nn.functional.embedding(
            quotients, self.quotient
        )


class QuotientRemainder(SmallTables):
    """Dense training with quotient-remainder tables."""

    words = "quotient-remainder tables"

    @staticmethod
    def kept(rows: int, ratio: float) -> tuple[int, ...]:
        """Return as many remainders as fit beside the quotients they need; at least twice the square root of V.

        >>> QuotientRemainder.kept(1_000_000, 100.0), QuotientRemainder.kept(100, 50.0)
        ((9899, 102), (10, 10))
        """
        budget = rows / ratio
        root = budget * budget - 4 * rows
        remainders = round((budget + math.sqrt(root)) / 2) if root > 0 else math.isqrt(rows - 1) + 1
        remainders = min(max(remainders, 1), rows)
        return remainders, -(-rows // remainders)

    def small(self, table: Table, kept: tuple[int, ...]) -> QuotientRemainderTable:
        return QuotientRemainderTable(table, *kept)


def build(settings: Settings, variant: str = "") -> QuotientRemainder:
    """Return the arm ``quotient_remainder``; raises ValueError for a variant, since it has none.

    Example:
        >>> model = build(Settings(table_ratio=2)).adapt(nn.Sequential(nn.Embedding(90, 4)), {"0": "embedding"})
        >>> model[0].remainder.shape, model[0].quotient.shape
        (torch.Size([43, 4]), torch.Size([3, 4]))
    """
    check_variant("quotient_remainder", variant, VARIANTS)
    return QuotientRemainder(settings)
