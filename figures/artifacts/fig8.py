"""Fig. 8: time and peak memory of a training step of DLRM; a page per device, model and source of the tables' sizes.

Two verdicts stand beside each other: against dense tables with dense gradients under Adam, as published, and against
tables with sparse gradients and one number of state per row, as a recommender team would train them.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from bench.core.record import Record
from figures import frame
from figures.artifact import Artifact
from figures.artifacts.fig5 import look_up
from figures.claims import ratio
from figures.claims.claims import Claim, Finding, Judgement, undecided
from figures.claims.rule import REACHES, Rule
from figures.columns import across, readable, table_of
from figures.frame import Records
from figures.page import bars
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.records import cells
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

#: The columns of a cell, and those of a page.
CELL = ("look_up", "batch_size")
PLACE = ["workload.preset", "workload.tables"]


class Fig8Place(NamedTuple):
    """The model of one page, and the source of the sizes of its tables."""

    preset: str
    tables: str

    @property
    def words(self) -> str:
        return f"preset {self.preset}, tables of {self.tables}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Fig8Page(cells.TimesAndMemory):
    """Times and memory by look-up variant or rival, and batch size."""

    about: Fig8Place

    @property
    def per(self) -> Per:
        return "step"

    @property
    def batches(self) -> list[int]:
        return sorted({*BATCHES, *self.found("batch_size")})

    @property
    def variants(self) -> list[str]:
        return [name for name in VARIANTS if name in self.found("look_up")]

    @property
    def by_cell(self) -> dict[tuple[str, int], Record]:
        """Return a record of every cell, the timed one where there is one."""
        return {**{cell: one for (_, cell), one in self.predicted.items()}, **self.timed}

    def stored(self, variant: str) -> float | None:
        """Return MiB of the stored model."""
        found = self.by_cell.items()
        return next((one.stored_mib for (name, _), one in found if name == variant and one.stored_mib), None)

    @property
    def shown_target(self) -> str:
        """Return the device whose predicted memory is shown: a GPU wherever there is a prediction for one."""
        return "cuda" if (self.plans["predicted_for"] == "cuda").any() else "cpu"


def select(records: Records) -> list[Fig8Page]:
    """Return a page per device and model."""
    pages = []
    for device, df in frame.by_device(records):
        variants = pd.Series([look_up(one, RIVALS) for one in df["record"]], index=df.index, dtype=object)
        df = df.assign(
            look_up=variants.where(variants.isin(VARIANTS), None),
            family=df["arm"].where(df["method"] != "comera", "comera"),
            **{name: frame.column(df, name) for name in PLACE},
        )
        for key, here in frame.groups(df, PLACE):
            place, each = Fig8Place(*key), (*frame.METHOD, "variant", "!method.lookup")
            about = {"about": place, "place": place.words, "suffix": tuple(place)}
            plain = here[here["precision"] == "fp32"]
            pages.append(cells.choose(plain, Fig8Page, CELL, each=each, arm="family", **about, **device))
    return [page for page in pages if len(page.df)]


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
            **page.time_columns(cell, reference, OPTIMIZED, rare=False),
        }
        for target in cells.TARGETS:
            line |= page.memory_columns(target, cell, reference, OPTIMIZED)
        line |= {"flops_per_step": getattr(page.by_cell.get(cell), "flops_per_step", None)}
        lines.append(line | {"stored_mib": page.stored(variant)} | page.last_columns(cell, cells.TARGETS))
    return table_of(lines)


def shown(page: Fig8Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per variant: the size of the model, and its time and peak memory at every batch size."""
    target = page.shown_target
    values = {"step_time_ms": f"time_over_{OPTIMIZED}", f"{target}_peak_mib": f"{target}_over_{OPTIMIZED}"}
    found = across(table, "variant", "batch_size", values)
    sizes = readable(table.drop_duplicates("variant"), ["stored_mib"])
    found.insert(1, sizes.columns[0], sizes.iloc[:, 0].to_numpy())
    return found


def about(page: Fig8Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return whether the model is the paper's, the memory shown, what fits where, and whether arms were timed alone."""
    fits = {}
    for room in ROOMS if page.shown_target == "cuda" else ():
        fitting = table[table["cuda_peak_mib"] <= room * 1024 * _FREE]
        largest = fitting.groupby("variant")["batch_size"].max()
        fits[room] = {variant: int(largest.get(variant, 0)) for variant in page.variants}
    return {
        "is_papers_model": page.about == Fig8Place("paper", "kaggle"),
        "target": page.shown_target,
        "fits": fits,
        "alone": bool(((page.runs["status"] == "ok") & (page.runs["pairing"] == "")).any()),
    }


def draw(page: Fig8Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw time and peak memory as bars, a panel per batch size."""
    sheet = bars.Sheet(page.kind, OPTIMIZED)
    measured = page.kind == "cuda" and bool(table["allocated_mib"].notna().any())
    legend = {"steps, CoMERA": "CoMERA, optimized look-up", "steps": "plain look-up and dense tables"}
    sheet.times(table, "step", legend)
    sheet.memory(table, page.shown_target, measured)
    return sheet.draw(caption, page.variants)


def not_the_papers(page: Fig8Page) -> str:
    """Return why these records decide nothing about the paper's model; empty where they may."""
    dense = {one.parameters for one in page.shown if one.arm == "dense" and one.parameters is not None}
    if dense == {FULL_SIZE}:
        return ""
    return f"The claim is about the model of {FULL_SIZE:,} parameters; these records are of {page.about.words}."


def _synthetic(page: Fig8Page) -> str:
    """Return why the data of these records decide nothing; empty where they may."""
    names = [name for name in page.values("dataset") if name.startswith("synthetic")]
    return f"The claim is about Criteo's log; these steps ran on {', '.join(names)}." if names else ""


def _judge_size(claim: Claim, page: Fig8Page, _: Any) -> Judgement:
    """Judge the sizes of any log, since they do not hang on the data."""
    dense, ours = page.stored(ADAM), page.stored(OPTIMIZED)
    if dense is None or ours is None:
        return Judgement("not tested here", "It needs both models.")
    found = (Finding("stored size of dense / comera", f"{dense / ours:.2f}x, {dense:,.0f} / {ours:.1f} MiB"),)
    if untested := undecided([not_the_papers(page)], found):
        return untested
    if dense / ours < (claim.low or 0) - 0.5:
        return Judgement("not reproduced", "Counts do not vary.", found)
    return Judgement("by construction", "The ranks were chosen for it; what the model learns is a claim apart.", found)


def _evidence(page: Fig8Page, points: Callable[..., Any], above: tuple[str, ...]) -> list[ratio.RatioPoint]:
    """Return ratios of the one of these variants that takes least over the optimized one."""
    pairs = {batch: ([(one, batch) for one in above], [(OPTIMIZED, batch)]) for batch in page.batches}
    return points(page, pairs)


_TIMES, _PEAKS = ratio.time_points, ratio.memory_points


def _rule(
    claim_id: str,
    quantity: str,
    points: Any,
    above: str,
    batches: tuple[int, ...] = BATCHES,
    fair: str = "",
    **more: Any,
) -> Rule:
    """Return the rule of a claim on ratios; one on memory alone may be decided by predictions on any log.

    Args:
        claim_id, quantity: the claim, and what is judged.
        points: what the ratios are of, one or several.
        above: the variant above in the ratio.
        batches: the batch sizes of the claim.
        fair: the quantity of the fair comparison, with the dense tables that take least; none where empty.
    """
    parts = points if isinstance(points, list) else [points]
    if fair:
        rivals = partial(_evidence, points=parts[0], above=(ADAM, SPARSE, ROW_WISE))
        more |= {"fair": [rivals], "fair_quantity": f"{fair} of the dense tables that take least "}
        more["fair_quantity"] += "(sparse gradients, row-wise Adagrad) / optimized comera"
    any_log: dict[str, Any] = {"conditions": (ratio.not_fp32, not_the_papers), "device": "any"}
    own: dict[str, Any] = {"conditions": (ratio.not_fp32, not_the_papers, _synthetic)}
    evidence = [partial(_evidence, points=part, above=(above,)) for part in parts]
    return ratio.ratio_rule(claim_id, quantity, evidence, batches, **(any_log if points is _PEAKS else own), **more)


RULES = (
    Rule("dlrm-size", "stored size of dense / comera", REACHES, "any", 0.5, "x", judge=_judge_size),
    _rule(
        "dlrm-memory",
        "peak memory of dense (Adam) / comera, allocated or predicted for CUDA",
        _PEAKS,
        ADAM,
        BATCHES[:1],
        fair="peak memory",
    ),
    _rule("recsys-time", "epoch time of dense (Adam) / comera", _TIMES, ADAM, fair="step time"),
    _rule(
        "dlrm-opt-plain", "step time and peak memory of plain / optimized comera", [_TIMES, _PEAKS], PLAIN, slack=0.0
    ),
    _rule(
        "dlrm-opt-dense",
        "peak memory of dense (Adam) / optimized comera, allocated or predicted",
        _PEAKS,
        ADAM,
        fair="peak memory",
        slack=0.0,
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
