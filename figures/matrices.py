"""The encoder's matrices with their published tensorization: modes, ranks, and what follows from these."""

from __future__ import annotations

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class Cores:
    """Modes and ranks of a tensorized matrix, and what follows from them.

    Args:
        row_modes: of the rows: in-features of a layer, or rows of a table.
        column_modes: of the columns: out-features, or columns of a table.
        ranks: of the inner bonds.
        is_table: whether a core holds a row and a column mode (TTM), or one of either (TT).

    Example:
        >>> cores = Cores((12, 8, 8), (8, 8, 12), (12, 30, 30, 30, 12), is_table=False)
        >>> str(cores), cores.parameters, cores.rank_entries
        ('12·8·8 → 8·8·12', 20448, 114)
        >>> Cores((16, 20, 10, 10), (4, 4, 8, 6), (32, 32, 32), is_table=True).parameters
        167808
    """

    row_modes: tuple[int, ...]
    column_modes: tuple[int, ...]
    ranks: tuple[int, ...]
    is_table: bool

    @property
    def parameters(self) -> int:
        """Entries of all cores; raises ValueError where modes and ranks do not fit one another."""
        modes = (*self.row_modes, *self.column_modes)
        if self.is_table:
            modes = tuple(r * c for r, c in zip(self.row_modes, self.column_modes, strict=True))
        bonds = itertools.pairwise((1, *self.ranks, 1))
        return sum(mode * left * right for mode, (left, right) in zip(modes, bonds, strict=True))

    @property
    def rank_entries(self) -> int:
        """Entries of the diagonals on the inner bonds."""
        return sum(self.ranks)

    def __str__(self) -> str:
        rows, columns = ("·".join(map(str, modes)) for modes in (self.row_modes, self.column_modes))
        return f"{rows} {'x' if self.is_table else '→'} {columns}"


@dataclass(frozen=True)
class Matrix:
    """One of the encoder's matrices with its published setting; a linear layer has a bias, a table has none."""

    name: str
    workload: str  # "linear" or "lookup"
    rows: int
    columns: int
    published: Cores
    published_parameters: int

    @property
    def size(self) -> int:
        """Entries of the dense matrix."""
        return self.rows * self.columns

    @property
    def bias(self) -> int:
        return self.columns if self.workload == "linear" else 0

    def ratio(self, cores: Cores) -> float:
        """How many times smaller the layer is than the dense one, rank-control entries and bias counted."""
        return (self.size + self.bias) / (cores.parameters + cores.rank_entries + self.bias)


#: METHOD.md, Settings of the six-encoder model: as the released code has them.
MATRICES = (
    Matrix("attention", "linear", 768, 768, Cores((12, 8, 8), (8, 8, 12), (12, 30, 30, 30, 12), False), 20_448),
    Matrix("feed-forward 1", "linear", 768, 3072, Cores((12, 8, 8), (12, 16, 16), (12, 30, 30, 30, 16), False), 28_960),
    Matrix("feed-forward 2", "linear", 3072, 768, Cores((16, 16, 12), (8, 8, 12), (16, 30, 30, 30, 12), False), 28_960),
    Matrix("word embedding", "lookup", 30_522, 768, Cores((16, 20, 10, 10), (4, 4, 8, 6), (32,) * 3, True), 167_808),
)
