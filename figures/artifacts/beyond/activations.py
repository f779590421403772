"""What forward keeps for backward, by kind of tensor; the largest batch that fits; peak memory and time by batch size.

A page per device and precision. A figure the paper lacks, so there is no verdict on a claim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bench.core.intervals import Estimate
from bench.core.launches import paired_launches
from bench.core.record import Record
from figures.artifact import Artifact
from figures.page import bars, notes
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes
from figures.page.layout import Page, legend
from figures.page.style import (
    DENSE_STROKE,
    EARLY_STROKE,
    FAINT,
    STROKES,
    TIME_FILLS,
    WHISKER,
    Fill,
    Stroke,
    bounds_handles,
    note,
    number_axis,
    stroke_handle,
)
from figures.records import cells, select
from figures.records.cells import quotient
from figures.records.missing import Missing
from figures.records.select import (
    COMERA,
    DENSE,
    RANK_RIVAL,
    SIZE_RIVAL,
    Toggles,
    by_device,
    method_settings,
    model_setting,
)
from figures.records.time_values import time_ratio, time_unit
from figures.text import NOT_RECORDED, REMARKS, Column, bounds, ratio_text, significant

EXPERIMENTS = ("activations", "activations_memory", "activations_time")

#: Experiments that time and predict some of the same cells.
LENDERS = ("fig1", "fig1_memory")

#: Endings of arms that form again in backward what the plain arm keeps, with the dashes of their lines.
MODES = {":lean": (0, (5, 1.5)), ":lean_block": (0, (1.2, 1.2)), "+checkpoint": (0, (5, 1.5, 1, 1.5))}

#: Arms in drawing order, each before those that recompute; others follow.
METHODS = (COMERA, SIZE_RIVAL, RANK_RIVAL, f"{RANK_RIVAL}:linear", "lora", "lte", "galore", "galore:per_layer", DENSE)
ORDER = tuple(f"{method}{mode}" for method in METHODS for mode in ("", *MODES))

#: Kinds of kept tensors in drawing order; whatever else a record has is "other".
KINDS = {
    "outputs of linear layers": Fill("#1d2f4f", edge="#ffffff"),
    "activation functions": Fill("#8fc1d4", "\\\\", edge="#4f8396"),
    "attention": Fill("#cf6f33", edge="#ffffff"),
    "norms": Fill("#7d4468", "////", edge="#ffffff"),
    "sums": Fill("#f3e9bd", "xxx", edge="#8a7d45"),
    "masks": Fill("#0f4d3a", edge="#ffffff"),
    "rank-wide products": Fill("#c3ccd4", edge="#6f6f6f"),
    "other": Fill("#ffffff", edge="#222222"),
}
AGAIN = "again"

_KNOWN = {
    COMERA: EARLY_STROKE,
    SIZE_RIVAL: STROKES[0],
    RANK_RIVAL: STROKES[2],
    "galore": STROKES[1],
    DENSE: DENSE_STROKE,
}
_SPARE = STROKES[3:]
_LEGEND = 160  # characters that a line of the legend holds, seven of each entry beside its words
_VISIBLE = 0.001  # share of a bar below which a kind has no entry in the legend
_DEVICES = {"cuda": "CUDA device", "cpu": "CPU"}
_FILLS = {**KINDS, AGAIN: Fill("#ffffff", "....", edge="#6f6f6f")}
_WORDS = {"masks": "masks of dropout", AGAIN: "formed again in backward"}


def plain_arm(arm: str) -> str:
    """The arm without what it recomputes.

    >>> [plain_arm(arm) for arm in ("comera:lean_block", "low_rank@rank:linear+checkpoint", "dense")]
    ['comera', 'low_rank@rank:linear', 'dense']
    """
    arm = arm.removesuffix("+checkpoint")
    return next((arm.removesuffix(mode) for mode in MODES if arm.endswith(mode)), arm)


def by_arm(arm: str) -> tuple[int, str]:
    """The place of an arm in drawing order."""
    return ORDER.index(arm) if arm in ORDER else len(ORDER), arm


@dataclass(frozen=True, kw_only=True)
class ActivationsPage(cells.TimesAndMemory):
    kept: Mapping[str, Record] = field(default_factory=dict)  # by arm
    #: The same steps where freed memory goes back to the system, as is usual outside of this bench.
    usual: cells.TimesAndMemory | None = None
    records: Sequence[Record] = ()  # all that were timed, shown or not

    @property
    def own(self) -> Sequence[Record]:
        return self.shown

    @property
    def arms(self) -> list[str]:
        return sorted({record.arm for record in self.shown}, key=by_arm)

    @property
    def points(self) -> list[cells.CellRow]:
        """Every arm at every batch size that is timed or predicted, compared with dense at the same one."""
        found = {*self.timed, *(cell for _, cell in self.predicted)}
        return [
            cells.CellRow(**self.row(cell, (DENSE, cell[1]), cell in self.timed, asked=()))
            for cell in sorted(found, key=lambda cell: (by_arm(cell[0]), cell[1]))
        ]


def slower(times: cells.TimesAndMemory | None, arm: str, records: Sequence[Record]) -> dict[int, Estimate]:
    """The time of an arm over that of the plain one it is a form of, by batch size.

    The plain one is, of all ``records``, the newest that took turns with the arm: another day's would compare machines.
    """
    plain = plain_arm(arm)
    if times is None or arm == plain:
        return {}
    found: dict[int, Estimate | None] = {}
    runs = {batch: run for (one, batch), run in times.timed.items() if one == arm}
    for batch, run in sorted(runs.items()):
        of_plain = [one for one in records if (one.arm, one.batch_size) == (plain, batch) and one.status == "ok"]
        beside = [one for one in of_plain if paired_launches(run, one)]
        reference = select.oldest_first(beside)[-1] if beside else times.timed.get((plain, batch))
        found[batch] = time_ratio(run, reference)
    return {batch: ratio for batch, ratio in found.items() if ratio is not None}


def _kinds(record: Record | None) -> dict[str, float]:
    """MiB of the block that a record describes by kind, in drawing order; empty where it describes none."""
    sizes = dict.fromkeys(KINDS, 0.0)
    for tensor in record.samples.get("kept", {}).get("tensors", ()) if record else ():
        sizes[tensor["kind"] if tensor["kind"] in KINDS else "other"] += tensor["mib"]
    return {kind: size for kind, size in sizes.items() if size}


@dataclass(frozen=True, kw_only=True)
class ActivationsRow(Missing):
    """What one arm keeps, beside its plain arm and dense."""

    arm: str
    record: Record | None
    plain: Record | None
    dense: Record | None
    slower: Mapping[int, Estimate]
    slower_usual: Mapping[int, Estimate]  # with the usual allocator

    @property
    def kinds(self) -> dict[str, float]:
        """MiB of a block by kind."""
        return _kinds(self.record)

    @property
    def total(self) -> float:
        return sum(self.kinds.values())

    @property
    def again(self) -> dict[str, float]:
        """MiB of a block by kind that the plain arm keeps and this one does not."""
        apart = {kind: size - self.kinds.get(kind, 0.0) for kind, size in _kinds(self.plain).items()}
        return {kind: size for kind, size in apart.items() if size > 0 and self.kinds}

    @property
    def outside(self) -> dict[str, float]:
        """MiB of the rest of the model, by kind."""
        return self.record.samples.get("kept", {}).get("outside_mib", {}) if self.record else {}

    @property
    def over_dense(self) -> float | None:
        """What a block keeps, over dense's."""
        return quotient(self.total, sum(_kinds(self.dense).values())) if self.arm != DENSE else None

    @property
    def largest(self) -> dict[float, dict[str, Any]]:
        """Largest batches by memory of the device in GiB, with their ratio ``over_dense``."""
        found, base = ({one["memory_gib"]: one for one in _largest(record)} for record in (self.record, self.dense))
        over = {gib: quotient(one["batch_size"], base.get(gib, {}).get("batch_size")) for gib, one in found.items()}
        return {gib: {**one, "over_dense": over[gib] if self.arm != DENSE else None} for gib, one in found.items()}


def _largest(record: Record | None) -> list[dict[str, Any]]:
    return record.samples.get("largest", []) if record else []


def _setting(record: Record) -> select.Setting:
    return {**model_setting(record), "batch": record.batch_size, "predicted for": record.predicted_for}


def _times(
    records: Sequence[Record], device: Mapping[str, Any], toggles: Toggles, into: type[cells.Page]
) -> cells.Page:
    """Times and predictions of a page by arm and batch."""
    chosen = cells.Select(lambda one: (one.arm, one.batch_size))
    return chosen(records, into, **device, place=toggles.precision, suffix=toggles.names)


def _page(records: Sequence[Record], device: Mapping[str, Any], toggles: Toggles) -> ActivationsPage:
    kept = [one for one in records if one.measure == "kept" and one.precision == toggles.precision]
    kept, of_kept = select.narrow(kept, _setting, lambda one: one.arm, "record(s) of kept tensors")
    among = toggles.among(records)
    alike = [one for one in among if not kept or model_setting(one) == model_setting(kept[0])]
    if len(alike) < len(among):
        of_kept.append(f"{len(among) - len(alike)} record(s) of another model are left out.")
    page = _times(alike, device, toggles, ActivationsPage)
    own = {one.arm: method_settings(one) for one in page.shown}
    per_arm = (lambda one: one.arm), method_settings, (lambda one: one.arm)
    kept, of_arms = select.narrow_each(kept, *per_arm, "record(s) of kept tensors of {}", own)
    of_kept += [*of_arms, *select.repeats(kept, lambda one: one.arm, "record(s) of kept tensors")]
    newest = select.newest(kept, lambda one: one.arm)
    shown = select.oldest_first([*page.shown, *newest.values()])
    return replace(page, kept=newest, shown=shown, left_out=(*page.left_out, *of_kept))


def select_pages(records: Sequence[Record]) -> list[ActivationsPage]:
    """A selection per device and precision, of plain steps; lent records count for the arms of this figure's own."""
    pages = []
    for device, given in by_device(records):
        arms = {one.arm for one in given if one.experiment not in LENDERS}
        mine = [one for one in given if one.arm in arms]
        usual, rest = list[Record](), list[Record]()
        for one in mine:
            (usual if select.timing_setting(one)["allocator"] == "system" else rest).append(one)
        precisions = sorted({Toggles(one.precision) for one in rest}, key=lambda one: one.rank)
        for toggles in precisions:
            page = _page(rest, device, toggles)
            of_usual = _times(toggles.among(usual), device, toggles, cells.TimesAndMemory)
            pages.append(replace(page, usual=of_usual, records=toggles.among(mine)))
    return [page for page in pages if page.shown]


def rows_of(page: ActivationsPage) -> list[ActivationsRow]:
    """A row per arm."""
    rows = []
    for arm in page.arms:
        record, plain, dense = (page.kept.get(one) for one in (arm, plain_arm(arm), DENSE))
        status, message = (record.status, record.message) if record else (NOT_RECORDED, "")
        ratios = {
            "slower": slower(page, arm, page.records),
            "slower_usual": slower(page.usual, arm, page.records),
        }
        rows.append(
            ActivationsRow(
                status, message, page.older(record), arm=arm, record=record, plain=plain, dense=dense, **ratios
            )
        )
    return rows


def _count(largest: Mapping[str, Any]) -> str:
    """The largest batch, with its ratio to dense's."""
    over = largest["over_dense"]
    return f"{largest['batch_size']:,}" + (f"  {significant(over)}x" if over else "")


def _batch(page: ActivationsPage) -> int:
    return next((record.batch_size for record in page.kept.values()), 0)


def columns(page: ActivationsPage, rows: Sequence[ActivationsRow]) -> list[Column]:
    """A row of the CSV per number: what is kept by kind, largest batches, peaks, times."""

    def fits(gib: float) -> Column:
        return Column(f"batch in {gib:g} GiB", lambda row: _count(row.largest[gib]) if gib in row.largest else None)

    def peak(row: ActivationsRow) -> str:
        return significant(page.peak("cuda", (row.arm, _batch(page))), 4)

    def over_plain(batch: int) -> Column:
        return Column(f"time over plain at {batch}", lambda row: ratio_text(row.slower.get(batch)))

    def over_plain_usual(batch: int) -> Column:
        return Column(f"at {batch}, usual allocator", lambda row: ratio_text(row.slower_usual.get(batch)))

    return [
        Column("arm", lambda row: f"{row.arm} {row.marks}".rstrip(), left=True),
        Column("kept per block, MiB", lambda row: significant(row.total) if row.kinds else row.in_words),
        Column("formed again, MiB", lambda row: significant(sum(row.again.values())) if row.again else None),
        Column("kept outside, MiB", lambda row: significant(sum(row.outside.values())) if row.kinds else None),
        Column(f"peak at {_batch(page)}, MiB", peak),
        *map(fits, sorted({gib for row in rows for gib in row.largest})),
        *map(over_plain, sorted({batch for row in rows for batch in row.slower})),
        *map(over_plain_usual, sorted({batch for row in rows for batch in row.slower_usual})),
        Column(REMARKS, lambda row: row.in_full if row.failed else "", left=True),
        Column(tidy=lambda line: {"device": page.device, **line}, whole=True),
    ]


def tidy_rows(page: ActivationsPage, rows: Sequence[ActivationsRow]) -> list[dict[str, object]]:
    """Every number of the page with what it is of."""
    lines: list[dict[str, object]] = []

    def add(
        cell: tuple[str, int | None], quantity: str, of: str, unit: str, status: str, value: Any, over: Any
    ) -> None:
        line = {"arm": cell[0], "batch_size": cell[1], "quantity": quantity, "of": of, "unit": unit, "status": status}
        found = value if isinstance(value, Estimate) else Estimate(value, None, None, 0)
        launches = found.launches if found.blocks else None
        lines.append({**line, **bounds("value", found), "launches": launches, "over_dense": over})

    for row in rows:
        here, parts = (
            (row.arm, _batch(page)),
            {"formed again per block": row.again, "kept outside of blocks": row.outside},
        )
        add(here, "kept per block", "all kinds", "MiB", row.status, row.total if row.kinds else None, row.over_dense)
        for name, sizes in {"kept per block": row.kinds, **parts}.items():
            for kind, size in sizes.items():
                add(here, name, kind, "MiB", row.status, size, None)
        for gib, one in row.largest.items():
            batch, over = one["batch_size"], one["over_dense"]
            add((row.arm, None), "largest batch", f"{gib:g} GiB", "examples", row.status, batch, over)
        for quantity, ratios in (("", row.slower), (", usual allocator", row.slower_usual)):
            for batch, slowdown in ratios.items():
                add((row.arm, batch), f"time over plain{quantity}", plain_arm(row.arm), "1", row.status, slowdown, None)
    for point in page.points:
        for target, cell in point.memory.items():
            if cell.status:
                add(point.cell, "predicted peak", target, "MiB", cell.status, cell.peak, cell.ratio)
        if point.time.status:
            total, ratio = point.time.time and point.time.time.total, point.time.ratio and point.time.ratio.value
            unit = "s" if page.per == "epoch" else "ms"
            add(point.cell, f"time per {page.per}", "this device", unit, point.time.status, total, ratio)
    return lines


def _found(page: ActivationsPage, rows: Sequence[ActivationsRow]) -> str:
    """What a block is and what each arm keeps of it, in a sentence."""
    samples = [record.samples["kept"] for record in page.kept.values() if "kept" in record.samples]
    if not samples:
        return "Nothing recorded of what is kept."
    blocks = notes.span(one["blocks"] for one in samples)
    alike = "all alike" if all(one["alike"] == one["blocks"] for one in samples) else "the median one"
    least = min((row for row in rows if row.kinds), key=lambda row: row.total)
    over = f", {significant(least.over_dense)} times what one of dense keeps" if least.over_dense else ""
    return (
        f"A block (of {blocks}, {alike}) at batch {_batch(page)} keeps at least {significant(least.total)} MiB "
        f"({least.arm}){over}; traced on fake tensors."
    )


def caption(page: ActivationsPage, rows: Sequence[ActivationsRow]) -> Caption:
    rooms = {gib: one["room_mib"] for row in rows for gib, one in row.largest.items()}
    fits = ", ".join(f"{room:,.0f} MiB on {gib:g} GiB" for gib, room in sorted(rooms.items()))
    lines = [
        "Formed again: what the arm without :lean, :lean_block or +checkpoint keeps per block and this one does not, "
        "kind by kind. Norms and sums: what they put out, which the next layer or norm needs. What is made of weights "
        "alone (merged halves) counts as outside of blocks, as do embeddings and classifier; weights and the batch are "
        "not counted.",
    ]
    if fits:
        lines.append(
            f"A batch fits where its predicted peak is at most {fits}: the rest is set aside for driver, CUDA context "
            "and rounding. Each largest batch was predicted, and so was the next one, which does not fit; none was run."
        )
    sizes = sorted({batch for (_, batch), one in page.timed.items() if one.status == "ok"})
    if sizes:
        lines.append(f"Points of time, from left to right: batch {', '.join(map(str, sizes))}, where they were timed.")
    if any(row.slower or row.slower_usual for row in rows):
        lines.append(
            "Time over plain: that of a step over that of the arm without :lean, :lean_block or +checkpoint. Usual "
            "allocator: freed memory goes back to the system, as in most programs; this bench keeps it elsewhere."
        )
    return Caption(
        title=f"What forward keeps for backward, and the largest batch that fits, {notes.model_words(page)}",
        facts=(notes.step_fact(page), _found(page, rows), notes.data_fact(page)),
        of_picture=[bars.SCALES.format("dense's")],
        notes=list(dict.fromkeys([*lines, *notes.cell_notes(page, page.points), *notes.closing_notes(page)])),
        remarks=[f"{row.arm}: {row.in_full}" for row in rows if row.failed],
    )


def _stroke(arm: str, others: Sequence[str]) -> Stroke:
    """The method decides colour and marker, what it recomputes dashes and filling."""
    plain = plain_arm(arm)
    base = _KNOWN.get(plain) or _SPARE[others.index(plain) % len(_SPARE)]
    mode = arm.removeprefix(plain)
    return Stroke(base.colour, MODES.get(mode, "-"), base.marker, filled=mode in ("", ":lean"))


def _draw_curves(page: ActivationsPage, rows: Sequence[ActivationsRow], place: Page, part: int) -> None:
    """Peak memory by batch size with what fits the devices, and time by peak memory where anything was timed."""
    timed = [point for point in page.points if point.time.time and point.memory[page.kind].peak]
    target = "cuda" if any(point.memory["cuda"].peak for point in page.points) else "cpu"
    others = sorted({plain_arm(arm) for arm in page.arms} - set(_KNOWN))
    strokes = {arm: _stroke(arm, others) for arm in page.arms}
    whiskers = bounds_handles(point.time.time.total for point in timed if point.time.time)
    handles = [*(stroke_handle(stroke, arm) for arm, stroke in strokes.items()), *whiskers]
    heading = "Peak memory" + " and time" * bool(timed) + " by batch size"
    legend(place.parts[part], handles, _LEGEND // (max(map(len, strokes)) + 7), heading, handlelength=3.2)
    [[peaks, *times]] = place.panels(part, 2.6, 1 + bool(timed))
    points = [
        (arm, float(batch), peak)
        for (target_, (arm, batch)) in page.predicted
        if target_ == target and (peak := page.peak(target, (arm, batch)))
    ]
    _curves(peaks, points, strokes, "batch size", f"predicted peak on a {_DEVICES[target]}, MiB")
    batches = sorted({int(batch) for _, batch, _ in points})
    peaks.set_xticks(batches, [f"{batch:,}" for batch in batches])
    for gib, room in {gib: one["room_mib"] for row in rows for gib, one in row.largest.items()}.items():
        if target == "cuda" and room < peaks.get_ylim()[1]:
            peaks.axhline(room, color=FAINT, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
            look = {"xycoords": peaks.get_yaxis_transform(), "va": "bottom", "fontsize": 6.5, "color": FAINT}
            note(peaks, f"fits {gib:g} GiB", (0.01, room), (0, 1), **look)
    if timed:
        unit, scale = time_unit(timed)
        spans = [(one, one.memory[page.kind].peak, one.time.time.total) for one in timed if one.time.time]
        for _, peak, total in spans:
            if total.low is not None and total.high is not None:
                times[0].plot([peak, peak], [total.low * scale, total.high * scale], **WHISKER)
        points = [(one.cell[0], peak, total.value * scale) for one, peak, total in spans if peak]
        x, y = f"predicted peak on a {_DEVICES[page.kind]}, MiB", f"time per {page.per} on this device, {unit}"
        _curves(times[0], points, strokes, x, y)


def _curves(
    axes: Any, points: Sequence[tuple[str, float, float]], strokes: Mapping[str, Stroke], x: str, y: str
) -> None:
    """A line per arm through its points, on logarithmic axes."""
    for arm, stroke in strokes.items():
        if mine := sorted((one, other) for name, one, other in points if name == arm):
            axes.plot(*zip(*mine, strict=True), **stroke.look, linewidth=1.1, markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, name in ((axes.xaxis, x), (axes.yaxis, y)):
        number_axis(axis, LogLocator(10, subs=(1, 2, 5)))
        axis.set_label_text(name)
    axes.grid(visible=True, axis="both")


def _bands(page: ActivationsPage, rows: Sequence[ActivationsRow], footnotes: Footnotes) -> list[bars.Band]:
    """What a block keeps, and the largest batches."""

    def kept_bar(row: ActivationsRow) -> bars.Bar:
        if not row.kinds:
            return bars.Bar(instead=footnotes.instead(row))
        parts = (*row.kinds.items(), *([(AGAIN, sum(row.again.values()))] if row.again else []))
        return bars.Bar(parts, label=bars.value_label(row.total, row.over_dense, row.marks))

    def largest_bar(row: ActivationsRow, gib: float) -> bars.Bar:
        if gib not in row.largest:
            return bars.Bar(instead=footnotes.instead(row) if not row.kinds else NOT_RECORDED)
        fill = "steps, CoMERA" if plain_arm(row.arm) == COMERA else "steps"
        return bars.Bar(((fill, float(row.largest[gib]["batch_size"])),), label=_count(row.largest[gib]))

    if not page.kept:
        return []
    device = _DEVICES[next(iter(page.kept.values())).predicted_for or "cuda"]
    present = {kind for row in rows for kind, size in row.kinds.items() if size > _VISIBLE * row.total}
    present |= {AGAIN for row in rows if row.again}
    kinds = tuple((kind, _WORDS.get(kind, kind)) for kind in _FILLS if kind in present)
    heading = f"Kept for backward by a block at batch {_batch(page)}, in MiB, predicted for a {device}"
    kept = bars.Band(heading, (bars.BarPanel("", tuple(map(kept_bar, rows))),), _FILLS, kinds)
    panels = tuple(
        bars.BarPanel(f"{gib:g} GiB", tuple(largest_bar(row, gib) for row in rows))
        for gib in sorted({gib for row in rows for gib in row.largest})
    )
    arms = (("steps, CoMERA", "CoMERA"), ("steps", "other arms"))
    largest = bars.Band(f"Largest batch that fits, in examples, predicted for a {device}", panels, TIME_FILLS, arms)
    return [kept, largest] if panels else [kept]


def draw(page: ActivationsPage, rows: Sequence[ActivationsRow], caption: Caption) -> Figure:
    footnotes = Footnotes()
    bands = _bands(page, rows, footnotes)
    foot = (*footnotes.lines(), *caption.of_picture, *caption.notes)
    curves = partial(_draw_curves, page, rows) if page.predicted else None
    return bars.draw_bars(caption.title, caption.facts, page.arms, bands, foot, 0, curves)


ARTIFACT = Artifact(
    name="activations",
    heading="What is kept for backward, and the largest batch",
    summary="memory kept for backward by kind of tensor, largest batch that fits, peak memory and time by batch size; "
    "an image per device and precision",
    experiments=EXPERIMENTS,
    lenders=LENDERS,
    made_by="make reproduce-activations",
    order=85,
    select=select_pages,
    rows=rows_of,
    columns=columns,
    tidy_rows=tidy_rows,
    caption=caption,
    draw=draw,
)
