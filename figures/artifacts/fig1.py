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

from bench.core.record import Record
from figures import frame
from figures.arms import ARMS, CAPTURED, COMERA, LOW_RANK, PLAIN, Toggles, by_arm
from figures.artifact import Artifact
from figures.claims import ratio
from figures.claims.rule import Rule
from figures.columns import across, table_of, time_column
from figures.frame import Records
from figures.page import bars
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.records import cells
from figures.records.cells import TARGETS

EXPERIMENTS = ("fig1", "fig1_memory")

#: The paper's batch sizes, and those timed where there is no GPU.
PAPER_BATCHES = (1, 32, 64, 128)
CPU_BATCHES = (1, 8, 16)

#: The columns of a cell.
CELL = ("arm", "batch_size")


@dataclass(frozen=True, kw_only=True, eq=False)
class Fig1Page(cells.TimesAndMemory):
    """Times and memory by arm and batch size; ``uncaptured`` has times without CUDA Graph of what is refused it."""

    experiments: ClassVar = EXPERIMENTS
    toggles: Toggles
    uncaptured: Mapping[tuple[str, int], Record] = field(default_factory=dict)

    @property
    def has_grid(self) -> bool:
        """Return whether all arms and batch sizes of the paper are expected."""
        return self.is_papers

    @property
    def arms(self) -> list[str]:
        return sorted(self.found("arm") | set(ARMS if self.has_grid else ()), key=by_arm)

    @property
    def time_batches(self) -> list[int]:
        grid = {"cuda": PAPER_BATCHES, "cpu": CPU_BATCHES}[self.kind] if self.has_grid else ()
        return sorted({*grid, *self.runs["batch_size"]})

    @property
    def memory_batches(self) -> list[int]:
        """Return those predicted; on the paper's page not those of times alone, which hold a prediction too."""
        asked = self.plans[self.plans["measure"] == "predict"] if self.has_grid else self.plans
        return sorted({*asked["batch_size"], *(PAPER_BATCHES if self.has_grid else ())})

    @property
    def batches(self) -> list[int]:
        return sorted({*self.time_batches, *self.memory_batches})

    @property
    def targets(self) -> list[str]:
        found = set(self.plans["predicted_for"])
        return [target for target in TARGETS if self.has_grid or target in found]


def among(df: pd.DataFrame, toggles: Toggles) -> pd.DataFrame:
    """Return the records timed with toggles, and the predictions, which are of plain steps, of their precision."""
    predicted = (df["measure"] == "predict") & (df["precision"] == toggles.precision)
    return df[(df["measure"] == "run") & (df["toggles"] == toggles) | predicted]


def select(records: Records) -> list[Fig1Page]:
    """Return a page per device, precision and toggles, plain FP32 steps first."""
    pages = []
    for device, df in frame.by_device(records):
        runs, plans = df[df["measure"] == "run"], df[df["measure"] == "predict"]
        found = {*runs["toggles"], *([PLAIN] if (plans["precision"] == PLAIN.precision).any() else [])}
        for toggles in sorted(found, key=lambda one: one.rank):
            page = cells.choose(among(df, toggles), Fig1Page, CELL, **device, **toggles.page)
            left_out = page.left_out
            timed = {PLAIN.precision, *runs["precision"]}
            others = sum(precision not in timed for precision in plans["precision"])
            if toggles == PLAIN and others:  # predictions that are on no page are counted here
                left_out += (f"{others} prediction(s) in a precision that nothing was timed in are left out.",)
            pages.append(replace(page, uncaptured=_uncaptured(page, runs), left_out=left_out))
    return [page for page in pages if len(page.df)]


def _uncaptured(page: Fig1Page, runs: pd.DataFrame) -> dict[Any, Record]:
    """Return by cell that CUDA Graph is refused the newest record of the same settings that was timed without it."""
    same = frame.settings(runs, [*CELL, *frame.TIMING, *frame.METHOD])
    refused = page.runs[(page.runs["status"] == "unsupported") & page.runs["cuda_graph"]]
    eager = (runs["status"] == "ok") & (runs["toggles"] == replace(page.toggles, cuda_graph=False))
    return frame.by_cell(frame.newest(runs[eager & same.isin(same.loc[refused.index])], CELL), CELL)


def table(page: Fig1Page) -> pd.DataFrame:
    """Return every arm at every batch size that is timed or predicted, by batch size, then arm."""
    lines = []
    for batch in page.batches:
        for arm in page.arms:
            cell, reference = (arm, batch), (COMERA, batch)
            line = {
                "device": page.device,
                "arm": arm,
                "batch_size": batch,
                "dataset": getattr(page.timed.get(cell), "dataset", ""),
                **page.time_columns(cell, reference, COMERA, asked=batch in page.time_batches),
            }
            for target in page.targets:
                line |= page.memory_columns(target, cell, reference, COMERA, batch in page.memory_batches)
            lines.append(line | page.last_columns(cell, page.targets))
    return table_of(lines)


def shown(page: Fig1Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm: its time and peak memory at every batch size, with their ratios to CoMERA's."""
    values = {time_column(page.per): f"time_over_{COMERA}"}
    values |= {f"{target}_peak_mib": f"{target}_over_{COMERA}" for target in page.targets if target == page.target}
    return across(table, "arm", "batch_size", values)


def draw(page: Fig1Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw time per epoch and peak memory as bars, a panel per batch size."""
    sheet = bars.Sheet(page.kind, COMERA)
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


def forms(page: Fig1Page, *methods: str) -> list[str]:
    """Return the arms of the page that are forms of methods: variants of them, checkpointed or not."""
    return [arm for arm in page.arms if re.split("[@:+]", arm)[0] in methods]


def sized_rivals(page: Fig1Page, batch: int) -> list[str]:
    """Return the forms of low rank with as many parameters as CoMERA within 2 %, by the records of a batch size."""
    return [arm for arm in forms(page, LOW_RANK) if page.same_size((arm, batch), (COMERA, batch))]


def pairs(page: Fig1Page, rival: str, fair: bool, batches: Sequence[int]) -> ratio.Pairs:
    """Return by batch size the cells of a rival and of CoMERA.

    As published, these are two arms; for a ``fair`` comparison every form of either, and low rank of equal size.
    """
    found = {}
    for batch in batches:
        theirs = [*forms(page, rival), *sized_rivals(page, batch)] if fair else [rival]
        ours = forms(page, COMERA) if fair else [COMERA]
        found[batch] = ([(arm, batch) for arm in theirs], [(arm, batch) for arm in ours])
    return found


def _times(page: Fig1Page, rival: str, fair: bool = False) -> list[ratio.RatioPoint]:
    """Return epoch times of a rival over CoMERA's; one that is refused CUDA Graph takes part with its times without."""
    timed, found = {**page.timed, **page.uncaptured}, []
    for batch, pair in pairs(page, rival, fair, page.batches).items():
        timings = [timed[cell] for side in pair for cell in side if cell in timed]
        graph = dict.fromkeys("on" if one.cuda_graph else "off" for one in timings)
        how = " / ".join(f"CUDA Graph {one}" for one in graph) if page.kind == "cuda" else ""
        found += ratio.time_points(page, {batch: pair}, how, timed)
    return found


def _peaks(page: Fig1Page, rival: str, fair: bool = False) -> list[ratio.RatioPoint]:
    return ratio.memory_points(page, pairs(page, rival, fair, page.batches))


def _weak(page: Fig1Page, rival: str) -> str:
    """Return why a page has no fair baseline: no stronger form of the rival than the published one is on it."""
    sized = {arm for batch in page.batches for arm in sized_rivals(page, batch)}
    if page.found("arm").intersection(forms(page, rival)) - {rival} or sized:
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
    heading="Fig. 1: time and memory of every method",
    summary="time per epoch and peak memory of every arm, by batch size; an image per device, precision and toggles",
    experiments=EXPERIMENTS,
    made_by="make reproduce-fig1",
    order=10,
    select=select,
    table=table,
    shown=shown,
    caption=beside(__file__),
    draw=draw,
    rules=RULES,
)
