"""Time of dense training over that of the other arms against the width: of blocks and of a linear layer.

A figure the paper lacks, so there is no verdict on a claim. Each arm stands there in its fastest form: dense training
with the precision and toggles that are best for it, over every other arm with those that are best for that.
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
from figures.frame import Page, Records
from figures.stats import cells
from figures.stats.time_values import ratio_columns, step_columns

EXPERIMENTS = ("widths", "widths_decoder", "widths_linear")

#: What is as wide as a record says, by its workload: the title of its panel, and the setting that is its width.
PARTS = {
    "encoder": ("one encoder block", "width"),
    "text": ("one decoder block", "width"),
    "linear": ("one linear layer, as many outputs as inputs", "in_features"),
}

#: What is equal for all times of a panel; settings that follow from the width may differ, as do the data.
_OF_WIDTH = ("width", "heads", "feed_forward", "in_features", "out_features")
_SAME = (*frame.TIMING, "!data_hash", *(f"!workload.{name}" for name in _OF_WIDTH), "batch_size")

#: The columns of a cell.
CELL = ("workload", "width", "arm", "toggles")


def select(records: Records) -> list[Page]:
    """Return a page per device on which steps were timed."""
    pages = []
    for device, df in frame.by_device(records):
        parts, notes = [df[:0].assign(width=0)], list[str]()
        for workload, (title, width) in PARTS.items():
            mine, what = df[df["workload"] == workload], f"record(s) of {title}"
            mine = mine.assign(width=frame.column(mine, f"workload.{width}").astype(int))
            some, of_panel = frame.narrow(mine, _SAME, CELL, what)
            of = f"{what}, width {{}}"
            some, of_width = frame.narrow_each(some, "width", ["data_hash"], CELL, of)
            some, of_arms = frame.narrow_each(some, "arm", frame.METHOD, CELL, f"{what}, {{}}")
            parts.append(some)
            notes += of_panel + of_width + of_arms
        kept = pd.concat(parts)
        notes += frame.repeats(kept, CELL, "record(s)")
        if len(kept):
            shown = frame.oldest_first(frame.newest(kept, CELL))
            pages.append(Page(**device, df=shown, left_out=tuple(notes)))
    return pages


def table(page: Page) -> pd.DataFrame:
    """Return a line per part, width, arm and toggles, with the time of dense training at its best over the arm's."""
    df = frame.in_order(page.df, "toggles", lambda toggles: toggles.rank)
    df = frame.in_order(frame.in_order(df, "arm", by_arm), "width", int)
    df = frame.in_order(df, "workload", list(PARTS).index).reset_index(drop=True)
    steps = step_columns(df["record"])
    dense = df.assign(ms=steps["step_ms"])[df["arm"] == DENSE].dropna(subset="ms").sort_values("ms")
    dense = dense.drop_duplicates(["workload", "width"])
    best = cells.at(df, dense, ["workload", "width"], ["record"])["record"]
    gain = ratio_columns("best_dense_over_arm", best.mask(df["arm"] == DENSE), df["record"])
    own = ["device", "workload", "width", "batch_size", "arm"]
    parts = [
        df[[*own, "precision", "compile", "cuda_graph", "parameters"]],
        steps,
        gain.drop(columns="pairing"),
        df["status"],
        (df["status"] + ": " + df["message"]).mask(df["status"] == "ok", "").rename("remarks"),
    ]
    return pd.concat(parts, axis=1).rename(columns={"workload": "part"})


def fastest(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of each arm in its fastest form, by part and width, where it is compared with dense."""
    timed = table.dropna(subset="step_ms")
    best = timed.loc[timed.groupby(["part", "width", "arm"], sort=False)["step_ms"].idxmin()]
    return best.dropna(subset="best_dense_over_arm").sort_index()


def shown(_: Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the toggles in one column."""
    on = table[["precision", "compile", "cuda_graph"]].itertuples(index=False)
    toggles = [Toggles(*one).text for one in on]
    columns = ["part", "width", "arm", "toggles", "parameters", "step_ms", "best_dense_over_arm"]
    columns += ["remarks"] if table["remarks"].any() else []
    return readable(table.assign(toggles=toggles), columns)


def about(page: Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return sizes of batches, ratios, and the widths at which an arm is slower than dense training, or may be."""
    best = fastest(table)
    over = best["best_dense_over_arm"]
    low, high = (best[f"{over.name}_{end}"].fillna(over) for end in ("low", "high"))
    slow = best.assign(how=high.lt(1).map({True: "slower", False: "not surely faster"}))[low <= 1]
    return {
        "parts": {part: title for part, (title, _) in PARTS.items() if part in set(table["part"])},
        "batches": table.groupby("part")["batch_size"].first(),
        "ratios": page.df[page.df["ratio"] > 0].groupby("workload")["ratio"].last(),
        "slow": slow.groupby(["part", "arm", "how"], sort=False)["width"].agg(list),
    }


def draw(_: Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw dense training's time over that of each arm at its fastest, a panel per part."""
    best = fastest(table)
    looks = style.strokes(sorted(set(best["arm"]), key=by_arm))
    handles = [style.stroke_handle(stroke, f"dense / {arm}") for arm, stroke in looks.items()]
    handles += style.whisker_handles(bounds_kinds(best, "best_dense_over_arm"))
    parts = [part for part in PARTS if part in set(table["part"])]
    titles = [PARTS[part][0] for part in parts]
    paper, [panels] = panel_page(caption, [titles], 3.0, handles, 5)
    for axes, part in zip(panels, parts, strict=True):
        here = best[best["part"] == part]
        if here.empty:
            style.nothing_drawn(axes, "nothing timed")
            continue
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for arm, line in here.groupby("arm"):
            axes.plot(line["width"], line["best_dense_over_arm"], markersize=4, **looks[arm].look)
            low, high = (line[f"best_dense_over_arm_{end}"] for end in ("low", "high"))
            style.whiskers(axes, line["width"], low, high)
        axes.axhline(1.0, color=style.INK, linewidth=0.8)
        widths = sorted(set(table.loc[table["part"] == part, "width"]))
        style.number_axis(axes.xaxis, FixedLocator(widths))
        low, high = axes.get_ylim()
        ticks = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
        style.number_axis(axes.yaxis, FixedLocator([tick for tick in ticks if low <= tick <= high]))
        axes.set_xlabel("width", fontsize=8)
        axes.set_ylabel("step time, best dense / arm", fontsize=8)
    return paper.finish()


ARTIFACT = Artifact(
    name="widths",
    summary="step time of dense training over that of the other arms by width, each at its best; an image per device",
    experiments=EXPERIMENTS,
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
