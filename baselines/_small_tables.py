"""Base of hashing and the quotient-remainder trick: tables with fewer rows, at a wanted size.

Either the whole model is to be so many times smaller, and all tables get the same ratio of their own, or each table is;
no table falls below what the trick allows.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import nn

from baselines._arm import (
    Table,
    TrainedArm,
    check_positive,
    check_ratio,
    embedding_targets,
    fused_adamw,
    parameters_apart,
    replace_module,
)
from comera.protocol import LATER

#: How far the parameters of the whole model may be from those that a ratio asks for.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of an arm with small tables.

    Args:
        table_ratio: how many times fewer rows each table among the targets keeps, as far as the trick allows.
        ratio: how many times smaller the whole model is to be; ``table_ratio`` then does not apply. None: it does.
        lr: rate of AdamW, of all parameters.

    Raises:
        ValueError: when a ratio is below 1, or the rate not finite and above 0.
    """

    table_ratio: float = 100.0
    ratio: float | None = field(default=None, metadata=LATER)
    lr: float = 5e-5

    method: ClassVar[str]  # whose settings they are

    def __post_init__(self) -> None:
        check_positive(f"{self.method}.lr", self.lr)
        check_positive(f"{self.method}.table_ratio", self.table_ratio)
        for name in ("table_ratio", "ratio"):
            check_ratio(f"{self.method}.{name}", getattr(self, name))


class SmallTables(TrainedArm):
    """Every embedding or bag among the targets gets fewer rows; linear layers stay dense."""

    words: ClassVar[str]  # as in "hashed tables"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @staticmethod
    @abc.abstractmethod
    def kept(rows: int, ratio: float) -> tuple[int, ...]:
        """Return the rows of the tables that replace one of ``rows``, about ``ratio`` times fewer together."""

    @abc.abstractmethod
    def small(self, table: Table, kept: tuple[int, ...]) -> SmallTable:
        """Return the replacement of a table."""

    def model_unsupported(self, model: nn.Module, targets: Mapping[str, str]) -> str | None:
        """Explain why ``model`` has no such tables, or cannot reach the ratio; None if it can. Shapes suffice."""
        try:
            self._kept(model, targets)
        except ValueError as reason:
            return str(reason)
        return None

    def adapt(self, model: nn.Module, targets: Mapping[str, str]) -> nn.Module:
        """Replace the tables in ``model`` by fresh small ones.

        Raises:
            ValueError: as :meth:`model_unsupported` says.
        """
        kept = self._kept(model, targets)
        for name, table in embedding_targets(model, targets).items():
            replace_module(model, name, self.small(table, kept[name]))
        return model

    def _kept(self, model: nn.Module, targets: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
        tables = embedding_targets(model, targets)
        if not tables:
            raise ValueError(f"{self.words} need an embedding among the targets, and this model has none; use dense.")
        for name, table in tables.items():
            padded_bag = isinstance(table, nn.EmbeddingBag) and table.padding_idx is not None
            if padded_bag or table.max_norm is not None:
                option = "padding_idx of a bag" if padded_bag else "max_norm"
                raise ValueError(f"{name} has the option {option}, which {self.words} do not offer; use dense.")
        at = {name: self.kept(table.num_embeddings, self.settings.table_ratio) for name, table in tables.items()}
        return at if self.settings.ratio is None else self._at_ratio(model, tables, self.settings.ratio)

    def _at_ratio(self, model: nn.Module, tables: Mapping[str, Table], ratio: float) -> dict[str, tuple[int, ...]]:
        """Return the rows that make the whole model ``ratio`` times smaller, by bisection over the tables' ratio."""
        dense = sum(parameter.numel() for parameter in model.parameters())
        others = dense - sum(table.weight.numel() for table in tables.values())

        def at(own: float) -> tuple[int, dict[str, tuple[int, ...]]]:
            rows = {name: self.kept(table.num_embeddings, own) for name, table in tables.items()}
            return others + sum(sum(rows[name]) * table.embedding_dim for name, table in tables.items()), rows

        low, high = 1.0, float(max(table.num_embeddings for table in tables.values()))
        for _ in range(80):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if at(middle)[0] > dense / ratio else (low, middle)
        size, rows = at(high)
        if abs(size - dense / ratio) > TOLERANCE * dense / ratio:
            nearest = f"the nearest within reach is {dense / size:.6g}, since {others:,} parameters lie in other layers"
            raise ValueError(f"ratio={ratio:g} is out of reach for {self.words}; {nearest}.")
        return rows

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return fused AdamW over every trainable parameter."""
        return fused_adamw((parameters_apart(model, ()), self.settings.lr))


def fresh_tables(like: Table, rows: Sequence[int]) -> list[nn.Parameter]:
    """Draw weights (rows, D) from the distribution on +-1/sqrt(V), V the rows of the table that they replace."""
    bound = like.num_embeddings**-0.5
    weights = [torch.empty_like(like.weight[:1]).expand(number, -1).contiguous() for number in rows]
    return [nn.Parameter(weight.detach().uniform_(-bound, bound)) for weight in weights]


class SmallTable(nn.Module, abc.ABC):
    """A table or bag whose rows are made of those of smaller tables.

    Args:
        like: the dense table or bag, of V rows and D columns; what it does with its rows stays.
    """

    def __init__(self, like: Table) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = like.num_embeddings, like.embedding_dim
        self.padding_idx = like.padding_idx
        self.mode = like.mode if isinstance(like, nn.EmbeddingBag) else None
        self.include_last_offset = isinstance(like, nn.EmbeddingBag) and like.include_last_offset

    @abc.abstractmethod
    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the rows (items, D) of indices (items,) from 0 to V - 1."""

    def forward(
        self,
        indices: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Look up; the other arguments are those of ``nn.EmbeddingBag``, for a bag alone."""
        rows = self.rows(indices.flatten())
        if self.padding_idx is not None:
            rows = rows.masked_fill((indices.flatten() == self.padding_idx).unsqueeze(1), 0.0)
        if self.mode is None:
            return rows.view(*indices.shape, -1)
        if self.mode != "max" and indices.dim() == 2 and indices.shape[1] == 1 and per_sample_weights is None:
            return rows  # each bag has one item
        places = torch.arange(indices.numel(), device=indices.device).view_as(indices)
        return nn.functional.embedding_bag(
            places,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
        )
