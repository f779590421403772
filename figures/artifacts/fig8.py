"""Fig. 8: time and peak memory of a training step of DLRM; a page per device, model and source of the tables' sizes.

Two verdicts stand beside each other: against dense tables with dense gradients under Adam, as published, and against
tables with sparse gradients and one number of state per row, as a recommender team would train them.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims import ratio
from figures.claims.claims import Claim, Finding, Judgement
from figures.claims.rule import REACHES, Rule
from figures.columns import across, frame, readable
from figures.page import bars
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes
from figures.records import cells
from figures.records.select import by_device, method_settings, workload_settings
from figures.records.time_values import Per

OPTIMIZED, PLAIN, ADAM, SPARSE, ROW_WISE = "optimized", "plain", "dense", "sparse", "row-wise"
RIVALS = {"dense": ADAM, "dense:sparse": SPARSE, "dense:row_wise": ROW_WISE}
VARIANTS = (OPTIMIZED, PLAIN, *RIVALS.values())
BATCHES = (10_000, 20_000, 40_000)

#: Parameters of the paper's dense model, with the tables of Criteo Kaggle.
FULL_SIZE = 1_097_631_297

#: GPU memory, in GiB, that predictions are held against.
ROOMS = (24, 80)

#: The part of a GPU's memory that a prediction may take.
_FREE = 0.95

#: A look-up variant or rival, and the batch size.
Cell = tuple[str, int]


class Fig8Place(NamedTuple):
    """What one page is about beside its device."""

    preset: str
    tables: str

    @property
    def words(self) -> str:
        return f"preset {self.preset}, tables of {self.tables}"


@dataclass(frozen=True, kw_only=True)
class Fig8Page(cells.TimesAndMemory):
    about: Fig8Place

    @property
    def per(self) -> Per:
        return "step"

    @property
    def batches(self) -> list[int]:
        return sorted({*BATCHES, *(batch for _, batch in self.timed), *(cell[1] for _, cell in self.predicted)})

    @property
    def variants(self) -> list[str]:
        found = {name for name, _ in self.timed} | {name for _, (name, _) in self.predicted}
        return [name for name in VARIANTS if name in found]

    @property
    def by_cell(self) -> dict[Cell, Record]:
        """A record of every cell, the timed one where there is one."""
        return {**{cell: one for (_, cell), one in self.predicted.items()}, **self.timed}

    def stored(self, variant: str) -> float | None:
        """MiB of the stored model."""
        found = self.by_cell.items()
        return next((one.stored_mib for (name, _), one in found if name == variant and one.stored_mib), None)

    def work(self, variant: str, batch: int) -> int | None:
        """FLOPs of a step's products, forward and backward."""
        record = self.by_cell.get((variant, batch))
        return record.flops_per_step if record else None


def _cell(record: Record) -> Cell | None:
    name = method_settings(record).get("lookup") if record.arm == "comera" else RIVALS.get(record.arm)
    return (str(name), record.batch_size) if name in VARIANTS else None


def _place(record: Record) -> Fig8Place | None:
    model = workload_settings(record)
    return Fig8Place(model["preset"], model["tables"]) if {"preset", "tables"} <= set(model) else None


_SELECT = cells.Select(
    _cell,
    same_per_arm=lambda record: {**method_settings(record), "variant": record.variant, "lookup": None},
    arm=lambda record: record.method if record.method == "comera" else record.arm,
)


def select(records: Sequence[Record]) -> list[Fig8Page]:
    """A selection per device and model."""
    pages = []
    for device, mine in by_device(records):
        for place in sorted({place for record in mine if (place := _place(record))}):
            here = [record for record in mine if _place(record) == place and record.precision == "fp32"]
            pages.append(_SELECT(here, Fig8Page, about=place, place=place.words, suffix=tuple(place), **device))
    return [page for page in pages if page.shown]


def table(page: Fig8Page) -> pd.DataFrame:
    """Return a line per variant or rival and batch size, by batch size."""
    lines = []
    for batch, variant in itertools.product(page.batches, page.variants):
        cell, reference = (variant, batch), (OPTIMIZED, batch)
        line = {
            "device": page.device,
            "preset": page.about.preset,
            "tables": page.about.tables,
            "batch_size": batch,
            "variant": variant,
            **page.time_fields(cell, reference, OPTIMIZED, rare=False),
        }
        for target in cells.TARGETS:
            line |= page.memory_fields(target, cell, reference, OPTIMIZED, asked=True)
        work = {"flops_per_step": page.work(variant, batch), "stored_mib": page.stored(variant)}
        lines.append(line | work | page.last_fields(cell, cells.TARGETS))
    return frame(lines)


def _drawn_for(page: Fig8Page) -> str:
    """Return the device whose predicted memory is shown: a GPU wherever there is a prediction for one."""
    return "cuda" if any(target == "cuda" for target, _ in page.predicted) else "cpu"


def shown(page: Fig8Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per variant: the size of the model, and its time and peak memory at every batch size."""
    target = _drawn_for(page)
    values = {"step_time_ms": f"time_over_{OPTIMIZED}", f"{target}_peak_mib": f"{target}_over_{OPTIMIZED}"}
    found = across(table, "variant", "batch_size", values)
    sizes = readable(table.drop_duplicates("variant"), ["stored_mib"])
    found.insert(1, sizes.columns[0], sizes.iloc[:, 0].to_numpy())
    return found


def about(page: Fig8Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return whether the model is the paper's, the memory shown, what fits where, and whether arms were timed alone."""
    fits = {}
    for room in ROOMS if _drawn_for(page) == "cuda" else ():
        fitting = table[table["cuda_peak_mib"] <= room * 1024 * _FREE]
        largest = fitting.groupby("variant")["batch_size"].max()
        fits[room] = {variant: int(largest.get(variant, 0)) for variant in page.variants}
    alone = any(record.status == "ok" and not record.pairing for record in page.timed.values())
    return {
        "is_papers_model": page.about == Fig8Place("paper", "kaggle"),
        "target": _drawn_for(page),
        "fits": fits,
        "alone": alone,
    }


def draw(page: Fig8Page, table: pd.DataFrame, caption: Caption) -> Figure:
    footnotes, target = Footnotes(), _drawn_for(page)
    measured = page.kind == "cuda" and bool(table["allocated_mib"].notna().any())
    legend = {"steps, CoMERA": "CoMERA, optimized look-up", "steps": "plain look-up and dense tables"}
    times = bars.by_batch(table, lambda line: bars.time(line, "step", OPTIMIZED, 1.0, footnotes))
    peaks = bars.by_batch(table, lambda line: bars.memory(line, target, OPTIMIZED, footnotes, measured))
    found = [
        bars.time_band("Time per step {}, in ms", page.kind, times, legend),
        bars.band_of_memory(target, peaks, measured),
    ]
    foot = (*footnotes.lines(), *caption.of_picture, *caption.notes)
    return bars.draw_bars(caption.title, caption.facts, page.variants, found, foot)


def _evidence(what: Any, *above: str) -> ratio.Evidence:
    """Ratios of the one of these variants that takes least over the optimized one."""
    return lambda page: what(
        page, {batch: ([(one, batch) for one in above], [(OPTIMIZED, batch)]) for batch in page.batches}
    )


def not_the_papers(page: Fig8Page) -> str:
    """Why these records decide nothing about the paper's model; empty where they may."""
    dense = {one.parameters for one in page.shown if one.arm == "dense" and one.parameters is not None}
    if dense == {FULL_SIZE}:
        return ""
    return f"The claim is about the model of {FULL_SIZE:,} parameters; these records are of {page.about.words}."


def _synthetic(page: Fig8Page) -> str:
    names = [name for name in page.values("dataset") if name.startswith("synthetic")]
    return f"The claim is about Criteo's log; these steps ran on {', '.join(names)}." if names else ""


def _judge_size(claim: Claim, page: Fig8Page, _: Any) -> Judgement:
    """Sizes do not hang on the data, so those of any log decide."""
    dense, ours = page.stored(ADAM), page.stored(OPTIMIZED)
    if dense is None or ours is None:
        return Judgement("not tested here", "It needs both models.")
    found = (Finding("stored size of dense / comera", f"{dense / ours:.2f}x, {dense:,.0f} / {ours:.1f} MiB"),)
    if other := not_the_papers(page):
        return Judgement("not tested here", other, found)
    if dense / ours < (claim.low or 0) - 0.5:
        return Judgement("not reproduced", "Counts do not vary.", found)
    return Judgement("by construction", "The ranks were chosen for it; what the model learns is a claim apart.", found)


_FULL: dict[str, Any] = {"conditions": (ratio.not_fp32, not_the_papers)}
_TIMED: dict[str, Any] = {"conditions": (ratio.not_fp32, not_the_papers, _synthetic)}
_TABLES = (ADAM, SPARSE, ROW_WISE)
_FAIR = "{} of the dense tables that take least (sparse gradients, row-wise Adagrad) / optimized comera"


def _fair(quantity: str, what: Any) -> dict[str, Any]:
    return {"fair": [_evidence(what, *_TABLES)], "fair_quantity": _FAIR.format(quantity)}


RULES = (
    Rule("dlrm-size", "stored size of dense / comera", REACHES, "any", 0.5, "x", judge=_judge_size),
    ratio.ratio_rule(
        "dlrm-memory",
        "peak memory of dense (Adam) / comera, allocated or predicted for CUDA",
        [_evidence(ratio.memory_points, ADAM)],
        BATCHES[:1],
        device="any",
        **_FULL,
        **_fair("peak memory", ratio.memory_points),
    ),
    ratio.ratio_rule(
        "recsys-time",
        "epoch time of dense (Adam) / comera",
        [_evidence(ratio.time_points, ADAM)],
        BATCHES,
        **_TIMED,
        **_fair("step time", ratio.time_points),
    ),
    ratio.ratio_rule(
        "dlrm-opt-plain",
        "step time and peak memory of plain / optimized comera",
        [_evidence(ratio.time_points, PLAIN), _evidence(ratio.memory_points, PLAIN)],
        BATCHES,
        slack=0.0,
        **_TIMED,
    ),
    ratio.ratio_rule(
        "dlrm-opt-dense",
        "peak memory of dense (Adam) / optimized comera, allocated or predicted",
        [_evidence(ratio.memory_points, ADAM)],
        BATCHES,
        slack=0.0,
        device="any",
        **_FULL,
        **_fair("peak memory", ratio.memory_points),
    ),
)

ARTIFACT: Artifact[Fig8Page] = Artifact(
    name="fig8",
    heading="Fig. 8: time and memory of DLRM",
    summary="time and peak memory of a training step of DLRM, beside dense tables with dense and with sparse gradients",
    experiments=("fig8", "fig8_memory"),
    made_by="make reproduce-fig8",
    order=50,
    select=select,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
    rules=RULES,
)
