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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, LogLocator

from figures import frame
from figures.arms import DENSE, Toggles, by_arm
from figures.artifact import Artifact
from figures.artifacts.fig1 import among
from figures.claims.growth import GROWTH
from figures.columns import across, bounds_kinds, time_column, unit_of
from figures.draw.captions import Caption
from figures.draw.footnotes import Footnotes, has_failed
from figures.draw.layout import INNER, panel_page
from figures.draw.lines import lines as draw_lines
from figures.draw.style import (
    DENSE_STROKE,
    INK,
    Stroke,
    note,
    nothing_drawn,
    number_axis,
    stroke_handle,
    strokes,
    whisker_handles,
)
from figures.frame import Records
from figures.stats import cells
from figures.stats.cells import TARGETS
from figures.stats.sizes import FULL_SIZE_PARAMETERS, reach_of
from figures.text import NOT_IN_GRID, significant

EXPERIMENTS = ("ratios", "ratios_memory")

#: The columns of a cell of times and of memory; the ratio of dense is 1, and a timed dense record is beside its job's.
CELL, MEMORY_CELL = ("arm", "batch_size", "beside"), ("arm", "batch_size", "ratio")


@dataclass(frozen=True, kw_only=True, eq=False)
class Fig12Page(cells.TimesAndMemory):
    """Times and memory by arm, batch size and ratio."""

    experiments: ClassVar = EXPERIMENTS
    toggles: Toggles


def select(records: Records) -> list[Fig12Page]:
    """Return a page per device, precision and toggles; a prediction belongs to every page of its precision."""
    pages = []
    each = (*frame.METHOD, "!method.ratio", "!method.ranks_of_ratio")
    same = {"memory_cell": MEMORY_CELL, "each": each}
    for device, df in frame.by_device(records):
        dense, runs = df["arm"] == DENSE, df["measure"] == "run"
        swept = df.reindex(columns=["method.ratio", "method.ranks_of_ratio"]).notna().any(axis=1)
        ratio = df["ratio"].where(dense | swept)
        df = df.assign(beside=ratio.where(runs | ~dense, 1.0), ratio=ratio.where(~dense, 1.0))
        predicted = (df["measure"] == "predict") & ~df["precision"].isin(df.loc[runs, "precision"])
        for toggles in sorted(set(df.loc[runs | predicted, "toggles"]), key=lambda one: one.rank):
            about: dict[str, Any] = {**device, **toggles.page, **same}
            pages.append(cells.choose(among(df, toggles), Fig12Page, CELL, **about))
    return [page for page in pages if len(page.df)]


def table(page: Fig12Page) -> pd.DataFrame:
    """Return a line per batch size, ratio and arm, and before them one per job that timed dense.

    Times are over those of dense in the same job, peaks and FLOPs over those of the one dense model.
    """
    batches = pd.DataFrame({"batch_size": sorted(page.found("batch_size"))})
    timed = page.runs.loc[page.runs["arm"] == DENSE, ["batch_size", "beside"]]
    jobs = batches.merge(timed, "left").fillna({"beside": 1.0}).sort_values("beside")
    models = page.df[page.df["arm"] != DENSE]
    arms = pd.DataFrame({"arm": sorted(set(models["arm"]), key=by_arm)})
    models = models[["batch_size", "ratio"]].drop_duplicates().sort_values("ratio").merge(arms, "cross")
    grid = pd.concat([jobs.assign(arm=DENSE, ratio=1.0), models.assign(beside=models["ratio"])])
    grid = grid.sort_values("batch_size", kind="stable", ignore_index=True)
    place: dict[str, Any] = {"device": page.device, **vars(page.toggles)}
    grid = grid.assign(**place)
    is_dense = grid["arm"] == DENSE
    dense: dict[str, Any] = {"arm": DENSE, "ratio": 1.0}

    plans = page.predictions.sort_values("predicted_for", ascending=False)  # for CUDA first
    counted = pd.concat([page.runs.sort_values("beside"), plans]).dropna(subset="flops_per_step")
    counted = counted.drop_duplicates(list(MEMORY_CELL))
    own, of_dense = (
        cells.at(lines, counted, MEMORY_CELL, ["parameters", "flops_per_step"]).apply(cells.numbers)
        for lines in (grid, grid.assign(**dense))
    )
    held = page.timed(grid, "samples.reach"), *(page.predicted(grid, target, "samples.reach") for target in TARGETS)
    reach = [str(reach_of(*found) or "") for found in zip(*(one["samples.reach"] for one in held), strict=True)]
    flops = own["flops_per_step"]
    measured, peaks = page.measured(grid), ["allocated_mib", "reserved_mib"]
    # dense's are those of its first job that has them
    first = measured[peaks].groupby([is_dense, grid["batch_size"]]).transform("first")
    measured[peaks] = measured[peaks].mask(is_dense, first)
    parts = [
        grid[["device", "precision", "cuda_graph", "compile", *MEMORY_CELL, "beside"]],
        (of_dense["parameters"] / own["parameters"]).mask(is_dense).rename("size_ratio"),
        own["parameters"],
        page.times(grid, DENSE, {"arm": DENSE}, grid["batch_size"].isin(page.runs["batch_size"])),
        page.over_low_rank(grid),
        flops,
        (flops / of_dense["flops_per_step"]).mask(is_dense).rename("flops_over_dense"),
        pd.Series(reach, name="reach"),
    ]
    for target in TARGETS:
        asked = page.predictions.loc[page.predictions["predicted_for"] == target, "batch_size"]
        parts.append(page.memory(grid, target, DENSE, dense, grid["batch_size"].isin(asked)))
    return pd.concat([*parts, measured], axis=1)


def shown(page: Fig12Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm and ratio, its time and peak memory by batch size; limits stand in place of failures.

    Dense has one line, whose time is the median over its jobs.
    """
    is_dense, time = table["arm"] == DENSE, time_column(page.per)
    median = table[time].where(is_dense).groupby(table["batch_size"]).transform("median")
    models = table.assign(**{time: table[time].mask(is_dense, median)})
    models["time_status"] = models["time_status"].mask(is_dense & median.notna(), "ok")
    is_beyond, statuses = models["reach"] != "", [f"{kind}_status" for kind in ("time", *TARGETS)]
    models[statuses] = models[statuses].mask(is_beyond, models["reach"], axis=0)
    models["arm"] += (", ratio " + models["ratio"].map("{:g}".format)).mask(is_dense, "")
    is_first = ~table.duplicated(["arm", "batch_size"])
    models = models[~is_dense | is_first].sort_values("ratio", kind="stable")
    values = {time: f"time_over_{DENSE}"}
    values |= {f"{target}_peak_mib": f"{target}_over_{DENSE}" for target in _targets(page, table)}
    return across(models, "arm", "batch_size", values, ["size_ratio"])


def _targets(page: Fig12Page, table: pd.DataFrame) -> list[str]:
    """Return the devices that any memory is predicted for, this kind first."""
    ordered = sorted(TARGETS, key=lambda target: target != page.kind)
    return [target for target in ordered if table[f"{target}_peak_mib"].notna().any()]


def about(_: Fig12Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return the dense model's parameters, what is out of which arm's reach, and what failed with its ratio."""
    out, within = table[table["reach"] != ""], table[table["reach"] == ""]
    words = within["arm"].map(lambda arm: " beside ratio " if arm == DENSE else ", ratio ")
    counts = table.loc[table["arm"] == DENSE, "parameters"].dropna()
    return {
        "parameters": int(counts.iloc[0]) if len(counts) else 0,
        "full_size": FULL_SIZE_PARAMETERS,
        "beyond": out.groupby(["arm", "reach"], sort=False)["ratio"].agg(
            lambda some: [f"{ratio:g}" for ratio in sorted(set(some))]
        ),
        "named": within.assign(arm=within["arm"] + words + within["beside"].map("{:g}".format)),
    }


def crossings(lines: pd.DataFrame, arm: str) -> list[float]:
    """Return the ratios at which an arm is as good as dense, interpolated between neighbours on logarithmic axes.

    Example:
        >>> crossings(pd.DataFrame({"arm": "comera", "ratio": [1.5, 6.0], "over": [2.0, 0.5]}), "comera")
        [3.0]
    """
    over = lines[lines["arm"] == arm].set_index("ratio")["over"].dropna()
    found = []
    for (left, start), (right, end) in itertools.pairwise(np.log(over).items()):
        if (start < 0) != (end < 0):
            found.append(round(left * (right / left) ** (start / (start - end)), 12))
    return found


_COLUMNS, _HEIGHT = 4, 2.1  # panels of a row, and their height in inches
_FOOT = 0.085  # of a panel's height: a line at its foot, where values of an arm are missing
_RING: dict[str, Any] = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "color": INK}
_BAND: dict[str, Any] = {"facecolor": DENSE_STROKE.colour, "alpha": 0.18, "linewidth": 0}
_CROSS: dict[str, Any] = {"marker": "x", "markersize": 4.5, "markeredgewidth": 1.2, "linestyle": ""}
_ALLOCATED: dict[str, Any] = {"marker": "+", "markersize": 6, "linestyle": ""}

#: Where a curve's ratio is written beside its ring, by the curve's number: where falling curves and other ratios leave
#: room. The direction, and what of the text is put there.
_BESIDE_RING = ((1, 1, "left", "bottom"), (-1, -1, "right", "top"), (1, -1, "left", "top"))


#: Title, axis and unit of a quantity, with its lines.
_Lines = tuple[str, str, str, pd.DataFrame]


def _quantities(page: Fig12Page, table: pd.DataFrame) -> Iterator[_Lines]:
    """Yield title, axis and unit of each quantity, with its lines.

    Lines have the ``value`` in that unit; ``y``, ``y_low`` and ``y_high`` as drawn; ``over``, the ratio to dense's; and
    the ``status`` that says why there is none.
    """
    why = {
        kind: table[[f"{kind}_status", f"{kind}_message"]].set_axis(["status", "message"], axis=1)
        for kind in ("time", *TARGETS)
    }
    lines = table.assign(allocated_mib=np.nan, y_low=np.nan, y_high=np.nan)
    (unit, scale), is_timed = unit_of(table, page.per), table["time_status"] != NOT_IN_GRID
    value, over = table[time_column(page.per)] * scale, table["time_over_dense"]
    middle = value.groupby([table["arm"], table["batch_size"]]).transform("median")
    y = over.mask(table["arm"] == DENSE, value / middle)
    times = lines.assign(value=value, over=over, y=y, **why["time"])
    bounds = table[["time_over_dense_low", "time_over_dense_high"]]
    times[["y_low", "y_high"]] = bounds.where(bounds.iloc[:, 0] < bounds.iloc[:, 1])
    yield "time", f"time per {page.per} / dense", unit, times[is_timed]

    reason = why["time"]
    for target in TARGETS:  # the first that has failed
        failed = why[target]["status"].map(has_failed) & ~reason["status"].map(has_failed)
        reason = reason.mask(failed, why[target])
    value = table["flops_per_step"].replace(0, np.nan) / 1e9
    work = lines.assign(value=value, over=table["flops_over_dense"], y=value, **reason)
    yield "FLOPs", "GFLOP per step", "GFLOP", work[is_timed] if is_timed.any() else work

    for target in sorted(TARGETS, key=lambda target: target != page.kind):
        value, over = table[f"{target}_peak_mib"], table[f"{target}_over_dense"]
        peaks = lines.assign(value=value, over=over, y=value, **why[target])
        if target == page.kind == "cuda":
            peaks["allocated_mib"] = table["allocated_mib"]
        if value.notna().any():
            axis = f"peak predicted for {'CUDA' if target == 'cuda' else 'a CPU'}, MiB"
            yield "memory", axis, "MiB", peaks[peaks["status"] != NOT_IN_GRID]


def draw(page: Fig12Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw a panel per quantity and batch size; quantities share a row of panels where all of theirs fit."""
    footnotes, rows = Footnotes(), list[list[Any]]()
    for title, axis, unit, lines in _quantities(page, table):
        own = []
        for batch, here in lines.groupby("batch_size"):
            here = frame.in_order(here, "arm", by_arm).assign(why=np.nan)
            unknown = here["y"].isna() & (here["arm"] != DENSE) & (here["reach"] == "")
            for line in frame.each(here[unknown]):
                unpaired = ("timed without dense to compare with",)
                reason = unpaired if line.status == "ok" else (line.status, line.message)
                here.loc[line.Index, "why"] = footnotes.number(*reason)
            own.append((f"{title}, batch {batch}", axis, unit, here))
        if rows and len(rows[-1]) + len(own) <= _COLUMNS:
            rows[-1] += own
        else:
            rows += [own[start : start + _COLUMNS] for start in range(0, len(own), _COLUMNS)]
    panels = [panel for row in rows for panel in row]
    models = pd.concat([lines[lines["arm"] != DENSE] for *_, lines in panels])
    looks = strokes(list(models["arm"].unique()))

    handles: list[Any] = [stroke_handle(stroke, arm) for arm, stroke in looks.items()]
    handles.append(stroke_handle(DENSE_STROKE, DENSE))
    jobs = table[table["arm"] == DENSE].groupby("batch_size")[time_column(page.per)].nunique()
    if (jobs > 1).any():
        handles.append(Patch(**_BAND, label="dense, lowest to highest of its jobs"))
    handles += whisker_handles(bounds_kinds(table, f"time_over_{DENSE}"))
    if any(crossings(lines, arm) for *_, lines in panels for arm in looks):
        handles.append(Line2D([], [], linestyle="", **_RING, label="crossover with dense: ratio beside it"))
    if models["y"].isna().any():
        words = "no value: out of reach, or reason below"
        handles.append(Line2D([], [], **_CROSS, color=INK, label=words))
    if models["allocated_mib"].notna().any():
        handles.append(Line2D([], [], **_ALLOCATED, color=INK, label="allocated, measured"))

    titles = [[title for title, *_ in row] for row in rows]
    paper, axes = panel_page(caption, titles, _HEIGHT, handles, 4, footnotes.lines())
    for one, (_, axis, unit, lines) in zip(itertools.chain(*axes), panels, strict=True):
        _ratio_axis(one, sorted(set(models["ratio"])))
        one.set_ylabel(axis, fontsize=7.5, labelpad=2)
        one.tick_params(axis="y", labelsize=7, pad=2)
        _draw_panel(one, lines, unit, looks)
    return paper.finish()


def _ratio_axis(axes: Any, ratios: Sequence[float]) -> None:
    """Scale the axis of ratios, which is the same for all panels, with a tick at each whose label finds room."""
    last = max([2.0, *ratios])
    axes.set_xscale("log")
    axes.set_xlim(1 / 1.12, last * 1.12)
    beside = 0.75  # inches of a panel that the labels beside its axes take at most
    width = INNER / axes.get_subplotspec().get_gridspec().ncols - beside
    inches, ticks = width / math.log(last * 1.12**2), [last]
    for ratio in dict.fromkeys([1.0, *reversed(ratios)]):
        room = {tick: 0.05 + 0.03 * len(f"{ratio:g}{tick:g}") for tick in ticks}
        if all(abs(math.log(ratio / tick)) * inches >= least for tick, least in room.items()):
            ticks.append(ratio)
    number_axis(axes.xaxis, FixedLocator(sorted(ticks)), "g")
    axes.set_xlabel("dense parameters / parameters", fontsize=7.5)


def _draw_panel(axes: Any, lines: pd.DataFrame, unit: str, looks: Mapping[str, Stroke]) -> None:
    """Draw dense as a line, and a curve per arm with its crossovers; at the foot a line per arm for what is missing."""
    dense = lines[lines["arm"] == DENSE].dropna(subset="y")
    missing = lines[lines["y"].isna() & (lines["arm"] != DENSE)]
    drawn = lines[["y", "y_low", "y_high", "allocated_mib"]].stack().dropna()
    if drawn.empty:
        nothing_drawn(axes, "nothing recorded")
    else:
        bottom, top = min(drawn.min(), drawn.max() / 4), max(drawn.max(), drawn.min() * 4)
        feet = max((list(looks).index(arm) + 1 for arm in missing["arm"]), default=0)
        axes.set_yscale("log")
        below, above = 0.06 + 1.5 * _FOOT * feet, 0.16  # of the height, on its logarithmic scale
        axes.set_ylim(bottom / (top / bottom) ** below, top * (top / bottom) ** above)
        number_axis(axes.yaxis, LogLocator(10, subs=(1, 2, 5)))
    level = dense["y"].median()
    if len(dense):
        axes.axhspan(dense["y"].min(), dense["y"].max(), **_BAND)
        axes.axhline(level, color=DENSE_STROKE.colour, linewidth=1.2, zorder=2)
        axes.plot([1.0], [level], **DENSE_STROKE.dots, markersize=4.5, zorder=4)
        for size in dense["allocated_mib"].dropna().head(1):
            axes.plot([1.0], [size], **_ALLOCATED, color=DENSE_STROKE.colour, zorder=4)
        words = f"dense: {significant(dense['value'].median(), 4 if unit in ('GFLOP', 'MiB') else 3)} {unit}"
        axes.text(1.0, 0.98, words, transform=axes.transAxes, ha="right", va="top", fontsize=6.5)

    foot = axes.get_xaxis_transform()
    for number, (arm, stroke) in enumerate(looks.items()):
        curve = lines[lines["arm"] == arm]
        drawn, lacking = curve.dropna(subset="y"), curve[curve["y"].isna()]
        draw_lines(axes, drawn, "ratio", "y", "arm", {arm: stroke}, linewidth=1.3, markersize=4, zorder=4)
        held = curve.dropna(subset="allocated_mib")
        axes.plot(held["ratio"], held["allocated_mib"], **_ALLOCATED, color=stroke.colour, zorder=4)
        right, up, ha, va = _BESIDE_RING[min(number, len(_BESIDE_RING) - 1)]
        for ratio in crossings(curve, arm):
            axes.plot([ratio], [level], **_RING, zorder=5)
            look = {"ha": ha, "va": va, "fontsize": 7, "fontweight": "bold", "zorder": 6}
            note(axes, f"{ratio:.3g}", (ratio, level), (4.5 * right, 3.5 * up), **look)

        height = (number + 0.5) * _FOOT
        look = {"color": stroke.colour, "transform": foot, "zorder": 5}
        axes.plot(lacking["ratio"], [height] * len(lacking), **_CROSS, **look)
        look = {"xycoords": foot, "va": "center", "fontsize": 6.5, "zorder": 5}
        for line in frame.each(lacking.dropna(subset="why")):
            note(axes, f"({line.why:g})", (line.ratio, height), (5, 0), ha="left", **look)
        for reach, beyond in lacking[lacking["reach"] != ""].groupby("reach"):
            # written at the first ratio beyond it
            ratio = beyond["ratio"].min() if "most" in str(reach) else beyond["ratio"].max()
            first, last = axes.get_xlim()
            at_right = math.log(ratio / first) > 0.6 * math.log(last / first)
            shift, ha = ((-5, 0), "right") if at_right else ((5, 0), "left")
            note(axes, f"{arm}: {reach}", (ratio, height), shift, ha=ha, **look)


ARTIFACT = Artifact(
    name="fig12",
    summary="time per epoch, peak memory and FLOPs against the compression of the whole model, beside dense; "
    "an image per device, precision and toggles",
    experiments=EXPERIMENTS,
    made_by="make sweep-ratios",
    order=60,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
    rules=(GROWTH,),
)
