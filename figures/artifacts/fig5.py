"""Fig. 5: time and peak memory of a look-up by each variant; a page per device, table and distribution of indices.

The published ratios are plain TTM over optimized TTM, of time and of peak memory, at three batch sizes. They are judged
on forward and backward alone; predictions for a CUDA device may decide about memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.ratio import Pairs, memory_points, not_fp32, ratio_rule, time_points
from figures.page import bars, notes
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes
from figures.records import cells
from figures.records.select import by_device, method_settings, timing_setting, workload_settings
from figures.records.time_values import time_columns, time_ratio
from figures.text import NOT_RECORDED, Column, unpaired, with_bounds

REFERENCE, PLAIN, UNCOMPRESSED = "optimized", "plain", "uncompressed"

#: Tables of the uncompressed kind by arm; all but the first have sparse gradients.
TABLES = {
    "dense": UNCOMPRESSED,
    "dense:sparse": f"{UNCOMPRESSED}, sparse",
    "dense:row_wise": f"{UNCOMPRESSED}, row-wise Adagrad",
}
SPARSE = tuple(TABLES.values())[1:]
VARIANTS = (REFERENCE, "order", "unique", PLAIN, *TABLES.values())
BATCHES = (10_000, 20_000, 40_000)

#: Whether a step ends with the optimizer's, in words.
STEPS = {False: "forward and backward", True: "with the optimizer's step"}

#: Whether with the optimizer's step, batch size, variant.
Cell = tuple[bool, int, str]


class LookupPlace(NamedTuple):
    """What one page is about beside its device."""

    rows: int
    columns: int
    dataset: str
    allocator: str = "steady"

    @property
    def words(self) -> tuple[str, ...]:
        """The table, and the allocator where it is not the usual one."""
        other = () if self.allocator == "steady" else (f"{self.allocator} allocator",)
        return f"{self.rows:,} x {self.columns:,}", *other


@dataclass(frozen=True, kw_only=True)
class Fig5Page(cells.TimesAndMemory):
    about: LookupPlace

    @property
    def batches(self) -> list[int]:
        found = [*self.timed, *(cell for _, cell in self.predicted)]
        return sorted({*BATCHES, *(batch for _, batch, _ in found)})

    @property
    def variants(self) -> list[str]:
        """Those that there is any record of."""
        found = {variant for _, _, variant in (*self.timed, *(cell for _, cell in self.predicted))}
        return [variant for variant in VARIANTS if variant in found]

    @property
    def target(self) -> str:
        """The device whose predicted memory is drawn: this one's kind, or the other where only that was predicted."""
        own = any(target == self.kind for target, _ in self.predicted)
        return self.kind if own else {"cuda": "cpu", "cpu": "cuda"}[self.kind]


@dataclass(frozen=True, kw_only=True)
class Fig5Row(cells.CellRow):
    step: bool
    batch: int
    variant: str


def _cell(record: Record) -> Cell | None:
    """None where the record is no arm of this figure."""
    variant = TABLES.get(record.arm) if record.method != "comera" else method_settings(record).get("lookup")
    if variant not in VARIANTS:
        return None
    return bool(workload_settings(record)["optimizer_step"]), record.batch_size, str(variant)


def _same(record: Record) -> dict[str, Any]:
    toggles = {"precision": record.precision, "compile": record.compile, "CUDA Graph": record.cuda_graph}
    return {**timing_setting(record), **toggles, "model optimizer_step": None}  # with it or not


_SELECT = cells.Select(
    _cell,
    same=_same,
    same_model=lambda record: {"precision": record.precision},
    same_per_arm=lambda record: {**method_settings(record), "variant": record.variant, "lookup": None},
    arm=lambda record: record.method if record.method == "comera" else record.arm,
)


def _place(record: Record) -> LookupPlace | None:
    table = workload_settings(record)
    if not {"rows", "columns", "optimizer_step"} <= set(table):
        return None
    return LookupPlace(table["rows"], table["columns"], record.dataset, timing_setting(record)["allocator"] or "steady")


def select(records: Sequence[Record]) -> list[Fig5Page]:
    """A selection per device, table and distribution."""
    pages = []
    for device, mine in by_device(records):
        for place in sorted({place for record in mine if (place := _place(record))}):
            here = [record for record in mine if _place(record) == place]
            table, *other = place.words
            suffix = (f"{place.rows}x{place.columns}", place.dataset, *([place.allocator] if other else []))
            page = {**device, "place": ", ".join((table, place.dataset, *other)), "suffix": suffix}
            pages.append(_SELECT(here, Fig5Page, about=place, **page))
    return [page for page in pages if page.shown]


def rows_of(page: Fig5Page) -> list[Fig5Row]:
    """Every variant of the page at every batch size, first without the optimizer's step, then with it."""
    return [
        Fig5Row(step=step, batch=batch, variant=name, **page.row((step, batch, name), (step, batch, REFERENCE)))
        for step in STEPS
        for batch in page.batches
        for name in page.variants
    ]


def columns(page: Fig5Page, rows: Sequence[Fig5Row]) -> list[Column[Fig5Row]]:
    """Targets without any prediction have no column for people."""
    place = page.about
    shown = [target for target in cells.TARGETS if any(row.memory[target].status != NOT_RECORDED for row in rows)]

    def head(row: Fig5Row) -> dict[str, object]:
        table = {"device": page.device, "rows": place.rows, "columns": place.columns, "distribution": place.dataset}
        cell = {"batch_size": row.batch, "optimizer_step": row.step, "variant": row.variant}
        return {**table, "allocator": place.allocator, **cell}

    return [
        Column("indices", lambda row: f"{row.batch:,}", head),
        Column("step", lambda row: STEPS[row.step], left=True),
        Column("variant", lambda row: row.variant, left=True),
        *time_columns(rows, "step", REFERENCE, ("time, ms", f"/ {REFERENCE}"), rare=False),
        *(column for target in cells.TARGETS for column in cells.memory_columns(target, REFERENCE, target in shown)),
        *cells.last_columns(page),
    ]


def _over_tables(page: Fig5Page, step: bool, batch: int) -> dict[str, tuple[float, str]]:
    """By uncompressed table, the time of the optimized look-up over its own, and the same in words."""
    pairs = {table: ((step, batch, REFERENCE), (step, batch, table)) for table in TABLES.values()}
    ratios = {table: time_ratio(*map(page.timed.get, pair)) for table, pair in pairs.items()}
    return {
        table: (one.value, f"{with_bounds(one, unit='x')} at {batch:,} indices{', unpaired' * unpaired(one)}")
        for table, one in ratios.items()
        if one
    }


def _against_tables(page: Fig5Page) -> list[str]:
    """Sentences on the fastest uncompressed table, where any has sparse gradients, then on the one that has none."""
    fastest: list[str] = []
    plain: list[str] = []
    for step, words in STEPS.items():
        found = [_over_tables(page, step, batch) for batch in page.batches]
        chosen = [(max(over, key=lambda name: over[name][0]), over) for over in found if over.keys() - {UNCOMPRESSED}]
        best = [f"{over[table][1]} ({table})" for table, over in chosen]
        dense = [over[UNCOMPRESSED][1] for over in found if UNCOMPRESSED in over]
        for sentences, texts, table in (
            (fastest, best, "the fastest uncompressed table"),
            (plain, dense, "the uncompressed table with a dense gradient"),
        ):
            sentences += [f"Optimized look-up over {table}, time, {words}: {'; '.join(texts)}."] if texts else []
    if plain and not fastest:
        plain.append("Tables with sparse gradients, the stronger rivals, are not recorded here.")
    return fastest + plain


_SPARSE_WORDS = (
    "sparse, row-wise Adagrad: nn.Embedding with sparse gradients (alike without the optimizer's step), under "
    "SparseAdam, or with one number of state per row."
)


def caption(page: Fig5Page, rows: Sequence[Fig5Row]) -> Caption:
    place, (table, *other) = page.about, page.about.words
    words = {"uniform": "evenly drawn indices", "zipf": "Zipf-distributed indices"}
    indices = words.get(place.dataset, f"indices {place.dataset}")
    blocks = notes.blocks_timed(page.timed.values())
    timing = f"Timed in {blocks}." if blocks else "Nothing timed."
    if place.allocator == "system":
        timing += " Freed memory goes back to the system, as is usual outside of this bench, which keeps it elsewhere."
    subjects = ((f"{row.variant}, {row.batch:,} indices, {STEPS[row.step]}", row.remarks) for row in rows)
    return Caption(
        title=", ".join((f"Fig. 5: look-up of a table of {table}", indices, *other)),
        facts=(
            notes.step_fact(page),
            f"{timing} The gradient of the rows is given. With the optimizer's step (AdamW), CoMERA's size term is in.",
            "plain: a gather and a product per core and index; unique: the same for unique indices alone; order: one "
            "product of two halves per index; optimized: that for unique indices alone; uncompressed: nn.Embedding.",
            *([] if set(SPARSE).isdisjoint(page.variants) else [_SPARSE_WORDS]),
        ),
        of_picture=(bars.SCALES.format("the optimized one"),),
        notes=(
            *notes.cell_notes(page, rows, *_against_tables(page), arms="variants"),
            *notes.last_notes(page),
        ),
        remarks=[f"{subject}: {remarks}" for subject, remarks in subjects if remarks],
    )


def draw(page: Fig5Page, rows: Sequence[Fig5Row], caption: Caption) -> Figure:
    footnotes, target = Footnotes(), page.target
    measured = target == "cuda" and any(row.measured["allocated"] is not None for row in rows)
    legend = {"steps, CoMERA": "optimized", "steps": "other variants and uncompressed tables"}

    def panels(step: bool, bar: Any) -> Any:
        return bars.panels([row for row in rows if row.step == step], page.batches, bar, "{:,} indices")

    def memory_bar(row: Fig5Row) -> bars.Bar:
        return bars.memory_bar(row.memory[target], row.measured if measured else {}, footnotes)

    found = []
    for step, words in STEPS.items():
        times = panels(step, lambda row: bars.time_bar(row, 1.0, footnotes))
        found.append(bars.time_band(f"Time per step {{}}, in ms: {words}", page.kind, times, legend))
    for step, words in STEPS.items():
        found.append(bars.memory_band(target, panels(step, memory_bar), rows, measured, f": {words}"))
    foot = (*footnotes.lines(), *caption.of_picture, *caption.notes)
    references = int(REFERENCE in page.variants)
    return bars.draw_bars(caption.title, caption.facts, page.variants, found, foot, references)


def _pairs(page: Fig5Page, *above: str) -> Pairs:
    """The look-ups above in a ratio, and the optimized one below."""
    return {
        batch: ([(False, batch, variant) for variant in above], [(False, batch, REFERENCE)]) for batch in page.batches
    }


def _no_sparse_table(page: Fig5Page) -> str:
    """Why a page has no fair baseline; empty where it has one."""
    if not set(SPARSE).isdisjoint(page.variants):
        return ""
    return "No uncompressed table with sparse gradients is recorded."


_OF = "of plain / optimized, forward and backward"
_FAIR_OF = "of the variant or uncompressed table that takes least / optimized, forward and backward"
_RIVALS = (PLAIN, *TABLES.values())
_WHERE: dict[str, Any] = {"conditions": (not_fp32,), "at": "{} indices", "fair_conditions": (_no_sparse_table,)}

ARTIFACT = Artifact(
    name="fig5",
    heading="Fig. 5: look-up of an embedding table",
    summary="time and peak memory of a table look-up by each variant; an image per device, table and distribution",
    experiments=("fig5", "fig5_memory"),
    made_by="make reproduce-fig5",
    order=20,
    select=select,
    rows=rows_of,
    columns=columns,
    caption=caption,
    draw=draw,
    rules=(
        ratio_rule(
            "lookup-time",
            f"step time {_OF}",
            [lambda page: time_points(page, _pairs(page, PLAIN))],
            BATCHES,
            **_WHERE,
            fair=[lambda page: time_points(page, _pairs(page, *_RIVALS))],
            fair_quantity=f"step time {_FAIR_OF}",
        ),
        ratio_rule(
            "lookup-memory",
            f"peak memory, allocated or predicted for CUDA, {_OF}",
            [lambda page: memory_points(page, _pairs(page, PLAIN))],
            BATCHES,
            device="any",
            **_WHERE,
            fair=[lambda page: memory_points(page, _pairs(page, *_RIVALS))],
            fair_quantity=f"peak memory {_FAIR_OF}",
        ),
    ),
    section="indices",
)
