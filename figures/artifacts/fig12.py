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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure

from bench.core.intervals import Estimate
from bench.core.record import Record
from figures.artifact import Artifact
from figures.claims.claims import Finding, Judgement, undecided
from figures.claims.ratio import ON_CPU, not_fp32, not_full_size
from figures.claims.rule import Rule
from figures.columns import across, estimate, frame, readable, time_column, unit_of
from figures.page import bars
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes
from figures.page.layout import panel_page
from figures.page.ratio_panels import Curve, RatioPanel, draw_panel, legend
from figures.records import cells
from figures.records.cells import TARGETS, quotient
from figures.records.crossover import Quotients
from figures.records.missing import Missing, RatioLimit, limit_of
from figures.records.select import COMERA, DENSE, RANK_RIVAL, SIZE_RIVAL, Toggles, by_arm, by_device, method_settings
from figures.records.sizes import FULL_SIZE_PARAMETERS
from figures.records.time_values import time_ratio
from figures.text import bounds, significant, unpaired, with_bounds

EXPERIMENTS = ("ratios", "ratios_memory")

#: Arm, batch size, ratio; of a timed dense record the ratio that it was timed beside.
Cell = tuple[str, int, float]

_PANEL_HEIGHT, _COLUMNS, _LEGEND_COLUMNS = 2.1, 4, 4


@dataclass(frozen=True, kw_only=True)
class Fig12Page(cells.TimesAndMemory):
    experiments: ClassVar = EXPERIMENTS
    toggles: Toggles

    @property
    def cells(self) -> list[Cell]:
        return [*self.timed, *(cell for _, cell in self.predicted)]

    @property
    def arms(self) -> list[str]:
        """Those that have a ratio, in drawing order."""
        found = {arm for arm, _, _ in self.cells} - {DENSE}
        return sorted(found, key=by_arm)

    @property
    def time_batches(self) -> list[int]:
        return sorted({batch for _, batch, _ in self.timed})

    def memory_batches(self, target: str) -> list[int]:
        return sorted({batch for goal, (_, batch, _) in self.predicted if goal == target})

    def ratios(self, batch: int) -> list[float]:
        """The ratios of a batch size that any arm has a record for."""
        return sorted({ratio for arm, size, ratio in self.cells if size == batch and arm != DENSE})


#: The columns of CoMERA's time over that of what it is compared with beside dense.
_OVER_RIVALS = {SIZE_RIVAL: "time_over_low_rank", RANK_RIVAL: "time_over_low_rank_of_equal_rank"}


def _cell(record: Record) -> Cell | None:
    """None where the record is no part of a sweep over ratios."""
    if record.arm == DENSE:
        ratio = 1.0 if record.measure == "predict" else record.ratio
    else:
        settings = method_settings(record)
        ratio = record.ratio if "ratio" in settings or "ranks_of_ratio" in settings else None
    return None if ratio is None else (record.arm, record.batch_size, ratio)


_SELECT = cells.Select(
    _cell,
    memory_cell=lambda record: (DENSE, record.batch_size, 1.0) if record.arm == DENSE else _cell(record),
    same_per_arm=lambda record: {**method_settings(record), "ratio": None, "ranks_of_ratio": None},
)


def select(records: Sequence[Record]) -> list[Fig12Page]:
    """A selection per device, precision and toggles; a prediction belongs to every page of its precision."""
    pages = []
    for device, mine in by_device(records):
        timed = {record.precision for record in mine if record.measure == "run"}
        shown = [one for one in mine if one.measure == "run" or one.precision not in timed]
        found = {Toggles.of(one) for one in shown if one.measure in ("run", "predict")}
        toggles = sorted(found, key=lambda one: one.rank)
        pages += [_SELECT(one.among(mine), Fig12Page, **device, **one.page) for one in toggles]
    return [page for page in pages if page.shown]


def table(page: Fig12Page) -> pd.DataFrame:
    """Return a line per batch size, ratio and arm, and before them one per job that timed dense.

    Times are over those of dense in the same job, peaks and FLOPs over those of the one dense model.
    """
    lines = []
    for batch in sorted({batch for _, batch, _ in page.cells}):
        jobs = sorted(ratio for arm, size, ratio in page.timed if (arm, size) == (DENSE, batch))
        dense = [page.timed[DENSE, batch, ratio] for ratio in jobs]
        whole = _known(page, (DENSE, batch, 1.0), dense)
        lines += [_line(page, (DENSE, batch, 1.0), beside, whole, {}) for beside in jobs or [1.0]]
        for ratio, arm in itertools.product(page.ratios(batch), page.arms):
            run = page.timed.get((arm, batch, ratio))
            known = _known(page, (arm, batch, ratio), [run] if run else [])
            lines.append(_line(page, (arm, batch, ratio), ratio, known, whole))
    return frame(lines)


def _known(page: Fig12Page, cell: Cell, runs: Sequence[Record]) -> dict[str, Any]:
    """Return FLOPs per step and parameters, from the first record that has them, and the allocator's peaks."""
    plans = (page.predicted.get((target, cell)) for target in TARGETS)
    known = (record for record in [*runs, *plans] if record is not None and record.flops_per_step is not None)
    record = next(known, None)
    measured = next((one for one in runs if one.peak_memory_allocated_mib is not None), None)
    return {
        "flops_per_step": getattr(record, "flops_per_step", None),
        "parameters": getattr(record, "parameters", None),
        **{f"{name}_mib": getattr(measured, f"peak_memory_{name}_mib", None) for name in ("allocated", "reserved")},
    }


def _line(
    page: Fig12Page, cell: Cell, beside: float, known: Mapping[str, Any], whole: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the line of a cell in the job of the ratio ``beside``; ``whole`` is known of dense, empty for itself."""
    arm, batch, ratio = cell
    run = page.timed.get((arm, batch, beside))
    time, memory = page.no_time(DENSE), dict[str, Any]()
    if batch in page.time_batches:
        time = page.time_fields((arm, batch, beside), (DENSE, batch, beside), DENSE)
    for target in TARGETS:
        asked = batch in page.memory_batches(target)
        memory |= page.memory_fields(target, cell, (DENSE, batch, 1.0), DENSE, asked)
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
        "reach": str(_limit(time | memory) or ""),
        **memory,
        "allocated_mib": known["allocated_mib"],
        "reserved_mib": known["reserved_mib"],
        "older_code": page.is_older(cell, TARGETS) or bool(page.older(run)),
    }


def _limit(line: Mapping[str, Any]) -> RatioLimit | None:
    """Return the limit of the method's ratios, where the ratio of a line lies beyond it."""
    return next(filter(None, (limit_of(line[f"{kind}_message"]) for kind in ("time", *TARGETS))), None)


def _once(table: pd.DataFrame, per: str) -> pd.DataFrame:
    """Return the table with one line of dense per batch size, whose time is the median over its jobs."""
    dense, time = table[table["arm"] == DENSE], time_column(per)
    median = dense.groupby("batch_size")[time].transform("median")
    timed = dense.assign(**{time: median, "time_status": dense["time_status"].mask(median.notna(), "ok")})
    return pd.concat([timed.drop_duplicates("batch_size"), table[table["arm"] != DENSE]]).sort_index()


def shown(page: Fig12Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm and ratio, its time and peak memory by batch size; limits stand in place of failures."""
    models = _once(table, page.per).sort_values("ratio", kind="stable", ignore_index=True)
    models = models.assign(arm=[_name(*one) for one in zip(models["arm"], models["ratio"], strict=True)])
    for kind in ("time", *TARGETS):
        models[f"{kind}_status"] = models["reach"].where(models["reach"] != "", models[f"{kind}_status"])
    values = {time_column(page.per): f"time_over_{DENSE}"}
    values |= {f"{target}_peak_mib": f"{target}_over_{DENSE}" for target in _targets(page, table)}
    found = across(models, "arm", "batch_size", values)
    sizes = readable(models.drop_duplicates("arm"), ["size_ratio"])
    found.insert(1, sizes.columns[0], sizes.iloc[:, 0].to_numpy())
    return found


def _name(arm: str, ratio: float) -> str:
    return arm if arm == DENSE else f"{arm}, ratio {ratio:g}"


def _targets(page: Fig12Page, table: pd.DataFrame) -> list[str]:
    """Return the devices that any memory is predicted for, this kind first."""
    ordered = sorted(TARGETS, key=lambda target: target != page.kind)
    return [target for target in ordered if table[f"{target}_peak_mib"].notna().any()]


def about(_: Fig12Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return the dense model's parameters, what is out of which arm's reach, and what failed with its ratio."""
    count = table.loc[table["arm"] == DENSE, "parameters"].dropna()
    out = table[table["reach"] != ""]
    within = table[table["reach"] == ""]
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


@dataclass(frozen=True)
class Quantity:
    """A column that is drawn against the ratio.

    Args:
        title: of its panels.
        axis: what stands on the axis.
        batches: that there is a panel for.
        column: what is drawn, in the table's unit.
        over_dense: the column of its ratio to dense's.
        unit: in which dense's value is written; so many of the table's unit are one of it (``scale``).
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

    @property
    def is_time(self) -> bool:
        """Whether it varies, and so is drawn as a ratio to dense's in the same job."""
        return self.title == "time"


def _quantities(page: Fig12Page, table: pd.DataFrame) -> list[Quantity]:
    """Time, work, then memory, for this kind of device first."""
    unit, scale = unit_of(table, page.per)
    time, batches = time_column(page.per), sorted({batch for _, batch, _ in page.cells})
    over = f"time_over_{DENSE}"
    found = [
        Quantity("time", f"time per {page.per} / dense", page.time_batches, time, over, unit, 1 / scale, ["time"]),
        Quantity(
            "FLOPs",
            "GFLOP per step",
            page.time_batches or batches,
            "flops_per_step",
            "flops_over_dense",
            "GFLOP",
            1e9,
            ["time", *TARGETS],
        ),
    ]
    for target in _targets(page, table):
        axis, measured = f"peak predicted for {_DEVICES[target]}, MiB", target == page.kind == "cuda"
        column, over = f"{target}_peak_mib", f"{target}_over_{DENSE}"
        at = page.memory_batches(target)
        found.append(Quantity("memory", axis, at, column, over, "MiB", 1.0, [target], measured))
    return found


_DEVICES = {"cuda": "CUDA", "cpu": "a CPU"}


def _why(line: bars.Line, quantity: Quantity, footnotes: Footnotes) -> RatioLimit | int:
    """Return the limit that a ratio lies beyond, or the number of the reason why a line has no value."""
    if limit := _limit(line):
        return limit
    cells = [Missing(line[f"{kind}_status"], line[f"{kind}_message"]) for kind in quantity.reasons]
    cell = next((one for one in cells if one.failed), cells[0])
    return footnotes.number("timed without dense to compare with" if cell.status == "ok" else cell.in_full)


def _exact(line: bars.Line, column: str, scale: float = 1.0) -> Estimate | None:
    """Return a number that does not vary, of which ``scale`` are one of the axis's unit; None where there is none."""
    return None if pd.isna(line[column]) or not line[column] else Estimate.exact(line[column] / scale)


def _curve(lines: Sequence[bars.Line], arm: str, quantity: Quantity, footnotes: Footnotes) -> Curve:
    """Return the curve of an arm from its lines; times are drawn as ratios to dense's."""
    values: dict[float, Estimate] = {}
    over_dense: dict[float, Estimate] = {}
    missing: dict[float, RatioLimit | int] = {}
    for line in lines:
        ratio = line["ratio"]
        over = estimate(line, quantity.over_dense) if quantity.is_time else _exact(line, quantity.over_dense)
        value = over if quantity.is_time else _exact(line, quantity.column, quantity.scale)
        if over is not None:
            over_dense[ratio] = over
        if value is not None:
            values[ratio] = value
        else:
            missing[ratio] = _why(line, quantity, footnotes)
    sizes = {line["ratio"]: line["allocated_mib"] for line in lines if quantity.is_measured}
    return Curve(arm, values, over_dense, missing, {ratio: size for ratio, size in sizes.items() if pd.notna(size)})


def _panel(page: Fig12Page, table: pd.DataFrame, quantity: Quantity, batch: int, footnotes: Footnotes) -> RatioPanel:
    here = table[table["batch_size"] == batch].sort_values("ratio", kind="stable")
    jobs = here[here["arm"] == DENSE]
    known, allocated = jobs[quantity.column].dropna(), jobs["allocated_mib"].dropna()
    middle = float(known.median()) if len(known) else 0.0
    dense = Estimate.exact(middle / quantity.scale) if middle else None
    if dense and quantity.is_time:
        dense = Estimate(1.0, known.min() / middle, known.max() / middle, len(known), kind="range")
    return RatioPanel(
        title=f"{quantity.title}, batch {batch}",
        axis=quantity.axis,
        curves=tuple(_curve(bars.lines(here[here["arm"] == arm]), arm, quantity, footnotes) for arm in page.arms),
        dense=dense,
        dense_words=f"{significant(middle / quantity.scale, 3 if quantity.is_time else 4)} {quantity.unit}",
        dense_allocated=float(allocated.iloc[0]) if quantity.is_measured and len(allocated) else None,
    )


def _lines(panels: Sequence[Sequence[RatioPanel]]) -> list[list[RatioPanel]]:
    """The panels of each quantity as rows of the page; quantities share a row where all of their panels fit."""
    lines: list[list[RatioPanel]] = []
    for of_quantity in panels:
        if lines and len(lines[-1]) + len(of_quantity) <= _COLUMNS:
            lines[-1] += of_quantity
        else:
            lines += [list(of_quantity[start : start + _COLUMNS]) for start in range(0, len(of_quantity), _COLUMNS)]
    return lines


def draw(page: Fig12Page, table: pd.DataFrame, caption: Caption) -> Figure:
    footnotes = Footnotes()
    quantities = _quantities(page, table)
    lines = _lines([[_panel(page, table, one, batch, footnotes) for batch in one.batches] for one in quantities])
    panels = [panel for line in lines for panel in line]
    titles = [[panel.title for panel in line] for line in lines]
    foot = (*footnotes.lines(), *caption.of_picture, *caption.notes)
    handles = legend(panels, page.arms)
    paper, axes = panel_page(caption.title, caption.facts, titles, foot, _PANEL_HEIGHT, handles, _LEGEND_COLUMNS)
    ratios = sorted({ratio for arm, _, ratio in page.cells if arm != DENSE})
    for one, panel in zip((one for line in axes for one in line), panels, strict=True):
        draw_panel(one, panel, page.arms, ratios)
    return paper.finish()


#: Fewer ratios say nothing about a curve; the smallest one must come this near to 1.
_FEWEST, _NEAR = 4, 2.0

#: How much faster than dense still counts as no faster, near the limit.
MARGIN = 0.1


def _speed_ups(page: Fig12Page, batch: int, rivals: Sequence[str]) -> Quotients:
    """By ratio, the time of the rival that takes least over CoMERA's; beside dense only of CoMERA's size."""
    found = {}
    for ratio in page.ratios(batch):
        ours = page.timed.get((COMERA, batch, ratio))
        fitting = [arm for arm in rivals if arm == DENSE or _same_size(page, arm, batch, ratio)]
        over = [one for arm in fitting if (one := time_ratio(page.timed.get((arm, batch, ratio)), ours)) is not None]
        if over:
            found[ratio] = min(over, key=lambda one: one.value)
    return found


def _same_size(page: Fig12Page, arm: str, batch: int, ratio: float) -> bool:
    return page.same_size((arm, batch, ratio), (COMERA, batch, ratio))


def _finding(page: Fig12Page, batch: int, curve: Quotients, rivals: Sequence[str]) -> Finding:
    graph = "on" if page.toggles.cuda_graph else "off"
    where = "on a CPU" if page.kind == "cpu" else f"on CUDA, CUDA Graph {graph}"
    numbers = (
        f"{with_bounds(one, unit='x')} at ratio {ratio:g}{', unpaired' * unpaired(one)}"
        for ratio, one in sorted(curve.items())
    )
    return Finding(f"{' or '.join(rivals)} / comera, time, batch {batch}, {where}", ", ".join(numbers))


def _surely_above(one: Estimate, other: Estimate) -> bool:
    assert one.low is not None
    assert other.high is not None
    return one.low > other.high


def _grows_and_vanishes(curve: Quotients) -> tuple[bool, bool, str]:
    """Whether the speed-up grows and whether it vanishes, with words for what it does instead."""
    ratios = sorted(curve)
    first, last = curve[ratios[0]], curve[ratios[-1]]
    falls = [(left, right) for left, right in combinations(ratios, 2) if _surely_above(curve[left], curve[right])]
    grows = _surely_above(last, first) and not falls
    assert first.low is not None
    vanishes = first.low <= 1 + MARGIN
    words = []
    if falls:
        left, right = falls[0]
        words.append(f"surely lower at ratio {right:g} than at {left:g}")
    elif not grows:
        words.append(f"not surely higher at ratio {ratios[-1]:g} than at {ratios[0]:g}")
    if not vanishes:
        words.append(f"still {first.value:.3g}x at ratio {ratios[0]:g}")
    elif first.low > 1:
        words.append(f"within the margin of {MARGIN:.0%} at ratio {ratios[0]:g}, {first.value:.3g}x")
    elif first.high is not None and first.high < 1:
        words.append(f"slower than dense at ratio {ratios[0]:g}, {first.value:.3g}x")
    return grows, vanishes, " and ".join(words)


def _usable(curve: Quotients) -> bool:
    wide = {ratio: one for ratio, one in curve.items() if one.low is not None and one.high is not None}
    return len(wide) == len(curve) >= _FEWEST and min(curve) <= _NEAR


def _judge(page: Fig12Page, rivals: Sequence[str]) -> Judgement:
    """Whether the speed-up over the fastest of these rivals grows with the ratio and vanishes toward 1."""
    curves = {batch: curve for batch in page.time_batches if (curve := _speed_ups(page, batch, rivals))}
    found = [_finding(page, batch, curve, rivals) for batch, curve in curves.items()]
    usable = {batch: _grows_and_vanishes(curve) for batch, curve in curves.items() if _usable(curve)}
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


def _judge_fairly(page: Fig12Page) -> Judgement:
    sized = {
        arm for arm, batch, ratio in page.timed if arm not in (COMERA, DENSE) and _same_size(page, arm, batch, ratio)
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
            judge=lambda _, page, __: _judge(page, (DENSE,)),
            fair=lambda _, page, __: _judge_fairly(page),
            fair_quantity="the same of the faster of dense and low_rank of the same ratio / comera",
        ),
    ),
)
