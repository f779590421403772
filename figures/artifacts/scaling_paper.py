"""The model of :mod:`bench.estimate.communication`, on paper: from records to steps on many ranks.

A record of measure ``exchanged`` has an arm's parameters and the least times of its step on GPUs; how gradients travel
is chosen here, since an exchange changes neither.
"""

import functools
import math
from dataclasses import dataclass

import pandas as pd

from bench.estimate.communication import Compute, Link, Machine, Tensor, Training, tensors_of
from figures.arms import DENSE

#: The GPU whose least times stand for a rank's compute.
GPU = "h100"

#: Numbers of ranks.
RANKS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

#: What a strong scaling divides among the ranks, in multiples of the recorded batch; at least a row for each of them.
#: It makes 1,024 rows for the encoder and the code model, and MLPerf's 65,536 lines for the recommender.
STRONG = 32

#: What figures call the workloads, in their order.
WORKLOADS = {"encoder": "encoder", "code": "code model", "dlrm": "DLRM"}


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

    @functools.cached_property
    def _known(self) -> dict[float, Training]:
        """Steps by batch: each sorts its parameters into buckets once."""
        return {}

    def training(self, batch: float) -> Training:
        """Return the step of a rank that has so many rows."""
        if batch not in self._known:
            columns = sum(one.sides[1] for one in self.tensors if one.kind == "table") if self.sharded else 0
            self._known[batch] = Training(
                tensors=self.tensors,
                compute_ms=self.compute.ms(batch),
                exchange=self.exchange,
                machine=self.machine,
                rows_mib=4 * columns * batch / 2**20,
            )
        return self._known[batch]

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


def paper_arms(df: pd.DataFrame) -> list[Paper]:
    """Return all arms and exchanges that records on paper are good for, by workload and arm."""
    order = df["workload"].map(lambda name: list(WORKLOADS).index(name) if name in WORKLOADS else len(WORKLOADS))
    papers = []
    for record in df.assign(order=order).sort_values(["order", "workload", "arm"])["record"]:
        bounds = record.samples.get("bounds", {}).get(GPU)
        if not bounds or record.status != "ok":
            continue
        for exchange in ("ddp", "ddp_bf16", "powersgd_4", "powersgd_32") if record.arm == DENSE else ("ddp",):
            paper = Paper(
                workload=record.workload,
                arm=record.arm if exchange == "ddp" else f"{record.arm}+{exchange}",
                exchange=exchange,
                batch=record.batch_size,
                tensors=tensors_of(record.samples["tensors"]),
                compute=Compute(tuple((float(size), one, other) for size, one, other in bounds["points"])),
                machine=Machine(bounds["operations"], bounds["bytes"]),
                device=bounds["words"],
                sharded=record.workload == "dlrm" and record.method == DENSE,
            )
            papers.append(paper)
    return papers


def rate_words(gbit: float) -> str:
    """Return a rate as people say it.

    >>> rate_words(0.0314), rate_words(2.345), rate_words(1234.5), rate_words(math.inf)
    ('31 Mbit/s', '2.3 Gbit/s', '1,234 Gbit/s', 'not limited')
    """
    if gbit < 0.9995:
        return f"{1e3 * gbit:.3g} Mbit/s" if gbit >= 0.1 else f"{1e3 * gbit:.2g} Mbit/s"
    if gbit < 100:
        return f"{gbit:.2g} Gbit/s"
    return "not limited" if gbit == math.inf else f"{gbit:,.0f} Gbit/s"
