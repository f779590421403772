"""Fig. 5: time and peak memory of a look-up by each variant; a page per device, table and distribution of indices.

The published ratios are plain TTM over optimized TTM, of time and of peak memory, at three batch sizes. They are judged
on forward and backward alone; predictions for a CUDA device may decide about memory.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.ratio import Pairs, memory_points, not_fp32, ratio_rule, time_points
from figures.columns import across, frame
from figures.page import bars
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes
from figures.records import cells
from figures.records.select import by_device, method_settings, timing_setting, workload_settings

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


def table(page: Fig5Page) -> pd.DataFrame:
    """Return a line per variant and batch size, first without the optimizer's step, then with it."""
    lines = []
    for step, batch, variant in itertools.product(STEPS, page.batches, page.variants):
        cell, reference = (step, batch, variant), (step, batch, REFERENCE)
        line = {
            "device": page.device,
            "rows": page.about.rows,
            "columns": page.about.columns,
            "distribution": page.about.dataset,
            "allocator": page.about.allocator,
            "batch_size": batch,
            "optimizer_step": step,
            "variant": variant,
            **page.time_fields(cell, reference, REFERENCE, rare=False),
        }
        for target in cells.TARGETS:
            line |= page.memory_fields(target, cell, reference, REFERENCE, asked=True)
        lines.append(line | page.last_fields(cell, cells.TARGETS))
    return frame(lines)


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the optimizer's step in the names of the variants."""
    steps = table["optimizer_step"].map({False: "", True: " + step"})
    return table.assign(variant=table["variant"] + steps)


def shown(page: Fig5Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per variant, without and with the optimizer's step, with time and peak memory by batch size."""
    values = {"step_time_ms": f"time_over_{REFERENCE}", f"{page.target}_peak_mib": f"{page.target}_over_{REFERENCE}"}
    return across(_named(table), "variant", "batch_size", values)


def about(page: Fig5Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return the table with the names of its lines, and whether tables with sparse gradients are among them."""
    return {"named": _named(table), "has_sparse": not set(SPARSE).isdisjoint(page.variants)}


def draw(page: Fig5Page, table: pd.DataFrame, caption: Caption) -> Figure:
    footnotes, target = Footnotes(), page.target
    measured = target == "cuda" and bool(table["allocated_mib"].notna().any())
    legend = {"steps, CoMERA": "optimized", "steps": "other variants and uncompressed tables"}

    def panels(step: bool, bar: Callable[[bars.Line], bars.Bar]) -> tuple[bars.BarPanel, ...]:
        return bars.by_batch(table[table["optimizer_step"] == step], bar, title="{:,} indices")

    found = []
    for step, words in STEPS.items():
        times = panels(step, lambda line: bars.time(line, "step", REFERENCE, 1.0, footnotes))
        found.append(bars.time_band(f"Time per step {{}}, in ms: {words}", page.kind, times, legend))
    for step, words in STEPS.items():
        peaks = panels(step, lambda line: bars.memory(line, target, REFERENCE, footnotes, measured))
        found.append(bars.band_of_memory(target, peaks, measured, f": {words}"))
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
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
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
)
