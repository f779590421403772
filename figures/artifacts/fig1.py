"""Fig. 1: time and peak memory of every arm, by batch size; a page per device, precision and toggles.

A device has a page per precision and toggles that anything was timed with, and one of plain FP32 steps where there are
predictions in FP32. A prediction, which is of plain steps, belongs to every page of its precision. The records of
another experiment make the same page for whatever arms and batch sizes they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from matplotlib.figure import Figure

from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.ratio import Evidence, Point, memory_points, not_fp32, not_full_size, ratio_rule, time_points
from figures.claims.rule import DeviceKind, Rule
from figures.page.bands import marks_of, memory_band, memory_bar, panels_by_batch, place_of, time_band, time_bar
from figures.page.bars import draw_bars
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
    model_words,
    step_fact,
)
from figures.page.table import NOT_RECORDED, OLDER, REMARKS, Column
from figures.records.memory import Measured, MemoryCell, measured_columns, measured_peaks, memory_cell, memory_columns
from figures.records.select import (
    ARMS,
    TARGETS,
    Select,
    TimesAndMemory,
    device_kind,
    devices,
    method_settings,
    newest,
    timing_setting,
)
from figures.records.time_values import (
    Per,
    TimeCell,
    disagreement,
    mark_words,
    per_of,
    time_cell,
    time_columns,
    time_unit,
)
from figures.records.toggles import CAPTURED, PLAIN, Toggles

EXPERIMENTS = ("fig1", "fig1_memory")
REFERENCE = "comera"

#: The paper's batch sizes, and those timed where there is no GPU.
PAPER_BATCHES = (1, 32, 64, 128)
CPU_BATCHES = (1, 8, 16)

#: An arm at a batch size.
Cell = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Selection(TimesAndMemory):
    toggles: Toggles
    uncaptured: Mapping[Cell, Record] = field(default_factory=dict)  # times without CUDA Graph of what is refused it

    @property
    def expected(self) -> bool:
        """Whether the page is that of the paper, whose arms and batch sizes are expected."""
        return any(record.experiment in EXPERIMENTS for record in self.shown)

    @property
    def per(self) -> Per:
        return per_of(self.own)

    @property
    def arms(self) -> tuple[str, ...]:
        """Those found and those expected, in drawing order."""
        found = {arm for arm, _ in self.timed} | {arm for _, (arm, _) in self.predicted}
        return (*(arm for arm in ARMS if self.expected or arm in found), *sorted(found - set(ARMS)))

    @property
    def time_batches(self) -> tuple[int, ...]:
        grid = {"cuda": PAPER_BATCHES, "cpu": CPU_BATCHES}[self.kind] if self.expected else ()
        return tuple(sorted({*grid, *(batch for _, batch in self.timed)}))

    @property
    def memory_batches(self) -> tuple[int, ...]:
        """Those predicted; on the paper's page not those of times alone, which hold a prediction too."""
        found = {cell[1] for (_, cell), one in self.predicted.items() if not self.expected or one.measure == "predict"}
        return tuple(sorted({*(PAPER_BATCHES if self.expected else ()), *found}))

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(goal for goal in TARGETS if self.expected or any(target == goal for target, _ in self.predicted))


@dataclass(frozen=True)
class Row:
    arm: str
    batch: int
    time: TimeCell
    memory: Mapping[str, MemoryCell]  # by target
    measured: Measured

    @property
    def is_reference(self) -> bool:
        return self.arm == REFERENCE


def _cell(record: Record) -> Cell:
    return record.arm, record.batch_size


_SELECT = Select(_cell)


def _uncaptured(page: Selection, runs: Sequence[Record]) -> dict[Cell, Record]:
    """By cell that CUDA Graph is refused, the newest record of the same settings that was timed without it."""

    def setting(record: Record) -> tuple[Any, ...]:
        return _cell(record), timing_setting(record), method_settings(record)

    refused = [one for one in page.timed.values() if one.status == "unsupported" and one.cuda_graph]
    eager = replace(page.toggles, cuda_graph=False)
    fitting = [run for run in runs if run.status == "ok" and Toggles.of(run) == eager]
    return newest([run for run in fitting if setting(run) in map(setting, refused)], _cell)


def _page(records: Sequence[Record], device: str, kind: str, toggles: Toggles) -> Selection:
    runs = [record for record in records if record.measure == "run"]
    plans = [record for record in records if record.measure == "predict"]
    timed = [record for record in runs if Toggles.of(record) == toggles]
    planned = [record for record in plans if record.precision == toggles.precision]
    page = _SELECT(
        [*timed, *planned], Selection,
        device=device, kind=kind, toggles=toggles, place=toggles.text, suffix=toggles.names,
    )  # fmt: skip
    left_out = page.left_out
    if toggles == PLAIN:  # predictions that are on no page are counted here
        drawn = {PLAIN.precision, *(run.precision for run in runs)}
        if others := sum(plan.precision not in drawn for plan in plans):
            left_out += (f"{others} prediction(s) in a precision that nothing was timed in are left out.",)
    return replace(page, uncaptured=_uncaptured(page, runs), left_out=left_out)


def select(records: Sequence[Record]) -> list[Selection]:
    """A selection per device, precision and toggles, plain FP32 steps first."""
    found = []
    for device in devices(records):
        mine = [record for record in records if record.device == device]
        toggles = {Toggles.of(record) for record in mine if record.measure == "run"}
        if any(record.measure == "predict" and record.precision == PLAIN.precision for record in mine):
            toggles.add(PLAIN)
        kind = device_kind(mine)
        found += [_page(mine, device, kind, one) for one in sorted(toggles, key=lambda one: one.rank)]
    return [page for page in found if page.shown]


def rows_of(page: Selection) -> list[Row]:
    """Every arm at every batch size that is timed or predicted, by batch size, then arm."""

    def time(arm: str, batch: int) -> TimeCell:
        if batch not in page.time_batches:
            return TimeCell("")
        record = page.timed.get((arm, batch))
        reference = page.timed.get((REFERENCE, batch)) if arm != REFERENCE else None
        return time_cell(record, reference, page.older(record), page.per)

    def memory(target: str, arm: str, batch: int) -> MemoryCell:
        record = page.predicted.get((target, (arm, batch)))
        if record is None:
            return MemoryCell(NOT_RECORDED if batch in page.memory_batches else "")
        below = page.peak(target, (REFERENCE, batch)) if arm != REFERENCE else None
        return memory_cell(record, below, page.older(record))

    return [
        Row(
            arm,
            batch,
            time(arm, batch),
            {target: memory(target, arm, batch) for target in page.targets},
            measured_peaks(page.timed.get((arm, batch))),
        )
        for batch in sorted({*page.time_batches, *page.memory_batches})
        for arm in page.arms
    ]


def _remarks(row: Row) -> str:
    return remarks(row.time, row.memory, row.time.disturbed, row.time.message if row.time.status == "ok" else "")


def columns(page: Selection, rows: Sequence[Row]) -> list[Column[Row]]:
    def head(row: Row) -> dict[str, object]:
        record = page.timed.get((row.arm, row.batch))
        return {
            "device": page.device,
            "arm": row.arm,
            "batch_size": row.batch,
            "dataset": record.dataset if record else "",
        }

    return [
        Column("batch", lambda row: str(row.batch)),
        Column("arm", lambda row: row.arm, head, left=True),
        *time_columns(rows, REFERENCE, lambda row: row.is_reference, per=page.per),
        *(
            column
            for target in page.targets
            for column in memory_columns(target, REFERENCE, lambda row: row.is_reference)
        ),
        *measured_columns(page.kind == "cuda"),
        Column(REMARKS, _remarks, lambda row: {"older_code": OLDER in marks_of(row)}, left=True),
    ]


def caption(page: Selection, rows: Sequence[Row]) -> Caption:
    toggled = page.toggles.compile or page.toggles.cuda_graph
    disagreements = (
        disagreement(f"{row.arm}, batch {row.batch}", row.time, page.timed.get((row.arm, row.batch))) for row in rows
    )
    title = f"time per {page.per} and peak memory, {model_words(page)}"
    return Caption(
        title=f"Fig. 1: {title}" if page.expected else title.capitalize(),
        facts=(step_fact(page), f"{data_fact(page)} {epoch_fact(page)}".rstrip()),
        of_picture=(
            "Bars start at zero; every panel has its own scale. Labels: value, and its ratio to CoMERA's (x).",
        ),
        notes=(
            *mark_notes(map(marks_of, rows), mark_words(page.per)),
            *disturbed_note(sum(row.time.disturbed for row in rows)),
            *(sentence for sentences in disagreements for sentence in sentences),
            *length_note(page),
            *(
                ["Predicted memory is that of plain steps, without CUDA Graph and torch.compile."]
                if toggled and page.predicted
                else []
            ),
            *last_notes(page),
        ),
        remarks=gathered((row.arm, str(row.batch), _remarks(row)) for row in rows),
    )


def draw(page: Selection, rows: Sequence[Row], caption: Caption) -> Figure:
    footnotes = Footnotes()
    unit, scale = time_unit(rows)
    time = panels_by_batch(rows, page.time_batches, lambda row: time_bar(row.time, row.is_reference, scale, footnotes))
    legend = {
        "steps, CoMERA": "training steps, CoMERA",
        "steps": "training steps, other arms",
        "rare": "rare events, amortised (GaLore's SVD, LTE's merge)",
    }
    bands = [time_band(f"Time per {page.per} {place_of(page.kind)}, in {unit}", time, legend)]
    for target in page.targets:
        measured = target == page.kind == "cuda"

        def memory(row: Row, target: str = target, measured: bool = measured) -> Any:
            return memory_bar(row.memory[target], row.measured if measured else {}, footnotes)

        panels = panels_by_batch(rows, page.memory_batches, memory)
        bands.append(memory_band(target, panels, [row.memory[target] for row in rows], measured))
    lines = (*footnotes.lines(), *caption.of_picture, *caption.notes)
    return draw_bars(caption.title, caption.facts, page.arms, bands, lines)


def _pairs(page: Selection, rival: str) -> dict[int, tuple[Cell, Cell]]:
    batches = sorted({*page.time_batches, *page.memory_batches})
    return {batch: ((rival, batch), (REFERENCE, batch)) for batch in batches}


def _time(rival: str) -> Evidence:
    """Epoch time of a rival over CoMERA's; one that is refused CUDA Graph takes part with its times without."""

    def points(page: Selection) -> list[Point]:
        timed = replace(page, timed={**page.timed, **page.uncaptured})
        found = []
        for batch, cells in _pairs(page, rival).items():
            graph = dict.fromkeys(timed.timed[cell].cuda_graph for cell in cells if cell in timed.timed)
            modes = " / ".join(f"CUDA Graph {'on' if one else 'off'}" for one in graph)
            found += time_points(timed, {batch: cells}, modes if page.kind == "cuda" else "")
        return found

    return points


def _memory(rival: str) -> Evidence:
    return lambda page: memory_points(page, _pairs(page, rival))


def _not_captured(page: Selection) -> str:
    """Why times of this page decide nothing on a GPU; empty where they are of captured steps."""
    if page.toggles == CAPTURED:
        return ""
    if not page.timed:
        return "The claim is about captured steps; none were timed."
    other = "with torch.compile" if page.toggles.cuda_graph else "without CUDA Graph"
    return f"The claim is about captured steps; these ran {other}."


def _rule(
    claim_id: str, quantity: str, evidence: Sequence[Evidence], batches: Sequence[int], slack: float, device: DeviceKind
) -> Rule:
    captured = (_not_captured,) if device == "cuda" else ()
    conditions = (not_fp32, *captured, not_full_size)
    return ratio_rule(claim_id, quantity, evidence, batches, slack=slack, device=device, conditions=conditions)


_LARGE = (32, 64, 128)

#: A claim on time needs a CUDA device; predictions may decide one on memory alone.
RULES = (
    _rule("time-epoch-speedup", "epoch time of dense / comera, both with CUDA Graph", [_time("dense")],
          PAPER_BATCHES, 0.5, "cuda"),
    _rule("galore-time-b1", "epoch time of galore / comera with CUDA Graph", [_time("galore")], (1,), 0.5, "cuda"),
    _rule("galore-memory-b1", "peak memory of galore / comera, allocated or predicted for CUDA", [_memory("galore")],
          (1,), 0.5, "any"),
    _rule("lte-time", "epoch time of lte / comera, both with CUDA Graph", [_time("lte")], _LARGE, 0.5, "cuda"),
    _rule("galore-all-batches", "epoch time and peak memory of galore / comera with CUDA Graph",
          [_time("galore"), _memory("galore")], _LARGE, 0.0, "cuda"),
    _rule("lte-memory", "peak memory of lte / comera, allocated or predicted for CUDA", [_memory("lte")], _LARGE, 0.0,
          "any"),
    Rule("lte-convergence", "accuracy of lte", untested="Fig. 1 times steps and trains nothing to convergence."),
)  # fmt: skip

ARTIFACT = Artifact(
    name="fig1",
    heading="Fig. 1: time and memory of every method",
    summary="time per epoch and peak memory of every arm, by batch size; an image per device, precision and toggles",
    experiments=EXPERIMENTS,
    made_by="make reproduce-fig1",
    order=10,
    select=select,
    rows=rows_of,
    columns=columns,
    caption=caption,
    draw=draw,
    rules=RULES,
    section="batch",
)
