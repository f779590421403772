"""The settings that were tried to choose defaults, with their results, failed runs included."""

import functools
import json
import math
from decimal import Decimal
from typing import Any

import pandas as pd

from figures.artifact import Artifact
from figures.columns import readable
from figures.draw import training
from figures.frame import each, settings_of
from figures.stats.metric import score
from figures.stats.seeds import with_estimates
from figures.stats.studies import PROBES, Runs, searches
from figures.stats.training import curve_of, stages_of
from figures.text import NOT_ASKED

EXPERIMENTS = (
    *("accuracy_search", "late_search", "code_search"),
    *("code_prices", "code_stages_search", "dlrm_search"),
)


def _differing(df: pd.DataFrame) -> dict[str, list[str]]:
    """Return by method the settings in which its runs differ, in their order; of a single run, its rates."""
    names = {}
    for method, runs in df.groupby("method"):
        settings = [settings_of(record, "method_settings") for record in runs["record"]]
        every = dict.fromkeys(name for one in settings for name in one)
        values = [{name: json.dumps(one.get(name), sort_keys=True) for name in every} for one in settings]
        apart = [name for name in every if len({one[name] for one in values}) > 1]
        rates = [name for name in every if len(settings) == 1 and name.startswith("lr")]
        names[str(method)] = apart or rates
    return names


@functools.cache
def tries_of(search: Runs) -> pd.DataFrame:
    """Return a line per run that was tried, by arm and stage, from small settings to large, then by seed.

    ``settings`` has those in which the runs of its method differ; ``price`` is that of size, 1 + size_weight / rho, in
    a later stage whose settings differ in it; ``gain`` is what it reached, the larger the better, and missing where it
    failed or missed its size.
    """
    metric, names, lines = search.metric, _differing(search.df), []
    for run in each(search.df):
        given, apart = settings_of(run.record, "method_settings"), names[run.method]
        settings = {name: given[name] for name in apart if name in given}
        text, price = ", ".join(f"{name} {short(value)}" for name, value in settings.items()), None
        weight, rho = given.get("size_weight"), given.get("rho")
        is_searched = len(run.slot.stages) > 1 and {"size_weight", "rho"} & {*apart}
        if is_searched and rho and weight is not None:
            price = 1 + weight / rho
            text += f" (price of size {short(round(price, 2))})"
        reached = score(metric, {run.seed: curve_of(run.record)[-1]} if run.status == "ok" else {})
        line: dict[str, Any] = {
            "settings": settings,
            "key": json.dumps(settings, sort_keys=True),
            "text": text or NOT_ASKED,
        }
        line |= {"price": price, "score": reached, "stage": run.slot.stage, "goal": run.slot.goal}
        line |= {"target_ratio": run.slot.target, "target_mib": run.slot.target_mib}
        line["gain"] = metric.gain(reached.value, 0.0) if reached and run.size_met is not False else None
        numbers = [value if _is_number(value) else math.inf for value in settings.values()]
        lines.append(line | {"place": (run.slot.rank, numbers, line["key"], run.seed)})
    found = search.df.assign(**pd.DataFrame(lines, search.df.index), older_code=search.is_older(search.df))
    return found.loc[sorted(found.index, key=lambda at: found["place"][at])]


def slots_of(tries: pd.DataFrame) -> list[dict[str, Any]]:
    """Return by arm and stage how it was searched.

    ``best`` are the lines with the best score, none where all have the same; ``edges`` the settings whose best value
    lies at an edge of those tried: name, value, ``lowest`` or ``highest``, and of how many. Settings are ``tangled``
    where there is a best and numbers varied together, neither over a grid nor all rising as one.
    """
    found = []
    for slot in tries["slot"].unique():
        mine = tries[tries["slot"] == slot]
        gains = mine.groupby("key")["gain"].agg(lambda gain: gain.mean(skipna=False))
        is_best = mine["key"].isin(gains.index[gains == gains.max()]) & (gains.nunique(dropna=False) > 1)
        settings = pd.DataFrame(list(mine["settings"]), mine.index)[list(mine["settings"].iloc[0])]
        settings = settings.loc[:, (settings.map(_is_number) & settings.notna()).all()]
        settings = settings.loc[:, settings.nunique() > 1]
        edges = []
        for name, tried in settings.items():
            values, chosen = sorted(set(tried)), set(tried[is_best])
            if len(chosen) == 1 and chosen <= {values[0], values[-1]}:
                [value] = chosen
                edges.append((name, short(value), "lowest" if value == values[0] else "highest", len(values)))
        points = settings.drop_duplicates()
        ordered = points.sort_values(list(points.columns)) if len(points.columns) else points
        rise_as_one = all(values.is_monotonic_increasing and values.is_unique for _, values in ordered.items())
        found.append(
            {
                "slot": slot,
                "name": f"{slot.arm}, {slot.goal}" if tries["goal"].nunique() > 1 else slot.arm,
                "count": len(mine),
                "searched": len(gains) > 1,
                "best": list(mine.index[is_best]),
                "edges": edges,
                "tangled": is_best.any() and not rise_as_one and len(points) != math.prod(settings.nunique()),
            }
        )
    return found


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


def table(search: Runs) -> pd.DataFrame:
    """Return a line per try, with a column for each setting in which the runs of any method differ."""
    tries = tries_of(search).assign(best=False, best_edge="")
    for slot in slots_of(tries):
        tries.loc[slot["best"], "best"] = True
        words = ", ".join(f"{name} {where}" for name, _, where, _ in slot["edges"]) or "inside"
        tries.loc[slot["best"], "best_edge"] = words
        if not slot["searched"]:
            tries.loc[tries["slot"] == slot["slot"], "best_edge"] = "not searched"
    names = dict.fromkeys(name for settings in tries["settings"] for name in settings)
    tried: dict[str, Any] = {f"setting_{name}": [one.get(name) for one in tries["settings"]] for name in names}
    tries = with_estimates(tries, {search.metric.name: tries["score"]}).assign(
        **tried,
        experiment=search.experiment,
        remarks=tries["message"],
        price_of_size=tries["price"],
        validation_examples=[one and one.examples for one in tries["score"]],
    )
    columns = ["device", "dataset", "experiment", "arm", "stage", "target_ratio", "target_mib"]
    columns += ["seed", "status", "remarks", *tried, "price_of_size", "train_steps", "train_loss"]
    columns += ["validation_examples", *training.ends(search.metric.name)]
    columns += ["size_fraction", "size_target", "size_met"]
    return tries[[*columns, "best", "best_edge", "older_code"]].reset_index(drop=True)


def shown(search: Runs, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the settings in one column; sizes only where a run aimed at one."""
    metric, tries = search.metric, tries_of(search).reset_index(drop=True)
    best = table["best"].map({True: "best", False: ""})
    own = table.assign(stage=tries["goal"], settings=tries["text"], best=best)
    sizes = ["size_fraction", "size_target", "size_met"] if table["size_target"].notna().any() else []
    columns = ["arm", "stage", "settings", "seed", metric.name, *sizes, "best", "best_edge"]
    return readable(own, columns, {metric.name: training.metric_format(metric)})


def about(search: Runs, table: pd.DataFrame) -> dict[str, Any]:
    """Return how long and how often each arm was tried, where the best values lie, and which runs failed."""
    tries = tries_of(search)
    steps = tries["record"].map(lambda record: sum(stage["steps"] for stage in stages_of(record)))
    remarks = []
    for one in each(tries):
        words = ": ".join(filter(None, ("" if one.status == "ok" else one.status, one.message)))
        remarks += [(f"{one.arm}, {one.goal}, {one.text}, seed {one.seed}", words)] * bool(words)
    return {
        **training.about(search, remarks=remarks),
        "steps": {count: list(goals.unique()) for count, goals in tries["goal"].groupby(steps, sort=False)},
        "several_stages": tries["goal"].nunique() > 1,
        "slots": slots_of(tries),
        "priced": bool(table["price_of_size"].notna().any()),
        "aimed": bool(table["size_target"].notna().any()),
    }


ARTIFACT = Artifact(
    name="table_search",
    summary="settings tried for each method with the loss, accuracy and size they reached; "
    "a table per device, dataset and experiment",
    experiments=EXPERIMENTS,
    measure="train",
    lenders=PROBES,
    order=150,
    select=searches,
    table=table,
    shown=shown,
    about=about,
    section="arm",
)
