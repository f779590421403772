"""Trainings whose rate was searched: what each arm was tried at, which rate was chosen, what seeds reached with it.

A rate is chosen by the loss on the data for choosing, of the seed that has most rates; what is reported is the loss on
data that nothing was chosen by, at the chosen rate, over all seeds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bench.core.intervals import Estimate
from bench.core.record import Record
from figures.records.select import (
    DENSE,
    Setting,
    method_settings,
    model_setting,
    narrow,
    newest,
    oldest_first,
    settings_of,
)
from figures.text import significant

#: The metric that nothing is chosen by.
REPORTED = "test_loss"

#: Settings of a recipe that an arm may have of its own.
_OF_ARM = ("optimizer", "lr", "momentum", "per_core")

#: So many seeds at least on either side let a difference be called sure.
SURE_SEEDS = 3


def recipe_of(record: Record) -> Mapping[str, object]:
    """The recipe of a training or of a timed step; empty where a plan has none."""
    found = settings_of(record, "training").get("recipe")
    return found if isinstance(found, dict) else {}


def arm_of(record: Record) -> str:
    """Return the arm in words, with the rank of its blocks where that was asked for, and whose rate a core has.

    Formats under comparison differ in no other setting of their own than these.
    """
    rank = method_settings(record).get("rank") if record.method == "btt" else None
    words = record.arm if rank is None else f"{record.arm} rank {rank}"
    return f"{words}, rates per core" if recipe_of(record).get("per_core") else words


def training_setting(record: Record) -> Setting:
    """Return what all trainings of a page share: model, data, length, recipe but for optimizer and rates."""
    training = settings_of(record, "training")
    stages = [(stage["name"], stage["steps"]) for stage in training.get("stages", ())]
    recipe = {name: value for name, value in recipe_of(record).items() if name not in _OF_ARM}
    return {
        **model_setting(record),
        "data": record.data_hash,
        "batch": record.batch_size,
        "precision": record.precision,
        "stages": stages,
        "schedule": training.get("schedule"),
        **{f"recipe {name}": value for name, value in recipe.items()},
    }


@dataclass(frozen=True)
class SearchedArm:
    """An arm under an optimizer at a ratio; dense has none."""

    arm: str
    optimizer: str
    ratio: float | None

    @classmethod
    def of(cls, record: Record) -> SearchedArm:
        """The slot of a training, or of a timed step."""
        ratio = None if record.arm == DENSE else record.ratio  # a step timed beside others has the ratio of their job
        return cls(arm_of(record), str(recipe_of(record).get("optimizer", "")), ratio)


@dataclass(frozen=True)
class Search:
    """All trainings of a slot; ``timed`` is its step, timed apart, if it was."""

    slot: SearchedArm
    runs: tuple[Record, ...]
    timed: Record | None = None

    @cached_property
    def losses(self) -> dict[float, dict[int, Record]]:
        """The trainings by rate and seed."""
        found: dict[float, dict[int, Record]] = {}
        for run in self.runs:
            rate = recipe_of(run).get("lr")
            if isinstance(rate, int | float):
                found.setdefault(float(rate), {})[run.seed] = run
        return dict(sorted(found.items()))

    @cached_property
    def seed(self) -> int:
        """The one with most rates."""
        counts = Counter(seed for by_seed in self.losses.values() for seed in by_seed)
        return max(sorted(counts), key=lambda seed: counts[seed])

    @cached_property
    def tried(self) -> dict[float, float]:
        """The loss for choosing by rate; infinite where a training did not end well."""
        return {rate: _chosen_by(runs[self.seed]) for rate, runs in self.losses.items() if self.seed in runs}

    @cached_property
    def best(self) -> float | None:
        """The chosen rate; None where no training ended well."""
        rate = min(self.tried, key=lambda each: self.tried[each], default=None)
        return rate if rate is not None and math.isfinite(self.tried[rate]) else None

    @property
    def at_edge(self) -> bool:
        """Whether the chosen rate is the lowest or the highest that was tried."""
        return self.best in (min(self.tried, default=None), max(self.tried, default=None))

    @cached_property
    def reached(self) -> dict[int, float]:
        """The reported loss at the chosen rate, by seed."""
        runs = self.losses.get(self.best, {}) if self.best is not None else {}
        return {seed: run.metrics[REPORTED] for seed, run in sorted(runs.items()) if REPORTED in run.metrics}

    @property
    def loss(self) -> float | None:
        """The mean of what seeds reached."""
        return sum(self.reached.values()) / len(self.reached) if self.reached else None

    @property
    def range(self) -> tuple[float, float] | None:
        """The lowest and the highest of them."""
        return (min(self.reached.values()), max(self.reached.values())) if self.reached else None

    @property
    def loss_columns(self) -> dict[str, object]:
        """The mean with the range over seeds, as columns of a table."""
        low, high = self.range or (None, None)
        return {
            "test_loss": self.loss,
            "test_loss_low": low,
            "test_loss_high": high,
            "seeds": len(self.reached),
        }

    def less(self, other: Search | None) -> str | None:
        """Its loss less another's, and whether that is sure; None where one is missing or it is the other itself."""
        if other is None or other is self or self.loss is None or other.loss is None:
            return None
        sure = " (sure)" if self.surely_below(other) or other.surely_below(self) else ""
        apart = self.loss - other.loss
        return f"{'-' if apart < 0 else '+'}{significant(abs(apart))}{sure}"

    @property
    def remarks(self) -> str:
        """What to know of the search: its edge, and how few seeds there are."""
        if self.best is None:
            return "no training ended well"
        parts = ["best rate at an edge of those tried"] if self.at_edge else []
        if len(self.reached) < SURE_SEEDS:
            parts.append(f"{len(self.reached)} seed{'s' * (len(self.reached) != 1)}")
        return "; ".join(parts)

    @property
    def run(self) -> Record | None:
        """The training at the chosen rate, of the searched seed."""
        return self.losses[self.best][self.seed] if self.best is not None else None

    def surely_below(self, other: Search) -> bool:
        """Whether every seed of at least three reached less than every seed of the other."""
        if min(len(self.reached), len(other.reached)) < SURE_SEEDS:
            return False
        return max(self.reached.values()) < min(other.reached.values())

    def training_s(self, step: Estimate | None) -> float | None:
        """The seconds that its steps take at this time of one."""
        return (
            None
            if step is None or self.run is None or not self.run.train_steps
            else step.value * self.run.train_steps / 1e3
        )


def _chosen_by(run: Record) -> float:
    return run.leading if run.status == "ok" and run.leading is not None else math.inf


def searches(runs: Sequence[Record], timed: Sequence[Record]) -> list[Search]:
    """Return one search per slot, in the order of their first records; ``timed`` may have the step of some."""
    steps = {SearchedArm.of(record): record for record in timed}
    found: dict[SearchedArm, list[Record]] = {}
    for run in runs:
        found.setdefault(SearchedArm.of(run), []).append(run)
    return [Search(slot, tuple(own), steps.get(slot)) for slot, own in found.items()]


def comparable(runs: Sequence[Record], what: str) -> tuple[list[Record], list[str]]:
    """Return the newest training of each cell of one setting, oldest first, and sentences on those left out.

    Args:
        runs: trainings.
        what: they are called in the sentences.
    """
    kept, left_out = narrow(runs, training_setting, _cell, what)
    return oldest_first(newest(kept, _cell).values()), left_out


def _cell(record: Record) -> str:
    return record.cell_id
