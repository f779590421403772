"""What forward keeps for backward, by kind of tensor; the largest batch that fits; peak memory and time by batch size.

A page per device and precision. A figure the paper lacks, so there is no verdict on a claim.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bench.core.intervals import Estimate
from bench.core.launches import paired_launches
from bench.core.record import Record
from figures import frame
from figures.arms import COMERA, DENSE, RANK_RIVAL, SIZE_RIVAL, Toggles
from figures.artifact import Artifact
from figures.artifacts.fig1 import CELL, among
from figures.columns import bounds_kinds, lines_of, table_of, time_column, unit_of
from figures.frame import Records
from figures.page import bars, facts
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.footnotes import Footnotes, has_failed
from figures.page.layout import Page, legend
from figures.page.style import (
    DENSE_STROKE,
    EARLY_STROKE,
    FAINT,
    STROKES,
    TIME_FILLS,
    Fill,
    Stroke,
    note,
    number_axis,
    stroke_handle,
    whisker_handles,
    whiskers,
)
from figures.records import cells
from figures.records.cells import quotient
from figures.records.time_values import time_of, time_ratio, time_status
from figures.text import NOT_ASKED, NOT_IN_GRID, NOT_RECORDED, bounds, significant

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
    """Return the arm without what it recomputes.

    >>> [plain_arm(arm) for arm in ("comera:lean_block", "low_rank@rank:linear+checkpoint", "dense")]
    ['comera', 'low_rank@rank:linear', 'dense']
    """
    arm = arm.removesuffix("+checkpoint")
    return next((arm.removesuffix(mode) for mode in MODES if arm.endswith(mode)), arm)


def by_arm(arm: str) -> tuple[int, str]:
    """Return the place of an arm in drawing order."""
    return ORDER.index(arm) if arm in ORDER else len(ORDER), arm


@dataclass(frozen=True, kw_only=True, eq=False)
class ActivationsPage(cells.TimesAndMemory):
    """Times and predictions, and what is kept.

    Args:
        kept: the records of what each arm keeps.
        usual: the same steps where freed memory goes back to the system, as is usual outside of this bench.
        records: all that were timed, shown or not.
    """

    kept: Mapping[str, Record] = field(default_factory=dict)
    usual: cells.TimesAndMemory | None = None
    records: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def own(self) -> pd.DataFrame:
        return self.df

    @property
    def arms(self) -> list[str]:
        return sorted(set(self.df["arm"]), key=by_arm)


def slower(times: cells.TimesAndMemory | None, arm: str, records: pd.DataFrame) -> dict[int, Estimate]:
    """Return the time of an arm over that of the plain one it is a form of, by batch size.

    The plain one is, of all ``records``, the newest that took turns with the arm: another day's would compare machines.
    """
    plain = plain_arm(arm)
    if times is None or arm == plain:
        return {}
    found: dict[int, Estimate | None] = {}
    of_plain = frame.oldest_first(records[(records["arm"] == plain) & (records["status"] == "ok")])
    for batch, run in sorted((batch, run) for (one, batch), run in times.timed.items() if one == arm):
        mine = of_plain.loc[of_plain["batch_size"] == batch, "record"]
        beside = [one for one in mine if paired_launches(run, one)]
        found[batch] = time_ratio(run, beside[-1] if beside else times.timed.get((plain, batch)))
    return {batch: ratio for batch, ratio in found.items() if ratio is not None}


def kinds(record: Record | None) -> dict[str, float]:
    """Return MiB of the block that a record describes by kind, in drawing order; empty where it describes none."""
    sizes = dict.fromkeys(KINDS, 0.0)
    for tensor in record.samples.get("kept", {}).get("tensors", ()) if record else ():
        sizes[tensor["kind"] if tensor["kind"] in KINDS else "other"] += tensor["mib"]
    return {kind: size for kind, size in sizes.items() if size}


def _largest(record: Record | None) -> list[dict[str, Any]]:
    return record.samples.get("largest", []) if record else []


def _page(df: pd.DataFrame, toggles: Toggles, about: Mapping[str, Any]) -> ActivationsPage:
    kept = df[(df["measure"] == "kept") & (df["precision"] == toggles.precision)]
    what = "record(s) of kept tensors"
    kept, of_kept = frame.narrow(kept, (*frame.MODEL, "batch_size", "predicted_for"), ["arm"], what)
    given = among(df, toggles)
    models = frame.settings(df, frame.MODEL)
    alike = given[models[given.index] == models[kept.index[0]]] if len(kept) else given
    if len(alike) < len(given):
        of_kept.append(f"{len(given) - len(alike)} record(s) of another model are left out.")
    page = cells.choose(alike, ActivationsPage, CELL, **about)
    own = frame.own_settings(page.df, "arm", frame.METHOD)
    kept, of_arms = frame.narrow_each(kept, "arm", frame.METHOD, ["arm"], f"{what} of {{}}", own)
    of_kept += [*of_arms, *frame.repeats(kept, ["arm"], what)]
    kept = frame.newest(kept, ["arm"])
    shown = frame.oldest_first(pd.concat([page.df, kept]))
    return replace(page, kept=frame.by_cell(kept, ["arm"]), df=shown, left_out=(*page.left_out, *of_kept))


def select(records: Records) -> list[ActivationsPage]:
    """Return a page per device and precision, of plain steps; lent records count for the arms of this figure's own."""
    pages = []
    for device, given in frame.by_device(records):
        own = given[~given["experiment"].isin(LENDERS)]
        df = given[given["arm"].isin(own["arm"])]
        is_usual = frame.column(df, "timing.allocator") == "system"
        usual, rest = df[is_usual], df[~is_usual]
        for toggles in sorted({Toggles(one) for one in rest["precision"]}, key=lambda one: one.rank):
            about = {**device, "place": toggles.precision, "suffix": toggles.names}
            page = _page(rest, toggles, about)
            of_usual = cells.choose(among(usual, toggles), cells.TimesAndMemory, CELL, **about)
            pages.append(replace(page, usual=of_usual, records=among(df, toggles)))
    return [page for page in pages if len(page.df)]


#: Quantities of the table's lines.
KEPT, FORMED_AGAIN, OUTSIDE = "kept per block", "formed again per block", "kept outside of blocks"
LARGEST, PEAK, OVER_PLAIN = "largest batch", "predicted peak", "time over plain"

#: What a line is of whose kinds are added up; and the end of a quantity that was timed with the usual allocator.
ALL, USUAL = "all kinds", ", usual allocator"


def formed_again(page: ActivationsPage, arm: str) -> dict[str, float]:
    """Return MiB of a block by kind that the plain arm keeps and this one does not."""
    own, plain = kinds(page.kept.get(arm)), kinds(page.kept.get(plain_arm(arm)))
    apart = {kind: size - own.get(kind, 0.0) for kind, size in plain.items()}
    return {kind: size for kind, size in apart.items() if size > 0 and own}


def _status(page: ActivationsPage, arm: str) -> tuple[str, str, str]:
    """Return status, message and marks of the record of what an arm keeps."""
    record = page.kept.get(arm)
    status, message = (record.status, record.message) if record else (NOT_RECORDED, "")
    return status, message, page.older(record)


def table(page: ActivationsPage) -> pd.DataFrame:
    """Return a line per number: what is kept by kind, largest batches, times over the plain arm's, peaks and times."""
    lines = [line for arm in page.arms for line in _lines_of_arm(page, arm)]
    cells_found = {*page.timed, *(cell for _, cell in page.predicted)}
    for arm, batch in sorted(cells_found, key=lambda cell: (by_arm(cell[0]), cell[1])):
        cell, dense = (arm, batch), (DENSE, batch)
        for target in cells.TARGETS:
            peak = page.memory_columns(target, cell, dense, DENSE, asked=False)
            status, size, over = (peak[f"{target}_{name}"] for name in ("status", "peak_mib", f"over_{DENSE}"))
            if status != NOT_IN_GRID:
                lines.append(_line(cell, PEAK, target, "MiB", status, size, over))
        if run := page.timed.get(cell):
            time, ratio = time_of(run, page.per), time_ratio(run, page.timed.get(dense)) if cell != dense else None
            unit, status = {"epoch": "s", "step": "ms"}[page.per], time_status(run, time)
            total, name = time and time.total, f"time per {page.per}"
            lines.append(_line(cell, name, "this device", unit, status, total, ratio.value if ratio else None))
    return table_of([{"device": page.device, **line} for line in lines], whole=("batch_size", "launches"))


def _lines_of_arm(page: ActivationsPage, arm: str) -> Iterator[dict[str, Any]]:
    """Return what an arm keeps and may keep, and how much longer it takes than the plain one."""
    record, dense = page.kept.get(arm), page.kept.get(DENSE) if arm != DENSE else None
    here, status, own = (arm, _batch(page)), _status(page, arm)[0], kinds(record)
    over = quotient(sum(own.values()), sum(kinds(dense).values()))
    yield _line(here, KEPT, ALL, "MiB", status, sum(own.values()) if own else None, over)
    outside = record.samples.get("kept", {}).get("outside_mib", {}) if record else {}
    for name, sizes in {KEPT: own, FORMED_AGAIN: formed_again(page, arm), OUTSIDE: outside}.items():
        for kind, size in sizes.items():
            yield _line(here, name, kind, "MiB", status, size, None)
    base = {one["memory_gib"]: one["batch_size"] for one in _largest(dense)}
    for one in _largest(record):
        gib, batch = one["memory_gib"], one["batch_size"]
        yield _line((arm, None), LARGEST, f"{gib:g} GiB", "examples", status, batch, quotient(batch, base.get(gib)))
    for name, times in ((OVER_PLAIN, page), (OVER_PLAIN + USUAL, page.usual)):
        for batch, ratio in slower(times, arm, page.records).items():
            yield _line((arm, batch), name, plain_arm(arm), "1", status, ratio, None)


def _line(
    cell: tuple[str, int | None], quantity: str, of: str, unit: str, status: str, value: Any, over: float | None
) -> dict[str, Any]:
    found = value if isinstance(value, Estimate) else Estimate(value, None, None, 0)
    return {
        "arm": cell[0],
        "batch_size": cell[1],
        "quantity": quantity,
        "of": of,
        "unit": unit,
        "status": status,
        **bounds("value", found),
        "launches": found.launches if found.blocks else None,
        "over_dense": over,
    }


def _batch(page: ActivationsPage) -> int:
    return next((record.batch_size for record in page.kept.values()), 0)


def _values(table: pd.DataFrame, quantity: str, column: str = "value") -> dict[tuple[str, str], Any]:
    """Return the values of a quantity by arm and what they are of."""
    found = table[table["quantity"] == quantity]
    return dict(zip(zip(found["arm"], found["of"], strict=True), found[column], strict=True))


def shown(page: ActivationsPage, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm: what a block keeps, the largest batches, and the times over the plain arm's."""
    of = {name: table[table["quantity"] == name] for name in (KEPT, LARGEST, OVER_PLAIN, OVER_PLAIN + USUAL)}
    ordered = [
        of[KEPT][of[KEPT]["of"] == ALL],
        of[LARGEST].sort_values("of", kind="stable", key=lambda rooms: rooms.str.split().str[0].astype(float)),
        *(of[name].sort_values("batch_size", kind="stable") for name in (OVER_PLAIN, OVER_PLAIN + USUAL)),
    ]
    found = {"arm": {arm: f"{arm} {_status(page, arm)[2]}".rstrip() for arm in page.arms}}
    for line in lines_of(pd.concat(ordered)):
        value, over, batch, quantity = (line[name] for name in ("value", "over_dense", "batch_size", "quantity"))
        if quantity == KEPT:
            heading, text = "kept per block, MiB", significant(value) if pd.notna(value) else ""
        elif quantity == LARGEST:
            heading, text = f"batch in {line['of']}", f"{round(value):,}"
        else:
            heading = f"{OVER_PLAIN}, batch {batch}{quantity.removeprefix(OVER_PLAIN)}"
            text = f"{significant(value)}x"
        compared = f" ({significant(over)}x)" if pd.notna(over) else ""
        found.setdefault(heading, {})[line["arm"]] = text + compared or _status(page, line["arm"])[0]
    return pd.DataFrame(found, index=page.arms).fillna(NOT_ASKED).reset_index(drop=True)


def rooms(page: ActivationsPage) -> dict[float, float]:
    """Return the MiB that a prediction may take, by memory of the device in GiB."""
    return {one["memory_gib"]: one["room_mib"] for arm in page.arms for one in _largest(page.kept.get(arm))}


def about(page: ActivationsPage, table: pd.DataFrame) -> dict[str, Any]:
    """Return what a block is, what fits, which times there are, and what has no record of what it keeps."""
    samples = [record.samples["kept"] for record in page.kept.values() if "kept" in record.samples]
    failed = [(arm, page.kept[arm]) for arm in page.arms if arm in page.kept and has_failed(page.kept[arm].status)]
    return {
        "blocks": facts.span(one["blocks"] for one in samples),
        "alike": all(one["alike"] == one["blocks"] for one in samples),
        "batch": _batch(page),
        "rooms": dict(sorted(rooms(page).items())),
        "batches": sorted({batch for (_, batch), one in page.timed.items() if one.status == "ok"}),
        "quantities": set(table["quantity"]),
        "marked": table.assign(older_code=bool(page.older_code)),
        "failed": pd.DataFrame(
            [
                {"arm": arm, "batch_size": one.batch_size, "kept_status": one.status, "kept_message": one.message}
                for arm, one in failed
            ]
        ),
    }


def _stroke(arm: str, others: Sequence[str]) -> Stroke:
    """Return the look of an arm: the method decides colour and marker, what it recomputes dashes and filling."""
    plain = plain_arm(arm)
    base = _KNOWN.get(plain) or _SPARE[others.index(plain) % len(_SPARE)]
    mode = arm.removeprefix(plain)
    return Stroke(base.colour, MODES.get(mode, "-"), base.marker, filled=mode in ("", ":lean"))


def _draw_curves(page: ActivationsPage, table: pd.DataFrame, place: Page, part: int) -> None:
    """Peak memory by batch size with what fits the devices, and time by peak memory where anything was timed."""
    known = table[(table["quantity"] == PEAK) & table["value"].notna()]
    of = {target: known[known["of"] == target] for target in cells.TARGETS}
    times = table[(table["quantity"] == f"time per {page.per}") & table["value"].notna()]
    timed = times.merge(of[page.kind][["arm", "batch_size", "value"]], on=["arm", "batch_size"], suffixes=("", "_peak"))
    target = "cuda" if len(of["cuda"]) else "cpu"
    others = sorted({plain_arm(arm) for arm in page.arms} - set(_KNOWN))
    strokes = {arm: _stroke(arm, others) for arm in page.arms}
    handles = [stroke_handle(stroke, arm) for arm, stroke in strokes.items()]
    handles += whisker_handles(bounds_kinds(timed, "value"))
    heading = "Peak memory" + " and time" * (len(timed) > 0) + " by batch size"
    legend(place.parts[part], handles, _LEGEND // (max(map(len, strokes)) + 7), heading, handlelength=3.2)
    [[peaks, *right]] = place.panels(part, 2.6, 1 + (len(timed) > 0))
    points = list(of[target][["arm", "batch_size", "value"]].itertuples(index=False, name=None))
    _curves(peaks, points, strokes, "batch size", f"predicted peak on a {_DEVICES[target]}, MiB")
    batches = sorted({int(batch) for _, batch, _ in points})
    peaks.set_xticks(batches, [f"{batch:,}" for batch in batches])
    for gib, room in rooms(page).items():
        if target == "cuda" and room < peaks.get_ylim()[1]:
            peaks.axhline(room, color=FAINT, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
            look = {"xycoords": peaks.get_yaxis_transform(), "va": "bottom", "fontsize": 6.5, "color": FAINT}
            note(peaks, f"fits {gib:g} GiB", (0.01, room), (0, 1), **look)
    for axes in right:
        unit, scale = unit_of(timed.rename(columns={"value": time_column(page.per)}), page.per)
        bounded = timed.dropna(subset=["value_low", "value_high"])
        whiskers(axes, bounded["value_peak"], bounded["value_low"] * scale, bounded["value_high"] * scale)
        x, y = f"predicted peak on a {_DEVICES[page.kind]}, MiB", f"time per {page.per} on this device, {unit}"
        scaled = timed.assign(value=timed["value"] * scale)[["arm", "value_peak", "value"]]
        _curves(axes, list(scaled.itertuples(index=False, name=None)), strokes, x, y)


def _curves(
    axes: Any, points: Sequence[tuple[str, float, float]], strokes: Mapping[str, Stroke], x: str, y: str
) -> None:
    """Draw a line per arm through its points, on logarithmic axes."""
    for arm, stroke in strokes.items():
        if mine := sorted((one, other) for name, one, other in points if name == arm):
            axes.plot(*zip(*mine, strict=True), **stroke.look, linewidth=1.1, markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, name in ((axes.xaxis, x), (axes.yaxis, y)):
        number_axis(axis, LogLocator(10, subs=(1, 2, 5)))
        axis.set_label_text(name)
    axes.grid(visible=True, axis="both")


def _bands(page: ActivationsPage, table: pd.DataFrame, footnotes: Footnotes) -> list[bars.Band]:
    """Return bands of what a block keeps, and of the largest batches."""
    kept, over = _values(table, KEPT), _values(table, KEPT, "over_dense")
    largest, largest_over = _values(table, LARGEST), _values(table, LARGEST, "over_dense")
    again = table[table["quantity"] == FORMED_AGAIN].groupby("arm")["value"].sum()

    def kept_bar(arm: str) -> bars.Bar:
        parts = [(kind, kept[arm, kind]) for kind in KINDS if (arm, kind) in kept]
        if not parts:
            return bars.Bar(instead=footnotes.words(*_status(page, arm)))
        parts += [(AGAIN, again[arm])] if arm in again else []
        return bars.Bar(tuple(parts), label=bars.value_label(kept[arm, ALL], over[arm, ALL], _status(page, arm)[2]))

    def largest_bar(arm: str, room: str) -> bars.Bar:
        if (arm, room) not in largest:
            is_kept = not pd.isna(kept[arm, ALL])
            return bars.Bar(instead=NOT_RECORDED if is_kept else footnotes.words(*_status(page, arm)))
        fill, batch = "steps, CoMERA" if plain_arm(arm) == COMERA else "steps", largest[arm, room]
        over_dense = largest_over[arm, room]
        compared = "" if pd.isna(over_dense) else f"  {significant(over_dense)}x"
        return bars.Bar(((fill, float(batch)),), label=f"{round(batch):,}{compared}")

    if not page.kept:
        return []
    device = _DEVICES[next(iter(page.kept.values())).predicted_for or "cuda"]
    present = {kind for (arm, kind), size in kept.items() if kind != ALL and size > _VISIBLE * kept[arm, ALL]}
    present |= {AGAIN} if len(again) else set()
    words = tuple((kind, _WORDS.get(kind, kind)) for kind in _FILLS if kind in present)
    heading = f"Kept for backward by a block at batch {_batch(page)}, in MiB, predicted for a {device}"
    found = [bars.Band(heading, (bars.BarPanel("", tuple(map(kept_bar, page.arms))),), _FILLS, words)]
    panels = tuple(
        bars.BarPanel(room, tuple(largest_bar(arm, room) for arm in page.arms))
        for room in (f"{gib:g} GiB" for gib in sorted(rooms(page)))
    )
    arms = (("steps, CoMERA", "CoMERA"), ("steps", "other arms"))
    heading = f"Largest batch that fits, in examples, predicted for a {device}"
    return [*found, bars.Band(heading, panels, TIME_FILLS, arms)] if panels else found


def draw(page: ActivationsPage, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw what is kept by kind of tensor, and the largest batch, peak and time by batch size."""
    footnotes = Footnotes()
    bands = _bands(page, table, footnotes)
    foot = (*footnotes.lines(), *caption.of_picture, *caption.notes)
    curves = partial(_draw_curves, page, table) if page.predicted else None
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
    select=select,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
)
