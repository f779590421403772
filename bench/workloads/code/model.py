"""The model: an encoder with a masked-language-model head that shares the word embedding's weight.

At the default settings it has 357,189,408 parameters: 301,989,888 in the 144 matrices of 24 blocks, 53,248,000 in the
word embedding, and 1,951,520 in positions, segments, LayerNorms, biases and the head.

Shapes: B rows, T tokens, K chosen ones of each row, D width, V vocabulary.
"""

import functools
import math
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from bench.core.checked import Allowed, Flag, FromOne, Layers, Length, Rows, Width
from bench.core.identity import LATER
from bench.workloads.code.corpus import STANDARD_LIBRARY
from bench.workloads.encoder import Encoder, EncoderSettings, initialise

_LAYER_NORM_EPS = 1e-9
_STD, _WIDTH = 0.02, 1024  # of initial weights, at this width: BERT's; elsewhere products keep the size they have there
_Length = Annotated[int, Field(ge=5, le=2**20), Allowed(f"whole numbers from 5 to {2**20:,}")]


@dataclass(frozen=True)
class CodeSettings:
    """Sizes of the model and what it reads. The defaults are the paper's large model, at the length of its phase 1.

    Args:
        late_length: tokens of a row in a late stage, a multiple of ``sequence_length``; a batch then has fewer rows of
            as many tokens together. None: as before.
        packages: what the corpus is made of: ``python`` for the standard library, and names of installed packages.
            Functions in a ``data_folder`` go before.
        most_tokens: the training files are cut to about so many, spread evenly over them; None: all are used.
        windows: rows of each held-out file that are evaluated.
        pre_norm: whether sub-layers read normalised input, instead of the paper's norm of their sum, as in
            :class:`bench.workloads.encoder.EncoderSettings`.

    Raises ValueError: heads that do not divide the width, rows longer than there are positions, or no packages.
    """

    layers: Layers = 24
    width: Width = 1024
    heads: Width = 16
    feed_forward: Width = 4096
    vocabulary: Rows = 52_000
    positions: Length = 512
    dropout: Annotated[float, Field(ge=0, lt=1), Allowed("numbers from 0 to below 1")] = 0.1
    sequence_length: _Length = 128
    late_length: _Length | None = None
    packages: Annotated[tuple[str, ...], Field(min_length=1), Allowed("a list, such as [python,numpy]")] = (
        STANDARD_LIBRARY,
        "numpy",
        "torch",
    )
    most_tokens: Annotated[FromOne | None, Allowed("whole numbers from 1 up, or null")] = None
    windows: FromOne = 8
    pre_norm: Flag = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", tuple(self.packages))  # cells hold a list
        self.encoder()
        late = self.late_length
        if late is not None and (late % self.sequence_length or late > self.positions):
            least, most = self.sequence_length, self.positions
            raise ValueError(f"late_length is {late}; allowed: null, or multiples of {least} up to positions ({most})")

    def encoder(self) -> EncoderSettings:
        """Return the sizes as the encoder's parts take them."""
        own = {one.name for one in fields(EncoderSettings)}
        return EncoderSettings(**{name: value for name, value in asdict(self).items() if name in own})


class MaskedHead(nn.Module):
    """Scores of all tokens at the places that were chosen: a transform, then the word embedding and a bias."""

    def __init__(self, settings: CodeSettings) -> None:
        super().__init__()
        self.transform = nn.Linear(settings.width, settings.width)
        self.norm = nn.LayerNorm(settings.width, eps=_LAYER_NORM_EPS)
        self.bias = nn.Parameter(torch.zeros(settings.vocabulary))

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return F.linear(self.norm(F.gelu(self.transform(x))), words, self.bias)


def waves(positions: int, width: int) -> torch.Tensor:
    """Return sines and cosines of geometrically growing wavelengths, (positions, width).

    >>> [round(value, 4) for value in waves(2, 4)[1].tolist()]
    [0.8415, 0.5403, 0.01, 0.9999]
    """
    columns = torch.arange(width)
    angles = torch.arange(positions)[:, None] / 10_000 ** (columns // 2 * 2 / width)
    return torch.where(columns % 2 == 0, angles.sin(), angles.cos())


class MaskedLanguageModel(Encoder):
    """The dense model.

    Positions are learned, and start as waves of the size of word vectors: from there, attention to a neighbour is one
    rotation for all places, and is learned in fewer steps than from random vectors.

    Rows are packed, without padding, so every token attends to all of its row, also across the end of a document. The
    chosen places are gathered before the head: scores of all places would be the largest tensor of a step.

    >>> settings = CodeSettings(layers=1, width=8, heads=2, feed_forward=16, vocabulary=300)
    >>> MaskedLanguageModel(settings)(torch.full((2, 20), 7), torch.tensor([[1, 5, 9], [0, 2, 3]])).shape
    torch.Size([2, 3, 300])
    """

    def __init__(self, settings: CodeSettings) -> None:
        super().__init__(settings.encoder())
        self.head = MaskedHead(settings)
        std = _STD * math.sqrt(_WIDTH / settings.width)
        self.apply(functools.partial(initialise, std=std))
        with torch.no_grad():
            self.embeddings.position.weight.copy_(math.sqrt(2) * std * waves(settings.positions, settings.width))

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return scores (B, K, V) at ``positions`` (B, K) of ``input_ids`` (B, T)."""
        x = self.encode(self.embeddings(input_ids, torch.zeros_like(input_ids)), None)
        chosen = x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))  # (B, K, D)
        return self.head(chosen, self.embeddings.word.weight)
