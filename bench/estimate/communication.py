"""Time of a training step on n ranks, on paper: what each exchange of gradients sends, over which link, beside what.

The model. A rank's step without exchange takes ``compute_ms``: a third of it is forward, two thirds backward, which has
twice the products. Backward gives the gradients in the reverse order of the parameters, each matrix after a share of it
in proportion to its size; the gradient of a table that is looked into comes at no time of its own. Distributed data
parallelism (DDP) sends buckets, of 1 MiB at first, then of 25 MiB: a bucket is on its way when its last gradient is
there and the bucket before it has arrived. The step ends when both backward and the last bucket are done, so that

    max(compute, communication)  <=  step  <=  compute + communication

and the lower end is what large models reach, while a model whose gradients all fit into one bucket hides nothing.

A message of S bytes takes, at a goodput of B bytes per second and a latency of a per hop,

* all-reduce: 2 (n-1)/n S/B + the lesser of 2 (n-1) a (a ring) and 2 ceil(log2 n) a (a double binary tree, Sanders,
  Speck and Traeff, Parallel Computing 35, 2009), since NCCL has both and takes the better one;
* all-gather and reduce-scatter: (n-1)/n S/B + ceil(log2 n) a, as NCCL from 2.23 on;
* all-to-all of what a rank holds for the others: (n-1)/n S/B + a, as if all messages were on their way together.

Exchanges, by the names that records have:

* ``ddp``: gradients in FP32. GaLore's travel whole too: they are projected behind the exchange.
* ``ddp_bf16``: in BF16, half of the bytes; both casts pass over the gradient once.
* ``powersgd_R`` (Vogels, Karimireddy and Jaggi, 2019, as torch's ``powerSGD_hook``): a matrix of m x n becomes m x R
  and n x R where (m + n) R 2 < m n, all else travels as it is. A bucket takes three all-reduces, of what is not
  compressed, of P and of Q, of which the last waits for the one before. Its arithmetic is priced, at a device's rated
  values: three products of 2 m n R operations and an orthogonalisation of 2 m R^2, and ten passes over a
  gradient-sized buffer, for the sum with the error of the last step, the products' reading, and the error's renewal.
  On CPUs, under gloo, backward stands still while its messages travel (``overlaps=False``).
* ``fsdp2`` (torch's ``fully_shard`` of every block and of the whole model): all parameters are gathered for forward,
  those of blocks again for backward, and gradients are reduced and scattered. Parameters outside blocks belong to the
  root, which stays gathered between forward and backward (``reshard_after_forward=None``). Frozen parameters are
  gathered as well. A first dimension that the ranks do not divide is padded. Tensor-train cores, whose first dimension
  is 1, stay replicated and are all-reduced. All of it is prefetched: max(compute, communication).
* ``local_steps`` (as DiLoCo): the parameters are averaged once in K steps, beside nothing.

A recommender's dense tables do not fit on every rank and are sharded by table: rows are exchanged all-to-all in forward
and their gradients in backward, between which nothing overlaps; only its other parameters are all-reduced. Compressed
tables are replicated: no all-to-all, and their cores are all-reduced with the rest.

Not modelled: ranks that wait for the slowest, congestion, what copying and summing take of processors and memory, and
the start of each collective. Latencies of NCCL's links are those of its quickest protocol, LL, which it takes for small
messages; large ones hardly have any. Both favour whoever sends many small messages: PowerSGD, not CoMERA.

This module imports no torch, so that figures can draw the model from records.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

#: Kind of a parameter for the exchange: "matrix" and "vector" take part in products, a "table" is looked into, a "core"
#: is one of a tensor train.
Kind = Literal["matrix", "vector", "table", "core"]

#: Share of a step before backward begins.
FORWARD = 1 / 3

#: Sizes of DDP's first bucket and of the others, in bytes (torch.nn.parallel.DistributedDataParallel).
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20

#: Passes of PowerSGD over a gradient-sized buffer of FP32, and of the two casts of BF16 in passes of FP32.
_POWERSGD_PASSES, _BF16_PASSES = 10.0, 3.0

_FP32, _BF16, _MIB = 4, 2, 2**20

#: A collective: its name, and the bytes of the whole that it reduces, gathers or scatters.
Collective = tuple[Literal["all_reduce", "gather"], float]


@dataclass(frozen=True)
class Link:
    """Full-duplex link that joins each rank to the others.

    Args:
        words: what people call it.
        gbit: rated, per rank and direction, in Gbit/s (10^9 bits).
        latency_us: of a hop of a collective, in microseconds.
        share: of the rated bits those that carry gradients.
        most_ranks: that it can join.
        source: of these numbers; what is assumed is called so.
    """

    words: str
    gbit: float
    latency_us: float
    share: float = 1.0
    most_ranks: int = 1024
    source: str = ""

    @property
    def goodput(self) -> float:
        """Bytes of gradients per second.

        >>> Link("", 8, 0.0, share=0.5).goodput
        500000000.0
        """
        return self.gbit * 1e9 / 8 * self.share

    def at(self, gbit: float) -> Self:
        """Return the same link at another rate."""
        return replace(self, gbit=gbit)


#: Share of an Ethernet frame (1,538 bytes with preamble and gap at an MTU of 1,500) that TCP delivers.
_TCP = 1448 / 1538

_TCP_LATENCY = "latency assumed, of the kernel's TCP"
_NCCL = "latency as NCCL's tuner has it for protocol LL"

#: By the name that a command takes. A port of its own for every rank is assumed throughout.
LINKS: Mapping[str, Link] = {
    "ethernet_1": Link("Ethernet, 1 Gbit/s", 1, 30, _TCP, source=f"IEEE 802.3ab; {_TCP_LATENCY}"),
    "ethernet_10": Link("Ethernet, 10 Gbit/s", 10, 30, _TCP, source=f"IEEE 802.3ae; {_TCP_LATENCY}"),
    "ethernet_25": Link("Ethernet, 25 Gbit/s", 25, 30, _TCP, source=f"IEEE 802.3by; {_TCP_LATENCY}"),
    "ethernet_100": Link("Ethernet, 100 Gbit/s", 100, 5, 4096 / 4174, source=f"IEEE 802.3ba, with RoCE v2; {_NCCL}"),
    "infiniband": Link(
        "InfiniBand NDR, 400 Gbit/s",
        400,
        5,
        4096 / 4126,
        source=f"data sheet of NVIDIA ConnectX-7; {_NCCL}",
    ),
    "nvlink": Link(
        "NVLink 4, 3,600 Gbit/s",
        3600,
        0.6,
        0.8,
        256,
        "data sheet of NVIDIA H100, 900 GB/s in both directions together; up to 256 GPUs by NVLink switches; of them "
        f"80 % assumed, as NCCL counts on 360 of 450 GB/s; {_NCCL}",
    ),
}


def shaped(mbit: float | None, share: float, latency_us: float = 50.0) -> Link:
    """Return a link between two namespaces of one machine (:mod:`bench.distributed.links`).

    Its latency is assumed: what gloo takes for a message between two processes on one machine.
    """
    gbit = math.inf if mbit is None else mbit / 1e3
    return Link("not limited" if mbit is None else f"{mbit:g} Mbit/s", gbit, latency_us, share)


def all_reduce_s(size: float, ranks: int, link: Link) -> float:
    """Return the seconds of an all-reduce of so many bytes.

    >>> all_reduce_s(1e9, 4, Link("", 8, 100.0)) # 1.5 s of bytes and 2 * 2 hops
    1.5004
    """
    if ranks == 1 or not size:
        return 0.0
    hops = min(2 * (ranks - 1), 2 * math.ceil(math.log2(ranks)))
    return _sent(("all_reduce", size), ranks) / link.goodput + hops * link.latency_us * 1e-6


def gather_s(size: float, ranks: int, link: Link) -> float:
    """Return the seconds of an all-gather or reduce-scatter of so many bytes in all.

    >>> gather_s(1e9, 4, Link("", 8, 100.0))
    0.7502
    """
    if ranks == 1 or not size:
        return 0.0
    return _sent(("gather", size), ranks) / link.goodput + math.ceil(math.log2(ranks)) * link.latency_us * 1e-6


def all_to_all_s(size: float, ranks: int, link: Link) -> float:
    """Return the seconds of an all-to-all in which each rank has so many bytes, an equal part for every rank.

    >>> all_to_all_s(1e9, 4, Link("", 8, 100.0))
    0.7501
    """
    if ranks == 1 or not size:
        return 0.0
    return (ranks - 1) / ranks * size / link.goodput + link.latency_us * 1e-6


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

    @property
    def work(self) -> int:
        """Its part in backward, in no particular unit."""
        return 0 if self.kind == "table" or not self.trained else self.numbers

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


def rows_of(tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return what a record's samples hold of parameters; :func:`tensors_of` reads it.

    >>> rows_of([Tensor((9, 4), "table")])
    [{'shape': [9, 4], 'kind': 'table', 'in_block': False, 'trained': True, 'width': 4}]
    """
    return [{**asdict(one), "shape": list(one.shape)} for one in tensors]


def tensors_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Tensor, ...]:
    """Return the parameters in a record's samples; those of older code hold ``shape`` and ``kind`` of trained ones."""
    return tuple(Tensor(**{**row, "shape": tuple(row["shape"])}) for row in rows)


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
    widest = _BF16 if exchange == "ddp_bf16" else math.inf
    return [("all_reduce", sum(min(one.width, widest) * one.numbers for one in trained))]


def sent_bytes(tensors: Sequence[Tensor], exchange: str, ranks: int, local_steps: int = 1) -> float:
    """Return the bytes that each rank sends per step, by the rule of the exchange.

    The estimate and the column ``sent_analytic_mib`` of measured steps both use this function.

    Args:
        tensors: the parameters of the model, frozen ones included.
        exchange: a name as in records.
        ranks: how many.
        local_steps: steps from one exchange to the next; 1 but for ``local_steps``.

    >>> sent_bytes([Tensor((1024, 1024))], "ddp", ranks=4)
    6291456.0
    """
    return sum(_sent(one, ranks) for one in collectives(tensors, exchange, ranks)) / local_steps


def _sent(collective: Collective, ranks: int) -> float:
    """Return the bytes that each rank sends for a collective, by any algorithm that is optimal in bandwidth."""
    name, size = collective
    return {"all_reduce": 2, "gather": 1}[name] * (ranks - 1) / ranks * size


@dataclass(frozen=True)
class RatedMachine:
    """Rated values at which a rank does the exchange's arithmetic: operations and bytes of memory per second."""

    operations: float = math.inf
    bytes: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Training:
    """An arm's step on each of n ranks.

    Args:
        tensors: its parameters in the order of forward.
        compute_ms: a rank's step without exchange.
        exchange: a name as in records.
        machine: what prices the exchange's arithmetic; the default has it for nothing.
        extra_ms: more that the exchange takes of a rank's processor per step, such as measured.
        local_steps: K of ``local_steps``.
        rows_mib: of a recommender's sharded tables: bytes of rows that a rank looks up per step, in MiB. Its tables are
            then no part of the all-reduce. 0 where tables are replicated.
        bucket: bytes of a bucket; None for those of DDP.
        overlaps: whether buckets travel while backward computes.
    """

    tensors: tuple[Tensor, ...]
    compute_ms: float
    exchange: str = "ddp"
    machine: RatedMachine = RatedMachine()
    extra_ms: float = 0.0
    local_steps: int = 1
    rows_mib: float = 0.0
    bucket: int | None = None
    overlaps: bool = True

    @functools.cached_property
    def replicated(self) -> tuple[Tensor, ...]:
        """The parameters that every rank needs."""
        return tuple(one for one in self.tensors if not (self.rows_mib and one.kind == "table"))

    @functools.cached_property
    def exchanged(self) -> tuple[Tensor, ...]:
        """The parameters whose gradients every rank needs."""
        return tuple(one for one in self.replicated if one.trained)

    @property
    def gradient_mib(self) -> float:
        """MiB of the parameters whose gradients every rank needs."""
        return sum(one.bytes for one in self.exchanged) / _MIB

    @property
    def busy_ms(self) -> float:
        """Computation of a rank per step, in ms: the step, and the exchange's arithmetic."""
        return self.compute_ms + self.extra_ms + self._arithmetic_s * 1e3

    def sent_mib(self, ranks: int) -> float:
        """Return the MiB that each rank sends per step.

        >>> Training(tensors=(Tensor((1024, 1024)),), compute_ms=1.0).sent_mib(4)
        6.0
        """
        rows = 2 * (ranks - 1) / ranks * self.rows_mib
        return sent_bytes(self.replicated, self.exchange, ranks, self._period) / _MIB + rows

    def communication_ms(self, ranks: int, link: Link) -> float:
        """Return the time of all messages of a step, one after another."""
        return 1e3 * (sum(self._exchanges_s(ranks, link)) + self._rows_s(ranks, link))

    def step_ms(self, ranks: int, link: Link) -> float:
        """Return the step with its exchange, by the model of this module."""
        busy = self.busy_ms / 1e3
        if ranks == 1:
            return self.compute_ms
        times = list(self._exchanges_s(ranks, link))
        rows = self._rows_s(ranks, link)
        if self.exchange == "local_steps" or not self.overlaps:
            return 1e3 * (busy + sum(times) + rows)
        if self.exchange == "fsdp2":
            return 1e3 * (max(busy, sum(times)) + rows)
        done = 0.0
        for ready, time in zip(self._ready, times, strict=True):
            done = max(done, busy * ready) + time
        return 1e3 * (max(busy, done) + rows)

    @property
    def _period(self) -> int:
        """Steps from one exchange to the next."""
        return self.local_steps if self.exchange == "local_steps" else 1

    @functools.cached_property
    def _buckets(self) -> list[list[Tensor]]:
        """The parameters in the order in which their gradients come, as DDP puts them together."""
        first = FIRST_BUCKET if self.bucket is None else min(FIRST_BUCKET, self.bucket)
        found: list[list[Tensor]] = [[]]
        limit, size = first, 0
        for tensor in reversed(self.exchanged):
            if size >= limit:
                limit, size = self.bucket or BUCKET, 0
                found.append([])
            found[-1].append(tensor)
            size += tensor.bytes
        return [bucket for bucket in found if bucket]

    @functools.cached_property
    def _travels(self) -> dict[int, list[list[Collective]]]:
        """The collectives of each exchange by the number of ranks, as they are asked for."""
        return {}

    def _exchanges_s(self, ranks: int, link: Link) -> Iterator[float]:
        """Return the seconds of each exchange, in order: of each bucket, or of all of a step's gathers and scatters."""
        seconds = {"all_reduce": all_reduce_s, "gather": gather_s}
        if ranks not in self._travels:
            together = [self.replicated] if self.exchange == "fsdp2" else self._buckets
            self._travels[ranks] = [collectives(tensors, self.exchange, ranks) for tensors in together]
        for travels in self._travels[ranks]:
            yield sum(seconds[name](size, ranks, link) for name, size in travels) / self._period

    def _rows_s(self, ranks: int, link: Link) -> float:
        return 2 * all_to_all_s(self.rows_mib * _MIB, ranks, link)

    @functools.cached_property
    def _ready(self) -> list[float]:
        """The share of the step after which each bucket can travel."""
        total = sum(one.work for one in self.tensors) or 1
        done = itertools.accumulate(sum(one.work for one in bucket) for bucket in self._buckets)
        shares = [FORWARD + (1 - FORWARD) * work / total for work in done]
        return [*shares[:-1], 1.0] if shares else []

    @functools.cached_property
    def _arithmetic_s(self) -> float:
        """Seconds of what the exchange computes, at the machine's rated values."""
        if self.exchange == "ddp_bf16":
            cast = sum(one.bytes for one in self.exchanged if one.width > _BF16)
            return _BF16_PASSES * cast / self.machine.bytes
        rank = powersgd_rank(self.exchange)
        if not rank:
            return 0.0
        some = [one for one in self.exchanged if one.compressed(rank)]
        operations = sum(6 * one.numbers * rank + 2 * one.sides[0] * rank**2 for one in some)
        passes = _POWERSGD_PASSES * sum(one.bytes for one in some)
        return operations / self.machine.operations + passes / self.machine.bytes


@dataclass(frozen=True)
class Compute:
    """A rank's step by its batch: the larger of two times, each a constant and a part in proportion to the batch.

    Args:
        points: batch, least time of operations and of traffic in ms, of one batch or of two.

    >>> steps = Compute(((1, 2.0, 5.0), (3, 6.0, 6.0)))
    >>> steps.ms(1), steps.ms(3), steps.ms(10)
    (5.0, 6.0, 20.0)
    """

    points: tuple[tuple[float, float, float], ...]

    def ms(self, batch: float) -> float:
        """Return the time of a batch, between, below or beyond the known ones."""
        first, last = min(self.points), max(self.points)
        if first[0] == last[0]:  # one batch alone: all of it in proportion
            return max(last[1:]) * batch / last[0]
        times = []
        for one, other in zip(first[1:], last[1:], strict=True):
            slope = max((other - one) / (last[0] - first[0]), 0.0)
            times.append(max(one + slope * (batch - first[0]), 0.0))
        return max(times)


def fastest(arms: Mapping[str, Callable[[float], float]], gbit: float) -> str:
    """Return the arm whose step takes least at a rate; among equals the first."""
    return min(arms, key=lambda name: arms[name](gbit))


def winners(
    arms: Mapping[str, Callable[[float], float]], low: float, high: float, count: int = 400
) -> list[tuple[str, float, float]]:
    """Return the arms that take the least time over a range of rates in Gbit/s, each with its part; neighbours touch.

    Args:
        arms: step in ms by rate in Gbit/s, by name.
        low, high: the range of rates.
        count: of rates that are looked at, evenly in their logarithm, before boundaries are narrowed down.

    >>> arms = {"small": lambda gbit: 10 + 1 / gbit, "large": lambda gbit: 5 + 10 / gbit}
    >>> [(name, round(start, 3), round(end, 3)) for name, start, end in winners(arms, 0.01, 100)]
    [('small', 0.01, 1.8), ('large', 1.8, 100)]
    """
    rates = [low * (high / low) ** (step / (count - 1)) for step in range(count - 1)] + [high]
    found = [(fastest(arms, low), low, high)]
    for before, rate in itertools.pairwise(rates):
        name = fastest(arms, rate)
        if name != found[-1][0]:
            start = _boundary(functools.partial(_is_fastest, arms, name), before, rate)
            found[-1] = (*found[-1][:2], start)
            found.append((name, start, high))
    return found


def _is_fastest(arms: Mapping[str, Callable[[float], float]], name: str, gbit: float) -> bool:
    return fastest(arms, gbit) == name


def _boundary(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the rate from which on something holds that does not at ``low`` and does at ``high``."""
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
