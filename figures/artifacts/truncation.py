"""Truncation: step time, peak memory and accuracy against the size left; the paper has no such figure."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.core.intervals import Estimate, paired_ratio
from bench.core.record import Record, RecordError
from figures.artifact import Artifact
from figures.claims.training import LATE
from figures.columns import bounds_kinds, readable
from figures.draw import training
from figures.draw.captions import Caption
from figures.draw.layout import panel_page
from figures.draw.style import (
    DENSE_STROKE,
    EARLY_STROKE,
    FAINT,
    INK,
    MEMORY_FILLS,
    fill_handle,
    note,
    whisker_handles,
)
from figures.frame import each
from figures.stats.cells import CATEGORIES, by_category
from figures.stats.seeds import Finished, with_estimates
from figures.stats.studies import Study
from figures.stats.training import curve_of, ranks_before
from figures.text import bounds_kinds_of

_SMALLEST: dict[str, Any] = {"color": FAINT, "linewidth": 0.8, "linestyle": (0, (1, 1.5))}
_FULL: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (5, 2))}
_POINT: dict[str, Any] = {"marker": "o", "markersize": 5, "color": EARLY_STROKE.colour}
_DENSE: dict[str, Any] = {"color": DENSE_STROKE.colour, "linewidth": 1.2}


def _block_means(run: Record, ranks: str) -> list[float]:
    """Return the mean step time in ms of each block at the ``trained`` or at the ``full`` ranks."""
    try:
        blocks = run.samples["step_ms"][ranks]
        if blocks and all(ms > 0 for block in blocks for ms in block):
            return [sum(block) / len(block) for block in blocks]
    except (KeyError, TypeError, ZeroDivisionError):
        pass
    needed = f"samples.step_ms.{ranks} must be blocks of times above 0"
    raise RecordError(f"record {run.cell_id}: {needed}.")


def _step_times(runs: Finished) -> tuple[float, float, Estimate] | None:
    """Return step time at the trained and at the full ranks, in ms, and their ratio, paired over blocks of all seeds.

    Raises RecordError where they cannot be paired.
    """
    above, below = list[float](), list[float]()
    for run in runs.values():
        if run.samples.get("step_ms"):
            above += _block_means(run, "trained")
            below += _block_means(run, "full")
            if len(above) != len(below):
                counts = "samples.step_ms has not as many blocks of both ranks"
                raise RecordError(f"record {run.cell_id}: {counts}.")
    if not above:
        return None
    ratio = paired_ratio(dict(enumerate(above)), dict(enumerate(below)))
    return sum(above) / len(above), sum(below) / len(below), ratio


def _nothing_cut(runs: Finished) -> bool:
    ranks = [(ranks_before(run), curve_of(run)[-1].ranks) for run in runs.values()]
    return any(before for before, _ in ranks) and all(before == after for before, after in ranks)


def table(study: Study) -> pd.DataFrame:
    """Return a line per run: size, step time at the trained over that at the full ranks, predicted memory, metric."""
    rows, parts = study.rows, [f"predicted_{name}_mib" for name in CATEGORIES]
    times = [_step_times(runs) or (None, None, None) for runs in rows["finished"]]
    trained, full, ratios = zip(*times, strict=True)
    rows = with_estimates(rows, {"step_trained_over_full": ratios}).assign(
        blocks=[ratio and ratio.blocks for ratio in ratios],
        step_trained_ms=trained,
        step_full_ms=full,
        nothing_cut=rows["finished"].map(_nothing_cut),
        predicted_peak_mib=rows["peak_memory_predicted_mib"],
    )
    rows[parts] = rows[parts].where(rows[parts] > 0)
    columns = ["device", "dataset", "run", "status", "seeds", "stored_mib", "tensorized_mib"]
    columns += [*training.ends("step_trained_over_full"), "blocks"]
    columns += ["step_trained_ms", "step_full_ms", "nothing_cut", "predicted_peak_mib"]
    columns += [*parts, *training.ends(study.metric.name), "older_code"]
    return rows[columns].reset_index(drop=True)


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
    """Return whether the ratio of step times varies."""
    low, high = (table[f"step_trained_over_full_{end}"] for end in ("low", "high"))
    varies = bool((low.notna() & (low != high)).any())
    return {**training.about_study(study, table), "varies": varies}


def _name_points(axes: Any, points: pd.DataFrame, top: str) -> None:
    """Name each point above its top; a name that would meet another one goes higher."""
    bottom, ceiling = axes.get_ylim()
    right = axes.get_xlim()[1]
    placed: list[tuple[float, float]] = []
    for line in points.sort_values(top, kind="stable").to_dict("records"):
        x, height = line["stored_mib"] / right, (line[top] - bottom) / (ceiling - bottom)
        while any(abs(x - other) < 0.15 and abs(height - level) < 0.045 for other, level in placed):
            height += 0.045
        placed.append((x, height))
        style = {"xycoords": "axes fraction", "ha": "center", "va": "bottom", "fontsize": 6.5}
        box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "linewidth": 0}
        note(axes, line["run"].rpartition(", ")[2], (x, height), (0, 4), bbox=box, **style)


def _draw_times(axes: Any, sized: pd.DataFrame) -> None:
    axes.axhline(1, **_FULL)
    uncut = sized["nothing_cut"].map({True: 1.0})
    ratio = sized["step_trained_over_full"].astype(float).fillna(uncut)
    low, high = training.bounds_of(sized, "step_trained_over_full")
    points = sized.assign(ratio=ratio, low=low.fillna(ratio), top=high.fillna(ratio))
    points = points.dropna(subset="ratio")
    for line in each(points):
        if line.low < line.top:
            training.whisker(axes, line.stored_mib, line.low, line.top)
        hollow = {"markerfacecolor": "white"} if pd.isna(line.step_trained_over_full) else {}
        axes.plot([line.stored_mib], [line.ratio], **_POINT, **hollow, zorder=4)
    axes.set_ylim(0, 1.3 * max([1.0, *points["top"]]))
    axes.set_ylabel("step time, trained / full ranks", fontsize=8)
    _name_points(axes, points, "top")


def _draw_memory(axes: Any, sized: pd.DataFrame, dense: pd.DataFrame) -> None:
    width = 0.05 * axes.get_xlim()[1]
    points = sized.dropna(subset="predicted_peak_mib")
    peaks = by_category(points, "predicted").to_dict("records")
    for stored, peak in zip(points["stored_mib"], peaks, strict=True):
        bottom = 0.0
        for name, mib in peak.items():
            if mib > 0:
                look = {"linewidth": 0.4, **MEMORY_FILLS[str(name)].look}
                axes.bar(stored, mib, width, bottom=bottom, **look)
                bottom += mib
        axes.bar(stored, bottom, width, facecolor="none", edgecolor=INK, linewidth=0.5)
    of_dense = dense["predicted_peak_mib"].dropna()
    for peak in of_dense:
        axes.axhline(peak, **_DENSE)
    axes.set_ylim(0, 1.25 * max([0.0, *points["predicted_peak_mib"], *of_dense]) or 1.0)
    axes.set_ylabel("predicted peak memory, MiB", fontsize=8)
    _name_points(axes, points, "predicted_peak_mib")


def _draw_score(axes: Any, sized: pd.DataFrame, dense: pd.DataFrame, name: str, label: str) -> None:
    for line in each(_with_span(dense, name)):
        axes.axhspan(line.low, line.high, color=DENSE_STROKE.colour, alpha=0.12, linewidth=0)
        axes.axhline(line.value, **_DENSE)
    points = _with_span(sized, name)
    for line in each(points):
        training.whisker(axes, line.stored_mib, line.low, line.high)
        axes.plot([line.stored_mib], [line.value], **_POINT, zorder=4)
    axes.margins(y=0.16)
    axes.autoscale_view()
    axes.set_ylabel(label, fontsize=8)
    _name_points(axes, points, "high")


def _with_span(table: pd.DataFrame, name: str) -> pd.DataFrame:
    low, high = training.bounds_of(table, name)
    return table.assign(value=table[name], low=low, high=high).dropna(subset="value")


def draw(study: Study, table: pd.DataFrame, caption: Caption) -> Figure:
    """Tensorized models from the largest to the smallest; dense stands beside them as a line."""
    rows, name = study.rows.reset_index(drop=True), study.metric.name
    sized = table.dropna(subset=["stored_mib", "tensorized_mib"])
    sized = sized.sort_values("stored_mib", ascending=False)
    dense = table[rows["is_whole_dense"]].head(1)
    found = by_category(sized, "predicted").gt(0).any()
    kinds = {*bounds_kinds(sized, "step_trained_over_full")}
    kinds |= {*bounds_kinds_of(rows.loc[sized.index, "score"])}
    handles: list[Any] = [
        Line2D([], [], linestyle="", label="CoMERA, by stage", **_POINT),
        *whisker_handles(sorted(kinds, reverse=True)),
        Line2D([], [], label="dense (band: its bounds)", **_DENSE),
        Line2D([], [], label="full ranks (hollow: nothing cut)", **_FULL),
        Line2D([], [], label="what stays dense: the smallest size", **_SMALLEST),
    ]
    words = {"optimizer": "optimizer state"}
    fills = {part: fill for part, fill in MEMORY_FILLS.items() if found[part]}
    handles += [fill_handle(fill, words.get(part, part)) for part, fill in fills.items()]
    names = {"cuda": "CUDA", "cpu": "a CPU"}
    devices = ", ".join(names[one] for one in study.values("predicted_for") if one)
    predicted = f"b  peak memory, predicted{f' for {devices}' if devices else ''}"
    titles = ("a  step time", predicted, f"c  {study.metric.short}")
    paper, [panels] = panel_page(caption, [titles], 2.5, handles, 5)
    for axes in panels:
        training.label(axes, "size of the truncated model, MiB", "", sized.empty)
        if not sized.empty:
            axes.set_xlim(0, 1.12 * sized["stored_mib"].max())
            stays_dense = sized["stored_mib"] - sized["tensorized_mib"]
            axes.axvline(stays_dense.min(), **_SMALLEST, zorder=1)
    if not sized.empty:
        _draw_times(panels[0], sized)
        _draw_memory(panels[1], sized, dense)
        _draw_score(panels[2], sized, dense, name, study.metric.axis)
    return paper.finish()


ARTIFACT = Artifact(
    name="truncation",
    summary="step time, peak memory and accuracy against the physically truncated size; an image per device and "
    "dataset",
    order=170,
    **training.OF_STUDIES,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
    rules=LATE,
)
