"""From a wanted compression ratio to modes and ranks, with the true number of parameters and what a row costs.

The ratio is the dense weight over what the tensorized layer stores in its place: all core entries and one rank-control
entry per rank. A bias is the same in both and counts in neither; padded rows of a table count where they are stored.

* **Modes** are the balanced ones of :mod:`comera.modes`; a table's rows are padded. No core gets a mode of 1, so a
  linear layer with a prime dimension has order 1 only: it is not padded.
* **Ranks** rise to the middle, where the smallest rank is taken that fits: see :mod:`comera.ratio.rank_search`.
* **Order.** At one size a lower order has the smaller middle rank and so fewer FLOPs: cost alone would always take the
  plain two-factor form, which of all orders gives the weight the lowest rank. Rank is what the parameters are there to
  buy. So the paper's order comes first (3 modes per side; 4 cores of a table), another one only where that order has
  no size within 2 % of the wanted one, and cost decides within an order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from comera.modes import balanced_modes, check_order, check_size, padded_modes, prime_factors
from comera.ratio.rank_search import Chain, search_within
from comera.specs import TT, TTM
from comera.tensor_train import TTMShape, TTShape

#: Orders in the sequence in which they are tried.
LINEAR_ORDERS = (3, 2, 4, 1)
TABLE_ORDERS = (4, 3, 2)

Shape = TypeVar("Shape", TTShape, TTMShape)


@dataclass(frozen=True)
class Solution(Generic[Shape]):
    """Modes and ranks for a wanted ratio. ``str()`` of it is a card to read.

    Attributes:
        shape: modes and ranks, as the layer has them in ``layer.shape``.
        wanted_ratio: the ratio asked for.
    """

    shape: Shape
    wanted_ratio: float

    @property
    def ranks(self) -> tuple[int, ...]:
        """One per inner bond."""
        return self.shape.ranks

    @property
    def parameter_count(self) -> int:
        """Core and rank-control entries."""
        return self.shape.parameter_count + sum(self.ranks)

    @property
    def title(self) -> str:
        """Name of the tensorized layer, with its sizes."""
        raise NotImplementedError

    @property
    def dense_count(self) -> int:
        """Entries of the dense weight."""
        raise NotImplementedError

    @property
    def ratio(self) -> float:
        """The ratio reached: ``dense_count / parameter_count``."""
        return self.dense_count / self.parameter_count

    @property
    def middle_rank(self) -> int:
        """R, the rank of the bond between the two halves."""
        return self.ranks[self.shape.half - 1]

    @property
    def merge_flops(self) -> int:
        """FLOPs of merging the cores into the two halves, once per forward pass."""
        return self._chain.merge_flops(self.ranks)

    @property
    def _chain(self) -> Chain:
        raise NotImplementedError

    def _card(self, modes: str, costs: Sequence[str]) -> str:
        ranks, bonds = (", ".join(map(str, values)) for values in (self.ranks, self._chain.limits))
        lines: list[tuple[str, str]] = [
            ("modes", modes),
            ("ranks", f"{ranks}  (bonds allow {bonds})"),
            ("parameters", f"{self.shape.parameter_count:,} in cores + {sum(self.ranks):,} rank-control entries"),
            ("", f"= {self.parameter_count:,}; dense {self.dense_count:,}; no bias in either"),
            ("ratio", f"{self.ratio:.4g}  (wanted {self.wanted_ratio:g})"),
            *(("" if number else "FLOPs", cost) for number, cost in enumerate(costs)),
        ]
        return "\n".join([self.title, *(f"  {name:<12}{text}" for name, text in lines)])


class LinearSolution(Solution[TTShape]):
    """A TT linear layer of a wanted ratio, from :func:`solve_modes`."""

    @property
    def title(self) -> str:
        return f"TT linear layer {self.shape.in_features} → {self.shape.out_features}"

    @property
    def in_modes(self) -> tuple[int, ...]:
        return self.shape.in_modes

    @property
    def out_modes(self) -> tuple[int, ...]:
        return self.shape.out_modes

    @property
    def dense_count(self) -> int:
        """N·M."""
        return self.shape.in_features * self.shape.out_features

    @property
    def flops_per_row(self) -> int:
        """Forward FLOPs per row of activations with merged halves, 2·R·(N + M); dense: 2·N·M."""
        return 2 * self.middle_rank * (self.shape.in_features + self.shape.out_features)

    @property
    def spec(self) -> TT:
        """The entry for a plan of :func:`comera.tensorize`."""
        return TT(self.ranks, self.shape.half, self.in_modes, self.out_modes)

    @property
    def _chain(self) -> Chain:
        return _linear_chain(self.shape.in_features, self.shape.out_features, self.shape.half)

    def __str__(self) -> str:
        shape, saved = self.shape, 2 * self.dense_count - self.flops_per_row
        modes = f"{_product(shape.in_modes)} → {_product(shape.out_modes)}, {2 * shape.half} TT cores"
        most = min(_most_modes(shape.in_features), _most_modes(shape.out_features))
        if most < LINEAR_ORDERS[0]:
            modes += f"; no more than {most} per side without a mode of 1"
        repaid = f"repaid from {math.ceil(self.merge_flops / saved):,} rows up" if saved > 0 else ""
        merge = f"{self.merge_flops:,} to merge the cores, once per forward pass; "
        merge += repaid or "not repaid, a row costs no less than dense"
        row = f"{self.flops_per_row:,} per row forward; dense {2 * self.dense_count:,}"
        return self._card(modes, (row, merge))


class TableSolution(Solution[TTMShape]):
    """A TTM embedding of a wanted ratio, from :func:`solve_table_modes`."""

    @property
    def title(self) -> str:
        return f"TTM embedding of {self.shape.num_embeddings} rows, {self.shape.embedding_dim} columns"

    @property
    def row_modes(self) -> tuple[int, ...]:
        return self.shape.row_modes

    @property
    def column_modes(self) -> tuple[int, ...]:
        return self.shape.column_modes

    @property
    def dense_count(self) -> int:
        """V·D, without padding."""
        return self.shape.num_embeddings * self.shape.embedding_dim

    @property
    def flops_per_row(self) -> int:
        """Forward FLOPs per row looked up in merged halves, 2·R·D; a dense table has none."""
        return 2 * self.middle_rank * self.shape.embedding_dim

    @property
    def spec(self) -> TTM:
        """The entry for a plan of :func:`comera.tensorize`."""
        return TTM(self.ranks, len(self.row_modes), self.row_modes, self.column_modes)

    @property
    def _chain(self) -> Chain:
        return _table_chain(self.shape.num_embeddings, self.shape.embedding_dim, len(self.row_modes))

    def __str__(self) -> str:
        shape = self.shape
        rows = f"rows {_product(shape.row_modes)} = {shape.padded_rows:,}"
        modes = f"{rows}, columns {_product(shape.column_modes)}, {len(shape.row_modes)} TTM cores"
        row = f"{self.flops_per_row:,} per row looked up forward; dense 0"
        merge = f"{self.merge_flops:,} to merge the cores, once per forward pass; less where rows are few"
        return self._card(modes, (row, merge))


def _product(modes: Sequence[int]) -> str:
    return "·".join(map(str, modes))


def _most_modes(dimension: int) -> int:
    """Return the largest number of modes above 1 of a dimension: its prime factors, or one for 1."""
    return max(1, len(prime_factors(dimension)))


@lru_cache(maxsize=1024)
def _linear_chain(in_features: int, out_features: int, order: int) -> Chain:
    # Largest input mode first and largest output mode last keep the inner bonds' limits high.
    return Chain(balanced_modes(in_features, order) + balanced_modes(out_features, order)[::-1], order)


@lru_cache(maxsize=1024)
def _table_chain(num_embeddings: int, embedding_dim: int, order: int) -> Chain:
    modes = zip(padded_modes(num_embeddings, order), balanced_modes(embedding_dim, order)[::-1], strict=True)
    return Chain(tuple(rows * columns for rows, columns in modes), order // 2)


def linear_chains(in_features: int, out_features: int, orders: Sequence[int] = LINEAR_ORDERS) -> list[Chain]:
    """Return the chains of a linear layer for those orders that need no mode of 1."""
    most = min(_most_modes(in_features), _most_modes(out_features))
    return [_linear_chain(in_features, out_features, order) for order in orders if order <= most]


def table_chains(num_embeddings: int, embedding_dim: int, orders: Sequence[int] = TABLE_ORDERS) -> list[Chain]:
    """Return the chains of a table for the orders whose cores all have rows and columns; 2 is always there."""
    chains = [_table_chain(num_embeddings, embedding_dim, order) for order in orders]
    return [chain for chain in chains if min(chain.modes) > 1 or len(chain.modes) == TABLE_ORDERS[-1]]


def linear_solution(
    in_features: int, out_features: int, chain: Chain, ranks: Sequence[int], ratio: float
) -> LinearSolution:
    """Return the solution from the result of a search over :func:`linear_chains`."""
    modes = chain.modes[: chain.half], chain.modes[chain.half :]
    return LinearSolution(TTShape(in_features, out_features, *modes, ranks), ratio)


def table_solution(
    num_embeddings: int, embedding_dim: int, chain: Chain, ranks: Sequence[int], ratio: float
) -> TableSolution:
    """Return the solution from the result of a search over :func:`table_chains`."""
    order = len(chain.modes)
    modes = padded_modes(num_embeddings, order), balanced_modes(embedding_dim, order)[::-1]
    return TableSolution(TTMShape(num_embeddings, embedding_dim, *modes, ranks), ratio)


def _check_sizes(order: int | None, least: int, **sizes: int) -> None:
    for name, value in sizes.items():
        check_size(name, value)
    if order is not None:
        check_order("order", order, least, ", or None to have it chosen")


def _steps(size: int, step: int) -> Iterable[int]:
    """Return the multiples of a step above a size, without end, or those below it, down to 1."""
    if step > 0:
        return itertools.count((size // step + 1) * step, step)
    return range(-(-size // -step) * -step + step, 0, step)


def _refuse_modes_of_one(order: int, **sizes: int) -> None:
    """Raise ValueError over a size that has no ``order`` modes above 1; the message names the nearest that have."""
    for name, size in sizes.items():
        if _most_modes(size) < order:
            step = 1 if order <= 8 else 2 ** (order - 4)  # of multiples, since the nearest of many modes is far away
            larger = next(number for number in _steps(size, step) if _most_modes(number) >= order)
            smaller = next((number for number in _steps(size, -step) if _most_modes(number) >= order), None)
            nearest = f"{smaller} and {larger}" if smaller else f"{larger}"
            raise ValueError(
                f"{name}={size} does not factor into {order} modes above 1, {_most_modes(size)} at most; "
                f"take a lower order, or pad the layer: {'the nearest' if step == 1 else 'sizes'} that factor are "
                f"{nearest}."
            )


def solve_modes(in_features: int, out_features: int, ratio: float, order: int | None = None) -> LinearSolution:
    """Solve for modes and ranks that make a linear layer ``ratio`` times smaller.

    Args:
        in_features, out_features: N and M.
        ratio: wanted ``N·M`` over core and rank-control entries, 1 or more; met within 2 %.
        order: modes per side. None takes 3, as the paper does, and another (2, 4, 1) only if 3 cannot meet the ratio.

    Raises:
        ValueError: a ratio below 1, or a dimension that does not factor into ``order`` modes (the sentence names the
            nearest that do).
        OutOfReach: a ValueError; the sentence names the largest or smallest ratio within reach, or those on either side
            of a gap.

    Example:
        >>> print(solve_modes(768, 3072, ratio=40))
        TT linear layer 768 → 3072
          modes       12·8·8 → 12·16·16, 6 TT cores
          ranks       12, 45, 46, 46, 16  (bonds allow 12, 96, 768, 256, 16)
          parameters  58,448 in cores + 165 rank-control entries
                      = 58,613; dense 2,359,296; no bias in either
          ratio       40.25  (wanted 40)
          FLOPs       353,280 per row forward; dense 4,718,592
                      16,660,736 to merge the cores, once per forward pass; repaid from 4 rows up
        >>> solve_modes(768, 768, ratio=28.7).ranks
        (12, 30, 30, 30, 12)
    """
    _check_sizes(order, 1, in_features=in_features, out_features=out_features)
    if order is not None:
        _refuse_modes_of_one(order, in_features=in_features, out_features=out_features)
    chains = linear_chains(in_features, out_features, LINEAR_ORDERS if order is None else (order,))
    chain, found = search_within(chains, in_features * out_features, ratio, f"a layer {in_features} → {out_features}")
    return linear_solution(in_features, out_features, chain, found.ranks, ratio)


def solve_table_modes(num_embeddings: int, embedding_dim: int, ratio: float, order: int | None = None) -> TableSolution:
    """Solve for modes and ranks that make an embedding table ``ratio`` times smaller.

    Args:
        num_embeddings, embedding_dim: V and D.
        ratio: wanted ``V·D`` over core (padded rows included) and rank-control entries, 1 or more; met within 2 %.
        order: number of cores. None takes 4, as the paper does, and another (3, 2) only if 4 cannot meet the ratio.

    Raises:
        ValueError: as in :func:`solve_modes`; also an order that leaves a core with neither rows nor columns.

    Example:
        >>> print(solve_table_modes(30522, 768, ratio=140))
        TTM embedding of 30522 rows, 768 columns
          modes       rows 14·13·13·13 = 30,758, columns 4·4·6·8, 4 TTM cores
          ranks       35, 36, 35  (bonds allow 56, 2912, 104)
          parameters  169,400 in cores + 106 rank-control entries
                      = 169,506; dense 23,440,896; no bias in either
          ratio       138.3  (wanted 140)
          FLOPs       55,296 per row looked up forward; dense 0
                      27,780,480 to merge the cores, once per forward pass; less where rows are few
    """
    _check_sizes(order, 2, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
    chains = table_chains(num_embeddings, embedding_dim, TABLE_ORDERS if order is None else (order,))
    if not chains:
        raise ValueError(
            f"order is {order}, too many cores for a table of {num_embeddings} rows, {embedding_dim} columns: one "
            "would have a single row and a single column; take a lower order."
        )
    chain, found = search_within(
        chains, num_embeddings * embedding_dim, ratio, f"a table of {num_embeddings} rows, {embedding_dim} columns"
    )
    return table_solution(num_embeddings, embedding_dim, chain, found.ranks, ratio)
