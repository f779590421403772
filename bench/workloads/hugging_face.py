"""A user's own Hugging Face model as a workload: built from its configuration, without weights and without network.

The model is the architecture's own for a task (:data:`TASKS`), sequence classification unless another is given, with
weights in float32 whatever the configuration says, as for every other workload. Methods act on every ``nn.Linear`` but
the one that gives the scores, and on the embedding of the input tokens. The ``Conv1D`` layers of GPT-2 are built as
``nn.Linear``, which is the same function with its weight transposed, so that every method can act on them. Other kinds
of layers stay dense: :func:`stays_dense` names them.

Batches are tokens drawn evenly from the whole vocabulary; predictions need no others. The last place of every row
counts as padding, so that masks are made as for most batches: without any, some models go on without a mask. Images of
the task ``image`` are random numbers; their patches and the class token count as the tokens of a row.
"""

import contextlib
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bench.core.reading import model_words, read_configuration
from bench.errors import ConfigError
from bench.protocol import Batch, Role, Words
from bench.workloads.base import BaseWorkload

#: Names of a configuration's sizes, none of which is negative.
_SIZES = r"^(num|n)_|_(size|dim|layers|heads)$|^max_position_embeddings$"

#: Sizes of which there is at least one, by the names that transformers has for all models, and the most that there are.
_LEAST_ONE = {
    "num_hidden_layers": 10_000,
    "hidden_size": 2**18,
    "num_attention_heads": 2**18,
    "vocab_size": 2**27,
    "num_labels": 2**18,
    "intermediate_size": 2**20,
}
#: The tasks of a model, by name: its head as ``AutoModelFor…`` has it, and how transformers calls the list of types.
TASKS = {
    "classification": ("SequenceClassification", "SEQUENCE_CLASSIFICATION"),
    "causal": ("CausalLM", "CAUSAL_LM"),
    "masked": ("MaskedLM", "MASKED_LM"),
    "seq2seq": ("Seq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM"),
    "image": ("ImageClassification", "IMAGE_CLASSIFICATION"),
}
#: The tasks whose head gives scores of classes, one row of scores for each row of the batch.
_OF_CLASSES = ("classification", "image")

#: The tokens of a row where the configuration allows more, or names no number.
_MOST_TOKENS = 2048

#: The part of a composite model that is a model of tokens.
_TEXT = "text_config"

_WORDS = {
    "classification": "sequence classification",
    "causal": "causal language model",
    "masked": "masked language model",
}
_WORDS |= {"seq2seq": "sequence-to-sequence model", "image": "image classification"}
_EXAMPLES = {"classification": "bert, roberta, gpt2 and llama", "causal": "gpt2, llama, qwen2 and mistral"}
_EXAMPLES |= {"masked": "bert, roberta and modernbert", "seq2seq": "t5 and bart"}
_EXAMPLES["image"] = "vit and deit"


class HuggingFaceWorkload(BaseWorkload):
    """A model of token sequences or images (:class:`bench.protocol.Workload`), as far as predictions need one.

    ``path`` is a Hugging Face ``config.json`` or a folder with one, ``task`` one of :data:`TASKS`, ``shapes`` the dense
    model without data. Of a model of several parts, whose sizes stand in ``text_config``, that part is built. Without a
    ``sequence_length`` a row has as many tokens as the model has positions, at most 2,048. ``left_out`` has a sentence
    for what of the configuration is not predicted, with its key.

    Raises ConfigError: the package transformers is missing; the path is no such configuration; its architecture lacks
    the task, reads something else than tokens (images for the task ``image``), has fewer positions than the sequence
    has tokens, or layers with experts; it is that of a model that comera has tensorized.
    """

    name, Settings = "hugging_face", type(None)
    data_hash = ""

    def __init__(self, path: Path, sequence_length: int | None, task: str = "classification") -> None:
        self.path, self.task = path, task
        self.dataset = "random images" if task == "image" else "random tokens"
        self.config, self.left_out = _read(path, task)
        self.config.use_cache = False  # keys and values for generation, which training has no use for
        if getattr(self.config, "pad_token_id", None) is None:  # decoders look for the last token that is none
            self.config.pad_token_id = 0
        try:
            with torch.device("meta"):
                self.shapes = self.build()
        except Exception as error:  # whatever a wrong value makes of it there
            raise _refused(path, error) from None
        positions = self._patches(sequence_length) if task == "image" else self._positions()
        if sequence_length is not None and positions is not None and sequence_length > positions:
            allowed = f"1 to the {positions} of {model_words(path)}"
            raise ConfigError(f"sequence_length is {sequence_length}; allowed: {allowed}.")
        self.sequence_length = sequence_length or min(positions or _MOST_TOKENS, _MOST_TOKENS)
        experts = [name for name, _ in self.shapes.named_modules() if name.endswith("experts")]
        if experts:
            routed = f"which is a mixture of experts ({len(experts)} layers with experts, as {experts[0]})"
            lacks = "how many tokens an expert gets depends on data, which a prediction does not have"
            raise _wrong(path, f"{routed}; {lacks}; allowed: models without experts")
        self.words = Words(f"{model_words(path)} ({self.config.model_type}, {_WORDS[task]})")

    def _patches(self, sequence_length: int | None) -> int:
        """Return the patches of an image and its class token.

        Raises ConfigError: the model has no square patches, or a length is asked for.
        """
        names = ("image_size", "patch_size", "num_channels")
        sizes = [size for name in names if isinstance(size := getattr(self.config, name, None), int) and size > 0]
        if len(sizes) < len(names) or sizes[0] < sizes[1]:
            reason = "which names no whole numbers as image_size, patch_size and num_channels"
            raise _wrong(self.path, f"{reason}; allowed: models of {_EXAMPLES['image']}")
        if sequence_length is not None:
            raise ConfigError(
                f"sequence_length is {sequence_length}, but image_size and patch_size decide it; leave it out."
            )
        return (sizes[0] // sizes[1]) ** 2 + 1

    def _positions(self) -> int | None:
        """Return the tokens that a row can have; None where the configuration names no number.

        A table of positions with a ``padding_idx``, as RoBERTa's, counts from the row behind that one.
        """
        given = getattr(self.config, "max_position_embeddings", None) or getattr(self.config, "n_positions", None)
        for name, module in self.shapes.named_modules():
            if "position" in name and isinstance(module, nn.Embedding) and module.padding_idx is not None:
                given = min(given or module.num_embeddings, module.num_embeddings - module.padding_idx - 1)
        return given if isinstance(given, int) and given > 0 else None

    def notes(self) -> tuple[str, ...]:
        """Parts of a step that a prediction leaves out, in sentences."""
        return (
            *self.left_out,
            *self._other_task(),
            f"Stays dense: {stays_dense(self)}; methods act on nn.Linear, as which Conv1D is built, and on the "
            "embedding of the input tokens.",
            "Weights are float32; tokens are drawn evenly from the whole vocabulary, so that few of a batch are alike.",
        )

    def _other_task(self) -> Iterator[str]:
        """Yield a sentence where the configuration is of a model with another head, which is not predicted."""
        head = f"For{TASKS[self.task][0]}"
        named = [name for name in getattr(self.config, "architectures", None) or () if not name.endswith(head)]
        if not named:
            return
        head = ""
        if re.search("LM|Causal|Generation", named[0]):
            tokens, width = self.sequence_length, self.config.hidden_size
            flops = 6 * tokens * width * self.config.vocab_size  # forward, and twice that in backward
            head = (
                f": a step of {named[0]} also has its output layer, {1e-12 * flops:,.3g} TFLOP per example of "
                f"{tokens:,} tokens, and scores of {self.config.vocab_size:,} tokens at every place"
            )
        yield (
            f"architectures is {named[0]}, but what is predicted is the same body with a head for "
            f"{self.config.num_labels} classes{head}."
        )

    def build(self) -> nn.Module:
        import transformers

        kind: Any = getattr(transformers, f"AutoModelFor{TASKS[self.task][0]}")
        with _truncated_as_normal():
            model: nn.Module = kind.from_config(self.config, dtype=torch.float32)
        _conv1d_as_linear(model)
        return model

    def targets(self) -> dict[str, Role]:
        """Return the embedding of the input tokens and the linear layers, in the order of the model."""
        model: Any = self.shapes
        table, body, classes = model.get_input_embeddings(), model.base_model, self.config.num_labels
        scores = model.get_output_embeddings() if self.task not in _OF_CLASSES else None
        inside = set(body.modules())
        targets: dict[str, Role] = {}
        for name, module in model.named_modules():
            if module is table and isinstance(module, nn.Embedding):
                targets[name] = "embedding"
            elif module is scores:
                continue
            elif isinstance(module, nn.Linear) and (module in inside or module.out_features != classes):
                body_role: Role = "attention" if "att" in name else "feed_forward"
                targets[name] = "classifier" if module not in inside or "pooler" in name else body_role
        return targets

    def batches(self, split: str, batch_size: int, seed: int, static: bool, start: int = 0) -> Iterator[Batch]:  # noqa: ARG002
        """Draw batches without end: ``input_ids`` int64 (B, T) and what the task has beside them.

        ``attention_mask`` bool (B, T) of all tasks but ``causal``, whose rows are packed; ``labels`` int64, a class
        (B,) or a token for every place (B, T). Of the task ``image``: ``labels`` and ``pixel_values``, float32
        (B, C, H, W).
        """
        generator = torch.Generator().manual_seed(seed)
        shape, config = (batch_size, self.sequence_length), self.config
        while True:
            classes = torch.zeros(batch_size, dtype=torch.int64)
            if self.task == "image":
                pixels = (batch_size, config.num_channels, config.image_size, config.image_size)
                yield {"pixel_values": torch.randn(pixels, generator=generator), "labels": classes}
                continue
            tokens = torch.randint(0, config.vocab_size, shape, generator=generator)
            batch = {"input_ids": tokens, "labels": classes if self.task == "classification" else tokens.clone()}
            if self.task != "causal":
                batch["attention_mask"] = (torch.arange(shape[1]) < shape[1] - 1).repeat(batch_size, 1)
            yield batch

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy, of tokens by the model's own loss."""
        if self.task not in _OF_CLASSES:
            loss: torch.Tensor = model(**batch).loss
            return loss
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        return F.cross_entropy(model(**inputs).logits, batch["labels"])


@contextlib.contextmanager
def _truncated_as_normal() -> Iterator[None]:
    """Draw truncated normals of fake tensors as normal ones: torch draws until all values fit, and those have none."""
    from transformers import initialization

    truncated = initialization.trunc_normal_

    def draw(tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0, *bounds: float, **others: Any) -> Any:
        if hasattr(tensor, "fake_mode"):
            return initialization.normal_(tensor, mean, std)
        return truncated(tensor, mean, std, *bounds, **others)

    initialization.trunc_normal_ = draw
    try:
        yield
    finally:
        initialization.trunc_normal_ = truncated


def _conv1d_as_linear(model: nn.Module) -> None:
    """Put an ``nn.Linear`` of the same function in the place of every ``Conv1D``."""
    from transformers.pytorch_utils import Conv1D

    found = {name: module for name, module in model.named_modules() if type(module) is Conv1D}
    for name, conv1d in found.items():
        with torch.device("meta"):
            linear = nn.Linear(*conv1d.weight.shape)
        linear.weight, linear.bias = nn.Parameter(conv1d.weight.detach().t().contiguous()), conv1d.bias
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, linear)


def stays_dense(workload: HuggingFaceWorkload) -> str:
    """List the parts of the model on which no method acts, by kind of layer, largest first."""
    targets = workload.targets()
    counts, sizes = Counter[str](), Counter[str]()
    for name, module in workload.shapes.named_modules():
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False) if parameter.dim() > 1)
        if own and name not in targets:
            counts[type(module).__name__] += 1
            sizes[type(module).__name__] += own
    return ", ".join(f"{counts[kind]} {kind} ({size:,} weights)" for kind, size in sizes.most_common())


def text_part(content: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that has the sizes of the text model: that of several parts, or all of it.

    >>> text_part({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})
    {'model_type': 'gemma3_text'}
    """
    part = content.get(_TEXT)
    return part if isinstance(part, dict) and isinstance(part.get("model_type"), str) else content


def _read(path: Path, task: str) -> tuple[Any, tuple[str, ...]]:
    """Return the configuration as transformers has it, and sentences on what of it is left out."""
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError("model=PATH needs the package transformers; install it: pip install transformers.")
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto

    content = read_configuration(path)
    _refuse_other_inputs(path, content, "pixel_values" if task == "image" else "input_ids")
    whole, content = content, text_part(content)
    kind = content["model_type"]
    quantized = whole.get("quantization_config") or content.get("quantization_config")
    method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    if method == "comera":
        raise _wrong(
            path, "whose quantization_config is that of a tensorized model; give the dense model's config.json"
        )
    known: Any = getattr(modeling_auto, f"MODEL_FOR_{TASKS[task][1]}_MAPPING_NAMES")
    if kind not in known:
        lacks = f"model_type {kind!r} has no {_WORDS[task]} in the transformers installed here"
        lacks += ", and its own code (auto_map) is not run" if "auto_map" in content else ""
        raise _wrong(path, f"whose {lacks}; allowed: types that have, such as {_EXAMPLES[task]}")
    for name, value in content.items():
        if re.search(_SIZES, name) and isinstance(value, int) and value < 0:
            raise _wrong(path, f"whose {name} is {value}; allowed: whole numbers from 0 up")
    try:
        if content is whole:
            config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        else:
            config = AutoConfig.for_model(**content)
    except Exception as error:  # as above
        raise _refused(path, error) from None
    for name, most in _LEAST_ONE.items():
        value = getattr(config, name, None)
        if isinstance(value, int) and not 1 <= value <= most:
            own = getattr(config, "attribute_map", {}).get(name, name)
            raise _wrong(path, f"whose {own} is {value}; allowed: whole numbers from 1 to {most:,}")
    return config, tuple(_left_out(config, whole, content, task))


def _refuse_other_inputs(path: Path, content: dict[str, Any], wanted: str) -> None:
    """Raise ConfigError over a model that reads something else than the task's input, as sound."""
    import transformers
    from transformers.models.auto import modeling_auto

    if text_part(content) is not content:
        return
    bases: Any = modeling_auto.MODEL_MAPPING_NAMES
    named = [*(content.get("architectures") or ()), bases.get(content["model_type"])]
    for name in named:
        kind = getattr(transformers, name, None) if isinstance(name, str) else None
        reads = getattr(kind, "main_input_name", "input_ids")
        if reads != wanted:
            key = "architectures" if name in (content.get("architectures") or ()) else "model_type"
            raise _wrong(path, f"whose {key} is that of {name}, which reads {reads}; allowed: models of {wanted}")


def _left_out(config: Any, whole: dict[str, Any], content: dict[str, Any], task: str) -> Iterator[str]:
    """Yield a sentence for each part of a configuration that is not predicted, with its key."""
    if content is not whole:
        others = [name for name, part in whole.items() if isinstance(part, dict) and name != _TEXT]
        left = f"; left out: {', '.join(others)}" if others else ""
        yield f"What is predicted is the model of {_TEXT}{left}."
    if quantized := whole.get("quantization_config") or content.get("quantization_config"):
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        yield f"quantization_config ({method}) is left out: weights are those of the model before it."
    if whole.get("is_encoder_decoder") and task in ("causal", "masked"):
        yield f"is_encoder_decoder is true, and task={task} is that of one of both; task=seq2seq has them together."
    if "auto_map" in whole or "auto_map" in content:
        yield f"auto_map names code of the model's own, which is not run: {type(config).__name__} is transformers' own."
    from transformers import GenerationConfig, PretrainedConfig

    try:
        known = {*type(config)().to_dict(), *config.attribute_map}
    except Exception:  # a class without defaults
        return
    known |= {*PretrainedConfig().to_dict(), *GenerationConfig().to_dict()}
    known |= {_TEXT, "quantization_config", "torch_dtype", "auto_map", "_name_or_path", "num_labels"}
    known |= {"task_specific_params", "prefix", "n_positions"}  # of generation, and what the length of a row follows
    if unknown := [name for name in content if name not in known]:
        yield f"{type(config).__name__} does not read {', '.join(unknown)}, so that it has no part in this."


def _wrong(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"model is {str(path)!r}, {reason}.")


def _refused(path: Path, error: Exception) -> ConfigError:
    """Return transformers' objection to a configuration as an error of one sentence."""
    reason = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
    return _wrong(path, f"which transformers does not accept ({reason})")
