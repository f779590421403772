"""The settings that were tried to choose defaults, with their results, failed runs included."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import pandas as pd

from bench.core.record import Record
from figures.artifact import Artifact
from figures.columns import readable
from figures.frame import settings_of
from figures.page import training
from figures.page.captions import beside
from figures.records.metric import Score, score
from figures.records.seeds import size_met
from figures.records.studies import PROBES, Runs, searches
from figures.records.training import TrainingSlot, curve_of, slot_of, stages_of
from figures.text import NOT_ASKED, bounds


@dataclass(frozen=True, eq=False)
class Try:
    """One run of a search, with those settings in which the runs of its method differ.

    Args:
        run: the run.
        settings: by name.
        price: of size, 1 + size_weight / rho, in a later stage whose settings differ in it.
        score: what it reached; None where it did not finish.
        mark: of a record that older code made, or nothing.
    """

    run: Record
    settings: Mapping[str, Any]
    price: float | None
    score: Score | None
    mark: str

    @property
    def key(self) -> str:
        return json.dumps(self.settings, sort_keys=True)

    @property
    def rank(self) -> tuple[Any, ...]:
        """Return the place among the tries of a slot: from small settings to large, then by seed."""
        numbers = [value if _is_number(value) else math.inf for value in self.settings.values()]
        return numbers, self.key, self.run.seed

    @property
    def text(self) -> str:
        words = ", ".join(f"{name} {short(value)}" for name, value in self.settings.items())
        price = "" if self.price is None else f" (price of size {short(round(self.price, 2))})"
        return f"{words}{price}" or NOT_ASKED


@dataclass(frozen=True, eq=False)
class TriedSlot:
    """The search of an arm at a stage, ``name`` in sentences; failed runs were tried too."""

    name: str
    slot: TrainingSlot
    tries: Sequence[Try]

    @cached_property
    def gains(self) -> dict[str, float | None]:
        """Return the mean score over seeds by settings, the larger the better; None for a failed run or missed size."""
        found: dict[str, float | None] = {}
        for key in dict.fromkeys(one.key for one in self.tries):
            mine = [one for one in self.tries if one.key == key]
            scores = [one.score for one in mine if one.score and size_met(one.run) is not False]
            gains = [score.metric.gain(score.value, 0.0) for score in scores]
            found[key] = sum(gains) / len(gains) if len(gains) == len(mine) else None
        return found

    @property
    def count(self) -> int:
        return len(self.tries)

    @property
    def searched(self) -> bool:
        """Return whether more than one setting was tried."""
        return len(self.gains) > 1

    @cached_property
    def best(self) -> list[Try]:
        """Return the tries with the best score; none where all have the same."""
        if len(set(self.gains.values())) < 2:
            return []
        highest = max(gain for gain in self.gains.values() if gain is not None)
        return [one for one in self.tries if self.gains[one.key] == highest]

    @cached_property
    def varied(self) -> dict[str, list[float]]:
        """Return by name the sorted values of every setting that is a number in all tries, and not the same one."""
        settings = [one.settings for one in self.tries]
        names = [name for name in settings[0] if all(_is_number(one.get(name)) for one in settings)]
        values = {name: sorted({float(one[name]) for one in settings}) for name in names}
        return {name: found for name, found in values.items() if len(found) > 1}

    @cached_property
    def edges(self) -> list[tuple[str, str, str, int]]:
        """Return the best values that lie at an edge: setting, value, ``lowest`` or ``highest``, and of how many."""
        found = []
        for name, tried in self.varied.items() if self.best else ():
            values = {one.settings[name] for one in self.best}
            at_edge = len(values) == 1 and not any(tried[0] < value < tried[-1] for value in values)
            if at_edge:
                value = self.best[0].settings[name]
                found.append((name, short(value), "lowest" if value == tried[0] else "highest", len(tried)))
        return found

    def edge(self, one: Try) -> str:
        """Return where a best try lies among the values that were tried; empty for all other tries."""
        if not self.searched:
            return "not searched"
        words = ", ".join(f"{name} {where}" for name, _, where, _ in self.edges) or "inside"
        return words if one in self.best else ""

    @property
    def tangled(self) -> bool:
        """Return whether there is a best and numbers varied together, neither over a grid nor all rising as one."""
        points = sorted({tuple(one.settings[name] for name in self.varied) for one in self.tries})
        rise_as_one = all([*values] == sorted(set(values)) for values in zip(*points, strict=True))
        return bool(self.best) and not rise_as_one and len(points) != math.prod(map(len, self.varied.values()))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def short(value: object) -> str:
    """Write a setting as a config does.

    >>> short(0.00015), short(1000.0), short(0.05), short(None), short("optimized")
    ('1.5e-4', '1000', '0.05', 'null', 'optimized')
    """
    if not _is_number(value):
        return value if isinstance(value, str) else json.dumps(value)
    exact = Decimal(repr(value)).normalize()
    return f"{exact:e}" if 0 < abs(exact) < Decimal("0.01") else f"{exact:f}"


def differing(runs: Sequence[Record]) -> dict[str, list[str]]:
    """Return by method the settings in which its runs differ, in their order; of a single run, its rates."""
    names = {}
    for method in sorted({run.method for run in runs}):
        settings = [settings_of(run, "method_settings") for run in runs if run.method == method]
        every = dict.fromkeys(name for one in settings for name in one)
        apart = [name for name in every if len({json.dumps(one.get(name), sort_keys=True) for one in settings}) > 1]
        names[method] = apart or [name for name in every if len(settings) == 1 and name.startswith("lr")]
    return names


def slots_of(search: Runs) -> list[TriedSlot]:
    """Return every run that was tried, by arm and stage."""
    names = differing(search.shown)
    found: dict[TrainingSlot, list[Try]] = {}
    for run in search.shown:
        slot, given = slot_of(run), settings_of(run, "method_settings")
        settings = {name: given[name] for name in names[run.method] if name in given}
        weight, rho = given.get("size_weight"), given.get("rho")
        priced = len(slot.stages) > 1 and not {"size_weight", "rho"}.isdisjoint(names[run.method])
        price = float(1 + weight / rho) if priced and rho and weight is not None else None
        reached = score(search.metric, {run.seed: curve_of(run)[-1]}) if run.status == "ok" else None
        found.setdefault(slot, []).append(Try(run, settings, price, reached, search.older(run)))
    several = len({slot.goal for slot in found}) > 1
    return [
        TriedSlot(f"{slot.arm}, {slot.goal}" if several else slot.arm, slot, sorted(tries, key=lambda one: one.rank))
        for slot, tries in sorted(found.items(), key=lambda pair: pair[0].rank)
    ]


def table(search: Runs) -> pd.DataFrame:
    """Return a line per try, with a column for each setting in which the runs of any method differ."""
    tries = [(tried, one) for tried in slots_of(search) for one in tried.tries]
    names = dict.fromkeys(name for _, one in tries for name in one.settings)
    return pd.DataFrame(
        [
            {
                "device": search.device,
                "dataset": search.dataset,
                "experiment": search.experiment,
                "arm": tried.slot.arm,
                "stage": tried.slot.stage,
                "target_ratio": tried.slot.target,
                "target_mib": tried.slot.target_mib,
                "seed": one.run.seed,
                "status": one.run.status,
                "remarks": one.run.message,
                **{f"setting_{name}": one.settings.get(name) for name in names},
                "price_of_size": one.price,
                "train_steps": one.run.train_steps,
                "train_loss": one.run.train_loss,
                "validation_examples": one.score and one.score.examples,
                **bounds(search.metric.name, one.score),
                "size_fraction": one.run.size_fraction,
                "size_target": one.run.size_target,
                "size_met": size_met(one.run),
                "best": one in tried.best,
                "best_edge": tried.edge(one),
                "older_code": bool(one.mark),
            }
            for tried, one in tries
        ]
    )


def shown(search: Runs, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the settings in one column; sizes only where a run aimed at one."""
    metric, tries = search.metric, [(tried.slot, one) for tried in slots_of(search) for one in tried.tries]
    own = table.assign(
        stage=[slot.goal for slot, _ in tries],
        settings=[one.text for _, one in tries],
        best=table["best"].map({True: "best", False: ""}),
    )
    sizes = ["size_fraction", "size_target", "size_met"] if table["size_target"].notna().any() else []
    columns = ["arm", "stage", "settings", "seed", metric.name, *sizes, "best", "best_edge"]
    return readable(own, columns, {metric.name: training.metric_format(metric)})


def about(search: Runs, table: pd.DataFrame) -> dict[str, Any]:
    """Return how long and how often each arm was tried, where the best values lie, and which runs failed."""
    slots, steps, failed = slots_of(search), dict[int, dict[str, None]](), list[tuple[str, str]]()
    for tried in slots:
        for one in tried.tries:
            run, goal = one.run, tried.slot.goal
            steps.setdefault(sum(stage["steps"] for stage in stages_of(run)), {})[goal] = None
            if run.status != "ok" or run.message:
                outcome = ": ".join(filter(None, ("" if run.status == "ok" else run.status, run.message)))
                failed.append((f"{tried.slot.arm}, {goal}, {one.text}, seed {run.seed}", outcome))
    return {
        **training.about(search, table),
        "steps": {count: list(goals) for count, goals in steps.items()},
        "several_stages": len({tried.slot.goal for tried in slots}) > 1,
        "slots": slots,
        "priced": bool(table["price_of_size"].notna().any()),
        "aimed": bool(table["size_target"].notna().any()),
        "remarks": training.gathered(failed),
        "missing": (),
    }


ARTIFACT = Artifact(
    name="table_search",
    heading="Settings tried",
    summary="settings tried for each method with the loss, accuracy and size they reached; "
    "a table per device, dataset and experiment",
    experiments=("accuracy_search", "late_search", "code_search", "code_prices", "code_stages_search", "dlrm_search"),
    measure="train",
    lenders=PROBES,
    order=150,
    select=searches,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    section="arm",
)
