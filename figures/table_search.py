"""How defaults were chosen: what was tried, for how long, and what came of it, failed runs included."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pandas as pd

from bench.core.record import Record
from figures.accuracy import Percent, accuracy
from figures.claims.claims import Claim
from figures.page.drawn import Drawn
from figures.page.table import NOT_ASKED, OLDER, REMARKS, significant
from figures.runs import Shown, Slot, method_settings, searches, slot_of, stages_of
from figures.training_page import SIZE_WORDS, WISHED_WORDS, accuracy_words, bounds, drawn, notes, or_dash, reached
from figures.training_rows import final_answers, size_met

#: The experiments that try several settings per method.
EXPERIMENTS = ("accuracy_search", "late_search")

_ARM = "arm"

#: The settings that make the price of size.
_SIZE_WEIGHT, _RHO = "size_weight", "rho"


@dataclass(frozen=True)
class Try:
    """One run of a search, with those settings in which the runs of its method differ."""

    run: Record
    slot: Slot
    settings: Mapping[str, Any]
    price: float | None  # of size in units of loss, in a late stage whose settings differ in it
    accuracy: Percent | None  # None where the run did not finish
    mark: str  # † where older code made the record
    best: bool = False

    @property
    def key(self) -> str:
        """Equal for the seeds of one setting."""
        return json.dumps(self.settings, sort_keys=True)

    @property
    def rank(self) -> tuple[Any, ...]:
        """By arm and stage, then from small settings to large."""
        numbers = [(not _is_number(value), value if _is_number(value) else 0) for value in self.settings.values()]
        return (self.slot.rank, numbers, self.key, self.run.seed)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def short(value: object) -> str:
    """A setting as a config writes it.

    >>> short(0.00015), short(1000.0), short(0.05), short(None), short("optimized")
    ('1.5e-4', '1000', '0.05', 'null', 'optimized')
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):
        return json.dumps(value)
    exact = Decimal(repr(value)).normalize()
    return f"{exact:e}" if 0 < abs(exact) < Decimal("0.01") else f"{exact:f}"


def differing(runs: Sequence[Record]) -> dict[str, list[str]]:
    """By method, the names of the settings in which its runs differ, in their order; of a single run, its rates."""
    names: dict[str, list[str]] = {}
    for method in sorted({run.method for run in runs}):
        settings = [method_settings(run) for run in runs if run.method == method]
        every = dict.fromkeys(name for one in settings for name in one)
        names[method] = [
            name for name in every if len({json.dumps(one.get(name), sort_keys=True) for one in settings}) > 1
        ] or [name for name in every if len(settings) == 1 and name.startswith("lr")]
    return names


def _price(settings: Mapping[str, Any]) -> float | None:
    """1 + size_weight / rho; None where one is missing or rho is 0."""
    weight, rho = settings.get(_SIZE_WEIGHT), settings.get(_RHO)
    if weight is None or not rho:
        return None
    return float(1 + weight / rho)


def _score(tries: Sequence[Try]) -> float | None:
    """Mean accuracy over seeds; None where a run failed or missed the size that it aimed at."""
    values = [one.accuracy.value for one in tries if one.accuracy and size_met(one.run) is not False]
    return sum(values) / len(values) if len(values) == len(tries) else None


def _with_best(tries: Sequence[Try]) -> list[Try]:
    """Mark the settings with the highest score among the tries of one slot, unless all have the same."""
    keys = dict.fromkeys(one.key for one in tries)
    scores = {key: _score([one for one in tries if one.key == key]) for key in keys}
    known = [score for score in scores.values() if score is not None]
    if len(set(scores.values())) < 2:
        return list(tries)
    return [replace(one, best=scores[one.key] == max(known)) for one in tries]


def tries_of(search: Shown) -> list[Try]:
    """A row per run: by arm, stage, settings and seed."""
    names = differing(search.shown)
    by_slot: dict[Slot, list[Try]] = {}
    for run in search.shown:
        settings, slot = method_settings(run), slot_of(run)
        priced = slot.stage == "late" and not {_SIZE_WEIGHT, _RHO}.isdisjoint(names[run.method])
        one = Try(
            run,
            slot,
            {name: settings[name] for name in names[run.method] if name in settings},
            _price(settings) if priced else None,
            accuracy(final_answers({run.seed: run})) if run.status == "ok" else None,
            OLDER if run.cell_id in search.older_code else "",
        )
        by_slot.setdefault(slot, []).append(one)
    return sorted((one for tries in by_slot.values() for one in _with_best(tries)), key=lambda one: one.rank)


def _settings_text(one: Try) -> str:
    words = ", ".join(f"{name} {short(value)}" for name, value in one.settings.items())
    price = "" if one.price is None else f" (price of size {short(round(one.price, 2))})"
    return f"{words}{price}" or NOT_ASKED


def _size(value: float | None) -> str:
    return NOT_ASKED if value is None else significant(value)


def text_table(tries: Sequence[Try]) -> pd.DataFrame:
    """The table a person reads; without a size to reach it has no columns on that."""
    aimed = any(one.run.size_target is not None for one in tries)
    lines = []
    for one in tries:
        run = one.run
        loss = NOT_ASKED if run.train_loss is None else significant(run.train_loss, 4)
        line = {
            _ARM: one.slot.arm,
            "stage": f"{one.slot.goal} {one.mark}".rstrip(),
            "settings": _settings_text(one),
            "seed": str(run.seed),
            "steps": NOT_ASKED if run.train_steps is None else f"{run.train_steps:,}",
            "training loss": loss,
            "accuracy, %": run.status if one.accuracy is None else or_dash(one.accuracy),
            "S": _size(run.size_fraction),
        }
        if aimed:
            line |= {"S0": _size(run.size_target), "S <= S0": reached(size_met(run))}
        lines.append(line | {"best": "best" if one.best else "", REMARKS: run.message})
    return pd.DataFrame(lines)


def tidy_table(tries: Sequence[Try]) -> pd.DataFrame:
    """The table a program reads: a column per setting that differs within any method."""
    names = dict.fromkeys(name for one in tries for name in one.settings)
    return pd.DataFrame(
        {
            "device": one.run.device,
            "dataset": one.run.dataset,
            "experiment": one.run.experiment,
            "arm": one.slot.arm,
            "stage": one.slot.stage,
            "target_ratio": one.slot.target,
            "target_mib": one.slot.target_mib,
            "seed": one.run.seed,
            "status": one.run.status,
            REMARKS: one.run.message,
            **{f"setting_{name}": one.settings.get(name) for name in names},
            "price_of_size": one.price,
            "train_steps": one.run.train_steps,
            "train_loss": one.run.train_loss,
            "validation_examples": one.accuracy.examples if one.accuracy else None,
            **bounds("accuracy", one.accuracy),
            "size_fraction": one.run.size_fraction,
            "size_target": one.run.size_target,
            "size_met": size_met(one.run),
            "best": one.best,
            "older_code": bool(one.mark),
        }
        for one in tries
    )


def _budget(tries: Sequence[Try]) -> str:
    """How long each run was to train, and how many tries each arm had at each stage."""
    stages: dict[int, list[str]] = {}
    for one in tries:
        goals = stages.setdefault(sum(stage["steps"] for stage in stages_of(one.run)), [])
        if one.slot.goal not in goals:
            goals.append(one.slot.goal)
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


def _notes(search: Shown, tries: Sequence[Try]) -> list[str]:
    aimed = any(one.run.size_target is not None for one in tries)
    mean = " (mean over seeds, all of them finished)" if len(search.seeds) > 1 else ""
    lines = [
        f"{_budget(tries)} Differences within the interval decide nothing.",
        f"best: the highest accuracy{mean} of an arm at a stage{' among the runs with S <= S0' if aimed else ''}; "
        "no mark where all are alike.",
        "settings: those in which the runs of a method differ.",
    ]
    if any(one.price is not None for one in tries):
        lines.append(
            f"price of size: 1 + {_SIZE_WEIGHT} / {_RHO}, in units of loss, while the size of a late stage exceeds S0."
        )
    lines += [
        "training loss: mean over the steps since the last point of the learning curve.",
        accuracy_words("Wilson's interval, over examples alone"),
        f"{SIZE_WORDS}; {WISHED_WORDS}." if aimed else f"{SIZE_WORDS}.",
    ]
    return [*lines, *notes(search, tries)]


def _failures(tries: Sequence[Try]) -> list[str]:
    """A sentence on every run that failed or has something to say."""
    return [
        f"{one.slot.arm}, {one.slot.goal}, {_settings_text(one)}, seed {one.run.seed}: "
        f"{': '.join(filter(None, (one.run.status, one.run.message))).rstrip('.')}."
        for one in tries
        if one.run.status != "ok" or one.run.message
    ]


def of_search(search: Shown) -> Drawn:
    """The table of one experiment, device and dataset."""
    tries = tries_of(search)
    lines = _notes(search, tries)
    title = f"Settings tried in {search.experiment}: {search.dataset!r}"
    drawing = drawn(
        "table_search", title, search, text_table(tries), tidy_table(tries), lines, (),
        below=[*_failures(tries), *lines], left_aligned=frozenset({_ARM, "stage", "settings", "best", REMARKS}),
    )  # fmt: skip
    return replace(drawing, section=_ARM)


def render(records: Sequence[Record], _: dict[str, Claim]) -> list[Drawn]:
    """One table per experiment, device and dataset; no published claim is about these runs."""
    return [of_search(search) for search in searches(records)]
