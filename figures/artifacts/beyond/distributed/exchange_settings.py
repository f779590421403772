"""Step time of several ranks against the size of DDP's buckets, and against the steps between two averages."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator

from bench.core.intervals import Estimate
from bench.core.record import Record
from figures.artifact import Artifact
from figures.artifacts.beyond.distributed.arms import base_arm, by_arm, style
from figures.artifacts.beyond.distributed.measured import link_words, order_of_rate, setting
from figures.page import notes
from figures.page.drawn import Caption
from figures.page.layout import panel_page
from figures.page.style import WHISKER, bounds_handles, number_axis, stroke_handle
from figures.records.select import COMERA, DENSE, Selected, by_device, narrow, newest, oldest_first
from figures.records.time_values import Time, time_of, time_ratio
from figures.text import REMARKS, Column, bounds, brackets_note, ratio_text, significant, with_bounds

#: What is varied: the column of the record, what its panels are called, and the words of their axis.
VARIED = {
    "bucket_mib": ("size of DDP's buckets", "bucket, MiB"),
    "local_steps": ("steps between two averages", "local steps"),
}

#: What is varied, its value, rate of the link in Mbit/s, arm without exchange.
Cell = tuple[str, float, float | None, str]


def _cell(record: Record) -> Cell:
    varied = next(name for name in VARIED if getattr(record, name) is not None)
    return varied, float(getattr(record, varied)), record.link_mbit, base_arm(record)


@dataclass(frozen=True, kw_only=True)
class Settings(Selected):
    """The newest record of each cell of one device."""

    cells: dict[Cell, Record]

    @functools.cached_property
    def panels(self) -> list[list[tuple[str, float | None]]]:
        """A row of panels per setting that is varied, a panel per rate of the link."""
        found = {(varied, mbit) for varied, _, mbit, _ in self.cells}
        rows = [
            sorted((one for one in found if one[0] == name), key=lambda one: order_of_rate(one[1])) for name in VARIED
        ]
        return [row for row in rows if row]


@dataclass(frozen=True, kw_only=True)
class ExchangeRow:
    """A measured step."""

    varied: str
    value: float
    mbit: float | None
    arm: str
    record: Record
    time: Time | None
    ratio: Estimate | None  # to CoMERA's with the same setting over the same link

    @property
    def remarks(self) -> str:
        return "" if self.record.status == "ok" else f"{self.record.status}: {self.record.message}"


def select(records: Sequence[Record]) -> list[Settings]:
    """A page per device."""
    varied = [record for record in records if any(getattr(record, name) is not None for name in VARIED)]
    pages = []
    for device, mine in by_device(varied):
        chosen, left_out = narrow(mine, setting, _cell, "measurements")
        cells = newest(chosen, _cell)
        pages.append(Settings(**device, shown=oldest_first(cells.values()), left_out=tuple(left_out), cells=cells))
    return pages


def rows_of(page: Settings) -> list[ExchangeRow]:
    """By what is varied, rate, value and arm."""
    place = list(VARIED).index
    order = sorted(page.cells, key=lambda cell: (place(cell[0]), order_of_rate(cell[2]), cell[1], by_arm(cell[3])))
    rows = []
    for varied, value, mbit, arm in order:
        record = page.cells[varied, value, mbit, arm]
        ratio = time_ratio(record, page.cells.get((varied, value, mbit, COMERA))) if arm != COMERA else None
        time = time_of(record, "step")
        rows.append(ExchangeRow(varied=varied, value=value, mbit=mbit, arm=arm, record=record, time=time, ratio=ratio))
    return rows


def columns(page: Settings, _: Sequence[ExchangeRow]) -> list[Column[ExchangeRow]]:
    def head(row: ExchangeRow) -> dict[str, object]:
        return {"device": page.device, "varied": row.varied, "link_mbit": row.mbit}

    def time(row: ExchangeRow) -> str | None:
        return with_bounds(row.time.total) if row.time else None

    def timing(row: ExchangeRow) -> dict[str, object]:
        total = row.time.total if row.time else None
        return {**bounds("step_ms", total), "launches": total and total.launches}

    return [
        Column("link, setting", lambda row: f"{link_words(row.mbit)}, {VARIED[row.varied][1]}", head, left=True),
        Column("value", lambda row: f"{row.value:g}", lambda row: {"value": row.value}),
        Column(
            "arm", lambda row: f"{row.arm} {page.older(row.record)}".rstrip(), lambda row: {"arm": row.arm}, left=True
        ),
        Column("step, ms", time, timing),
        Column(
            "/ comera",
            lambda row: ratio_text(row.ratio, row.arm == COMERA),
            lambda row: bounds("over_comera", row.ratio),
        ),
        Column(
            "sent, MiB",
            lambda row: significant(row.record.sent_buckets_mib),
            lambda row: {"sent_mib": row.record.sent_buckets_mib},
        ),
        Column(
            "held, MiB",
            lambda row: significant(row.record.exchange_memory_mib),
            lambda row: {"exchange_memory_mib": row.record.exchange_memory_mib},
        ),
        Column(
            REMARKS,
            lambda row: row.remarks,
            lambda row: {"status": row.record.status, "remarks": row.remarks},
            left=True,
        ),
    ]


def _gain_by_local_steps(rows: Sequence[ExchangeRow]) -> list[str]:
    """What dense training takes over CoMERA where averages are rare, beside where they are not: a sentence per rate."""
    sentences = []
    found: dict[float | None, list[ExchangeRow]] = {}
    for row in rows:
        if row.varied == "local_steps" and row.arm == DENSE and row.ratio is not None:
            found.setdefault(row.mbit, []).append(row)
    for mbit, some in found.items():
        ratios = [f"{ratio_text(row.ratio)} with {row.value:g}" for row in some]
        sentences.append(f"Dense / CoMERA at {link_words(mbit)}: {'; '.join(ratios)} local step(s).")
    return sentences


def _spread_by_bucket(rows: Sequence[ExchangeRow]) -> list[str]:
    """The quickest and the slowest size of buckets, and whether these differ at all, a sentence per rate and arm."""
    sentences = []
    for mbit, arm in dict.fromkeys((row.mbit, row.arm) for row in rows if row.varied == "bucket_mib"):
        some = [row for row in rows if (row.varied, row.mbit, row.arm) == ("bucket_mib", mbit, arm)]
        times = {row.value: row.time.total for row in some if row.time}
        if len(times) > 1:
            low, high = (pick(times, key=lambda size: times[size].value) for pick in (min, max))
            more = f"with {high:g} MiB {times[high].value / times[low].value - 1:.0%} more"
            surely = ", and their bounds overlap" if times[low].span[1] >= times[high].span[0] else ""
            sentences.append(f"Buckets of {arm} at {link_words(mbit)}: quickest with {low:g} MiB; {more}{surely}.")
    return sentences


def caption(page: Settings, rows: Sequence[ExchangeRow]) -> Caption:
    one = page.shown[-1]
    varied = dict.fromkeys(row.varied for row in rows)
    of_local_steps = [
        "A step with local steps is the mean of a round, the average included.",
        *_gain_by_local_steps(rows),
        "Local steps (as DiLoCo) change what is trained as well; here only time and bytes are measured.",
    ]
    return Caption(
        title=f"Step time of several ranks by the {', and by the '.join(VARIED[name][0] for name in varied)}",
        facts=(
            notes.step_fact(page),
            f"{one.world_size} ranks, batch {one.batch_size} per rank, {one.backend}, a link of a limited rate. "
            f"{notes.listed(page, 'dataset')!r} data, {notes.blocks_timed(page.shown)}.",
        ),
        of_picture=["Both axes are logarithmic."],
        notes=[
            *(of_local_steps if "local_steps" in varied else []),
            *_spread_by_bucket(rows),
            *brackets_note(estimate for row in rows for estimate in (row.time.total if row.time else None, row.ratio)),
            *notes.galore_note(page.shown),
            *notes.closing_notes(page),
        ],
        remarks=notes.gathered((row.arm, {VARIED[row.varied][1]: f"{row.value:g}"}, row.remarks) for row in rows),
    )


def draw(page: Settings, rows: Sequence[ExchangeRow], caption: Caption) -> Figure:
    arms = sorted({row.arm for row in rows}, key=by_arm)
    handles = [stroke_handle(style(arm)[0], arm) for arm in arms]
    handles += bounds_handles(row.time.total for row in rows if row.time)
    titles = [[f"{VARIED[varied][0]}, {link_words(mbit)}" for varied, mbit in line] for line in page.panels]
    foot = (*caption.of_picture, *caption.notes)
    paper, panels = panel_page(caption.title, caption.facts, titles, foot, 2.4, handles, 6)
    for line, names in zip(panels, page.panels, strict=True):
        for axes, (varied, mbit) in zip(line, names, strict=True):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            mine = [row for row in rows if (row.varied, row.mbit) == (varied, mbit) and row.time]
            for arm in arms:
                points = [(row.value, row.time.total) for row in mine if row.arm == arm and row.time]
                axes.plot([x for x, _ in points], [y.value for _, y in points], markersize=4, **style(arm)[0].look)
                for x, time in points:
                    axes.plot([x, x], time.span, **WHISKER)
            number_axis(axes.xaxis, FixedLocator(sorted({row.value for row in mine})))
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
    rows=rows_of,
    columns=columns,
    caption=caption,
    draw=draw,
    section="link, setting",
)
