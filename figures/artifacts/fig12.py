"""Fig. 12: time, peak memory and FLOPs against the compression of the whole model; a page per device and toggles.

Each job of a sweep times one ratio with dense beside it, so a timed record of dense belongs to the ratio of its job.
Otherwise dense is the model of ratio 1.

The claim is that the speed-up, dense's time per epoch over CoMERA's, grows with compression and vanishes as the ratio
tends to 1. At a batch size it *grows* when at the largest ratio it surely exceeds that at the smallest, and at no ratio
surely falls short of that at a smaller one, where surely means that the bounds do not meet. It *vanishes* when at
the smallest ratio, which must be 2 or less, its lower bound does not lie above 1.1: the claim is about a limit,
so 10 % may be left on the way to it, which is said, as is slower than dense. Both at every batch size: reproduced. It
grows at none: not reproduced. Anything between: partly. Times of a CPU decide nothing and are printed beside.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from bench.core.intervals import Estimate
from bench.core.record import Record
from figures import frame
from figures.arms import COMERA, DENSE, RANK_RIVAL, SIZE_RIVAL, Toggles, by_arm
from figures.artifact import Artifact
from figures.artifacts.fig1 import among
from figures.claims.claims import Claim, Finding, Judgement, undecided
from figures.claims.ratio import ON_CPU, not_fp32, not_full_size
from figures.claims.rule import Rule
from figures.columns import across, estimate, lines_of, readable, table_of, time_column, unit_of
from figures.frame import Records
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes, has_failed
from figures.page.layout import panel_page
from figures.page.ratio_panels import Curve, RatioPanel, draw_panel, legend
from figures.records import cells
from figures.records.cells import TARGETS, quotient
from figures.records.crossover import Quotients
from figures.records.reach import Reach, reach_of
from figures.records.sizes import FULL_SIZE_PARAMETERS
from figures.records.time_values import time_ratio
from figures.text import bounds, significant, unpaired, with_bounds

EXPERIMENTS = ("ratios", "ratios_memory")

#: The columns of a cell of times and of memory; the ratio of a timed dense record is that of its job.
CELL, MEMORY_CELL = ("arm", "batch_size", "beside"), ("arm", "batch_size", "own_ratio")

_PANEL_HEIGHT, _COLUMNS, _LEGEND_COLUMNS = 2.1, 4, 4

#: The columns of CoMERA's time over that of what it is compared with beside dense.
_OVER_RIVALS = {SIZE_RIVAL: "time_over_low_rank", RANK_RIVAL: "time_over_low_rank_of_equal_rank"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Fig12Page(cells.TimesAndMemory):
    """Times and memory by arm, batch size and ratio."""

    experiments: ClassVar = EXPERIMENTS
    toggles: Toggles

    @property
    def arms(self) -> list[str]:
        """Return those that have a ratio, in drawing order."""
        return sorted(self.found("arm") - {DENSE}, key=by_arm)

    @property
    def batches(self) -> list[int]:
        return sorted(self.found("batch_size"))

    @property
    def time_batches(self) -> list[int]:
        return sorted(set(self.runs["batch_size"]))

    def memory_batches(self, target: str) -> list[int]:
        return sorted(set(self.plans.loc[self.plans["predicted_for"] == target, "batch_size"]))

    def ratios(self, batch: int | None = None) -> list[float]:
        """Return the ratios, of a batch size or of all, that any arm has a record for."""
        found = self.df[
            (self.df["arm"] != DENSE) & self.df["batch_size"].isin(self.batches if batch is None else [batch])
        ]
        return sorted(set(found["own_ratio"]))

    def reach(self, *cell: Any) -> Reach | None:
        """Return the end of the ratios that a cell's method can reach, where its own lies beyond."""
        return reach_of(self.timed.get(cell), *(self.predicted.get((target, cell)) for target in TARGETS))


def select(records: Records) -> list[Fig12Page]:
    """Return a page per device, precision and toggles; a prediction belongs to every page of its precision."""
    pages = []
    for device, df in frame.by_device(records):
        dense, runs = df["arm"] == DENSE, df["measure"] == "run"
        swept = frame.column(df, "method.ratio").notna() | frame.column(df, "method.ranks_of_ratio").notna()
        ratio = df["ratio"].where(dense | swept)
        df = df.assign(beside=ratio.where(runs | ~dense, 1.0), own_ratio=ratio.where(~dense, 1.0))
        timed = set(df.loc[runs, "precision"])
        own = df[runs | (df["measure"] == "predict") & ~df["precision"].isin(timed)]
        for toggles in sorted(set(own["toggles"]), key=lambda one: one.rank):
            page = cells.choose(
                among(df, toggles),
                Fig12Page,
                CELL,
                memory_cell=MEMORY_CELL,
                each=(*frame.METHOD, "!method.ratio", "!method.ranks_of_ratio"),
                **device,
                **toggles.page,
            )
            pages.append(page)
    return [page for page in pages if len(page.df)]


def table(page: Fig12Page) -> pd.DataFrame:
    """Return a line per batch size, ratio and arm, and before them one per job that timed dense.

    Times are over those of dense in the same job, peaks and FLOPs over those of the one dense model.
    """
    lines = []
    for batch in page.batches:
        jobs = sorted(ratio for arm, size, ratio in page.timed if (arm, size) == (DENSE, batch))
        dense = [page.timed[DENSE, batch, ratio] for ratio in jobs]
        whole = _known(page, (DENSE, batch, 1.0), dense)
        lines += [_line(page, (DENSE, batch, 1.0), beside, whole, {}) for beside in jobs or [1.0]]
        for ratio, arm in itertools.product(page.ratios(batch), page.arms):
            run = page.timed.get((arm, batch, ratio))
            known = _known(page, (arm, batch, ratio), [run] if run else [])
            lines.append(_line(page, (arm, batch, ratio), ratio, known, whole))
    return table_of(lines)


def _known(page: Fig12Page, cell: tuple[str, int, float], runs: Sequence[Record]) -> dict[str, Any]:
    """Return FLOPs per step and parameters, from the first record that has them, and the allocator's peaks."""
    plans = (page.predicted.get((target, cell)) for target in TARGETS)
    record = next((one for one in (*runs, *plans) if one and one.flops_per_step is not None), None)
    measured = next((one for one in runs if one.peak_memory_allocated_mib is not None), None)
    return {
        "flops_per_step": getattr(record, "flops_per_step", None),
        "parameters": getattr(record, "parameters", None),
        **{f"{name}_mib": getattr(measured, f"peak_memory_{name}_mib", None) for name in ("allocated", "reserved")},
    }


def _line(
    page: Fig12Page,
    cell: tuple[str, int, float],
    beside: float,
    known: Mapping[str, Any],
    whole: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the line of a cell in the job of the ratio ``beside``; ``whole`` is known of dense, empty for itself."""
    arm, batch, ratio = cell
    run, timed = page.timed.get((arm, batch, beside)), batch in page.time_batches
    time = page.time_columns((arm, batch, beside), (DENSE, batch, beside), DENSE, asked=timed)
    memory: dict[str, Any] = {}
    for target in TARGETS:
        asked = batch in page.memory_batches(target)
        memory |= page.memory_columns(target, cell, (DENSE, batch, 1.0), DENSE, asked)
    over = {
        name: time_ratio(run, page.timed.get((rival, batch, ratio))) if arm == COMERA else None
        for rival, name in _OVER_RIVALS.items()
    }
    return {
        "device": page.device,
        "precision": page.toggles.precision,
        "cuda_graph": page.toggles.cuda_graph,
        "compile": page.toggles.compile,
        "arm": arm,
        "batch_size": batch,
        "ratio": ratio,
        "beside": beside,
        "size_ratio": quotient(whole.get("parameters"), known["parameters"]),
        "parameters": known["parameters"],
        **time,
        **{column: value for name, one in over.items() for column, value in bounds(name, one).items()},
        "flops_per_step": known["flops_per_step"],
        "flops_over_dense": quotient(known["flops_per_step"], whole.get("flops_per_step")),
        "reach": str(page.reach(*cell) or ""),
        **memory,
        "allocated_mib": known["allocated_mib"],
        "reserved_mib": known["reserved_mib"],
        "older_code": page.is_older(cell, TARGETS) or bool(page.older(run)),
    }


def shown(page: Fig12Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm and ratio, its time and peak memory by batch size; limits stand in place of failures.

    Dense has one line, whose time is the median over its jobs.
    """
    dense, time = table[table["arm"] == DENSE], time_column(page.per)
    median = dense.groupby("batch_size")[time].transform("median")
    timed = dense.assign(**{time: median, "time_status": dense["time_status"].mask(median.notna(), "ok")})
    once = pd.concat([timed.drop_duplicates("batch_size"), table[table["arm"] != DENSE]]).sort_index()
    models = once.sort_values("ratio", kind="stable", ignore_index=True)
    names = models["arm"] + ", ratio " + models["ratio"].map("{:g}".format)
    models["arm"] = models["arm"].where(models["arm"] == DENSE, names)
    for kind in ("time", *TARGETS):
        models[f"{kind}_status"] = models["reach"].where(models["reach"] != "", models[f"{kind}_status"])
    values = {time: f"time_over_{DENSE}"}
    values |= {f"{target}_peak_mib": f"{target}_over_{DENSE}" for target in _targets(page, table)}
    found = across(models, "arm", "batch_size", values)
    sizes = readable(models.drop_duplicates("arm"), ["size_ratio"])
    found.insert(1, sizes.columns[0], sizes.iloc[:, 0].to_numpy())
    return found


def _targets(page: Fig12Page, table: pd.DataFrame) -> list[str]:
    """Return the devices that any memory is predicted for, this kind first."""
    ordered = sorted(TARGETS, key=lambda target: target != page.kind)
    return [target for target in ordered if table[f"{target}_peak_mib"].notna().any()]


def about(_: Fig12Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return the dense model's parameters, what is out of which arm's reach, and what failed with its ratio."""
    count = table.loc[table["arm"] == DENSE, "parameters"].dropna()
    out, within = table[table["reach"] != ""], table[table["reach"] == ""]
    named = within["arm"] + within["arm"].map(lambda arm: " beside ratio " if arm == DENSE else ", ratio ")
    return {
        "parameters": int(count.iloc[0]) if len(count) else 0,
        "full_size": FULL_SIZE_PARAMETERS,
        "beyond": {
            key: [f"{ratio:g}" for ratio in sorted(set(some["ratio"]))]
            for key, some in out.groupby(["arm", "reach"], sort=False)
        },
        "named": within.assign(arm=named + within["beside"].map("{:g}".format)),
    }


class Quantity(NamedTuple):
    """A column that is drawn against the ratio.

    Args:
        title: of its panels; ``time`` varies, and so is drawn as a ratio to dense's in the same job.
        axis: what stands on the axis.
        batches: that there is a panel for.
        column: what is drawn, in the table's unit.
        over_dense: the column of its ratio to dense's.
        unit, scale: in which dense's value is written, and how many of the table's unit are one of it.
        reasons: whose status may say why a value is missing, in this order.
        is_measured: whether the allocator's peaks are of the same quantity.
    """

    title: str
    axis: str
    batches: Sequence[int]
    column: str
    over_dense: str
    unit: str
    scale: float
    reasons: Sequence[str]
    is_measured: bool = False


def _quantities(page: Fig12Page, table: pd.DataFrame) -> Iterator[Quantity]:
    """Yield time, work, then memory, for this kind of device first."""
    (unit, scale), time, timed = unit_of(table, page.per), time_column(page.per), page.time_batches
    axis = f"time per {page.per} / dense"
    yield Quantity("time", axis, timed, time, f"time_over_{DENSE}", unit, 1 / scale, ["time"])
    work = ("flops_per_step", "flops_over_dense", "GFLOP", 1e9, ["time", *TARGETS])
    yield Quantity("FLOPs", "GFLOP per step", timed or page.batches, *work)
    for target in _targets(page, table):
        axis = f"peak predicted for {'CUDA' if target == 'cuda' else 'a CPU'}, MiB"
        peak = (f"{target}_peak_mib", f"{target}_over_{DENSE}", "MiB", 1.0, [target], target == page.kind == "cuda")
        yield Quantity("memory", axis, page.memory_batches(target), *peak)


def _value(line: Mapping[str, Any], column: str, scale: float, varies: bool) -> Estimate | None:
    """Return a column with its bounds if it ``varies``, of which ``scale`` are one of the axis's unit."""
    if varies:
        return estimate(line, column)
    return None if pd.isna(line[column]) or not line[column] else Estimate.exact(line[column] / scale)


def _curve(page: Fig12Page, table: pd.DataFrame, arm: str, quantity: Quantity, footnotes: Footnotes) -> Curve:
    """Return the curve of an arm; times are drawn as ratios to dense's."""
    values: dict[float, Estimate] = {}
    over_dense: dict[float, Estimate] = {}
    missing: dict[float, Reach | int] = {}
    varies = quantity.title == "time"
    for line in lines_of(table[table["arm"] == arm]):
        ratio = line["ratio"]
        over = _value(line, quantity.over_dense, 1.0, varies)
        value = over if varies else _value(line, quantity.column, quantity.scale, varies)
        if over is not None:
            over_dense[ratio] = over
        if value is not None:
            values[ratio] = value
        else:
            reach = page.reach(arm, line["batch_size"], ratio)
            missing[ratio] = reach or _why(line, quantity.reasons, footnotes)
    sizes = table.loc[(table["arm"] == arm) & table["allocated_mib"].notna(), ["ratio", "allocated_mib"]]
    allocated = dict(zip(sizes["ratio"], sizes["allocated_mib"], strict=True)) if quantity.is_measured else {}
    return Curve(arm, values, over_dense, missing, allocated)


def _why(line: Mapping[str, Any], reasons: Sequence[str], footnotes: Footnotes) -> int:
    """Return the number of the reason why a line has no value."""
    found = [(line[f"{kind}_status"], line[f"{kind}_message"]) for kind in reasons]
    status, message = next((one for one in found if has_failed(one[0])), found[0])
    return footnotes.number(*(("timed without dense to compare with",) if status == "ok" else (status, message)))


def _panel(page: Fig12Page, table: pd.DataFrame, quantity: Quantity, batch: int, footnotes: Footnotes) -> RatioPanel:
    here = table[table["batch_size"] == batch].sort_values("ratio", kind="stable")
    jobs, varies = here[here["arm"] == DENSE], quantity.title == "time"
    known, allocated = jobs[quantity.column].dropna(), jobs["allocated_mib"].dropna()
    middle = float(known.median()) if len(known) else 0.0
    dense = Estimate.exact(middle / quantity.scale) if middle else None
    if dense and varies:
        dense = Estimate(1.0, known.min() / middle, known.max() / middle, len(known), kind="range")
    return RatioPanel(
        title=f"{quantity.title}, batch {batch}",
        axis=quantity.axis,
        curves=tuple(_curve(page, here, arm, quantity, footnotes) for arm in page.arms),
        dense=dense,
        dense_words=f"{significant(middle / quantity.scale, 3 if varies else 4)} {quantity.unit}",
        dense_allocated=float(allocated.iloc[0]) if quantity.is_measured and len(allocated) else None,
    )


def draw(page: Fig12Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw a panel per quantity and batch size; quantities share a row of panels where all of theirs fit."""
    footnotes = Footnotes()
    rows: list[list[RatioPanel]] = []
    for quantity in _quantities(page, table):
        own = [_panel(page, table, quantity, batch, footnotes) for batch in quantity.batches]
        if rows and len(rows[-1]) + len(own) <= _COLUMNS:
            rows[-1] += own
        else:
            rows += [own[start : start + _COLUMNS] for start in range(0, len(own), _COLUMNS)]
    panels = [panel for row in rows for panel in row]
    titles = [[panel.title for panel in row] for row in rows]
    handles = legend(panels, page.arms)
    paper, axes = panel_page(caption, titles, _PANEL_HEIGHT, handles, _LEGEND_COLUMNS, footnotes.lines())
    for one, panel in zip(itertools.chain(*axes), panels, strict=True):
        draw_panel(one, panel, page.arms, page.ratios())
    return paper.finish()


#: Fewer ratios say nothing about a curve; the smallest one must come this near to 1.
_FEWEST, _NEAR = 4, 2.0

#: How much faster than dense still counts as no faster, near the limit.
MARGIN = 0.1


def _speed_ups(page: Fig12Page, batch: int, rivals: Sequence[str]) -> Quotients:
    """Return by ratio the time of the rival that takes least over CoMERA's; beside dense only of CoMERA's size."""
    found = {}
    for ratio in page.ratios(batch):
        ours = (COMERA, batch, ratio)
        fitting = [(arm, batch, ratio) for arm in rivals if arm == DENSE or page.same_size((arm, batch, ratio), ours)]
        over = [time_ratio(page.timed.get(cell), page.timed.get(ours)) for cell in fitting]
        known = [one for one in over if one is not None]
        if known:
            found[ratio] = min(known, key=lambda one: one.value)
    return found


def _finding(page: Fig12Page, batch: int, curve: Quotients, rivals: Sequence[str]) -> Finding:
    graph = "on" if page.toggles.cuda_graph else "off"
    where = "on a CPU" if page.kind == "cpu" else f"on CUDA, CUDA Graph {graph}"
    numbers = (
        f"{with_bounds(one, unit='x')} at ratio {ratio:g}{', unpaired' * unpaired(one)}"
        for ratio, one in sorted(curve.items())
    )
    return Finding(f"{' or '.join(rivals)} / comera, time, batch {batch}, {where}", ", ".join(numbers))


def _grows_and_vanishes(curve: Quotients) -> tuple[bool, bool, str]:
    """Return whether the speed-up grows and whether it vanishes, with words for what it does instead."""
    spans = {ratio: one.span for ratio, one in sorted(curve.items())}
    first, last = min(spans), max(spans)
    falls = [(left, right) for left, right in itertools.combinations(spans, 2) if spans[left][0] > spans[right][1]]
    grows = spans[last][0] > spans[first][1] and not falls
    (low, high), value = spans[first], curve[first].value
    vanishes = low <= 1 + MARGIN
    words = []
    if falls:
        words.append("surely lower at ratio {1:g} than at {0:g}".format(*falls[0]))
    elif not grows:
        words.append(f"not surely higher at ratio {last:g} than at {first:g}")
    if not vanishes:
        words.append(f"still {value:.3g}x at ratio {first:g}")
    elif low > 1:
        words.append(f"within the margin of {MARGIN:.0%} at ratio {first:g}, {value:.3g}x")
    elif high < 1:
        words.append(f"slower than dense at ratio {first:g}, {value:.3g}x")
    return grows, vanishes, " and ".join(words)


def _judge(page: Fig12Page, rivals: Sequence[str]) -> Judgement:
    """Judge whether the speed-up over the fastest of these rivals grows with the ratio and vanishes toward 1."""
    curves = {batch: curve for batch in page.time_batches if (curve := _speed_ups(page, batch, rivals))}
    found = [_finding(page, batch, curve, rivals) for batch, curve in curves.items()]
    usable = {
        batch: _grows_and_vanishes(curve)
        for batch, curve in curves.items()
        if all(one.low is not None and one.high is not None for one in curve.values())
        and len(curve) >= _FEWEST
        and min(curve) <= _NEAR
    }
    too_few = f"It takes {_FEWEST} ratios with bounds at one batch size, the smallest at most {_NEAR:g}."
    reasons = (
        ON_CPU if page.kind == "cpu" and page.timed else "",
        "" if curves else "No pair of finished cells to compare.",
        not_fp32(page),
        not_full_size(page),
        "" if usable else too_few,
    )
    if untested := undecided(reasons, found):
        return untested
    grows = [batch for batch, (grown, _, _) in usable.items() if grown]
    vanishes = [batch for batch, (_, vanished, _) in usable.items() if vanished]
    why = f"It grows at {len(grows)} of {len(usable)} batch sizes and vanishes at {len(vanishes)}"
    why += "".join(f"; batch {batch}: {words}" for batch, (_, _, words) in usable.items() if words)
    if missing := [batch for batch in page.time_batches if batch not in usable]:
        why += f"; too few ratios at batch {', '.join(map(str, missing))}"
    whole = len(grows) == len(vanishes) == len(page.time_batches)
    return Judgement("reproduced" if whole else "partly" if grows else "not reproduced", f"{why}.", found)


def _judge_as_published(_: Claim, page: Fig12Page, __: Any) -> Judgement:
    return _judge(page, (DENSE,))


def _judge_fairly(_: Claim, page: Fig12Page, __: Any) -> Judgement:
    sized = {
        cell[0] for cell in page.timed if cell[0] not in (COMERA, DENSE) and page.same_size(cell, (COMERA, *cell[1:]))
    }
    if not sized:
        return Judgement("not tested here", "low_rank of equal size is not recorded.")
    return _judge(page, (DENSE, *sorted(sized)))


ARTIFACT = Artifact(
    name="fig12",
    heading="Fig. 12: compression of the whole model",
    summary="time per epoch, peak memory and FLOPs against the compression of the whole model, beside dense; "
    "an image per device, precision and toggles",
    experiments=EXPERIMENTS,
    made_by="make sweep-ratios",
    order=60,
    select=select,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
    rules=(
        Rule(
            "ratio-monotone",
            "epoch time of dense / comera, by ratio: surely higher at the largest than at the smallest, nowhere surely "
            "falling, and at the smallest not surely > 1 + tolerance",
            device="cuda",
            tolerance=MARGIN,
            unit="x",
            judge=_judge_as_published,
            fair=_judge_fairly,
            fair_quantity="the same of the faster of dense and low_rank of the same ratio / comera",
        ),
    ),
)
