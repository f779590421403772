"""Training on several ranks: what a step sends, and its time against the rate of the link between the ranks."""

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from figures import frame
from figures.arms import DENSE, by_arm
from figures.artifact import Artifact
from figures.columns import across, bounds_kinds, readable
from figures.draw import facts
from figures.draw.captions import Caption
from figures.draw.layout import panel_page
from figures.draw.lines import lines
from figures.draw.style import nothing_drawn, number_axis, stroke_handle, strokes, whisker_handles
from figures.frame import TIMING, Page, Records
from figures.stats.time_values import ratio_columns, step_columns

#: What is equal for all steps of a page.
SAME = (*TIMING, "batch_size", "precision", "threads")

#: What is sent per step and rank, by the count: where tensors are given to collectives, on paper, by the interface.
_SENT = ["sent_buckets_mib", "sent_analytic_mib", "sent_interface_mib", "exchange_memory_mib"]

#: Where a link without a limit is drawn, in Mbit/s.
_NO_LIMIT = 40_000.0


def rate_words(gbit: float) -> str:
    """Return a rate as people say it.

    >>> rate_words(0.0314), rate_words(2.345), rate_words(1234.5), rate_words(math.inf)
    ('31 Mbit/s', '2.3 Gbit/s', '1,234 Gbit/s', 'not limited')
    """
    if gbit < 0.9995:
        return f"{1e3 * gbit:.3g} Mbit/s" if gbit >= 0.1 else f"{1e3 * gbit:.2g} Mbit/s"
    if gbit < 100:
        return f"{gbit:.2g} Gbit/s"
    return "not limited" if gbit == math.inf else f"{gbit:,.0f} Gbit/s"


def select(records: Records) -> list[Page]:
    """Return a page per device, of the newest step of each arm and link."""
    df = frame.of(records)
    return frame.pages(df[df["world_size"] > 1], ("arm", "link_mbit"), SAME, "measurements")


def table(page: Page) -> pd.DataFrame:
    """Return a line per link and arm: bytes, the step with and without exchange, and its ratio to dense's."""
    df = page.df.assign(link_mbit=page.df["link_mbit"].fillna(math.inf), place=page.df["arm"].map(by_arm))
    df = df.sort_values(["link_mbit", "place"], ignore_index=True)
    dense = df.loc[df["arm"] == DENSE, ["link_mbit", "times"]]
    references = df[["link_mbit"]].merge(dense, how="left")["times"].mask(df["arm"] == DENSE)
    over = ratio_columns(f"time_over_{DENSE}", df["times"], references).rename(columns={"pairing": "time_pairing"})
    own = df[["device", "arm", "world_size", "link_mbit", "batch_size", *_SENT, "compute_time_ms"]]
    parts = [own, step_columns(df["times"]), over, df[["status", "message"]]]
    return pd.concat(parts, axis=1).assign(
        link=(df["link_mbit"] / 1e3).map(rate_words),
        message=df["message"].where(df["status"] != "ok", ""),
        older_code=df["cell_id"].isin(page.older_code),
    )


def shown(_: Page, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm: what it sends and holds, and its step over each link with the ratio to dense's."""
    found = across(table, "arm", "link", {"step_ms": f"time_over_{DENSE}"})
    sizes = table.groupby("arm", sort=False)[["sent_buckets_mib", "exchange_memory_mib"]].median()
    joined = pd.concat([found.iloc[:, :1], readable(sizes.reset_index(drop=True)), found.iloc[:, 1:]], axis=1)
    return joined.iloc[table["arm"].drop_duplicates().map(by_arm).argsort()].reset_index(drop=True)


def about(page: Page, table: pd.DataFrame) -> dict[str, Any]:
    """Return a record of the page, whether any link was limited, and which steps failed."""
    limited = bool((table["link_mbit"] < math.inf).any())
    return {"one": page.df.iloc[0], "limited": limited, "failed": facts.reasons(table, "arm", "link")}


def draw(_: Page, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the time of a step over the rate of the link, a line per arm."""
    looks = strokes(sorted(set(table["arm"]), key=by_arm))
    handles = [stroke_handle(stroke, arm) for arm, stroke in looks.items()]
    paper, [[axes]] = panel_page(caption, [[""]], 3.4, [*handles, *whisker_handles(bounds_kinds(table, "step_ms"))], 5)
    timed = table.dropna(subset="step_ms").replace({"link_mbit": {math.inf: _NO_LIMIT}})
    if timed.empty:
        nothing_drawn(axes, "nothing measured")
        return paper.finish()
    lines(axes, timed, "link_mbit", "step_ms", "arm", looks, linewidth=1.2, markersize=4.5)
    axes.set(xscale="log", yscale="log", xlabel="rate of the link, Mbit/s", ylabel="time of a step, ms")
    rates = sorted(set(timed["link_mbit"]))
    axes.set_xticks(rates, ["no limit" if rate == _NO_LIMIT else f"{rate:,g}" for rate in rates])
    axes.minorticks_off()
    number_axis(axes.yaxis, LogLocator(10, subs=(1, 2, 5)))
    return paper.finish()


ARTIFACT = Artifact(
    name="scaling",
    summary="bytes per step and rank, and the time of a step against the rate of the link between the ranks",
    experiments=("scaling",),
    measure="run",
    made_by="make reproduce-scaling",
    order=130,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
)
