"""The model of :mod:`bench.estimate.communication`, on paper: from records to steps on many ranks.

A record of measure ``exchanged`` has an arm's parameters and the least times of its step on GPUs; how gradients travel
is chosen here, since an exchange changes neither.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bench.core.record import Record
from bench.estimate.communication import (
    LINKS,
    Compute,
    Link,
    Machine,
    Tensor,
    Training,
    tensors_of,
    winners,
)
from figures.arms import DENSE

#: The GPU whose least times stand for a rank's compute.
GPU = "h100"

#: Numbers of ranks, and the one at which links are compared.
RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COMPARED = 64

#: What a strong scaling divides among the ranks, in multiples of the recorded batch; at least a row for each of them.
#: It makes 1,024 rows for the encoder and the code model, and MLPerf's 65,536 lines for the recommender.
STRONG = 32

#: Rates in Gbit/s over which links are compared: from a home's to NVLink's.
SLOWEST, QUICKEST = 0.01, 3600.0

#: Exchanges that dense training is shown with.
OF_DENSE = ("ddp", "ddp_bf16", "powersgd_4", "powersgd_32")

#: What figures call the workloads, in their order.
WORKLOADS = {"encoder": "encoder", "code": "code model", "dlrm": "DLRM"}

_MIB = 2**20


def arm_of(method: str, exchange: str) -> str:
    """Return an arm as records call it.

    >>> arm_of("dense", "powersgd_4"), arm_of("comera", "ddp")
    ('dense+powersgd_4', 'comera')
    """
    return method if exchange in ("", "ddp") else f"{method}+{exchange}"


@dataclass(frozen=True)
class Paper:
    """An arm of a workload: its parameters, its step by batch, and how its gradients travel."""

    workload: str
    arm: str
    exchange: str
    batch: int
    tensors: tuple[Tensor, ...]
    compute: Compute
    machine: Machine
    device: str
    sharded: bool  # whether its tables are, as a recommender's dense ones have to be

    def training(self, batch: float) -> Training:
        """Return the step of a rank that has so many rows."""
        if batch not in self._known:
            columns = sum(one.sides[1] for one in self.tensors if one.kind == "table") if self.sharded else 0
            self._known[batch] = Training(
                tensors=self.tensors,
                compute_ms=self.compute.ms(batch),
                exchange=self.exchange,
                machine=self.machine,
                rows_mib=4 * columns * batch / _MIB,
            )
        return self._known[batch]

    @functools.cached_property
    def _known(self) -> dict[float, Training]:
        """Steps by batch: each sorts its parameters into buckets once."""
        return {}

    def weak_ms(self, ranks: int, link: Link) -> float:
        """Return the step where every rank has the recorded batch."""
        return self.training(self.batch).step_ms(ranks, link)

    @property
    def total(self) -> int:
        """Rows of all ranks together in strong scaling."""
        return max(STRONG * self.batch, RANKS[-1])

    def strong_ms(self, ranks: int, link: Link) -> float:
        """Return the step where all ranks together have so many rows as :attr:`total` says."""
        return self.training(self.total / ranks).step_ms(ranks, link)


def paper_arms(records: Mapping[tuple[str, str], Record]) -> Iterator[Paper]:
    """All arms and exchanges that the records, by workload and arm, are good for."""
    for (workload, arm), record in sorted(records.items(), key=lambda item: (_place(item[0][0]), item[0])):
        bounds = record.samples.get("bounds", {}).get(GPU)
        if not bounds or record.status != "ok":
            continue
        sharded = workload == "dlrm" and record.method == DENSE
        exchanges = OF_DENSE if arm == DENSE else ("ddp",)
        for exchange in exchanges:
            yield Paper(
                workload,
                arm_of(arm, exchange),
                exchange,
                record.batch_size,
                tensors_of(record.samples["tensors"]),
                Compute(tuple((float(size), one, other) for size, one, other in bounds["points"])),
                Machine(bounds["operations"], bounds["bytes"]),
                bounds["words"],
                sharded,
            )


def _place(workload: str) -> int:
    return list(WORKLOADS).index(workload) if workload in WORKLOADS else len(WORKLOADS)


#: A step in ms by the rate of the link in Gbit/s.
Curve = Callable[[float], float]


@dataclass(frozen=True)
class Case:
    """A model on so many ranks: every arm's step by the rate of the link between them."""

    words: str
    curves: Mapping[str, Curve]

    @functools.cached_property
    def winners(self) -> list[tuple[str, float, float]]:
        """Which arm takes least from which rate to which, in Gbit/s."""
        return winners(self.curves, SLOWEST, QUICKEST)


def rate_words(gbit: float) -> str:
    """Return a rate as people say it.

    >>> rate_words(0.0314), rate_words(2.345), rate_words(1234.5)
    ('31 Mbit/s', '2.3 Gbit/s', '1,234 Gbit/s')
    """
    if gbit < 0.9995:
        return f"{1e3 * gbit:.3g} Mbit/s" if gbit >= 0.1 else f"{1e3 * gbit:.2g} Mbit/s"
    return f"{gbit:.2g} Gbit/s" if gbit < 100 else f"{gbit:,.0f} Gbit/s"


def paper_cases(arms: list[Paper]) -> list[Case]:
    """Return a case per workload, at :data:`COMPARED` ranks with the latency of a network."""
    link, cases = LINKS["infiniband"], []
    for workload in dict.fromkeys(one.workload for one in arms):
        curves = {one.arm: functools.partial(_weak, one, COMPARED, link) for one in arms if one.workload == workload}
        cases.append(Case(f"{WORKLOADS.get(workload, workload)}, {COMPARED} H100", curves))
    return cases


def _weak(one: Paper, ranks: int, link: Link, gbit: float) -> float:
    return one.weak_ms(ranks, link.at(gbit))
