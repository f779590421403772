"""Time of dense training over that of the other arms against the width: of blocks and of a linear layer.

A figure the paper lacks, so there is no verdict on a claim. Each arm stands there in its fastest form: dense training
with the precision and toggles that are best for it, over every other arm with those that are best for that.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from bench.core.record import Record
from figures import frame
from figures.arms import DENSE, Toggles, by_arm
from figures.artifact import Artifact
from figures.columns import bounds_kinds, readable, table_of
from figures.frame import Records
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.style import INK, nothing_drawn, number_axis, stroke_handle, strokes, whisker_handles, whiskers
from figures.records.time_values import step_of, time_ratio
from figures.text import bounds

EXPERIMENTS = ("widths", "widths_decoder", "widths_linear")

#: What is as wide as a record says, by its workload: the title of its panel, and the setting that is its width.
PARTS = {
    "encoder": ("one encoder block", "width"),
    "text": ("one decoder block", "width"),
    "linear": ("one linear layer, as many outputs as inputs", "in_features"),
}

#: What is equal for all times of a panel; settings that follow from the width may differ.
_OF_WIDTH = ("width", "heads", "feed_forward", "in_features", "out_features")
_SAME = (*frame.TIMING, "!data_hash", *(f"!workload.{name}" for name in _OF_WIDTH), "batch_size")

#: The columns of a cell.
CELL = ("workload", "width", "arm", "toggles")


@dataclass(frozen=True, kw_only=True, eq=False)
class Widths(frame.Page):
    """The newest record of each cell of one device."""

    @cached_property
    def cells(self) -> dict[Any, Record]:
        """Return the records by workload, width, arm and toggles."""
        return frame.by_cell(self.df, CELL)

    def best(self, workload: str, width: int, arm: str) -> Record | None:
        """Return the record of the form of an arm that takes least time."""
        mine = [record for cell, record in self.cells.items() if cell[:3] == (workload, width, arm)]
        found = [(step.value, place) for place, record in enumerate(mine) if (step := step_of(record))]
        return mine[min(found)[1]] if found else None


def select(records: Records) -> list[Widths]:
    """Return a page per device on which steps were timed."""
    pages = []
    for device, df in frame.by_device(records):
        parts, notes = [df[:0].assign(width=0)], list[str]()
        for workload, (title, width) in PARTS.items():
            mine = df[df["workload"] == workload]
            mine = mine.assign(width=frame.column(mine, f"workload.{width}").astype(int))
            some, more = frame.narrow(mine, _SAME, CELL, f"record(s) of {title}")
            some, others = frame.narrow_each(some, "arm", frame.METHOD, CELL, f"record(s) of {title}, {{}}")
            parts.append(some)
            notes += more + others
        kept = pd.concat(parts)
        notes += frame.repeats(kept, CELL, "record(s)")
        if len(kept):
            shown = frame.oldest_first(frame.newest(kept, CELL))
            pages.append(Widths(**device, df=shown, left_out=tuple(notes)))
    return pages


def table(page: Widths) -> pd.DataFrame:
    """Return a line per part, width, arm and toggles, with the time of dense training at its best over the arm's."""
    lines = []
    order = sorted(page.cells, key=lambda cell: (list(PARTS).index(cell[0]), cell[1], by_arm(cell[2]), cell[3].rank))
    for cell in order:
        workload, width, arm, toggles = cell
        record, step = page.cells[cell], step_of(page.cells[cell])
        gain = time_ratio(page.best(workload, width, DENSE), record) if arm != DENSE else None
        lines.append(
            {
                "device": page.device,
                "part": workload,
                "width": width,
                "batch_size": record.batch_size,
                "arm": arm,
                **vars(toggles),
                "parameters": record.parameters,
                **bounds("step_ms", step),
                "launches": step and step.launches,
                **bounds("best_dense_over_arm", gain),
                "status": record.status,
                "remarks": "" if record.status == "ok" else f"{record.status}: {record.message}",
            }
        )
    return table_of(lines, whole=("parameters", "launches"))


def fastest(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of each arm in its fastest form, by part and width, where it is compared with dense."""
    timed = table.dropna(subset="step_ms")
    best = timed.loc[timed.groupby(["part", "width", "arm"], sort=False)["step_ms"].idxmin()]
    return best.dropna(subset="best_dense_over_arm").sort_index()


def shown(_: Widths, table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the toggles in one column."""
    toggles = [Toggles(*one).text for one in table[["precision", "compile", "cuda_graph"]].itertuples(index=False)]
    columns = ["part", "width", "arm", "toggles", "parameters", "step_ms", "best_dense_over_arm"]
    columns += ["remarks"] if table["remarks"].any() else []
    return readable(table.assign(toggles=toggles), columns)


def about(page: Widths, table: pd.DataFrame) -> dict[str, Any]:
    """Return sizes of batches, ratios, and the widths at which an arm is not surely faster than dense training."""
    best = fastest(table)
    slow = best[best["best_dense_over_arm_low"].fillna(best["best_dense_over_arm"]) <= 1]
    return {
        "parts": {part: title for part, (title, _) in PARTS.items() if part in set(table["part"])},
        "batches": table.groupby("part")["batch_size"].first(),
        "ratios": {cell[0]: record.ratio for cell, record in page.cells.items() if record.ratio},
        "slow": {key: list(some["width"]) for key, some in slow.groupby(["part", "arm"], sort=False)},
    }


def draw(_: Widths, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw dense training's time over that of each arm at its fastest, a panel per part."""
    best = fastest(table)
    looks = strokes(sorted(set(best["arm"]), key=by_arm))
    handles = [stroke_handle(stroke, f"dense / {arm}") for arm, stroke in looks.items()]
    handles += whisker_handles(bounds_kinds(best, "best_dense_over_arm"))
    parts = [part for part in PARTS if part in set(table["part"])]
    titles = [PARTS[part][0] for part in parts]
    paper, [panels] = panel_page(caption, [titles], 3.0, handles, 5)
    for axes, part in zip(panels, parts, strict=True):
        here = best[best["part"] == part]
        if here.empty:
            nothing_drawn(axes, "nothing timed")
            continue
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for arm, line in here.groupby("arm"):
            axes.plot(line["width"], line["best_dense_over_arm"], markersize=4, **looks[arm].look)
            whiskers(axes, line["width"], line["best_dense_over_arm_low"], line["best_dense_over_arm_high"])
        axes.axhline(1.0, color=INK, linewidth=0.8)
        number_axis(axes.xaxis, FixedLocator(sorted(set(table.loc[table["part"] == part, "width"]))))
        low, high = axes.get_ylim()
        ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if low <= tick <= high]
        number_axis(axes.yaxis, FixedLocator(ticks))
        axes.set_xlabel("width", fontsize=8)
        axes.set_ylabel("step time, best dense / arm", fontsize=8)
    return paper.finish()


ARTIFACT = Artifact(
    name="widths",
    heading="From which width on it pays",
    summary="step time of dense training over that of the other arms by width, each at its best; an image per device",
    experiments=EXPERIMENTS,
    measure="run",
    made_by="make reproduce-widths",
    order=42,
    select=select,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
    section="width",
)
