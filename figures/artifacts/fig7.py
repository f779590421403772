"""Fig. 7: time with CUDA Graph off and on, CoMERA against dense, and with other toggles; a page per device."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from matplotlib.figure import Figure

from bench.core.intervals import Estimate
from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.ratio import RatioPoint, not_full_size, ratio_rule, time_points
from figures.page import bars, notes
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes
from figures.records import cells
from figures.records.missing import NOT_MODELLED
from figures.records.select import CAPTURED, COMERA, DENSE, PLAIN, Toggles, by_device
from figures.records.time_values import time_columns, time_ratio, time_unit
from figures.text import UNPAIRED, Column, bounds, pairing, ratio_text, significant, unpaired

EXPERIMENTS = ("fig7",)

#: The batch sizes of each kind of device: the paper's on CUDA. And what each is expected to have timed.
BATCHES = {"cuda": (32, 64, 128), "cpu": (1, 8, 16)}
EXPECTED = {"cuda": (Toggles(), CAPTURED), "cpu": (Toggles(), Toggles(compile=True))}

#: An arm with its toggles, which is what a row of the picture is; and at a batch size.
Variant = tuple[str, Toggles]
Cell = tuple[str, Toggles, int]


def _rank(variant: Variant) -> tuple[Any, ...]:
    """CoMERA, dense, then whatever else there is; of each, plain steps first."""
    arm, toggles = variant
    return arm != COMERA, arm != DENSE, arm, toggles.rank


@dataclass(frozen=True, kw_only=True)
class Fig7Page(cells.TimesAndMemory):
    experiments: ClassVar = EXPERIMENTS

    @property
    def variants(self) -> list[Variant]:
        wanted = {(arm, toggles) for arm in (COMERA, DENSE) for toggles in EXPECTED[self.kind] if self.is_papers}
        return sorted({*wanted, *(cell[:2] for cell in self.timed)}, key=_rank)

    @property
    def batches(self) -> list[int]:
        return sorted({*(BATCHES[self.kind] if self.is_papers else ()), *(batch for _, _, batch in self.timed)})


@dataclass(frozen=True, kw_only=True)
class Fig7Row(cells.CellRow):
    arm: str
    toggles: Toggles
    batch: int
    gain: Estimate | None  # time of the same arm without the toggle named last, over its own
    compile_s: float | None
    allocated_ratio: float | None  # of allocated peaks, to CoMERA's with the same toggles

    @property
    def name(self) -> str:
        return name_of(self.arm, self.toggles)

    @property
    def marks(self) -> str:
        return super().marks + UNPAIRED * unpaired(self.gain)


def name_of(arm: str, toggles: Toggles) -> str:
    """How a row is called: ``comera, CUDA Graph``."""
    return ", ".join((arm, *toggles.names))


def _cell(record: Record) -> Cell:
    return record.arm, Toggles.of(record), record.batch_size


def select(records: Sequence[Record]) -> list[Fig7Page]:
    """A selection per device on which steps were timed."""
    return [cells.Select(_cell)(mine, Fig7Page, **device) for device, mine in by_device(records)]


def _row(page: Fig7Page, arm: str, toggles: Toggles, batch: int) -> Fig7Row:
    """Compared with CoMERA's with the same toggles."""
    cell, reference = (arm, toggles, batch), (COMERA, toggles, batch)
    record, below, plainer = page.timed.get(cell), page.timed.get(reference), toggles.without_last
    values = page.row(cell, reference, targets=[page.kind])
    memory: cells.MemoryCell = values["memory"][page.kind]
    if record is not None and (record.cuda_graph or record.compile) and memory.peak is not None:
        values["memory"] = {page.kind: cells.MemoryCell(NOT_MODELLED, marks=memory.marks)}
    allocated = (one.peak_memory_allocated_mib if one else None for one in (record, below if arm != COMERA else None))
    return Fig7Row(
        arm=arm,
        toggles=toggles,
        batch=batch,
        gain=time_ratio(page.timed.get((arm, plainer, batch)), record) if plainer else None,
        compile_s=record.compile_time_s if record else None,
        allocated_ratio=cells.quotient(*allocated),
        **values,
    )


def rows_of(page: Fig7Page) -> list[Fig7Row]:
    """Every batch size with every variant, in this order."""
    return [_row(page, *variant, batch) for batch in page.batches for variant in page.variants]


def _with_pairing(ratio: Estimate | None) -> str:
    """A ratio of times, marked where its sides were not timed together."""
    return ratio_text(ratio) + f" {UNPAIRED}" * unpaired(ratio)


def columns(page: Fig7Page, rows: Sequence[Fig7Row]) -> list[Column[Fig7Row]]:
    _, scale = time_unit(rows)

    def head(row: Fig7Row) -> dict[str, object]:
        dataset = getattr(page.timed.get(row.cell), "dataset", "")
        return {"device": page.device, "arm": row.arm, **vars(row.toggles), "batch_size": row.batch, "dataset": dataset}

    def time(row: Fig7Row) -> str:
        return f"{row.time.text(scale)} {row.time.marks.replace(UNPAIRED, '')}".strip()

    def gain(row: Fig7Row) -> dict[str, object]:
        return {**bounds("time_off_over_on", row.gain), "off_over_on_pairing": pairing(row.gain)}

    def allocated(row: Fig7Row) -> str:
        return ratio_text(row.allocated_ratio, row.is_reference and row.measured["allocated"] is not None)

    times, ratios = time_columns(rows, page.per, COMERA, text=time)
    compiled = any(row.compile_s is not None for row in rows)
    return [
        Column("batch", lambda row: row.batch),
        Column("arm", lambda row: row.name, head, left=True),
        times,
        replace(ratios, text=lambda row: "1" if row.is_reference and row.time.time else _with_pairing(row.time.ratio)),
        Column("off / on", lambda row: _with_pairing(row.gain), gain),
        Column(
            "compile, s",
            (lambda row: significant(row.compile_s)) if compiled else None,
            lambda row: {"compile_time_s": row.compile_s},
        ),
        *cells.memory_columns(page.kind, COMERA),
        *cells.last_columns(
            page,
            Column[Fig7Row](
                "allocated / comera",
                allocated if page.kind == "cuda" else None,
                lambda row: {"allocated_over_comera": row.allocated_ratio},
            ),
        ),
    ]


def _is_measured(rows: Sequence[Fig7Row]) -> bool:
    return any(size is not None for row in rows for size in row.measured.values())


def _notes(page: Fig7Page, rows: Sequence[Fig7Row]) -> list[str]:
    of_memory = ["Labels of memory: the allocated peak; in parentheses, the predicted one."] * _is_measured(rows)
    if any(cell.status == NOT_MODELLED for row in rows for cell in row.memory.values()):
        of_memory.append("Predictions are of steps without CUDA Graph and compile.")
    return [
        *([" ".join(of_memory)] if of_memory else []),
        *notes.cell_notes(page, rows),
        *notes.last_notes(page),
    ]


def caption(page: Fig7Page, rows: Sequence[Fig7Row]) -> Caption:
    title = {
        "cuda": f"Fig. 7: time per {page.per} with CUDA Graph off and on",
        "cpu": f"Fig. 7 on a CPU: time per {page.per} with torch.compile off and on, in place of CUDA Graph",
    }[page.kind]
    batches = "at batch 1, 8 and 16 instead of the paper's 32, 64, 128"
    instead = f"A CPU has no CUDA Graph: torch.compile takes its place, {batches}."
    gain = "time of the same arm without the toggle that its row names last, over its own"
    of_columns = [f"off / on: {gain}; above 1 the toggle pays."]
    if any(row.compile_s is not None for row in rows):
        of_columns.append("compile, s: what the first step takes beyond a usual one; no part of an epoch.")
    return Caption(
        title=title if page.is_papers else f"Time per {page.per} by toggles, {notes.model_words(page)}",
        facts=(
            notes.step_fact(page),
            notes.data_fact(page),
            *([instead] if page.kind == "cpu" and page.is_papers else []),
        ),
        of_picture=(bars.SCALES.format("CoMERA's with the same toggles"),),
        notes=[*of_columns, *_notes(page, rows)],
        remarks=notes.gathered((row.name, {"batch": str(row.batch)}, row.remarks) for row in rows),
    )


def _gains(page: Fig7Page, rows: Sequence[Fig7Row]) -> list[str]:
    """A sentence per variant on what the toggle named last brings."""
    sentences = []
    for arm, toggles in page.variants:
        mine = [row for row in rows if (row.arm, row.toggles) == (arm, toggles) and row.gain is not None]
        if mine and toggles.without_last is not None:
            plainer, own = name_of(arm, toggles.without_last), name_of(arm, toggles)
            ratios = ", ".join(f"{_with_pairing(row.gain)} at {row.batch}" for row in mine)
            sentences.append(f"Time of {plainer!r} over {own!r}, by batch size: {ratios}.")
    return sentences


def draw(page: Fig7Page, rows: Sequence[Fig7Row], caption: Caption) -> Figure:
    footnotes, (unit, scale), measured = Footnotes(), time_unit(rows), _is_measured(rows)

    def memory_bar(row: Fig7Row) -> bars.Bar:
        """The predicted peak; where peaks are measured, labels are of the allocated ones."""
        cell, allocated = row.memory[page.kind], row.measured["allocated"]
        bar = bars.memory_bar(cell, row.measured, footnotes)
        if allocated is not None:
            return replace(bar, label=bars.value_label(allocated, row.allocated_ratio, cell.marks))
        predicted = measured and cell.peak is not None
        return replace(bar, label=f"({significant(cell.peak)}) {cell.marks}".rstrip()) if predicted else bar

    others = "dense" if {arm for arm, _ in page.variants} == {COMERA, DENSE} else "other arms"
    legend = {"steps, CoMERA": "training steps, CoMERA", "steps": f"training steps, {others}"}
    if any(row.time.time and row.time.time.rare.value for row in rows):
        legend["rare"] = "rare events, amortised"
    times = bars.panels(rows, page.batches, lambda row: bars.time_bar(row, scale, footnotes))
    found = [
        bars.time_band(f"Time per {page.per} {{}}, in {unit}", page.kind, times, legend),
        bars.memory_band(page.kind, bars.panels(rows, page.batches, memory_bar), rows, measured),
    ]
    foot = (*footnotes.lines(), *caption.of_picture, *_gains(page, rows), *_notes(page, rows))
    references = sum(arm == COMERA for arm, _ in page.variants)
    names = [name_of(*variant) for variant in page.variants]
    return bars.draw_bars(caption.title, caption.facts, names, found, foot, references)


def _points(page: Fig7Page, *which: Toggles) -> list[RatioPoint]:
    """Dense over CoMERA with the same toggles."""
    points = []
    for toggles in which:
        pairs = {batch: ([(DENSE, toggles, batch)], [(COMERA, toggles, batch)]) for batch in page.batches}
        points += time_points(page, pairs, ", ".join(toggles.names) or "plain")
    return points


def _at_best(page: Fig7Page) -> list[RatioPoint]:
    """Dense over CoMERA, each with the toggles that make it fastest."""

    def cells(arm: str, batch: int) -> list[Any]:
        return [(arm, toggles, batch) for found, toggles in page.variants if found == arm]

    return time_points(page, {batch: (cells(DENSE, batch), cells(COMERA, batch)) for batch in page.batches})


def _only_plain(page: Fig7Page) -> str:
    """Why a page has no fair baseline; empty where dense has other toggles than the published ones."""
    others = {toggles for arm, toggles in page.variants if arm == DENSE} - {PLAIN, CAPTURED}
    return "" if others else "Dense with torch.compile or in BF16 is not recorded."


def _no_pair(page: Fig7Page) -> str:
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
            "graph-speedup",
            "epoch time of dense / comera, both with CUDA Graph, FP32",
            [lambda page: _points(page, CAPTURED)],
            BATCHES["cuda"],
            conditions=(_no_pair, not_full_size),
            beside=lambda page: _points(page, *(toggles for arm, toggles in page.variants if arm == DENSE)),
            fair=[_at_best],
            fair_conditions=(_only_plain,),
            fair_quantity="epoch time of dense / comera, each with the toggles that make it fastest",
        ),
    ),
    section="batch",
)
