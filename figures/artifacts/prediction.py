"""Predicted peak memory against the peak of the device's allocator: its error, by arm; a page per device.

A figure the paper lacks, so there is no verdict on a claim.
"""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from figures import frame
from figures.arms import by_arm
from figures.artifact import Artifact
from figures.columns import readable
from figures.draw.captions import Caption
from figures.draw.layout import Paper, legend
from figures.draw.lines import lines
from figures.draw.style import FAINT, INK, stroke_handle, strokes
from figures.frame import Records
from figures.text import one_line

#: The error that a prediction is allowed, by kind of device: of a CPU against a real run of the same operations, of a
#: GPU against the peak that CUDA's allocator reports.
TOLERANCE = {"cpu": 0.02, "cuda": 0.05}


def select(records: Records) -> list[frame.Page]:
    """Return a page per device that has measured peaks."""
    pages = []
    for device, df in frame.by_device(records):
        peaks = df[["peak_memory_predicted_mib", "peak_memory_allocated_mib"]]
        both = (df["status"] == "ok") & (peaks.fillna(0.0) > 0).all(axis=1)
        plain = ~df["compile"] & ~df["cuda_graph"]
        checks = df[both & plain]
        kind = "cuda" if (checks["predicted_for"] == "cuda").any() else "cpu"
        # on CUDA timed steps have a peak too
        measures = ["allocator_peak", "run"] if kind == "cuda" else ["allocator_peak"]
        failed = frame.each(df[df["measure"].isin(measures) & plain & (df["status"] != "ok")])
        notes = []
        for one in failed:
            why = f"{one.status}, {one_line(one.message)}"
            notes.append(f"No check of {one.arm}, batch {one.batch_size:,}: {why}.")
        notes = sorted({*notes})
        if toggled := both.sum() - len(checks):
            left_out = f"{toggled} record(s) of captured or compiled steps are left out"
            notes.append(f"{left_out}: predictions are of plain ones.")
        shown = frame.oldest_first(checks)
        pages.append(frame.Page(device=device["device"], kind=kind, df=shown, left_out=tuple(notes)))
    return [page for page in pages if len(page.df)]


def _checks(page: frame.Page) -> pd.DataFrame:
    return page.df.sort_values(["batch_size", "experiment", "cell_id"], ignore_index=True)


def table(page: frame.Page) -> pd.DataFrame:
    """Return a line per cell, in MiB; the predicted peak has cuBLAS's workspaces, where they were measured.

    The error is a share of the measured peak; below zero, too little was predicted.
    """
    checks = _checks(page).assign(device=page.device, predicted_for=page.kind)
    predicted = checks["peak_memory_predicted_mib"] + checks["workspaces_mib"].fillna(0.0)
    error = predicted / checks["peak_memory_allocated_mib"] - 1
    cell = ["experiment", "workload", "method", "variant", "ratio", "batch_size", "sequence_length"]
    return checks[["device", "predicted_for", *cell, "precision"]].assign(
        predicted_mib=predicted,
        measured_mib=checks["peak_memory_allocated_mib"],
        error=error,
        within=error.abs() <= TOLERANCE[page.kind],
        cell_id=checks["cell_id"],
    )


def by_workload(page: frame.Page, table: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Return workload, arm and lines of each arm, those of the workload with most cells first, in Fig. 1's order."""
    most = table["workload"].value_counts(sort=False).idxmax()
    groups = frame.groups(table.assign(arm=_checks(page)["arm"]), ["workload", "arm"])
    found = [(workload, arm, part) for (workload, arm), part in groups]
    return sorted(found, key=lambda group: (group[0] != most, group[0], by_arm(group[1])))


def shown(page: frame.Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm and workload, with the distribution of its error."""
    lines = []
    for workload, arm, part in by_workload(page, table):
        error = part["error"]
        ends = {"lowest_error": error.min(), "median_error": error.median()}
        ends |= {"highest_error": error.max()}
        batches = ", ".join(f"{batch:,}" for batch in sorted(set(part["batch_size"])))
        line = {"arm": arm, "workload": workload, "cells": len(part), "batches": batches}
        line |= {name: round(value, 4) + 0.0 for name, value in ends.items()}  # none below zero is shown as -0.00 %
        lines.append({**line, "within": f"{part['within'].sum()} of {len(part)}"})
    return readable(pd.DataFrame(lines))


def about(page: frame.Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return how many errors are as small as asked, how many are none at all, and which is the largest."""
    worst = int(table["error"].abs().to_numpy().argmax())
    in_bytes = (table[["predicted_mib", "measured_mib"]] * 2**20).round()
    spaces = page.df.loc[page.df["workspaces_mib"] > 0, "workspaces_mib"]
    return {
        "limit": TOLERANCE[page.kind],
        "cells": len(table),
        "exact": (in_bytes["predicted_mib"] == in_bytes["measured_mib"]).sum(),
        "missed": (~table["within"]).sum(),
        "largest": table["error"].iloc[worst],
        "at": _checks(page).iloc[worst],
        "workspaces": (spaces.min(), spaces.max()) if len(spaces) else (),
    }


def draw(page: frame.Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the error of each prediction, by arm."""
    limit, rows, band = 100 * TOLERANCE[page.kind], by_workload(page, table), "#e9eef3"
    paper = Paper(caption.title, caption.facts, caption.notes)
    [[axes]] = paper.panels(0, 0.26 * len(rows))
    batches = strokes(sorted(set(table["batch_size"])))
    points: dict[str, Any] = {"linestyle": "", "markersize": 4.5}
    handles = [stroke_handle(stroke, f"batch {batch:,}", **points) for batch, stroke in batches.items()]
    within = Patch(facecolor=band, label=f"within {limit:g} %")
    heading = "Error of the prediction, (predicted - measured) / measured, in %"
    legend(paper.body, [within, *handles], 1 + len(handles), heading, handlelength=2.2)
    axes.axvspan(-limit, limit, color=band, zorder=0)
    axes.axvline(0, color=FAINT, linewidth=0.6, zorder=1)
    for place, (_, _, part) in enumerate(rows):
        median = 100 * part["error"].median()
        axes.plot([median, median], [place - 0.32, place + 0.32], color=INK, linewidth=1.2, zorder=2)
        errors = part.assign(place=place, percent=100 * part["error"])
        lines(axes, errors, "percent", "place", "batch_size", batches, zorder=3, markeredgewidth=0.8, **points)
    widest = max(limit, 100 * table["error"].abs().max())
    axes.set_xlim(-1.15 * widest, 1.15 * widest)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    names = [arm if workload == rows[0][0] else f"{arm}, {workload}" for workload, arm, _ in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
    axes.set_xlabel("error, %; the upright stroke is the median")
    return paper.finish()


ARTIFACT = Artifact(
    name="prediction",
    summary="error of the predicted peak memory by arm, wherever the allocator's was measured; an image per device",
    experiments=("prediction", "fig1", "fig5", "fig7", "ratios", "tensorization"),
    made_by="make reproduce-prediction",
    order=80,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
)
