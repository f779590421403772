"""DLRM, the recommendation model of Meta: a multilayer perceptron on 13 counts, 26 tables, and their pairwise products.

Shapes: B examples (lines of a click log), D columns of every table, F = 27 vectors of an example, one from the counts
and one per table.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from bench.core.checked import Allowed, FromZero, Rows, Width

COUNTS, TABLES = 13, 26  # of a line in Criteo's format

#: Rows of the 26 tables: distinct values of each category, the empty one included. ``kaggle`` is Criteo's Kaggle log;
#: ``terabyte`` its log of 24 days; ``mlperf`` the same with at most 40 million rows, as MLPerf trains it.
CARDINALITIES: dict[str, tuple[int, ...]] = {
    "kaggle": (
        1460,
        583,
        10131227,
        2202608,
        305,
        24,
        12517,
        633,
        3,
        93145,
        5683,
        8351593,
        3194,
        27,
        14992,
        5461306,
        10,
        5652,
        2173,
        4,
        7046547,
        18,
        15,
        286181,
        105,
        142572,
    ),
    "terabyte": (
        45833188,
        36746,
        17245,
        7413,
        20243,
        3,
        7114,
        1441,
        62,
        29275261,
        1572176,
        345138,
        10,
        2209,
        11267,
        128,
        4,
        974,
        14,
        48937457,
        11316796,
        40094537,
        452104,
        12606,
        104,
        35,
    ),
    "mlperf": (
        40000000,
        39060,
        17295,
        7424,
        20265,
        3,
        7122,
        1543,
        63,
        40000000,
        3067956,
        405282,
        10,
        2209,
        11938,
        155,
        4,
        976,
        14,
        40000000,
        40000000,
        40000000,
        590152,
        12973,
        108,
        36,
    ),
}

#: Lines of the training days: six of seven, and 23 of 24.
TRAINING_LINES = {"kaggle": 39_291_958, "terabyte": 4_195_197_692, "mlperf": 4_195_197_692}

#: By preset: columns D, widths of the bottom and the top perceptron behind their inputs, and the cap on rows.
PRESETS: dict[str, tuple[int, tuple[int, ...], tuple[int, ...], int | None]] = {
    "paper": (32, (1024, 4096, 1024), (1024, 4096, 1024, 1), None),
    "kaggle": (16, (512, 256, 64), (512, 256, 1), None),
    "small": (8, (160, 160), (160, 160, 1), 20_000),
}

_Widths = Annotated[
    tuple[Width, ...] | None, Allowed("a list of whole numbers from 1 to 262,144, or null (the preset's)")
]
_OrPreset = Annotated[
    Annotated[int, Field(ge=1, le=2**27)] | None,
    Allowed(f"whole numbers from 1 to {2**27:,}, or null (the preset's)"),
]


@dataclass(frozen=True)
class DLRMSettings:
    """Sizes of the model, and the weights that methods act on. None takes the preset's value.

    Raises ValueError: a cap on rows above that of a preset with one.

    >>> settings = DLRMSettings("kaggle")
    >>> settings.bottom_sizes, settings.top_sizes, sum(settings.rows)
    ((13, 512, 256, 64, 16), (367, 512, 256, 1), 33762577)
    """

    preset: Literal["paper", "kaggle", "small"] = "paper"  # paper: 4.09 GiB; kaggle: the sizes of Meta's own example
    tables: Literal["kaggle", "terabyte", "mlperf"] = "kaggle"  # whose cardinalities
    max_rows: _OrPreset = None  # of a table; rarer categories share its last row, or are hashed
    columns: _OrPreset = None  # D of every table
    bottom: _Widths = None  # of the hidden layers on the counts
    top: _Widths = None  # of the layers on the interactions; the last is 1
    compressed_tables: FromZero = 10  # the largest tables, on which methods act
    compressed_width: Width = 128  # methods act on linear layers whose two sides are wider
    numbering: Literal["frequency", "hash"] = "frequency"  # of categories: the most frequent first, or hashed
    training_lines: Rows = 4_000_000  # of a synthetic log
    validation_lines: Rows = 500_000  # held out; of a real log at most these are used

    def __post_init__(self) -> None:
        if self.top is not None and (not self.top or self.top[-1] != 1):
            raise ValueError(f"top is {list(self.top)}; the last width must be 1, the click")

    @property
    def rows(self) -> tuple[int, ...]:
        """V of every table."""
        cap = self.max_rows or PRESETS[self.preset][3] or max(CARDINALITIES[self.tables])
        return tuple(min(rows, cap) for rows in CARDINALITIES[self.tables])

    @property
    def dim(self) -> int:
        return self.columns or PRESETS[self.preset][0]

    @property
    def bottom_sizes(self) -> tuple[int, ...]:
        """Sizes of the counts' perceptron, from its input to the D columns."""
        hidden = PRESETS[self.preset][1] if self.bottom is None else self.bottom
        return COUNTS, *hidden, self.dim

    @property
    def top_sizes(self) -> tuple[int, ...]:
        """Sizes of the perceptron behind the interactions: counts' vector and F(F - 1)/2 products to a score."""
        vectors = TABLES + 1
        hidden = PRESETS[self.preset][2] if self.top is None else self.top
        return self.dim + vectors * (vectors - 1) // 2, *hidden


def _perceptron(sizes: Sequence[int], last: bool) -> nn.Sequential:
    """Return linear layers with a ReLU behind each, or behind all but the last one."""
    layers: list[nn.Module] = []
    for size, following in itertools.pairwise(sizes):
        layers += [nn.Linear(size, following), nn.ReLU()]
    return nn.Sequential(*(layers if last else layers[:-1]))


class DLRM(nn.Module):
    """The dense model: ``counts`` (B, 13) and, per table, ``categories`` (B, 1) to a score (B,), the logit of a click.

    Its layout and its initial weights are those of facebookresearch/dlrm (arXiv 1906.00091): linear weights from
    N(0, 2/(N + M)), biases from N(0, 1/M), a table of V rows from the uniform distribution on ±1/√V.

    >>> model = DLRM(DLRMSettings("small"))
    >>> model(torch.zeros(5, 13), [torch.zeros(5, 1, dtype=torch.int64)] * 26).shape
    torch.Size([5])
    """

    def __init__(self, settings: DLRMSettings) -> None:
        super().__init__()
        self.bottom = _perceptron(settings.bottom_sizes, last=True)
        # A plain list of modules would be taken for the blocks of a model, which are checkpointed one by one.
        bags = (nn.EmbeddingBag(rows, settings.dim, mode="sum") for rows in settings.rows)
        self.tables = nn.ModuleDict({f"c{place}": bag for place, bag in enumerate(bags, start=1)})
        self.top = _perceptron(settings.top_sizes, last=False)
        first, second = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1)
        self.register_buffer("pairs", first * (TABLES + 1) + second, persistent=False)  # of F x F products, each once
        self.apply(_initialise)

    def forward(self, counts: torch.Tensor, categories: Sequence[torch.Tensor]) -> torch.Tensor:
        x_BD = self.bottom(counts)
        looked_up = [table(rows) for table, rows in zip(self.tables.values(), categories, strict=True)]
        vectors_BFD = torch.stack([x_BD, *looked_up], dim=1)
        products_BFF = torch.bmm(vectors_BFD, vectors_BFD.transpose(1, 2))
        pairs = products_BFF.flatten(1).index_select(1, self.get_buffer("pairs"))
        return self.top(torch.cat([x_BD, pairs], dim=1)).squeeze(1)


@torch.no_grad()
def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.weight.normal_(std=(2.0 / sum(module.weight.shape)) ** 0.5)
        module.bias.normal_(std=module.out_features**-0.5)
    elif isinstance(module, nn.EmbeddingBag):
        module.weight.uniform_(-(module.num_embeddings**-0.5), module.num_embeddings**-0.5)
