"""Step time of several ranks against the size of DDP's buckets, and against the steps between two averages."""

import functools
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator

from bench.core.intervals import Estimate
from bench.core.record import Record
from figures import frame
from figures.arms import COMERA
from figures.artifact import Artifact
from figures.artifacts.beyond.distributed.arms import base_arm, by_arm, style
from figures.artifacts.beyond.distributed.measured import SAME, link_words, order_of_rate
from figures.columns import bounds_kinds, readable, table_of
from figures.frame import Records
from figures.page import facts
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.style import number_axis, stroke_handle, whisker_handles, whiskers
from figures.records.time_values import step_of, time_ratio
from figures.text import bounds, pairing

#: What is varied: the column of the record, what its panels are called, and the words of their axis.
VARIED = {
    "bucket_mib": ("size of DDP's buckets", "bucket, MiB"),
    "local_steps": ("steps between two averages", "local steps"),
}

#: What is varied, its value, rate of the link in Mbit/s, arm without exchange; and the columns that have them.
Cell = tuple[str, float, float | None, str]
CELL = ("varied", "value", "link_mbit", "base_arm")


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings(frame.Page):
    """The newest record of each cell of one device."""

    @functools.cached_property
    def cells(self) -> dict[Cell, Record]:
        return frame.by_cell(self.df, CELL)

    @functools.cached_property
    def panels(self) -> list[list[tuple[str, float | None]]]:
        """Return a row of panels per setting that is varied, a panel per rate of the link."""
        found = {(varied, mbit) for varied, _, mbit, _ in self.cells}
        rows = [
            sorted((one for one in found if one[0] == name), key=lambda one: order_of_rate(one[1])) for name in VARIED
        ]
        return [row for row in rows if row]

    @functools.cached_property
    def ordered(self) -> list[Cell]:
        """Return the cells by what is varied, rate of the link, value and arm."""
        place = list(VARIED).index
        return sorted(self.cells, key=lambda cell: (place(cell[0]), order_of_rate(cell[2]), cell[1], by_arm(cell[3])))


def select(records: Records) -> list[Settings]:
    """Return a page per device."""
    df = frame.of(records)
    values = df[list(VARIED)].astype(float)
    df = df[values.notna().any(axis=1)]
    varied = [next(name for name in VARIED if values.loc[place, name] == values.loc[place, name]) for place in df.index]
    df = df.assign(
        varied=varied,
        value=[values.loc[place, name] for place, name in zip(df.index, varied, strict=True)],
        base_arm=[base_arm(record) for record in df["record"]],
    )
    return frame.pages(df, CELL, SAME, "measurements", Settings)


def _ratio(page: Settings, cell: Cell) -> Estimate | None:
    """Return the ratio of a step to CoMERA's with the same setting over the same link; None for CoMERA's own."""
    varied, value, mbit, arm = cell
    return time_ratio(page.cells[cell], page.cells.get((varied, value, mbit, COMERA))) if arm != COMERA else None


def table(page: Settings) -> pd.DataFrame:
    """Return a line per step, by what is varied, rate of the link, value and arm."""
    lines = []
    for cell in page.ordered:
        (varied, value, mbit, arm), record = cell, page.cells[cell]
        step = step_of(record)
        lines.append(
            {
                "device": page.device,
                "varied": varied,
                "link_mbit": mbit,
                "value": value,
                "arm": arm,
                **bounds("step_ms", step),
                "launches": step and step.launches,
                **bounds("over_comera", _ratio(page, cell)),
                "sent_mib": record.sent_buckets_mib,
                "exchange_memory_mib": record.exchange_memory_mib,
                "status": record.status,
                "remarks": "" if record.status == "ok" else f"{record.status}: {record.message}",
            }
        )
    return table_of(lines)


def _marked(page: Settings, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with what its marks are about, and with links and settings in words."""
    names = {f"over_comera{end}": f"time_over_comera{end}" for end in ("", "_low", "_high", "_bounds")}
    more: dict[str, Any] = {
        "link": [f"{link_words(mbit)}, {VARIED[varied][1]}" for varied, _, mbit, _ in page.ordered],
        "older_code": [bool(page.older(page.cells[cell])) for cell in page.ordered],
        "time_pairing": [pairing(_ratio(page, cell)) for cell in page.ordered],
    }
    return table.rename(columns=names).assign(**more)


def shown(page: Settings, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the link and what is varied in one column."""
    columns = ["link", "value", "arm", "step_ms", "time_over_comera", "sent_mib", "exchange_memory_mib"]
    return readable(_marked(page, table), columns)


def about(page: Settings, table: pd.DataFrame) -> dict[str, Any]:
    """Return what is varied, and what failed at which value."""
    marked = _marked(page, table)
    return {
        "table": marked,
        "varied": {name: words for name, (words, _) in VARIED.items() if (table["varied"] == name).any()},
        "failed": facts.reasons(marked.assign(message=marked["remarks"]), "arm", "link", "value"),
    }


def draw(page: Settings, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw the step time by the size of buckets, and by the steps between two averages."""
    arms = sorted(set(table["arm"]), key=by_arm)
    timed = table.dropna(subset="step_ms")
    handles = [stroke_handle(style(arm)[0], arm) for arm in arms]
    handles += whisker_handles(bounds_kinds(timed, "step_ms"))
    titles = [[f"{VARIED[varied][0]}, {link_words(mbit)}" for varied, mbit in line] for line in page.panels]
    paper, panels = panel_page(caption, titles, 2.4, handles, 6)
    for line, names in zip(panels, page.panels, strict=True):
        for axes, (varied, mbit) in zip(line, names, strict=True):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            over_link = timed["link_mbit"].isna() if mbit is None else timed["link_mbit"] == mbit
            mine = timed[(timed["varied"] == varied) & over_link]
            for arm in arms:
                points = mine[mine["arm"] == arm]
                axes.plot(points["value"], points["step_ms"], markersize=4, **style(arm)[0].look)
                ends = (points[f"step_ms_{end}"].astype(float).fillna(points["step_ms"]) for end in ("low", "high"))
                whiskers(axes, points["value"], *ends)
            number_axis(axes.xaxis, FixedLocator(sorted(set(mine["value"]))))
            number_axis(axes.yaxis, LogLocator(10, subs=(1, 2, 5)))
            axes.set_xlabel(VARIED[varied][1], fontsize=8)
            axes.set_ylabel("step, ms", fontsize=8)
    return paper.finish()


ARTIFACT = Artifact(
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
