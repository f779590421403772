"""Predicted peak memory against the peak of the device's allocator; a figure per device, of every cell that has both.

``render`` is a pure function: the same records give the same bytes under the same file names. A figure the paper lacks,
so there is no verdict on a claim.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from bench.core.record import Record, device_folder
from figures.claims import Claim
from figures.flow import INNER, Flow
from figures.prediction_rows import TOLERANCE, Checks, Row, rows_of, select_checks, sentences, text_table, tidy_table
from figures.report import REMARKS, Drawn, csv, markdown
from figures.selection import devices
from figures.style import EARLY_STROKE, FAINT, INK, STROKES, Stroke, house_style, to_bytes

#: The experiments whose records have both peaks: ``prediction`` on any device, the timed ones on a GPU.
EXPERIMENTS = ("prediction", "fig1", "fig5", "fig7", "ratios", "tensorization")
TITLE = "Predicted peak memory against the allocator's"
LEFT_ALIGNED = frozenset({"arm", "workload", REMARKS})

# The page, in inches.
_LABELS, _LINE, _AXIS, _HEADING, _LEGEND = 1.7, 0.26, 0.44, 0.2, 0.24
_BAND = "#e9eef3"


def _strokes(checks: Checks) -> dict[int, Stroke]:
    """A marker for each batch size."""
    return dict(zip(checks.batches, itertools.cycle((EARLY_STROKE, *STROKES)), strict=False))


def _draw(checks: Checks, rows: Sequence[Row], about: Sequence[str], footnotes: Sequence[str]) -> Figure:
    height = _LINE * len(rows)
    page = Flow(TITLE, about, footnotes, _HEADING + _LEGEND + height + _AXIS)
    page.text("Error of the prediction, (predicted - measured) / measured, in %", _HEADING, fontsize=8.5,
              fontweight="bold")  # fmt: skip
    strokes, limit = _strokes(checks), 100 * TOLERANCE[checks.kind]
    handles: list[Any] = [Patch(facecolor=_BAND, label=f"within {limit:g} %")]
    handles += [_marker(stroke, f"batch {batch:,}") for batch, stroke in strokes.items()]
    page.legend(handles, columns=len(handles))
    page.y -= _LEGEND
    axes = page.axes(_LABELS, INNER - _LABELS, height)
    page.y -= height + _AXIS
    axes.axvspan(-limit, limit, color=_BAND, zorder=0)
    axes.axvline(0, color=FAINT, linewidth=0.6, zorder=1)
    for place, row in enumerate(rows):
        axes.plot([100 * row.median] * 2, [place - 0.32, place + 0.32], color=INK, linewidth=1.2, zorder=2)
        for check in row.checks:
            stroke = strokes[check.record.batch_size]
            axes.plot(
                [100 * check.error], [place], linestyle="", marker=stroke.marker, markersize=4.5, color=stroke.colour,
                markerfacecolor=stroke.face, markeredgewidth=0.8, zorder=3,
            )  # fmt: skip
    widest = max(limit, *(100 * abs(check.error) for check in checks.checks))
    axes.set_xlim(-1.15 * widest, 1.15 * widest)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
    axes.set_xlabel("error, %; the upright stroke is the median")
    return page.finish()


def _marker(stroke: Stroke, words: str) -> Line2D:
    return Line2D(
        [], [], linestyle="", marker=stroke.marker, markersize=4.5, color=stroke.colour, markerfacecolor=stroke.face,
        label=words,
    )  # fmt: skip


def _facts(checks: Checks) -> tuple[str, ...]:
    days = sorted(check.record.recorded_at[:10] for check in checks.checks)
    recorded = " to ".join(dict.fromkeys([days[0], days[-1]]))
    versions = ", ".join(sorted({check.record.torch_version for check in checks.checks}))
    precisions = ", ".join(sorted({check.record.precision for check in checks.checks}))
    witness = {
        "cpu": "PyTorch's profiler, which hears of every allocation of the CPU",
        "cuda": "the CUDA allocator's own statistic",
    }[checks.kind]
    return (f"Device: {checks.device}. torch {versions}, {precisions}. Recorded {recorded}. Measured by {witness}.",)


def _drawn(checks: Checks) -> Drawn:
    rows = rows_of(checks)
    first, *others = sentences(checks, rows)
    about, notes, table = (*_facts(checks), first), (*others, *checks.left_out), text_table(rows)
    stem = f"prediction-{device_folder(checks.device)}"
    with house_style():
        drawing = _draw(checks, rows, about, notes)
        images = {f"{stem}.{form}": to_bytes(drawing, form) for form in ("png", "svg")}
    text = markdown(TITLE, about, f"{stem}.png", table, LEFT_ALIGNED, notes, ())
    files = {**images, f"{stem}.md": text, f"{stem}.csv": csv(tidy_table(checks))}
    shown = tuple(sorted((check.record for check in checks.checks), key=lambda record: record.recorded_at))
    return Drawn(TITLE, checks.device, about, notes, table, (), files, notes, LEFT_ALIGNED, records=shown)


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:  # noqa: ARG001 - as every artifact
    """One page per device that has measured peaks."""
    everything = [select_checks(records, device) for device in devices(records)]
    return [_drawn(checks) for checks in everything if checks.checks]
