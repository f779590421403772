"""Time of a step over dense training's against the width of one decoder block.

A figure the paper lacks, so there is no verdict on a claim. Each arm stands there in its fastest form: with the
precision and toggles that are best for it, over dense training with those that are best for that.
"""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from figures import frame
from figures.arms import DENSE, Toggles, by_arm
from figures.artifact import Artifact
from figures.columns import bounds_kinds, readable
from figures.draw import style
from figures.draw.captions import Caption
from figures.draw.layout import panel_page
from figures.draw.lines import lines
from figures.frame import Page, Records
from figures.stats import cells
from figures.stats.time_values import ratio_columns, step_columns

#: What is equal for all times of a page; settings that follow from the width may differ, as do the data.
_SAME = (*frame.TIMING, "!data_hash", "!workload.width", "!workload.heads", "batch_size")

#: The columns of a cell.
CELL = ("width", "arm", "toggles")


def select(records: Records) -> list[Page]:
    """Return a page per device on which steps were timed."""
    pages = []
    for device, df in frame.by_device(records):
        df = df[df["workload"] == "text"]
        df = df.assign(width=frame.column(df, "workload.width").astype(int))
        df, of_page = frame.narrow(df, _SAME, CELL, "record(s)")
        df, of_width = frame.narrow_each(df, "width", ["data_hash"], CELL, "record(s), width {}")
        df = df.assign(arm_at_width=df["arm"].astype(str) + " at width " + df["width"].astype(str))
        df, of_arms = frame.narrow_each(df, "arm_at_width", frame.METHOD, CELL, "record(s), {}")
        notes = [*of_page, *of_width, *of_arms, *frame.repeats(df, CELL, "record(s)")]
        if len(df):
            shown = frame.oldest_first(frame.newest(df, CELL))
            pages.append(Page(**device, df=shown, left_out=tuple(notes)))
    return pages


def table(page: Page) -> pd.DataFrame:
    """Return a line per width, arm and toggles, with its time over that of dense training at its best."""
    df = frame.in_order(page.df, "toggles", lambda toggles: toggles.rank)
    df = frame.in_order(frame.in_order(df, "arm", by_arm), "width", int).reset_index(drop=True)
    steps = step_columns(df["times"])
    dense = df.assign(ms=steps["step_ms"])[df["arm"] == DENSE].dropna(subset="ms").sort_values("ms")
    best = cells.at(df, dense.drop_duplicates("width"), ["width"], ["times"])["times"]
    over = ratio_columns("time_over_best_dense", df["times"], best.mask(df["arm"] == DENSE))
    own = ["device", "width", "batch_size", "arm"]
    parts = [
        df[[*own, "precision", "compile", "cuda_graph", "parameters"]],
        steps,
        over.rename(columns={"pairing": "time_pairing"}),
        df[["peak_memory_predicted_mib", "status"]],
        (df["status"] + ": " + df["message"]).mask(df["status"] == "ok", "").rename("remarks"),
    ]
    return pd.concat(parts, axis=1)


def fastest(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of each arm in its fastest form, by width, where it is compared with dense."""
    timed = table.dropna(subset="step_ms")
    best = timed.loc[timed.groupby(["width", "arm"], sort=False)["step_ms"].idxmin()]
    return best.dropna(subset="time_over_best_dense").sort_index()


def shown(_: Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the toggles in one column."""
    on = table[["precision", "compile", "cuda_graph"]].itertuples(index=False)
    toggles = [Toggles(*one).text for one in on]
    columns = ["width", "arm", "toggles", "parameters", "step_ms", "time_over_best_dense", "peak_memory_predicted_mib"]
    columns += ["remarks"] if table["remarks"].any() else []
    return readable(table.assign(toggles=toggles), columns)


def about(page: Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return batch size and ratios, and the widths at which an arm is slower than dense training, or may be."""
    best = fastest(table)
    over = best["time_over_best_dense"]
    low, high = (best[f"{over.name}_{end}"].fillna(over) for end in ("low", "high"))
    slow = best.assign(how=low.gt(1).map({True: "slower", False: "not surely faster"}))[high >= 1]
    return {
        "batch": table["batch_size"].iloc[0],
        "smaller": page.df.dropna(subset="ratio").groupby("ratio")["width"].agg(lambda own: sorted(set(own))),
        "slow": slow.groupby(["arm", "how"], sort=False)["width"].agg(list),
    }


def draw(_: Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the time of each arm at its fastest over dense training's."""
    best = fastest(table)
    looks = style.strokes(sorted(set(best["arm"]), key=by_arm))
    handles = [style.stroke_handle(stroke, arm) for arm, stroke in looks.items()]
    handles += style.whisker_handles(bounds_kinds(best, "time_over_best_dense"))
    paper, [[axes]] = panel_page(caption, [["one decoder block"]], 3.0, handles, 5)
    if best.empty:
        style.nothing_drawn(axes, "nothing timed")
        return paper.finish()
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lines(axes, best, "width", "time_over_best_dense", "arm", looks, markersize=4)
    axes.axhline(1.0, color=style.INK, linewidth=0.8)
    style.number_axis(axes.xaxis, FixedLocator(sorted(set(table["width"]))))
    low, high = axes.get_ylim()
    ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
    style.number_axis(axes.yaxis, FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.set_xlabel("width", fontsize=8)
    axes.set_ylabel("step time, arm / best dense", fontsize=8)
    return paper.finish()


ARTIFACT = Artifact(
    name="widths",
    summary="step time of every arm over dense training's by width, each at its best; an image per device",
    experiments=("widths_decoder",),
    measure="run",
    made_by="make reproduce-widths",
    order=42,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
    section="width",
)
