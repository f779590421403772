"""Fig. 5: time and peak memory of a look-up by each variant; a page per device, table and distribution of indices.

Ratios on the page are to the uncompressed table with row-wise Adagrad. The published ones are plain TTM over optimized
TTM, of time and of peak memory, at three batch sizes. They are judged on forward and backward alone; predictions for a
CUDA device may decide about memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from figures import frame
from figures.artifact import Artifact
from figures.claims import ratio
from figures.columns import across
from figures.draw import bars
from figures.draw.captions import Caption
from figures.frame import Records
from figures.stats import cells
from figures.stats.cells import TARGETS

OPTIMIZED, PLAIN, UNCOMPRESSED = "optimized", "plain", "uncompressed"

#: What this figure and DLRM's compare with, as columns call it: uncompressed tables with row-wise Adagrad.
REFERENCE = "row_wise"

#: Tables of the uncompressed kind by arm; all but the first have sparse gradients.
TABLES = {
    "dense": UNCOMPRESSED,
    "dense:sparse": f"{UNCOMPRESSED}, sparse",
    f"dense:{REFERENCE}": f"{UNCOMPRESSED}, row-wise Adagrad",
}
SPARSE = tuple(TABLES.values())[1:]
ROW_WISE = SPARSE[-1]
VARIANTS = (OPTIMIZED, "order", "unique", PLAIN, *TABLES.values())
BATCHES = (10_000, 20_000, 40_000)

#: The columns of a cell, and those of a page.
CELL = ("optimizer_step", "batch_size", "look_up")
PLACE = ["workload.rows", "workload.columns", "dataset", "allocator"]

#: What is equal for all times of a page.
SAME = (*frame.TIMING, "precision", "compile", "cuda_graph", "!workload.optimizer_step")

#: What is equal for all records of an arm but the kind of look-up, and the column of such arms.
EACH: dict[str, Any] = {"each": (*frame.METHOD, "variant", "!method.lookup"), "arm": "family"}


class LookupPlace(NamedTuple):
    """The table, distribution of indices and allocator of one page."""

    rows: int
    columns: int
    dataset: str
    allocator: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Fig5Page(cells.TimesAndMemory):
    """Times and memory by whether a step ends with the optimizer's, batch size and variant."""

    about: LookupPlace

    @property
    def variants(self) -> list[str]:
        """Return those that there is any record of."""
        return [variant for variant in VARIANTS if variant in self.found("look_up")]


def with_look_ups(
    df: pd.DataFrame, variants: Sequence[str], tables: Mapping[str, str], settings: list[str]
) -> pd.DataFrame:
    """Return records with their variant (CoMERA's look-up, or an uncompressed table by arm) and with settings."""
    is_comera = df["method"] == "comera"
    look_up = frame.column(df, "method.lookup").where(is_comera, df["arm"].map(tables))
    return df.assign(
        look_up=look_up.where(look_up.isin(variants)),
        family=df["arm"].mask(is_comera, "comera"),
        **{name: frame.column(df, name) for name in settings},
    )


def select(records: Records) -> list[Fig5Page]:
    """Return a page per device, table, distribution and allocator."""
    pages = []
    for device, given in frame.by_device(records):
        df = with_look_ups(given, VARIANTS, TABLES, PLACE[:2])
        step = frame.column(df, "workload.optimizer_step")
        allocator = frame.column(df, "timing.allocator", "steady")
        df = df.assign(allocator=allocator, optimizer_step=step.eq(True))[step.notna()]
        for key, here in frame.groups(df, PLACE):
            place = LookupPlace(*key)
            other = () if place.allocator == "steady" else (place.allocator,)
            words = [f"{place.rows:,} x {place.columns:,}", place.dataset]
            words += [f"{one} allocator" for one in other]
            page = cells.choose(
                here,
                Fig5Page,
                CELL,
                same=SAME,
                same_model=("precision",),
                **EACH,
                about=place,
                place=", ".join(words),
                suffix=(f"{place.rows}x{place.columns}", place.dataset, *other),
                **device,
            )
            pages.append(page)
    return [page for page in pages if len(page.df)]


def table(page: Fig5Page) -> pd.DataFrame:
    """Return a line per variant and batch size, first without the optimizer's step, then with it."""
    batches = sorted({*BATCHES, *page.found("batch_size")})
    lines = pd.MultiIndex.from_product([[False, True], batches, page.variants], names=CELL)
    grid, reference = lines.to_frame(index=False), {"look_up": ROW_WISE}
    place = {
        "device": page.device,
        "rows": page.about.rows,
        "columns": page.about.columns,
        "distribution": page.about.dataset,
        "allocator": page.about.allocator,
        "batch_size": grid["batch_size"],
        "optimizer_step": grid["optimizer_step"],
        "variant": grid["look_up"],
    }
    parts = [
        pd.DataFrame(place),
        page.times(grid, REFERENCE, reference, rare=False),
        *(page.memory(grid, target, REFERENCE, reference) for target in TARGETS),
        page.measured(grid),
    ]
    return pd.concat(parts, axis=1)


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the optimizer's step in the names of the variants."""
    return table.assign(variant=table["variant"] + table["optimizer_step"].map({False: "", True: " + step"}))


def shown(page: Fig5Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per variant, without and with the optimizer's step, with time and peak memory by batch size."""
    values = {"step_time_ms": f"time_over_{REFERENCE}"}
    values |= {f"{page.target}_peak_mib": f"{page.target}_over_{REFERENCE}"}
    return across(_named(table), "variant", "batch_size", values)


def about(page: Fig5Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return the table with the names of its lines, and whether tables with sparse gradients are among them."""
    return {"named": _named(table), "has_sparse": not set(SPARSE).isdisjoint(page.variants)}


def draw(page: Fig5Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw time and peak memory as bars, a panel per batch size."""
    sheet = bars.BarPage(page.kind, REFERENCE, OPTIMIZED, "{:,} indices")
    measured = page.target == "cuda" and bool(table["allocated_mib"].notna().any())
    legend = {"steps, CoMERA": "optimized", "steps": "other variants and uncompressed tables"}
    without, with_step = table[~table["optimizer_step"]], table[table["optimizer_step"]]
    sheet.times(without, "step", legend, ": forward and backward")
    sheet.times(with_step, "step", legend, ": with the optimizer's step")
    sheet.memory(without, page.target, measured, ": forward and backward")
    sheet.memory(with_step, page.target, measured, ": with the optimizer's step")
    return sheet.draw(caption, page.variants, [ROW_WISE])


def _without_step(df: pd.DataFrame) -> pd.DataFrame:
    return df[~df["optimizer_step"]] if "optimizer_step" in df else df


def times(
    page: cells.TimesAndMemory, _: Any, above: Sequence[str], below: Sequence[str] = (OPTIMIZED,)
) -> list[ratio.RatioPoint]:
    """Return the ratios of times without updates, of either side the variant that takes least."""
    return ratio.time_points(page, *ratio.sides(_without_step(page.runs), "look_up", above, below))


def peaks(
    _: Any, table: pd.DataFrame, above: Sequence[str], below: Sequence[str] = (OPTIMIZED,)
) -> list[ratio.RatioPoint]:
    """Return the same of peak memory."""
    return ratio.memory_points(*ratio.sides(_without_step(table), "variant", above, below))


_OF = "of plain over optimized, forward and backward"
_TO_TABLES: dict[str, Any] = {"above": (OPTIMIZED,), "below": tuple(TABLES.values())}
_WHERE: dict[str, Any] = {"conditions": (ratio.not_fp32,), "at": "{} indices"}
_WHERE |= {"alternative_name": "uncompressed table"}

ARTIFACT = Artifact(
    name="fig5",
    summary="time and peak memory of a table look-up by each variant; an image per device, table and distribution",
    experiments=("fig5", "fig5_memory"),
    made_by="make reproduce-fig5",
    order=20,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
    rules=(
        ratio.ratio_rule(
            "lookup-time",
            f"step time {_OF}",
            [partial(times, above=(PLAIN,))],
            BATCHES,
            **_WHERE,
            alternative=[partial(times, **_TO_TABLES)],
        ),
        ratio.ratio_rule(
            "lookup-memory",
            f"peak memory, allocated or predicted for CUDA, {_OF}",
            [partial(peaks, above=(PLAIN,))],
            BATCHES,
            device="any",
            **_WHERE,
            alternative=[partial(peaks, **_TO_TABLES)],
        ),
    ),
)
