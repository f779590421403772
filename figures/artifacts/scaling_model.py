"""The model of :mod:`bench.estimate.communication` beside measured steps, and on paper for steps on many ranks.

A record of measure ``exchanged`` has an arm's parameters and the least times of its step on GPUs; how gradients travel
is chosen here, since an exchange changes neither.
"""

import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass, replace

import pandas as pd

from bench.core.record import Record
from bench.distributed.links import PAYLOAD_SHARE
from bench.estimate.communication import (
    Compute,
    Link,
    RatedMachine,
    Tensor,
    Training,
    powersgd_rank,
    shaped,
    tensors_of,
)
from figures.arms import DENSE
from figures.frame import each, groups

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
class PaperArm:
    """An arm of a workload on paper.

    Args:
        workload, arm, device: their names.
        batch: the recorded one, which every rank has in weak scaling.
        weak: the step of a rank that has this batch.
        compute: the step without exchange, by batch.
    """

    workload: str
    arm: str
    device: str
    batch: int
    weak: Training
    compute: Compute

    @property
    def total(self) -> int:
        """Return the rows of all ranks together in strong scaling."""
        return max(STRONG * self.batch, RANKS[-1])

    def strong(self, ranks: int) -> Training:
        """Return the step of a rank where all ranks share the rows of :attr:`total`."""
        batch = self.total / ranks
        rows_mib = self.weak.rows_mib * batch / self.batch
        return replace(self.weak, compute_ms=self.compute.ms(batch), rows_mib=rows_mib)


def papers_of(df: pd.DataFrame) -> list[PaperArm]:
    """Return all arms and exchanges that records on paper are good for, by workload and arm."""
    order = df["workload"].map({name: place for place, name in enumerate(WORKLOADS)})
    papers = []
    for record in df.assign(order=order).sort_values(["order", "workload", "arm"])["record"]:
        bounds = record.samples.get("bounds", {}).get(GPU)
        if not bounds or record.status != "ok":
            continue
        tensors, batch = tensors_of(record.samples["tensors"]), record.batch_size
        compute = Compute(tuple((float(size), one, other) for size, one, other in bounds["points"]))
        exchanges = ["ddp"]
        if record.arm == DENSE:
            exchanges += ["ddp_bf16", "powersgd_4", "powersgd_32"]
        columns = 0  # of sharded tables: a recommender's dense ones have to be
        if record.workload == "dlrm" and record.method == DENSE:
            columns = sum(one.sides[1] for one in tensors if one.kind == "table")
        for exchange in exchanges:
            weak = Training(
                tensors=tensors,
                compute_ms=compute.ms(batch),
                exchange=exchange,
                machine=RatedMachine(bounds["operations"], bounds["bytes"]),
                rows_mib=4 * columns * batch / 2**20,
            )
            arm = record.arm if exchange == "ddp" else f"{record.arm}+{exchange}"
            papers.append(PaperArm(record.workload, arm, bounds["words"], batch, weak, compute))
    return papers


def step_ms(training: Training, ranks: int, mbit: float) -> float:
    """Return a step over a link between two namespaces of one machine, at so many Mbit/s."""
    return training.step_ms(ranks, _link(mbit))


def _link(mbit: float) -> Link:
    return shaped(None if mbit == math.inf else mbit, PAYLOAD_SHARE)


def fitted(steps: pd.DataFrame, papers: pd.DataFrame) -> tuple[dict[str, Training], pd.Series]:
    """Fit the model to measured steps: by arm the training, and for each step the model's time in ms.

    The exchange takes more of the processors than bytes and rates say: a share of the step without exchange, which is
    measured at rates at which compute outweighs communication, since it is hidden at others. A training has the median
    share of all rates; the time of a step has that of the other rates, so that only its compute was measured with it.

    Args:
        steps: those of a page (:attr:`figures.artifacts.scaling_steps.StepsPage.steps`), with their ``base`` arms.
        papers: the newest records on paper.
    """
    trainings, times = {}, pd.Series(math.nan, steps.index)
    for _, own in groups(steps, "place"):
        one, arm, timed = own["record"].iloc[0], own["base"].iloc[0], own.dropna(subset="step_ms")
        alike = own if one.compute_time_ms is not None else steps[steps["base"] == arm]
        paper = papers.loc[(papers["workload"] == one.workload) & (papers["arm"] == arm), "record"]
        tensors = _tensors(next(iter(paper), None), one)
        if alike["compute_time_ms"].isna().all() or tensors is None or timed.empty:
            continue
        plain = Training(
            tensors=tensors,
            compute_ms=alike["compute_time_ms"].median(),
            exchange=one.exchange,
            local_steps=one.local_steps or 1,
            bucket=None if one.bucket_mib is None else int(one.bucket_mib * 2**20),
            overlaps=powersgd_rank(one.exchange) is None or one.backend != "gloo",
        )
        own = own.assign(compute=own["compute_time_ms"].fillna(plain.compute_ms))
        shares = {}
        for step in each(own.loc[timed.index]):
            if plain.communication_ms(one.world_size, _link(step.link_mbit)) < step.compute:
                bare = step_ms(_busier(plain, step.compute, ()), one.world_size, step.link_mbit)
                shares[step.Index] = max(step.step_ms - bare, 0.0) / step.compute
        for step in each(own):
            others = [share for place, share in shares.items() if place != step.Index]
            training = _busier(plain, step.compute, others)
            times[step.Index] = step_ms(training, one.world_size, step.link_mbit)
        trainings[own["arm"].iloc[0]] = _busier(plain, plain.compute_ms, shares.values())
    return trainings, times


def _busier(plain: Training, compute_ms: float, shares: Collection[float]) -> Training:
    extra_ms = statistics.median(shares) * compute_ms if shares else 0.0
    return replace(plain, compute_ms=compute_ms, extra_ms=extra_ms)


def _tensors(paper: Record | None, record: Record) -> tuple[Tensor, ...] | None:
    """Return the parameters of an arm from the record on paper of the same size, else one parameter of that size.

    None for neither: the record lacks its size, or its exchange needs what is not known: PowerSGD each parameter, FSDP2
    also their places in blocks, which records on paper of older code lack.
    """
    if record.gradient_mib is None:
        return None
    needs_places = record.exchange == "fsdp2"
    if paper and paper.gradient_mib and abs(paper.gradient_mib / record.gradient_mib - 1) < 0.01:
        rows = paper.samples["tensors"]
        return tensors_of(rows) if not needs_places or all("in_block" in row for row in rows) else None
    if needs_places or powersgd_rank(record.exchange):
        return None
    return (Tensor((round(record.gradient_mib * 2**20 / 4), 1)),)
