"""The sizes of a block tensor train, and the solver for a wanted ratio of one layer."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from comera.compatibility.arguments import check_number
from comera.modes import balanced_modes, check_size, divisors
from comera.protocol import OutOfReach

#: How near a solution's size must come to the wanted one for its number of blocks to decide.
_NEAR = 0.02

#: How many divisors of a size are tried as its number of blocks. Sizes of layers have fewer.
_DIVISORS = 256

#: Ratios are looked for up to this one and down to its inverse.
_FARTHEST = 1e100


@dataclass(frozen=True)
class BTTShape:
    """The sizes of a block tensor train.

    Args:
        in_features, out_features: N and M.
        in_blocks, out_blocks: J and I, which divide them.
        rank: r of every block.

    Raises:
        ValueError: sizes below 1, blocks that do not divide the features, a rank above that of a whole block.

    Example:
        >>> shape = BTTShape(768, 3072, in_blocks=24, out_blocks=48, rank=2)
        >>> shape.in_size, shape.out_size, shape.parameter_count, round(shape.ratio, 2)
        (32, 64, 221184, 10.67)
    """

    in_features: int
    out_features: int
    in_blocks: int
    out_blocks: int
    rank: int

    def __post_init__(self) -> None:
        for name in ("in_features", "out_features", "in_blocks", "out_blocks", "rank"):
            check_size(name, getattr(self, name))
        for side in ("in", "out"):
            features, blocks = getattr(self, f"{side}_features"), getattr(self, f"{side}_blocks")
            if features % blocks:
                near = numbers_that_divide(nearest_divisors(features, blocks))
                raise ValueError(f"{side}_blocks is {blocks}; it must divide {side}_features={features}, as {near}.")
        if self.rank > min(self.in_size, self.out_size):
            raise ValueError(
                f"rank is {self.rank}; a block of {self.in_size} by {self.out_size} allows at most "
                f"{min(self.in_size, self.out_size)}."
            )

    @property
    def in_size(self) -> int:
        """n, the input features of a block."""
        return self.in_features // self.in_blocks

    @property
    def out_size(self) -> int:
        """m, the output features of a block."""
        return self.out_features // self.out_blocks

    @property
    def parameter_count(self) -> int:
        """Entries of both cores, r·(N·I + M·J)."""
        return self.rank * (self.in_features * self.out_blocks + self.out_features * self.in_blocks)

    @property
    def dense_count(self) -> int:
        """N·M."""
        return self.in_features * self.out_features

    @property
    def ratio(self) -> float:
        """The dense weight's entries over those of the cores."""
        return self.dense_count / self.parameter_count

    @property
    def flops_per_row(self) -> int:
        """Forward FLOPs per row of activations; dense: 2·N·M."""
        return 2 * self.parameter_count

    @property
    def middle_size(self) -> int:
        """Numbers per row between the two products, I·J·r."""
        return self.in_blocks * self.out_blocks * self.rank

    @property
    def rank_limit(self) -> int:
        """The highest rank that the whole weight can have, min(N, M, I·J·r)."""
        return min(self.in_features, self.out_features, self.middle_size)

    @property
    def core_shapes(self) -> dict[str, tuple[int, ...]]:
        """(J, n, r, I) and (I, J·r, m)."""
        return {
            "in_core": (self.in_blocks, self.in_size, self.rank, self.out_blocks),
            "out_core": (self.out_blocks, self.in_blocks * self.rank, self.out_size),
        }

    @property
    def normal_std(self) -> float:
        """Standard deviation of core entries with which those of the weight have variance 1/(N + M)."""
        return float(self.rank * (self.in_features + self.out_features)) ** -0.25

    def as_first_core(self, saved: torch.Tensor) -> torch.Tensor:
        """Return a saved first core as (J, n, r, I), which versions up to 0.2.0 saved as (J, n, I·r)."""
        if saved.shape != (self.in_blocks, self.in_size, self.out_blocks * self.rank):
            return saved
        return saved.unflatten(2, (self.out_blocks, self.rank)).transpose(2, 3).contiguous()

    def __str__(self) -> str:
        blocks = f"{self.out_blocks} x {self.in_blocks} blocks of {self.out_size} by {self.in_size}, rank {self.rank}"
        return "\n".join(
            [
                f"BTT linear layer {self.in_features} → {self.out_features}",
                f"  blocks      {blocks}",
                f"  parameters  {self.parameter_count:,}; dense {self.dense_count:,}; no bias in either",
                f"  ratio       {self.ratio:.4g}",
                f"  FLOPs       {self.flops_per_row:,} per row forward; dense {2 * self.dense_count:,}",
                f"  between     {self.middle_size:,} numbers per row",
            ]
        )


def nearest_divisors(number: int, to: int) -> list[int]:
    """Return the divisors of a number next below and next above another number.

    Example:
        >>> nearest_divisors(12, to=5), nearest_divisors(12, to=20)
        ([4, 6], [12])
    """
    below = [divisor for divisor in divisors(number) if divisor < to][-1:]
    return below + [divisor for divisor in divisors(number) if divisor > to][:1]


def numbers_that_divide(near: Sequence[int]) -> str:
    """Return the end of a sentence on what must divide.

    Example:
        >>> numbers_that_divide([4, 6]), numbers_that_divide([6])
        ('4 or 6 do', '6 does')
    """
    return " or ".join(map(str, near)) + (" do" if len(near) > 1 else " does")


def balanced_blocks(in_features: int, out_features: int, rank: int) -> BTTShape:
    """Return the shape whose groups are about as many as they have features: J ≈ n and I ≈ m.

    The rank is cut to that of a whole block.

    Example:
        >>> shape = balanced_blocks(768, 3072, rank=2)
        >>> shape.in_blocks, shape.in_size, shape.out_blocks, shape.out_size
        (24, 32, 48, 64)
    """
    in_features, out_features = check_size("in_features", in_features), check_size("out_features", out_features)
    rank = check_size("rank", rank)
    in_size, in_blocks = balanced_modes(in_features, 2)
    out_size, out_blocks = balanced_modes(out_features, 2)
    return BTTShape(in_features, out_features, in_blocks, out_blocks, min(rank, in_size, out_size))


def solve_blocks(
    in_features: int,
    out_features: int,
    ratio: float,
    rank: int | None = None,
    blocks: tuple[int, int] | None = None,
) -> BTTShape:
    """Find blocks with which the cores have ``ratio`` times fewer entries than the dense weight.

    Of the shapes within 2 % of the wanted size, or else nearest to it, those with the highest possible rank of the
    whole weight are taken, of these the one with the fewest blocks, then the one whose blocks are nearest to squares.
    A square weight has full rank with about 2·ratio by 2·ratio blocks. Few blocks make large products, and few numbers
    between them.

    Args:
        in_features, out_features: N and M.
        ratio: wanted, above 0.
        rank: r; None: the one that the size asks for.
        blocks: J and I, the input and output groups; None: the solver chooses.

    Raises:
        ValueError: a ratio that is no finite number above 0, a rank below 1, or blocks that do not divide the features.
        OutOfReach: no shape comes within a quarter of the wanted size; the sentence has the nearest ratio.

    Example:
        >>> shape = solve_blocks(128, 512, ratio=4)
        >>> shape.in_blocks, shape.out_blocks, shape.rank, shape.ratio
        (2, 8, 8, 4.0)
    """
    in_features, out_features = check_size("in_features", in_features), check_size("out_features", out_features)
    ratio = check_number("ratio", ratio, "a finite number above 0", lambda value: value > 0)
    if rank is not None:
        rank = check_size("rank", rank)
    if blocks is not None:
        if not isinstance(blocks, Sequence) or isinstance(blocks, str) or len(blocks) != 2:
            raise ValueError(f"blocks is {blocks!r}; it must be two whole numbers, the input and the output groups.")
        blocks = blocks[0], blocks[1]
        BTTShape(in_features, out_features, *blocks, rank=1)  # checks them
    within = min(max(ratio, 1 / _FARTHEST), _FARTHEST)  # beyond, all shapes are as far away
    shape = nearest_blocks(in_features, out_features, within, rank, blocks)
    if abs(math.log(shape.ratio / ratio)) > math.log(1.25):
        wishes = ("" if rank is None else f" of rank {rank}") + ("" if blocks is None else f" with blocks={blocks}")
        raise OutOfReach(
            f"ratio={ratio:g} is out of reach of a block tensor train {in_features} → {out_features}{wishes}; "
            f"the nearest is {shape.ratio:.4g}."
        )
    return shape


@functools.lru_cache(maxsize=1024)
def nearest_blocks(
    in_features: int,
    out_features: int,
    ratio: float,
    rank: int | None = None,
    blocks: tuple[int, int] | None = None,
) -> BTTShape:
    """Find blocks as :func:`solve_blocks` does, however far from the wanted size the nearest ones are.

    Example:
        >>> nearest_blocks(7, 13, ratio=100).ratio
        4.55
    """
    wanted, widest = in_features * out_features / ratio, max(in_features, out_features)
    if blocks is None:
        ins, outs = (_divisors_near(size, 2 * ratio * size / widest) for size in (in_features, out_features))
    else:
        ins, outs = [blocks[0]], [blocks[1]]
    best: tuple[tuple[float, ...], tuple[int, int, int]] | None = None
    for in_blocks in ins:
        for out_blocks in outs:
            limit = min(in_features // in_blocks, out_features // out_blocks)
            per_rank = in_features * out_blocks + out_features * in_blocks
            below = min(max(int(wanted / per_rank), 1), limit)
            for each in {below, min(below + 1, limit)} if rank is None else {rank} if rank <= limit else ():
                error = abs(math.log(each * per_rank / wanted))
                middle = in_blocks * out_blocks * each
                key = (
                    max(error, math.log1p(_NEAR)),
                    -min(in_features, out_features, middle),
                    in_blocks * out_blocks,
                    abs(math.log(in_features * out_blocks / (in_blocks * out_features))),
                    error,
                )
                if best is None or key < best[0]:
                    best = key, (in_blocks, out_blocks, each)
    if best is None:
        raise OutOfReach(f"rank is {rank}; no block of a weight {in_features} → {out_features} has that rank.")
    return BTTShape(in_features, out_features, *best[1])


def _divisors_near(number: int, to: float) -> list[int]:
    """Return the divisors of a number, of more than :data:`_DIVISORS` those nearest to another number."""
    return sorted(sorted(divisors(number), key=lambda each: abs(math.log(each / to)))[:_DIVISORS])
