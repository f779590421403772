"""Fig. 1: time and peak memory of every arm, by batch size; a page per device, precision and toggles.

A device has a page per precision and toggles that anything was timed with, and one of plain FP32 steps where there are
predictions in FP32. A prediction, which is of plain steps, belongs to every page of its precision. The records of
another experiment make the same page for whatever arms and batch sizes they have.

A prediction for CUDA does not depend on the device that made it: claims on memory are judged on one set, the newest of
each cell, on whatever page they are judged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure

from bench.core.cell import Arm
from figures import frame
from figures.arms import ARMS, CAPTURED, COMERA, DENSE, LOW_RANK, PLAIN, Toggles, by_arm
from figures.artifact import Artifact
from figures.claims import ratio
from figures.claims.rule import Rule
from figures.columns import across, time_column
from figures.draw import bars
from figures.draw.captions import Caption
from figures.frame import Records
from figures.stats import cells
from figures.stats.cells import TARGETS
from figures.stats.sizes import equal_size

EXPERIMENTS = ("fig1", "fig1_memory")

#: Experiments that measure the allocator's peak of some of the same cells.
LENDERS = ("prediction",)

#: The paper's batch sizes, and those timed where there is no GPU.
PAPER_BATCHES = (1, 32, 64, 128)
CPU_BATCHES = (1, 16)

#: The columns of a cell.
CELL = ("arm", "batch_size")


@dataclass(frozen=True, kw_only=True, eq=False)
class Fig1Page(cells.TimesAndMemory):
    """Times and memory by arm and batch size.

    Args:
        uncaptured: times without CUDA Graph of what is refused it.
        toggled: times of the same cells with other toggles, which claims may take as stronger forms.
        cuda_predictions: predictions for CUDA of the page's model, of all arms, made on any device.
        plain_peaks: peaks of plain steps by this device's allocator, measured apart from times.
    """

    experiments: ClassVar[tuple[str, ...]] = EXPERIMENTS
    toggles: Toggles
    uncaptured: pd.DataFrame = field(default_factory=pd.DataFrame)
    toggled: pd.DataFrame = field(default_factory=pd.DataFrame)
    cuda_predictions: pd.DataFrame = field(default_factory=pd.DataFrame)
    plain_peaks: pd.DataFrame = field(default_factory=pd.DataFrame)

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
        asked = self.predictions[self.predictions["measure"] == "predict"] if self.is_papers else self.predictions
        return sorted({*asked["batch_size"], *(PAPER_BATCHES if self.is_papers else ())})

    @property
    def targets(self) -> list[str]:
        asked = {"cuda", self.kind} if self.is_papers else set()
        return [target for target in TARGETS if target in asked.union(self.predictions["predicted_for"])]


def among(df: pd.DataFrame, toggles: Toggles) -> pd.DataFrame:
    """Return the records timed with toggles, and the predictions, which are of plain steps, of their precision."""
    predicted = (df["measure"] == "predict") & (df["precision"] == toggles.precision)
    return df[(df["measure"] == "run") & (df["toggles"] == toggles) | predicted]


def select(records: Records) -> list[Fig1Page]:
    """Return a page per device, precision and toggles, plain FP32 steps first."""
    pages, known = [], frame.of(records)
    everywhere = known[(known["predicted_for"] == "cuda") & known["peak_memory_predicted_mib"].notna()]
    for device, df in frame.by_device(known):
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
            other = (runs["status"] == "ok") & (runs["toggles"] != toggles)
            toggled = frame.newest(runs[other & same.isin(same.loc[page.runs.index])], [*CELL, "toggles"])
            fitting = everywhere[everywhere["precision"] == toggles.precision]
            peaks = df[(df["measure"] == "allocator_peak") & (df["predicted_for"] == "cuda")]
            peaks = peaks[(peaks["precision"] == toggles.precision) & peaks["peak_memory_allocated_mib"].notna()]
            page = replace(page, uncaptured=uncaptured, toggled=toggled, left_out=left_out)
            of_all, plain = (frame.newest(page.others(found), CELL) for found in (fitting, peaks))
            pages.append(replace(page, cuda_predictions=of_all, plain_peaks=plain))
    return [page for page in pages if len(page.df)]


def table(page: Fig1Page) -> pd.DataFrame:
    """Return every arm at every batch size that is timed or predicted, by batch size, then arm."""
    batches = sorted({*page.time_batches, *page.memory_batches})
    grid = pd.MultiIndex.from_product([batches, page.arms], names=["batch_size", "arm"]).to_frame(index=False)
    grid = grid.assign(device=page.device, dataset=page.timed(grid, "dataset")["dataset"])
    timed, predicted = (grid["batch_size"].isin(asked) for asked in (page.time_batches, page.memory_batches))
    dense = {"arm": DENSE}
    parts = [
        grid[["device", "arm", "batch_size", "dataset"]],
        page.times(grid, DENSE, dense, timed),
        page.over_low_rank(grid),
        *(page.memory(grid, target, DENSE, dense, predicted) for target in page.targets),
        _measured(page, grid),
    ]
    return pd.concat(parts, axis=1)


def _measured(page: Fig1Page, grid: pd.DataFrame) -> pd.DataFrame:
    """Return the allocator's peaks with their ratios to dense's, those of plain steps apart where they were measured.

    A prediction has its ratio with cuBLAS's workspaces too, as large as on a Hopper GPU.
    """
    found = page.measured(grid, page.targets)
    peaks = {"allocated": found["allocated_mib"]}
    if len(page.plain_peaks):
        plain = cells.at(grid, page.plain_peaks, CELL, ["peak_memory_allocated_mib"])["peak_memory_allocated_mib"]
        peaks["plain_allocated"] = found["plain_allocated_mib"] = plain
    if "cuda" in page.targets:
        predicted = page.predicted(grid, "cuda", "peak_memory_predicted_mib")["peak_memory_predicted_mib"]
        peaks["cuda_workspaces"] = predicted + cells.ON_HOPPER_MIB
    for name, values in peaks.items():
        is_dense = grid["arm"] == DENSE
        base = grid["batch_size"].map(values[is_dense].set_axis(grid.loc[is_dense, "batch_size"]))
        found[f"{name}_over_{DENSE}"] = (values / base).mask(is_dense)
    return found


def shown(page: Fig1Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm: its time and peak memory at every batch size, with their ratios to dense's."""
    values = {time_column(page.per): f"time_over_{DENSE}"}
    allocated = {f"{name}_mib": f"{name}_over_{DENSE}" for name in ("allocated", "plain_allocated")}
    measured = {name: over for name, over in allocated.items() if name in table and table[name].notna().any()}
    if page.kind == "cuda" and measured:
        values |= measured
    elif page.target in page.targets:
        values[f"{page.target}_peak_mib"] = f"{page.target}_over_{DENSE}"
    return across(table, "arm", "batch_size", values)


def draw(page: Fig1Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw time per epoch and peak memory as bars, a panel per batch size."""
    sheet = bars.BarPage(page.kind, DENSE)
    legend = {
        "steps, CoMERA": "training steps, CoMERA",
        "steps": "training steps, other arms",
        "rare": "rare events, amortised (GaLore's SVD, LTE's merge)",
    }
    sheet.times(table[table["batch_size"].isin(page.time_batches)], page.per, legend)
    for target in page.targets:
        predicted = table[table["batch_size"].isin(page.memory_batches)]
        sheet.memory(predicted, target, measured=target == page.kind == "cuda")
    return sheet.draw(caption, page.arms, [DENSE])


def arms_of(page: Fig1Page, rival: str, fair: bool) -> tuple[list[str], list[str]]:
    """Return the arms that may stand for a rival and for CoMERA in a ratio of the two.

    As published, these are two arms; for a ``fair`` comparison every form of either. Of low rank, whose forms are many
    models, those of CoMERA's size count.
    """
    recorded = {*page.found("arm"), *(page.cuda_predictions["arm"] if len(page.cuda_predictions) else ())}

    def forms(method: str) -> list[str]:
        return sorted((arm for arm in recorded if Arm.parse(arm).method == method), key=by_arm)

    if not fair:
        return [rival], [COMERA]
    if rival == LOW_RANK:
        counts = (
            pd.concat([page.runs, page.predictions, page.cuda_predictions])
            .groupby("arm")["parameters"]
            .first()
            .dropna()
        )
        return [arm for arm in forms(rival) if equal_size(counts.get(arm), counts.get(COMERA))], forms(COMERA)
    return forms(rival), forms(COMERA)


def _times(
    page: Fig1Page, _table: pd.DataFrame, rival: str, fair: bool = False, ours_above: bool = False
) -> list[ratio.RatioPoint]:
    """Return epoch times of a rival over CoMERA's, or the other way round.

    A rival that is refused CUDA Graph takes part with its times without.

    For a ``fair`` comparison toggles of other pages count, such as BF16, where both sides were timed with them.
    """
    names = _sides(page, rival, fair, ours_above)
    timed = pd.concat([page.runs, page.uncaptured]).drop_duplicates(list(CELL), keep="last")
    points = []
    for batch, here in timed.groupby("batch_size"):
        above, below = ratio.sides(here, "arm", *names)
        for toggles, some in _toggled(page, batch) if fair else ():
            pair = [side.assign(form=side["form"] + f", {toggles.text}") for side in ratio.sides(some, "arm", *names)]
            if all(map(len, pair)):
                above, below = (pd.concat(sides) for sides in zip((above, below), pair, strict=True))
        graph = pd.concat([above, below])["cuda_graph"].map({True: "on", False: "off"}).unique()
        how = " over ".join(f"CUDA Graph {one}" for one in graph) if page.kind == "cuda" else ""
        points += ratio.time_points(page, above, below, how)
    return points


def _sides(page: Fig1Page, rival: str, fair: bool, ours_above: bool) -> tuple[list[str], list[str]]:
    theirs, ours = arms_of(page, rival, fair)
    return (ours, theirs) if ours_above else (theirs, ours)


def _toggled(page: Fig1Page, batch: Any) -> list[tuple[Toggles, pd.DataFrame]]:
    here = page.toggled[page.toggled["batch_size"] == batch] if len(page.toggled) else page.toggled
    return [(toggles, here[here["toggles"] == toggles]) for toggles in here["toggles"].unique()] if len(here) else []


def _peaks(
    page: Fig1Page, table: pd.DataFrame, rival: str, fair: bool = False, ours_above: bool = False
) -> list[ratio.RatioPoint]:
    cells_of = table.drop(columns="cuda_peak_mib", errors="ignore")
    if len(page.cuda_predictions):
        predicted = page.cuda_predictions[[*CELL, "peak_memory_predicted_mib"]]
        names = {"peak_memory_predicted_mib": "cuda_peak_mib"}
        cells_of = cells_of.merge(predicted.rename(columns=names), "outer", list(CELL))
    return ratio.memory_points(*ratio.sides(cells_of, "arm", *_sides(page, rival, fair, ours_above)))


def _weak(page: Fig1Page, rival: str, timed: bool) -> str:
    """Return why a page has no fair baseline: no stronger form of the rival was timed, or predicted for memory."""
    forms, _ = arms_of(page, rival, fair=True)
    recorded = set(page.runs["arm"]) if timed else set(forms)
    if recorded.intersection(forms) - {rival} or (timed and len(page.toggled) and rival in set(page.toggled["arm"])):
        return ""
    return f"No stronger form of {rival} is {'timed' if timed else 'recorded'}; run make reproduce-fig1-all."


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
    ours_above = slack == 0  # a statement has no number of the rival over CoMERA
    sides = ["CoMERA", rival] if ours_above else [rival, "CoMERA"]
    published, fair = " over ".join(sides), " over ".join(f"the form of {side} that takes least" for side in sides)
    return ratio.ratio_rule(
        claim_id,
        what.format(" and ".join(evidence), published),
        [partial(part, rival=rival, ours_above=ours_above) for part in evidence.values()],
        batches,
        slack=slack,
        **(on_time if "epoch time" in evidence else {"device": "any"}),
        fair=[partial(part, rival=rival, fair=True, ours_above=ours_above) for part in evidence.values()],
        fair_quantity=f"{' and '.join(evidence)} of {fair}",
        fair_conditions=(partial(_weak, rival=rival, timed="epoch time" in evidence),),
        alternative=[partial(part, rival=LOW_RANK, fair=True, ours_above=True) for part in evidence.values()],
        alternative_name="low rank of equal size",
    )


_TIME, _MEMORY = {"epoch time": _times}, {"peak memory": _peaks}
_BOTH, _EITHER = "{} of {}, both with CUDA Graph", "{} of {}, CoMERA with CUDA Graph"
_ON_MEMORY = "{} of {}, allocated or predicted for CUDA"
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
    lenders=LENDERS,
    made_by="make reproduce-fig1",
    order=10,
    select=select,
    table=table,
    shown=shown,
    draw=draw,
    rules=RULES,
)
