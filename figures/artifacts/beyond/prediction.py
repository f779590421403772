"""Predicted peak memory against the peak of the device's allocator: its error, by arm; a page per device.

A figure the paper lacks, so there is no verdict on a claim.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from bench.core.record import Record
from figures.artifact import Artifact
from figures.page.drawn import Caption
from figures.page.layout import Page, legend
from figures.page.notes import device_fact, listed
from figures.page.style import FAINT, INK, stroke_handle, strokes
from figures.records.select import Selected, by_arm, by_device, oldest_first
from figures.text import REMARKS, Column, significant

#: The experiments whose records have both peaks: ``prediction`` on any device, the timed ones on a GPU.
EXPERIMENTS = ("prediction", "fig1", "fig5", "fig7", "ratios", "tensorization")

#: The error that a prediction is allowed, by kind of device: of a CPU against a real run of the same operations, of a
#: GPU against the peak that CUDA's allocator reports.
TOLERANCE = {"cpu": 0.02, "cuda": 0.05}

_LINE = 0.26  # inches of a row
_BAND = "#e9eef3"


@dataclass(frozen=True)
class Check:
    """One cell with both peaks, in MiB; the predicted one with cuBLAS's workspaces, where they were measured.

    >>> record = Record.__new__(Record)
    >>> round(Check(record, predicted=95.0, measured=100.0).error, 3)
    -0.05
    """

    record: Record
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """As a share of the measured peak; below zero, too little was predicted."""
        return self.predicted / self.measured - 1

    @property
    def name(self) -> str:
        return f"{self.record.arm}, batch {self.record.batch_size:,}"


@dataclass(frozen=True, kw_only=True)
class PredictionPage(Selected):
    checks: tuple[Check, ...]

    @property
    def limit(self) -> float:
        return TOLERANCE[self.kind]

    def within(self, checks: Sequence[Check]) -> int:
        """How many of the checks are as exact as asked."""
        return sum(abs(check.error) <= self.limit for check in checks)

    @property
    def main(self) -> str:
        """The workload that most cells are of."""
        return Counter(check.record.workload for check in self.checks).most_common(1)[0][0]


@dataclass(frozen=True)
class PredictionRow:
    """The cells of one arm on one workload."""

    arm: str
    workload: str
    checks: tuple[Check, ...]

    @property
    def errors(self) -> list[float]:
        """From the lowest."""
        return sorted(check.error for check in self.checks)

    @property
    def worst(self) -> Check:
        return max(self.checks, key=lambda check: (abs(check.error), check.record.cell_id))


def _page(records: Sequence[Record], device: str) -> PredictionPage:
    checks, toggled, failed = [], 0, Counter[str]()
    for record in records:
        predicted, measured = record.peak_memory_predicted_mib, record.peak_memory_allocated_mib
        if record.status != "ok" or not predicted or not measured:
            if record.measure == "allocator_peak" and record.status != "ok":
                message = " ".join(record.message.split())
                failed[f"{record.arm}, batch {record.batch_size:,}: {record.status}, {message}"] += 1
        elif record.compile or record.cuda_graph:
            toggled += 1
        else:
            checks.append(Check(record, predicted + (record.workspaces_mib or 0.0), measured))
    notes = [f"No check of {reason.rstrip('.')}." for reason in sorted(failed)]
    if toggled:
        notes.append(f"{toggled} record(s) of captured or compiled steps are left out: predictions are of plain ones.")
    on_cuda = any(check.record.predicted_for == "cuda" for check in checks)
    checks.sort(key=lambda check: (check.record.batch_size, check.record.experiment, check.record.cell_id))
    return PredictionPage(
        device=device,
        kind="cuda" if on_cuda else "cpu",
        shown=oldest_first(check.record for check in checks),
        left_out=tuple(notes),
        checks=tuple(checks),
    )


def select(records: Sequence[Record]) -> list[PredictionPage]:
    """A selection per device that has measured peaks."""
    pages = [_page(mine, device["device"]) for device, mine in by_device(records)]
    return [page for page in pages if page.checks]


def rows_of(page: PredictionPage) -> list[PredictionRow]:
    """A row per arm and workload that has a check, those of the main workload first, in the order of Fig. 1."""
    groups: dict[tuple[str, str], list[Check]] = {}
    for check in page.checks:
        groups.setdefault((check.record.workload, check.record.arm), []).append(check)
    order = sorted(groups, key=lambda group: (group[0] != page.main, group[0], by_arm(group[1])))
    return [PredictionRow(arm, workload, tuple(groups[workload, arm])) for workload, arm in order]


def _percent(share: float) -> str:
    """A share as signed percent; what is less than shown has no sign."""
    text = f"{100 * share:+.2f} %"
    return text if text[1:] != "0.00 %" else "0.00 %"


def columns(page: PredictionPage, _: Sequence[PredictionRow]) -> list[Column]:
    """The distribution of the error by arm; in the CSV a row per cell, in MiB."""
    names = ("experiment", "workload", "method", "variant", "ratio", "batch_size", "sequence_length", "precision")

    def batches(row: PredictionRow) -> str:
        return ", ".join(f"{batch:,}" for batch in sorted({check.record.batch_size for check in row.checks}))

    def farthest(row: PredictionRow) -> str:
        predicted, measured = (significant(size, 4) for size in (row.worst.predicted, row.worst.measured))
        return f"farthest off: batch {row.worst.record.batch_size:,}, {predicted} MiB predicted, {measured} measured"

    def tidy(check: Check) -> dict[str, object]:
        return {
            "device": page.device,
            "predicted_for": page.kind,
            **{name: getattr(check.record, name) for name in names},
            "predicted_mib": check.predicted,
            "measured_mib": check.measured,
            "error": check.error,
            "within": abs(check.error) <= page.limit,
            "cell_id": check.record.cell_id,
        }

    return [
        Column("arm", lambda row: row.arm, left=True),
        Column("workload", lambda row: row.workload, left=True),
        Column("cells", lambda row: len(row.checks)),
        Column("batches", batches),
        Column("lowest error", lambda row: _percent(row.errors[0])),
        Column("median", lambda row: _percent(statistics.median(row.errors))),
        Column("highest", lambda row: _percent(row.errors[-1])),
        Column("within", lambda row: f"{page.within(row.checks)} of {len(row.checks)}"),
        Column(REMARKS, farthest, left=True),
        Column(tidy=tidy),
    ]


def _distribution(page: PredictionPage, rows: Sequence[PredictionRow]) -> str:
    """The distribution of the error over all cells, and whether it is as small as asked."""
    errors = [check.error for check in page.checks]
    worst = max((row.worst for row in rows), key=lambda check: abs(check.error))
    low, high = (float(bound) for bound in np.quantile(errors, [0.05, 0.95]))
    exact = sum(round(check.predicted * 2**20) == round(check.measured * 2**20) for check in page.checks)
    missed = len(errors) - page.within(page.checks)
    met = f"Missed by {missed}" if missed else "Met"
    return (
        f"{len(errors)} cells, {exact} of them exact to the byte: median error {_percent(statistics.median(errors))}, "
        f"5th to 95th percentile {_percent(low)} to {_percent(high)}; the largest {_percent(worst.error)} "
        f"({worst.name}). Asked: within {page.limit:.0%}. {met}."
    )


def caption(page: PredictionPage, rows: Sequence[PredictionRow]) -> Caption:
    source, rounding = {
        "cpu": ("PyTorch's profiler, which records every allocation on the CPU", "."),
        "cuda": ("the CUDA allocator's own statistic", ", nor is the allocator's rounding."),
    }[page.kind]
    sizes = sorted({check.record.workspaces_mib for check in page.checks if check.record.workspaces_mib})
    span = " to ".join(f"{significant(size)} MiB" for size in dict.fromkeys((*sizes[:1], *sizes[-1:])))
    added = f"Predicted peaks are with cuBLAS's workspaces, which it keeps for good and which were measured: {span}."
    return Caption(
        title="Predicted peak memory against the allocator's",
        facts=(f"{device_fact(page, listed(page, 'precision'))} Measured by {source}.", _distribution(page, rows)),
        notes=(
            "Below zero, the allocator held more than was predicted: what lives inside kernels is not modelled"
            + rounding,
            *([added] if sizes else []),
            *page.left_out,
        ),
    )


def draw(page: PredictionPage, rows: Sequence[PredictionRow], caption: Caption) -> Figure:
    limit = 100 * page.limit
    paper = Page(caption.title, caption.facts, caption.notes)
    [[axes]] = paper.panels(0, _LINE * len(rows))
    heading = "Error of the prediction, (predicted - measured) / measured, in %"
    batches = strokes(sorted({check.record.batch_size for check in page.checks}))
    points: dict[str, Any] = {"linestyle": "", "markersize": 4.5}
    handles = [stroke_handle(stroke, f"batch {batch:,}", **points) for batch, stroke in batches.items()]
    within = Patch(facecolor=_BAND, label=f"within {limit:g} %")
    legend(paper.body, [within, *handles], 1 + len(handles), heading, handlelength=2.2)
    axes.axvspan(-limit, limit, color=_BAND, zorder=0)
    axes.axvline(0, color=FAINT, linewidth=0.6, zorder=1)
    for place, row in enumerate(rows):
        median = 100 * statistics.median(row.errors)
        axes.plot([median, median], [place - 0.32, place + 0.32], color=INK, linewidth=1.2, zorder=2)
        for check in row.checks:
            look = {**points, **batches[check.record.batch_size].dots, "markeredgewidth": 0.8, "zorder": 3}
            axes.plot([100 * check.error], [place], **look)
    widest = max(limit, *(100 * abs(check.error) for check in page.checks))
    axes.set_xlim(-1.15 * widest, 1.15 * widest)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    names = [row.arm if row.workload == page.main else f"{row.arm}, {row.workload}" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
    axes.set_xlabel("error, %; the upright stroke is the median")
    return paper.finish()


ARTIFACT = Artifact(
    name="prediction",
    heading="Predicted and allocated memory",
    summary="error of the predicted peak memory by arm, wherever the allocator's was measured; an image per device",
    experiments=EXPERIMENTS,
    made_by="make reproduce-prediction",
    order=80,
    select=select,
    rows=rows_of,
    columns=columns,
    tidy_rows=lambda page, _: page.checks,
    caption=caption,
    draw=draw,
)
