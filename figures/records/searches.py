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
from typing import Any

import pandas as pd

from bench.core.record import Record
from figures import frame
from figures.arms import DENSE
from figures.records.time_values import step_of
from figures.text import significant

#: The metric that nothing is chosen by.
REPORTED = "test_loss"

#: So many seeds at least on either side let a difference be called sure.
SURE_SEEDS = 3

#: The columns that are equal for all trainings of a page: model, data, length, recipe but for optimizer and rates.
SETTING = (
    *(*frame.MODEL, "data_hash", "batch_size", "precision", "stages.*", "training.schedule.*", "training.recipe.*"),
    *("!training.recipe.optimizer", "!training.recipe.lr", "!training.recipe.momentum", "!training.recipe.per_core"),
)


def recipe_of(record: Record) -> Mapping[str, Any]:
    """Return the recipe of a training or of a timed step; empty where a plan has none."""
    found = frame.settings_of(record, "training").get("recipe")
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class SearchedArm:
    """An arm under an optimizer at a ratio; dense has none.

    Arms under comparison differ in no other setting of their own than the rank of blocks and whose rate a core has,
    which are part of their names.
    """

    arm: str
    optimizer: str
    ratio: float | None

    @classmethod
    def of(cls, record: Record) -> SearchedArm:
        """Return the slot of a training, or of a timed step."""
        ratio = None if record.arm == DENSE else record.ratio  # a step timed beside others has the ratio of their job
        rank = frame.settings_of(record, "method_settings").get("rank") if record.method == "btt" else None
        recipe = recipe_of(record)
        arm = record.arm if rank is None else f"{record.arm} rank {rank}"
        arm += ", rates per core" if recipe.get("per_core") else ""
        return cls(arm, str(recipe.get("optimizer", "")), ratio)


@dataclass(frozen=True)
class Search:
    """All trainings of a slot; ``timed`` is its step, timed apart, if it was."""

    slot: SearchedArm
    runs: tuple[Record, ...]
    timed: Record | None = None

    @cached_property
    def losses(self) -> dict[float, dict[int, Record]]:
        """Return the trainings by rate and seed."""
        found: dict[float, dict[int, Record]] = {}
        for run in self.runs:
            rate = recipe_of(run).get("lr")
            if isinstance(rate, int | float):
                found.setdefault(float(rate), {})[run.seed] = run
        return dict(sorted(found.items()))

    @cached_property
    def seed(self) -> int:
        """Return the seed with most rates, the smallest of several."""
        counts = Counter(seed for by_seed in self.losses.values() for seed in by_seed)
        return min(counts, key=lambda seed: (-counts[seed], seed))

    @cached_property
    def tried(self) -> dict[float, float]:
        """Return the loss for choosing by rate; infinite where a training did not end well."""
        runs = {rate: runs[self.seed] for rate, runs in self.losses.items() if self.seed in runs}
        return {
            rate: math.inf if one.status != "ok" or one.leading is None else one.leading for rate, one in runs.items()
        }

    @cached_property
    def best(self) -> float | None:
        """Return the chosen rate; None where no training ended well."""
        rate = min(self.tried, key=self.tried.__getitem__, default=None)
        return rate if rate is not None and math.isfinite(self.tried[rate]) else None

    @property
    def at_edge(self) -> bool:
        """Return whether the chosen rate is the lowest or the highest that was tried."""
        return self.best in (min(self.tried, default=None), max(self.tried, default=None))

    @cached_property
    def run(self) -> Record | None:
        """Return the training at the chosen rate, of the searched seed."""
        return self.losses[self.best][self.seed] if self.best is not None else None

    @cached_property
    def reached(self) -> dict[int, float]:
        """Return the reported loss at the chosen rate, by seed."""
        runs = self.losses.get(self.best, {}) if self.best is not None else {}
        return {seed: run.metrics[REPORTED] for seed, run in sorted(runs.items()) if REPORTED in run.metrics}

    @property
    def loss(self) -> float | None:
        """Return the mean of what seeds reached."""
        return sum(self.reached.values()) / len(self.reached) if self.reached else None

    def columns(self, *sizes: str) -> dict[str, object]:
        """Return the slot, columns ``sizes`` of the chosen training, and the loss with its range over seeds."""
        return {
            "optimizer": self.slot.optimizer,
            "ratio": self.slot.ratio,
            "arm": self.slot.arm,
            **{name: getattr(self.run, name, None) for name in sizes},
            "test_loss": self.loss,
            "test_loss_low": min(self.reached.values(), default=None),
            "test_loss_high": max(self.reached.values(), default=None),
            "seeds": len(self.reached),
        }

    def less(self, other: Search | None) -> str | None:
        """Return its loss less another's, and whether that is sure; None where one is missing or it is the other."""
        if other is None or other is self or self.loss is None or other.loss is None:
            return None
        sure = " (sure)" if self.beside(other) != "apart" else ""
        apart = self.loss - other.loss
        return f"{'-' if apart < 0 else '+'}{significant(abs(apart))}{sure}"

    def beside(self, other: Search) -> str:
        """Return ``below`` or ``above`` where that holds of all seeds, three or more a side; else ``apart``."""
        mine, theirs = self.reached.values(), other.reached.values()
        if min(len(mine), len(theirs)) < SURE_SEEDS:
            return "apart"
        return "below" if max(mine) < min(theirs) else "above" if max(theirs) < min(mine) else "apart"

    @property
    def remarks(self) -> str:
        """Return what to know of the search: its edge, and how few seeds there are."""
        if self.best is None:
            return "no training ended well"
        parts = ["best rate at an edge of those tried"] if self.at_edge else []
        if len(self.reached) < SURE_SEEDS:
            parts.append(f"{len(self.reached)} seed{'s' * (len(self.reached) != 1)}")
        return "; ".join(parts)

    @property
    def training_s(self) -> float | None:
        """Return the seconds that its steps take at the timed step."""
        step = step_of(self.timed)
        return step.value * self.run.train_steps / 1e3 if step and self.run and self.run.train_steps else None


def searches(runs: Sequence[Record], timed: Sequence[Record] = ()) -> list[Search]:
    """Return one search per slot, in the order of their first records; ``timed`` may have the step of some."""
    steps = {SearchedArm.of(record): record for record in timed}
    found: dict[SearchedArm, list[Record]] = {}
    for run in runs:
        found.setdefault(SearchedArm.of(run), []).append(run)
    return [Search(slot, tuple(own), steps.get(slot)) for slot, own in found.items()]


def comparable(df: pd.DataFrame, what: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the newest training of each cell of one setting, oldest first, and sentences on those left out.

    Sentences call the trainings ``what``.
    """
    kept, left_out = frame.narrow(df, SETTING, ["cell_id"], what)
    return frame.oldest_first(frame.newest(kept, ["cell_id"])), left_out
