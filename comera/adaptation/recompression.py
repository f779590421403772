"""Lowering the ranks of trained layers at once, by TT-SVD: the simplest way to a smaller model."""

from __future__ import annotations

import torch
from torch import nn

from comera.compatibility.arguments import check_module, check_optimizer
from comera.layers import TensorTrainLayer, TTLinear
from comera.rank_control import chain_size, replace_data
from comera.ratio.rank_search import check_ratio
from comera.tensor_train import balance_cores, pack_cores, tt_round
from comera.truncation import Cut, layers_by_cores, refuse_distributed_layers


@torch.no_grad()
def recompress(model: nn.Module, ratio: float, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Cut]:
    """Round the cores of every tensorized layer to about ``1 / ratio`` of their entries.

    Each layer is rounded to one rank for all bonds, clipped to its present ranks (TT rounding, Oseledets 2011); the
    error in the Frobenius norm is at most √bonds times the least possible. Cores of linear layers are balanced, and
    rank entries are multiplied into them. The function of the model changes; train on afterwards.

    Args:
        model: a tensorized model.
        ratio: core entries of a layer now over those afterwards, 1 or more; met as far as whole ranks allow.
        optimizer: whose state of the cores and rank entries is dropped, since it belongs to the former cores.

    Returns:
        The inner ranks before and after, by the name of each layer that changed.

    Raises:
        ValueError: a ratio below 1, a model without a tensorized layer, or parameters that are sharded over processes.

    Example:
        >>> from comera import TT, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(64, 64)), {"0": TT(ranks=16, order=2)})
        >>> recompress(model, ratio=4)
        {'0': Cut(before=(8, 16, 8), after=(5, 5, 5))}
    """
    check_module(model)
    check_ratio(ratio)
    if optimizer is not None:
        check_optimizer(optimizer)
    shared = list(layers_by_cores(model))
    if not shared:
        raise ValueError("the model has no tensorized layer; call comera.tensorize.")
    refuse_distributed_layers("recompress", [layers[0] for layers in shared])
    names = {module: name for name, module in reversed([*model.named_modules()])}
    cuts: dict[str, Cut] = {}
    for layers in shared:
        layer, before = layers[0], layers[0].shape.ranks
        if not all(layer.active_ranks()):  # nothing passes it
            continue
        ranks = _ranks_for(layer, ratio)
        if ranks == before:
            continue
        _round(layer, ranks)
        for each in layers:
            each.shape = each.shape.with_ranks(ranks)
        if optimizer is not None:
            for parameter in (layer.packed_cores, layer.diagonals):
                optimizer.state.pop(parameter, None)
        cuts[names[layer]] = Cut(before, ranks)
    return cuts


def _ranks_for(layer: TensorTrainLayer, ratio: float) -> tuple[int, ...]:
    """Return one rank for all bonds, clipped to the present ones, such that the size is the largest allowed."""
    modes, present = layer.mode_sizes(), layer.shape.ranks
    wanted = layer.shape.parameter_count / ratio

    def clipped(rank: int) -> tuple[int, ...]:
        return tuple(min(rank, each) for each in present)

    for rank in range(max(present), 1, -1):
        if chain_size(modes, clipped(rank)) <= wanted:
            return clipped(rank)
    return clipped(1)


def _round(layer: TensorTrainLayer, ranks: tuple[int, ...]) -> None:
    """Give a layer the nearest chain of these ranks."""
    shape = layer.shape.with_ranks(ranks)
    flat = [core.flatten(1, -2) if core.dim() > 3 else core for core in layer._scaled_cores()]
    cores = [core.reshape(size) for core, size in zip(tt_round(flat, ranks).cores, shape.core_shapes, strict=True)]
    if isinstance(layer, TTLinear):
        balance_cores(cores)
    replace_data(layer.packed_cores, pack_cores(cores, shape).to(layer.packed_cores.dtype))
    replace_data(layer.diagonals, layer.diagonals.data.new_ones(sum(ranks)))
