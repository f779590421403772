"""Bytes that each rank sends per step, by the rule of its exchange of gradients.

* ``ddp``: gradients as they are. GaLore's travel whole too: they are projected behind the exchange.
* ``powersgd_R`` (Vogels, Karimireddy and Jaggi, 2019, as torch's ``powerSGD_hook``): a matrix of m x n becomes m x R
  and n x R where (m + n) R 2 < m n, all else travels as it is.
* ``fsdp2`` (torch's ``fully_shard`` of every block and of the whole model): all parameters are gathered for forward,
  those of blocks again for backward, and gradients are reduced and scattered. Parameters outside blocks belong to the
  root, which stays gathered between forward and backward (``reshard_after_forward=None``). Frozen parameters are
  gathered as well. A first dimension that the ranks do not divide is padded. Tensor-train cores, whose first dimension
  is 1, stay replicated and are all-reduced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: Kind of a parameter for the exchange: "matrix" and "vector" take part in products, a "table" is looked into, a "core"
#: is one of a tensor train.
Kind = Literal["matrix", "vector", "table", "core"]

_FP32 = 4

#: A collective: its name, and the bytes of the whole that it reduces, gathers or scatters.
Collective = tuple[Literal["all_reduce", "gather"], float]


@dataclass(frozen=True)
class Tensor:
    """A parameter, as an exchange sees it.

    Args:
        shape: its dimensions.
        kind: its part in the model.
        in_block: whether it belongs to a block of the model, which FSDP2 shards by itself.
        trained: whether it has a gradient.
        width: bytes of a number of it and of its gradient.
    """

    shape: tuple[int, ...]
    kind: Kind = "matrix"
    in_block: bool = False
    trained: bool = True
    width: int = _FP32

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.width * self.numbers

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns as PowerSGD takes a tensor of two dimensions or more: all but the first are columns."""
        rows = self.shape[0] if self.shape else 1
        return rows, self.numbers // max(rows, 1)

    def compressed(self, rank: int) -> bool:
        """Return whether PowerSGD of that rank compresses it, by torch's rule.

        >>> Tensor((768, 768)).compressed(32), Tensor((1, 8, 30)).compressed(4), Tensor((768,), "vector").compressed(1)
        (True, False, False)
        """
        rows, columns = self.sides
        return len(self.shape) > 1 and (rows + columns) * rank * 2 < rows * columns

    def padded(self, ranks: int) -> int:
        """Return its bytes with as many rows added as make equal shards, which FSDP2 gathers and scatters.

        >>> Tensor((3, 5)).padded(2), Tensor((4, 5)).padded(2)
        (80, 80)
        """
        rows, columns = self.sides
        return self.width * math.ceil(rows / ranks) * ranks * columns


def powersgd_rank(exchange: str) -> int | None:
    """Return the rank in the name of an exchange; None for others.

    >>> powersgd_rank("powersgd_4"), powersgd_rank("ddp")
    (4, None)
    """
    head, _, rank = exchange.rpartition("_")
    return int(rank) if head == "powersgd" and rank.isdigit() else None


def powersgd_parts(tensors: Sequence[Tensor], rank: int) -> tuple[int, int, int]:
    """Return the bytes of gradients that travel uncompressed, of the factors P, and of the factors Q.

    >>> powersgd_parts([Tensor((100, 200)), Tensor((7,), "vector")], 4)
    (28, 1600, 3200)
    """
    plain = p = q = 0
    for tensor in tensors:
        if tensor.compressed(rank):
            rows, columns = tensor.sides
            p, q = p + tensor.width * rank * rows, q + tensor.width * rank * columns
        else:
            plain += tensor.bytes
    return plain, p, q


def collectives(tensors: Sequence[Tensor], exchange: str, ranks: int) -> list[Collective]:
    """Return the collectives of one exchange of these parameters' gradients, one after another.

    >>> collectives([Tensor((6, 2)), Tensor((4, 2), in_block=True)], "fsdp2", ranks=2)
    [('gather', 80), ('gather', 32), ('gather', 80), ('all_reduce', 0)]
    """
    trained = [one for one in tensors if one.trained]
    if exchange == "fsdp2":
        shards = [one for one in tensors if one.kind != "core"]
        return [
            ("gather", sum(one.padded(ranks) for one in shards)),  # parameters, for forward
            ("gather", sum(one.padded(ranks) for one in shards if one.in_block)),  # and for backward
            ("gather", sum(one.padded(ranks) for one in shards if one.trained)),  # gradients, which are scattered
            ("all_reduce", sum(one.bytes for one in trained if one.kind == "core")),
        ]
    if rank := powersgd_rank(exchange):
        return [("all_reduce", size) for size in powersgd_parts(trained, rank)]
    return [("all_reduce", sum(one.bytes for one in trained))]


def sent_bytes(tensors: Sequence[Tensor], exchange: str, ranks: int) -> float:
    """Return the bytes that each rank sends per step, by the rule of the exchange.

    The estimate and the column ``sent_analytic_mib`` of measured steps both use this function.

    Args:
        tensors: the parameters of the model, frozen ones included.
        exchange: a name as in records.
        ranks: how many.

    >>> sent_bytes([Tensor((1024, 1024))], "ddp", ranks=4)
    6291456.0
    """
    return sum(_sent(one, ranks) for one in collectives(tensors, exchange, ranks))


def _sent(collective: Collective, ranks: int) -> float:
    """Return the bytes that each rank sends for a collective, by any algorithm that is optimal in bandwidth."""
    name, size = collective
    return {"all_reduce": 2, "gather": 1}[name] * (ranks - 1) / ranks * size
