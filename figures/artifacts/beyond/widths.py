"""Time of dense training over that of the other arms against the width: of blocks and of a linear layer.

A figure the paper lacks, so there is no verdict on a claim. Each arm stands there in its fastest form: dense training
with the precision and toggles that are best for it, over every other arm with those that are best for that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from bench.core.record import Record
from figures.artifact import Artifact
from figures.columns import bounds_kinds, frame, readable
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.style import INK, WHISKER, nothing_drawn, number_axis, stroke_handle, strokes, whisker_handles
from figures.records.select import (
    DENSE,
    Selected,
    Toggles,
    by_arm,
    by_device,
    method_settings,
    narrow,
    narrow_each,
    newest,
    oldest_first,
    repeats,
    timing_setting,
    workload_settings,
)
from figures.records.time_values import time_of, time_ratio
from figures.text import bounds

EXPERIMENTS = ("widths", "widths_decoder", "widths_linear")

#: What is as wide as a record says, by its workload: the title of its panel, and the setting that is its width.
PARTS = {
    "encoder": ("one encoder block", "width"),
    "text": ("one decoder block", "width"),
    "linear": ("one linear layer, as many outputs as inputs", "in_features"),
}

#: Settings that follow from the width, and so may differ within a panel.
_OF_WIDTH = ("width", "heads", "feed_forward", "in_features", "out_features")

Cell = tuple[str, int, str, Toggles]


def _cell(record: Record) -> Cell:
    """Workload, width, arm and toggles."""
    name = PARTS[record.workload][1]
    return record.workload, int(workload_settings(record)[name]), record.arm, Toggles.of(record)


def _setting(record: Record) -> dict[str, Any]:
    """What is equal for all times of a panel."""
    alike = {name: value for name, value in timing_setting(record).items() if "contents" not in name}
    return {name: value for name, value in alike.items() if name.removeprefix("model ") not in _OF_WIDTH} | {
        "batch": record.batch_size
    }


@dataclass(frozen=True, kw_only=True)
class Widths(Selected):
    """The newest record of each cell of one device."""

    cells: dict[Cell, Record]

    @property
    def parts(self) -> list[str]:
        return [workload for workload in PARTS if any(cell[0] == workload for cell in self.cells)]

    def widths(self, workload: str) -> list[int]:
        return sorted({width for name, width, _, _ in self.cells if name == workload})

    def best(self, workload: str, width: int, arm: str) -> Record | None:
        """The record of the form of an arm that takes least time."""
        mine = [record for cell, record in self.cells.items() if cell[:3] == (workload, width, arm)]
        timed = {record.cell_id: time_of(record, "step") for record in mine}
        found = [(time.total.value, record) for record in mine if (time := timed[record.cell_id])]
        return min(found, key=lambda pair: pair[0])[1] if found else None


def select(records: Sequence[Record]) -> list[Widths]:
    """A page per device on which steps were timed."""
    pages = []
    for device, mine in by_device(records):
        notes: list[str] = []
        kept: list[Record] = []
        for workload, (title, _) in PARTS.items():
            some, more = narrow(
                [record for record in mine if record.workload == workload], _setting, _cell, f"record(s) of {title}"
            )
            some, others = narrow_each(
                some, lambda record: record.arm, method_settings, _cell, f"record(s) of {title}, {{}}"
            )
            kept, notes = kept + some, notes + more + others
        cells = newest(kept, _cell)
        notes += repeats(kept, _cell, "record(s)")
        if cells:
            pages.append(Widths(**device, shown=oldest_first(cells.values()), left_out=tuple(notes), cells=cells))
    return pages


def table(page: Widths) -> pd.DataFrame:
    """A line per part, width, arm and toggles, with the time of dense training at its best over the arm's."""
    lines = []
    order = sorted(page.cells, key=lambda cell: (list(PARTS).index(cell[0]), cell[1], by_arm(cell[2]), cell[3].rank))
    for cell in order:
        workload, width, arm, toggles = cell
        record, time = page.cells[cell], time_of(page.cells[cell], "step")
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
                **bounds("step_ms", time and time.total),
                "launches": time and time.total.launches,
                **bounds("best_dense_over_arm", gain),
                "status": record.status,
                "remarks": "" if record.status == "ok" else f"{record.status}: {record.message}",
            }
        )
    return frame(lines, whole=("parameters", "launches"))


def fastest(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lines of each arm in its fastest form, by part and width, where it is compared with dense."""
    timed = table.dropna(subset="step_ms")
    best = timed.loc[timed.groupby(["part", "width", "arm"], sort=False)["step_ms"].idxmin()]
    return best.dropna(subset="best_dense_over_arm").sort_index()


def shown(_: Widths, table: pd.DataFrame) -> pd.DataFrame:
    """The table with the toggles in one column."""
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


def draw(page: Widths, table: pd.DataFrame, caption: Caption) -> Figure:
    best = fastest(table)
    looks = strokes(sorted(set(best["arm"]), key=by_arm))
    handles = [stroke_handle(stroke, f"dense / {arm}") for arm, stroke in looks.items()]
    handles += whisker_handles(bounds_kinds(best, "best_dense_over_arm"))
    foot = (*caption.of_picture, *caption.notes)
    titles = [PARTS[part][0] for part in page.parts]
    paper, [panels] = panel_page(caption.title, caption.facts, [titles], foot, 3.0, handles, 5)
    for axes, part in zip(panels, page.parts, strict=True):
        here = best[best["part"] == part]
        if here.empty:
            nothing_drawn(axes, "nothing timed")
            continue
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for arm, line in here.groupby("arm"):
            axes.plot(line["width"], line["best_dense_over_arm"], markersize=4, **looks[arm].look)
            ends = line["best_dense_over_arm_low"], line["best_dense_over_arm_high"]
            for width, low, high in zip(line["width"], *ends, strict=True):
                axes.plot([width, width], [low, high], **WHISKER)
        axes.axhline(1.0, color=INK, linewidth=0.8)
        number_axis(axes.xaxis, FixedLocator(page.widths(part)))
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
