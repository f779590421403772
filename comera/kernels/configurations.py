"""Tile sizes that the kernels are tuned over, by arithmetic and rank."""

from __future__ import annotations

from typing import NamedTuple

import torch

#: Rows and columns of a tile, by the names that kernels have for them.
Tile = dict[str, int]


class Configuration(NamedTuple):
    """Compile-time settings of a kernel: rows and columns of a tile, warps, stages of its loop's loads."""

    block_m: int
    block_n: int
    warps: int
    stages: int


#: Ranks that tiles are padded to.
PADDED_RANKS = (32, 64, 128)

#: Most bits of a row of a rank-wide tile in a program: rank 128 in 16 bits, rank 64 in 32.
_MOST_BITS = 128 * 16


def padded_rank(*ranks: int) -> int | None:
    """Return the size of tiles that hold these ranks, or None.

    >>> padded_rank(30, 12), padded_rank(30, 33), padded_rank(129)
    (32, 64, None)
    """
    return next((padded for padded in PADDED_RANKS if max(ranks) <= padded), None)


def arithmetic(dtype: torch.dtype) -> str | None:
    """Return how the kernels multiply numbers of a type, or None. FP32 products are in TF32 where torch's may be.

    FP16 shares the table of BF16, whose instructions are of the same sizes.

    >>> arithmetic(torch.bfloat16), arithmetic(torch.float64)
    ('bf16', None)
    """
    if dtype == torch.float32:
        return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "fp32"
    return "bf16" if dtype in (torch.bfloat16, torch.float16) else None


def candidates(kind: str, padded: int) -> tuple[Configuration, ...]:
    """Return the configurations to try for a kind of arithmetic at a padded rank.

    FP32 products run on CUDA cores, which take smaller tiles. So do the widest ranks, which fill the registers; numbers
    of 32 bits at rank 128 are left to cuBLAS.
    """
    bits = padded * (16 if kind == "bf16" else 32)
    if bits > _MOST_BITS:
        return ()
    if kind == "fp32":
        return _CUDA_CORES
    return tuple(one for one in _TENSOR_CORES if bits < _MOST_BITS or max(one.block_m, one.block_n) <= 64)


_TENSOR_CORES = tuple(
    Configuration(*numbers)
    for numbers in (
        *((16, 64, 4, 2), (16, 128, 4, 2), (32, 64, 4, 2), (64, 32, 4, 2), (64, 64, 4, 2), (64, 64, 4, 3)),
        *((64, 128, 8, 2), (128, 32, 4, 2), (128, 64, 8, 2), (128, 64, 8, 3)),
    )
)

_CUDA_CORES = tuple(
    Configuration(*numbers)
    for numbers in (
        *((16, 16, 4, 2), (16, 32, 4, 2), (32, 16, 4, 2), (32, 32, 4, 2)),
        *((32, 32, 8, 2), (64, 16, 8, 2), (64, 32, 8, 2), (128, 16, 8, 2)),
    )
)
