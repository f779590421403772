"""The user's model as it is advised on: with the head of its task, at any number of blocks.

Structured arms act on the linear layers of the blocks. Embeddings, the output layer and whatever else lies outside the
blocks stay dense in every arm, as in the committed records of formats.
"""

import bisect
import copy
import functools
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.core.reading import model_words, read_configuration
from bench.errors import ConfigError
from bench.protocol import Role
from bench.workloads.hugging_face import TASKS, HuggingFaceWorkload, text_part

#: The longest pattern of blocks that is looked for, as of layers with and without a sliding window.
_LONGEST_PATTERN = 8

#: Sizes that a configuration must give, since the defaults of its type are those of another model. The names are those
#: that transformers has for all models.
_NEEDED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")

#: What configurations call the inner features of a feed-forward, and the features of a head.
_INNER, _PER_HEAD = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim"), ("head_dim", "d_kv")

#: Shares of the blocks that the smaller models of ``dense:small`` have, by columns that give the size.
SHARES = (0.5, 0.75)

#: How far from a wanted number of parameters a narrower or a smaller model may be.
_NEAR = 0.05

#: Attributes of a block that tell it from its neighbours without making it another one.
_INDICES = ("layer_idx", "layer_id", "layer_index", "training")


class AdvisedModel(HuggingFaceWorkload):
    """A model with its task's head; targets are the linear layers of its blocks.

    ``path`` is of a Hugging Face ``config.json``, or of a folder with one; a row has ``sequence_length`` tokens, by
    default as many as the model has positions, at most 2,048; ``task`` is one of
    :data:`bench.workloads.hugging_face.TASKS`, or empty for the configuration's own. ``share`` is the share of the
    blocks of the user's model that a smaller one has. Raises ConfigError: as :class:`HuggingFaceWorkload`; also a
    configuration without its sizes, or without blocks.
    """

    share = 1.0

    def __init__(self, path: Path, sequence_length: int | None, task: str) -> None:
        content = text_part(read_configuration(path))
        chosen = task or task_of(content)
        super().__init__(path, sequence_length, chosen)
        self._shortened: dict[int, AdvisedModel] = {}
        own: dict[str, str] = getattr(type(self.config), "attribute_map", {})
        for name in _NEEDED:
            if name == "vocab_size" and chosen == "image":
                continue
            if content.keys().isdisjoint({name, own.get(name, name)}):
                given = own.get(name, name)
                raise ConfigError(
                    f"model is {model_words(path)!r}, which lacks {given}; add it, as the model's authors give it."
                )
        heads, shared = self.config.num_attention_heads, getattr(self.config, "num_key_value_heads", None)
        if shared and heads % shared:
            allowed = f"num_key_value_heads is {shared}; allowed: numbers that divide the {heads} heads"
            raise ConfigError(f"model is {model_words(path)!r}, whose {allowed}.")
        if not stacks_of(self.shapes):
            raise ConfigError(
                f"model is {model_words(path)!r}, which has no blocks; allowed: models with an nn.ModuleList."
            )

    @property
    def shape(self) -> str:
        """Its blocks and columns in words."""
        blocks, inner = self.blocks, getattr(self.config, self._inner_name) or 4 * self.config.hidden_size
        stacks = len(stacks_of(self.shapes))
        each = f"{blocks} block{'s' * (blocks > 1)}" + (f" in each of {stacks} stacks" if stacks > 1 else "")
        return f"{each}, width {self.config.hidden_size:,}, {inner:,} inner features"

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
        short = self._copied()
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
        return self._of_size(self._parameters / self.whole_ratio(ratio), self.config.hidden_size - 1)

    def smaller(self, ratio: float) -> list["AdvisedModel"]:
        """Return the models of the size of :meth:`narrowed` with each of :data:`SHARES` of the blocks.

        Shares are rounded to whole blocks; columns make up the size, as in :meth:`narrowed`. Raises ValueError: there
        is none.
        """
        wanted, found, reason = self._parameters / self.whole_ratio(ratio), dict[int, AdvisedModel](), ""
        if len({len(stack) for stack in stacks_of(self.shapes)}) > 1:
            raise ValueError("no smaller model: its stacks have different numbers of blocks.")
        for share in SHARES:
            blocks = round(share * self.blocks)
            if blocks in found or not 0 < blocks < self.blocks or not self._agrees(blocks):
                continue
            try:
                found[blocks] = self.shortened(blocks)._of_size(wanted, 2 * self.config.hidden_size)
            except ValueError as error:
                reason = str(error)
            else:
                found[blocks].share = share
        if not found:
            raise ValueError(reason or f"no smaller model: its {self.blocks} block(s) cannot be made fewer.")
        return list(found.values())

    def _of_size(self, wanted: float, widest: int) -> "AdvisedModel":
        """Return the model of about ``wanted`` parameters, with at most ``widest`` columns; see :meth:`narrowed`."""
        step = 8 * self.config.num_attention_heads
        widths = range(step, widest + 1, step)
        if not widths:
            raise ValueError(f"no narrower model: hidden_size is {self.config.hidden_size}; widths are {step}, ...")
        of_width = functools.cache(self._of_width)
        place = bisect.bisect_left(widths, wanted, key=lambda width: of_width(width)._parameters)
        around = [of_width(width) for width in widths[max(place - 1, 0) : place + 1]]
        near = min(around, key=lambda each: abs(each._parameters - wanted))
        width, inner = near.config.hidden_size, getattr(near.config, self._inner_name)
        per_feature = (near._parameters - self._of_width(width, inner // 2)._parameters) / (inner - inner // 2)
        filled = 8 * round((inner + (wanted - near._parameters) / per_feature) / 8)
        found = self._of_width(width, max(filled, 8))
        if abs(found._parameters / wanted - 1) > _NEAR:
            raise ValueError(
                f"no model of {self.blocks} blocks has about {wanted:,.0f} parameters; widths are multiples of {step}."
            )
        return found

    @property
    def _parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.shapes.parameters())

    @property
    def _inner_name(self) -> str:
        """The name of the inner features in the configuration.

        Raises ValueError: it has none of the usual names.
        """
        if name := next((name for name in _INNER if hasattr(self.config, name)), None):
            return name
        raise ValueError(
            f"no narrower model: a configuration of {self.config.model_type} has none of {', '.join(_INNER)}."
        )

    def _of_width(self, width: int, inner: int | None = None) -> "AdvisedModel":
        """Return the same model with so many columns and inner features, the latter by default in proportion.

        In proportion they are a multiple of 8. Raises ValueError: transformers does not build such a model.
        """
        if inner is None:
            whole = getattr(self.config, self._inner_name) or 4 * self.config.hidden_size
            inner = max(8, 8 * round(whole * width / self.config.hidden_size / 8))
        narrow = self._copied()
        narrow.config = copy.deepcopy(self.config)
        setattr(narrow.config, self._inner_name, inner)
        for per_head in _PER_HEAD:
            if getattr(self.config, per_head, None):
                setattr(narrow.config, per_head, width // self.config.num_attention_heads)
        narrow.config.hidden_size = width
        try:
            with torch.device("meta"):
                narrow.shapes = narrow.build()
        except Exception as error:  # of an architecture whose sizes hang together in another way
            kind, reason = self.config.model_type, " ".join(str(error).split()).rstrip(".")[:200]
            raise ValueError(f"no narrower model: {kind} does not take hidden_size {width} ({reason}).") from None
        return narrow

    def _copied(self) -> "AdvisedModel":
        """Return a copy whose blocks and columns may be changed."""
        copied = copy.copy(self)
        copied._shortened = {}
        copied.__dict__.pop("depths", None)  # of the model that it was
        return copied

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
    >>> task_of({"model_type": "bert"}), task_of({"model_type": "gpt2"}), task_of({"model_type": "vit"})
    ('masked', 'causal', 'image')
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
    for task in ("seq2seq", "masked", "causal", "classification", "image"):
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
