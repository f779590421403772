"""What real truncation buys: step time, peak memory and accuracy against the size left; a figure the paper lacks."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from figures.artifact import Artifact
from figures.claims.training import LATE
from figures.page import training as shared
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.notes import closing_notes, listed
from figures.page.style import DENSE_STROKE, EARLY_STROKE, FAINT, INK, MEMORY_FILLS, bounds_handles, fill_handle, note
from figures.records.cells import CATEGORIES
from figures.records.studies import Study, StudyRow
from figures.text import Column, bounds, brackets_note, significant, with_bounds

_PEAK = "peak_memory_predicted_mib"

#: Lines at the size below which nothing can be cut, and at the full ranks.
_SMALLEST: dict[str, Any] = {"color": FAINT, "linewidth": 0.8, "linestyle": (0, (1, 1.5))}
_FULL: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (5, 2))}
_POINT: dict[str, Any] = {"marker": "o", "markersize": 5, "color": EARLY_STROKE.colour}
_DENSE: dict[str, Any] = {"color": DENSE_STROKE.colour, "linewidth": 1.2}


def columns(study: Study, _: Any) -> list[Column[StudyRow]]:
    def head(row: StudyRow) -> dict[str, object]:
        about = {"device": study.device, "dataset": study.dataset, "run": row.name}
        return {**about, "status": row.status, "seeds": shared.seeds_of(row)}

    def ratio(row: StudyRow) -> str | None:
        return with_bounds(row.times.ratio) if row.times else "1 (nothing cut)" if row.nothing_cut else None

    def tidy_ratio(row: StudyRow) -> dict[str, object]:
        found = row.times.ratio if row.times else None
        return {**bounds("step_trained_over_full", found), "blocks": found and found.blocks}

    def step(name: str) -> Column[StudyRow]:
        """A step time, in ms."""
        return Column(
            f"{name}, ms",
            lambda row: significant(getattr(row.times, name, None)),
            lambda row: {f"step_{name}_ms": getattr(row.times, name, None)},
        )

    def tidy_peak(row: StudyRow) -> dict[str, object]:
        parts = row.peak_parts
        peaks = {"nothing_cut": row.nothing_cut, "predicted_peak_mib": row.mean(_PEAK)}
        return {**peaks, **{f"predicted_{name}_mib": parts.get(name) for name in CATEGORIES}}

    return [
        Column(shared.RUN, lambda row: row.label, head, left=True),
        shared.spread_column("total, MiB", "stored_mib", lambda row: row.spread("stored_mib") or row.status, False),
        shared.spread_column("layers, MiB", "tensorized_mib", spread=False),
        Column("step time, trained / full", ratio, tidy_ratio),
        step("trained"),
        step("full"),
        Column("predicted peak, MiB", lambda row: significant(row.mean(_PEAK), 4), tidy_peak),
        shared.score_column(study.metric),
        shared.remarks_column(),
    ]


def caption(study: Study, rows: Sequence[StudyRow]) -> Caption:
    metric, lengths = study.metric, listed(study, "sequence_length")
    padded = "" if lengths == "1" else f" padded to {lengths} tokens"
    seeds = "Sizes and memory are means over seeds; blocks of all seeds stand behind the step time."
    if len(study.seeds) == 1:
        alone = f"One seed: 95 % intervals of {metric.short} are over {shared.validation_words(study)} alone."
        seeds = alone if study.values_are != "none" else ""
    elif study.values_are != "none":
        counts = (len(row.finished) for row in rows)
        seeds += f" {metric.short}: {shared.brackets_words(counts, shared.examples_words(study))}."
    return Caption(
        title=f"Truncated CoMERA on {study.dataset!r}: step time, peak memory, {metric.short}",
        facts=shared.facts(study),
        notes=(
            f"Step time: one step at batch {listed(study, 'batch_size')}{padded}; median over interleaved blocks of "
            "the ratio per block, trained model to one with the same layers at full ranks.",
            *brackets_note(row.times and row.times.ratio for row in rows),
            "Peak memory is that of such a step, computed, not measured. Sizes count every FP32 number that is stored.",
            *filter(None, [seeds]),
            *shared.dense_note(study),
            *shared.absences(rows),
            *closing_notes(study),
        ),
    )


def _size(row: StudyRow) -> float:
    """Of the trained model, in MiB; 0 where it is not known."""
    return row.mean("stored_mib") or 0.0


#: What is drawn of rows, each with how high it goes.
Tops = Sequence[tuple[float, StudyRow]]


def _name_points(axes: Any, tops: Tops) -> None:
    """Name each point above its top; a name that would meet another one goes higher."""
    bottom, top = axes.get_ylim()
    right = axes.get_xlim()[1]
    placed: list[tuple[float, float]] = []
    for y, row in sorted(tops, key=lambda pair: pair[0]):
        x, height = _size(row) / right, (y - bottom) / (top - bottom)
        while any(abs(x - other) < 0.15 and abs(height - level) < 0.045 for other, level in placed):
            height += 0.045
        placed.append((x, height))
        style = {"xycoords": "axes fraction", "ha": "center", "va": "bottom", "fontsize": 6.5}
        box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "linewidth": 0}
        note(axes, row.name.rpartition(", ")[2], (x, height), (0, 4), bbox=box, **style)


def _draw_times(axes: Any, rows: Sequence[StudyRow]) -> Tops:
    axes.axhline(1, **_FULL)
    tops = []
    for row in rows:
        if row.times is not None:
            ratio = row.times.ratio
            if ratio.low is not None and ratio.high is not None:
                shared.whisker(axes, _size(row), (ratio.low, ratio.high))
            axes.plot([_size(row)], [ratio.value], **_POINT, zorder=4)
            tops.append((max(ratio.value, ratio.high or 0.0), row))
        elif row.nothing_cut:
            axes.plot([_size(row)], [1], **_POINT, markerfacecolor="white", zorder=4)
            tops.append((1.0, row))
    axes.set_ylim(0, 1.3 * max([1.0, *(top for top, _ in tops)]))
    return tops


def _draw_memory(axes: Any, rows: Sequence[StudyRow], dense: float | None) -> Tops:
    width = 0.05 * axes.get_xlim()[1]
    tops = [(peak, row) for row in rows if (peak := row.mean(_PEAK)) is not None]
    for _, row in tops:
        bottom = 0.0
        for name, mib in row.peak_parts.items():
            axes.bar(_size(row), mib, width, bottom=bottom, linewidth=0.4, **MEMORY_FILLS[name].look)
            bottom += mib
        axes.bar(_size(row), bottom, width, facecolor="none", edgecolor=INK, linewidth=0.5)
    if dense is not None:
        axes.axhline(dense, **_DENSE)
    axes.set_ylim(0, 1.25 * max([top for top, _ in tops] + [dense or 0.0]) or 1.0)
    return tops


def _draw_score(axes: Any, rows: Sequence[StudyRow], dense: StudyRow | None) -> Tops:
    if dense is not None and dense.score is not None:
        axes.axhspan(*dense.score.span, color=DENSE_STROKE.colour, alpha=0.12, linewidth=0)
        axes.axhline(dense.score.value, **_DENSE)
    tops = []
    for row in rows:
        if row.score is not None:
            shared.whisker(axes, _size(row), row.score.span)
            axes.plot([_size(row)], [row.score.value], **_POINT, zorder=4)
            tops.append((row.score.span[1], row))
    axes.margins(y=0.16)
    axes.autoscale_view()
    return tops


def _legend(rows: Sequence[StudyRow]) -> list[Any]:
    estimates = [estimate for row in rows for estimate in (row.times and row.times.ratio, row.score)]
    found = {name for row in rows for name in row.peak_parts}
    names = {"optimizer": "optimizer state"}
    return [
        Line2D([], [], linestyle="", label="CoMERA, by stage", **_POINT),
        *bounds_handles(estimates),
        Line2D([], [], label="dense (band: its bounds)", **_DENSE),
        Line2D([], [], label="full ranks (hollow: nothing cut)", **_FULL),
        Line2D([], [], label="what stays dense: the smallest size", **_SMALLEST),
        *(fill_handle(fill, names.get(name, name)) for name, fill in MEMORY_FILLS.items() if name in found),
    ]


def draw(study: Study, rows: Sequence[StudyRow], caption: Caption) -> Figure:
    """Tensorized models from the largest to the smallest; dense stands beside them as a line."""
    sized = [row for row in rows if row.spread("tensorized_mib") and row.spread("stored_mib")]
    shown = sorted(sized, key=lambda row: -_size(row))
    dense = next((row for row in rows if row.is_whole_dense), None)
    devices = ", ".join({"cuda": "CUDA", "cpu": "a CPU"}[name] for name in study.values("predicted_for") if name)
    predicted = f"b  peak memory, predicted{f' for {devices}' if devices else ''}"
    panels = ("a  step time", predicted, f"c  {study.metric.short}")
    paper, [axes] = panel_page(caption.title, caption.facts, [panels], caption.notes, 2.5, _legend(shown), 5)
    for one in axes:
        one.set_xlabel("size of the truncated model, MiB", fontsize=8)
    if not shown:
        for one in axes:
            shared.nothing_finished(one)
        return paper.finish()
    stays = min(_size(row) - (row.mean("tensorized_mib") or 0.0) for row in shown)
    for one in axes:
        one.set_xlim(0, 1.12 * _size(shown[0]))
        one.axvline(stays, **_SMALLEST, zorder=1)
    tops = (
        _draw_times(axes[0], shown),
        _draw_memory(axes[1], shown, dense.mean(_PEAK) if dense else None),
        _draw_score(axes[2], shown, dense),
    )
    names = ("step time, trained / full ranks", "predicted peak memory, MiB", study.metric.axis)
    for one, found, name in zip(axes, tops, names, strict=True):
        _name_points(one, found)
        one.set_ylabel(name, fontsize=8)
    return paper.finish()


ARTIFACT = Artifact(
    name="truncation",
    heading="What truncation saves",
    summary="step time, peak memory and accuracy against the physically truncated size; an image per device and "
    "dataset",
    order=170,
    **shared.OF_STUDIES,
    rows=lambda study: study.rows,
    columns=columns,
    caption=caption,
    draw=draw,
    rules=LATE,
)
