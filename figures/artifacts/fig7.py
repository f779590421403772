"""Fig. 7: time with CUDA Graph off and on, CoMERA against dense, and with other toggles; a page per device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from bench.core.intervals import Estimate
from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.ratio import Point, not_full_size, ratio_rule, time_points
from figures.page.bands import marks_of, memory_band, memory_bar, panels_by_batch, place_of, time_band, time_bar
from figures.page.bars import Bar, draw_bars, value_label
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes, remarks
from figures.page.notes import (
    data_fact,
    disturbed_note,
    epoch_fact,
    gathered,
    last_notes,
    length_note,
    mark_notes,
    step_fact,
)
from figures.page.table import (
    NOT_ASKED,
    NOT_RECORDED,
    OLDER,
    REMARKS,
    UNPAIRED,
    Column,
    bounds,
    pairing,
    ratio_text,
    significant,
)
from figures.records.memory import (
    Measured,
    MemoryCell,
    measured_columns,
    measured_peaks,
    memory_cell,
    memory_columns,
    quotient,
)
from figures.records.select import COMERA, DENSE, Select, TimesAndMemory, device_kind, devices
from figures.records.time_values import (
    Per,
    TimeCell,
    disagreement,
    mark_words,
    per_of,
    time_cell,
    time_columns,
    time_ratio,
    time_text,
    time_unit,
)
from figures.records.toggles import CAPTURED, Toggles

EXPERIMENTS = ("fig7",)

#: The batch sizes of each kind of device: the paper's on CUDA. And what each is expected to have timed.
BATCHES = {"cuda": (32, 64, 128), "cpu": (1, 8, 16)}
EXPECTED = {"cuda": (Toggles(), CAPTURED), "cpu": (Toggles(), Toggles(compile=True))}

#: Stands for the memory of steps with CUDA Graph or torch.compile, since predictions are of plain ones.
NOT_MODELLED = "not modelled"

#: An arm with its toggles, which is what a row of the picture is; and at a batch size.
Variant = tuple[str, Toggles]
Cell = tuple[str, Toggles, int]


@dataclass(frozen=True, kw_only=True)
class Selection(TimesAndMemory):
    @property
    def expected(self) -> bool:
        """Whether the page is that of the paper, whose arms, toggles and batch sizes are expected."""
        return any(record.experiment in EXPERIMENTS for record in self.shown)

    @property
    def per(self) -> Per:
        return per_of(self.own)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Those found and those expected: CoMERA, dense, then whatever else there is; of each, plain steps first."""
        wanted = {(arm, toggles) for arm in (COMERA, DENSE) for toggles in EXPECTED[self.kind] if self.expected}

        def rank(variant: Variant) -> tuple[Any, ...]:
            arm, toggles = variant
            return arm != COMERA, arm != DENSE, arm, toggles.rank

        return tuple(sorted({*wanted, *(cell[:2] for cell in self.timed)}, key=rank))

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(sorted({*(BATCHES[self.kind] if self.expected else ()), *(batch for _, _, batch in self.timed)}))

    def time_ratio(self, above: Cell, below: Cell) -> Estimate | None:
        """Ratio of times of two cells, paired by block where they were timed together; None without both."""
        numerator, denominator = self.timed.get(above), self.timed.get(below)
        return time_ratio(numerator, denominator) if numerator and denominator else None


@dataclass(frozen=True)
class Row:
    arm: str
    toggles: Toggles
    batch: int
    time: TimeCell  # its ratio is to CoMERA's with the same toggles
    gain: Estimate | None  # time of the same arm without the toggle named last, over its own
    compile_s: float | None
    memory: Mapping[str, MemoryCell]  # for this kind of device
    measured: Measured
    measured_ratio: float | None  # of allocated peaks, to CoMERA's with the same toggles

    @property
    def name(self) -> str:
        return name_of(self.arm, self.toggles)

    @property
    def is_reference(self) -> bool:
        return self.arm == COMERA

    @property
    def marks(self) -> str:
        """The marks of all that is shown of the row."""
        return marks_of(self) + UNPAIRED * (self.gain is not None and self.gain.paired is False)


def name_of(arm: str, toggles: Toggles) -> str:
    """How a row is called: ``comera, CUDA Graph``."""
    return ", ".join((arm, *toggles.names))


_SELECT = Select(lambda record: (record.arm, Toggles.of(record), record.batch_size))


def select(records: Sequence[Record]) -> list[Selection]:
    """A selection per device on which steps were timed."""
    timed = [record for record in records if record.measure == "run"]
    pages = []
    for device in devices(timed):
        mine = [record for record in timed if record.device == device]
        pages.append(_SELECT(mine, Selection, device=device, kind=device_kind(mine)))
    return pages


def _memory_cell(page: Selection, record: Record | None, reference: Record | None) -> MemoryCell:
    if record is None:
        return MemoryCell(NOT_RECORDED)
    if record.peak_memory_predicted_mib is not None and (record.cuda_graph or record.compile):
        return MemoryCell(NOT_MODELLED, marks=page.older(record))
    return memory_cell(record, reference.peak_memory_predicted_mib if reference else None, page.older(record))


def _row(page: Selection, cell: Cell) -> Row:
    arm, toggles, batch = cell
    record = page.timed.get(cell)
    reference = page.timed.get((COMERA, toggles, batch)) if arm != COMERA else None
    plainer = toggles.without_last
    allocated = [one.peak_memory_allocated_mib if one else None for one in (record, reference)]
    return Row(
        *cell,
        time=time_cell(record, reference, page.older(record), page.per),
        gain=page.time_ratio((arm, plainer, batch), cell) if plainer else None,
        compile_s=record.compile_time_s if record else None,
        memory={page.kind: _memory_cell(page, record, reference)},
        measured=measured_peaks(record),
        measured_ratio=quotient(*allocated),
    )


def rows_of(page: Selection) -> list[Row]:
    """Every batch size with every variant, in this order."""
    return [_row(page, (*variant, batch)) for batch in page.batches for variant in page.variants]


def _unpaired(ratio: Estimate | None) -> str:
    """A mark behind a ratio whose sides were not timed together."""
    return f" {UNPAIRED}" if ratio is not None and ratio.paired is False else ""


def _remarks(row: Row) -> str:
    predicted = {kind: cell for kind, cell in row.memory.items() if cell.status != NOT_MODELLED}
    return remarks(row.time, predicted, row.time.disturbed, row.time.message if row.time.status == "ok" else "")


def columns(page: Selection, rows: Sequence[Row]) -> list[Column[Row]]:
    _, scale = time_unit(rows)

    def head(row: Row) -> dict[str, object]:
        record = page.timed.get((row.arm, row.toggles, row.batch))
        return {
            "device": page.device,
            "arm": row.arm,
            "precision": row.toggles.precision,
            "compile": row.toggles.compile,
            "cuda_graph": row.toggles.cuda_graph,
            "batch_size": row.batch,
            "dataset": record.dataset if record else "",
        }

    def gain(row: Row) -> dict[str, object]:
        return {**bounds("time_off_over_on", row.gain), "off_over_on_pairing": pairing(row.gain)}

    def compiled(row: Row) -> str:
        return NOT_ASKED if row.compile_s is None else significant(row.compile_s)

    def allocated(row: Row) -> str:
        return ratio_text(row.measured_ratio, row.is_reference and row.measured["allocated"] is not None)

    time, ratio = time_columns(
        rows, COMERA, lambda row: row.is_reference, per=page.per,
        text=lambda row: f"{time_text(row.time, scale)} {row.time.marks.replace(UNPAIRED, '')}".strip(),
    )  # fmt: skip
    any_compiled = any(row.compile_s is not None for row in rows)
    return [
        Column("batch", lambda row: str(row.batch)),
        Column("arm", lambda row: row.name, head, left=True),
        time,
        replace(ratio, text=lambda row: ratio.text(row) + _unpaired(row.time.ratio) if ratio.text else ""),
        Column("off / on", lambda row: ratio_text(row.gain) + _unpaired(row.gain), gain),
        Column("compile, s", compiled if any_compiled else None, lambda row: {"compile_time_s": row.compile_s}),
        *memory_columns(page.kind, COMERA, lambda row: row.is_reference),
        *measured_columns(page.kind == "cuda"),
        Column(
            "allocated / comera",
            allocated if page.kind == "cuda" else None,
            lambda row: {"allocated_over_comera": row.measured_ratio, "older_code": OLDER in row.marks},
        ),
        Column(REMARKS, _remarks, left=True),
    ]


_COLUMN_NOTES = (
    "off / on: time of the same arm without the toggle that its row names last, over its own; above 1 the toggle pays.",
)
_COMPILE_NOTE = "compile, s: what the first step takes beyond a usual one; no part of an epoch."


def _is_measured(rows: Sequence[Row]) -> bool:
    """Whether the allocator of this device reported any peak."""
    return any(size is not None for row in rows for size in row.measured.values())


def _notes(page: Selection, rows: Sequence[Row]) -> Iterator[str]:
    """What holds for the picture and the table alike."""
    of_memory = ["Labels of memory: the allocated peak; in parentheses, the predicted one."] * _is_measured(rows)
    if any(cell.status == NOT_MODELLED for row in rows for cell in row.memory.values()):
        of_memory.append("Predictions are of steps without CUDA Graph and compile.")
    yield from [" ".join(of_memory)] if of_memory else []
    for row in rows:
        record = page.timed.get((row.arm, row.toggles, row.batch))
        yield from disagreement(f"{row.name}, batch {row.batch}", row.time, record)
    yield from mark_notes((row.marks for row in rows), mark_words(page.per))
    yield from disturbed_note(sum(row.time.disturbed for row in rows))
    yield from length_note(page)
    yield from last_notes(page)


def caption(page: Selection, rows: Sequence[Row]) -> Caption:
    other = (
        "A CPU has no CUDA Graph: torch.compile takes its place, at batch 1, 8 and 16 instead of the paper's 32, 64, "
        "128."
    )
    title = {
        "cuda": f"Fig. 7: time per {page.per} with CUDA Graph off and on",
        "cpu": f"Fig. 7 on a CPU: time per {page.per} with torch.compile off and on, in place of CUDA Graph",
    }[page.kind]
    compiled = [_COMPILE_NOTE] if any(row.compile_s is not None for row in rows) else []
    return Caption(
        title=title if page.expected else f"Time per {page.per} by toggles",
        facts=(
            step_fact(page),
            f"{data_fact(page)} {epoch_fact(page)}".rstrip(),
            *([other] if page.kind == "cpu" and page.expected else []),
        ),
        of_picture=(
            "Bars start at zero; every panel has its own scale. Labels: value, and its ratio to CoMERA's with the same "
            "toggles (x).",
        ),
        notes=(*_COLUMN_NOTES, *compiled, *_notes(page, rows)),
        remarks=gathered((row.name, str(row.batch), _remarks(row)) for row in rows),
    )


def _memory_bar(row: Row, measured: bool, footnotes: Footnotes) -> Bar:
    """The predicted peak as a bar; where peaks are ``measured``, labels are of the allocated ones."""
    [cell] = row.memory.values()
    bar, allocated = memory_bar(cell, row.measured, footnotes), row.measured["allocated"]
    if allocated is not None:
        return replace(bar, label=value_label(allocated, row.measured_ratio, cell.marks))
    if measured and cell.peak is not None:
        return replace(bar, label=f"({significant(cell.peak)}) {cell.marks}".rstrip())
    return bar


def _gains(page: Selection, rows: Sequence[Row]) -> list[str]:
    """A sentence per variant on what the toggle named last brings."""
    sentences = []
    for arm, toggles in page.variants:
        mine = [row for row in rows if (row.arm, row.toggles) == (arm, toggles) and row.gain is not None]
        if mine and toggles.without_last is not None:
            plainer, own = name_of(arm, toggles.without_last), name_of(arm, toggles)
            ratios = ", ".join(f"{ratio_text(row.gain)}{_unpaired(row.gain)} at {row.batch}" for row in mine)
            sentences.append(f"Time of {plainer!r} over {own!r}, by batch size: {ratios}.")
    return sentences


def draw(page: Selection, rows: Sequence[Row], caption: Caption) -> Figure:
    footnotes, (unit, scale), measured = Footnotes(), time_unit(rows), _is_measured(rows)
    time = panels_by_batch(rows, page.batches, lambda row: time_bar(row.time, row.is_reference, scale, footnotes))
    others = "dense" if {arm for arm, _ in page.variants} == {COMERA, DENSE} else "other arms"
    legend = {"steps, CoMERA": "training steps, CoMERA", "steps": f"training steps, {others}"}
    if any(row.time.time and row.time.time.rare for row in rows):
        legend["rare"] = "rare events, amortised"
    memory = panels_by_batch(rows, page.batches, lambda row: _memory_bar(row, measured, footnotes))
    bands = [
        time_band(f"Time per {page.per} {place_of(page.kind)}, in {unit}", time, legend),
        memory_band(page.kind, memory, [row.memory[page.kind] for row in rows], measured),
    ]
    names = [name_of(*variant) for variant in page.variants]
    lines = (*footnotes.lines(), *caption.of_picture, *_gains(page, rows), *_notes(page, rows))
    references = sum(arm == COMERA for arm, _ in page.variants)
    return draw_bars(caption.title, caption.facts, names, bands, lines, references)


def _points(page: Selection, *which: Toggles) -> list[Point]:
    """Dense over CoMERA with the same toggles."""
    points = []
    for toggles in which:
        pairs = {batch: ((DENSE, toggles, batch), (COMERA, toggles, batch)) for batch in page.batches}
        points += time_points(page, pairs, ", ".join(toggles.names) or "plain")
    return points


def _everything(page: Selection) -> list[Point]:
    return _points(page, *(toggles for arm, toggles in page.variants if arm == DENSE))


def _no_pair(page: Selection) -> str:
    """Why these records decide nothing where no pair with CUDA Graph was timed."""
    found = any(point.batch_size in BATCHES["cuda"] for point in _points(page, CAPTURED))
    return "" if found else "The claim is about FP32 with CUDA Graph; no such pair was timed."


ARTIFACT = Artifact(
    name="fig7",
    heading="Fig. 7: CUDA Graph and compile",
    summary="time per epoch with CUDA Graph (on a CPU, compile) off and on, dense against CoMERA; an image per device",
    experiments=EXPERIMENTS,
    measure="run",
    made_by="make reproduce-fig7",
    order=40,
    select=select,
    rows=rows_of,
    columns=columns,
    caption=caption,
    draw=draw,
    rules=(
        ratio_rule(
            "graph-speedup", "epoch time of dense / comera, both with CUDA Graph, FP32",
            [lambda page: _points(page, CAPTURED)], BATCHES["cuda"],
            conditions=(_no_pair, not_full_size), beside=_everything,
        ),
    ),
    section="batch",
)  # fmt: skip
