"""Read one training record: its metric, its stages, what the run was for, its learning curve and its ranks."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pandas as pd

from bench.core.cell import Arm
from bench.core.record import RecordError
from bench.core.samples import per_example, unpacked
from figures.arms import COMERA, DENSE
from figures.stats.metric import LeadingMetric, MetricValue
from figures.trainings import RecordedTraining

Ranks = Mapping[str, tuple[int, ...]]

#: The block that the paper's rank table shows, counted from 1.
BLOCK = 5

#: Layers of a block in the order of the forward pass, as the table calls them.
LAYERS = {
    "attention.query": "query",
    "attention.key": "key",
    "attention.value": "value",
    "attention.output": "output",
    "feed_forward.expand": "feed-forward 1",
    "feed_forward.contract": "feed-forward 2",
}

_IN_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")


def metric_of(run: RecordedTraining) -> LeadingMetric:
    """Return the metric that leads the workload; raises RecordError where none does, or without name or text."""
    known = {field.name for field in fields(LeadingMetric)}
    try:
        return LeadingMetric(**{name: value for name, value in run.metric.items() if name in known})
    except TypeError:
        lacks = "a training record needs its leading metric, with name and text, in workload_words.metric."
        raise RecordError(f"record {run.cell_id}: {lacks}") from None


@dataclass(frozen=True)
class TrainingSlot:
    """The purpose of a run: an arm, its stages, and the size that the last one or the whole model aims at, if any."""

    arm: str
    stages: tuple[str, ...]  # by name
    target: float | None = None  # share of the tensorized size at the last stage's start
    target_mib: float | None = None  # or, of the whole model
    ratio: float | None = None  # compression of the whole model that was asked for

    @property
    def stage(self) -> str:
        return self.stages[-1]

    @property
    def has_target(self) -> bool:
        """Return whether the last stage aims at a size; it then continues a run of the stages before."""
        return self.target is not None or self.target_mib is not None

    @property
    def goal(self) -> str:
        """Return the last stage with its target: ``early``, ``late 0.5`` or ``late 3 MiB``."""
        if self.target is not None:
            return f"{self.stage} {self.target:g}"
        return self.stage if self.target_mib is None else f"{self.stage} {self.target_mib:g} MiB"

    def name(self, depth: int) -> str:
        """Return the name on a page whose longest runs have so many stages."""
        is_part = len(self.stages) < depth
        arm = self.arm if self.ratio is None else f"{self.arm} 1/{self.ratio:g}"
        if self.has_target or (is_part and Arm.parse(self.arm).method == COMERA):
            return f"{arm}, {self.goal}"
        return f"{arm}, {self.stage} stage alone" if is_part else arm

    @property
    def rank(self) -> tuple[Any, ...]:
        """Return the place: dense, its whole run first, then CoMERA from the largest to the smallest, then others."""
        arm = {DENSE: 0, COMERA: 1}.get(Arm.parse(self.arm).method, 2)
        depth = -len(self.stages) if self.arm == DENSE else len(self.stages)
        size = -(self.target or self.target_mib or 0)
        return (arm, self.arm, self.ratio or 0, self.has_target, depth, self.target is None, size)


def stages_of(run: Any) -> list[dict[str, Any]]:
    """Return the stages of a run, a row of the frame, which a failed one has as well.

    Raises RecordError where it names none.
    """
    stages = run.stages
    usable = isinstance(stages, list) and all(isinstance(s, dict) and {"name", "steps"} <= set(s) for s in stages)
    if not stages or not usable:
        raise RecordError(f"record {run.cell_id}: a training record needs training.stages in its config_json.")
    return stages


def slot_of(run: Any) -> TrainingSlot:
    """Return the slot of a run, a row of the frame, failed or not."""
    stages = stages_of(run)
    names, last = tuple(str(stage["name"]) for stage in stages), stages[-1]
    ratio = None if pd.isna(run.ratio) else run.ratio
    return TrainingSlot(run.arm, names, last.get("target"), last.get("target_mib"), ratio)


@dataclass(frozen=True, kw_only=True)
class CurvePoint(MetricValue):
    """The state of a run after ``step`` steps."""

    epoch: float
    step: int
    stage: str
    ranks: Ranks  # of every tensorized layer; empty for a dense model
    train_loss: float | None
    seconds: float | None  # of training, evaluations apart


def _ranks(raw: Any) -> Ranks:
    if not isinstance(raw, dict):
        raise TypeError(f"ranks are a {type(raw).__name__}")
    return {str(name): tuple(int(rank) for rank in ranks) for name, ranks in raw.items()}


def reached(row: Mapping[str, Any], name: str) -> MetricValue:
    """Return a metric at a point of a curve, with its value for each group of examples, if it has any.

    Raises KeyError, TypeError or ValueError where the point cannot be read.
    """
    groups = row.get("groups", {}).get(name)
    values = None if groups is None else unpacked(groups).astype(np.float64)
    return MetricValue(float(row["metrics"][name]), values, row.get("validation_examples"))


def _point(run: RecordedTraining, row: dict[str, Any]) -> CurvePoint:
    point = CurvePoint(
        **vars(reached(row, metric_of(run).name)),
        epoch=float(row["epoch"]),
        step=int(row["step"]),
        stage=str(row["stage"]),
        ranks=_ranks(row["ranks"]),
        train_loss=row.get("train_loss"),
        seconds=row.get("seconds"),
    )
    values = per_example(run, row)
    return point if values is None else replace(point, per_example=values, examples=values.size)


def curve_of(run: RecordedTraining) -> tuple[CurvePoint, ...]:
    """Return the learning curve of a finished run, first point first; raises RecordError where it cannot be read."""
    rows = run.curve
    if not isinstance(rows, list) or not rows:
        raise RecordError(f"record {run.cell_id}: a finished training run needs its learning curve, samples.curve.")
    try:
        return tuple(_point(run, row) for row in rows)
    except RecordError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"record {run.cell_id}: its learning curve cannot be read ({error!r}).") from None


def curves(runs: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the points of the learning curves of finished runs, seed by seed, each in a line with its parts.

    Column ``by`` tells arms apart, ``place`` counts the points of a run.
    """
    points = runs.sort_values("seed", kind="stable")[[by, "seed", "training"]]
    points = points.assign(point=points["training"].map(curve_of)).explode("point")
    points["place"] = points.groupby(level=0).cumcount()
    parts = pd.DataFrame(map(vars, points["point"]), columns=[field.name for field in fields(CurvePoint)])
    return pd.concat([points.reset_index(drop=True), parts], axis=1)


def ranks_before(run: RecordedTraining) -> Ranks:
    """Return the ranks at the start of a run, empty for a dense model; raises RecordError if unreadable."""
    try:
        return _ranks(run.ranks_before)
    except (TypeError, ValueError) as error:
        raise RecordError(f"record {run.cell_id}: samples.ranks_before cannot be read ({error!r}).") from None


def block_shown(names: Iterable[str]) -> int | None:
    """Return the number, from 1, of the block to show: the paper's, or the last of fewer; None where there are none."""
    numbers = {int(found[1]) + 1 for name in names if (found := _IN_BLOCK.fullmatch(name))}
    return BLOCK if BLOCK in numbers else max(numbers, default=None)


def ranks_of_block(ranks: Ranks, block: int | None) -> Ranks:
    """Return ranks by layer, by the table's names where it has one and in its order; of all layers without a block."""
    if block is None:
        return ranks
    inside = {
        found[2]: values
        for name, values in ranks.items()
        if (found := _IN_BLOCK.fullmatch(name)) and int(found[1]) + 1 == block
    }
    order = [*(name for name in LAYERS if name in inside), *sorted(set(inside) - set(LAYERS))]
    return {LAYERS.get(name, name): inside[name] for name in order}


def layers_without_ranks(run: RecordedTraining) -> list[str]:
    """Return the layers of the block shown whose ranks are all zero at the end of a run: they pass their bias only."""
    ranks = curve_of(run)[-1].ranks
    shown = ranks_of_block(ranks, block_shown(ranks))
    return [name for name, values in shown.items() if not any(values)]
