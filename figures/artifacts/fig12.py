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
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, LogLocator

from bench.core.intervals import Estimate
from figures import frame
from figures.arms import COMERA, DENSE, RANK_RIVAL, SIZE_RIVAL, Toggles, by_arm
from figures.artifact import Artifact
from figures.artifacts.fig1 import among
from figures.claims.claims import Claim, Finding, Judgement, undecided
from figures.claims.ratio import ON_CPU, not_fp32, not_full_size
from figures.claims.rule import Rule
from figures.columns import across, bounds_kinds, readable, time_column, unit_of
from figures.draw.captions import Caption, beside
from figures.draw.footnotes import Footnotes, has_failed
from figures.draw.layout import INNER, panel_page
from figures.draw.style import DENSE_STROKE, FAINT, INK, note, number_axis, stroke_handle, strokes, whisker_handles
from figures.frame import Records
from figures.stats import cells
from figures.stats.cells import TARGETS
from figures.stats.reach import reach_of
from figures.stats.sizes import FULL_SIZE_PARAMETERS, equal_size
from figures.stats.time_values import ratio_columns, time_ratio
from figures.text import significant, unpaired, with_bounds

EXPERIMENTS = ("ratios", "ratios_memory")

#: The columns of a cell of times and of memory; the ratio of dense is 1, and a timed dense record is beside its job's.
CELL, MEMORY_CELL = ("arm", "batch_size", "beside"), ("arm", "batch_size", "ratio")


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
    def time_batches(self) -> list[int]:
        return sorted(set(self.runs["batch_size"]))

    def memory_batches(self, target: str) -> list[int]:
        return sorted(set(self.plans.loc[self.plans["predicted_for"] == target, "batch_size"]))


def select(records: Records) -> list[Fig12Page]:
    """Return a page per device, precision and toggles; a prediction belongs to every page of its precision."""
    pages = []
    for device, df in frame.by_device(records):
        dense, runs = df["arm"] == DENSE, df["measure"] == "run"
        swept = frame.column(df, "method.ratio").notna() | frame.column(df, "method.ranks_of_ratio").notna()
        ratio = df["ratio"].where(dense | swept)
        df = df.assign(beside=ratio.where(runs | ~dense, 1.0), ratio=ratio.where(~dense, 1.0))
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
    batches = pd.DataFrame({"batch_size": sorted(page.found("batch_size"))})
    timed = page.runs.loc[page.runs["arm"] == DENSE, ["batch_size", "beside"]]
    jobs = batches.merge(timed, "left").fillna({"beside": 1.0}).assign(arm=DENSE, ratio=1.0).sort_values("beside")
    ratios = page.df.loc[page.df["arm"] != DENSE, ["batch_size", "ratio"]].drop_duplicates().sort_values("ratio")
    models = ratios.merge(pd.DataFrame({"arm": page.arms}), "cross").assign(beside=lambda one: one["ratio"])
    grid = pd.concat([jobs, models]).sort_values("batch_size", kind="stable", ignore_index=True)
    about: dict[str, Any] = {"device": page.device, **vars(page.toggles)}
    grid = grid.assign(**about)
    dense: dict[str, Any] = {"arm": DENSE, "ratio": 1.0}
    is_dense = grid["arm"] == DENSE

    plans = page.plans.sort_values("predicted_for", ascending=False)  # for CUDA first
    counted = pd.concat([page.runs.sort_values("beside"), plans]).dropna(subset="flops_per_step")
    counted = counted.drop_duplicates(list(MEMORY_CELL))
    known, whole = (
        cells.at(lines, counted, MEMORY_CELL, ["parameters", "flops_per_step"]).apply(cells.numbers)
        for lines in (grid, grid.assign(**dense))
    )
    records = page.timed(grid, "record")["record"]
    plans_of = [frame.known(page.predicted(grid, target, "record")["record"]) for target in TARGETS]
    reach = [str(reach_of(*found) or "") for found in zip(frame.known(records), *plans_of, strict=True)]
    ours = records.where(grid["arm"] == COMERA)
    over = {
        name: ratio_columns(name, ours, page.timed(grid.assign(arm=rival), "record")["record"]).drop(columns="pairing")
        for name, rival in (
            ("time_over_low_rank", SIZE_RIVAL),
            ("time_over_low_rank_of_equal_rank", RANK_RIVAL),
        )
    }
    measured = page.measured(grid)
    peaks = ["allocated_mib", "reserved_mib"]  # dense's are those of its first job that has them
    measured[peaks] = measured[peaks].where(
        ~is_dense, measured[peaks].groupby([is_dense, grid["batch_size"]]).transform("first")
    )
    parts = [
        grid[["device", "precision", "cuda_graph", "compile", *MEMORY_CELL, "beside"]],
        (whole["parameters"] / known["parameters"]).mask(is_dense).rename("size_ratio"),
        known["parameters"],
        page.times(grid, DENSE, {"arm": DENSE}, grid["batch_size"].isin(page.time_batches)),
        *over.values(),
        known["flops_per_step"],
        (known["flops_per_step"] / whole["flops_per_step"]).mask(is_dense).rename("flops_over_dense"),
        pd.Series(reach, name="reach"),
        *(
            page.memory(grid, target, DENSE, dense, grid["batch_size"].isin(page.memory_batches(target)))
            for target in TARGETS
        ),
        measured,
    ]
    return pd.concat(parts, axis=1)


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
    """A quantity that is drawn against the ratio; ``time`` as a ratio to dense's in the same job, with bounds."""

    title: str
    axis: str
    batches: Sequence[int]  # a panel for each
    column: str  # what is drawn; its ratio to dense's is in the column {over}_over_dense
    over: str
    unit: str  # in which dense's value is written
    scale: float  # how many of the table's unit are one of it
    reasons: Sequence[str]  # whose status may say why a value is missing, in this order


def _points(page: Fig12Page, here: pd.DataFrame, quantity: Quantity, footnotes: Footnotes) -> pd.DataFrame:
    """Return the lines of arms with ``y``, ``low`` and ``high`` as drawn, or the number of the reason ``why`` not."""
    lines = here[here["arm"] != DENSE].sort_values("ratio", kind="stable")
    lines = lines.sort_values("arm", key=lambda arms: arms.map(page.arms.index), kind="stable")
    lines["over"] = lines[f"{quantity.over}_over_dense"]
    if quantity.title == "time":
        lines = lines.assign(y=lines["over"], low=lines["time_over_dense_low"], high=lines["time_over_dense_high"])
    else:
        lines = lines.assign(y=lines[quantity.column].replace(0, np.nan) / quantity.scale, low=np.nan, high=np.nan)
    why = {}
    for place, line in lines[lines["y"].isna() & (lines["reach"] == "")].iterrows():
        found = [(line[f"{kind}_status"], line[f"{kind}_message"]) for kind in quantity.reasons]
        reason = next((one for one in found if has_failed(one[0])), found[0])
        why[place] = footnotes.number(*(("timed without dense to compare with",) if reason[0] == "ok" else reason))
    return lines.assign(why=pd.Series(why, dtype="float64"))


def crossings(over: pd.Series) -> list[float]:
    """Return the ratios at which a curve passes 1, interpolated between neighbours on logarithmic axes.

    Args:
        over: the curve, by ratio.

    Example:
        >>> crossings(pd.Series([2.0, 0.5], index=[1.5, 6.0]))
        [3.0]
    """
    found = []
    for (left, start), (right, end) in itertools.pairwise(np.log(over.dropna()).items()):
        if (start < 0) != (end < 0):
            found.append(round(left * (right / left) ** (start / (start - end)), 12))
    return found


_COLUMNS, _HEIGHT = 4, 2.1  # panels of a row, and their height in inches
_FOOT = 0.085  # of a panel's height: a line at its foot, which says why values of an arm are missing
_RING: dict[str, Any] = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "color": INK, "linestyle": ""}
_CROSS: dict[str, Any] = {"marker": "x", "markersize": 4.5, "markeredgewidth": 1.2, "linestyle": ""}
_ALLOCATED: dict[str, Any] = {"marker": "+", "markersize": 6, "linestyle": ""}

#: Where a curve's ratio is written beside its ring, by the curve's number: where falling curves and other ratios leave
#: room. A shift in points, and what of the text is put there.
_BESIDE_RING = (((4.5, 3.5), "left", "bottom"), ((-4.5, -3.5), "right", "top"), ((4.5, -3.5), "left", "top"))


def draw(page: Fig12Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw a panel per quantity and batch size; quantities share a row of panels where all of theirs fit."""
    (unit, scale), timed = unit_of(table, page.per), page.time_batches
    batches, column = timed or sorted(page.found("batch_size")), time_column(page.per)
    quantities = [
        Quantity("time", f"time per {page.per} / dense", timed, column, "time", unit, 1 / scale, ["time"]),
        Quantity("FLOPs", "GFLOP per step", batches, "flops_per_step", "flops", "GFLOP", 1e9, ["time", *TARGETS]),
    ]
    for target in _targets(page, table):
        axis = f"peak predicted for {'CUDA' if target == 'cuda' else 'a CPU'}, MiB"
        peak, of = f"{target}_peak_mib", page.memory_batches(target)
        quantities.append(Quantity("memory", axis, of, peak, target, "MiB", 1.0, [target]))

    footnotes, rows = Footnotes(), list[list[Any]]()
    for quantity in quantities:
        own = []
        for batch in quantity.batches:
            here = table[table["batch_size"] == batch]
            if not quantity.over == page.kind == "cuda":  # what the allocator's peaks can stand beside
                here = here.assign(allocated_mib=np.nan)
            own.append((quantity, batch, here[here["arm"] == DENSE], _points(page, here, quantity, footnotes)))
        if rows and len(rows[-1]) + len(own) <= _COLUMNS:
            rows[-1] += own
        else:
            rows += [own[start : start + _COLUMNS] for start in range(0, len(own), _COLUMNS)]

    titles = [[f"{quantity.title}, batch {batch}" for quantity, batch, *_ in row] for row in rows]
    panels = [panel for row in rows for panel in row]
    handles = _legend(page, table, panels)
    paper, axes = panel_page(caption, titles, _HEIGHT, handles, 4, footnotes.lines())
    ratios = sorted(set(page.df.loc[page.df["arm"] != DENSE, "ratio"]))
    for one, (quantity, _, dense, points) in zip(itertools.chain(*axes), panels, strict=True):
        _ratio_axis(one, ratios)
        _draw_panel(one, quantity, dense, points, page.arms)
    return paper.finish()


def _legend(page: Fig12Page, table: pd.DataFrame, panels: Sequence[Any]) -> list[Any]:
    """Return a handle for everything that the panels show."""
    handles: list[Any] = [stroke_handle(stroke, arm) for arm, stroke in strokes(page.arms).items()]
    handles.append(stroke_handle(DENSE_STROKE, "dense"))
    points = pd.concat([points for *_, points in panels])
    jobs = table[table["arm"] == DENSE].groupby("batch_size")[time_column(page.per)].nunique()
    if (jobs > 1).any():
        handles.append(Patch(facecolor=DENSE_STROKE.colour, alpha=0.18, label="dense, lowest to highest of its jobs"))
    handles += whisker_handles(bounds_kinds(table, f"time_over_{DENSE}"))
    curves = [curve.set_index("ratio")["over"] for *_, one in panels for _, curve in one.groupby("arm")]
    if any(map(crossings, curves)):
        handles.append(Line2D([], [], **_RING, label="crossover with dense: ratio beside it"))
    if points["y"].isna().any():
        handles.append(Line2D([], [], **_CROSS, color=INK, label="no value: out of reach, or reason below"))
    if points["allocated_mib"].notna().any():
        handles.append(Line2D([], [], **_ALLOCATED, color=INK, label="allocated, measured"))
    return handles


def _ratio_axis(axes: Any, ratios: Sequence[float]) -> None:
    """Scale the axis of ratios, which is the same for all panels, with a tick at each whose label finds room."""
    first, last = 1.0, max([2.0, *ratios])
    axes.set_xscale("log")
    axes.set_xlim(first / 1.12, last * 1.12)
    beside = 0.75  # inches of a panel that the labels beside its axes take at most
    width = INNER / axes.get_subplotspec().get_gridspec().ncols - beside
    inches = width / math.log(last / first * 1.12**2)
    ticks = [last]
    for ratio in sorted({first, *ratios} - {last}, key=lambda one: (one != first, -one)):
        apart = [(abs(math.log(ratio / tick)) * inches, len(f"{ratio:g}{tick:g}")) for tick in ticks]
        if all(found >= 0.05 + 0.03 * characters for found, characters in apart):
            ticks.append(ratio)
    number_axis(axes.xaxis, FixedLocator(sorted(ticks)), "g")
    axes.set_xlabel("dense parameters / parameters", fontsize=7.5)


def _draw_panel(axes: Any, quantity: Quantity, dense: pd.DataFrame, points: pd.DataFrame, arms: Sequence[str]) -> None:
    """Draw dense as a line, and a curve per arm with its crossovers; at the foot a line per arm for what is missing."""
    axes.set_ylabel(quantity.axis, fontsize=7.5, labelpad=2)
    axes.tick_params(axis="y", labelsize=7, pad=2)
    known, is_time = dense[quantity.column].dropna(), quantity.title == "time"
    middle = known.median() if len(known) else 0.0
    level, low, high = (
        (1.0, known.min() / middle, known.max() / middle) if is_time and middle else (middle / quantity.scale,) * 3
    )
    allocated = dense["allocated_mib"].dropna().head(1)
    missing = points[points["y"].isna()]

    drawn = pd.concat(
        [
            points[["low", "y", "high", "allocated_mib"]].stack(),
            allocated,
            pd.Series([low, level, high] if middle else []),
        ]
    ).dropna()
    if drawn.empty:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "nothing recorded", transform=axes.transAxes, ha="center", style="italic", color=FAINT)
    else:
        bottom, top = drawn.min(), drawn.max()
        bottom, top = min(bottom, top / 4), max(top, bottom * 4)
        lines = max((arms.index(arm) + 1 for arm in missing["arm"]), default=0)
        axes.set_yscale("log")
        axes.set_ylim(bottom / (top / bottom) ** (0.06 + 1.5 * _FOOT * lines), top * (top / bottom) ** 0.16)
        number_axis(axes.yaxis, LogLocator(10, subs=(1, 2, 5)))
    if middle:
        axes.axhspan(low, high, color=DENSE_STROKE.colour, alpha=0.18, linewidth=0)
        axes.axhline(level, color=DENSE_STROKE.colour, linewidth=1.2, zorder=2)
        axes.plot([1.0], [level], **DENSE_STROKE.dots, markersize=4.5, zorder=4)
        for size in allocated:
            axes.plot([1.0], [size], **_ALLOCATED, color=DENSE_STROKE.colour, zorder=4)
        words = f"dense: {significant(middle / quantity.scale, 3 if is_time else 4)} {quantity.unit}"
        axes.text(1.0, 0.98, words, transform=axes.transAxes, ha="right", va="top", fontsize=6.5)

    foot = axes.get_xaxis_transform()
    for number, arm in enumerate(arms):
        curve, stroke = points[points["arm"] == arm], strokes(arms)[arm]
        drawn = curve.dropna(subset="y")
        for line in drawn[drawn["low"] < drawn["high"]].to_dict("records"):
            axes.plot(
                [line["ratio"]] * 2,
                [line["low"], line["high"]],
                color=INK,
                linewidth=0.9,
                marker="_",
                markersize=4,
                zorder=3,
            )
        axes.plot(drawn["ratio"], drawn["y"], linewidth=1.3, markersize=4, zorder=4, **stroke.look)
        held = curve.dropna(subset="allocated_mib")
        axes.plot(held["ratio"], held["allocated_mib"], **_ALLOCATED, color=stroke.colour, zorder=4)
        shift, ha, va = _BESIDE_RING[min(number, len(_BESIDE_RING) - 1)]
        for ratio in crossings(curve.set_index("ratio")["over"]) if middle else ():
            axes.plot([ratio], [level], **_RING, zorder=5)
            look = {"ha": ha, "va": va, "fontsize": 7, "fontweight": "bold", "zorder": 6}
            note(axes, f"{ratio:.3g}", (ratio, level), shift, **look)

        height, lacking = (number + 0.5) * _FOOT, curve[curve["y"].isna()]
        axes.plot(lacking["ratio"], [height] * len(lacking), **_CROSS, color=stroke.colour, transform=foot, zorder=5)
        look = {"xycoords": foot, "va": "center", "fontsize": 6.5, "zorder": 5}
        for ratio, why in lacking.dropna(subset="why")[["ratio", "why"]].to_numpy():
            note(axes, f"({why:g})", (ratio, height), (5, 0), ha="left", **look)
        first, last = axes.get_xlim()
        for side, pick in (("most", min), ("least", max)):  # the limit is written at the first ratio beyond it
            beyond = lacking[lacking["reach"].str.contains(side)]
            if len(beyond):
                ratio = pick(beyond["ratio"])
                at_right = math.log(ratio / first) > 0.6 * math.log(last / first)
                words = f"{arm}: {beyond.loc[beyond['ratio'] == ratio, 'reach'].iloc[0]}"
                note(
                    axes, words, (ratio, height), (-5 if at_right else 5, 0), ha="right" if at_right else "left", **look
                )


#: Fewer ratios say nothing about a curve; the smallest one must come this near to 1.
_FEWEST, _NEAR = 4, 2.0

#: How much faster than dense still counts as no faster, near the limit.
MARGIN = 0.1


def _speed_ups(page: Fig12Page, batch: int, rivals: Sequence[str]) -> dict[float, Estimate]:
    """Return by ratio the time of the rival that takes least over CoMERA's; beside dense only of CoMERA's size."""
    counts, found = page.parameters("arm", "ratio"), {}
    for ratio, job in frame.groups(page.runs[page.runs["batch_size"] == batch], "beside"):
        records = dict(zip(job["arm"], job["record"], strict=True))
        size = counts.get((COMERA, ratio))
        fitting = [arm for arm in rivals if arm == DENSE or equal_size(counts.get((arm, ratio)), size)]
        over = [time_ratio(records.get(arm), records.get(COMERA)) for arm in fitting]
        if known := [one for one in over if one is not None]:
            found[ratio] = min(known, key=lambda one: one.value)
    return found


def _finding(page: Fig12Page, batch: int, curve: Mapping[float, Estimate], rivals: Sequence[str]) -> Finding:
    graph = "on" if page.toggles.cuda_graph else "off"
    where = "on a CPU" if page.kind == "cpu" else f"on CUDA, CUDA Graph {graph}"
    numbers = (
        f"{with_bounds(one, unit='x')} at ratio {ratio:g}{', unpaired' * unpaired(one)}"
        for ratio, one in sorted(curve.items())
    )
    return Finding(f"{' or '.join(rivals)} / comera, time, batch {batch}, {where}", ", ".join(numbers))


def _grows_and_vanishes(curve: Mapping[float, Estimate]) -> tuple[bool, bool, str]:
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
        ON_CPU if page.kind == "cpu" and len(page.runs) else "",
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
    counts = page.parameters("arm", "ratio")
    pairs = set(zip(page.runs["arm"], page.runs["ratio"], strict=True))
    sized = {arm for arm, ratio in pairs if equal_size(counts.get((arm, ratio)), counts.get((COMERA, ratio)))}
    sized -= {COMERA, DENSE}
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
