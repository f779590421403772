"""Fig. 8: time and peak memory of a training step of DLRM; a page per device, model and source of the tables' sizes.

Two verdicts stand beside each other: against dense tables with dense gradients under Adam, as published, and against
tables with sparse gradients and one number of state per row, as a recommender team would train them.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from figures import frame
from figures.artifact import Artifact
from figures.artifacts.fig5 import BATCHES, EACH, OPTIMIZED, PLAIN, REFERENCE, peaks, times, with_look_ups
from figures.claims import ratio
from figures.claims.claims import Claim, Finding, Judgement, undecided, untested
from figures.claims.rule import REACHES, Rule
from figures.columns import across
from figures.draw import bars
from figures.draw.captions import Caption
from figures.frame import Records
from figures.stats import cells
from figures.stats.cells import TARGETS
from figures.stats.time_values import Per

ADAM, SPARSE, ROW_WISE = "dense", "sparse", "row-wise"
RIVALS = {"dense": ADAM, "dense:sparse": SPARSE, f"dense:{REFERENCE}": ROW_WISE}
VARIANTS = (OPTIMIZED, PLAIN, *RIVALS.values())

#: Parameters of the paper's dense model, with the tables of Criteo Kaggle.
FULL_SIZE = 1_097_631_297

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
    def variants(self) -> list[str]:
        return [name for name in VARIANTS if name in self.found("look_up")]

    @property
    def target(self) -> str:
        """Return the device whose predicted memory is shown: a GPU wherever there is a prediction for one."""
        return "cuda" if (self.predictions["predicted_for"] == "cuda").any() else "cpu"


def select(records: Records) -> list[Fig8Page]:
    """Return a page per device and model."""
    pages = []
    for device, given in frame.by_device(records):
        df = with_look_ups(given, VARIANTS, RIVALS, PLACE)
        for key, here in frame.groups(df[df["precision"] == "fp32"], PLACE):
            place = Fig8Place(*key)
            about: dict[str, Any] = {"about": place, "place": place.words, "suffix": tuple(place)}
            pages.append(cells.choose(here, Fig8Page, CELL, **EACH, **about, **device))
    return [page for page in pages if len(page.df)]


def table(page: Fig8Page) -> pd.DataFrame:
    """Return a line per variant or rival and batch size, by batch size."""
    batches = sorted({*BATCHES, *page.found("batch_size")})
    lines = pd.MultiIndex.from_product([batches, page.variants], names=["batch_size", "look_up"])
    grid, reference = lines.to_frame(index=False), {"look_up": ROW_WISE}
    place = {
        "device": page.device,
        "preset": page.about.preset,
        "tables": page.about.tables,
        "batch_size": grid["batch_size"],
        "variant": grid["look_up"],
    }
    records = pd.concat([page.predictions, page.runs]).drop_duplicates(list(CELL), keep="last")
    stored = records[records["stored_mib"] > 0].groupby("look_up")["stored_mib"].first()
    flops = cells.at(grid, records, CELL, ["flops_per_step"]).apply(cells.numbers)
    parts = [
        pd.DataFrame(place),
        page.times(grid, REFERENCE, reference, rare=False),
        *(page.memory(grid, target, REFERENCE, reference) for target in TARGETS),
        flops.assign(stored_mib=grid["look_up"].map(stored)),
        page.measured(grid),
    ]
    return pd.concat(parts, axis=1)


def shown(page: Fig8Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per variant: the size of the model, and its time and peak memory at every batch size."""
    values = {"step_time_ms": f"time_over_{REFERENCE}"}
    values[f"{page.target}_peak_mib"] = f"{page.target}_over_{REFERENCE}"
    return across(table, "variant", "batch_size", values, ["stored_mib"])


def about(page: Fig8Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return whether the model is the paper's, the largest batch that fits 95 % of a GPU's memory, who ran alone."""
    fits = {}
    for gib in (24, 80) if page.target == "cuda" else ():
        fitting = table["batch_size"].where(table["cuda_peak_mib"] <= 0.95 * 1024 * gib, 0)
        fits[gib] = fitting.groupby(table["variant"], sort=False).max().to_dict()
    return {
        "is_papers_model": page.about == Fig8Place("paper", "kaggle"),
        "fits": fits,
        "alone": bool(((page.runs["status"] == "ok") & (page.runs["pairing"] == "")).any()),
    }


def draw(page: Fig8Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw time and peak memory as bars, a panel per batch size."""
    sheet = bars.BarPage(page.kind, REFERENCE, OPTIMIZED)
    measured = page.kind == "cuda" and bool(table["allocated_mib"].notna().any())
    legend = {"steps, CoMERA": "CoMERA, optimized look-up"}
    legend["steps"] = "plain look-up and dense tables"
    sheet.times(table, "step", legend)
    sheet.memory(table, page.target, measured)
    return sheet.draw(caption, page.variants, [ROW_WISE])


def not_the_papers(page: Fig8Page) -> str:
    """Return why these records decide nothing about the paper's model; empty where they may."""
    dense = page.df.loc[page.df["arm"] == "dense", "parameters"].dropna()
    if set(dense) == {FULL_SIZE}:
        return ""
    return f"The claim is about the model of {FULL_SIZE:,} parameters; these records are of {page.about.words}."


def _synthetic(page: Fig8Page) -> str:
    names = ", ".join(name for name in page.values("dataset") if name.startswith("synthetic"))
    return f"The claim is about Criteo's log; these steps ran on {names}." if names else ""


def _judge_size(claim: Claim, page: Fig8Page, table: pd.DataFrame) -> Judgement:
    """Judge the sizes of any log, since they do not hang on the data."""
    stored = table.set_index("variant")["stored_mib"].dropna().to_dict()
    if not {ADAM, OPTIMIZED} <= stored.keys():
        return untested("It needs both models.")
    dense, ours = stored[ADAM], stored[OPTIMIZED]
    sizes = f"{dense / ours:.2f}x, {dense:,.0f} / {ours:.1f} MiB"
    found = (Finding("stored size of dense over comera", sizes),)
    if reason := undecided([not_the_papers(page)], found):
        return reason
    if dense / ours < (claim.low or 0) - 0.5:
        return Judgement("not reproduced", "Counts do not vary.", found)
    why = "The ranks were chosen for it; what the model learns is a claim apart."
    return Judgement("by construction", why, found)


def _rule(claim_id: str, quantity: str, parts: list[Any], rival: str = ADAM, fair: str = "", **more: Any) -> Rule:
    """Return the rule of a claim on ratios; one on memory alone may be decided by predictions on any log.

    Args:
        claim_id, quantity: the claim, and what is judged.
        parts: what the ratios are of.
        rival: the variant that CoMERA is compared with; it stands above in the ratio, in that of a statement below.
        fair: the quantity of the fair comparison, with the dense tables that take least; none where empty.
    """

    def names(*rivals: str) -> dict[str, tuple[str, ...]]:
        sides = [(OPTIMIZED,), rivals] if more.get("slack") == 0 else [rivals, (OPTIMIZED,)]
        return dict(zip(("above", "below"), sides, strict=True))

    if fair:
        more["fair"] = [partial(parts[0], **names(ADAM, SPARSE, ROW_WISE))]
        sides = ["optimized CoMERA", "the dense tables that take least (sparse gradients, row-wise Adagrad)"]
        more["fair_quantity"] = f"{fair} of {' over '.join(sides if more.get('slack') == 0 else reversed(sides))}"
    of_memory = parts == [peaks]
    conditions = [ratio.not_fp32, not_the_papers, *([] if of_memory else [_synthetic])]
    more = {"batches": BATCHES, "device": "any" if of_memory else "cuda", **more}
    evidence = [partial(part, **names(rival)) for part in parts]
    return ratio.ratio_rule(claim_id, quantity, evidence, conditions=conditions, **more)


RULES = (
    Rule("dlrm-size", "stored size of dense over CoMERA", REACHES, "any", 0.5, "x", judge=_judge_size),
    _rule(
        "dlrm-memory",
        "peak memory of dense (Adam) over CoMERA, allocated or predicted for CUDA",
        [peaks],
        batches=BATCHES[:1],
        fair="peak memory",
    ),
    _rule("recsys-time", "epoch time of dense (Adam) over CoMERA", [times], fair="step time"),
    _rule(
        "dlrm-opt-plain", "step time and peak memory of optimized over plain CoMERA", [times, peaks], PLAIN, slack=0.0
    ),
    _rule(
        "dlrm-opt-dense",
        "peak memory of optimized CoMERA over dense (Adam), allocated or predicted",
        [peaks],
        fair="peak memory",
        slack=0.0,
    ),
)

ARTIFACT: Artifact[Fig8Page] = Artifact(
    name="fig8",
    summary="time and peak memory of a training step of DLRM, beside dense tables with dense and with sparse gradients",
    experiments=("fig8", "fig8_memory"),
    made_by="make reproduce-fig8",
    order=50,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
    rules=RULES,
)
