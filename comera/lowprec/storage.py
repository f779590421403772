"""Activations kept in FP8 (e4m3), with a factor per block of consecutive entries.

A kept activation is read once more, in backward, so it costs its bytes and little else: in FP8 they are half of
BF16's. Blocks are of what lies together in memory, whatever the layout, so a view of the tensor is one of what was
kept. Half a unit in the last place is 1/16 of a number at most; below 2⁻⁶/448 of the largest in its block a number is
subnormal and coarser than that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

from comera.lowprec.scaling import FORWARD, Quantized, quantize

#: Entries of a block: a factor of four bytes for each adds 3 % to the bytes.
BLOCK = 128

#: Where errors of what is stored are noted; see :func:`recorded_errors`.
_recorders: list[list[dict[str, Any]]] = []


class InBlocks:
    """A tensor's storage in FP8.

    Args:
        tensor: of float32, bfloat16 or float16, that holds its storage whole.
        what: what it is, for :func:`recorded_errors`.

    Example:
        >>> x = torch.randn(4, 3, 128)
        >>> kept = InBlocks(x.transpose(0, 1))
        >>> back = kept.tensor(torch.float32).as_strided(x.shape, x.stride())
        >>> float((back - x).norm() / x.norm()) < 0.04
        True
        >>> kept.nbytes / x.nbytes < 0.27
        True
    """

    def __init__(self, tensor: torch.Tensor, what: str = "") -> None:
        flat = _whole_storage(tensor)
        self._entries = flat.numel()
        padding = -self._entries % BLOCK
        blocks = (F.pad(flat, (0, padding)) if padding else flat).view(-1, BLOCK)
        self._kept: Quantized = quantize(blocks, FORWARD, "row")
        if _recorders:
            exact = flat.float()
            lost = (self.tensor(torch.float32) - exact).norm() / exact.norm().clamp(min=1e-30)
            row = {"what": what, "shape": list(tensor.shape), "error": float(lost), "mib": self.nbytes / 2**20}
            for rows in _recorders:
                rows.append(row)

    @staticmethod
    def can_keep(tensor: torch.Tensor) -> bool:
        """Return whether a tensor can be stored so: floating, wider than FP8, the only one of its storage."""
        wide = tensor.is_floating_point() and tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
        return wide and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()

    @property
    def nbytes(self) -> int:
        """Bytes of values and factors."""
        return self._kept.values.nbytes + self._kept.scale.nbytes

    def tensor(self, dtype: torch.dtype) -> torch.Tensor:
        """Return all entries in the order of memory, (entries,), rounded to ``dtype``."""
        return self._kept.dequantized().view(-1)[: self._entries].to(dtype)


def _whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().as_strided((tensor.numel(),), (1,), 0)


@contextlib.contextmanager
def recorded_errors() -> Iterator[list[dict[str, Any]]]:
    """Note the error of every tensor that is stored in FP8 within the block, in the order in which they are.

    Rows have ``what``, ``shape``, ``error`` (relative, in the Euclidean norm) and ``mib`` (of what is kept). It waits
    for the device at each of them, so it is for looking at a step, not for training.

    Example:
        >>> with recorded_errors() as rows:
        ...     _ = InBlocks(torch.ones(2, 128), "x")
        >>> [(row["what"], row["shape"], row["error"]) for row in rows]
        [('x', [2, 128], 0.0)]
    """
    rows: list[dict[str, Any]] = []
    _recorders.append(rows)
    try:
        yield rows
    finally:
        _recorders[:] = [one for one in _recorders if one is not rows]
