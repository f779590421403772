"""The sizes of a block tensor train, and the solver for those that make a layer a wanted number of times smaller."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from comera.compatibility.arguments import check_number
from comera.modes import balanced_modes, check_size, divisors
from comera.protocol import OutOfReach

#: Ranks in the sequence in which :func:`solve_blocks` tries them.
RANKS = (2, 1, 4, 3, 8, 6, 5, 7)

#: How near a solution's size must come to the wanted one for its rank to be taken.
_NEAR = 0.02


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
                near = " or ".join(map(str, _nearest_divisors(features, blocks)))
                raise ValueError(f"{side}_blocks is {blocks}; it must divide {side}_features={features}, as {near} do.")
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
    def core_shapes(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """(J, n, I·r) and (I, J·r, m)."""
        first = (self.in_blocks, self.in_size, self.out_blocks * self.rank)
        return first, (self.out_blocks, self.in_blocks * self.rank, self.out_size)

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


def _nearest_divisors(number: int, to: int) -> list[int]:
    below = [divisor for divisor in divisors(number) if divisor < to][-1:]
    return below + [divisor for divisor in divisors(number) if divisor > to][:1]


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


def solve_blocks(in_features: int, out_features: int, ratio: float, rank: int | None = None) -> BTTShape:
    """Find blocks with which the cores have ``ratio`` times fewer entries than the dense weight.

    Of the shapes whose size is within 2 % of the wanted one, or as near as any, the one is taken in which input groups
    and output groups differ least in number, as do the two sides of a block.

    Args:
        in_features, out_features: N and M.
        ratio: wanted, above 0.
        rank: r; None: the first of :data:`RANKS` that comes within 2 %, or the one that comes nearest.

    Raises:
        ValueError: a ratio that is no finite number above 0, or a rank below 1.
        OutOfReach: no blocks come within a quarter of the wanted size; the sentence has the nearest ratio.

    Example:
        >>> shape = solve_blocks(128, 512, ratio=4)
        >>> shape.in_blocks, shape.out_blocks, shape.rank, shape.ratio
        (8, 32, 2, 4.0)
    """
    in_features, out_features = check_size("in_features", in_features), check_size("out_features", out_features)
    ratio = check_number("ratio", ratio, "a finite number above 0", lambda value: value > 0)
    if rank is not None:
        rank = check_size("rank", rank)
    return _solve_blocks(in_features, out_features, ratio, rank)


@functools.lru_cache(maxsize=1024)
def _solve_blocks(in_features: int, out_features: int, ratio: float, rank: int | None) -> BTTShape:
    found: list[tuple[float, BTTShape]] = []
    for each in RANKS if rank is None else (rank,):
        candidates = _near(in_features, out_features, each, ratio)
        if not candidates:
            continue
        best = min(candidates, key=lambda candidate: imbalance(candidate[1]))
        found.append(best)
        if best[0] <= math.log1p(_NEAR):
            return best[1]
    if not found:
        raise OutOfReach(f"rank is {rank}; no block of a weight {in_features} → {out_features} has that rank.")
    error, shape = min(found, key=lambda each: each[0])
    if error > math.log(1.25):
        raise OutOfReach(
            f"ratio={ratio:g} is out of reach of a block tensor train {in_features} → {out_features}"
            f"{'' if rank is None else f' of rank {rank}'}; the nearest is {shape.ratio:.4g}."
        )
    return shape


def _near(in_features: int, out_features: int, rank: int, ratio: float) -> list[tuple[float, BTTShape]]:
    """Return the shapes of a rank whose size is within 2 % of the wanted one, or nearest to it, with the log of that.

    For each number of input groups the size grows with the number of output groups, so that few of these are looked at.
    """
    ins = [blocks for blocks in divisors(in_features) if in_features // blocks >= rank]
    outs = [blocks for blocks in divisors(out_features) if out_features // blocks >= rank]
    wanted = in_features * out_features / ratio / rank

    def error_of(in_blocks: int, out_blocks: int) -> float:
        count = rank * (in_features * out_blocks + out_features * in_blocks)
        return abs(math.log(in_features * out_features / count / ratio))

    def places(in_blocks: int, share: float) -> tuple[int, int]:
        """Return the places of output groups from ``wanted/share`` on and behind ``wanted·share``, in size."""
        rest = out_features * in_blocks
        return (
            bisect.bisect_left(outs, (wanted / share - rest) / in_features),
            bisect.bisect_right(outs, (wanted * share - rest) / in_features),
        )

    least = math.log1p(_NEAR)
    errors = []
    for in_blocks in ins:
        first, _ = places(in_blocks, 1.0)
        errors += [error_of(in_blocks, out_blocks) for out_blocks in outs[max(first - 2, 0) : first + 2]]
    if not errors:
        return []
    least = max(min(errors), least)
    found = []
    for in_blocks in ins:
        first, last = places(in_blocks, math.exp(least) * (1 + 1e-9))
        for out_blocks in outs[max(first - 1, 0) : last + 1]:
            if (error := error_of(in_blocks, out_blocks)) <= least:
                found.append((error, BTTShape(in_features, out_features, in_blocks, out_blocks, rank)))
    return found


def block_shapes(in_features: int, out_features: int, rank: int | None = None) -> Iterator[BTTShape]:
    """Return every shape of a layer with blocks of a rank, or of any of :data:`RANKS`.

    Example:
        >>> [(shape.in_blocks, shape.out_blocks) for shape in block_shapes(4, 2, rank=2)]
        [(1, 1), (2, 1)]
    """
    for each in RANKS if rank is None else (rank,):
        for in_blocks in divisors(in_features):
            for out_blocks in divisors(out_features):
                if each <= min(in_features // in_blocks, out_features // out_blocks):
                    yield BTTShape(in_features, out_features, in_blocks, out_blocks, each)


def imbalance(shape: BTTShape) -> float:
    """Measure how far a shape is from blocks that are square, in a square of blocks; 0 where it is both.

    Example:
        >>> imbalance(BTTShape(16, 16, 4, 4, 1)), round(imbalance(BTTShape(16, 16, 8, 4, 1)), 2)
        (0.0, 1.39)
    """
    return abs(math.log(shape.in_size / shape.out_size)) + abs(math.log(shape.in_blocks / shape.out_blocks))
