"""Tensorized models in the package transformers: its own saving, loading and resizing handle them.

Saving. ``model.save_pretrained(folder)`` writes what it always writes. In its ``config.json`` the description of the
tensorized layers (:mod:`comera.hugging_face.description`) is the ``quantization_config``, with the ranks of that
moment.

Each part of a composite model, such as the text model of CLIP, has a configuration within. It can be loaded on its own,
and is then given that configuration alone. So the configuration of each part with tensorized layers describes them too.

Loading. :class:`ComeraQuantizer` is registered for that configuration. Any ``from_pretrained`` asks it to replace
layers before the weights come. The loaded model then has neither quantizer nor ``quantization_config``: it trains,
casts and saves as one that has just been tensorized.

Without comera, transformers warns of an unknown ``quant_method`` and goes on with a dense model whose weights are
drawn. It does stop at an unknown fusion. So ``config.json`` also has a ``fusion_config`` of comera's name, which
:class:`ComeraQuantizer` takes out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.modeling_utils import PreTrainedModel
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.utils.quantization_config import QuantizationConfigMixin

from comera.compatibility.attention import PROJECTIONS
from comera.formats.block_linear import BlockLinear
from comera.formats.block_tensor_train import BTTLinear
from comera.hugging_face.description import METHOD, Layers, describe, layers_of, rebuild
from comera.hugging_face.resizing import resize_rows
from comera.layers import RANKS, TensorTrainLayer

#: The methods of a quantizer that :class:`ComeraQuantizer` needs to be asked for; transformers 5.23 has them.
NEEDED = ("get_new_dtype", "update_attn_implementation")


def register() -> None:
    """Register the quantizer with transformers, and have its models save and resize tensorized layers; once.

    A transformers without the methods that are needed is left as it is.
    """
    if METHOD in AUTO_QUANTIZER_MAPPING or not all(hasattr(HfQuantizer, name) for name in NEEDED):
        return
    register_quantization_config(METHOD)(ComeraConfig)
    register_quantizer(METHOD)(ComeraQuantizer)
    PreTrainedModel.save_pretrained = _describing(PreTrainedModel.save_pretrained)
    PreTrainedModel.resize_token_embeddings = _resizing_rows(PreTrainedModel.resize_token_embeddings)


def save(model: PreTrainedModel, folder: Path) -> None:
    """Save a model as transformers does.

    Raises:
        ValueError: a tensorized model, and a transformers with which it could not be loaded again.
    """
    if METHOD not in AUTO_QUANTIZER_MAPPING and describe(model)["layers"]:
        raise ValueError(
            f"transformers {transformers.__version__} is not supported for saving tensorized models; install 5.23 or "
            "newer."
        )
    model.save_pretrained(folder)


class ComeraConfig(QuantizationConfigMixin):
    """The ``quantization_config`` of a tensorized model.

    Args:
        quant_method: :data:`METHOD`.
        dtype: the type of the model when it was saved, which a loading without another one keeps.
        untied: weights that the class ties to others, and the saved model does not.
        part: the name that the part of a composite model has there, where its own configuration describes it.
        options: for :func:`comera.tensorize`; they are not saved.
        description: of the tensorized layers.

    Raises:
        ValueError: a description that this version does not read.
    """

    def __init__(
        self,
        quant_method: str = METHOD,
        dtype: str | None = None,
        untied: Sequence[str] = (),
        part: str = "",
        options: Mapping[str, Any] | None = None,
        **description: Any,
    ) -> None:
        self.quant_method = quant_method
        self.dtype, self.untied, self.part = dtype, untied, part
        self.layers = layers_of(description, "quantization_config")
        self.options = dict(options or {})


class FirstCores(ConversionOps):
    """Loads the first core of a block tensor train as this version keeps it; saves it as it is."""

    def convert(self, input_dict: dict[str, Any], *_: Any, **options: Any) -> dict[str, Any]:
        """Return the tensors by their names, first cores converted."""
        [(name, given)] = input_dict.items()
        layer = options["model"].get_submodule(options["full_layer_name"].rpartition(".")[0])
        given = given[0] if isinstance(given, list) else given
        return {name: layer.shape.as_first_core(given) if isinstance(layer, BTTLinear) else given}

    @property
    def reverse_op(self) -> ConversionOps:
        return self


class ComeraQuantizer(HfQuantizer):
    """Replaces the layers of a model that transformers has just built, still without weights, by tensorized ones."""

    requires_calibration = True  # comera.tensorize makes them, not a loading

    def update_attn_implementation(self, config: Any) -> Any:
        """Take comera out of the fusions; of all methods, this one is given the configuration before they are read."""
        for each in (config, *_parts_of(config)):
            _set_fusion(each, {})
            if each is not config and _method_of(each) == METHOD:
                del each.quantization_config  # the model's own describes all layers
        return config

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        saved = self.quantization_config.dtype
        self._keeps_types = saved is None or dtype == getattr(torch, saved)
        return dtype

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> torch.dtype | None:
        """Keep the type of each tensor in the file, unless a type for the model was asked for."""
        return None if self._keeps_types else super().get_new_dtype(converter, param, dtype)

    def get_weight_conversions(self) -> list[Any]:
        """Have first cores of block tensor trains converted, as versions up to 0.2.0 saved them."""
        return [WeightConverter("in_core", "in_core", [FirstCores()])]

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        for weight in self.quantization_config.untied:
            model.all_tied_weights_keys.pop(weight, None)
        layers = _layers_in(model, self.quantization_config.layers, self.quantization_config.part)
        rebuild(model, layers, self.quantization_config.options, "quantization_config")
        known = model._keys_to_ignore_on_load_unexpected or ()
        model._keys_to_ignore_on_load_unexpected = {*known, rf"(^|\.){RANKS}$"}

    def postprocess_model(self, model: Any, **_: Any) -> None:
        """Leave the model as one that was tensorized, not quantized.

        Raises:
            ValueError: a tensorized layer without its weights, which nothing would have drawn either.
        """
        self.remove_quantization_config(model)
        for name, layer in model.named_modules():
            if isinstance(layer, TensorTrainLayer | BlockLinear):
                for key, tensor in layer.named_parameters(recurse=False):
                    if not tensor.is_meta and not getattr(tensor, "_is_hf_initialized", False):
                        raise ValueError(f"the weights of the folder lack {name}.{key}, or have another size of it.")

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True


def _layers_in(model: Any, layers: Layers, part: str = "") -> Layers:
    """Return the described layers that a model has, by the names that it has for them.

    A model with a head has its base model's layers below ``base_model_prefix``; the base model itself has them without
    that. As with weights, either may be loaded from a folder of the other. The class of a part may have its layers
    below the name of the part, or without it.
    """
    modules, base = dict(model.named_modules(remove_duplicate=False)), model.base_model_prefix
    own = {}
    for name, layer in layers.items():
        for candidate in (name, f"{base}.{name}", name.removeprefix(f"{base}."), name.removeprefix(f"{part}.")):
            parent, _, child = candidate.rpartition(".")
            inside = isinstance(modules.get(parent), nn.MultiheadAttention) and child in PROJECTIONS
            if candidate in modules or inside:
                own[candidate] = layer
                break
    if layers and not own:
        raise ValueError(f"{type(model).__name__} has none of the tensorized layers, such as {next(iter(layers))}.")
    return own


def _untied(model: Any) -> list[str]:
    """Return the weights declared as tied that are not, since only one of two layers was tensorized.

    Where both are tensorized together, the declaration names cores (:mod:`comera.inspection.declared_ties`).
    """
    layers = {name for name, module in model.named_modules() if isinstance(module, TensorTrainLayer | BlockLinear)}
    weights = {f"{name}.weight" for name in layers}
    return [target for target, source in model.all_tied_weights_keys.items() if weights & {target, source}]


def _set_fusion(config: Any, fusion: dict[str, Any]) -> None:
    """Give a configuration this fusion of comera's name, or none, beside the fusions of others."""
    fusions = getattr(config, "fusion_config", None) or {}
    fusions = {name: options for name, options in fusions.items() if name != METHOD} | fusion
    if fusions:
        config.fusion_config = fusions
    else:
        vars(config).pop("fusion_config", None)


def _parts_of(config: Any) -> Iterator[Any]:
    """Yield the configurations within a configuration, of the parts of a composite model."""
    for name in getattr(config, "sub_configs", None) or {}:
        if isinstance(part := getattr(config, name, None), PreTrainedConfig):
            yield part
            yield from _parts_of(part)


def _method_of(config: Any) -> str | None:
    """Return the ``quant_method`` of a configuration, if it has one."""
    given = vars(config).get("quantization_config")
    return given.get("quant_method") if isinstance(given, Mapping) else getattr(given, "quant_method", None)


def _layers_of_part(model: Any, part: Any, layers: Layers) -> tuple[str, Layers]:
    """Return a part's name, and the described layers that it can have when it is loaded on its own.

    They are those below modules with a configuration of the part's class, and those below no part, as a projection. A
    part with none of the former has no tensorized layer.
    """
    kinds = {type(each) for each in _parts_of(model.config)}
    below = {name: type(module.config) for name, module in model.named_modules() if name and hasattr(module, "config")}

    def owner_of(layer: str) -> str:
        owners = [name for name, kind in below.items() if kind in kinds and layer.startswith(f"{name}.")]
        return min(owners, key=len, default="")

    owners = {name: owner_of(name) for name in layers}
    own = next((owner for owner in owners.values() if owner and below[owner] is type(part)), "")
    if not own:
        return "", {}
    return own, {name: layer for name, layer in layers.items() if owners[name] in ("", own)}


@contextmanager
def _describing_config(model: Any) -> Iterator[None]:
    """Have the configuration describe the tensorized layers that the model has now, while it is saved.

    Raises:
        ValueError: tensorized layers in a model that is quantized as well; a folder has room for one description.
    """
    fields, config = ("quantization_config", "fusion_config"), model.config
    configs = [config, *_parts_of(config)]
    before = [{name: vars(each)[name] for name in fields if name in vars(each)} for each in configs]
    method = _method_of(config)
    description = describe(model)
    if description["layers"] and method not in (None, METHOD):
        raise ValueError(f"a model with tensorized layers that is quantized by {method} as well cannot be saved.")
    try:
        for each in configs:
            if _method_of(each) == METHOD:
                del each.quantization_config
            own, layers = "", description["layers"]
            if each is not config:
                own, layers = _layers_of_part(model, each, layers)
            if layers:
                dtype = str(model.dtype).removeprefix("torch.")
                untied = {"untied": weights} if (weights := _untied(model)) else {}
                described = {**description, "layers": layers, **({"part": own} if own else {})}
                each.quantization_config = {"quant_method": METHOD, "dtype": dtype, **untied, **described}
            _set_fusion(each, {METHOD: True} if layers else {})
        yield
    finally:
        for each, values in zip(configs, before, strict=True):
            for name in fields:
                vars(each).pop(name, None)
            vars(each).update(values)


def _describing(save: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``PreTrainedModel.save_pretrained`` so that the configuration describes tensorized layers."""

    @functools.wraps(save)
    def save_pretrained(self: Any, *args: Any, **options: Any) -> None:
        with _describing_config(self):
            save(self, *args, **options)

    return save_pretrained


def _resizing_rows(resize: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``PreTrainedModel.resize_token_embeddings`` for tables and output layers that may be tensorized."""

    @functools.wraps(resize)
    def resize_token_embeddings(
        self: Any, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, *args: Any, **options: Any
    ) -> Any:
        if any(isinstance(module, TensorTrainLayer | BlockLinear) for module in self.modules()):
            table, head = self.get_input_embeddings(), self.get_output_embeddings()
            rows = new_num_tokens
            if isinstance(pad_to_multiple_of, int):
                rows = table.weight.shape[0] if rows is None else rows
                rows = -(-rows // pad_to_multiple_of) * pad_to_multiple_of
            if rows is not None:
                resize_rows(self, table, head, rows)
        return resize(self, new_num_tokens, pad_to_multiple_of, *args, **options)

    return resize_token_embeddings
