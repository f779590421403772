"""A table of what is tensorized in a model, and what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from comera.compatibility.arguments import check_module
from comera.formats.block_linear import BlockLinear
from comera.formats.block_shapes import BTTShape
from comera.formats.grouped import GroupedShape
from comera.inspection.step_memory import Batch, StepMemory, step_memory
from comera.layers import TensorTrainLayer
from comera.tensor_train import TTShape


@dataclass(frozen=True)
class Row:
    """A tensorized layer, or several that are alike but for their names.

    Attributes:
        names: of the layers; of those that share their cores, the first.
        shape: "N → M" of a linear layer, "V by D" of a table.
        modes: of its cores; of blocks, groups and their sizes.
        ranks: inner ranks, or that of every block; empty of a grouped layer.
        dense, entries: parameters of one dense weight, and of the cores and rank entries in its place.
    """

    names: tuple[str, ...]
    shape: str
    modes: str
    ranks: tuple[int, ...]
    dense: int
    entries: int

    @property
    def cells(self) -> tuple[str, ...]:
        """As columns of the table."""
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        ranks = " ".join(map(str, self.ranks))
        ratio = f"{self.dense / self.entries:,.1f}" if self.entries else "all"
        return self.names[0] + more, self.shape, self.modes, ranks, f"{self.dense:,}", f"{self.entries:,}", ratio


_TITLES = ("layer", "shape", "modes", "ranks", "dense", "now", "ratio")


@dataclass(frozen=True)
class ModelSummary:
    """The result of :func:`summary`. ``str()`` of it is a table to read.

    Attributes:
        rows: the tensorized layers, in the order of the model.
        parameters: of the model, shared ones once.
        dense_parameters: of the model as it would be without tensorized layers.
        memory: of a step with Adam.
        dense_memory: of that model, without activations.
    """

    rows: tuple[Row, ...]
    parameters: int
    dense_parameters: int
    memory: StepMemory
    dense_memory: StepMemory

    def __str__(self) -> str:
        lines = _aligned([_TITLES, *(row.cells for row in self.rows)]) if self.rows else ["no tensorized layer"]
        ratio = self.dense_parameters / max(self.parameters, 1)
        lines += [
            f"parameters: {self.dense_parameters:,} dense, {self.parameters:,} now, {ratio:,.4g} times fewer",
            f"predicted memory of a step: {self.memory}",
        ]
        if self.rows:
            lines.append(f"dense, without activations: {self.dense_memory.total / 2**20:,.1f} MiB")
        return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first_number = 4  # from here on numbers
    return [
        "  ".join(
            cell.rjust(width) if place >= first_number else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def summary(model: nn.Module, batch: Batch | None = None) -> ModelSummary:
    """Summarize which layers of a model are tensorized, in which modes and ranks, and the cost of a step.

    Args:
        model: tensorized or not, at any time of training.
        batch: what the model is called with; activations are predicted for it (:func:`step_memory`).

    Example:
        >>> from comera import TT, tensorize
        >>> model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
        >>> print(summary(tensorize(model, {"0": TT(ranks=8, order=2)})))
        layer  shape     modes        ranks   dense    now  ratio
        0      64 → 256  8·8 → 16·16  8 8 8  16,384  1,752    9.4
        parameters: 18,696 dense, 4,064 now, 4.6 times fewer
        predicted memory of a step: 0.1 MiB: parameters 0.0, gradients 0.0, Adam's moments 0.0, without activations
        dense, without activations: 0.3 MiB
    """
    check_module(model)
    layers = _layers(model)
    names = {module: name for name, module in reversed([*model.named_modules()])}
    alike: dict[Row, list[str]] = {}
    saved, saved_trained = 0, 0  # bytes
    for layer in layers:
        row = _row(layer)
        alike.setdefault(row, []).append(names[layer])
        core = layer.core_parameters()[0]
        fewer = (row.dense - row.entries) * core.element_size()
        saved += fewer
        saved_trained += fewer if core.requires_grad else 0
    rows = tuple(replace(row, names=tuple(known)) for row, known in alike.items())
    count = sum(parameter.numel() for parameter in model.parameters())
    before = count + sum(len(row.names) * (row.dense - row.entries) for row in rows)
    now = step_memory(model, batch)
    dense = StepMemory(now.parameters + saved, now.gradients + saved_trained, now.moments + 2 * saved_trained)
    return ModelSummary(rows, count, before, now, dense)


def _layers(model: nn.Module) -> list[TensorTrainLayer | BlockLinear]:
    """Return the layers with cores, in the order of the model; of those that share them, the first."""
    by_core: dict[nn.Parameter, TensorTrainLayer | BlockLinear] = {}
    for module in model.modules():
        if isinstance(module, TensorTrainLayer | BlockLinear):
            by_core.setdefault(module.core_parameters()[0], module)
    return [*by_core.values()]


def _row(layer: TensorTrainLayer | BlockLinear) -> Row:
    shape = layer.shape
    entries = sum(core.numel() for core in layer.core_parameters())
    if isinstance(shape, BTTShape):
        sizes = f"{shape.in_features:,} → {shape.out_features:,}"
        blocks = f"{shape.in_blocks} x {shape.in_size} → {shape.out_blocks} x {shape.out_size}"
        return Row((), sizes, blocks, (shape.rank,), layer.dense_count(), entries)
    if isinstance(shape, GroupedShape):
        groups = f"{shape.groups} x {shape.in_size} → {shape.groups} x {shape.out_size}"
        sizes = f"{shape.in_features:,} → {shape.out_features:,}"
        return Row((), sizes, groups, (), layer.dense_count(), entries)
    if isinstance(shape, TTShape):
        size, sign, modes = (shape.in_features, shape.out_features), "→", (shape.in_modes, shape.out_modes)
    else:
        size, sign, modes = (shape.num_embeddings, shape.embedding_dim), "by", (shape.row_modes, shape.column_modes)
    sizes, factors = f" {sign} ".join(f"{each:,}" for each in size), f" {sign} ".join(map(_product, modes))
    return Row((), sizes, factors, shape.ranks, layer.dense_count(), entries)


def _product(modes: Sequence[int]) -> str:
    return "·".join(map(str, modes))
