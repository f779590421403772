"""A model's tensorized layers as JSON, and the layers built again from it.

A description holds modes, ranks, threshold and look-up of each tensorized layer by its name, blocks and rank of each
block tensor train, groups of each grouped layer, and the versions that wrote it. Any module's is the file
``comera.json``; a model of Hugging Face carries it in its ``config.json``, as its ``quantization_config``.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from comera.compatibility.version import __version__
from comera.formats.block_linear import BlockLinear
from comera.formats.block_shapes import BTTShape
from comera.formats.grouped import GroupedShape
from comera.layers import TensorTrainLayer, TiedTTMLinear, TTMEmbedding
from comera.specs import BTT, TT, TTM, Grouped, Spec
from comera.tensor_train import TTShape
from comera.tensorize import tensorize
from comera.truncation import set_ranks

#: The number of this form of a description.
FORMAT = 1

#: The name of comera in a ``config.json``: its ``quant_method``, and a fusion's name.
METHOD = "comera"

Layers = Mapping[str, Mapping[str, Any]]


def describe(model: nn.Module) -> dict[str, Any]:
    """Describe the tensorized layers of a model by their names.

    Example:
        >>> model = tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": TT(ranks=2, order=2)})
        >>> describe(model)["layers"]["0"]["ranks"]
        (2, 2, 2)
    """
    return {
        "format": FORMAT,
        "comera": __version__,
        "torch": str(torch.__version__),
        "layers": {name: _described(layer) for name, layer in _tensorized(model)},
    }


def layers_of(description: object, source: str) -> Layers:
    """Return the layers of a description that was read from a file.

    Args:
        description: the decoded JSON.
        source: the file's name, with which an error begins.

    Raises:
        ValueError: another format, or no layers.

    Example:
        >>> layers_of({"format": 1, "layers": {}}, "comera.json")
        {}
    """
    given = description.get("format") if isinstance(description, Mapping) else None
    if not isinstance(description, Mapping) or given != FORMAT:
        raise ValueError(f"{source} has format {given!r}; this version of comera reads {FORMAT}.")
    layers = description.get("layers")
    if not isinstance(layers, Mapping) or not all(isinstance(layer, Mapping) for layer in layers.values()):
        raise ValueError(f"{source} is damaged: it names no layers.")
    return layers


def rebuild(model: nn.Module, layers: Layers, options: Mapping[str, Any], source: str) -> nn.Module:
    """Tensorize a model as a description has it, with its ranks; entries of cores are to be loaded behind.

    Args:
        model: dense, or tensorized with the same modes, as a class does that tensorizes itself.
        layers: of the description, by the names that they have in ``model``.
        options: for :func:`comera.tensorize`.
        source: the description's file, with which an error begins.

    Raises:
        ValueError: layers or options that do not fit the model.

    Example:
        >>> model = tensorize(nn.Sequential(nn.Linear(16, 16)), {"0": TT(ranks=2, order=2)})
        >>> layers = describe(model)["layers"]
        >>> rebuild(nn.Sequential(nn.Linear(16, 16)), layers, {}, "comera.json")[0].shape == model[0].shape
        True
    """
    try:
        return _rebuilt(model, layers, options)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{source} does not fit the model: {error}") from error


def _rebuilt(model: nn.Module, layers: Layers, options: Mapping[str, Any]) -> nn.Module:
    present = {name: layer for name, layer in _tensorized(model) if name in layers}
    for name, layer in present.items():
        for key, modes in _modes(layer).items():
            saved = layers[name].get(key)
            if (tuple(saved) if isinstance(saved, list) else saved) != modes:
                raise ValueError(f"{name} has {key}={modes}, and the saved layer has {saved}.")
    if plan := {glob.escape(name): _spec(layer) for name, layer in layers.items() if name not in present}:
        model = tensorize(model, plan, **options)
    elif options:
        raise ValueError(f"{', '.join(options)} apply where layers are tensorized, and no layer is.")
    described = {layer: layers[name] for name, layer in _tensorized(model) if name in layers}
    chains = {layer: layers for layer, layers in described.items() if isinstance(layer, TensorTrainLayer)}
    named = {name: module for name, module in model.named_modules() if module in chains}
    set_ranks(model, {name: chains[module]["ranks"] for name, module in named.items()})
    for layer, description in chains.items():
        layer.threshold = float(description["threshold"])
    return model


def _tensorized(model: nn.Module) -> Iterator[tuple[str, TensorTrainLayer | BlockLinear]]:
    """Yield the tensorized layers under all names that a dense model has for them."""
    tied = {name for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, TiedTTMLinear)}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, TensorTrainLayer | BlockLinear) and name.rpartition(".")[0] not in tied:
            yield name, module


def _modes(layer: TensorTrainLayer | BlockLinear) -> dict[str, tuple[int, ...] | int]:
    """Return what of a layer's shape stays as it is while a model is trained."""
    shape = layer.shape
    if isinstance(shape, GroupedShape):
        return {"groups": shape.groups, "shuffle": shape.shuffle}
    if isinstance(shape, BTTShape):
        return {"in_blocks": shape.in_blocks, "out_blocks": shape.out_blocks, "rank": shape.rank}
    if isinstance(shape, TTShape):
        return {"in_modes": shape.in_modes, "out_modes": shape.out_modes}
    return {"row_modes": shape.row_modes, "column_modes": shape.column_modes}


def _described(layer: TensorTrainLayer | BlockLinear) -> dict[str, Any]:
    if isinstance(layer, BlockLinear):
        return _modes(layer)
    lookup = {"lookup": layer.lookup} if isinstance(layer, TTMEmbedding) else {}
    return {**_modes(layer), "ranks": layer.shape.ranks, "threshold": layer.threshold, **lookup}


def _spec(layer: Mapping[str, Any]) -> Spec:
    """Return the specification by modes; ranks are set later, since no cap gives those of a truncated layer."""
    if "groups" in layer:
        return Grouped(layer["groups"], layer["shuffle"])
    if "in_blocks" in layer:
        return BTT(layer["rank"], layer["in_blocks"], layer["out_blocks"])
    if "in_modes" in layer:
        return TT(1, in_modes=layer["in_modes"], out_modes=layer["out_modes"])
    return TTM(1, row_modes=layer["row_modes"], column_modes=layer["column_modes"], lookup=layer["lookup"])
