"""Fig. 5: time and peak memory of a look-up by each variant; a page per device, table and distribution of indices.

The published ratios are plain TTM over optimized TTM, of time and of peak memory, at three batch sizes. They are judged
on forward and backward alone; predictions for a CUDA device may decide about memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.ratio import Pairs, memory_points, not_fp32, ratio_rule, time_points
from figures.page.bands import marks_of, memory_band, memory_bar, panels_by_batch, place_of, time_band, time_bar
from figures.page.bars import draw_bars
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes, remarks
from figures.page.notes import blocks_timed, disturbed_note, last_notes, mark_notes, step_fact
from figures.page.table import NOT_RECORDED, OLDER, REMARKS, Column, with_interval
from figures.records.memory import Measured, MemoryCell, measured_columns, measured_peaks, memory_cell, memory_columns
from figures.records.select import (
    TARGETS,
    Select,
    TimesAndMemory,
    device_kind,
    devices,
    method_settings,
    timing_setting,
    workload_settings,
)
from figures.records.time_values import TimeCell, mark_words, time_cell, time_columns, time_ratio

EXPERIMENTS = ("fig5", "fig5_memory")

REFERENCE, PLAIN, UNCOMPRESSED = "optimized", "plain", "uncompressed"
VARIANTS = (REFERENCE, "order", "unique", PLAIN, UNCOMPRESSED)
BATCHES = (10_000, 20_000, 40_000)

#: Whether a step ends with the optimizer's, in words.
STEPS = {False: "forward and backward", True: "with the optimizer's step"}

#: Whether with the optimizer's step, batch size, variant.
Cell = tuple[bool, int, str]


@dataclass(frozen=True, order=True)
class Place:
    """What one page is about beside its device."""

    rows: int
    columns: int
    dataset: str
    allocator: str = "steady"

    @property
    def table(self) -> str:
        return f"{self.rows:,} x {self.columns:,}"

    @property
    def suffix(self) -> tuple[str, ...]:
        """Its parts; the allocator only where that is not the usual one."""
        other = () if self.allocator == "steady" else (self.allocator,)
        return (f"{self.rows}x{self.columns}", self.dataset, *other)


@dataclass(frozen=True, kw_only=True)
class Selection(TimesAndMemory):
    about: Place

    @property
    def batches(self) -> tuple[int, ...]:
        found = [*self.timed, *(cell for _, cell in self.predicted)]
        return tuple(sorted({*BATCHES, *(batch for _, batch, _ in found)}))

    @property
    def target(self) -> str:
        """The device whose predicted memory is drawn: this one's kind, or the other where only that was predicted."""
        if any(target == self.kind for target, _ in self.predicted):
            return self.kind
        return "cpu" if self.kind == "cuda" else "cuda"


@dataclass(frozen=True)
class Row:
    step: bool
    batch: int
    variant: str
    time: TimeCell  # per step
    memory: Mapping[str, MemoryCell]  # by target
    measured: Measured

    @property
    def is_reference(self) -> bool:
        return self.variant == REFERENCE


def _variant(record: Record) -> str | None:
    """The row that a record belongs to, or None where it is no arm of this figure."""
    if record.method == "dense":
        return UNCOMPRESSED
    found = method_settings(record).get("lookup")
    return found if record.method == "comera" and found in VARIANTS else None


def _cell(record: Record) -> Cell | None:
    variant = _variant(record)
    return (bool(workload_settings(record)["optimizer_step"]), record.batch_size, variant) if variant else None


def _same(record: Record) -> dict[str, Any]:
    """Toggles and model, whether with the optimizer's step or not."""
    toggles = {"precision": record.precision, "compile": record.compile, "CUDA Graph": record.cuda_graph}
    return {**timing_setting(record), **toggles, "model optimizer_step": None}


def _same_per_arm(record: Record) -> dict[str, Any]:
    return {"variant": record.variant, **method_settings(record), "lookup": None}


_SELECT = Select(
    _cell,
    same=_same,
    same_model=lambda record: {"precision": record.precision},
    same_per_arm=_same_per_arm,
    arm=lambda record: record.method,
)


def _place(record: Record) -> Place | None:
    table = workload_settings(record)
    if not {"rows", "columns", "optimizer_step"} <= set(table):
        return None
    allocator = timing_setting(record)["allocator"] or "steady"
    return Place(table["rows"], table["columns"], record.dataset, allocator)


def select(records: Sequence[Record]) -> list[Selection]:
    """A selection per device, table and distribution."""
    pages = []
    for device in devices(records):
        mine = [record for record in records if record.device == device]
        kind = device_kind(mine)
        places = {id(record): _place(record) for record in mine}
        for place in sorted({place for place in places.values() if place}):
            name = ", ".join((place.table, place.dataset))
            name += "" if place.allocator == "steady" else f", {place.allocator} allocator"
            here = [record for record in mine if places[id(record)] == place]
            page = {"device": device, "kind": kind, "place": name, "suffix": place.suffix}
            pages.append(_SELECT(here, Selection, about=place, **page))
    return [page for page in pages if page.shown]


def rows_of(page: Selection) -> list[Row]:
    """Every variant at every batch size, first without the optimizer's step, then with it."""

    def time(cell: Cell) -> TimeCell:
        record = page.timed.get(cell)
        reference = page.timed.get((*cell[:2], REFERENCE)) if cell[2] != REFERENCE else None
        return time_cell(record, reference, page.older(record), "step")

    def memory(target: str, cell: Cell) -> MemoryCell:
        record = page.predicted.get((target, cell))
        if record is None:
            return MemoryCell(NOT_RECORDED)
        below = page.peak(target, (*cell[:2], REFERENCE)) if cell[2] != REFERENCE else None
        return memory_cell(record, below, page.older(record))

    cells = [(step, batch, variant) for step in STEPS for batch in page.batches for variant in VARIANTS]
    return [
        Row(
            *cell,
            time(cell),
            {target: memory(target, cell) for target in TARGETS},
            measured_peaks(page.timed.get(cell)),
        )
        for cell in cells
    ]


def _remarks(row: Row) -> str:
    return remarks(row.time, row.memory, row.time.disturbed)


def columns(page: Selection, rows: Sequence[Row]) -> list[Column[Row]]:
    """Targets without any prediction have no column for people."""
    place = page.about

    def head(row: Row) -> dict[str, object]:
        return {
            "device": page.device,
            "rows": place.rows,
            "columns": place.columns,
            "distribution": place.dataset,
            "allocator": place.allocator,
            "batch_size": row.batch,
            "optimizer_step": row.step,
            "variant": row.variant,
        }

    return [
        Column("indices", lambda row: f"{row.batch:,}", head),
        Column("step", lambda row: STEPS[row.step], left=True),
        Column("variant", lambda row: row.variant, left=True),
        *time_columns(
            rows, REFERENCE, lambda row: row.is_reference, per="step", names=("time, ms", f"/ {REFERENCE}"), rare=False
        ),
        *(
            column
            for target in TARGETS
            for column in memory_columns(
                target,
                REFERENCE,
                lambda row: row.is_reference,
                shown=any(row.memory[target].status != NOT_RECORDED for row in rows),
            )
        ),
        *measured_columns(page.kind == "cuda"),
        Column(REMARKS, _remarks, lambda row: {"older_code": OLDER in marks_of(row)}, left=True),
    ]


def _against_the_table(page: Selection) -> list[str]:
    """Sentences with the time of the optimized look-up over that of the uncompressed table."""
    sentences = []
    for step, words in STEPS.items():
        ratios = []
        for batch in page.batches:
            above, below = (page.timed.get((step, batch, variant)) for variant in (REFERENCE, UNCOMPRESSED))
            ratio = time_ratio(above, below) if above and below else None
            if ratio is not None:
                unpaired = ", unpaired" if ratio.paired is False else ""
                ratios.append(f"{with_interval(ratio, unit='x')} at {batch:,} indices{unpaired}")
        if ratios:
            sentences.append(f"Optimized look-up over the uncompressed table, time, {words}: {'; '.join(ratios)}.")
    return sentences


def caption(page: Selection, rows: Sequence[Row]) -> Caption:
    place = page.about
    words = {"uniform": "evenly drawn indices", "zipf": "Zipf-distributed indices"}
    indices = words.get(place.dataset, f"indices {place.dataset}")
    allocator = "" if place.allocator == "steady" else f", {place.allocator} allocator"
    blocks = blocks_timed(page.timed.values())
    timing = f"Timed in {blocks} undisturbed blocks." if blocks else "Nothing timed."
    if place.allocator == "system":
        timing += " Freed memory goes back to the system, as is usual outside of this bench, which keeps it elsewhere."
    return Caption(
        title=f"Fig. 5: look-up of a table of {place.table}, {indices}{allocator}",
        facts=(
            step_fact(page),
            f"{timing} The gradient of the rows is given. With the optimizer's step (AdamW), CoMERA's size term is in.",
            "plain: a gather and a product per core and index; unique: the same for unique indices alone; order: one "
            "product of two halves per index; optimized: that for unique indices alone; uncompressed: nn.Embedding.",
        ),
        of_picture=(
            "Bars start at zero; every panel has its own scale. Labels: value, and its ratio to the optimized one (x).",
        ),
        notes=(
            *mark_notes(map(marks_of, rows), mark_words("step", "variants")),
            *_against_the_table(page),
            *disturbed_note(sum(row.time.disturbed for row in rows)),
            *last_notes(page),
        ),
        remarks=[
            f"{row.variant}, {row.batch:,} indices, {STEPS[row.step]}: {_remarks(row)}" for row in rows if _remarks(row)
        ],
    )


def draw(page: Selection, rows: Sequence[Row], caption: Caption) -> Figure:
    footnotes, target = Footnotes(), page.target
    measured = target == "cuda" and any(row.measured["allocated"] is not None for row in rows)
    legend = {"steps, CoMERA": "optimized", "steps": "other variants and the uncompressed table"}
    bands = []
    for step, words in STEPS.items():
        bars = panels_by_batch(
            [row for row in rows if row.step == step], page.batches,
            lambda row: time_bar(row.time, row.is_reference, 1.0, footnotes), "{:,} indices",
        )  # fmt: skip
        bands.append(time_band(f"Time per step {place_of(page.kind)}, in ms: {words}", bars, legend))
    for step, words in STEPS.items():
        bars = panels_by_batch(
            [row for row in rows if row.step == step], page.batches,
            lambda row: memory_bar(row.memory[target], row.measured if measured else {}, footnotes), "{:,} indices",
        )  # fmt: skip
        bands.append(memory_band(target, bars, [row.memory[target] for row in rows], measured, f": {words}"))
    lines = (*footnotes.lines(), *caption.of_picture, *caption.notes)
    return draw_bars(caption.title, caption.facts, VARIANTS, bands, lines)


def _pairs(page: Selection) -> Pairs:
    return {batch: ((False, batch, PLAIN), (False, batch, REFERENCE)) for batch in page.batches}


_OF = "of plain / optimized, forward and backward"
_WHERE: dict[str, Any] = {"conditions": (not_fp32,), "at": "{} indices"}

ARTIFACT = Artifact(
    name="fig5",
    heading="Fig. 5: look-up of an embedding table",
    summary="time and peak memory of a table look-up by each variant; an image per device, table and distribution",
    experiments=EXPERIMENTS,
    made_by="make reproduce-fig5",
    order=20,
    select=select,
    rows=rows_of,
    columns=columns,
    caption=caption,
    draw=draw,
    rules=(
        ratio_rule(
            "lookup-time", f"step time {_OF}", [lambda page: time_points(page, _pairs(page))], BATCHES, **_WHERE
        ),
        ratio_rule(
            "lookup-memory", f"peak memory, allocated or predicted for CUDA, {_OF}",
            [lambda page: memory_points(page, _pairs(page))], BATCHES, device="any", **_WHERE,
        ),
    ),
    section="indices",
)  # fmt: skip
