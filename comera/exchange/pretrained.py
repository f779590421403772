"""Tensorized models on disk: ``model.safetensors``, ``comera.json`` and, of Hugging Face's models, ``config.json``.

These are the files of the Hub's layout, so that such a folder can be uploaded as it is. ``comera.json`` says which
layers are tensorized, in what modes and ranks, and with which versions the folder was written. No file is a pickle.
"""

from __future__ import annotations

import copy
import glob
import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from comera.compatibility.version import __version__
from comera.layers import TensorTrainLayer, TiedTTMLinear, TTMEmbedding
from comera.loops.control import RANKS
from comera.plan.specs import TT, TTM
from comera.tensor_train import TTShape
from comera.tensorize import tensorize
from comera.truncation import set_ranks

WEIGHTS, DESCRIPTION, CONFIG = "model.safetensors", "comera.json", "config.json"

#: The number of this form of :data:`DESCRIPTION`.
FORMAT = 1


def save_pretrained(model: nn.Module, folder: str | Path) -> None:
    """Write a model, tensorized or not, with its ranks, to a folder.

    Args:
        model: any module. One that has a ``config`` as those of Hugging Face is saved with it, and can be loaded by the
            folder alone.
        folder: made if it is not there; files of the same names are written over.

    Raises:
        ModuleNotFoundError: without the package safetensors.

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
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    description = {
        "format": FORMAT,
        "comera": __version__,
        "torch": str(torch.__version__),
        "model": f"{type(model).__module__}.{type(model).__qualname__}",
        "layers": {name: _described(layer) for name, layer in _tensorized(model)},
    }
    config: Any = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
    save_file(_tensors(model), folder / WEIGHTS, {"format": "pt"})
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def load_pretrained(folder: str | Path, model: nn.Module | None = None, **options: Any) -> nn.Module:
    """The model that :func:`save_pretrained` wrote to a folder, with the ranks that it had.

    Args:
        folder: with the files.
        model: a dense model of the same class and sizes, which is tensorized and loaded. None: it is built from the
            folder's ``config.json`` by the package transformers, and returned in the mode for evaluation.
        options: for :func:`comera.tensorize`, such as ``recompute``.

    Raises:
        ValueError: a folder without the files, a damaged file, a model that needs to be given, or one that the saved
            ranks and sizes do not fit; a given model is then as it was.
        ModuleNotFoundError: without the packages safetensors or, where no model is given, transformers.
    """
    folder = Path(folder)
    layers = _description(folder)
    tensors = _read(folder)
    if model is None:
        return _filled(_built(folder).eval(), layers, tensors, folder, options)
    _filled(_without_storage(model), layers, tensors, folder, options)  # a rehearsal
    return _filled(model, layers, tensors, folder, options)


def _tensorized(model: nn.Module) -> Iterator[tuple[str, TensorTrainLayer]]:
    """The tensorized layers under all names that a dense model has for them."""
    tied = {name for name, module in model.named_modules(remove_duplicate=False) if isinstance(module, TiedTTMLinear)}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, TensorTrainLayer) and name.rpartition(".")[0] not in tied:
            yield name, module


def _described(layer: TensorTrainLayer) -> dict[str, Any]:
    shape = layer.shape
    if isinstance(shape, TTShape):
        modes = {"in_modes": shape.in_modes, "out_modes": shape.out_modes}
    else:
        modes = {"row_modes": shape.row_modes, "column_modes": shape.column_modes}
    lookup = {"lookup": layer.lookup} if isinstance(layer, TTMEmbedding) else {}
    return {**modes, "ranks": shape.ranks, "threshold": layer.threshold, **lookup}


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """What a state dict holds, each tensor once and by itself."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        first.setdefault(id(tensor), name)
    kept = {name: tensor for name, tensor in state.items() if first[id(tensor)] == name and name != RANKS}
    return {name: tensor.detach().clone().contiguous() for name, tensor in kept.items()}


def _description(folder: Path) -> dict[str, dict[str, Any]]:
    """The layers of the folder's description."""
    file = folder / DESCRIPTION
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} cannot be read ({error.strerror}); name a folder of save_pretrained.") from None
    except ValueError:
        raise ValueError(f"{file} is damaged: it is not JSON.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        given = content.get("format") if isinstance(content, dict) else None
        raise ValueError(f"{file} has format {given!r}; this version of comera reads {FORMAT}.")
    layers = content.get("layers")
    if not isinstance(layers, dict) or not all(isinstance(layer, dict) for layer in layers.values()):
        raise ValueError(f"{file} is damaged: it names no layers.")
    return layers


def _read(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / WEIGHTS)
    except OSError as error:
        raise ValueError(f"{folder / WEIGHTS} cannot be read ({error.strerror or error}).") from None
    except SafetensorError as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged ({error}).") from None


def _built(folder: Path) -> nn.Module:
    """The dense model of the folder's configuration."""
    try:
        [name] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["architectures"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{folder} has no {CONFIG} that names an architecture of Hugging Face; give the dense model, as in "
            "comera.load_pretrained(folder, model)."
        ) from None
    transformers = importlib.import_module("transformers")
    kind = getattr(transformers, name, None)
    if kind is None:
        raise ValueError(f"{folder / CONFIG} names {name}, which the package transformers does not have.")
    model: nn.Module = kind(transformers.AutoConfig.from_pretrained(folder, local_files_only=True))
    return model


def _without_storage(model: nn.Module) -> nn.Module:
    """A copy of a model on the meta device, with the same ties."""
    parameters = {id(each): nn.Parameter(each.detach().to("meta"), each.requires_grad) for each in model.parameters()}
    return copy.deepcopy(model, dict(parameters))


def _filled(
    model: nn.Module,
    layers: Mapping[str, Mapping[str, Any]],
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
    options: Mapping[str, Any],
) -> nn.Module:
    """Tensorize a dense model as the description says, and load the tensors."""
    try:
        if layers:
            model = tensorize(model, {glob.escape(name): _spec(layer) for name, layer in layers.items()}, **options)
        described = {layer: layers[name] for name, layer in _tensorized(model)}
        named = {name: module for name, module in model.named_modules() if module in described}
        set_ranks(model, {name: described[module]["ranks"] for name, module in named.items()})
        for layer, description in described.items():
            layer.threshold = float(description["threshold"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / DESCRIPTION} does not fit the model: {error}") from None
    own = model.state_dict(keep_vars=True)
    wrong = [name for name, tensor in tensors.items() if name not in own or own[name].shape != tensor.shape]
    found = {id(own[name]) for name in tensors.keys() & own.keys()}
    wrong += [name for name, tensor in own.items() if id(tensor) not in found and name != RANKS]
    if wrong:
        raise ValueError(f"{folder / WEIGHTS} does not fit the model: {wrong[0]} is missing or of another size.")
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(kinds) == 1:
        model.to(kinds.pop())
    if any(tensor.is_meta for tensor in own.values()):
        return model
    model.load_state_dict(tensors, strict=False)
    return model


def _spec(layer: Mapping[str, Any]) -> TT | TTM:
    """The modes; ranks come behind, since those of a truncated layer may be ones that no cap gives."""
    if "in_modes" in layer:
        return TT(1, in_modes=layer["in_modes"], out_modes=layer["out_modes"])
    return TTM(1, row_modes=layer["row_modes"], column_modes=layer["column_modes"], lookup=layer["lookup"])
