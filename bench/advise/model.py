"""The user's model as it is advised on: with the head of its task, at any number of blocks.

Structured arms act on the linear layers of the blocks. Embeddings, the output layer and whatever else lies outside the
blocks stay dense in every arm, as in the committed records of formats.
"""

import copy
import functools
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.core.reading import read_configuration
from bench.errors import ConfigError
from bench.protocol import Role
from bench.workloads.hugging_face import TASKS, HuggingFaceWorkload, text_part

#: The longest pattern of blocks that is looked for, as of layers with and without a sliding window.
_LONGEST_PATTERN = 8

#: Sizes that a configuration must give, since the defaults of its type are those of another model. The names are those
#: that transformers has for all models.
_NEEDED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")

#: What configurations call the inner features of a feed-forward, and the features of a head.
_INNER, _PER_HEAD = ("intermediate_size", "n_inner", "ffn_dim", "d_ff"), ("head_dim", "d_kv")

#: How far from a wanted number of parameters a narrower model may be.
_NEAR = 0.05

#: Attributes of a block that tell it from its neighbours without making it another one.
_INDICES = ("layer_idx", "layer_id", "layer_index", "training")


class AdvisedModel(HuggingFaceWorkload):
    """A model with its task's head; targets are the linear layers of its blocks.

    ``path`` is of a Hugging Face ``config.json``, or of a folder with one; a row has ``sequence_length`` tokens, by
    default as many as the model has positions, at most 2,048; ``task`` is one of
    :data:`bench.workloads.hugging_face.TASKS`, or empty for the configuration's own. Raises ConfigError: as
    :class:`HuggingFaceWorkload`; also a configuration without its sizes, or without blocks.
    """

    def __init__(self, path: Path, sequence_length: int | None, task: str) -> None:
        content = text_part(read_configuration(path))
        chosen = task or task_of(content)
        super().__init__(path, sequence_length, chosen)
        self._shortened: dict[int, AdvisedModel] = {}
        own: dict[str, str] = getattr(type(self.config), "attribute_map", {})
        for name in _NEEDED:
            if content.keys().isdisjoint({name, own.get(name, name)}):
                given = own.get(name, name)
                raise ConfigError(
                    f"model is {str(path)!r}, which lacks {given}; add it, as the model's authors give it."
                )
        heads, shared = self.config.num_attention_heads, getattr(self.config, "num_key_value_heads", None)
        if shared and heads % shared:
            allowed = f"num_key_value_heads is {shared}; allowed: numbers that divide the {heads} heads"
            raise ConfigError(f"model is {str(path)!r}, whose {allowed}.")
        if not stacks_of(self.shapes):
            raise ConfigError(f"model is {str(path)!r}, which has no blocks; allowed: models with an nn.ModuleList.")

    @property
    def blocks(self) -> int:
        """Blocks of its deepest stack."""
        return max(len(stack) for stack in stacks_of(self.shapes))

    @functools.cached_property
    def depths(self) -> tuple[int, int]:
        """Return two small depths from which memory and work of the whole depth follow along a line.

        Both are the whole depth where the blocks have no pattern, or the model is hardly deeper.
        """
        whole, stacks = self.blocks, stacks_of(self.shapes)
        for pattern in range(1, _LONGEST_PATTERN + 1):
            least = max(pattern, 2)  # every kind of block is there
            short = next(depth for depth in range(least, least + pattern) if (whole - depth) % pattern == 0)
            longer = short + pattern
            repeats = longer < whole and all(len(stack) == whole and _repeats(stack, pattern) for stack in stacks)
            if repeats and self._agrees(longer):
                return short, longer
        return whole, whole

    def shortened(self, depth: int) -> "AdvisedModel":
        """Return the same model with so many blocks in each stack; itself at its own depth."""
        if depth == self.blocks:
            return self
        if depth in self._shortened:
            return self._shortened[depth]
        short = copy.copy(self)
        short.config = copy.deepcopy(self.config)
        types = getattr(self.config, "layer_types", None)
        if types is not None:
            short.config.layer_types = list(types)[:depth]
        for name in ("num_hidden_layers", "num_decoder_layers", "decoder_layers"):
            if getattr(self.config, name, None) is not None:
                setattr(short.config, name, depth)
        with torch.device("meta"):
            short.shapes = short.build()
        self._shortened[depth] = short
        return short

    def narrowed(self, ratio: float) -> "AdvisedModel":
        """Return the model with fewer columns and as many blocks, heads and words.

        It has about as many parameters as the model whose matrices are ``ratio`` times smaller. The width is the
        multiple of 8 per head that comes nearest with blocks of the same shape, so that fused attention takes it; the
        inner features then make up the difference. Raises ValueError: none comes within 5 %.
        """
        wanted = self._parameters / self.whole_ratio(ratio)
        step = 8 * self.config.num_attention_heads
        widths = range(step, self.config.hidden_size, step)
        if not widths:
            raise ValueError(f"no narrower model: hidden_size is {self.config.hidden_size}; widths are {step}, ...")
        sizes = {width: self._of_width(width)._parameters for width in widths}
        width = min(widths, key=lambda each: abs(sizes[each] - wanted))
        inner = self._inner_of(width)
        per_feature = (sizes[width] - self._of_width(width, inner // 2)._parameters) / (inner - inner // 2)
        filled = 8 * round((inner + (wanted - sizes[width]) / per_feature) / 8)
        narrow = self._of_width(width, max(filled, 8))
        if abs(narrow._parameters / wanted - 1) > _NEAR:
            raise ValueError(f"no narrower model has about {wanted:,.0f} parameters; widths are multiples of {step}.")
        return narrow

    @property
    def _parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.shapes.parameters())

    def _inner_of(self, width: int) -> int:
        """Return the inner features of a block of so many columns and of the same shape, a multiple of 8."""
        name = next(name for name in _INNER if hasattr(self.config, name))
        inner = getattr(self.config, name) or 4 * self.config.hidden_size
        return max(8, 8 * round(inner * width / self.config.hidden_size / 8))

    def _of_width(self, width: int, inner: int | None = None) -> "AdvisedModel":
        """Return the same model with so many columns and inner features, the latter by default in proportion."""
        narrow = copy.copy(self)
        narrow.config = copy.deepcopy(self.config)
        name = next(name for name in _INNER if hasattr(self.config, name))
        setattr(narrow.config, name, self._inner_of(width) if inner is None else inner)
        for per_head in _PER_HEAD:
            if getattr(self.config, per_head, None):
                setattr(narrow.config, per_head, width // self.config.num_attention_heads)
        narrow.config.hidden_size = width
        narrow._shortened = {}
        with torch.device("meta"):
            narrow.shapes = narrow.build()
        return narrow

    def _agrees(self, depth: int) -> bool:
        """Whether the shortened model has the first blocks of the whole one."""
        try:
            short = stacks_of(self.shortened(depth).shapes)
        except Exception:  # an architecture that cannot be built with fewer blocks
            return False
        whole = stacks_of(self.shapes)
        return len(short) == len(whole) and all(
            [_signature(block) for block in few] == [_signature(block) for block in list(all_of_them)[:depth]]
            for few, all_of_them in zip(short, whole, strict=True)
        )

    def targets(self) -> dict[str, Role]:
        """Return the linear layers of the blocks, in the order of the model."""
        names = {name for name, module in self.shapes.named_modules() if isinstance(module, nn.ModuleList)}
        inside = tuple(f"{name}." for name in names)
        return {
            name: role for name, role in super().targets().items() if name.startswith(inside) and role != "embedding"
        }

    def whole_ratio(self, ratio: float) -> float:
        """Return how many times smaller the whole model is when its matrices are ``ratio`` times smaller."""
        total = sum(parameter.numel() for parameter in self.shapes.parameters())
        matrices = {self.shapes.get_parameter(f"{name}.weight") for name in self.targets()}
        saved = sum(matrix.numel() for matrix in matrices) * (1 - 1 / ratio)
        return total / (total - saved)


def task_of(content: dict[str, Any]) -> str:
    """Return the task of a configuration: that of ``architectures``, or the usual one of its type.

    Raises ConfigError: ``architectures`` names a class that transformers does not have.

    >>> task_of({"model_type": "bert", "architectures": ["BertForSequenceClassification"]})
    'classification'
    >>> task_of({"model_type": "bert"}), task_of({"model_type": "gpt2"})
    ('masked', 'causal')
    """
    named = [str(name) for name in content.get("architectures") or ()]
    for task, (head, _) in TASKS.items():
        if any(name.endswith(f"For{head}") for name in named):
            return task
    if any(name.endswith("LMHeadModel") for name in named):
        return "causal"
    import transformers
    from transformers.models.auto import modeling_auto

    if named and not any(hasattr(transformers, name) for name in named):
        raise ConfigError(
            f"architectures is {', '.join(named)}, which transformers does not have; give the task, as in task=causal."
        )
    kind = content.get("model_type")
    for task in ("seq2seq", "masked", "causal", "classification"):
        if kind in getattr(modeling_auto, f"MODEL_FOR_{TASKS[task][1]}_MAPPING_NAMES"):
            return task
    return "causal"


def stacks_of(model: nn.Module) -> list[nn.ModuleList]:
    """Return the stacks of blocks of a model: its outermost ``nn.ModuleList``, or several side by side."""
    stacks: list[nn.ModuleList] = []
    for child in model.children():
        stacks += [child] if isinstance(child, nn.ModuleList) else stacks_of(child)
    return stacks


def _repeats(stack: nn.ModuleList, pattern: int) -> bool:
    """Whether every block but the first equals the one a pattern further on."""
    signatures = [_signature(block) for block in stack]
    return all(one == other for one, other in zip(signatures[1:], signatures[1 + pattern :], strict=False))


def _signature(block: nn.Module) -> list[Any]:
    """Return what makes two blocks the same: classes, shapes, and plain attributes but their place in the stack."""
    return [
        (
            name,
            type(module),
            [(key, tuple(tensor.shape)) for key, tensor in module.named_parameters(recurse=False)],
            [(key, tuple(tensor.shape)) for key, tensor in module.named_buffers(recurse=False)],
            sorted(
                (key, repr(value))
                for key, value in vars(module).items()
                if key not in _INDICES and isinstance(value, bool | int | float | str | None)
            ),
        )
        for name, module in block.named_modules()
    ]
