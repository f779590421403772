"""Specifications of layers in a plan, and the features of a layer that no tensorized one has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from comera.compatibility.arguments import check_number, check_switch
from comera.compatibility.hugging_face import CONV1D, class_name, linear_weight
from comera.formats.block_linear import BlockInit
from comera.formats.block_shapes import solve_blocks
from comera.formats.block_tensor_train import BTTLinear, warn_of_low_rank
from comera.formats.grouped import GroupedLinear
from comera.layers import TTLinear, TTMEmbedding, TTMEmbeddingBag
from comera.lookup import Variant
from comera.modes import balanced_modes, check_size, padded_modes
from comera.protocol import starts_at_zero
from comera.tensor_train import Init

#: Layers that look rows up.
TABLES = (nn.Embedding, nn.EmbeddingBag)

#: A layer that can be replaced: one of :data:`TABLES`, ``nn.Linear``, or ``Conv1D``, whose class need not be there to
#: name.
Dense = Any


@dataclass(frozen=True)
class TT:
    """Specification of a TT layer in the place of an ``nn.Linear`` or a ``Conv1D``.

    Args:
        ranks: one integer, a cap clipped per bond, or one rank per inner bond.
        order: modes per side, when the modes are not given; they are then the balanced ones.
        in_modes, out_modes: the modes, both or neither.
        init: how cores are drawn from scratch, ``"normal"`` as published, ``"orthogonal"`` or ``"spectral"``
            (:meth:`TTLinear.reset_parameters`); None: ``"orthogonal"``, which ended below the published start
            where the rates of both were searched. Trained weights that are decomposed leave nothing to draw.
    """

    ranks: int | Sequence[int] = 30
    order: int = 3
    in_modes: Sequence[int] | None = None
    out_modes: Sequence[int] | None = None
    init: Init | None = None

    def build(self, linear: Dense, decompose: bool) -> TTLinear:
        """Return the TT layer that replaces ``linear``."""
        if (self.in_modes is None) != (self.out_modes is None):
            raise ValueError("in_modes and out_modes go together: give both or neither.")
        weight = linear_weight(linear)
        out_features, in_features = weight.shape
        # Largest input mode first and largest output mode last keep the inner bonds' limits high.
        in_modes = balanced_modes(in_features, self.order) if self.in_modes is None else self.in_modes
        out_modes = self.out_modes
        if out_modes is None:
            out_modes = balanced_modes(out_features, self.order)[::-1]
        if decompose:
            if self.init is not None:
                raise ValueError(f"TT(init={self.init!r}) draws cores, and start='weights' does not; leave init out.")
            return TTLinear.from_dense(weight, in_modes, out_modes, self.ranks, linear.bias)
        layer = TTLinear(
            in_features,
            out_features,
            in_modes,
            out_modes,
            self.ranks,
            bias=linear.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
            init="orthogonal" if self.init is None else self.init,
        )
        if starts_at_zero(linear):
            nn.init.zeros_(layer.cores()[-1])
        return layer


@dataclass(frozen=True)
class BTT:
    """Specification of a block tensor train in the place of an ``nn.Linear`` or a ``Conv1D``.

    Args:
        rank: of every block; None: 2, or with ``ratio`` the one that the size asks for.
        in_blocks, out_blocks: input and output groups, both or neither; None: the balanced ones, or with ``ratio`` the
            fewest with which the weight can have full rank.
        ratio: how many times fewer entries the cores of each layer are to have than its dense weight
            (:func:`comera.solve_blocks`).
        init: how cores are drawn from scratch (:meth:`BTTLinear.reset_parameters`); trained weights that are decomposed
            leave nothing to draw.
    """

    rank: int | None = None
    in_blocks: int | None = None
    out_blocks: int | None = None
    ratio: float | None = None
    init: BlockInit = "normal"

    def __post_init__(self) -> None:
        if self.ratio is not None:
            check_number("ratio", self.ratio, "a finite number from 1 up", lambda value: value >= 1)
        if self.rank is not None:
            check_size("rank", self.rank)

    def build(self, linear: Dense, decompose: bool) -> BTTLinear:
        """Return the block tensor train that replaces ``linear``."""
        weight = linear_weight(linear)
        out_features, in_features = weight.shape
        rank, blocks = 2 if self.rank is None else self.rank, (self.in_blocks, self.out_blocks)
        if self.ratio is not None:
            if (self.in_blocks is None) != (self.out_blocks is None):
                raise ValueError("in_blocks and out_blocks go together: give both or neither.")
            wish = None if self.in_blocks is None or self.out_blocks is None else (self.in_blocks, self.out_blocks)
            shape = solve_blocks(in_features, out_features, self.ratio, self.rank, wish)
            warn_of_low_rank(shape)
            rank, blocks = shape.rank, (shape.in_blocks, shape.out_blocks)
        if decompose:
            if self.init != "normal":
                raise ValueError(f"BTT(init={self.init!r}) draws cores, and start='weights' does not; leave init out.")
            return BTTLinear.from_dense(weight, *blocks, rank, linear.bias)
        sizes = (in_features, out_features, *blocks, rank, linear.bias is not None, self.init)
        layer = BTTLinear(*sizes, device=weight.device, dtype=weight.dtype)
        if starts_at_zero(linear):
            nn.init.zeros_(layer.out_core)
        return layer


@dataclass(frozen=True)
class Grouped:
    """Specification of a grouped layer in the place of an ``nn.Linear`` or a ``Conv1D``.

    Args:
        groups: of input and output features; the layer has so many times fewer entries than its dense weight.
        shuffle: whether to spread the outputs of each group over the groups of a following layer.
        init: how blocks are drawn from scratch (:meth:`GroupedLinear.reset_parameters`); trained weights whose blocks
            are taken leave nothing to draw.
    """

    groups: int = 4
    shuffle: bool = True
    init: BlockInit = "normal"

    def __post_init__(self) -> None:
        check_size("groups", self.groups)
        check_switch("shuffle", self.shuffle)

    def build(self, linear: Dense, decompose: bool) -> GroupedLinear:
        """Return the grouped layer that replaces ``linear``."""
        weight = linear_weight(linear)
        if decompose:
            if self.init != "normal":
                raise ValueError(
                    f"Grouped(init={self.init!r}) draws blocks, and start='weights' does not; leave init out."
                )
            return GroupedLinear.from_dense(weight, self.groups, linear.bias, self.shuffle)
        options = (self.groups, linear.bias is not None, self.shuffle, self.init, weight.device, weight.dtype)
        layer = GroupedLinear(weight.shape[1], weight.shape[0], *options)
        if starts_at_zero(linear):
            nn.init.zeros_(layer.blocks)
        return layer


#: Entries that a plan can have for a linear layer.
LinearSpec = TT | BTT | Grouped


@dataclass(frozen=True)
class TTM:
    """Specification of a TTM layer in the place of an ``nn.Embedding`` or an ``nn.EmbeddingBag``.

    Args:
        ranks: one integer, a cap clipped per bond, or one rank per inner bond.
        order: number of cores, when the modes are not given; they are then the balanced ones, rows padded.
        row_modes, column_modes: the modes, both or neither.
        lookup: see :mod:`comera.lookup`.
    """

    ranks: int | Sequence[int] = 32
    order: int = 4
    row_modes: Sequence[int] | None = None
    column_modes: Sequence[int] | None = None
    lookup: Variant = "optimized"

    def build(self, embedding: Dense, decompose: bool) -> TTMEmbedding:
        """Return the TTM layer that replaces ``embedding``."""
        if (self.row_modes is None) != (self.column_modes is None):
            raise ValueError("row_modes and column_modes go together: give both or neither.")
        row_modes, column_modes = self.row_modes, self.column_modes
        if row_modes is None:
            row_modes = padded_modes(embedding.num_embeddings, self.order)
        if column_modes is None:
            column_modes = balanced_modes(embedding.embedding_dim, self.order)[::-1]
        kind, options = table_kind(embedding)
        options["lookup"] = self.lookup
        if decompose:
            return kind.from_dense(embedding.weight, row_modes, column_modes, self.ranks, **options)
        options |= {"device": embedding.weight.device, "dtype": embedding.weight.dtype}
        sizes = (embedding.num_embeddings, embedding.embedding_dim)
        table = kind(*sizes, row_modes, column_modes, self.ranks, **options)
        table.scale_like(embedding.weight)
        return table


#: Entries that a plan can have.
Spec = LinearSpec | TTM


def table_kind(embedding: Dense) -> tuple[type[TTMEmbedding], dict[str, Any]]:
    """Return the class of the layer that replaces a table, and the table's options for it."""
    options: dict[str, Any] = {"padding_idx": embedding.padding_idx}
    if isinstance(embedding, nn.Embedding):
        return TTMEmbedding, options
    return TTMEmbeddingBag, options | {"mode": embedding.mode, "include_last_offset": embedding.include_last_offset}


#: Classes that can be replaced, beside Conv1D; a derived class may compute something else. The second is a linear layer
#: but for a mark, in which ``nn.MultiheadAttention`` keeps its output projection.
_REPLACEABLE = (nn.Linear, NonDynamicallyQuantizableLinear, *TABLES)

_HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"),
    *("_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)


def unusual(module: Dense) -> str | None:
    """Name a feature of a layer that its tensorized form would lose, to complete "the layer …"; None without.

    Example:
        >>> unusual(nn.utils.spectral_norm(nn.Linear(2, 2)))
        'has hooks, as weight_norm and pruning register them'
    """
    if type(module) not in _REPLACEABLE and class_name(type(module)) != CONV1D:
        return f"is a {class_name(type(module))} with a forward of its own"
    if "forward" in vars(module):
        return "has a forward that was put in place of its class's"
    if any(getattr(module, kind) for kind in _HOOKS):
        return "has hooks, as weight_norm and pruning register them"
    if any(parameter._backward_hooks or parameter._post_accumulate_grad_hooks for parameter in module.parameters()):
        return "has parameters with hooks"
    if not module.weight.is_floating_point():
        return f"has a quantised weight, of {module.weight.dtype}"
    return None


def unsupported_option(module: Dense) -> str | None:
    """Name an option of a table that no tensorized one supports, to complete "the table …"; None without."""
    if not isinstance(module, TABLES):
        return None
    for option in ("max_norm", "scale_grad_by_freq", "sparse"):
        if getattr(module, option):
            return f"uses {option}={getattr(module, option)}, which TTMEmbedding does not offer"
    if getattr(module, "mode", "sum") == "max":
        return "uses mode='max', which TTMEmbeddingBag does not offer: it is no sum of rows"
    return None
