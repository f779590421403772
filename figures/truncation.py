"""What real truncation buys: step time, peak memory and accuracy against the size left; a figure the paper lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench.core.intervals import CONFIDENCE
from bench.core.record import Record
from figures.claims.claims import Claim
from figures.page.drawn import Drawn
from figures.page.layout import panel_page
from figures.page.style import DENSE_STROKE, EARLY_STROKE, FAINT, INK, MEMORY_FILLS, house_style, to_bytes
from figures.page.table import NOT_ASKED, REMARKS, significant, with_interval
from figures.records.memory import CATEGORIES
from figures.runs import DENSE_RUN, PAPER_TARGETS, Study, studies
from figures.training_claims import late_name, verdicts
from figures.training_page import STAGE, absences, drawn, facts, notes
from figures.training_rows import Row, rows_of

CLAIMS = tuple(f"{late_name(target)}-{what}" for what in ("ratio", "layers", "acc") for target in PAPER_TARGETS)
_PANEL_HEIGHT = 2.5
_NAMES = {"optimizer": "optimizer state"}


def _shrinking(rows: Sequence[Row]) -> list[Row]:
    """Rows of tensorized models, largest first; dense stands beside them as a line."""
    sized = [row for row in rows if row.tensorized is not None and row.stored is not None]
    return sorted(sized, key=lambda row: -(row.stored.value if row.stored else 0.0))


def _short(row: Row) -> str:
    return row.slot.label.removeprefix("comera, ")


def _size_axis(axes: Any, rows: Sequence[Row]) -> None:
    sizes = [row.stored.value for row in rows if row.stored]
    stays = [row.stored.value - row.tensorized.value for row in rows if row.stored and row.tensorized]
    axes.set_xlabel("size of the truncated model, MiB", fontsize=8)
    if sizes:
        axes.set_xlim(0, 1.12 * max(sizes))
        axes.axvline(min(stays), color=FAINT, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)


def _name_points(axes: Any, rows: Sequence[Row], tops: Sequence[float]) -> None:
    """Name each point above ``tops``; a name that would meet another one goes higher."""
    bottom, top = axes.get_ylim()
    right = axes.get_xlim()[1]
    placed: list[tuple[float, float]] = []
    for y, row in sorted(zip(tops, rows, strict=True), key=lambda pair: pair[0]):
        assert row.stored is not None
        x, height = row.stored.value / right, (y - bottom) / (top - bottom)
        while any(abs(x - other) < 0.15 and abs(height - level) < 0.045 for other, level in placed):
            height += 0.045
        placed.append((x, height))
        axes.annotate(
            _short(row), (x, height), xycoords="axes fraction", xytext=(0, 4), textcoords="offset points", ha="center",
            va="bottom", fontsize=6.5, bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "linewidth": 0},
        )  # fmt: skip


def _whisker(axes: Any, x: float, low: float, high: float) -> None:
    axes.plot([x, x], [low, high], color=INK, linewidth=1, marker="_", markersize=5, solid_capstyle="butt")


def _draw_times(axes: Any, rows: Sequence[Row]) -> None:
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=(0, (5, 2)))
    shown, tops = [], []
    for row in rows:
        assert row.stored is not None
        x = row.stored.value
        if row.times is not None:
            ratio = row.times.ratio
            if ratio.low is not None and ratio.high is not None:
                _whisker(axes, x, ratio.low, ratio.high)
            axes.plot([x], [ratio.value], marker="o", markersize=5, color=EARLY_STROKE.colour, zorder=4)
            tops.append(max(ratio.value, ratio.high or 0.0))
        elif row.nothing_cut:
            axes.plot([x], [1], marker="o", markersize=5, color=EARLY_STROKE.colour, markerfacecolor="white", zorder=4)
            tops.append(1.0)
        else:
            continue
        shown.append(row)
    axes.set_ylim(0, 1.3 * max([1.0, *tops]))
    _name_points(axes, shown, tops)
    axes.set_ylabel("step time, trained / full ranks", fontsize=8)


def _draw_memory(axes: Any, rows: Sequence[Row], dense: Row | None) -> None:
    shown = [row for row in rows if row.peak is not None]
    width = 0.05 * axes.get_xlim()[1]
    for row in shown:
        assert row.stored is not None
        bottom = 0.0
        for name, mib in row.peak_parts:
            fill = MEMORY_FILLS[name]
            axes.bar(
                row.stored.value, mib, width, bottom=bottom, facecolor=fill.colour, edgecolor=fill.edge,
                hatch=fill.hatch, linewidth=0.4,
            )  # fmt: skip
            bottom += mib
        axes.bar(row.stored.value, bottom, width, facecolor="none", edgecolor=INK, linewidth=0.5)
    tops = [row.peak.value for row in shown if row.peak]
    above = [*tops]
    if dense is not None and dense.peak is not None:
        axes.axhline(dense.peak.value, color=DENSE_STROKE.colour, linewidth=1.2)
        above.append(dense.peak.value)
    axes.set_ylim(0, 1.25 * max(above, default=1.0))
    _name_points(axes, shown, tops)
    axes.set_ylabel("predicted peak memory, MiB", fontsize=8)


def _draw_accuracy(axes: Any, rows: Sequence[Row], dense: Row | None) -> None:
    shown = [row for row in rows if row.accuracy is not None]
    if dense is not None and dense.accuracy is not None:
        axes.axhspan(dense.accuracy.low, dense.accuracy.high, color=DENSE_STROKE.colour, alpha=0.12, linewidth=0)
        axes.axhline(dense.accuracy.value, color=DENSE_STROKE.colour, linewidth=1.2)
    tops = []
    for row in shown:
        assert row.stored is not None
        assert row.accuracy is not None
        _whisker(axes, row.stored.value, row.accuracy.low, row.accuracy.high)
        axes.plot(
            [row.stored.value], [row.accuracy.value], marker="o", markersize=5, color=EARLY_STROKE.colour, zorder=4
        )
        tops.append(row.accuracy.high)
    axes.margins(y=0.16)
    axes.autoscale_view()
    _name_points(axes, shown, tops)
    axes.set_ylabel("validation accuracy, %", fontsize=8)


def _legend(rows: Sequence[Row]) -> list[Any]:
    interval = f"{CONFIDENCE:.0%} interval"
    handles: list[Any] = [
        Line2D([], [], color=EARLY_STROKE.colour, marker="o", markersize=5, linestyle="", label="CoMERA, by stage"),
        Line2D([], [], color=INK, marker="_", markersize=5, linewidth=1, label=interval),
        Line2D([], [], color=DENSE_STROKE.colour, linewidth=1.2, label="dense (band: its interval)"),
        Line2D([], [], color=INK, linewidth=0.8, linestyle=(0, (5, 2)), label="full ranks (hollow: nothing cut)"),
        Line2D(
            [], [], color=FAINT, linewidth=0.8, linestyle=(0, (1, 1.5)), label="what stays dense: the smallest size"
        ),
    ]
    found = {name for row in rows for name, _ in row.peak_parts}
    for name in (*CATEGORIES, "unsplit"):
        if name in found:
            fill = MEMORY_FILLS[name]
            edge = INK if fill.edge == "#ffffff" and not fill.hatch else fill.edge
            handles.append(
                Patch(
                    facecolor=fill.colour, edgecolor=edge, hatch=fill.hatch * 2, linewidth=0.4,
                    label=_NAMES.get(name, name),
                )
            )  # fmt: skip
    return handles


def _draw(study: Study, title: str, rows: Sequence[Row], footnotes: Sequence[str]) -> Any:
    shown = _shrinking(rows)
    dense = next((row for row in rows if row.slot == DENSE_RUN), None)
    panels = ("a  step time", f"b  peak memory, predicted{_targets(study)}", "c  accuracy")
    page, [axes] = panel_page(title, facts(study), [panels], footnotes, _PANEL_HEIGHT, _legend(shown), 5)
    for one in axes:
        _size_axis(one, shown)
    if not shown:
        for one in axes:
            one.set_xticks([])
            one.set_yticks([])
            one.text(0.5, 0.5, "no finished run", transform=one.transAxes, ha="center", style="italic", color=FAINT)
        return page
    _draw_times(axes[0], shown)
    _draw_memory(axes[1], shown, dense)
    _draw_accuracy(axes[2], shown, dense)
    return page


def _targets(study: Study) -> str:
    names = [{"cpu": "a CPU", "cuda": "CUDA"}.get(name, name) for name in study.values("predicted_for") if name]
    return f" for {', '.join(names)}" if names else ""


def text_table(rows: Sequence[Row]) -> pd.DataFrame:
    """The table a person reads."""
    lines = []
    for row in rows:
        times = row.times
        ratio = with_interval(times.ratio) if times else "1 (nothing cut)" if row.nothing_cut else NOT_ASKED
        lines.append(
            {
                STAGE: row.label,
                "total, MiB": str(row.stored) if row.stored else row.status,
                "layers, MiB": str(row.tensorized) if row.tensorized else NOT_ASKED,
                "step time, trained / full": ratio,
                "trained, ms": significant(times.trained) if times else NOT_ASKED,
                "full, ms": significant(times.full) if times else NOT_ASKED,
                "predicted peak, MiB": significant(row.peak.value, 4) if row.peak else NOT_ASKED,
                "accuracy, %": str(row.accuracy) if row.accuracy else row.status,
                REMARKS: "; ".join(row.remarks),
            }
        )
    return pd.DataFrame(lines)


def tidy_table(study: Study, rows: Sequence[Row]) -> pd.DataFrame:
    """The table a program reads, in MiB, ms and percent."""
    lines: list[dict[str, Any]] = []
    for row in rows:
        times, accuracy, parts = row.times, row.accuracy, dict(row.peak_parts)
        lines.append(
            {
                "device": study.device,
                "dataset": study.dataset,
                "run": row.slot.label,
                "status": row.status,
                "seeds": " ".join(map(str, row.finished)),
                "stored_mib": row.stored.value if row.stored else None,
                "tensorized_mib": row.tensorized.value if row.tensorized else None,
                "step_trained_over_full": times.ratio.value if times else None,
                "step_trained_over_full_low": times.ratio.low if times else None,
                "step_trained_over_full_high": times.ratio.high if times else None,
                "blocks": times.ratio.blocks if times else None,
                "step_trained_ms": times.trained if times else None,
                "step_full_ms": times.full if times else None,
                "nothing_cut": row.nothing_cut,
                "predicted_peak_mib": row.peak.value if row.peak else None,
                **{f"predicted_{name}_mib": parts.get(name) for name in CATEGORIES},
                "accuracy": accuracy.value if accuracy else None,
                "accuracy_low": accuracy.low if accuracy else None,
                "accuracy_high": accuracy.high if accuracy else None,
                "older_code": bool(row.mark),
            }
        )
    return pd.DataFrame(lines)


def of_study(study: Study, claims: dict[str, Claim]) -> Drawn:
    """The figure of one device and dataset."""
    rows = rows_of(study)
    judged = verdicts(study, rows, claims, CLAIMS)
    title = f"Step time, peak memory and accuracy against the truncated size: CoMERA on {study.dataset!r}"
    lengths = ", ".join(map(str, study.values("sequence_length")))
    batches = ", ".join(map(str, study.values("batch_size")))
    said = [
        f"Step time: one step at batch {batches} padded to {lengths} tokens; median over interleaved blocks of the "
        "ratio per block, trained model to one with the same layers at full ranks.",
        "Peak memory is that of such a step, computed, not measured. Sizes count every FP32 number that is stored.",
        *absences(rows),
        *notes(study, rows),
    ]
    if len(study.seeds) > 1:
        said.insert(2, "Sizes and memory are means over seeds; blocks of all seeds stand behind the step time.")
    else:
        said.insert(2, "One seed: intervals of accuracy are over validation examples alone.")
    with house_style():
        page = _draw(study, title, rows, said)
        images = {form: to_bytes(page, form) for form in ("png", "svg")}
    tables = text_table(rows), tidy_table(study, rows)
    return drawn("truncation", title, study, *tables, said, judged, images, left_aligned=frozenset({STAGE, REMARKS}))


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:
    """One figure per device and dataset."""
    return [of_study(study, claims) for study in studies(records)]
