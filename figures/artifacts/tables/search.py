"""How defaults were chosen: what was tried, for how long, and what came of it, failed runs included."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from bench.core.record import Record
from figures.artifact import Artifact
from figures.page import training as shared
from figures.page.drawn import Caption
from figures.page.notes import closing_notes
from figures.records.metric import Score, score
from figures.records.select import method_settings
from figures.records.studies import PROBES, Runs, searches, size_met
from figures.records.training import TrainingSlot, curve_of, slot_of, stages_of
from figures.text import NOT_ASKED, REMARKS, Column, bounds, counted, significant

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
        """Where the best lies among the values that were tried; empty for all other tries."""
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
        """By arm and stage, then from small settings to large."""
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
    """A setting as a config writes it.

    >>> short(0.00015), short(1000.0), short(0.05), short(None), short("optimized")
    ('1.5e-4', '1000', '0.05', 'null', 'optimized')
    """
    if not _is_number(value):
        return value if isinstance(value, str) else json.dumps(value)
    exact = Decimal(repr(value)).normalize()
    return f"{exact:e}" if 0 < abs(exact) < Decimal("0.01") else f"{exact:f}"


def differing(runs: Sequence[Record]) -> dict[str, list[str]]:
    """By method, the names of the settings in which its runs differ, in their order; of a single run, its rates."""
    names = {}
    for method in sorted({run.method for run in runs}):
        settings = [method_settings(run) for run in runs if run.method == method]
        every = dict.fromkeys(name for one in settings for name in one)
        apart = [name for name in every if len({json.dumps(one.get(name), sort_keys=True) for one in settings}) > 1]
        names[method] = apart or [name for name in every if len(settings) == 1 and name.startswith("lr")]
    return names


def _gain(tries: Sequence[Try]) -> float | None:
    """The mean score over seeds, the larger the better; None where a run failed or missed the size it aimed at."""
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
    """By name, the values of every setting that is a number in all tries of a slot, and not the same one."""
    names = dict.fromkeys(name for one in tries for name in one.settings)
    found = {name: [one.settings.get(name) for one in tries] for name in names}
    numbers = {
        name: sorted({float(value) for value in values if value is not None})
        for name, values in found.items()
        if all(map(_is_number, values))
    }
    return {name: values for name, values in numbers.items() if len(values) > 1}


def _place(best: Sequence[float], tried: Sequence[float]) -> str:
    """Where the best values, which are several where tries are alike, lie among the sorted ones."""
    if any(tried[0] < value < tried[-1] for value in best) or len(set(best)) > 1:
        return _INSIDE
    return _LOWEST if best[0] == tried[0] else _HIGHEST


def _is_tangled(tries: Sequence[Try]) -> bool:
    """Whether numbers of a slot varied together, neither over a grid nor all rising as one."""
    varied = _varied(tries)
    points = sorted({tuple(one.settings[name] for name in varied) for one in tries})
    axes = zip(*points, strict=True)
    rise_as_one = all([*values] == sorted(set(values)) for values in axes)
    return not rise_as_one and len(points) != math.prod(map(len, varied.values()))


def rows_of(search: Runs) -> list[Try]:
    """A row per run: by arm, stage, settings and seed."""
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


def _aimed(tries: Sequence[Try]) -> bool:
    return any(one.run.size_target is not None for one in tries)


def columns(search: Runs, tries: Sequence[Try]) -> list[Column[Try]]:
    """The CSV has a column per setting that differs within any method. People see S0 only where a run had one."""
    metric = search.metric
    names = dict.fromkeys(name for one in tries for name in one.settings)

    def of_record(name: str, column: str, digits: int = 3) -> Column[Try]:
        def text(one: Try) -> str:
            return significant(getattr(one.run, column), digits)

        return Column(name, text, lambda one: {column: getattr(one.run, column)})

    def head(one: Try) -> dict[str, object]:
        return {"device": search.device, "dataset": search.dataset, "experiment": search.experiment, "arm": one.run.arm}

    def stage(one: Try) -> dict[str, object]:
        about = {"stage": one.slot.stage, "target_ratio": one.slot.target, "target_mib": one.slot.target_mib}
        return {**about, "seed": one.run.seed, "status": one.run.status, REMARKS: one.run.message}

    def settings(one: Try) -> dict[str, object]:
        return {f"setting_{name}": one.settings.get(name) for name in names} | {"price_of_size": one.price}

    def reached(one: Try) -> dict[str, object]:
        return {"validation_examples": one.score and one.score.examples, **bounds(metric.name, one.score)}

    def met(one: Try) -> dict[str, object]:
        return {"size_met": size_met(one.run)}

    reach = Column[Try]("S <= S0", lambda one: shared.reached(size_met(one.run)), met)
    targets = [of_record("S0", "size_target"), reach]
    return [
        Column("arm", lambda one: one.slot.arm, head, left=True),
        Column("stage", lambda one: f"{one.slot.goal} {one.mark}".rstrip(), stage, left=True),
        Column("settings", lambda one: one.settings_text, settings, left=True),
        Column("seed", lambda one: one.run.seed),
        Column("steps", lambda one: counted(one.run.train_steps), lambda one: {"train_steps": one.run.train_steps}),
        of_record("training loss", "train_loss", 4),
        Column(metric.heading, lambda one: one.score or one.run.status, reached),
        of_record("S", "size_fraction"),
        *(column if _aimed(tries) else replace(column, text=None) for column in targets),
        Column("best", lambda one: "best" if one.best else "", lambda one: {"best": one.best}, left=True),
        Column("at an edge", lambda one: one.edge, lambda one: {"best_edge": one.edge}, left=True),
        Column(REMARKS, lambda one: one.run.message, lambda one: {"older_code": bool(one.mark)}, left=True),
    ]


def _budget(tries: Sequence[Try]) -> str:
    """How long each run was to train, and how many tries each arm had at each stage."""
    stages: dict[int, dict[str, None]] = {}
    for one in tries:
        stages.setdefault(sum(stage["steps"] for stage in stages_of(one.run)), {})[one.slot.goal] = None
    several = len({one.slot.goal for one in tries}) > 1
    steps = ", ".join(
        f"{n:,} steps each" + (f" ({', '.join(goals)})" if several else "") for n, goals in stages.items()
    )
    counts = Counter(one.slot for one in tries)
    if len(set(counts.values())) > 1:
        found = "; ".join(f"{slot.arm}, {slot.goal}: {count}" for slot, count in counts.items())
        return f"Unequal budget: {steps}; tries: {found}."
    [count] = set(counts.values())
    tried = f"{count} {'try' if count == 1 else 'tries'} per arm{' and stage' if several else ''}"
    return f"Equal budget: {steps}, {tried}."


def edge_notes(tries: Sequence[Try]) -> list[str]:
    """Say which best values lie at an edge of what was tried, which arms were not searched, and how edges are told."""
    slots: dict[TrainingSlot, list[Try]] = {}
    for one in tries:
        slots.setdefault(one.slot, []).append(one)
    several = len({slot.goal for slot in slots}) > 1
    edges, alone, none, joint = [], [], [], []
    for slot, found in slots.items():
        name = f"{slot.arm}, {slot.goal}" if several else slot.arm
        best, varied = next((one for one in found if one.best), None), _varied(found)
        if found[0].alone:
            alone.append(name)
        elif best is None:
            none.append(name)
        else:
            places = [
                f"{setting} {short(best.settings[setting])}, the {where} of {len(varied[setting])}"
                for setting, where in best.edges
                if where != _INSIDE
            ]
            edges += [f"{name} ({'; '.join(places)})"] if places else []
            joint += [name] if _is_tangled(found) else []
    searched = len(slots) - len(alone) - len(none)
    return [
        *(
            [f"The best value lies at an edge of those tried, so a better one may lie beyond: {'; '.join(edges)}."]
            if edges
            else []
        ),
        *(["No best value lies at an edge of those tried."] if searched and not edges else []),
        *([f"Not searched, one setting was tried: {'; '.join(alone)}."] if alone else []),
        *([f"Without a best value, since all tries are alike or failed: {'; '.join(none)}."] if none else []),
        *(
            [
                f"Settings moved together and not over a grid ({'; '.join(joint)}): "
                "each is judged by its own values alone."
            ]
            if joint
            else []
        ),
    ]


def caption(search: Runs, tries: Sequence[Try]) -> Caption:
    metric, aimed = search.metric, _aimed(tries)
    mean = " (mean over seeds, all of them finished)" if len(search.seeds) > 1 else ""
    best = f"the {'highest' if metric.higher_is_better else 'lowest'} {metric.short}{mean}"
    price = f"price of size: 1 + {_SIZE_WEIGHT} / {_RHO}, in units of loss, while the size of a late stage exceeds S0."
    failures = []
    for one in (one for one in tries if one.run.status != "ok" or one.run.message):
        outcome = ": ".join(filter(None, (one.run.status, one.run.message))).rstrip(".")
        failures.append(f"{one.slot.arm}, {one.slot.goal}, {one.settings_text}, seed {one.run.seed}: {outcome}.")
    return Caption(
        title=f"Settings tried in {search.experiment}: {search.dataset!r}",
        facts=shared.facts(search),
        notes=(
            f"{_budget(tries)} Differences within the bounds decide nothing.",
            f"best: {best} of an arm at a stage{' among the runs with S <= S0' if aimed else ''}; no mark where all "
            "are alike.",
            *edge_notes(tries),
            "settings: those in which the runs of a method differ.",
            *([price] if any(one.price is not None for one in tries) else []),
            "training loss: mean over the steps since the last point of the learning curve.",
            shared.metric_words(search),
            shared.size_words(search, aimed),
            *shared.dense_note(search),
            *closing_notes(search),
        ),
        remarks=failures,
    )


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
    rows=rows_of,
    columns=columns,
    caption=caption,
    section="arm",
)
