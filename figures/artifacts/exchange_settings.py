"""Step time of several ranks against the size of DDP's buckets, and against the steps between two averages."""

import itertools
import math
from functools import cached_property
from typing import Any, ClassVar

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator

from figures import frame
from figures.artifact import Artifact
from figures.artifacts.scaling_steps import SAME, StepsPage, base_arms, by_arm, style
from figures.columns import bounds_kinds, readable
from figures.draw import facts
from figures.draw.captions import Caption
from figures.draw.layout import panel_page
from figures.draw.style import number_axis, stroke_handle, whisker_handles, whiskers
from figures.frame import Records
from figures.text import bounds

#: What is varied: the column of the record, what its panels are called, and the words of their axis.
VARIED = {
    "bucket_mib": ("size of DDP's buckets", "bucket, MiB"),
    "local_steps": ("steps between two averages", "local steps"),
}


class SettingsPage(StepsPage):
    """Steps by what is varied, the rate of the link and the value."""

    order: ClassVar = ["varied", "link_mbit", "value"]

    @cached_property
    def steps(self) -> pd.DataFrame:
        df = super().steps
        words = pd.DataFrame([VARIED[name] for name in df["varied"]], df.index, ["title", "axis"])
        return df.assign(
            title=words["title"] + ", " + df["link"],
            link=df["link"] + ", " + words["axis"],
            remarks=(df["status"] + ": " + df["message"]).where(df["status"] != "ok", ""),
        )


def select(records: Records) -> list[SettingsPage]:
    """Return a page per device, with the newest record of each setting, rate of the link and arm."""
    df = frame.of(records)
    df = df[df[list(VARIED)].notna().any(axis=1)]
    df = df.assign(
        varied=df["bucket_mib"].notna().map({True: "bucket_mib", False: "local_steps"}),
        value=df["bucket_mib"].fillna(df["local_steps"].astype(float)),
        label=base_arms(df),
        sent_mib=df["sent_buckets_mib"],
    )
    cell = (*SettingsPage.order, "label")
    return frame.pages(df, cell, SAME, "measurements", SettingsPage)


def table(page: SettingsPage) -> pd.DataFrame:
    """Return a line per step, by what is varied, rate of the link, value and arm."""
    cell = ["device", "varied", "link_mbit", "value", "arm"]
    times = [*bounds("step_ms", None), "launches", *bounds("time_over_comera", None)]
    others = ["sent_mib", "exchange_memory_mib", "status", "remarks"]
    steps = page.steps[[*cell, *times, *others]].replace({"link_mbit": {math.inf: math.nan}})
    return steps.rename(columns=lambda name: name.removeprefix("time_"))


def shown(page: SettingsPage, _: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the link and what is varied in one column."""
    times = ["step_ms", "time_over_comera"]
    return readable(page.steps, ["link", "value", "arm", *times, "sent_mib", "exchange_memory_mib"])


def about(page: SettingsPage, _: pd.DataFrame) -> dict[str, Any]:
    """Return what is varied, and what failed at which value."""
    steps = page.steps
    marked = ["arm", "older_code", "time_pairing", "launches", *bounds("time_over_comera", None)]
    return {
        "table": steps[marked],
        "varied": {name: words for name, (words, _) in VARIED.items() if (steps["varied"] == name).any()},
        "failed": facts.reasons(steps.assign(message=steps["remarks"]), "arm", "link", "value"),
    }


def draw(page: SettingsPage, _: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the step time by the size of buckets, and by the steps between two averages."""
    steps = page.steps
    arms = sorted(set(steps["arm"]), key=by_arm)
    handles = [stroke_handle(style(arm)[0], arm) for arm in arms]
    handles += whisker_handles(bounds_kinds(steps, "step_ms"))
    titles = [list(part["title"].unique()) for _, part in steps.groupby("varied")]
    paper, panels = panel_page(caption, titles, 2.4, handles, 6)
    axes_of = dict(zip(itertools.chain(*titles), itertools.chain(*panels), strict=True))
    for title, part in steps.groupby("title"):
        axes = axes_of[title]
        axes.set(yscale="log", ylabel="step, ms", xlabel=VARIED[part["varied"].iloc[0]][1])
        axes.set_xscale("log", base=2)
        timed = part.dropna(subset="step_ms")
        for arm in arms:
            points = timed[timed["arm"] == arm]
            axes.plot(points["value"], points["step_ms"], markersize=4, **style(arm)[0].look)
            ends = points[["step_ms_low", "step_ms_high"]].astype(float)
            low, high = (ends[name].fillna(points["step_ms"]) for name in ends)
            whiskers(axes, points["value"], low, high)
        number_axis(axes.xaxis, FixedLocator(sorted(set(timed["value"]))))
        number_axis(axes.yaxis, LogLocator(10, subs=(1, 2, 5)))
    return paper.finish()


ARTIFACT = Artifact(
    name="exchange_settings",
    summary="step time of several ranks by the size of DDP's buckets and by the steps between two averages",
    experiments=("scaling_buckets", "scaling_local"),
    measure="run",
    made_by="make reproduce-exchange-settings",
    order=131,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
    section="link, setting",
)
