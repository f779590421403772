"""Measured steps of several ranks, and the model beside them: compute that was measured, communication on paper."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pandas as pd

from bench.core.intervals import Estimate
from bench.core.record import Record
from bench.distributed.links import PAYLOAD_SHARE
from bench.estimate.communication import Tensor, Training, powersgd_rank, shaped, tensors_of
from figures import frame
from figures.arms import COMERA
from figures.artifacts.beyond.distributed.arms import base_arm, by_arm, label
from figures.artifacts.beyond.distributed.paper import WORKLOADS, Case, Paper, paper_arms, paper_cases, rate_words
from figures.frame import Records
from figures.records.time_values import step_of, time_ratio

#: The columns of a cell, and what is equal for all steps of a page; arms are named by buckets and local steps.
CELL = ("label", "link_mbit")
SAME = (*frame.TIMING, "!bucket_mib", "!local_steps", "batch_size", "precision", "threads")

#: What is sent per step and rank, counted three ways, with how.
COUNTS = {"sent_buckets_mib": "by buckets", "sent_analytic_mib": "on paper", "sent_interface_mib": "by the interface"}

_MIB = 2**20


def order_of_rate(mbit: float | None) -> float:
    """Return the place of a rate, for sorting: a link without a limit is the quickest."""
    return math.inf if mbit is None else mbit


def link_words(mbit: float | None) -> str:
    """Return what figures call the rate of a link."""
    return "not limited" if mbit is None else rate_words(mbit / 1e3)


@dataclass(frozen=True, kw_only=True, eq=False)
class ScalingPage(frame.Page):
    """Measured steps, and records on paper by workload and arm."""

    on_paper: Mapping[tuple[str, str], Record]

    @property
    def own(self) -> pd.DataFrame:
        steps = self.df[self.df["measure"] == "run"]
        return steps if len(steps) else self.df

    @functools.cached_property
    def measured(self) -> dict[tuple[str, float | None], Record]:
        """Return the steps by arm and rate of the link in Mbit/s."""
        return frame.by_cell(self.df[self.df["measure"] == "run"], CELL)

    @property
    def arms(self) -> list[str]:
        return sorted({arm for arm, _ in self.measured}, key=by_arm)

    @property
    def rates(self) -> list[float | None]:
        return sorted({mbit for _, mbit in self.measured}, key=order_of_rate)

    @functools.cached_property
    def ranks(self) -> int:
        return max((record.world_size for record in self.measured.values()), default=2)

    def of_arm(self, arm: str) -> dict[float | None, Record]:
        """Return the measured records of an arm by rate, from slow to fast."""
        return {mbit: self.measured[arm, mbit] for mbit in self.rates if (arm, mbit) in self.measured}

    @functools.cached_property
    def papers(self) -> list[Paper]:
        return list(paper_arms(self.on_paper))

    @functools.cached_property
    def models(self) -> dict[str, Model]:
        """Return the model of each measured arm that there is one of."""
        found = ((arm, model_of(self, arm)) for arm in self.arms)
        return {arm: model for arm, model in found if model is not None}

    @functools.cached_property
    def cases(self) -> list[Case]:
        """Return this machine where anything was measured on it, then the models on paper."""
        here = {arm: model.curve for arm, model in self.models.items()}
        workload = self.own["workload"].iloc[0]
        words = f"{WORKLOADS.get(workload, workload)}, {self.ranks} ranks, this machine"
        return [*([Case(words, here)] if here else []), *paper_cases(self.papers)]

    @property
    def steps(self) -> list[tuple[str, float | None]]:
        """Return arm and rate of every measured step, by rate, then arm."""
        return [(arm, mbit) for mbit in self.rates for arm in self.arms if (arm, mbit) in self.measured]

    def ratio(self, arm: str, mbit: float | None) -> Estimate | None:
        """Return the ratio of a step to CoMERA's over the same link; None for CoMERA's own."""
        if arm == COMERA:
            return None
        return time_ratio(self.measured[arm, mbit], self.measured.get((COMERA, mbit)))

    def model_ms(self, arm: str, mbit: float | None) -> float | None:
        """Return a step by the model, of which nothing but its compute was measured with the step itself."""
        if (model := self.models.get(arm)) is None:
            return None
        return model.ms(mbit, self.measured[arm, mbit].compute_time_ms, model.share(mbit))


@dataclass(frozen=True)
class Model:
    """An arm's step by the rate of the link.

    Args:
        plain: of the step without exchange, bytes and rates alone.
        ranks: how many.
        shares: by rate, what the measured step takes more than ``plain`` says, as a share of the step without exchange:
            what the exchange takes of the processors. Only of rates at which compute outweighs communication, since it
            is hidden at others.
    """

    plain: Training
    ranks: int
    shares: Mapping[float | None, float]

    def ms(self, mbit: float | None, compute_ms: float | None = None, share: float = 0.0) -> float:
        """Return the step over a link of so many Mbit/s; beside ``compute_ms``, where that was measured with it."""
        compute = self.plain.compute_ms if compute_ms is None else compute_ms
        step = replace(self.plain, compute_ms=compute, extra_ms=share * compute)
        return step.step_ms(self.ranks, shaped(mbit, PAYLOAD_SHARE))

    def share(self, *without: float | None) -> float:
        """Return the median over all rates but some; 0 where there is none."""
        found = [share for mbit, share in self.shares.items() if mbit not in without]
        return statistics.median(found) if found else 0.0

    def curve(self, gbit: float) -> float:
        """Return the step over a link of so many Gbit/s."""
        return self._by_all.step_ms(self.ranks, shaped(1e3 * gbit, PAYLOAD_SHARE))

    @functools.cached_property
    def _by_all(self) -> Training:
        return replace(self.plain, extra_ms=self.share() * self.plain.compute_ms)


def model_of(page: ScalingPage, arm: str) -> Model | None:
    """Return the model of a measured arm; None without its step without exchange, or without what it exchanges."""
    records = page.of_arm(arm)
    one = next(iter(records.values()))
    base = base_arm(one)
    alike = [record for record in page.measured.values() if base_arm(record) == base]
    steps = [record.compute_time_ms for record in records.values()] if one.compute_time_ms is not None else []
    steps = steps or [record.compute_time_ms for record in alike]
    known = [step for step in steps if step is not None]
    tensors = _tensors(page, base, one)
    if not known or tensors is None:
        return None
    bucket = None if one.bucket_mib is None else int(one.bucket_mib * _MIB)
    step = statistics.median(known)
    plain = Training(
        tensors=tensors,
        compute_ms=step,
        exchange=one.exchange,
        local_steps=one.local_steps or 1,
        bucket=bucket,
        overlaps=powersgd_rank(one.exchange) is None or one.backend != "gloo",
    )
    times = {mbit: time.value for mbit, record in records.items() if (time := step_of(record))}
    if not times:
        return None
    model = Model(plain, one.world_size, {})
    shares: dict[float | None, float] = {}
    for mbit, taken in times.items():
        compute = records[mbit].compute_time_ms or step
        if plain.communication_ms(one.world_size, shaped(mbit, PAYLOAD_SHARE)) < compute:
            shares[mbit] = max(taken - model.ms(mbit, compute), 0.0) / compute
    return replace(model, shares=shares)


def _tensors(page: ScalingPage, base: str, record: Record) -> tuple[Tensor, ...] | None:
    """Return the parameters of an arm from the record on paper of the same size, else one parameter of that size.

    None for neither: the record lacks its size, or its exchange needs what is not known: PowerSGD each parameter, FSDP2
    also their places in blocks, which records on paper of older code lack.
    """
    if record.gradient_mib is None:
        return None
    paper = page.on_paper.get((record.workload, base))
    needs_places = record.exchange == "fsdp2"
    if paper and paper.gradient_mib and abs(paper.gradient_mib / record.gradient_mib - 1) < 0.01:
        rows = paper.samples["tensors"]
        return tensors_of(rows) if not needs_places or all("in_block" in row for row in rows) else None
    if needs_places or powersgd_rank(record.exchange):
        return None
    return (Tensor((round(record.gradient_mib * _MIB / 4), 1)),)


def select(records: Records) -> list[ScalingPage]:
    """Return a page per device that measured; without any one page of what is on paper alone."""
    df = frame.of(records)
    df = df.assign(label=[label(record) for record in df["record"]])
    papers = frame.newest(df[df["measure"] == "exchanged"], ["workload", "arm"])
    on_paper = frame.by_cell(papers, ["workload", "arm"])
    steps = df[(df["measure"] == "run") & (df["world_size"] > 1)]

    pages = [
        replace(page, df=frame.oldest_first(pd.concat([page.df, papers])))
        for page in frame.pages(steps, CELL, SAME, "measurements", functools.partial(ScalingPage, on_paper=on_paper))
    ]
    if not pages and on_paper:
        shown = frame.oldest_first(papers)
        pages = [ScalingPage(device=shown["device"].iloc[-1], df=shown, on_paper=on_paper)]
    return pages
