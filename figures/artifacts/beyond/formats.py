"""Which format trains best: loss against stored size, training time and peak memory, each arm at its own best rate.

A figure the paper lacks. Each arm under each optimizer had its own search of rates, by data that is not reported on.
A narrower dense model of equal size is the rival of every format: what does not beat it compresses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator

from bench.core.record import Record
from figures.artifact import Artifact
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.notes import closing_notes, device_fact, first_upper, listed
from figures.page.style import (
    DENSE_STROKE,
    FAINT,
    INK,
    WHISKER,
    note,
    nothing_drawn,
    number_axis,
    stroke_handle,
    strokes,
)
from figures.records.searches import REPORTED, SURE_SEEDS, Search, recipe_of, searches, training_setting
from figures.records.select import DENSE, Selected, by_device, narrow, newest, oldest_first
from figures.records.sizes import equal_size
from figures.records.time_values import time_of, workload_words
from figures.text import REMARKS, Column, significant, with_bounds

EXPERIMENTS = ("formats_teacher", "formats_tiny", "formats_small", "formats_base")
TIMES = tuple(f"{name}_time" for name in EXPERIMENTS)
NARROW = "dense:narrow"
OPTIMIZERS = {"adamw": "AdamW", "muon": "Muon"}


@dataclass(frozen=True, kw_only=True)
class Formats(Selected):
    """The searches of one experiment on one device."""

    experiment: str
    found: tuple[Search, ...]
    probed: Record | None = None  # what simple models reach on the same data

    @property
    def metric(self) -> Mapping[str, Any]:
        """Of the loss for choosing, whose probes and unit are those of the reported one."""
        return [one for one in self.shown if one.measure == "train"][-1].metric

    @property
    def probes(self) -> dict[str, float]:
        """The reported loss of simple models by name, of those whose record there is."""
        found = self.probed.samples["probes"] if self.probed else {}
        return {name: one["metrics"][REPORTED] for name, one in found.items() if REPORTED in one["metrics"]}

    @property
    def optimizers(self) -> list[str]:
        """Those that there are, in the order of :data:`OPTIMIZERS`."""
        return [name for name in OPTIMIZERS if any(one.slot.optimizer == name for one in self.found)]

    def dense(self, optimizer: str) -> Search | None:
        """Dense training under an optimizer."""
        return next((one for one in self.found if (one.slot.arm, one.slot.optimizer) == (DENSE, optimizer)), None)

    def narrow(self, search: Search) -> Search | None:
        """The narrower dense model of the size of another, by the parameters that their records hold."""
        own = search.run.parameters if search.run else None
        rivals = (one for one in self.found if (one.slot.arm, one.slot.optimizer) == (NARROW, search.slot.optimizer))
        return next((one for one in rivals if one.run and equal_size(one.run.parameters, own)), None)


def _cell(record: Record) -> str:
    return record.cell_id


def select(records: Sequence[Record]) -> list[Formats]:
    """A page for each experiment of each device that has trainings."""
    pages = []
    for device, mine in by_device(records):
        for experiment in EXPERIMENTS:
            runs = [one for one in mine if one.experiment == experiment and one.measure == "train" and recipe_of(one)]
            if not runs:
                continue
            kept, notes = narrow(runs, training_setting, _cell, f"training(s) of {experiment}")
            kept = oldest_first(newest(kept, _cell).values())
            timed = [one for one in mine if one.experiment == f"{experiment}_time" and one.status == "ok"]
            found = tuple(searches(kept, timed))
            steps = [one.timed for one in found if one.timed]
            of_data = [one for one in mine if one.measure == "probe" and one.data_hash == kept[-1].data_hash]
            probed = oldest_first(of_data)[-1] if of_data else None
            shown = oldest_first([*kept, *steps, *([probed] if probed else [])])
            place = experiment.removeprefix("formats_")
            pages.append(
                Formats(
                    **device,
                    shown=shown,
                    left_out=tuple(notes),
                    place=place,
                    suffix=(place,),
                    experiment=experiment,
                    found=found,
                    probed=probed,
                )
            )
    return pages


@dataclass(frozen=True)
class FormatsRow:
    """A search with its rivals."""

    page: Formats
    search: Search

    @property
    def name(self) -> str:
        ratio = "" if self.search.slot.ratio is None else f", {self.search.slot.ratio:g}x"
        return f"{self.search.slot.arm}{ratio}"

    @property
    def optimizer(self) -> str:
        return OPTIMIZERS.get(self.search.slot.optimizer, self.search.slot.optimizer)

    @property
    def stored_mib(self) -> float | None:
        return self.search.run.stored_mib if self.search.run else None

    @property
    def training_s(self) -> float | None:
        time = time_of(self.search.timed, "step") if self.search.timed else None
        return self.search.training_s(time.total if time else None)

    @property
    def peak_mib(self) -> float | None:
        return self.search.run.peak_memory_predicted_mib if self.search.run else None

    @property
    def less_narrow(self) -> str | None:
        return None if self.search.slot.arm == DENSE else self.search.less(self.page.narrow(self.search))

    @property
    def less_dense(self) -> str | None:
        return self.search.less(self.page.dense(self.search.slot.optimizer))


def rows_of(page: Formats) -> list[FormatsRow]:
    """The rows of a page, by optimizer, ratio and loss."""

    def place(search: Search) -> tuple[Any, ...]:
        ratio = search.slot.ratio or 0.0
        return (
            list(OPTIMIZERS).index(search.slot.optimizer),
            ratio,
            search.loss if search.loss is not None else math.inf,
        )

    return [FormatsRow(page, one) for one in sorted(page.found, key=place)]


def columns(page: Formats, _: Sequence[FormatsRow]) -> list[Column[FormatsRow]]:
    def head(row: FormatsRow) -> dict[str, object]:
        slot = row.search.slot
        return {"device": page.device, "experiment": page.experiment, "optimizer": slot.optimizer, "ratio": slot.ratio}

    def step(row: FormatsRow) -> str | None:
        time = time_of(row.search.timed, "step") if row.search.timed else None
        return with_bounds(time.total) if time else None

    rates: Callable[[FormatsRow], str] = lambda row: ", ".join(f"{rate:g}" for rate in row.search.tried)  # noqa: E731
    return [
        Column("optimizer", lambda row: row.optimizer, head, left=True),
        Column("arm", lambda row: row.name, lambda row: {"arm": row.search.slot.arm}, left=True),
        Column(
            "parameters",
            lambda row: f"{row.search.run.parameters:,}" if row.search.run and row.search.run.parameters else None,
            lambda row: {"parameters": row.search.run.parameters if row.search.run else None},
            whole=True,
        ),
        Column("loss", lambda row: row.search.loss_text, lambda row: row.search.loss_columns),
        Column("less narrow", lambda row: row.less_narrow),
        Column("less dense", lambda row: row.less_dense),
        Column("step, ms", step, lambda row: {"training_s": row.training_s}),
        Column(
            "peak MiB, predicted",
            lambda row: significant(row.peak_mib) if row.peak_mib else None,
            lambda row: {"peak_memory_predicted_mib": row.peak_mib},
        ),
        Column(
            "best rate",
            lambda row: None if row.search.best is None else f"{row.search.best:g}",
            lambda row: {"lr": row.search.best, "at_edge": row.search.at_edge},
        ),
        Column("rates tried", rates, lambda row: {"rates": rates(row)}, left=True),
        Column(REMARKS, lambda row: row.search.remarks, lambda row: {"remarks": row.search.remarks}, left=True),
    ]


def beaten_by(page: Formats, optimizer: str) -> tuple[list[str], list[str], list[str]]:
    """The formats surely better than a narrower dense model of equal size, those surely worse, and the others."""
    found: tuple[list[str], list[str], list[str]] = ([], [], [])
    for row in rows_of(page):
        search, rival = row.search, page.narrow(row.search)
        if search.slot.optimizer != optimizer or search.slot.arm in (DENSE, NARROW) or rival is None:
            continue
        if search.loss is not None and rival.loss is not None:
            place = 0 if search.surely_below(rival) else 1 if rival.surely_below(search) else 2
            found[place].append(row.name)
    return found


def _title(page: Formats) -> str:
    parts = []
    for optimizer in page.optimizers:
        better, worse, open_ = beaten_by(page, optimizer)
        if not (better or worse or open_):
            continue
        found = [f"{len(worse)} surely worse", f"{len(open_)} undecided", f"{len(better)} surely better"]
        parts.append(f"under {OPTIMIZERS[optimizer]} {', '.join(found)}")
    if not parts:
        return f"Loss of formats, {page.place}: nothing to compare yet"
    return f"Formats against a narrower dense model of equal size, {page.place}: {'; '.join(parts)}"


def _sentences(page: Formats) -> list[str]:
    """Say what goes against structured formats first, then what speaks for them, and what Muon changes."""
    lines = []
    for optimizer in page.optimizers:
        better, worse, open_ = beaten_by(page, optimizer)
        words = OPTIMIZERS[optimizer]
        for names, verdict in (
            (worse, "surely worse than a narrower dense model of equal size"),
            (open_, "not surely apart from a narrower dense model of equal size"),
            (better, "surely better than a narrower dense model of equal size"),
        ):
            if names:
                lines.append(f"{words}, {verdict}: {', '.join(names)}.")
    gains = []
    for one in page.found:
        other = next(
            (each for each in page.found if each.slot == type(one.slot)(one.slot.arm, "muon", one.slot.ratio)), None
        )
        if one.slot.optimizer == "adamw" and other and one.loss is not None and other.loss is not None:
            gains.append((one.loss - other.loss, FormatsRow(page, one).name))
    if gains:
        text = ", ".join(f"{name} {gain:.3f}" for gain, name in sorted(gains, reverse=True))
        lines.append(f"Muon less than AdamW, in loss: {text}.")
    return lines


def caption(page: Formats, rows: Sequence[FormatsRow]) -> Caption:
    first = next(one for one in page.shown if one.measure == "train")
    words, metric = workload_words(first), page.metric
    steps = first.train_steps or 0
    edges = [row for row in rows if row.search.best is not None and row.search.at_edge]
    notes = [
        *_sentences(page),
        "Loss is on data that nothing was chosen by, the mean over seeds at the chosen rate; brackets are the range "
        f"over seeds. Sure: all of at least {SURE_SEEDS} seeds of one lie below all of the other.",
        "Each arm's rate of the matrices was searched by other data; the other parameters have one rate for all arms.",
    ]
    if edges:
        named = ", ".join(f"{row.name} ({row.optimizer})" for row in edges)
        notes.append(f"Best rate at an edge, so that more rates may do better: {named}.")
    if page.probes:
        named = ", ".join(f"{name} {loss:.3f}" for name, loss in page.probes.items())
        notes.append(f"Probes, on the same data, in {metric.get('unit', '')}: {named}.")
    return Caption(
        title=_title(page),
        facts=(
            device_fact(page, listed(page, "precision")),
            f"{first_upper(words['model'])} on {first.dataset!r} data, {steps:,} steps of {first.batch_size:,} "
            f"{words['example']}s; {len({row.search.slot for row in rows})} arms, {len(page.shown):,} records.",
        ),
        notes=[*notes, *closing_notes(page)],
        remarks=[f"{row.name} ({row.optimizer}): {row.search.remarks}" for row in rows if row.search.remarks],
    )


def draw(page: Formats, rows: Sequence[FormatsRow], caption: Caption) -> Figure:
    arms = list(dict.fromkeys(row.search.slot.arm for row in rows if row.search.slot.arm != DENSE))
    arms.sort(key=lambda arm: arm != NARROW)
    looks = strokes(arms)
    handles = [stroke_handle(looks[arm], arm) for arm in arms]
    handles.append(stroke_handle(DENSE_STROKE, f"{DENSE} (line: its loss)"))
    if page.probes:
        handles.append(Line2D([], [], color=FAINT, linestyle=(0, (1, 1.5)), label="a probe, by its name"))
    handles.append(Line2D([], [], **WHISKER, label="range over seeds"))
    axes_of: list[tuple[str, Callable[[FormatsRow], float | None]]] = [
        ("size of the stored model, MiB", lambda row: row.stored_mib),
        ("training, s: steps times a measured step", lambda row: row.training_s),
        ("predicted peak memory of a step, MiB", lambda row: row.peak_mib),
    ]
    shown = [(axis, of) for axis, of in axes_of if any(of(row) for row in rows)]
    grid = [[f"{OPTIMIZERS[name]}" for _ in shown] for name in page.optimizers]
    foot = (*caption.of_picture, *caption.notes)
    paper, lines = panel_page(caption.title, caption.facts, grid, foot, 2.7, handles, 5)
    for optimizer, panels in zip(page.optimizers, lines, strict=True):
        for (axis, of), axes in zip(shown, panels, strict=True):
            own = [row for row in rows if row.search.slot.optimizer == optimizer]
            _panel(axes, own, of, looks, page.probes)
            axes.set_xlabel(axis, fontsize=8)
            axes.set_ylabel(f"loss, {page.metric.get('unit', '')}".rstrip(", "), fontsize=8)
    return paper.finish()


def _panel(
    axes: Any,
    rows: Sequence[FormatsRow],
    of: Callable[[FormatsRow], float | None],
    looks: Mapping[str, Any],
    probes: Mapping[str, float],
) -> None:
    """One optimizer's arms against one cost."""
    points = [(cost, row) for row in rows if (cost := of(row)) and row.search.loss is not None]
    if not points:
        nothing_drawn(axes, "nothing recorded")
        return
    axes.set_xscale("log")
    for arm, stroke in [*looks.items(), (DENSE, DENSE_STROKE)]:
        own = sorted(((cost, row) for cost, row in points if row.search.slot.arm == arm), key=lambda pair: pair[0])
        if not own:
            continue
        axes.plot([cost for cost, _ in own], [row.search.loss for _, row in own], markersize=4.5, **stroke.look)
        for cost, row in own:
            axes.plot([cost, cost], row.search.range, **WHISKER)
        if arm == DENSE:
            axes.axhline(own[0][1].search.loss, color=DENSE_STROKE.colour, linewidth=0.8, zorder=1)
    values = [value for _, row in points for value in row.search.range or ()]
    low, high = min(values), max(values)
    room = high - low or abs(high) or 1.0
    axes.set_ylim(low - 0.08 * room, high + 0.1 * room)
    for name, loss in probes.items():
        if low - 0.08 * room <= loss <= high + 0.1 * room:
            axes.axhline(loss, color=FAINT, linestyle=(0, (1, 1.5)), linewidth=1, zorder=1)
            look = {"xycoords": axes.get_yaxis_transform(), "ha": "right", "fontsize": 6, "color": INK}
            note(axes, name, (0.99, loss), (0, 2), **look)
    number_axis(axes.xaxis, LogLocator(10, subs=(1, 1.5, 2, 3, 5, 7)))
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10]))


ARTIFACT = Artifact(
    name="formats",
    heading="Which format trains best",
    summary="loss of formats under AdamW and Muon against size, time and memory; an image per device and test bed",
    experiments=EXPERIMENTS,
    measure="train",
    lenders=(*TIMES, "probe_text", "probe_teacher"),
    made_by="make reproduce-formats",
    order=44,
    select=select,
    rows=rows_of,
    columns=columns,
    caption=caption,
    draw=draw,
)
