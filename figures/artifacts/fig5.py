"""Fig. 5: time and peak memory of a look-up by each variant; a page per device, table and distribution of indices.

The published ratios are plain TTM over optimized TTM, of time and of peak memory, at three batch sizes. They are judged
on forward and backward alone; predictions for a CUDA device may decide about memory.
"""

import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from bench.core.record import Record
from figures import frame
from figures.artifact import Artifact
from figures.claims.ratio import Pairs, RatioPoint, memory_points, not_fp32, ratio_rule, time_points
from figures.columns import across, table_of
from figures.frame import Records
from figures.page import bars
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.records import cells

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

#: The columns of a cell, and those of a page.
CELL = ("workload.optimizer_step", "batch_size", "look_up")
PLACE = ["workload.rows", "workload.columns", "dataset", "allocator"]


class LookupPlace(NamedTuple):
    """The table, distribution of indices and allocator of one page."""

    rows: int
    columns: int
    dataset: str
    allocator: str

    @property
    def words(self) -> tuple[str, ...]:
        """Return the table, and the allocator where it is not the usual one."""
        other = () if self.allocator == "steady" else (f"{self.allocator} allocator",)
        return f"{self.rows:,} x {self.columns:,}", *other


@dataclass(frozen=True, kw_only=True, eq=False)
class Fig5Page(cells.TimesAndMemory):
    """Times and memory by whether a step ends with the optimizer's, batch size and variant."""

    about: LookupPlace

    @property
    def batches(self) -> list[int]:
        return sorted({*BATCHES, *self.found("batch_size")})

    @property
    def variants(self) -> list[str]:
        """Return those that there is any record of."""
        return [variant for variant in VARIANTS if variant in self.found("look_up")]

    @property
    def target(self) -> str:
        """Return the device whose predicted memory is drawn: of this one's kind where that was predicted."""
        own = (self.plans["predicted_for"] == self.kind).any()
        return self.kind if own else {"cuda": "cpu", "cpu": "cuda"}[self.kind]


def look_up(record: Record, tables: dict[str, str]) -> str | None:
    """Return CoMERA's kind of look-up, or an uncompressed table by its arm; None for other arms."""
    if record.method == "comera":
        return frame.settings_of(record, "method_settings").get("lookup")
    return tables.get(record.arm)


def select(records: Records) -> list[Fig5Page]:
    """Return a page per device, table, distribution and allocator."""
    pages = []
    for device, df in frame.by_device(records):
        variants = pd.Series([look_up(one, TABLES) for one in df["record"]], index=df.index, dtype=object)
        df = df.assign(
            look_up=variants.where(variants.isin(VARIANTS), None),
            allocator=frame.column(df, "timing.allocator", "steady"),
            family=df["arm"].where(df["method"] != "comera", "comera"),
            **{name: frame.column(df, name) for name in (*PLACE[:2], CELL[0])},
        ).dropna(subset=CELL[:1])
        for key, here in frame.groups(df, PLACE):
            place = LookupPlace(*key)
            table, *other = place.words
            page = cells.choose(
                here,
                Fig5Page,
                CELL,
                same=(*frame.TIMING, "precision", "compile", "cuda_graph", "!workload.optimizer_step"),
                same_model=("precision",),
                each=(*frame.METHOD, "variant", "!method.lookup"),
                arm="family",
                about=place,
                place=", ".join((table, place.dataset, *other)),
                suffix=(f"{place.rows}x{place.columns}", place.dataset, *([place.allocator] if other else [])),
                **device,
            )
            pages.append(page)
    return [page for page in pages if len(page.df)]


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
            **page.time_columns(cell, reference, REFERENCE, rare=False),
        }
        for target in cells.TARGETS:
            line |= page.memory_columns(target, cell, reference, REFERENCE)
        lines.append(line | page.last_columns(cell, cells.TARGETS))
    return table_of(lines)


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
    return {"named": _named(table), "has_sparse": not _no_sparse_table(page)}


def draw(page: Fig5Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw time and peak memory as bars, a panel per batch size."""
    sheet = bars.Sheet(page.kind, REFERENCE, title="{:,} indices")
    measured = page.target == "cuda" and bool(table["allocated_mib"].notna().any())
    legend = {"steps, CoMERA": "optimized", "steps": "other variants and uncompressed tables"}
    parts = [(table[table["optimizer_step"] == step], f": {words}") for step, words in STEPS.items()]
    for part, words in parts:
        sheet.times(part, "step", legend, words)
    for part, words in parts:
        sheet.memory(part, page.target, measured, words)
    return sheet.draw(caption, page.variants, references=int(REFERENCE in page.variants))


def _pairs(page: Fig5Page, above: tuple[str, ...]) -> Pairs:
    """Return the look-ups above in a ratio, and the optimized one below, by batch size."""
    return {
        batch: ([(False, batch, variant) for variant in above], [(False, batch, REFERENCE)]) for batch in page.batches
    }


def _times(page: Fig5Page, above: tuple[str, ...]) -> list[RatioPoint]:
    return time_points(page, _pairs(page, above))


def _peaks(page: Fig5Page, above: tuple[str, ...]) -> list[RatioPoint]:
    return memory_points(page, _pairs(page, above))


def _no_sparse_table(page: Fig5Page) -> str:
    """Return why a page has no fair baseline; empty where it has one."""
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
            [partial(_times, above=(PLAIN,))],
            BATCHES,
            **_WHERE,
            fair=[partial(_times, above=_RIVALS)],
            fair_quantity=f"step time {_FAIR_OF}",
        ),
        ratio_rule(
            "lookup-memory",
            f"peak memory, allocated or predicted for CUDA, {_OF}",
            [partial(_peaks, above=(PLAIN,))],
            BATCHES,
            device="any",
            **_WHERE,
            fair=[partial(_peaks, above=_RIVALS)],
            fair_quantity=f"peak memory {_FAIR_OF}",
        ),
    ),
)
