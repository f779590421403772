"""Layers, look-ups and steps of a device against float64 on a CPU: the largest error of each, and what was allowed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from figures.arms import ARMS, PRECISIONS
from figures.artifact import Artifact
from figures.columns import readable
from figures.draw.facts import reasons
from figures.frame import Page, dicts, each, pages

_ORDER = {"workload": ("linear", "lookup", "encoder"), "arm": ARMS, "precision": PRECISIONS}

_PASSED: Mapping[bool | None, str] = {True: "yes", False: "no", None: ""}


def _what(row: Mapping[str, Any]) -> str:
    """Name a layer, a look-up, or the steps of an arm."""
    if row["workload"] == "linear":
        return f"layer, {row.get('workload.in_features')} to {row.get('workload.out_features')}"
    if row["workload"] == "lookup":
        return f"look-up, {row.get('method.lookup')}"
    return f"steps, {row['arm']}{', reset' if row.get('method.reset') else ''}"


def _place(column: pd.Series) -> pd.Series:
    """Order layers, look-ups and steps, each from the most exact arithmetic to the least; others last."""
    order = {name: place for place, name in enumerate(_ORDER.get(str(column.name), ()))}
    return column.map(order) if order else column


def table(page: Page) -> pd.DataFrame:
    """Return a line per check, ``passed`` empty where it has no meaning on the device; one per cell without checks."""
    df = page.df.assign(what=[_what(row) for row in dicts(page.df, "workload", "arm", "workload.*", "method.*")])
    df = df.sort_values(["workload", "arm", "what", "precision"], key=_place)
    lines = []
    for one, samples in zip(each(df), dicts(df, "samples.checks"), strict=True):
        cell = {name: getattr(one, name) for name in ("device", "what", "precision", "status")}
        checks: Sequence[Mapping[str, Any]] = samples.get("samples.checks") or ({},)
        for check in checks:
            line = {"check": check.get("name", ""), "error": check.get("error")}
            line |= {"tolerance": check.get("tolerance"), "passed": _PASSED[check.get("passed")]}
            message = check.get("message", one.message)
            lines.append({**cell, **line, "message": message, "cell_id": one.cell_id})
    return pd.DataFrame(lines)


def shown(page: Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per cell: how many checks passed, and that which used most of what it is allowed."""
    judged = table[table["passed"] != ""]
    used = (judged["error"].astype(float) / judged["tolerance"].astype(float)).fillna(math.inf)
    worst = judged.assign(used=used).sort_values("used", ascending=False, kind="stable")
    worst = worst.drop_duplicates("cell_id")
    worst["error"] = worst["error"].astype(object).fillna("no result")
    cells = table.drop_duplicates("cell_id")[["what", "precision", "status", "cell_id"]]
    cells = cells.merge(worst[["cell_id", "error", "tolerance", "check"]], how="left")
    passed = (judged["passed"] == "yes").groupby(judged["cell_id"]).agg(["sum", "size"])
    passed = passed.reindex(cells["cell_id"], fill_value=0)
    cells["passed"] = [f"{good} of {checks}" for good, checks in passed.to_numpy()]
    cells["older_code"] = cells["cell_id"].isin(page.older_code)
    return readable(cells, ["what", "precision", "passed", "error", "tolerance", "check"])


def about(_: Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return how many checks of how many cells passed, those that failed, and what was not checked for which reason."""
    without, unjudged = table["check"] == "", table["passed"] == ""
    return {
        "judged": (~unjudged).sum(),
        "cells": table["cell_id"].nunique(),
        "without": without.sum(),
        "failed": table[table["passed"] == "no"].to_dict("records"),
        "unchecked": {
            **reasons(table[unjudged & ~without], "check"),
            **reasons(table[without], "what", "precision"),
        },
    }


ARTIFACT: Artifact[Page] = Artifact(
    name="table_correctness",
    summary="layers, look-ups and steps on a device against float64 on a CPU: errors and what was allowed; "
    "a table per device",
    experiments=("correctness",),
    measure="check",
    order=90,
    select=pages,
    table=table,
    shown=shown,
    about=about,
)
