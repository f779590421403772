"""Swap layers of any ``nn.Module`` for tensorized ones, by name pattern."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from comera import kernels
from comera.compatibility.arguments import check_mapping, check_module, check_switch, shown
from comera.compatibility.attention import PROJECTIONS, split_attention
from comera.compatibility.distributed import refuse_distributed
from comera.compatibility.hugging_face import is_conv1d, is_linear
from comera.contraction.joint_merging import JointMerging
from comera.formats.block_linear import BlockLinear
from comera.functional import check_fused, fuse_feed_forwards
from comera.inspection.declared_ties import redeclare_ties, tie_as_declared
from comera.inspection.summary import summary
from comera.kernels import Fused
from comera.kernels.norms import fuse_norms
from comera.layers import TiedTTMLinear, TTLinear, TTMEmbedding
from comera.low_precision.products import FP8, use_fp8
from comera.ratio.automatic import choose, sentences, worth_splitting
from comera.recomputing import Recompute, check_recompute, keep_ranks
from comera.specs import TABLES, TT, TTM, Dense, LinearSpec, Spec, table_kind, unsupported_option, unusual
from comera.tracing import siblings_in


def tt_layers(model: nn.Module) -> list[TTLinear]:
    """Return the TT layers of a model, each once."""
    return [module for module in model.modules() if isinstance(module, TTLinear)]


def _set_submodule(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, new)


def _refuse_unusual(name: str, module: Dense, reason: str) -> None:
    """Raise ValueError for a feature of a dense layer that its tensorized form would lose.

    Args:
        name: of the module.
        reason: why it would be replaced, with which the sentence begins.
    """
    if what := unusual(module):
        raise ValueError(
            f"{reason} {name}, which {what}; a tensorized layer would lose that. To leave it dense, put "
            f"{name!r}: None before other patterns that fit it."
        )
    if what := unsupported_option(module):
        raise ValueError(f"{name} {what}.")


def tensorize(
    model: nn.Module,
    plan: Mapping[str, Spec | None] | Literal["auto"],
    start: Literal["scratch", "weights"] = "scratch",
    merge_jointly: bool = True,
    recompute: Recompute = "none",
    ratio: float | None = None,
    fp8: FP8 | None = None,
    fused: Fused = "auto",
) -> nn.Module:
    """Replace linear layers and embeddings of ``model`` by tensorized ones, in place.

    Weights shared between layers stay shared: two linear layers that share a weight share their cores, and a linear
    layer tied to a replaced embedding follows it as :class:`comera.layers.TiedTTMLinear`, whether it is named or not.
    What is frozen (``requires_grad=False``) stays frozen, cores and diagonals as the weight was. An
    ``nn.MultiheadAttention`` whose ``q_proj``, ``k_proj`` or ``v_proj`` a pattern with a format fits becomes a
    :class:`comera.compatibility.attention.SplitAttention`, which has these as layers.

    Args:
        model: any module.
        plan: name patterns (as in ``fnmatch``, against the names of ``model.named_modules()``) and what to put there:
            :class:`TT`, :class:`BTT` or :class:`Grouped` for ``nn.Linear`` and for ``Conv1D``, the linear layer of
            Hugging Face's GPT-2, :class:`TTM` for ``nn.Embedding`` and ``nn.EmbeddingBag``, None to leave a layer as it
            is. The first pattern that fits a layer decides. ``"auto"`` chooses layers, modes and ranks for ``ratio``
            (:mod:`comera.ratio.automatic`) and prints what it did, with a sentence for each layer that it left dense.
        start: ``"scratch"`` draws new cores, those of a table so that its entries have the mean square of the present
            ones, and those of a layer marked :func:`comera.protocol.starts_at_zero` so that it puts out zero;
            ``"weights"`` decomposes the present weights, by TT-SVD, of :class:`BTT` block by block, and of
            :class:`Grouped` by leaving out what lies outside of its blocks.
        merge_jointly: merge the cores of equally shaped layers in one batch per forward of ``model``, and form the
            first products of layers that read one input, as query, key and value do, by one product, wherever that
            gives what they would compute alone (:mod:`comera.contraction.joint_merging`); it changes speed, and how
            sums round, and nothing else.
        recompute: ``"outputs"`` has calls of ``model`` keep ranks instead of activations: what tensorized layers put
            out, and elementwise functions of it, are formed again in backward (:mod:`comera.recomputing`). ``"block"``
            also has the model's blocks, the entries of an ``nn.ModuleList``, form norms and attention again, from the
            block's input. Both change memory and speed, and how feed-forwards round that run fused
            (:func:`comera.functional.fuse_feed_forwards`); nothing else. Block tensor trains form what lies between
            their two products again under either. ``"none"`` keeps activations.
        ratio: with ``"auto"``, how many times smaller the whole model is to be.
        fp8: form the products of all tensorized linear layers in FP8 (:class:`comera.low_precision.FP8`), forward and
            backward; feed-forwards do not run fused then.
        fused: on NVIDIA GPUs from compute capability 8.0 on, feed-forwards of two tensor trains, and dropout, residual
            and LayerNorm behind a sub-layer, can run by Triton kernels, for which GPUs must be there when this is
            called. ``"auto"`` times them and torch's operations once per shape and device, at the first call, and takes
            the faster; ``"kernels"`` and ``"torch"`` take one of them. With ``recompute="block"`` LayerNorms stay
            torch's. The two draw different dropout masks and round differently. Off such GPUs it changes nothing.

    Returns:
        ``model``, or its replacement if ``model`` itself was a layer to replace.

    Raises:
        ValueError: a pattern that fits no linear layer or embedding, one that fits a layer of the wrong kind, an option
            a tensorized layer does not offer, a class derived from one that is replaced, a layer with hooks or
            parametrizations, a ``Conv1D`` that shares its weight with a layer of another kind, modes and ranks that do
            not fit, a ratio out of reach, or weights that are sharded over processes or managed by
            DistributedDataParallel. The model is then as it was.

    Warns:
        UserWarning: ``fp8`` for a model without a tensorized linear layer.

    Example:
        >>> model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 96), nn.Linear(96, 2))
        >>> tensorize(model, {"0": TTM(ranks=8), "1": TT(ranks=8, order=2)})[1].shape.parameter_count
        1184
    """
    check_module(model)
    if not isinstance(start, str) or start not in ("scratch", "weights"):
        raise ValueError(f"start is {shown(start)}; allowed: scratch, weights.")
    if fp8 is not None and not isinstance(fp8, FP8):
        raise ValueError(f"fp8 is {shown(fp8)}; it must be a comera.low_precision.FP8 or None.")
    check_recompute(recompute)
    check_fused(fused)
    check_switch("merge_jointly", merge_jointly)
    if isinstance(plan, str) and plan != "auto":
        raise ValueError(f'plan is {plan!r}; give what is to become of layers by their names, or "auto".')
    automatic = isinstance(plan, str)
    if not isinstance(plan, str):
        _check_plan(plan)
    if automatic != (ratio is not None):
        raise ValueError('ratio goes with plan="auto"; give both or neither.')
    tie_as_declared(model)
    fits = worth_splitting(model) if isinstance(plan, str) else _fits_projections(plan)
    split, undo = split_attention(model, fits)
    left: dict[str, str] = {}
    try:
        if isinstance(plan, str):
            assert ratio is not None
            plan, left = choose(split, ratio)
        root = _replace(split, plan, start, merge_jointly)
    except BaseException:
        undo()
        raise
    if kernels.possible() and fused != "torch":
        if recompute != "block":
            fuse_norms(root, fused)
        if recompute == "none":
            fuse_feed_forwards(root, fused, keep_ranks=False)
    if recompute != "none":
        fuse_feed_forwards(root, fused)
        keep_ranks(root, recompute)
        for module in root.modules():
            if isinstance(module, BlockLinear):
                module.recompute = True
    if fp8 is not None and not use_fp8(root, fp8):
        warnings.warn(
            "fp8 has no effect, since no linear layer of the model is a tensor train; give one a comera.TT.",
            stacklevel=2,
        )
    if automatic:
        print(summary(root), *sentences(left), sep="\n")
    return root


def _check_plan(plan: object) -> None:
    """Raise ValueError unless a plan gives each pattern a specification or None."""
    for pattern, spec in check_mapping(
        "plan", plan, "patterns of names, with a TT, BTT, Grouped, TTM or None each"
    ).items():
        if spec is not None and not isinstance(spec, Spec):
            hint = f", such as comera.{spec.__name__}()" if isinstance(spec, type) and spec in get_args(Spec) else ""
            raise ValueError(
                f"plan pattern {pattern!r} gives {shown(spec)}; allowed: a comera.TT, BTT, Grouped or TTM, or "
                f"None{hint}."
            )


def _fits_projections(plan: Mapping[str, Spec | None]) -> Callable[[str], bool]:
    """Return whether a plan tensorizes the input projections of the attention of a name."""

    def fits(name: str) -> bool:
        projections = [f"{name}.{each}".lstrip(".") for each in PROJECTIONS]
        first = (spec for pattern, spec in plan.items() if fnmatch.filter(projections, pattern))
        return isinstance(next(first, None), LinearSpec)

    return fits


def _replace(
    model: nn.Module,
    plan: Mapping[str, Spec | None],
    start: Literal["scratch", "weights"],
    merge_jointly: bool,
) -> nn.Module:
    """Carry out a plan of :func:`tensorize` for the layers that the model has."""
    names: dict[Dense, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if is_linear(module) or isinstance(module, TABLES):
            names.setdefault(module, []).append(name)

    chosen: dict[Dense, Spec | None] = {}
    for pattern, spec in plan.items():
        fits = [module for module, known in names.items() if any(fnmatch.fnmatchcase(n, pattern) for n in known)]
        if not fits:
            raise ValueError(
                f"plan pattern {pattern!r} fits no nn.Linear, Conv1D, nn.Embedding or nn.EmbeddingBag of the model"
                f"{_instead(model, pattern)}."
            )
        for module in fits:
            if module in chosen:
                continue
            chosen[module] = spec
            if spec is None:
                continue
            if is_linear(module) != isinstance(spec, LinearSpec):
                other = TT if is_linear(module) else TTM
                raise ValueError(
                    f"plan pattern {pattern!r} gives {type(spec).__name__}, but {names[module][0]} is of class "
                    f"{type(module).__name__}; TT, BTT and Grouped are for nn.Linear and Conv1D, TTM for nn.Embedding "
                    f"and nn.EmbeddingBag. Put {names[module][0]!r}: None before the pattern to leave it dense, or "
                    f"{names[module][0]!r}: comera.{other.__name__}() to tensorize it."
                )
            _refuse_unusual(names[module][0], module, f"plan pattern {pattern!r} fits")
            if start == "weights":
                _refuse_undecomposable(names[module][0], module.weight)

    _refuse_transposed_sharing(names, {module.weight for module, spec in chosen.items() if spec})
    refuse_distributed("tensorize", {module.weight: module.weight.numel() for module, spec in chosen.items() if spec})
    replacements: dict[nn.Module, nn.Module] = {}
    by_weight: dict[torch.Tensor, TTLinear | BlockLinear | TTMEmbedding] = {}
    # Embeddings first: a linear layer tied to one follows it.
    for module, spec in sorted(chosen.items(), key=lambda item: isinstance(item[1], LinearSpec)):
        if spec is None:
            continue
        shared = by_weight.get(module.weight)
        if isinstance(shared, TTMEmbedding):
            replacements[module] = _follow(shared, module)
        else:
            built = spec.build(module, start == "weights")
            if isinstance(shared, TTLinear | BlockLinear):
                if type(built) is not type(shared):
                    raise ValueError(
                        f"{names[module][0]} shares its weight with a layer that the plan gives another format; give "
                        "both the same."
                    )
                built.share_cores(shared)  # type: ignore[arg-type]
            _carry_over(module, built)
            replacements[module] = by_weight[module.weight] = built
    for module in names:
        shared = by_weight.get(module.weight)
        if module in replacements or shared is None:
            continue
        if isinstance(shared, TTLinear | BlockLinear) or module in chosen:
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
    return root


def _instead(model: nn.Module, pattern: str) -> str:
    """Name a layer that a pattern without effect fits: one that is tensorized already, or a convolution."""
    for name, module in model.named_modules(remove_duplicate=False):
        if not fnmatch.fnmatchcase(name, pattern):
            continue
        if isinstance(module, TTLinear | BlockLinear | TTMEmbedding):
            return f"; it fits {name or 'the model itself'}, which is tensorized already"
        if isinstance(module, _ConvNd):
            return f"; it fits {name or 'the model itself'}, and {type(module).__name__} is not supported"
    return ""


def _refuse_undecomposable(name: str, weight: torch.Tensor) -> None:
    """Raise ValueError over a weight without entries, or with some that are not finite."""
    if weight.is_meta:
        raise ValueError(f'{name} is on the meta device, so it has no weight for start="weights"; load it first.')
    if not bool(weight.isfinite().all()):
        raise ValueError(f'{name} has entries that are not finite; start="weights" needs finite weights.')


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


def _carry_over(dense: Dense, built: TTLinear | BlockLinear | TTMEmbedding) -> None:
    """Train or freeze the new layer as the dense one was."""
    built.train(dense.training)
    for parameter in built.core_parameters():
        parameter.requires_grad_(dense.weight.requires_grad)
    if isinstance(built, TTLinear | BlockLinear):
        built.stands_for = type(dense)
        if built.bias is not None:
            built.bias.requires_grad_(dense.bias.requires_grad)


def _follow(table: TTMEmbedding, module: Dense) -> nn.Module:
    """Return the replacement of a module whose weight was tied to a replaced table."""
    if isinstance(module, nn.Linear):
        tied = TiedTTMLinear(table, module.bias)
        tied.training = module.training
        return tied
    kind, options = table_kind(module)
    if kind is type(table) is TTMEmbedding:
        return table
    sizes, shape = (table.num_embeddings, table.embedding_dim), table.shape
    options |= {"lookup": table.lookup, "device": "meta"}  # it gets the cores of the table
    sharing = kind(*sizes, shape.row_modes, shape.column_modes, shape.ranks, **options)
    sharing.share_cores(table)
    return sharing.train(module.training)
