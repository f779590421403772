"""Grouped linear layers: blocks on the diagonal, and a shuffle that spreads their outputs over the following groups.

With N = G·n input and M = G·m output features in G groups, a row X costs one batched product::

    Y[g] = X[g] · W[g]    X[g]: (n,),   W[g]: (n, m)

that is N·M/G multiplications, as many as there are parameters, and nothing lies between. Without a shuffle, stacked
layers would be G separate models. The shuffle cuts the outputs of each group into pieces of m/G numbers, or fewer, and
deals them out in turn, so that a following layer of as many groups reads some of each, if m ≥ G. Since each block may
permute its inputs, whole pieces serve as well as the single numbers of ShuffleNet (Zhang et al., CVPR 2018, arXiv
1707.01083).

Letters in names of dimensions: B rows, G groups, n and m features of one on either side, P pieces of a group, p numbers
of a piece.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import nn

from comera.compatibility.arguments import check_switch
from comera.formats.batched_product import ROW_BY_ROW, ROWS_OUTSIDE, batched_product, plain_product
from comera.formats.block_linear import BlockInit, BlockLinear
from comera.formats.block_shapes import nearest_divisors, numbers_that_divide
from comera.modes import check_size, divisors

#: With fewer rows plain operations are faster; measured at 768 x 768 in four groups on a CPU.
_FEW_ROWS = 64


@dataclass(frozen=True)
class GroupedShape:
    """The sizes of a grouped linear layer.

    Args:
        in_features, out_features: N and M.
        groups: G, which divides both.
        shuffle: whether the outputs of each group are spread.

    Attributes:
        piece: p, the numbers that the shuffle moves together: m/G, or the largest divisor of m below it, at least 1.

    Raises:
        ValueError: sizes below 1, or groups that do not divide the features; the sentence has the nearest that do.

    Example:
        >>> shape = GroupedShape(768, 3072, groups=4)
        >>> shape.in_size, shape.out_size, shape.piece, shape.parameter_count, shape.ratio
        (192, 768, 192, 589824, 4.0)
    """

    in_features: int
    out_features: int
    groups: int
    shuffle: bool = True
    piece: int = field(init=False)

    def __post_init__(self) -> None:
        for name in ("in_features", "out_features", "groups"):
            check_size(name, getattr(self, name))
        check_switch("shuffle", self.shuffle)
        common = math.gcd(self.in_features, self.out_features)
        if common % self.groups:
            near = numbers_that_divide(nearest_divisors(common, self.groups))
            raise ValueError(
                f"groups is {self.groups}; it must divide in_features={self.in_features} and "
                f"out_features={self.out_features}, as {near}."
            )
        pieces = [each for each in divisors(self.out_size) if each * self.groups <= self.out_size]
        object.__setattr__(self, "piece", pieces[-1] if pieces else 1)

    @property
    def in_size(self) -> int:
        """n, the input features of a group."""
        return self.in_features // self.groups

    @property
    def out_size(self) -> int:
        """m, the output features of a group."""
        return self.out_features // self.groups

    @property
    def parameter_count(self) -> int:
        """Entries of the blocks, N·M/G."""
        return self.in_size * self.out_features

    @property
    def dense_count(self) -> int:
        """N·M."""
        return self.in_features * self.out_features

    @property
    def ratio(self) -> float:
        """The dense weight's entries over those of the blocks."""
        return float(self.groups)

    @property
    def flops_per_row(self) -> int:
        """Forward FLOPs per row of activations; dense: 2·N·M."""
        return 2 * self.parameter_count

    @property
    def core_shapes(self) -> dict[str, tuple[int, ...]]:
        """(G, n, m)."""
        return {"blocks": (self.groups, self.in_size, self.out_size)}

    @property
    def normal_std(self) -> float:
        """Standard deviation of the blocks' entries with which the weight's mean square is 1/(N + M)."""
        return float(self.in_size + self.out_size) ** -0.5

    def __str__(self) -> str:
        return "\n".join(
            [
                f"grouped linear layer {self.in_features} → {self.out_features}",
                f"  blocks      {self.groups} of {self.out_size} by {self.in_size}",
                f"  parameters  {self.parameter_count:,}; dense {self.dense_count:,}; no bias in either",
                f"  ratio       {self.ratio:.4g}",
                f"  FLOPs       {self.flops_per_row:,} per row forward; dense {2 * self.dense_count:,}",
                f"  shuffle     {f'pieces of {self.piece:,} numbers' if self.shuffle else 'none'}",
            ]
        )


class GroupedLinear(BlockLinear[GroupedShape]):
    """A linear layer of blocks on the diagonal, with a shuffle behind them; see the module.

    Args:
        in_features, out_features: N and M, as in ``nn.Linear``.
        groups: G, which divides both.
        bias: whether to add a bias of length M.
        shuffle: whether to spread the outputs of each group; without it the weight is block diagonal. A state dict does
            not say which, and loads into either.
        init: how :meth:`reset_parameters` draws the blocks.
        device, dtype: of the parameters.

    Attributes:
        blocks: (G, n, m).

    Shape:
        (…, N) to (…, M), any leading dimensions.

    Raises:
        ValueError: groups that do not divide the features, or another ``init``.

    Example:
        >>> layer = GroupedLinear(768, 768, groups=4)
        >>> layer(torch.zeros(2, 5, 768)).shape, layer.shape.parameter_count
        (torch.Size([2, 5, 768]), 147456)
    """

    blocks: nn.Parameter

    def __init__(
        self,
        in_features: int,
        out_features: int,
        groups: int = 4,
        bias: bool = True,
        shuffle: bool = True,
        init: BlockInit = "normal",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(GroupedShape(in_features, out_features, groups, shuffle), bias, init, device, dtype)

    @classmethod
    @torch.no_grad()
    def from_dense(
        cls, weight: torch.Tensor, groups: int = 4, bias: torch.Tensor | None = None, shuffle: bool = True
    ) -> Self:
        """Take the blocks of a weight of shape (M, N), as ``nn.Linear`` keeps it, and leave out all other entries.

        Of all grouped layers of these groups it is the nearest in the Frobenius norm.

        Example:
            >>> layer = GroupedLinear.from_dense(torch.eye(4), groups=2, shuffle=False)
            >>> torch.equal(layer.to_dense(), torch.eye(4))
            True
        """
        out_features, in_features = weight.shape
        has_bias, options = bias is not None, {"device": weight.device, "dtype": weight.dtype}
        layer = cls(in_features, out_features, groups, has_bias, shuffle, **options)  # type: ignore[arg-type]
        rows_GmN = weight.detach()
        if shuffle:
            rows_GmN = rows_GmN.unflatten(0, (-1, groups, layer.shape.piece)).transpose(0, 1)
        blocks_GmGn = rows_GmN.reshape(groups, layer.shape.out_size, groups, layer.shape.in_size)
        layer.blocks.copy_(blocks_GmGn.diagonal(dim1=0, dim2=2).permute(2, 1, 0))
        if bias is not None and layer.bias is not None:
            layer.bias.copy_(bias)
        return layer

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        groups_GBn = self.rows_of(input, shape.groups).transpose(0, 1)
        plain = torch.compiler.is_compiling() or groups_GBn.shape[1] < _FEW_ROWS
        product = plain_product if plain else batched_product
        if shape.shuffle and shape.groups > 1:
            output_GBm = product(groups_GBn, self.blocks, None, ROW_BY_ROW)
            shuffled = _shuffled if plain else _Shuffled.apply
            output: torch.Tensor = shuffled(output_GBm, self.bias, shape.piece)
        else:
            bias_G1m = None if self.bias is None else self.bias.view(shape.groups, 1, shape.out_size)
            output = product(groups_GBn, self.blocks, bias_G1m, ROWS_OUTSIDE).transpose(0, 1)
        return output.reshape(*input.shape[:-1], shape.out_features)

    def to_dense(self) -> torch.Tensor:
        """Return the weight as ``nn.Linear.weight`` has it: (M, N)."""
        shape = self.shape
        weight_GmN = torch.block_diag(*self.blocks.transpose(1, 2)).unflatten(0, (shape.groups, shape.out_size))
        if shape.shuffle:
            weight_GmN = weight_GmN.unflatten(1, (-1, shape.piece)).transpose(0, 1)
        return weight_GmN.reshape(shape.out_features, shape.in_features)

    def extra_repr(self) -> str:
        shape = self.shape
        return (
            f"in_features={shape.in_features}, out_features={shape.out_features}, groups={shape.groups}, "
            f"bias={self.bias is not None}, shuffle={shape.shuffle}"
        )


def _pieces(product_GBm: torch.Tensor, piece: int) -> torch.Tensor:
    """Return what groups put out in the order of the outputs, (B, P, G, p), without a copy."""
    return product_GBm.unflatten(2, (-1, piece)).permute(1, 2, 0, 3)


def _shuffled(product_GBm: torch.Tensor, bias: torch.Tensor | None, piece: int) -> torch.Tensor:
    """Return the shuffled rows (B, M), with a bias (M,) added."""
    rows = _pieces(product_GBm, piece).flatten(1)
    return rows if bias is None else rows + bias.to(rows.dtype)


class _Shuffled(torch.autograd.Function):
    """:func:`_shuffled` by one pass forward, and one copy backward."""

    @staticmethod
    def forward(product: torch.Tensor, bias: torch.Tensor | None, piece: int) -> torch.Tensor:
        pieces = _pieces(product, piece)
        rows = product.new_empty(pieces.shape[0], pieces.shape[1:].numel())  # no view, which nothing may write into
        if bias is None:
            rows.view(pieces.shape).copy_(pieces)
        else:
            torch.add(pieces, bias.to(rows.dtype).view(pieces.shape[1:]), out=rows.view(pieces.shape))
        return rows

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG004
        ctx.groups, ctx.piece = inputs[0].shape[0], inputs[2]
        ctx.bias_type = None if inputs[1] is None else inputs[1].dtype

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_product, of_bias, _ = ctx.needs_input_grad
        pieces = gradient.unflatten(1, (-1, ctx.groups, ctx.piece)).permute(2, 0, 1, 3)
        return (
            pieces.flatten(2) if of_product else None,
            gradient.sum(0).to(ctx.bias_type) if of_bias else None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, product: torch.Tensor, bias: torch.Tensor | None, _: None) -> torch.Tensor:
        return _shuffled(product, bias, ctx.piece)

    @staticmethod
    def vmap(
        info: Any,  # noqa: ARG004
        in_dims: tuple[int | None, ...],
        product: torch.Tensor,
        bias: torch.Tensor | None,
        piece: int,
    ) -> tuple[torch.Tensor, int]:
        return torch.vmap(_shuffled, (*in_dims[:2], None))(product, bias, piece), 0
