"""From a wanted compression ratio of a whole model to modes and ranks of each of its layers.

All tensorized weights get the same ratio, as far as their bonds allow; layers of one shape get the same modes and ranks
(which :class:`comera.tensorize.JointMerging` then merges in one batch). What stays dense, that is biases, norms and
layers not named, counts at its full size on both sides. So the layers' own ratio is higher than the model's, and the
model's has a bound: the ratio at which all ranks are 1.
"""

from __future__ import annotations

import bisect
import fnmatch
import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from comera.compatibility.arguments import check_module, check_names
from comera.compatibility.hugging_face import is_linear, linear_weight
from comera.modes import check_order
from comera.protocol import OutOfReach
from comera.ratio.layer import (
    LINEAR_ORDERS,
    TABLE_ORDERS,
    LinearSolution,
    TableSolution,
    linear_chains,
    linear_solution,
    table_chains,
    table_solution,
)
from comera.ratio.rank_search import TOLERANCE, Chain, check_ratio, search
from comera.specs import TABLES, TT, TTM, Dense

#: Layer ratios are searched on a grid with this step, so that they do not depend on the ratio asked for.
_STEP = 1.0005


class _Weight(NamedTuple):
    """A kind of dense weight: (N, M) of a linear layer or (V, D) of a table."""

    table: bool
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class ModelSolution:
    """Modes and ranks for every tensorized layer of a model. ``str()`` of it is a card to read.

    Attributes:
        layers: by name, in the order of the model; layers of one shape share a solution.
        weights: how many distinct weights each solution stands for (layers that share a weight count once).
        dense_count: parameters of the dense model.
        parameter_count: parameters of the tensorized model: cores, rank-control entries and what stays dense.
        stays_dense: those of them that are as in the dense model.
        wanted_ratio: the ratio asked for.
    """

    layers: Mapping[str, LinearSolution | TableSolution]
    weights: Mapping[LinearSolution | TableSolution, int]
    dense_count: int
    parameter_count: int
    stays_dense: int
    wanted_ratio: float

    @property
    def ratio(self) -> float:
        """The whole-model ratio reached."""
        return self.dense_count / self.parameter_count

    @property
    def plan(self) -> dict[str, TT | TTM]:
        """Return the plan for :func:`comera.tensorize`."""
        return {name: solution.spec for name, solution in self.layers.items()}

    def __str__(self) -> str:
        lines = [
            f"Whole model {self.ratio:.4g} times smaller (wanted {self.wanted_ratio:g}): "
            f"{self.dense_count:,} → {self.parameter_count:,} parameters"
        ]
        for solution, number in self.weights.items():
            ranks, each = ", ".join(map(str, solution.ranks)), f"{solution.parameter_count:,} each"
            lines.append(
                f"  {number:>3} of: {solution.title}, ranks {ranks}; {each}, {solution.ratio:.4g} times smaller"
            )
        lines.append(f"  stays dense: {self.stays_dense:,}")
        return "\n".join(lines)


def _named_layers(model: nn.Module, names: Iterable[str]) -> dict[str, Dense]:
    """Return the linear layers and embeddings that fit the patterns."""
    known = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if is_linear(module) or isinstance(module, TABLES)
    }
    chosen: set[str] = set()
    for pattern in names:
        fits = set(fnmatch.filter(known, pattern))
        if not fits:
            raise ValueError(f"{pattern!r} fits no nn.Linear, Conv1D, nn.Embedding or nn.EmbeddingBag of the model.")
        chosen |= fits
    if not chosen:
        raise ValueError("names is empty; name at least one nn.Linear, Conv1D, nn.Embedding or nn.EmbeddingBag.")
    return {name: module for name, module in known.items() if name in chosen}


def _weight_of(layer: Dense) -> _Weight:
    if isinstance(layer, TABLES):
        return _Weight(True, layer.num_embeddings, layer.embedding_dim)
    return _Weight(False, *linear_weight(layer).t().shape)


def _distinct(layers: Iterable[Dense]) -> dict[torch.Tensor, _Weight]:
    """Return each weight once; one shared by an embedding and linear layers becomes a table, which they follow."""
    weights: dict[torch.Tensor, _Weight] = {}
    for layer in sorted(layers, key=lambda layer: not isinstance(layer, TABLES)):
        weights.setdefault(layer.weight, _weight_of(layer))
    return weights


def _first(order: int, orders: Sequence[int]) -> tuple[int, ...]:
    return (order, *(other for other in orders if other != order))


class _Sizes:
    """Sizes of the whole model as a function of the ratio of its layers, a step function on a grid of ratios."""

    def __init__(self, kinds: Mapping[_Weight, int], stays_dense: int, order: int, table_order: int) -> None:
        self.kinds, self.stays_dense = kinds, stays_dense
        linear, table = _first(order, LINEAR_ORDERS), _first(table_order, TABLE_ORDERS)
        self.chains: dict[_Weight, list[Chain]] = {
            kind: table_chains(*kind[1:], table) if kind.table else linear_chains(*kind[1:], linear) for kind in kinds
        }
        self.search = functools.cache(lambda kind, step: search(self.chains[kind], kind.size / _STEP**step))

    def at(self, step: int) -> int:
        """Return the parameters of the model whose layers have the ratio ``1.0005**step``, or the nearest possible."""
        return self.stays_dense + sum(n * self.search(kind, step)[1].entries for kind, n in self.kinds.items())

    def solution(self, kind: _Weight, step: int) -> LinearSolution | TableSolution:
        """Return the format and size of a weight at a ratio of the grid."""
        place, found = self.search(kind, step)
        solve = table_solution if kind.table else linear_solution
        return solve(kind.rows, kind.columns, self.chains[kind][place], found.ranks, _STEP**step)

    def steps(self) -> range:
        """Return the grid, from the largest model to the smallest, and a step beyond on either side."""
        most = max(kind.size / min(chain.smallest.entries for chain in self.chains[kind]) for kind in self.kinds)
        least = min(kind.size / max(chain.largest.entries for chain in self.chains[kind]) for kind in self.kinds)
        return range(math.floor(math.log(least, _STEP)) - 1, math.ceil(math.log(most, _STEP)) + 2)


def solve_model(
    model: nn.Module, names: Iterable[str], ratio: float, order: int = 3, table_order: int = 4
) -> ModelSolution:
    """Solve for modes and ranks that make a whole model ``ratio`` times smaller.

    Args:
        model: the dense model, on any device, ``meta`` included.
        names: names or patterns (as in ``fnmatch``) of the layers to tensorize: ``nn.Linear`` and ``Conv1D``
            become TT, ``nn.Embedding`` and ``nn.EmbeddingBag`` TTM. A mapping by name, such as the targets of a
            workload, will do.
        ratio: wanted parameters of ``model`` over those of the tensorized one, 1 or more; met within 2 %.
        order, table_order: modes per side of TT layers and cores of tables that are tried first; a layer that cannot
            meet its ratio with them takes another, as in :func:`comera.solve_modes`.

    Raises:
        ValueError: a name that fits no layer, or a ratio below 1.
        OutOfReach: a ValueError; the sentence names the largest or smallest ratio within reach, or those on either side
            of a gap.

    Example:
        >>> model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(64, 2))
        >>> solution = solve_model(model, ["0", "1", "2"], ratio=20)
        >>> print(solution)
        Whole model 20.04 times smaller (wanted 20): 97,218 → 4,851 parameters
            1 of: TTM embedding of 1000 rows, 64 columns, ranks 8, 9, 8; 2,873 each, 22.28 times smaller
            1 of: TT linear layer 64 → 256, ranks 4, 6, 6, 6, 6; 764 each, 21.45 times smaller
            1 of: TT linear layer 256 → 64, ranks 6, 6, 6, 6, 4; 764 each, 21.45 times smaller
          stays dense: 450
        >>> from comera import tensorize
        >>> sum(parameter.numel() for parameter in tensorize(model, solution.plan).parameters())
        4851
    """
    check_module(model)
    check_names("names", names)
    check_ratio(ratio)
    check_order("order", order)
    check_order("table_order", table_order)
    layers = _named_layers(model, names)
    weights = _distinct(layers.values())
    dense_count = sum(parameter.numel() for parameter in model.parameters())
    stays_dense = dense_count - sum(kind.size for kind in weights.values())
    sizes = _Sizes(Counter(weights.values()), stays_dense, order, table_order)

    steps, wanted = sizes.steps(), dense_count / ratio
    place = bisect.bisect_left(steps, -wanted, key=lambda step: -sizes.at(step))
    larger, smaller = steps[max(place - 1, 0)], steps[min(place, len(steps) - 1)]
    step = min(larger, smaller, key=lambda step: abs(sizes.at(step) - wanted))
    if abs(sizes.at(step) - wanted) > TOLERANCE * wanted:
        raise _out_of_reach(ratio, dense_count, stays_dense, sizes.at(larger), sizes.at(smaller))
    solutions = {kind: sizes.solution(kind, step) for kind in sizes.kinds}
    # A linear layer that shares the weight of a table follows it by itself.
    own = {name: layer for name, layer in layers.items() if weights[layer.weight] == _weight_of(layer)}
    return ModelSolution(
        {name: solutions[weights[layer.weight]] for name, layer in own.items()},
        {solutions[kind]: number for kind, number in sizes.kinds.items()},
        dense_count,
        sizes.at(step),
        stays_dense,
        ratio,
    )


def _out_of_reach(ratio: float, dense_count: int, stays_dense: int, larger: int, smaller: int) -> OutOfReach:
    """Return the error for a ratio that lies beyond the model's sizes, or between two of them."""
    start, wanted = f"ratio={ratio:g} is out of reach for the whole model", dense_count / ratio
    if wanted < smaller:
        dense, largest = f"{stays_dense:,} of its {dense_count:,} parameters stay dense", dense_count / smaller
        words = f"{start}, where {dense}; the largest within reach is {largest:.6g}, with all ranks 1."
        return OutOfReach(words, largest=largest)
    if wanted > larger:
        smallest = dense_count / larger
        words = f"{start}; the smallest within reach is {smallest:.6g}, with the largest ranks."
        return OutOfReach(words, smallest=smallest)
    nearest = f"{dense_count / larger:.6g} and {dense_count / smaller:.6g}"
    return OutOfReach(f"{start} within {TOLERANCE:.0%}; the nearest ratios on either side are {nearest}.")
