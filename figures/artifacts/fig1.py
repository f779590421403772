"""Fig. 1: time and peak memory of every arm, by batch size; a page per device, precision and toggles.

A device has a page per precision and toggles that anything was timed with, and one of plain FP32 steps where there are
predictions in FP32. A prediction, which is of plain steps, belongs to every page of its precision. The records of
another experiment make the same page for whatever arms and batch sizes they have.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure

from figures import frame
from figures.arms import ARMS, CAPTURED, COMERA, LOW_RANK, PLAIN, Toggles, by_arm
from figures.artifact import Artifact
from figures.claims import ratio
from figures.claims.rule import Rule
from figures.columns import across, time_column
from figures.draw import bars
from figures.draw.captions import Caption
from figures.frame import Records
from figures.stats import cells
from figures.stats.cells import TARGETS

EXPERIMENTS = ("fig1", "fig1_memory")

#: The paper's batch sizes, and those timed where there is no GPU.
PAPER_BATCHES = (1, 32, 64, 128)
CPU_BATCHES = (1, 16)

#: The columns of a cell.
CELL = ("arm", "batch_size")


@dataclass(frozen=True, kw_only=True, eq=False)
class Fig1Page(cells.TimesAndMemory):
    """Times and memory by arm and batch size; ``uncaptured`` has times without CUDA Graph of what is refused it."""

    experiments: ClassVar[tuple[str, ...]] = EXPERIMENTS
    toggles: Toggles
    uncaptured: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def arms(self) -> list[str]:
        return sorted(self.found("arm") | set(ARMS if self.is_papers else ()), key=by_arm)

    @property
    def time_batches(self) -> list[int]:
        grid = {"cuda": PAPER_BATCHES, "cpu": CPU_BATCHES}[self.kind] if self.is_papers else ()
        return sorted({*grid, *self.runs["batch_size"]})

    @property
    def memory_batches(self) -> list[int]:
        """Return those predicted; on the paper's page not those of times alone, which hold a prediction too."""
        asked = self.plans[self.plans["measure"] == "predict"] if self.is_papers else self.plans
        return sorted({*asked["batch_size"], *(PAPER_BATCHES if self.is_papers else ())})

    @property
    def targets(self) -> list[str]:
        asked = {"cuda", self.kind} if self.is_papers else set()
        return [target for target in TARGETS if target in asked.union(self.plans["predicted_for"])]


def among(df: pd.DataFrame, toggles: Toggles) -> pd.DataFrame:
    """Return the records timed with toggles, and the predictions, which are of plain steps, of their precision."""
    predicted = (df["measure"] == "predict") & (df["precision"] == toggles.precision)
    return df[(df["measure"] == "run") & (df["toggles"] == toggles) | predicted]


def select(records: Records) -> list[Fig1Page]:
    """Return a page per device, precision and toggles, plain FP32 steps first."""
    pages = []
    for device, df in frame.by_device(records):
        runs, plans = df[df["measure"] == "run"], df[df["measure"] == "predict"]
        found = {*runs["toggles"]}
        if (plans["precision"] == PLAIN.precision).any():
            found.add(PLAIN)
        for toggles in sorted(found, key=lambda one: one.rank):
            page = cells.choose(among(df, toggles), Fig1Page, CELL, **device, **toggles.page)
            left_out = page.left_out
            others = (~plans["precision"].isin([PLAIN.precision, *runs["precision"]])).sum()
            if toggles == PLAIN and others:  # predictions that are on no page are counted here
                left_out += (f"{others} prediction(s) in a precision that nothing was timed in are left out.",)
            # of what CUDA Graph is refused, the newest time without it of the same settings
            same = frame.settings(runs, [*CELL, *frame.TIMING, *frame.METHOD])
            refused = page.runs[(page.runs["status"] == "unsupported") & page.runs["cuda_graph"]]
            eager = (runs["status"] == "ok") & (runs["toggles"] == replace(toggles, cuda_graph=False))
            uncaptured = frame.newest(runs[eager & same.isin(same.loc[refused.index])], CELL)
            pages.append(replace(page, uncaptured=uncaptured, left_out=left_out))
    return [page for page in pages if len(page.df)]


def table(page: Fig1Page) -> pd.DataFrame:
    """Return every arm at every batch size that is timed or predicted, by batch size, then arm."""
    batches = sorted({*page.time_batches, *page.memory_batches})
    grid = pd.MultiIndex.from_product([batches, page.arms], names=["batch_size", "arm"]).to_frame(index=False)
    grid = grid.assign(device=page.device, dataset=page.timed(grid, "dataset")["dataset"])
    timed, predicted = (grid["batch_size"].isin(asked) for asked in (page.time_batches, page.memory_batches))
    comera = {"arm": COMERA}
    parts = [
        grid[["device", "arm", "batch_size", "dataset"]],
        page.times(grid, COMERA, comera, timed),
        *(page.memory(grid, target, COMERA, comera, predicted) for target in page.targets),
        page.measured(grid, page.targets),
    ]
    return pd.concat(parts, axis=1)


def shown(page: Fig1Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm: its time and peak memory at every batch size, with their ratios to CoMERA's."""
    values = {time_column(page.per): f"time_over_{COMERA}"}
    if page.target in page.targets:
        values[f"{page.target}_peak_mib"] = f"{page.target}_over_{COMERA}"
    return across(table, "arm", "batch_size", values)


def draw(page: Fig1Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw time per epoch and peak memory as bars, a panel per batch size."""
    sheet = bars.BarPage(page.kind, COMERA)
    legend = {
        "steps, CoMERA": "training steps, CoMERA",
        "steps": "training steps, other arms",
        "rare": "rare events, amortised (GaLore's SVD, LTE's merge)",
    }
    sheet.times(table[table["batch_size"].isin(page.time_batches)], page.per, legend)
    for target in page.targets:
        predicted = table[table["batch_size"].isin(page.memory_batches)]
        sheet.memory(predicted, target, measured=target == page.kind == "cuda")
    return sheet.draw(caption, page.arms)


def arms_of(page: Fig1Page, rival: str, fair: bool) -> tuple[list[str], list[str]]:
    """Return the arms that may stand above and below in a ratio of a rival to CoMERA.

    As published, these are two arms; for a ``fair`` comparison every form of either, and low rank of equal size.
    """

    def forms(method: str) -> list[str]:
        return [arm for arm in page.arms if re.split("[@:+]", arm)[0] == method]

    if not fair:
        return [rival], [COMERA]
    return [*forms(rival), *page.forms_of_equal_size(forms(LOW_RANK), COMERA)], forms(COMERA)


def _times(page: Fig1Page, _table: pd.DataFrame, rival: str, fair: bool = False) -> list[ratio.RatioPoint]:
    """Return epoch times of a rival over CoMERA's; one that is refused CUDA Graph takes part with its times without."""
    theirs, ours = arms_of(page, rival, fair)
    timed = pd.concat([page.runs, page.uncaptured]).drop_duplicates(list(CELL), keep="last")
    points = []
    for _, here in timed.groupby("batch_size"):
        above, below = ratio.sides(here, "arm", theirs, ours)
        graph = pd.concat([above, below])["cuda_graph"].map({True: "on", False: "off"}).unique()
        how = " / ".join(f"CUDA Graph {one}" for one in graph) if page.kind == "cuda" else ""
        points += ratio.time_points(page, above, below, how, named=len(theirs) + len(ours) > 2)
    return points


def _peaks(page: Fig1Page, table: pd.DataFrame, rival: str, fair: bool = False) -> list[ratio.RatioPoint]:
    theirs, ours = arms_of(page, rival, fair)
    return ratio.memory_points(*ratio.sides(table, "arm", theirs, ours), named=len(theirs) + len(ours) > 2)


def _weak(page: Fig1Page, rival: str) -> str:
    """Return why a page has no fair baseline: no stronger form of the rival than the published one is on it."""
    theirs, _ = arms_of(page, rival, fair=True)
    if page.found("arm").intersection(theirs) - {rival}:
        return ""
    stronger = f"{LOW_RANK} of CoMERA's size nor a stronger form of {rival}"
    return f"Neither {stronger} is recorded; make some: make reproduce-fig1-all."


def _not_captured(page: Fig1Page) -> str:
    """Return why times of this page decide nothing on a GPU; empty where they are of captured steps."""
    if page.toggles == CAPTURED:
        return ""
    if page.runs.empty:
        return "The claim is about captured steps; none were timed."
    other = "with torch.compile" if page.toggles.cuda_graph else "without CUDA Graph"
    return f"The claim is about captured steps; these ran {other}."


def _rule(
    claim_id: str,
    rival: str,
    what: str,
    evidence: Mapping[str, Callable[..., Any]],
    batches: Sequence[int],
    slack: float = 0.5,
) -> Rule:
    """Return the rule of a claim on a rival.

    A claim on time needs captured steps on a CUDA device; predictions may decide one on memory alone.
    """
    on_time: dict[str, Any] = {"conditions": (ratio.not_fp32, _not_captured, ratio.not_full_size)}
    least = f"of the form of {rival} or of low_rank of equal size that takes least / that of comera"
    return ratio.ratio_rule(
        claim_id,
        what.format(" and ".join(evidence), rival),
        [partial(part, rival=rival) for part in evidence.values()],
        batches,
        slack=slack,
        **(on_time if "epoch time" in evidence else {"device": "any"}),
        fair=[partial(part, rival=rival, fair=True) for part in evidence.values()],
        fair_quantity=f"{' and '.join(evidence)} {least}",
        fair_conditions=(partial(_weak, rival=rival),),
    )


_TIME, _MEMORY = {"epoch time": _times}, {"peak memory": _peaks}
_BOTH, _EITHER = "{} of {} / comera, both with CUDA Graph", "{} of {} / comera with CUDA Graph"
_ON_MEMORY = "{} of {} / comera, allocated or predicted for CUDA"
_LARGE = (32, 64, 128)
RULES = (
    _rule("time-epoch-speedup", "dense", _BOTH, _TIME, PAPER_BATCHES),
    _rule("galore-time-b1", "galore", _EITHER, _TIME, (1,)),
    _rule("galore-memory-b1", "galore", _ON_MEMORY, _MEMORY, (1,)),
    _rule("lte-time", "lte", _BOTH, _TIME, _LARGE),
    _rule("galore-all-batches", "galore", _EITHER, _TIME | _MEMORY, _LARGE, slack=0.0),
    _rule("lte-memory", "lte", _ON_MEMORY, _MEMORY, _LARGE, slack=0.0),
)

ARTIFACT = Artifact(
    name="fig1",
    summary="time per epoch and peak memory of every arm, by batch size; an image per device, precision and toggles",
    experiments=EXPERIMENTS,
    made_by="make reproduce-fig1",
    order=10,
    select=select,
    table=table,
    shown=shown,
    draw=draw,
    rules=RULES,
)
