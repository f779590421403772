"""A user's own Hugging Face model as a workload: built from its configuration, without weights and without network.

The model is the architecture's own for a task (:data:`TASKS`), sequence classification unless another is given, with
weights in float32 whatever the configuration says, as for every other workload. Methods act on every ``nn.Linear`` but
the one that gives the scores, and on the embedding of the input tokens. The ``Conv1D`` layers of GPT-2 are built as
``nn.Linear``, which is the same function with its weight transposed, so that every method can act on them. Other kinds
of layers stay dense: :func:`stays_dense` names them.

Batches are tokens drawn evenly from the whole vocabulary; predictions need no others. The last place of every row
counts as padding, so that masks are made as for most batches: without any, some models go on without a mask.
"""

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

from bench.core.reading import loads, read_regular
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
}
_WORDS = {
    "classification": "sequence classification",
    "causal": "causal language model",
    "masked": "masked language model",
}
_WORDS["seq2seq"] = "sequence-to-sequence model"
_EXAMPLES = {"classification": "bert, roberta, gpt2 and llama", "causal": "gpt2, llama, qwen2 and mistral"}
_EXAMPLES |= {"masked": "bert, roberta and modernbert", "seq2seq": "t5 and bart"}


class HuggingFaceWorkload(BaseWorkload):
    """A model of token sequences (:class:`bench.protocol.Workload`), as far as predictions need one.

    ``path`` is a Hugging Face ``config.json`` or a folder with one, ``task`` one of :data:`TASKS`, ``shapes`` the dense
    model without data. Raises ConfigError: the package transformers is missing; the path is no such configuration; its
    architecture lacks the task, has fewer positions than the sequence has tokens, or layers with experts.
    """

    name, Settings = "hugging_face", type(None)
    data_hash = ""

    def __init__(self, path: Path, sequence_length: int, task: str = "classification") -> None:
        self.path, self.dataset, self.task = path, "random tokens", task
        self.sequence_length = sequence_length
        self.config = _read(path, task)
        positions = getattr(self.config, "max_position_embeddings", None)
        if positions is not None and sequence_length > positions:
            raise ConfigError(f"sequence_length is {sequence_length}; allowed: 1 to the {positions} of {path}.")
        self.config.use_cache = False  # keys and values for generation, which training has no use for
        if getattr(self.config, "pad_token_id", None) is None:  # decoders look for the last token that is none
            self.config.pad_token_id = 0
        try:
            with torch.device("meta"):
                self.shapes = self.build()
        except Exception as error:  # whatever a wrong value makes of it there
            raise _refused(path, error) from None
        experts = [name for name, _ in self.shapes.named_modules() if name.endswith("experts")]
        if experts:
            routed = f"which is a mixture of experts ({len(experts)} layers with experts, as {experts[0]})"
            lacks = "how many tokens an expert gets depends on data, which a prediction does not have"
            raise _wrong(path, f"{routed}; {lacks}; allowed: models without experts")
        self.words = Words(f"{path} ({self.config.model_type}, {_WORDS[task]})")

    def notes(self) -> tuple[str, ...]:
        """Parts of a step that a prediction leaves out, in sentences."""
        return (
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
        model: nn.Module = kind.from_config(self.config, dtype=torch.float32)
        _conv1d_as_linear(model)
        return model

    def targets(self) -> dict[str, Role]:
        """Return the embedding of the input tokens and the linear layers, in the order of the model."""
        model: Any = self.shapes
        table, body, classes = model.get_input_embeddings(), model.base_model, self.config.num_labels
        scores = model.get_output_embeddings() if self.task != "classification" else None
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
        (B,) or a token for every place (B, T).
        """
        generator = torch.Generator().manual_seed(seed)
        shape = (batch_size, self.sequence_length)
        while True:
            tokens = torch.randint(0, self.config.vocab_size, shape, generator=generator)
            classes = torch.zeros(batch_size, dtype=torch.int64)
            batch = {"input_ids": tokens, "labels": classes if self.task == "classification" else tokens.clone()}
            if self.task != "causal":
                batch["attention_mask"] = (torch.arange(shape[1]) < shape[1] - 1).repeat(batch_size, 1)
            yield batch

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """Mean cross entropy, of tokens by the model's own loss."""
        if self.task != "classification":
            loss: torch.Tensor = model(**batch).loss
            return loss
        scores = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return F.cross_entropy(scores, batch["labels"])


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


def _read(path: Path, task: str) -> Any:
    """Return the configuration as transformers has it."""
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError("model=PATH needs the package transformers; install it: pip install transformers.")
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto

    wanted = "allowed: a Hugging Face config.json or a folder with one"
    file = path / "config.json" if path.is_dir() else path
    try:
        content = loads(read_regular(file).decode("utf-8"))
    except OSError as error:
        raise _wrong(path, f"which cannot be read ({error.strerror}); {wanted}") from None
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"which is not JSON ({error}); {wanted}") from None
    kind = content.get("model_type") if isinstance(content, dict) else None
    if not isinstance(kind, str):
        raise _wrong(path, f"which names no model_type; {wanted}")
    known: Any = getattr(modeling_auto, f"MODEL_FOR_{TASKS[task][1]}_MAPPING_NAMES")
    if kind not in known:
        lacks = f"model_type {kind!r} has no {_WORDS[task]} in the transformers installed here"
        lacks += ", and its own code (auto_map) is not run" if "auto_map" in content else ""
        raise _wrong(path, f"whose {lacks}; allowed: types that have, such as {_EXAMPLES[task]}")
    for name, value in content.items():
        if re.search(_SIZES, name) and isinstance(value, int) and value < 0:
            raise _wrong(path, f"whose {name} is {value}; allowed: whole numbers from 0 up")
    try:
        config = AutoConfig.from_pretrained(file, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # as above
        raise _refused(path, error) from None
    for name, most in _LEAST_ONE.items():
        value = getattr(config, name, None)
        if isinstance(value, int) and not 1 <= value <= most:
            own = getattr(config, "attribute_map", {}).get(name, name)
            raise _wrong(path, f"whose {own} is {value}; allowed: whole numbers from 1 to {most:,}")
    return config


def _wrong(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"model is {str(path)!r}, {reason}.")


def _refused(path: Path, error: Exception) -> ConfigError:
    """Return transformers' objection to a configuration as an error of one sentence."""
    reason = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
    return _wrong(path, f"which transformers does not accept ({reason})")
