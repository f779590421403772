"""The model: the encoder's blocks on words and positions, and a head that labels every word.

Shapes: B windows, T words, D width, H hops.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from bench.core.checked import Allowed, Flag, FromOne, Layers, Length, Width
from bench.core.identity import LATER
from bench.workloads.code.corpus import STANDARD_LIBRARY
from bench.workloads.encoder import Classifier, Encoder, EncoderSettings, initialise
from bench.workloads.pointer.corpus import CLASSES, FIRST_WORD, Tokens
from bench.workloads.shapes import blocks_at_depth, nearest_shape

_STD, _WIDTH = 0.02, 768  # of initial linear weights, at this width: BERT's; narrower models start with larger ones


@dataclass(frozen=True)
class PointerSettings:
    """Sizes of the model, its text and its labels.

    Args:
        layers, width, heads, feed_forward, dropout, pre_norm: of the encoder, see
            :class:`bench.workloads.encoder.EncoderSettings`.
        vocabulary: ids of tokens; 8 of those of words are no word of the text.
        context: tokens of a window.
        hops: labels of each word: of the word that it points to, of the word which that one points to, and so on.
        compress_table: make the word embedding a target of the methods as well.
        evaluated: windows that are evaluated for choosing, and as many for reporting, where the text has them.
        probe_windows: windows that a simple model is fitted on; those with more data have four times as many.
        files: which files of a ``data_folder`` are read, by a pattern on their names.
        packages: whose Python source is read without a folder: ``python`` for the standard library, and names of
            installed packages.
        tokens: ``words``, or ``wordpiece`` for pieces of words in BERT's vocabulary if it is at hand and fits, else in
            one that is trained on the text.

    Raises ValueError: heads that do not divide the width, hops that leave every window, or no packages.
    """

    layers: Layers = 2
    width: Width = 128
    heads: Width = 4
    feed_forward: Width = 512
    vocabulary: Annotated[
        int, Field(gt=FIRST_WORD, le=2**27), Allowed(f"whole numbers from {FIRST_WORD + 1} to {2**27:,}")
    ] = 4096
    context: Length = 32
    hops: FromOne = 1
    dropout: Annotated[float, Field(ge=0, lt=1), Allowed("numbers from 0 to below 1")] = 0.0
    pre_norm: Flag = True
    compress_table: Flag = False
    evaluated: FromOne = 2048
    probe_windows: FromOne = 48_000
    files: Annotated[str, Field(min_length=1), Allowed("a pattern of file names, such as *.txt")] = "*"
    packages: Annotated[tuple[str, ...], Field(min_length=1), Allowed("a list, such as [python,numpy]")] = (
        STANDARD_LIBRARY,
    )
    tokens: Tokens = field(default="words", metadata=LATER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", tuple(self.packages))  # cells hold a list
        self.encoder()
        if self.hops >= self.context:
            raise ValueError(
                f"hops is {self.hops} and context is {self.context}; hops must be below context, or no label is left"
            )

    def encoder(self) -> EncoderSettings:
        """Return the sizes as the encoder's parts take them."""
        return EncoderSettings(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            feed_forward=self.feed_forward,
            vocabulary=self.vocabulary,
            positions=self.context,
            classes=CLASSES * self.hops,
            dropout=self.dropout,
            sequence_length=self.context,
            pre_norm=self.pre_norm,
        )


class WordClassifier(Classifier):
    """Class scores from every word: ``classes(tanh(hidden(x)))``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classes(torch.tanh(self.hidden(x)))


class PointerModel(Encoder):
    """The dense model: words (B, T) to class scores (B, T, H, 8).

    Linear weights start from N(0, std²) with std = 0.02 √(768 / D), embeddings from N(0, 0.02²).

    >>> model = PointerModel(PointerSettings(layers=1, width=8, heads=2, feed_forward=16, vocabulary=50, hops=2))
    >>> model(torch.tensor([[9, 8, 30], [1, 9, 20]])).shape
    torch.Size([2, 3, 2, 8])
    """

    def __init__(self, settings: PointerSettings) -> None:
        sizes = settings.encoder()
        super().__init__(sizes, segments=False)
        self.settings = settings
        self.classifier = WordClassifier(sizes)
        std = min(_STD * math.sqrt(_WIDTH / settings.width), 1.0)
        for module in self.modules():
            initialise(module, std if isinstance(module, nn.Linear) else _STD)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.classifier(self.encode(self.embeddings(words), None))
        return scores.unflatten(-1, (self.settings.hops, CLASSES))

    def narrowed(self, parameters: int, depth: float = 1, compression: float = 1, multiple: int = 1) -> "PointerModel":
        """Return the model of about so many parameters with other columns, ``depth`` times the blocks, and equal heads.

        It has so many once its matrices in blocks, whose features are multiples of ``multiple``, are made
        ``compression`` times smaller. Raises ValueError: none comes within 2 %, or the depth gives no whole number of
        blocks.
        """
        settings = dataclasses.replace(self.settings, layers=blocks_at_depth(self.settings.layers, depth))
        layers, classes = settings.layers, CLASSES * settings.hops

        def size(width: int, inner: int) -> float:
            norms = 2 * width * (1 + 2 * layers + settings.pre_norm)
            matrices, biases = (4 * width**2 + 2 * inner * width) / compression, 5 * width + inner
            outside = width * (settings.vocabulary + settings.context) + (width + classes) * (width + 1)
            return outside + norms + layers * (matrices + biases)

        width, inner = nearest_shape(
            parameters,
            size,
            f"model of {layers} blocks",
            widest=2 * settings.width,
            inner_over_width=settings.feed_forward / settings.width,
            heads=settings.heads,
            multiple=multiple,
        )
        return PointerModel(dataclasses.replace(settings, width=width, feed_forward=inner))
