"""Measured steps of several ranks, and the model beside them: compute that was measured, communication on paper."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from bench.core.record import Record
from bench.distributed.links import PAYLOAD_SHARE
from bench.estimate.communication import Tensor, Training, powersgd_rank, shaped, tensors_of
from figures import frame
from figures.arms import COMERA
from figures.artifacts.scaling_arms import base_arm, by_arm, label
from figures.artifacts.scaling_paper import Paper, paper_arms, rate_words
from figures.frame import Records
from figures.stats.time_values import step_of, time_ratio
from figures.text import bounds, pairing

#: What is equal for all steps of a page; arms are named by buckets and local steps.
SAME = (*frame.TIMING, "!bucket_mib", "!local_steps", "batch_size", "precision", "threads")

#: What is sent per step and rank, counted three ways, with how.
COUNTS = {"sent_buckets_mib": "by buckets", "sent_analytic_mib": "on paper", "sent_interface_mib": "by the interface"}


def timed(steps: pd.DataFrame, within: Sequence[str]) -> pd.DataFrame:
    """Add to steps their times in ms, and the ratios to CoMERA's step of the same values ``within`` some columns.

    Steps are named by ``arm`` and sorted by the first of these columns, then by arm; a link without a limit has an
    infinite ``link_mbit``.
    """
    ours = steps.loc[steps["arm"] == COMERA, [*within, "record"]].drop_duplicates(list(within), keep="last")
    references = frame.known(steps[list(within)].merge(ours, how="left")["record"])
    estimates = []
    for arm, record, reference in zip(steps["arm"], steps["record"], references, strict=True):
        step = step_of(record)
        ratio = time_ratio(record, reference) if arm != COMERA else None
        estimates.append(
            {
                **bounds("step_time_ms", step),
                **bounds("time_over_comera", ratio),
                "time_pairing": pairing(ratio),
                "launches": step and step.launches,
                "ratio_launches": ratio and ratio.launches,
            }
        )
    columns = [*bounds("step_time_ms", None), *bounds("time_over_comera", None)]
    columns += ["time_pairing", "launches", "ratio_launches"]
    return steps.drop(columns="launches").join(pd.DataFrame(estimates, steps.index, columns))


@dataclass(frozen=True, kw_only=True, eq=False)
class ScalingPage(frame.Page):
    """Measured steps, and what is on paper, of which records lie beside them."""

    @property
    def own(self) -> pd.DataFrame:
        measured = self.df[self.df["measure"] == "run"]
        return self.df if measured.empty else measured

    @functools.cached_property
    def papers(self) -> list[Paper]:
        return paper_arms(self.df[self.df["measure"] == "exchanged"])

    @functools.cached_property
    def steps(self) -> pd.DataFrame:
        """Return a row per measured step, by rate of the link, then arm, with its time and that of the model."""
        df = self.df[self.df["measure"] == "run"]
        df = df.assign(
            arm=df["label"],
            base=[base_arm(record) for record in df["record"]],
            place=df["label"].map(by_arm),
            link_mbit=df["link_mbit"].fillna(math.inf),
            older_code=df["cell_id"].isin(self.older_code),
        ).sort_values(["link_mbit", "place"], ignore_index=True)
        df["link"] = (df["link_mbit"] / 1e3).map(rate_words)
        df["message"] = df["message"].where(df["status"] != "ok", "")
        return timed(df, ["link_mbit"])

    @functools.cached_property
    def models(self) -> dict[str, Model]:
        """Return the model of each measured arm that there is one of, in drawing order."""
        found = {}
        for _, steps in frame.groups(self.steps, "place"):
            base, one = steps["base"].iloc[0], steps["record"].iloc[0]
            computes = [steps["compute_time_ms"], self.steps.loc[self.steps["base"] == base, "compute_time_ms"]]
            known = (computes[0] if one.compute_time_ms is not None else computes[1]).dropna()
            paper = self.df[(self.df["measure"] == "exchanged") & (self.df["workload"] == one.workload)]
            tensors = _tensors(dict(zip(paper["arm"], paper["record"], strict=True)).get(base), one)
            measured = steps.dropna(subset="step_time_ms")
            if known.empty or tensors is None or measured.empty:
                continue
            plain = Training(
                tensors=tensors,
                compute_ms=statistics.median(known),
                exchange=one.exchange,
                local_steps=one.local_steps or 1,
                bucket=None if one.bucket_mib is None else int(one.bucket_mib * 2**20),
                overlaps=powersgd_rank(one.exchange) is None or one.backend != "gloo",
            )
            model = Model(plain, one.world_size, {})
            shares = {}
            for step in frame.each(measured):
                compute = plain.compute_ms if pd.isna(step.compute_time_ms) else step.compute_time_ms
                link = shaped(None if step.link_mbit == math.inf else step.link_mbit, PAYLOAD_SHARE)
                if plain.communication_ms(one.world_size, link) < compute:
                    more = max(step.step_time_ms - model.ms(step.link_mbit, compute), 0.0)
                    shares[step.link_mbit] = more / compute
            found[steps["arm"].iloc[0]] = replace(model, shares=shares)
        return found


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
    shares: Mapping[float, float]

    def training(self, compute_ms: float | None = None, without: float = math.nan) -> Training:
        """Return the step with the median of all shares but that of one rate; beside a measured compute."""
        found = [share for mbit, share in self.shares.items() if mbit != without]
        compute = self.plain.compute_ms if compute_ms is None else compute_ms
        return replace(self.plain, compute_ms=compute, extra_ms=(statistics.median(found) if found else 0.0) * compute)

    def ms(self, mbit: float, compute_ms: float | None = None) -> float:
        """Return the step over a link of so many Mbit/s, of which nothing but its compute was measured with it."""
        link = shaped(None if mbit == math.inf else mbit, PAYLOAD_SHARE)
        return self.training(compute_ms, mbit).step_ms(self.ranks, link)

    def curve(self) -> Any:
        """Return the step by the rate in Gbit/s."""
        training = self.training()
        return lambda gbit: training.step_ms(self.ranks, shaped(1e3 * gbit, PAYLOAD_SHARE))


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


def select(records: Records) -> list[ScalingPage]:
    """Return a page per device that measured; without any one page of what is on paper alone."""
    df = frame.of(records)
    df = df.assign(label=[label(record) for record in df["record"]])
    papers = frame.newest(df[df["measure"] == "exchanged"], ["workload", "arm"])
    steps = df[(df["measure"] == "run") & (df["world_size"] > 1)]
    pages = frame.pages(steps, ("label", "link_mbit"), SAME, "measurements", ScalingPage)
    if pages or papers.empty:
        return [replace(page, df=frame.oldest_first(pd.concat([page.df, papers]))) for page in pages]
    shown = frame.oldest_first(papers)
    return [ScalingPage(device=shown["device"].iloc[-1], df=shown)]
