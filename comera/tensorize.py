"""Swap layers of any ``nn.Module`` for tensorized ones, by name pattern."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from comera.compatibility.distributed import refuse_distributed
from comera.compatibility.hugging_face import CONV1D, class_name, is_conv1d, is_linear, linear_weight
from comera.contraction.joint_merging import JointMerging
from comera.declared_ties import redeclare_ties, tie_as_declared
from comera.functional import fuse_feed_forwards
from comera.layers import TiedTTMLinear, TTLinear, TTMEmbedding, TTMEmbeddingBag
from comera.lookup import Variant
from comera.lowprec.products import FP8, use_fp8
from comera.modes import balanced_modes, padded_modes
from comera.recomputing import Recompute, Store, check_recompute, keep_ranks
from comera.tracing import siblings_in

#: Layers that look rows up.
TABLES = (nn.Embedding, nn.EmbeddingBag)

#: A layer that can be replaced: one of :data:`TABLES`, ``nn.Linear``, or ``Conv1D``, whose class need not be there to
#: name.
Dense = Any


@dataclass(frozen=True)
class TT:
    """How to tensorize an ``nn.Linear``, or a ``Conv1D``, the linear layer of GPT-2 in the package transformers.

    Args:
        ranks: one integer, a cap clipped per bond, or one rank per inner bond.
        order: modes per side, when the modes are not given; they are then the balanced ones.
        in_modes, out_modes: the modes, both or neither.
    """

    ranks: int | Sequence[int] = 30
    order: int = 3
    in_modes: Sequence[int] | None = None
    out_modes: Sequence[int] | None = None

    def build(self, linear: Dense, decompose: bool) -> TTLinear:
        """The TT layer that stands in for ``linear``."""
        if (self.in_modes is None) != (self.out_modes is None):
            raise ValueError("in_modes and out_modes go together: give both or neither.")
        weight = linear_weight(linear)
        out_features, in_features = weight.shape
        # Largest input mode first and largest output mode last keep the inner bonds' limits high.
        in_modes = self.in_modes or balanced_modes(in_features, self.order)
        out_modes = self.out_modes or balanced_modes(out_features, self.order)[::-1]
        if decompose:
            return TTLinear.from_dense(weight, in_modes, out_modes, self.ranks, linear.bias)
        return TTLinear(
            in_features,
            out_features,
            in_modes,
            out_modes,
            self.ranks,
            bias=linear.bias is not None,
            device=weight.device,
            dtype=weight.dtype,
        )


@dataclass(frozen=True)
class TTM:
    """How to tensorize an ``nn.Embedding`` or an ``nn.EmbeddingBag``.

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
        """The TTM layer that stands in for ``embedding``."""
        if (self.row_modes is None) != (self.column_modes is None):
            raise ValueError("row_modes and column_modes go together: give both or neither.")
        row_modes = self.row_modes or padded_modes(embedding.num_embeddings, self.order)
        column_modes = self.column_modes or balanced_modes(embedding.embedding_dim, self.order)[::-1]
        kind, options = _table_kind(embedding)
        options["lookup"] = self.lookup
        if decompose:
            return kind.from_dense(embedding.weight, row_modes, column_modes, self.ranks, **options)
        options |= {"device": embedding.weight.device, "dtype": embedding.weight.dtype}
        sizes = (embedding.num_embeddings, embedding.embedding_dim)
        return kind(*sizes, row_modes, column_modes, self.ranks, **options)


def _table_kind(embedding: Dense) -> tuple[type[TTMEmbedding], dict[str, Any]]:
    """The class of the layer that stands in for a table, and what of its options the table has."""
    options: dict[str, Any] = {"padding_idx": embedding.padding_idx}
    if isinstance(embedding, nn.Embedding):
        return TTMEmbedding, options
    return TTMEmbeddingBag, options | {"mode": embedding.mode, "include_last_offset": embedding.include_last_offset}


def tt_layers(model: nn.Module) -> list[TTLinear]:
    """The TT layers of a model, each once."""
    return [module for module in model.modules() if isinstance(module, TTLinear)]


def _set_submodule(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, new)


#: What can be replaced, beside Conv1D; a class derived from one of them may compute something else. The second is a
#: linear layer but for a mark, in which ``nn.MultiheadAttention`` keeps its output projection.
_REPLACEABLE = (nn.Linear, NonDynamicallyQuantizableLinear, *TABLES)

_HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"),
    *("_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)


def _refuse_unusual(name: str, module: Dense, reason: str) -> None:
    """Raise ValueError over what a dense layer does and the tensorized one in its place would not do.

    Args:
        name: of the module.
        reason: why it would be replaced, with which the sentence begins.
    """
    unusual = ""
    if type(module) not in _REPLACEABLE and class_name(type(module)) != CONV1D:
        unusual = f"is a {class_name(type(module))} with a forward of its own"
    elif "forward" in vars(module):
        unusual = "has a forward that was put in place of its class's"
    elif any(getattr(module, kind) for kind in _HOOKS):
        unusual = "has hooks, as weight_norm and pruning register them"
    elif any(parameter._backward_hooks or parameter._post_accumulate_grad_hooks for parameter in module.parameters()):
        unusual = "has parameters with hooks"
    if unusual:
        raise ValueError(
            f"{reason} {name}, which {unusual}; a tensorized layer would lose that. To leave it dense, put "
            f"{name!r}: None before other patterns that fit it."
        )
    if isinstance(module, TABLES):
        for option in ("max_norm", "scale_grad_by_freq", "sparse"):
            if getattr(module, option):
                raise ValueError(f"{name} uses {option}={getattr(module, option)}, which TTMEmbedding does not offer.")
        if getattr(module, "mode", "sum") == "max":
            raise ValueError(f"{name} uses mode='max', which TTMEmbeddingBag does not offer: it is no sum of rows.")


def tensorize(
    model: nn.Module,
    plan: Mapping[str, TT | TTM | None],
    start: Literal["scratch", "weights"] = "scratch",
    merge_jointly: bool = True,
    recompute: Recompute = "none",
    store: Store = "exact",
    fp8: FP8 | None = None,
) -> nn.Module:
    """Replace linear layers and embeddings of ``model`` by tensorized ones, in place.

    Weights shared between layers stay shared: two linear layers that share a weight share their cores, and a linear
    layer tied to a replaced embedding follows it as :class:`comera.layers.TiedTTMLinear`, whether it is named or not.
    What is frozen (``requires_grad=False``) stays frozen, cores and diagonals as the weight was.

    Args:
        model: any module.
        plan: name patterns (as in ``fnmatch``, against the names of ``model.named_modules()``) and what to put there:
            :class:`TT` for ``nn.Linear`` and for ``Conv1D``, the linear layer of Hugging Face's GPT-2, :class:`TTM` for
            ``nn.Embedding`` and ``nn.EmbeddingBag``, None to leave a layer as it is. The first pattern that fits a
            layer decides.
        start: ``"scratch"`` draws new cores; ``"weights"`` decomposes the present weights by TT-SVD.
        merge_jointly: merge the cores of equally shaped layers in one batch per forward of ``model``, and form the
            first products of layers that read one input, as query, key and value do, by one product, wherever that
            gives what they would compute alone (:mod:`comera.contraction.joint_merging`); it changes speed, and how
            sums round, and nothing else.
        recompute: ``"outputs"`` has calls of ``model`` keep ranks instead of activations: what tensorized layers put
            out, and elementwise functions of it, are formed again in backward (:mod:`comera.recomputing`). ``"block"``
            also has the model's blocks, the entries of an ``nn.ModuleList``, form norms and attention again, from the
            block's input. Both change memory and speed, and how feed-forwards round that run fused
            (:func:`comera.functional.fuse_feed_forwards`); nothing else. ``"none"`` keeps activations.
        store: ``"fp8"``, with ``recompute``: what is kept at full width is kept in FP8
            (:func:`comera.recomputing.keep_ranks`).
        fp8: form the products of all tensorized linear layers in FP8 (:class:`comera.lowprec.FP8`), forward and
            backward; feed-forwards do not run fused then.

    Returns:
        ``model``, or its replacement if ``model`` itself was a layer to replace.

    Raises:
        ValueError: a pattern that fits no linear layer or embedding, one that fits a layer of the wrong kind, an option
            a tensorized layer does not offer, a class derived from one that is replaced, a layer with hooks or
            parametrizations, a ``Conv1D`` that shares its weight with a layer of another kind, modes and ranks that do
            not fit, or weights that are sharded over processes or managed by DistributedDataParallel.

    Example:
        >>> model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 96), nn.Linear(96, 2))
        >>> tensorize(model, {"0": TTM(ranks=8), "1": TT(ranks=8, order=2)})[1].shape.parameter_count
        1184
    """
    if start not in ("scratch", "weights"):
        raise ValueError(f"start is {start!r}; allowed: scratch, weights.")
    check_recompute(recompute, store)
    tie_as_declared(model)
    names: dict[Dense, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if is_linear(module) or isinstance(module, TABLES):
            names.setdefault(module, []).append(name)

    chosen: dict[Dense, TT | TTM | None] = {}
    for pattern, spec in plan.items():
        fits = [module for module, known in names.items() if any(fnmatch.fnmatchcase(n, pattern) for n in known)]
        if not fits:
            raise ValueError(
                f"plan pattern {pattern!r} fits no nn.Linear, Conv1D, nn.Embedding or nn.EmbeddingBag of the model."
            )
        for module in fits:
            if module in chosen:
                continue
            chosen[module] = spec
            if spec is None:
                continue
            if is_linear(module) != isinstance(spec, TT):
                raise ValueError(
                    f"plan pattern {pattern!r} gives {type(spec).__name__}, but {names[module][0]} is a "
                    f"{type(module).__name__}; TT is for nn.Linear and Conv1D, TTM for nn.Embedding and "
                    "nn.EmbeddingBag."
                )
            _refuse_unusual(names[module][0], module, f"plan pattern {pattern!r} fits")

    _refuse_transposed_sharing(names, {module.weight for module, spec in chosen.items() if spec})
    refuse_distributed("tensorize", {module.weight: module.weight.numel() for module, spec in chosen.items() if spec})
    replacements: dict[nn.Module, nn.Module] = {}
    by_weight: dict[torch.Tensor, TTLinear | TTMEmbedding] = {}
    # Embeddings first: a linear layer tied to one follows it.
    for module, spec in sorted(chosen.items(), key=lambda item: isinstance(item[1], TT)):
        if spec is None:
            continue
        shared = by_weight.get(module.weight)
        if isinstance(shared, TTMEmbedding):
            replacements[module] = _follow(shared, module)
        else:
            built = spec.build(module, start == "weights")
            if isinstance(shared, TTLinear):
                built.share_cores(shared)
            _carry_over(module, built)
            replacements[module] = by_weight[module.weight] = built
    for module in names:
        shared = by_weight.get(module.weight)
        if module in replacements or shared is None:
            continue
        if isinstance(shared, TTLinear) or module in chosen:
            raise ValueError(
                f"{names[module][0]} shares its weight with a layer the plan replaces; name it in the plan as well."
            )
        _refuse_unusual(names[module][0], module, "a layer that the plan replaces shares its weight with")
        replacements[module] = _follow(shared, module)

    root = replacements.get(model, model)
    for dense, known in names.items():
        for name in known:
            if name and dense in replacements:
                _set_submodule(model, name, replacements[dense])
    redeclare_ties(root)
    if merge_jointly and root is model:
        present = JointMerging.of(model)
        if present is not None:
            present.layers, present.siblings = tt_layers(model), siblings_in(model)
        elif sum(isinstance(new, TTLinear) for new in replacements.values()) > 1:
            JointMerging(model, tt_layers(model), siblings_in(model))
    if recompute != "none":
        fuse_feed_forwards(root)
        keep_ranks(root, recompute, store)
    if fp8 is not None:
        use_fp8(root, fp8)
    return root


def _refuse_transposed_sharing(names: Mapping[Dense, Sequence[str]], weights: set[torch.Tensor]) -> None:
    """Raise ValueError over one of the weights that a Conv1D shares with a layer that reads it transposed."""
    first: dict[torch.Tensor, nn.Module] = {}
    for module in names:
        other = first.setdefault(module.weight, module)
        if module.weight in weights and is_conv1d(module) != is_conv1d(other):
            conv1d, transposed = (module, other) if is_conv1d(module) else (other, module)
            raise ValueError(
                f"{names[conv1d][0]} is a Conv1D and shares its weight with {names[transposed][0]}, which reads it "
                "transposed; cores cannot be shared so. Leave both dense, or give one of them a weight of its own."
            )


def _carry_over(dense: Dense, built: TTLinear | TTMEmbedding) -> None:
    """Train or freeze the new layer as the dense one was."""
    built.train(dense.training)
    for parameter in (built.packed_cores, built.diagonals):
        parameter.requires_grad_(dense.weight.requires_grad)
    if isinstance(built, TTLinear) and built.bias is not None:
        built.bias.requires_grad_(dense.bias.requires_grad)


def _follow(table: TTMEmbedding, module: Dense) -> nn.Module:
    """What replaces a module whose weight was that of a replaced table."""
    if isinstance(module, nn.Linear):
        tied = TiedTTMLinear(table, module.bias)
        tied.training = module.training
        return tied
    kind, options = _table_kind(module)
    if kind is type(table) is TTMEmbedding:
        return table
    sizes, shape = (table.num_embeddings, table.embedding_dim), table.shape
    options |= {"lookup": table.lookup, "device": "meta"}  # it gets the cores of the table
    sharing = kind(*sizes, shape.row_modes, shape.column_modes, shape.ranks, **options)
    sharing.share_cores(table)
    return sharing.train(module.training)
