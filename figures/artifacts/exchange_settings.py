"""Step time of several ranks against the size of DDP's buckets, and against the steps between two averages."""

import itertools
import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator

from figures import frame
from figures.artifact import Artifact
from figures.artifacts.scaling_arms import base_arm, by_arm, style
from figures.artifacts.scaling_measured import SAME, timed
from figures.artifacts.scaling_paper import rate_words
from figures.columns import bounds_kinds, readable
from figures.draw import facts
from figures.draw.captions import Caption, beside
from figures.draw.layout import panel_page
from figures.draw.style import number_axis, stroke_handle, whisker_handles, whiskers
from figures.frame import Records
from figures.text import bounds

#: What is varied: the column of the record, what its panels are called, and the words of their axis.
VARIED = {
    "bucket_mib": ("size of DDP's buckets", "bucket, MiB"),
    "local_steps": ("steps between two averages", "local steps"),
}


def select(records: Records) -> list[frame.Page]:
    """Return a page per device, with the newest record of each setting, rate of the link and arm."""
    df = frame.of(records)
    df = df[df[list(VARIED)].notna().any(axis=1)]
    df = df.assign(
        varied=df["bucket_mib"].notna().map({True: "bucket_mib", False: "local_steps"}),
        value=df["bucket_mib"].fillna(df["local_steps"].astype(float)),
        base_arm=[base_arm(record) for record in df["record"]],
    )
    return frame.pages(df, ("varied", "value", "link_mbit", "base_arm"), SAME, "measurements")


def steps_of(page: frame.Page) -> pd.DataFrame:
    """Return a row per step, by what is varied, rate of the link, value and arm, with time and ratio to CoMERA's."""
    df = page.df.assign(
        arm=page.df["base_arm"],
        place=page.df["base_arm"].map(by_arm),
        link_mbit=page.df["link_mbit"].fillna(math.inf),
        older_code=page.df["cell_id"].isin(page.older_code),
    ).sort_values(["varied", "link_mbit", "value", "place"], ignore_index=True)
    rates = (df["link_mbit"] / 1e3).map(rate_words)
    df["link"] = rates + ", " + df["varied"].map({name: axis for name, (_, axis) in VARIED.items()})
    df["title"] = df["varied"].map({name: words for name, (words, _) in VARIED.items()}) + ", " + rates
    df["remarks"] = (df["status"] + ": " + df["message"]).where(df["status"] != "ok", "")
    return timed(df, ["varied", "value", "link_mbit"]).assign(sent_mib=df["sent_buckets_mib"])


def table(page: frame.Page) -> pd.DataFrame:
    """Return a line per step, by what is varied, rate of the link, value and arm."""
    steps = steps_of(page)
    steps["link_mbit"] = steps["link_mbit"].replace(math.inf, math.nan)
    columns = ["device", "varied", "link_mbit", "value", "arm", *bounds("step_time_ms", None), "launches"]
    columns += [*bounds("time_over_comera", None), "sent_mib", "exchange_memory_mib", "status", "remarks"]
    return steps[columns].rename(columns=lambda name: name.replace("step_time_ms", "step_ms").removeprefix("time_"))


def shown(page: frame.Page, _: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the link and what is varied in one column."""
    columns = ["link", "value", "arm", "step_ms", "time_over_comera", "sent_mib", "exchange_memory_mib"]
    steps = steps_of(page).rename(columns=lambda name: name.replace("step_time_ms", "step_ms"))
    return readable(steps, columns)


def about(page: frame.Page, _: pd.DataFrame) -> dict[str, Any]:
    """Return what is varied, and what failed at which value."""
    steps = steps_of(page)
    return {
        "table": steps[["arm", "older_code", "time_pairing", *steps.filter(like="time_over_comera"), "launches"]],
        "varied": {name: words for name, (words, _) in VARIED.items() if (steps["varied"] == name).any()},
        "failed": facts.reasons(steps.assign(message=steps["remarks"]), "arm", "link", "value"),
    }


def draw(page: frame.Page, _: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the step time by the size of buckets, and by the steps between two averages."""
    steps = steps_of(page)
    arms = sorted(set(steps["arm"]), key=by_arm)
    handles = [stroke_handle(style(arm)[0], arm) for arm in arms]
    handles += whisker_handles(bounds_kinds(steps, "step_time_ms"))
    titles = [list(dict.fromkeys(part["title"])) for _, part in steps.groupby("varied")]
    paper, panels = panel_page(caption, titles, 2.4, handles, 6)
    axes_of = dict(zip(itertools.chain(*titles), itertools.chain(*panels), strict=True))
    for title, part in steps.groupby("title"):
        axes = axes_of[title]
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        timed = part.dropna(subset="step_time_ms")
        for arm in arms:
            points = timed[timed["arm"] == arm]
            axes.plot(points["value"], points["step_time_ms"], markersize=4, **style(arm)[0].look)
            ends = (
                points[f"step_time_ms_{end}"].astype(float).fillna(points["step_time_ms"]) for end in ("low", "high")
            )
            whiskers(axes, points["value"], *ends)
        number_axis(axes.xaxis, FixedLocator(sorted(set(timed["value"]))))
        number_axis(axes.yaxis, LogLocator(10, subs=(1, 2, 5)))
        axes.set_xlabel(VARIED[part["varied"].iloc[0]][1], fontsize=8)
        axes.set_ylabel("step, ms", fontsize=8)
    return paper.finish()


ARTIFACT: Artifact[frame.Page] = Artifact(
    name="exchange_settings",
    heading="Bucket sizes and local steps",
    summary="step time of several ranks by the size of DDP's buckets and by the steps between two averages",
    experiments=("scaling_buckets", "scaling_local"),
    measure="run",
    made_by="make reproduce-exchange-settings",
    order=131,
    select=select,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
    section="link, setting",
)
