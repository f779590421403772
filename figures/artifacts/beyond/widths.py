"""Time of dense training over that of the other arms against the width, of one encoder block and of a linear layer.

A figure the paper lacks, so there is no verdict on a claim. Each arm stands there in its fastest form: dense training
with the precision and toggles that are best for it, over every other arm with those that are best for that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from bench.core.intervals import Estimate
from bench.core.record import Record
from figures.artifact import Artifact
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.notes import blocks_timed, closing_notes, device_fact, first_upper, gathered, listed
from figures.page.style import INK, WHISKER, bounds_handles, nothing_drawn, number_axis, stroke_handle, strokes
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
from figures.records.time_values import Time, time_of, time_ratio
from figures.text import REMARKS, Column, bounds, brackets_note, ratio_text, with_bounds

EXPERIMENTS = ("widths", "widths_linear")

#: What is as wide as a record says, by its workload: the title of its panel, and the setting that is its width.
PARTS = {
    "encoder": ("one encoder block", "width"),
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


@dataclass(frozen=True, kw_only=True)
class WidthsRow:
    """One arm at one width with one set of toggles."""

    workload: str
    width: int
    record: Record
    time: Time | None
    gain: Estimate | None  # time of dense training at its best over its own
    is_best: bool  # of the arm's forms at this width

    @property
    def remarks(self) -> str:
        return "" if self.record.status == "ok" else f"{self.record.status}: {self.record.message}"


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


def rows_of(page: Widths) -> list[WidthsRow]:
    """By part, width, arm and toggles."""
    rows = []
    order = sorted(page.cells, key=lambda cell: (list(PARTS).index(cell[0]), cell[1], by_arm(cell[2]), cell[3].rank))
    for cell in order:
        workload, width, arm, _ = cell
        record, best = page.cells[cell], page.best(workload, width, arm)
        dense = page.best(workload, width, DENSE)
        gain = time_ratio(dense, record) if arm != DENSE and dense else None
        rows.append(
            WidthsRow(
                workload=workload,
                width=width,
                record=record,
                time=time_of(record, "step"),
                gain=gain,
                is_best=best is record,
            )
        )
    return rows


def columns(page: Widths, _: Sequence[WidthsRow]) -> list[Column[WidthsRow]]:
    def head(row: WidthsRow) -> dict[str, object]:
        return {"device": page.device, "part": row.workload, "width": row.width, "batch_size": row.record.batch_size}

    def tidy(row: WidthsRow) -> dict[str, object]:
        return {"arm": row.record.arm, **vars(Toggles.of(row.record))}

    def time(row: WidthsRow) -> str | None:
        return with_bounds(row.time.total, 1.0) if row.time else None

    def timing(row: WidthsRow) -> dict[str, object]:
        total = row.time.total if row.time else None
        return {**bounds("step_ms", total), "launches": total and total.launches}

    return [
        Column("part", lambda row: PARTS[row.workload][0].partition(",")[0], head, left=True),
        Column("width", lambda row: f"{row.width:,}"),
        Column("arm", lambda row: row.record.arm, tidy, left=True),
        Column("toggles", lambda row: Toggles.of(row.record).text + " (best)" * row.is_best, left=True),
        Column(
            "parameters",
            lambda row: row.record.parameters and f"{row.record.parameters:,}",
            lambda row: {"parameters": row.record.parameters},
            whole=True,
        ),
        Column("step, ms", time, timing),
        Column(
            "best dense / arm",
            lambda row: ratio_text(row.gain) if row.gain else None,
            lambda row: bounds("best_dense_over_arm", row.gain),
        ),
        Column(
            REMARKS,
            lambda row: row.remarks,
            lambda row: {"status": row.record.status, "remarks": row.remarks},
            left=True,
        ),
    ]


def _gains(rows: Sequence[WidthsRow], workload: str) -> dict[str, dict[int, Estimate]]:
    """By arm and width what dense training at its best takes over the arm at its best."""
    found: dict[str, dict[int, Estimate]] = {}
    for row in rows:
        if row.workload == workload and row.is_best and row.gain is not None:
            found.setdefault(row.record.arm, {})[row.width] = row.gain
    return dict(sorted(found.items(), key=lambda item: by_arm(item[0])))


def _slower(rows: Sequence[WidthsRow], page: Widths) -> list[str]:
    """A sentence per part and arm on the widths at which dense training does not surely take longer."""
    sentences = []
    for workload in page.parts:
        for arm, gains in _gains(rows, workload).items():
            widths = [f"{width:,}" for width, gain in sorted(gains.items()) if gain.span[0] <= 1]
            if widths:
                words = f"{PARTS[workload][0]}, {arm}: no surely shorter step at width {', '.join(widths)}."
                sentences.append(first_upper(words))
    return sentences


def caption(page: Widths, rows: Sequence[WidthsRow]) -> Caption:
    batches = {
        f"{PARTS[row.workload][0].partition(',')[0]}: batch {row.record.batch_size:,}"
        + (f" of length {row.record.sequence_length}" if row.workload == "encoder" else "")
        for row in rows
    }
    return Caption(
        title="Step time of dense training over that of the other arms, by width",
        facts=(
            device_fact(page, listed(page, "precision")),
            f"{first_upper('; '.join(sorted(batches)))}. {blocks_timed(page.shown)}.",
        ),
        of_picture=["Above 1 the arm takes less time than dense training. Both axes are logarithmic."],
        notes=[
            *_slower(rows, page),
            *brackets_note(estimate for row in rows for estimate in (row.time.total if row.time else None, row.gain)),
            "Each arm stands there in its fastest form; the table has all forms. Ranks are the same at every width.",
            *closing_notes(page),
        ],
        remarks=gathered((row.record.arm, {"width": f"{row.width:,}"}, row.remarks) for row in rows),
    )


def draw(page: Widths, rows: Sequence[WidthsRow], caption: Caption) -> Figure:
    gains = {workload: _gains(rows, workload) for workload in page.parts}
    arms = sorted({arm for found in gains.values() for arm in found}, key=by_arm)
    looks = strokes(arms)
    handles = [stroke_handle(stroke, f"dense / {arm}") for arm, stroke in looks.items()]
    handles += bounds_handles(row.gain for row in rows)
    titles = [PARTS[workload][0] for workload in page.parts]
    foot = (*caption.of_picture, *caption.notes)
    paper, [panels] = panel_page(caption.title, caption.facts, [titles], foot, 3.0, handles, 5)
    for axes, workload in zip(panels, page.parts, strict=True):
        if not gains[workload]:
            nothing_drawn(axes, "nothing timed")
            continue
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for arm, found in gains[workload].items():
            widths = sorted(found)
            axes.plot(widths, [found[width].value for width in widths], markersize=4, **looks[arm].look)
            for width in widths:
                axes.plot([width, width], found[width].span, **WHISKER)
        axes.axhline(1.0, color=INK, linewidth=0.8)
        number_axis(axes.xaxis, FixedLocator(page.widths(workload)))
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
    rows=rows_of,
    columns=columns,
    caption=caption,
    draw=draw,
    section="width",
)
