"""The settings that were tried to choose defaults, with their results, failed runs included."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pandas as pd

from bench.core.record import Record
from figures.artifact import Artifact
from figures.columns import readable
from figures.page import training
from figures.page.captions import beside
from figures.records.metric import Score, score
from figures.records.select import method_settings
from figures.records.studies import PROBES, Runs, searches, size_met
from figures.records.training import TrainingSlot, curve_of, slot_of, stages_of
from figures.text import NOT_ASKED, bounds

#: Where a best value lies among those that were tried.
_LOWEST, _HIGHEST, _INSIDE, _ALONE = "lowest", "highest", "inside", "not searched"

#: The settings that make the price of size.
_SIZE_WEIGHT, _RHO = "size_weight", "rho"


@dataclass(frozen=True)
class Try:
    """One run of a search, with those settings in which the runs of its method differ."""

    run: Record
    slot: TrainingSlot
    settings: Mapping[str, Any]
    price: float | None  # of size, 1 + size_weight / rho, in a later stage whose settings differ in it
    score: Score | None  # None where the run did not finish
    mark: str  # † where older code made the record
    best: bool = False
    edges: tuple[tuple[str, str], ...] = ()  # of the best: by searched number, _LOWEST, _HIGHEST or _INSIDE
    alone: bool = False  # whether the arm was tried at one setting alone at this stage

    @property
    def edge(self) -> str:
        """Return where the best lies among the values that were tried; empty for all other tries."""
        if self.alone:
            return _ALONE
        if not self.best:
            return ""
        return ", ".join(f"{name} {where}" for name, where in self.edges if where != _INSIDE) or _INSIDE

    @property
    def key(self) -> str:
        return json.dumps(self.settings, sort_keys=True)

    @property
    def rank(self) -> tuple[Any, ...]:
        """Return the place: by arm and stage, then from small settings to large."""
        numbers = [value if _is_number(value) else math.inf for value in self.settings.values()]
        return (self.slot.rank, numbers, self.key, self.run.seed)

    @property
    def settings_text(self) -> str:
        words = ", ".join(f"{name} {short(value)}" for name, value in self.settings.items())
        price = "" if self.price is None else f" (price of size {short(round(self.price, 2))})"
        return f"{words}{price}" or NOT_ASKED


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
        settings = [method_settings(run) for run in runs if run.method == method]
        every = dict.fromkeys(name for one in settings for name in one)
        apart = [name for name in every if len({json.dumps(one.get(name), sort_keys=True) for one in settings}) > 1]
        names[method] = apart or [name for name in every if len(settings) == 1 and name.startswith("lr")]
    return names


def _gain(tries: Sequence[Try]) -> float | None:
    """Return the mean score over seeds, the larger the better; None where a run failed or missed its size."""
    scores = [one.score for one in tries if one.score and size_met(one.run) is not False]
    gains = [score.metric.gain(score.value, 0.0) for score in scores]
    return sum(gains) / len(gains) if len(gains) == len(tries) else None


def _with_best(tries: Sequence[Try]) -> list[Try]:
    """Mark the settings with the best score among the tries of one slot, unless all have the same.

    The best carry where they lie along each number that varies in the slot. Failed runs were tried too.
    """
    keys = dict.fromkeys(one.key for one in tries)
    if len(keys) == 1:
        return [replace(one, alone=True) for one in tries]
    gains = {key: _gain([one for one in tries if one.key == key]) for key in keys}
    if len(set(gains.values())) < 2:
        return list(tries)
    highest = max(gain for gain in gains.values() if gain is not None)
    best = [one for one in tries if gains[one.key] == highest]
    edges = tuple((name, _place([one.settings[name] for one in best], tried)) for name, tried in _varied(tries).items())
    return [replace(one, best=True, edges=edges) if one in best else one for one in tries]


def _varied(tries: Sequence[Try]) -> dict[str, list[float]]:
    """Return by name the values of every setting that is a number in all tries of a slot, and not the same one."""
    names = dict.fromkeys(name for one in tries for name in one.settings)
    found = {name: [one.settings.get(name) for one in tries] for name in names}
    numbers = {
        name: sorted({float(value) for value in values if value is not None})
        for name, values in found.items()
        if all(map(_is_number, values))
    }
    return {name: values for name, values in numbers.items() if len(values) > 1}


def _place(best: Sequence[float], tried: Sequence[float]) -> str:
    """Return where the best values, several where tries are alike, lie among the sorted ones."""
    if any(tried[0] < value < tried[-1] for value in best) or len(set(best)) > 1:
        return _INSIDE
    return _LOWEST if best[0] == tried[0] else _HIGHEST


def _is_tangled(tries: Sequence[Try]) -> bool:
    """Return whether numbers of a slot varied together, neither over a grid nor all rising as one."""
    varied = _varied(tries)
    points = sorted({tuple(one.settings[name] for name in varied) for one in tries})
    axes = zip(*points, strict=True)
    rise_as_one = all([*values] == sorted(set(values)) for values in axes)
    return not rise_as_one and len(points) != math.prod(map(len, varied.values()))


def tries_of(search: Runs) -> list[Try]:
    """Return every run that was tried, by arm, stage, settings and seed."""
    names = differing(search.shown)
    by_slot: dict[TrainingSlot, list[Try]] = {}
    for run in search.shown:
        slot, given = slot_of(run), method_settings(run)
        settings = {name: given[name] for name in names[run.method] if name in given}
        priced = len(slot.stages) > 1 and not {_SIZE_WEIGHT, _RHO}.isdisjoint(names[run.method])
        weight, rho = given.get(_SIZE_WEIGHT), given.get(_RHO)
        price = float(1 + weight / rho) if priced and rho and weight is not None else None
        reached = score(search.metric, {run.seed: curve_of(run)[-1]}) if run.status == "ok" else None
        by_slot.setdefault(slot, []).append(Try(run, slot, settings, price, reached, search.older(run)))
    return sorted((one for tries in by_slot.values() for one in _with_best(tries)), key=lambda one: one.rank)


def table(search: Runs) -> pd.DataFrame:
    """Return a line per try, with a column for each setting in which the runs of any method differ."""
    tries = tries_of(search)
    names = dict.fromkeys(name for one in tries for name in one.settings)
    return pd.DataFrame(
        [
            {
                "device": search.device,
                "dataset": search.dataset,
                "experiment": search.experiment,
                "arm": one.slot.arm,
                "stage": one.slot.stage,
                "target_ratio": one.slot.target,
                "target_mib": one.slot.target_mib,
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
                "best": one.best,
                "best_edge": one.edge,
                "older_code": bool(one.mark),
            }
            for one in tries
        ]
    )


def shown(search: Runs, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the settings in one column; sizes only where a run aimed at one."""
    metric, tries = search.metric, tries_of(search)
    own = table.assign(
        stage=[one.slot.goal for one in tries],
        settings=[one.settings_text for one in tries],
        best=["best" if one.best else "" for one in tries],
    )
    sizes = ["size_fraction", "size_target", "size_met"] if table["size_target"].notna().any() else []
    columns = ["arm", "stage", "settings", "seed", metric.name, *sizes, "best", "best_edge"]
    return readable(own, columns, {metric.name: training.metric_format(metric)})


@dataclass(frozen=True)
class TriedSlot:
    """The search of an arm at a stage: its tries, and the best values at an edge of those tried.

    Args:
        edges: by setting at an edge, the best value, whether it is the lowest or the highest, and of how many.
        tangled: whether settings moved together, neither over a grid nor all rising as one.
    """

    name: str
    count: int
    searched: bool
    has_best: bool
    edges: tuple[tuple[str, str, str, int], ...] = ()
    tangled: bool = False


def _tried_slots(tries: Sequence[Try]) -> list[TriedSlot]:
    slots: dict[TrainingSlot, list[Try]] = {}
    for one in tries:
        slots.setdefault(one.slot, []).append(one)
    several = len({slot.goal for slot in slots}) > 1
    found = []
    for slot, mine in slots.items():
        best, varied = next((one for one in mine if one.best), None), _varied(mine)
        edges = [
            (name, short(best.settings[name]), where, len(varied[name]))
            for name, where in (best.edges if best else ())
            if best and where != _INSIDE
        ]
        name = f"{slot.arm}, {slot.goal}" if several else slot.arm
        tangled = best is not None and _is_tangled(mine)
        found.append(TriedSlot(name, len(mine), not mine[0].alone, best is not None, tuple(edges), tangled))
    return found


def about(search: Runs, table: pd.DataFrame) -> dict[str, Any]:
    """Return how long and how often each arm was tried, where the best values lie, and which runs failed."""
    tries = tries_of(search)
    steps: dict[int, dict[str, None]] = {}
    for one in tries:
        steps.setdefault(sum(stage["steps"] for stage in stages_of(one.run)), {})[one.slot.goal] = None
    failed = (
        (f"{one.slot.arm}, {one.slot.goal}, {one.settings_text}, seed {one.run.seed}", _outcome(one.run))
        for one in tries
        if one.run.status != "ok" or one.run.message
    )
    return {
        **training.about(search, table),
        "steps": {count: list(goals) for count, goals in steps.items()},
        "several_stages": len({one.slot.goal for one in tries}) > 1,
        "slots": _tried_slots(tries),
        "priced": any(one.price is not None for one in tries),
        "aimed": bool(table["size_target"].notna().any()),
        "remarks": training.gathered(failed),
        "missing": (),
    }


def _outcome(run: Record) -> str:
    return ": ".join(filter(None, ("" if run.status == "ok" else run.status, run.message)))


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
