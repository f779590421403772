"""A dense model of the same function, for programs without tensor trains."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from comera.compatibility.arguments import check_module
from comera.formats.block_linear import BlockLinear
from comera.inspection.declared_ties import redeclare_dense_ties
from comera.layers import TensorTrainLayer, TiedTTMLinear, TTLinear, TTMEmbedding, TTMEmbeddingBag
from comera.recomputing import StandIn


def to_dense_model(model: nn.Module) -> nn.Module:
    """Return a copy of a model in which every tensorized layer is a layer of torch again, with the weight that it has.

    Layers become what they were: ``nn.Linear`` or ``Conv1D``, ``nn.Embedding``, ``nn.EmbeddingBag``. Layers that share
    cores share a weight, and tied ones are tied. The copy has dense weights: its size is that of the dense model.

    Args:
        model: tensorized or not; it is left as it is.

    Example:
        >>> from comera import TT, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(8, 6), nn.ReLU()), {"0": TT(ranks=2, order=2)})
        >>> dense, x = to_dense_model(model), torch.randn(3, 8)
        >>> dense[0], torch.allclose(dense(x), model(x), atol=1e-6)
        (Linear(in_features=8, out_features=6, bias=True), True)
    """
    check_module(model)
    model = copy.deepcopy(model)
    for module in model.modules():
        while isinstance(forward := module.__dict__.get("forward"), StandIn):
            module.__dict__.pop("forward")
            if forward._given is not None:
                module.__dict__["forward"] = forward._given
    weights: dict[tuple[torch.Tensor, type], nn.Parameter] = {}
    dense: dict[nn.Module, nn.Module] = {}
    for module in [*model.modules()]:
        layer = module.embedding if isinstance(module, TiedTTMLinear) else module
        if not isinstance(layer, TensorTrainLayer | BlockLinear):
            continue
        # Conv1D keeps the transpose, and shares its weight with no layer of another kind.
        kind = module.stands_for if isinstance(module, TTLinear | BlockLinear) else nn.Linear
        turned = not issubclass(kind, nn.Linear)
        core = layer.core_parameters()[0]
        weight = weights.get((core, kind if turned else nn.Linear))
        if weight is None:
            entries = layer.to_dense().detach()
            entries = (entries.t() if turned else entries).contiguous()
            weight = nn.Parameter(entries, core.requires_grad)
            weights[core, kind if turned else nn.Linear] = weight
        dense[module] = _layer(module, kind, weight).train(module.training)
    places = [
        (model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], module)
        for name, module in model.named_modules(remove_duplicate=False)
        if name and module in dense
    ]
    for owner, child, module in places:
        if owner not in dense:
            setattr(owner, child, dense[module])
    root = dense.get(model, model)
    redeclare_dense_ties(root)
    return root


def _layer(module: nn.Module, kind: Callable[..., nn.Module], weight: nn.Parameter) -> nn.Module:
    """Return the dense layer in place of a tensorized one."""
    with torch.device("meta"):
        if isinstance(module, TTMEmbeddingBag):
            rows, columns = weight.shape
            last, padding = module.include_last_offset, module.padding_idx
            new: nn.Module = nn.EmbeddingBag(
                rows, columns, mode=module.mode, include_last_offset=last, padding_idx=padding
            )
        elif isinstance(module, TTMEmbedding):
            new = nn.Embedding(weight.shape[0], weight.shape[1], padding_idx=module.padding_idx)
        elif issubclass(kind, nn.Linear):  # type: ignore[arg-type]
            new = nn.Linear(weight.shape[1], weight.shape[0], bias=module.bias is not None)
        else:
            new = kind(weight.shape[1], weight.shape[0])
    new.weight = weight
    if isinstance(module, TTLinear | BlockLinear | TiedTTMLinear) and module.bias is not None:
        new.bias = module.bias
    return new
