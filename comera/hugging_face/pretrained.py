"""Tensorized models on disk.

A model of Hugging Face is written by its own ``save_pretrained``: ``config.json``, which describes the tensorized
layers (:mod:`comera.hugging_face.transformers_models`), weights in one file or in shards, and what else the class
writes.
Of any other module these are ``model.safetensors`` and ``comera.json``, the description. No file is a pickle.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from comera.compatibility.arguments import check_folder, check_module
from comera.compatibility.hugging_face import is_pretrained_model
from comera.formats.block_tensor_train import BTTLinear
from comera.hugging_face.description import METHOD, Layers, describe, layers_of, rebuild
from comera.layers import RANKS

WEIGHTS, DESCRIPTION, CONFIG = "model.safetensors", "comera.json", "config.json"


def save_pretrained(model: nn.Module, folder: str | Path) -> None:
    """Write a model, tensorized or not, with its ranks, to a folder.

    Args:
        model: any module. One of Hugging Face is saved by its own ``save_pretrained`` and can be loaded by the folder
            alone. Of another one with a ``config`` as those have, the configuration is saved with it.
        folder: made if it is not there; files of the same names are written over.

    Raises:
        ModuleNotFoundError: without the package safetensors.
        ValueError: a tensorized model of Hugging Face, with a transformers older than 5.23.

    Example:
        >>> import tempfile
        >>> from comera import TT, tensorize
        >>> model = tensorize(nn.Sequential(nn.Linear(8, 6)), {"0": TT(ranks=2, order=2)})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_pretrained(model, folder)
        ...     loaded = load_pretrained(folder, nn.Sequential(nn.Linear(8, 6)))
        >>> torch.equal(loaded[0].packed_cores, model[0].packed_cores)
        True
    """
    check_module(model)
    folder = check_folder(folder)
    config: Any = getattr(model, "config", None)
    if is_pretrained_model(model):
        importlib.import_module("comera.hugging_face.transformers_models").save(model, folder)
        return
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(config, "save_pretrained"):
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
    save_file(_tensors(model), folder / WEIGHTS, {"format": "pt"})
    description = {"model": f"{type(model).__module__}.{type(model).__qualname__}", **describe(model)}
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def load_pretrained(folder: str | Path, model: nn.Module | None = None, **options: Any) -> nn.Module:
    """Load the model that :func:`save_pretrained`, or the one of Hugging Face, wrote to a folder, with its ranks.

    Parameters and persistent buffers have the types in which they were saved. Other buffers are as the class makes
    them.

    Args:
        folder: with the files.
        model: a dense model of the same class and sizes, which is tensorized and loaded. None: it is built by the
            package transformers from the folder's ``config.json``, and returned in the mode for evaluation.
        options: for :func:`comera.tensorize`, such as ``recompute``.

    Raises:
        ValueError: a folder without the files, a damaged file, a model that needs to be given, or one that the saved
            ranks and sizes do not fit; a given model is then as it was.
        ModuleNotFoundError: without the packages safetensors or, for a model of Hugging Face, transformers.
    """
    folder = check_folder(folder)
    if model is not None:
        check_module(model)
    if model is None:
        return _loaded_by_transformers(_class_of(folder), folder, options)
    if is_pretrained_model(model) and (folder / CONFIG).is_file():
        description = _description_of_transformers(folder)
        tensors = _loaded_by_transformers(type(model), folder, {}).state_dict()
        source = folder / CONFIG
    else:
        description, tensors, source = _json(folder / DESCRIPTION), _read(folder), folder / DESCRIPTION
    layers = layers_of(description, str(source))
    _filled(_without_storage(model), layers, tensors, source, options)  # a rehearsal
    return _filled(model, layers, tensors, source, options)


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a state dict, each once and in a storage of its own."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        first.setdefault(id(tensor), name)
    kept = {name: tensor for name, tensor in state.items() if first[id(tensor)] == name and name != RANKS}
    return {name: tensor.detach().clone().contiguous() for name, tensor in kept.items()}


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} cannot be read ({error.strerror}); name a folder of save_pretrained.") from None
    except ValueError:
        raise ValueError(f"{file} is damaged: it is not JSON.") from None


def _read(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / WEIGHTS)
    except OSError as error:
        raise ValueError(f"{folder / WEIGHTS} cannot be read ({error.strerror or error}).") from None
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged ({error}).") from None


def _class_of(folder: Path) -> Any:
    """Return the class of the folder's configuration, in the package transformers."""
    try:
        [name] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["architectures"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{folder} has no {CONFIG} that names an architecture of Hugging Face; give the dense model, as in "
            "comera.load_pretrained(folder, model)."
        ) from None
    kind = getattr(importlib.import_module("transformers"), name, None)
    if kind is None:
        raise ValueError(f"{folder / CONFIG} names {name}, which the package transformers does not have.")
    return kind


def _description_of_transformers(folder: Path) -> Any:
    """Return the description in the configuration; versions up to 0.2.0 wrote it to a file of its own."""
    description = _json(folder / CONFIG).get("quantization_config")
    if isinstance(description, Mapping) and description.get("quant_method") == METHOD:
        return description
    return _json(folder / DESCRIPTION) if (folder / DESCRIPTION).is_file() else describe(nn.Module())


def _loaded_by_transformers(kind: Any, folder: Path, options: Mapping[str, Any]) -> nn.Module:
    """Load a model of a class of transformers from a folder that has all of its weights and no others."""
    from safetensors import SafetensorError

    description = _description_of_transformers(folder)
    layers = layers_of(description, str(folder / CONFIG))
    try:
        config = kind.config_class.from_pretrained(folder, local_files_only=True)
        if layers:
            config.quantization_config = {**description, "quant_method": METHOD, "options": options}
        model, report = kind.from_pretrained(folder, config=config, local_files_only=True, output_loading_info=True)
    except (OSError, RuntimeError, SafetensorError, ValueError) as error:
        raise ValueError(f"{folder} cannot be loaded: {error}") from error
    if wrong := [name for names in report.values() for name in sorted(map(str, names))]:
        raise ValueError(f"{folder} does not fit {kind.__name__}: {wrong[0]} is missing or has no place in it.")
    return model if layers else rebuild(model, {}, options, str(folder / CONFIG))


def _without_storage(model: nn.Module) -> nn.Module:
    """Return a copy of a model on the meta device, with the same ties."""
    parameters = {id(each): nn.Parameter(each.detach().to("meta"), each.requires_grad) for each in model.parameters()}
    return copy.deepcopy(model, dict(parameters))


def _filled(
    model: nn.Module, layers: Layers, tensors: Mapping[str, torch.Tensor], source: Path, options: Mapping[str, Any]
) -> nn.Module:
    """Tensorize a dense model by the description, and load the tensors."""
    model = rebuild(model, layers, options, str(source))
    own = model.state_dict(keep_vars=True)
    first_cores = {f"{name}.in_core": each for name, each in model.named_modules() if isinstance(each, BTTLinear)}
    as_now = {
        name: first_cores[name].shape.as_first_core(tensors[name]) for name in first_cores.keys() & tensors.keys()
    }
    tensors = {**tensors, **as_now}
    wrong = [name for name, tensor in tensors.items() if name not in own or own[name].shape != tensor.shape]
    found = {id(own[name]) for name in tensors.keys() & own.keys()}
    wrong += [name for name, tensor in own.items() if id(tensor) not in found and name != RANKS]
    if wrong:
        raise ValueError(f"{source.parent} does not fit the model: {wrong[0]} is missing or of another size.")
    if any(tensor.is_meta for tensor in own.values()):
        return model
    with torch.no_grad():
        for name, tensor in tensors.items():
            if own[name].dtype != tensor.dtype:
                own[name].grad, own[name].data = None, own[name].data.to(tensor.dtype)
    model.load_state_dict(tensors, strict=False)
    return model
