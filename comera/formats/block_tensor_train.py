"""Block tensor trains: a linear layer whose weight is cut into blocks, each of a low rank.

With N = J·n input features in J groups and M = I·m output features in I groups, the weight has I·J blocks. The block
between input group j and output group i is the product of an (n, r) and an (r, m) factor. A row X costs two batched
products::

    Y[j, i] = X[j] · A[j, i]         X[j]: (n,),   A[j, i]: (n, r)
    Z[i]    = Σ_j Y[j, i] · B[i, j]  B[i, j]: (r, m)

that is r·(N·I + M·J) multiplications, as many as there are parameters. The whole weight can have full rank at any r,
which a tensor train or a two-factor form of that size cannot. r = 1 is the Monarch matrix (Dao et al., ICML 2022,
arXiv 2204.00595); the form with any r is the BTT of Qiu et al., "Compute Better Spent" (ICML 2024, arXiv 2406.06248).

Letters in names of dimensions: B rows, J input groups, n features of one, I output groups, m features of one, r rank, R
all that a group has between the products: r·I numbers after the first, J·r before the second.
"""

from __future__ import annotations

import warnings
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from comera.contraction.plans import element_bytes_of, machine_of
from comera.formats.batched_product import ROWS_OUTSIDE, batched_product, plain_product
from comera.formats.block_linear import BlockInit, BlockLinear
from comera.formats.block_plans import CONTRACTIONS, BlockContraction, plan_blocks
from comera.formats.block_shapes import BTTShape, balanced_blocks
from comera.tensor_train import shared_out

#: With fewer rows plain products are faster; measured at 768 x 768 with 8 x 8 blocks of rank 12 on a CPU.
_FEW_ROWS = 256


class BTTLinear(BlockLinear[BTTShape]):
    """A linear layer whose weight is a block tensor train; see the module.

    Args:
        in_features, out_features: N and M, as in ``nn.Linear``.
        in_blocks, out_blocks: J and I; None: the balanced ones (:func:`balanced_blocks`). Features with few divisors,
            as a prime number of them, have too few blocks for a weight of full rank, which a warning says.
        rank: r of every block.
        bias: whether to add a bias of length M.
        init: how :meth:`reset_parameters` draws the cores.
        device, dtype: of the parameters.

    Attributes:
        in_core: (J, n, r, I), the factors A; state dicts with (J, n, I·r), of versions up to 0.2.0, are converted.
        out_core: (I, J·r, m), the factors B.

    Shape:
        (…, N) to (…, M), any leading dimensions.

    Raises:
        ValueError: blocks that do not divide the features, a rank above that of a block, another ``init``.

    Example:
        >>> layer = BTTLinear(768, 768, rank=4)
        >>> layer(torch.zeros(2, 5, 768)).shape, layer.shape.parameter_count
        (torch.Size([2, 5, 768]), 147456)
    """

    in_core: nn.Parameter
    out_core: nn.Parameter
    contraction: BlockContraction = "blocks"  #: How it multiplies, see :mod:`comera.formats.block_plans`.

    def __init__(
        self,
        in_features: int,
        out_features: int,
        in_blocks: int | None = None,
        out_blocks: int | None = None,
        rank: int = 2,
        bias: bool = True,
        init: BlockInit = "normal",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if (in_blocks is None) != (out_blocks is None):
            raise ValueError("in_blocks and out_blocks go together: give both or neither.")
        if in_blocks is None or out_blocks is None:
            shape = balanced_blocks(in_features, out_features, rank)
            warn_of_low_rank(shape)
        else:
            shape = BTTShape(in_features, out_features, in_blocks, out_blocks, rank)
        super().__init__(shape, bias, init, device, dtype)

    @classmethod
    @torch.no_grad()
    def from_dense(
        cls,
        weight: torch.Tensor,
        in_blocks: int | None = None,
        out_blocks: int | None = None,
        rank: int = 2,
        bias: torch.Tensor | None = None,
    ) -> Self:
        """Decompose a weight of shape (M, N), as ``nn.Linear`` keeps it: each block by its singular values.

        Of all block tensor trains of these blocks and this rank it is the nearest in the Frobenius norm, since blocks
        share no entry. Both cores share each singular value; where it is zero, ``in_core`` is orthonormal.

        Example:
            >>> linear = nn.Linear(6, 4)
            >>> layer = BTTLinear.from_dense(linear.weight, in_blocks=2, out_blocks=2, rank=2, bias=linear.bias)
            >>> torch.allclose(layer.to_dense(), linear.weight, atol=1e-6)
            True
        """
        out_features, in_features = weight.shape
        layer = cls(
            in_features,
            out_features,
            in_blocks,
            out_blocks,
            rank,
            bias is not None,
            "normal",
            weight.device,
            weight.dtype,
        )
        shape = layer.shape
        blocks_JnIm = weight.detach().t().reshape(shape.in_blocks, shape.in_size, shape.out_blocks, shape.out_size)
        kind = torch.promote_types(weight.dtype, torch.float32)
        left, values, right = torch.linalg.svd(blocks_JnIm.transpose(1, 2).to(kind), full_matrices=False)
        r = shape.rank
        first_JIr, second_JIr = shared_out(values[..., :r])
        layer.in_core.copy_((left[..., :r] * first_JIr.unsqueeze(-2)).permute(0, 2, 3, 1))  # (J, I, n, r)
        factors_JIrm = second_JIr.unsqueeze(-1) * right[..., :r, :]
        layer.out_core.copy_(factors_JIrm.transpose(0, 1).reshape(layer.out_core.shape))
        if bias is not None and layer.bias is not None:
            layer.bias.copy_(bias)
        return layer

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        groups_BJn = self.rows_of(input, self.shape.in_blocks)
        if self._contraction(input) == "dense":
            return F.linear(input, self.to_dense(), self.bias)
        if self.recompute and torch.is_grad_enabled():
            output: torch.Tensor = checkpoint(self._product, groups_BJn, use_reentrant=False, preserve_rng_state=False)
            return output.view(*input.shape[:-1], self.out_features)
        return self._product(groups_BJn).view(*input.shape[:-1], self.out_features)

    def _contraction(self, input: torch.Tensor) -> str:
        """Return the name of the plan for this input; a compiled layer has one plan for any number of tokens."""
        if self.contraction != "auto":
            if self.contraction not in CONTRACTIONS:
                raise ValueError(f"contraction is {self.contraction!r}; allowed: {', '.join(CONTRACTIONS)}.")
            return self.contraction
        if torch.compiler.is_compiling():
            return "blocks"
        tokens = max(input.numel() // self.in_features, 1)
        return plan_blocks(self.shape, tokens, machine_of(input), element_bytes_of(input)).name

    def _product(self, groups_BJn: torch.Tensor) -> torch.Tensor:
        """Multiply by both cores, (B, J, n) to (B, M).

        What lies between the products has rows as its last dimension, and ranks before output groups: as (J, r, I, B)
        it is what the first product puts out, and by strides what the second one reads as (I, J·r, B). With few rows
        the calls that this takes cost more than they save, and a compiler has ways of its own: there the products are
        plain.
        """
        shape = self.shape
        rows = groups_BJn.shape[0]
        product = plain_product if torch.compiler.is_compiling() or rows < _FEW_ROWS else batched_product
        bias_I1m = None if self.bias is None else self.bias.view(shape.out_blocks, 1, shape.out_size)
        middle_JRB = product(self.in_core.flatten(2).transpose(1, 2), groups_BJn.permute(1, 2, 0))
        middle_RIB = middle_JRB.view(shape.in_blocks * shape.rank, shape.out_blocks, rows)
        output_IBm = product(middle_RIB.permute(1, 2, 0), self.out_core, bias_I1m, ROWS_OUTSIDE)
        return output_IBm.transpose(0, 1).reshape(rows, shape.out_features)

    def to_dense(self) -> torch.Tensor:
        """Return the weight as ``nn.Linear.weight`` has it: (M, N)."""
        shape = self.shape
        second_IJrm = self.out_core.view(shape.out_blocks, shape.in_blocks, shape.rank, shape.out_size)
        weight_ImJn = torch.einsum("jnri,ijrm->imjn", self.in_core, second_IJrm)
        return weight_ImJn.reshape(shape.out_features, shape.in_features)

    def extra_repr(self) -> str:
        shape = self.shape
        return (
            f"in_features={shape.in_features}, out_features={shape.out_features}, in_blocks={shape.in_blocks}, "
            f"out_blocks={shape.out_blocks}, rank={shape.rank}, bias={self.bias is not None}"
        )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        """Load as any module does, an older ``in_core`` converted."""
        if isinstance(given := state_dict.get(f"{prefix}in_core"), torch.Tensor):
            state_dict[f"{prefix}in_core"] = self.shape.as_first_core(given)
        super()._load_from_state_dict(state_dict, prefix, *more)


def warn_of_low_rank(shape: BTTShape) -> None:
    """Warn where the features have so few divisors that the blocks found for them keep the weight from full rank."""
    if shape.rank_limit < min(shape.in_features, shape.out_features):
        warnings.warn(
            f"BTTLinear {shape.in_features} → {shape.out_features} has {shape.out_blocks} x {shape.in_blocks} blocks, "
            f"since its sizes have few divisors, so that its weight has at most rank {shape.rank_limit}; give it "
            "in_blocks and out_blocks, a higher rank, or sizes with more divisors.",
            stacklevel=3,
        )
