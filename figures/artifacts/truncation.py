"""Truncation: step time, peak memory and accuracy against the size left; the paper has no such figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures.artifact import Artifact
from figures.claims.training import LATE
from figures.columns import lines_of, readable, table_of
from figures.page import training
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.style import DENSE_STROKE, EARLY_STROKE, FAINT, INK, MEMORY_FILLS, bounds_handles, fill_handle, note
from figures.records.cells import CATEGORIES, parts_of_peak
from figures.records.studies import Study
from figures.text import bounds

#: Lines of the table.
Lines = Sequence[Mapping[str, Any]]

#: What is drawn of lines, each with how high it goes.
Tops = Sequence[tuple[float, Mapping[str, Any]]]

#: Lines at the size below which nothing can be cut, and at the full ranks.
_SMALLEST: dict[str, Any] = {"color": FAINT, "linewidth": 0.8, "linestyle": (0, (1, 1.5))}
_FULL: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (5, 2))}
_POINT: dict[str, Any] = {"marker": "o", "markersize": 5, "color": EARLY_STROKE.colour}
_DENSE: dict[str, Any] = {"color": DENSE_STROKE.colour, "linewidth": 1.2}


def table(study: Study) -> pd.DataFrame:
    """Return a line per run: size, step time at the trained over that at the full ranks, predicted memory, metric."""
    lines = []
    for row in study.rows:
        times, parts = row.times, row.peak_parts
        lines.append(
            {
                "device": study.device,
                "dataset": study.dataset,
                "run": row.name,
                "status": row.status,
                "seeds": training.seeds_of(row),
                "stored_mib": row.mean("stored_mib"),
                "tensorized_mib": row.mean("tensorized_mib"),
                **bounds("step_trained_over_full", times and times.ratio),
                "blocks": times and times.ratio.blocks,
                "step_trained_ms": times and times.trained,
                "step_full_ms": times and times.full,
                "nothing_cut": row.nothing_cut,
                "predicted_peak_mib": row.mean("peak_memory_predicted_mib"),
                **{f"predicted_{name}_mib": parts.get(name) for name in CATEGORIES},
                **bounds(study.metric.name, row.score()),
                "older_code": bool(row.mark),
            }
        )
    return table_of(lines)


def shown(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without the parts of memory."""
    metric = study.metric
    columns = ["run", "stored_mib", "tensorized_mib", "step_trained_over_full", "step_trained_ms"]
    more = {metric.name: training.metric_format(metric)}
    text = readable(table, [*columns, "predicted_peak_mib", metric.name], more)
    untimed = table["nothing_cut"] & table["step_trained_over_full"].isna()
    text.loc[untimed, "step time, trained / full"] = "1 (nothing cut)"
    return text


def about(study: Study, table: pd.DataFrame) -> dict[str, Any]:
    """Return the sizes of what was timed, and whether the ratio of step times varies."""
    varies = bool((table["step_trained_over_full_low"] != table["step_trained_over_full_high"]).any())
    return {
        **training.about_study(study, table),
        "varies": varies and bool(table["step_trained_over_full"].notna().any()),
    }


def _name_points(axes: Any, tops: Tops) -> None:
    """Name each point above its top; a name that would meet another one goes higher."""
    bottom, top = axes.get_ylim()
    right = axes.get_xlim()[1]
    placed: list[tuple[float, float]] = []
    for y, line in sorted(tops, key=lambda pair: pair[0]):
        x, height = line["stored_mib"] / right, (y - bottom) / (top - bottom)
        while any(abs(x - other) < 0.15 and abs(height - level) < 0.045 for other, level in placed):
            height += 0.045
        placed.append((x, height))
        style = {"xycoords": "axes fraction", "ha": "center", "va": "bottom", "fontsize": 6.5}
        box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "linewidth": 0}
        note(axes, line["run"].rpartition(", ")[2], (x, height), (0, 4), bbox=box, **style)


def _draw_times(axes: Any, lines: Lines) -> Tops:
    axes.axhline(1, **_FULL)
    tops: list[tuple[float, Mapping[str, Any]]] = []
    for line in lines:
        size, ratio = line["stored_mib"], line["step_trained_over_full"]
        if not pd.isna(ratio):
            low, high = training.span_of(line, "step_trained_over_full")
            if low != high:
                training.whisker(axes, size, (low, high))
            axes.plot([size], [ratio], **_POINT, zorder=4)
            tops.append((max(ratio, high), line))
        elif line["nothing_cut"]:
            axes.plot([size], [1], **_POINT, markerfacecolor="white", zorder=4)
            tops.append((1.0, line))
    axes.set_ylim(0, 1.3 * max([1.0, *(top for top, _ in tops)]))
    return tops


def _parts(line: Mapping[str, Any]) -> dict[str, float]:
    """Return a predicted peak by category."""
    return parts_of_peak(line["predicted_peak_mib"], {name: line[f"predicted_{name}_mib"] for name in CATEGORIES})


def _draw_memory(axes: Any, lines: Lines, dense: float | None) -> Tops:
    width = 0.05 * axes.get_xlim()[1]
    tops = [(line["predicted_peak_mib"], line) for line in lines if not pd.isna(line["predicted_peak_mib"])]
    for _, line in tops:
        bottom = 0.0
        for name, mib in _parts(line).items():
            axes.bar(line["stored_mib"], mib, width, bottom=bottom, linewidth=0.4, **MEMORY_FILLS[name].look)
            bottom += mib
        axes.bar(line["stored_mib"], bottom, width, facecolor="none", edgecolor=INK, linewidth=0.5)
    if dense is not None:
        axes.axhline(dense, **_DENSE)
    axes.set_ylim(0, 1.25 * max([top for top, _ in tops] + [dense or 0.0]) or 1.0)
    return tops


def _draw_score(axes: Any, name: str, lines: Lines, dense: Mapping[str, Any] | None) -> Tops:
    if dense is not None and not pd.isna(dense[name]):
        axes.axhspan(*training.span_of(dense, name), color=DENSE_STROKE.colour, alpha=0.12, linewidth=0)
        axes.axhline(dense[name], **_DENSE)
    tops: list[tuple[float, Mapping[str, Any]]] = []
    for line in lines:
        if not pd.isna(line[name]):
            span = training.span_of(line, name)
            training.whisker(axes, line["stored_mib"], span)
            axes.plot([line["stored_mib"]], [line[name]], **_POINT, zorder=4)
            tops.append((span[1], line))
    axes.margins(y=0.16)
    axes.autoscale_view()
    return tops


def _legend(study: Study, lines: Lines) -> list[Any]:
    names = {line["run"] for line in lines}
    rows = [row for row in study.rows if row.name in names]
    found = {part for line in lines if not pd.isna(line["predicted_peak_mib"]) for part in _parts(line)}
    words = {"optimizer": "optimizer state"}
    return [
        Line2D([], [], linestyle="", label="CoMERA, by stage", **_POINT),
        *bounds_handles(estimate for row in rows for estimate in (row.times and row.times.ratio, row.score())),
        Line2D([], [], label="dense (band: its bounds)", **_DENSE),
        Line2D([], [], label="full ranks (hollow: nothing cut)", **_FULL),
        Line2D([], [], label="what stays dense: the smallest size", **_SMALLEST),
        *(fill_handle(fill, words.get(name, name)) for name, fill in MEMORY_FILLS.items() if name in found),
    ]


def draw(study: Study, table: pd.DataFrame, caption: Caption) -> Figure:
    """Tensorized models from the largest to the smallest; dense stands beside them as a line."""
    name = study.metric.name
    sized = table.dropna(subset=["stored_mib", "tensorized_mib"]).sort_values("stored_mib", ascending=False)
    lines = lines_of(sized)
    whole = [row.name for row in study.rows if row.is_whole_dense]
    dense = next(iter(lines_of(table[table["run"].isin(whole)])), None)
    devices = ", ".join({"cuda": "CUDA", "cpu": "a CPU"}[one] for one in study.values("predicted_for") if one)
    predicted = f"b  peak memory, predicted{f' for {devices}' if devices else ''}"
    titles = ("a  step time", predicted, f"c  {study.metric.short}")
    paper, [axes] = panel_page(caption, [titles], 2.5, _legend(study, lines), 5)
    for one in axes:
        one.set_xlabel("size of the truncated model, MiB", fontsize=8)
        if not lines:
            training.nothing_finished(one)
    if not lines:
        return paper.finish()
    stays = (sized["stored_mib"] - sized["tensorized_mib"]).min()
    for one in axes:
        one.set_xlim(0, 1.12 * lines[0]["stored_mib"])
        one.axvline(stays, **_SMALLEST, zorder=1)
    peak = None if dense is None or pd.isna(dense["predicted_peak_mib"]) else dense["predicted_peak_mib"]
    tops = (_draw_times(axes[0], lines), _draw_memory(axes[1], lines, peak), _draw_score(axes[2], name, lines, dense))
    labels = ("step time, trained / full ranks", "predicted peak memory, MiB", study.metric.axis)
    for one, found, label in zip(axes, tops, labels, strict=True):
        _name_points(one, found)
        one.set_ylabel(label, fontsize=8)
    return paper.finish()


ARTIFACT = Artifact(
    name="truncation",
    heading="What truncation saves",
    summary="step time, peak memory and accuracy against the physically truncated size; an image per device and "
    "dataset",
    order=170,
    **training.OF_STUDIES,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
    rules=LATE,
)
