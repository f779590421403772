"""Layers, look-ups and steps of a device against float64 on a CPU: the largest error of each, and what was allowed."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from bench.core.record import Record
from figures.arms import ARMS
from figures.artifact import Artifact
from figures.columns import readable, table_of
from figures.draw.captions import beside
from figures.draw.facts import reasons
from figures.frame import Page, pages, settings_of

_WORKLOADS = ("linear", "lookup", "encoder")
_PRECISIONS = ("fp32", "tf32", "bf16")

_PASSED: Mapping[bool | None, str] = {True: "yes", False: "no", None: ""}


def _what(record: Record) -> str:
    """Name a layer, a look-up, or the steps of an arm."""
    settings, sizes = settings_of(record, "method_settings"), settings_of(record, "workload_settings")
    if record.workload == "linear":
        return f"layer, {sizes.get('in_features')} to {sizes.get('out_features')}"
    if record.workload == "lookup":
        return f"look-up, {settings.get('lookup')}"
    return f"steps, {record.arm}{', reset' if settings.get('reset') else ''}"


def _place(record: Record) -> tuple[int, int, str, int]:
    """Order layers, look-ups and steps, each from the most exact arithmetic to the least."""
    places = zip((_WORKLOADS, ARMS, _PRECISIONS), (record.workload, record.arm, record.precision), strict=True)
    workload, arm, precision = (names.index(one) if one in names else len(names) for names, one in places)
    return workload, arm, _what(record), precision


def table(page: Page) -> pd.DataFrame:
    """Return a line per check, ``passed`` empty where it has no meaning on the device; one per cell without checks."""
    lines = []
    for record in sorted(page.shown, key=_place):
        checks: Sequence[Mapping[str, Any]] = record.samples.get("checks") or ({},)
        for check in checks:
            lines.append(
                {
                    "device": record.device,
                    "what": _what(record),
                    "precision": record.precision,
                    "status": record.status,
                    "check": check.get("name", ""),
                    "error": check.get("error"),
                    "tolerance": check.get("tolerance"),
                    "passed": _PASSED[check.get("passed")],
                    "message": check.get("message", record.message),
                    "cell_id": record.cell_id,
                }
            )
    return table_of(lines)


def shown(page: Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per cell: how many checks passed, and that which used most of what it is allowed."""
    lines: list[dict[str, Any]] = []
    for cell, part in table.groupby("cell_id", sort=False):
        judged = part[part["passed"] != ""]
        line = {name: part[name].iloc[0] for name in ("what", "precision", "status")}
        line["passed"] = f"{(judged['passed'] == 'yes').sum()} of {len(judged)}"
        line["older_code"] = cell in page.older_code
        if len(judged):
            used = judged["error"].astype(float) / judged["tolerance"].astype(float)
            order = used.fillna(float("inf")).sort_values(ascending=False, kind="stable")
            worst = judged.reindex(order.index).iloc[0]
            error = "no result" if pd.isna(worst["error"]) else worst["error"]
            line |= {"error": error, "tolerance": worst["tolerance"], "check": worst["check"]}
        lines.append(line)
    columns = ["what", "precision", "passed", "error", "tolerance", "check"]
    return readable(pd.DataFrame(lines, columns=[*columns, "status", "older_code"]), columns)


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
    heading="Correctness on the device",
    summary="layers, look-ups and steps on a device against float64 on a CPU: errors and what was allowed; "
    "a table per device",
    experiments=("correctness",),
    measure="check",
    order=90,
    select=pages,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
)
