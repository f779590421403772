"""The model: a GPT with norms before each branch, no biases, and outputs of branches that start at zero.

Shapes: B rows, T tokens, D width, H heads, V vocabulary, L blocks, F inner features of the feed-forward.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from bench.core.checked import Allowed, FromOne, Layers, Length, Width
from bench.workloads.code.corpus import STANDARD_LIBRARY
from bench.workloads.shapes import blocks_at_depth, nearest_shape

_STD = 0.02  # of embeddings


@dataclass(frozen=True)
class TextSettings:
    """Sizes of the model and what it reads. The defaults are those of ``formats_tiny``.

    Args:
        blocks, width, heads: of the model.
        feed_forward: inner features; null: four times the width.
        context: tokens that are predicted in a row, each from those before it.
        tokens: ``bytes``; ``gpt2``, GPT-2's BPE from the cache of Hugging Face; or the path of a tokenizer.json.
        files: which files of a ``data_folder`` are read, by a pattern on their names.
        packages: whose Python source is read without a folder: ``python`` for the standard library, and names of
            installed packages.
        validation_tokens, test_tokens: how many are evaluated, evenly spread, of the text held out for choosing and of
            that held out for reporting.
        probe_numbers: how many numbers the probe of equal size may store; null: as many as dense has parameters.
        probe_tokens: of how many tokens the probe that saw as much as a training counts; null: of all.

    Raises ValueError: heads that do not divide the width, or no packages.
    """

    blocks: Layers = 2
    width: Width = 128
    heads: Width = 4
    feed_forward: Annotated[Width | None, Allowed("whole numbers from 1 to 262,144, or null")] = None
    context: Length = 64
    tokens: Annotated[str, Field(min_length=1), Allowed("bytes, gpt2, or the path of a tokenizer.json")] = "bytes"
    files: Annotated[str, Field(min_length=1), Allowed("a pattern of file names, such as *.txt")] = "*"
    packages: Annotated[tuple[str, ...], Field(min_length=1), Allowed("a list, such as [python,numpy]")] = (
        STANDARD_LIBRARY,
        "numpy",
    )
    validation_tokens: FromOne = 65_536
    test_tokens: FromOne = 131_072
    probe_numbers: Annotated[FromOne | None, Allowed("whole numbers from 1 up, or null")] = None
    probe_tokens: Annotated[FromOne | None, Allowed("whole numbers from 1 up, or null")] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", tuple(self.packages))  # cells hold a list
        if self.width % self.heads:
            raise ValueError(f"width is {self.width} and heads is {self.heads}; heads must divide the width")

    @property
    def inner(self) -> int:
        """F."""
        return 4 * self.width if self.feed_forward is None else self.feed_forward


def _linear(inputs: int, outputs: int, starts_at_zero: bool = False) -> nn.Linear:
    """Return a layer without bias whose weight is drawn with the standard deviation 1/√inputs, or is zero."""
    linear = nn.Linear(inputs, outputs, bias=False)
    with torch.no_grad():
        linear.weight.zero_() if starts_at_zero else linear.weight.normal_(std=1 / math.sqrt(inputs))
    linear.starts_at_zero = starts_at_zero  # type: ignore[assignment]
    return linear


class GPTAttention(nn.Module):
    """Causal attention, (B, T, D) to (B, T, D)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (_linear(width, width) for _ in range(3))
        self.output = _linear(width, width, starts_at_zero=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(attended.transpose(1, 2).flatten(2))


class GPTFeedForward(nn.Module):
    """Two layers with GELU between them, (B, T, D) to (B, T, D)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.expand, self.contract = _linear(width, inner), _linear(inner, width, starts_at_zero=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.contract(F.gelu(self.expand(x), approximate="tanh"))


class GPTBlock(nn.Module):
    """Attention and feed-forward, each on a norm of the stream that it adds to."""

    def __init__(self, settings: TextSettings) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(settings.width), nn.LayerNorm(settings.width)
        self.attention = GPTAttention(settings.width, settings.heads)
        self.feed_forward = GPTFeedForward(settings.width, settings.inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class CausalLanguageModel(nn.Module):
    """The dense model: tokens (B, T) to scores of the next one (B, T, V).

    >>> model = CausalLanguageModel(TextSettings(blocks=1, width=8, heads=2, context=6), vocabulary=30)
    >>> model(torch.zeros(2, 6, dtype=torch.int64)).shape
    torch.Size([2, 6, 30])
    >>> sum(parameter.numel() for parameter in model.narrowed(600).parameters())
    600
    """

    def __init__(self, settings: TextSettings, vocabulary: int) -> None:
        super().__init__()
        self.settings, self.vocabulary = settings, vocabulary
        self.tokens = nn.Embedding(vocabulary, settings.width)
        self.positions = nn.Embedding(settings.context, settings.width)
        self.blocks = nn.ModuleList(GPTBlock(settings) for _ in range(settings.blocks))
        self.norm = nn.LayerNorm(settings.width)
        self.head = _linear(settings.width, vocabulary, starts_at_zero=True)
        with torch.no_grad():
            self.tokens.weight.normal_(std=_STD)
            self.positions.weight.normal_(std=_STD)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def narrowed(
        self, parameters: int, depth: float = 1, compression: float = 1, multiple: int = 1
    ) -> "CausalLanguageModel":
        """Return the model of about so many parameters with other columns, ``depth`` times the blocks, and equal heads.

        It has so many once its matrices in blocks, whose features are multiples of ``multiple``, are made
        ``compression`` times smaller. Raises ValueError: none comes within 2 %, or the depth gives no whole number of
        blocks.
        """
        settings = dataclasses.replace(self.settings, blocks=blocks_at_depth(self.settings.blocks, depth))

        def size(width: int, inner: int) -> float:
            outside = width * (2 * self.vocabulary + settings.context + 2)
            return outside + settings.blocks * width * ((4 * width + 2 * inner) / compression + 4)

        width, inner = nearest_shape(
            parameters,
            size,
            f"model of {settings.blocks} blocks",
            widest=2 * settings.width,
            inner_over_width=settings.inner / settings.width,
            heads=settings.heads,
            multiple=multiple,
        )
        return CausalLanguageModel(dataclasses.replace(settings, width=width, feed_forward=inner), self.vocabulary)
