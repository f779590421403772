"""What forward keeps for backward, by kind of tensor; the largest batch that fits; peak memory and time by batch size.

A page per device and precision. A figure the paper lacks, so there is no verdict on a claim.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bench.core.launches import paired_launches
from figures import frame
from figures.arms import COMERA, DENSE, RANK_RIVAL, SIZE_RIVAL, Toggles
from figures.artifact import Artifact
from figures.artifacts.fig1 import CELL, among
from figures.columns import bounds_kinds, time_column, unit_of
from figures.draw import bars, facts
from figures.draw.captions import Caption, beside
from figures.draw.footnotes import Footnotes
from figures.draw.layout import Page, legend
from figures.draw.style import (
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
from figures.frame import Records
from figures.stats import cells
from figures.stats.cells import TARGETS
from figures.stats.time_values import time_ratio
from figures.text import NOT_ASKED, NOT_IN_GRID, NOT_RECORDED, OLDER, bounds, significant

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

#: Quantities of the table's lines.
KEPT, FORMED_AGAIN, OUTSIDE = "kept per block", "formed again per block", "kept outside of blocks"
LARGEST, PEAK, OVER_PLAIN = "largest batch", "predicted peak", "time over plain"

#: What a line is of whose kinds are added up; and the end of a quantity that was timed with the usual allocator.
ALL, USUAL = "all kinds", ", usual allocator"

_DEVICES = {"cuda": "CUDA device", "cpu": "CPU"}


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

    kept: pd.DataFrame = field(default_factory=pd.DataFrame)
    usual: cells.TimesAndMemory | None = None
    records: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def own(self) -> pd.DataFrame:
        return self.df

    @property
    def arms(self) -> list[str]:
        return sorted(set(self.df["arm"]), key=by_arm)

    @property
    def largest(self) -> pd.DataFrame:
        """Return the largest batch by arm and memory of the device in GiB, and the MiB that a prediction may take."""
        found = [{"arm": one.arm, **room} for one in self.kept["record"] for room in one.samples.get("largest", [])]
        return pd.DataFrame(found, columns=["arm", "memory_gib", "room_mib", "batch_size"])


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
    return replace(page, kept=kept, df=shown, left_out=(*page.left_out, *of_kept))


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


def table(page: ActivationsPage) -> pd.DataFrame:
    """Return a line per number: what is kept by kind, largest batches, times over the plain arm's, peaks and times."""
    parts = [*_kept(page), _largest(page), _over_plain(page, page, ""), _over_plain(page, page.usual, USUAL)]
    by_arm_shown = pd.concat(parts).sort_values("arm", key=lambda arms: arms.map(page.arms.index), kind="stable")
    status = dict(zip(page.kept["arm"], page.kept["status"], strict=True))
    by_arm_shown["status"] = [status.get(arm, NOT_RECORDED) for arm in by_arm_shown["arm"]]

    grid = pd.concat([page.runs, page.plans])[list(CELL)].drop_duplicates()
    grid = grid.sort_values(
        list(CELL), key=lambda one: one.map(by_arm) if one.name == "arm" else one, ignore_index=True
    )
    cells_found, dense = [], {"arm": DENSE}
    for target in TARGETS:
        peaks = page.memory(grid, target, DENSE, dense, asked=False)
        peaks.columns = peaks.columns.str.removeprefix(f"{target}_")
        lines = grid.assign(quantity=PEAK, of=target, unit="MiB", status=peaks["status"], value=peaks["peak_mib"])
        cells_found.append(lines.assign(over_dense=peaks[f"over_{DENSE}"])[peaks["status"] != NOT_IN_GRID])
    times, name = page.times(grid, DENSE, dense), time_column(page.per)
    unit = {"epoch": "s", "step": "ms"}[page.per]
    lines = grid.assign(quantity=f"time per {page.per}", of="this device", unit=unit, status=times["time_status"])
    for end in ("", "_low", "_high", "_bounds"):
        lines[f"value{end}"] = times[f"{name}{end}"]
    lines["launches"] = times["launches"].where(times["blocks"] > 0)
    lines["over_dense"] = times[f"time_over_{DENSE}"]
    cells_found.append(lines[times["time_status"] != NOT_RECORDED])

    columns = ["device", "arm", "batch_size", "quantity", "of", "unit", "status"]
    columns += ["value", "value_low", "value_high", "value_bounds", "launches", "over_dense"]
    found = pd.concat([by_arm_shown, pd.concat(cells_found).sort_index(kind="stable")], ignore_index=True)
    found = found.assign(device=page.device).reindex(columns=columns)
    return found.astype({"batch_size": "Int64", "launches": "Int64"})


def _kept(page: ActivationsPage) -> list[pd.DataFrame]:
    """Return the MiB that arms keep by kind, per block and outside of blocks, and what the plain arm keeps besides."""
    samples = [(one.arm, one.samples.get("kept", {})) for one in page.kept["record"]]
    tensors = [{"arm": arm, **tensor} for arm, kept in samples for tensor in kept.get("tensors", ())]
    of_block = pd.DataFrame(tensors, columns=["arm", "kind", "mib"])
    of_block["kind"] = of_block["kind"].where(of_block["kind"].isin(KINDS), "other")
    sizes = of_block.groupby(["arm", "kind"])["mib"].sum().unstack().reindex(columns=list(KINDS))
    sizes = sizes.where(sizes > 0)
    plain = sizes.reindex(sizes.index.map(plain_arm)).set_axis(sizes.index)
    apart = plain - sizes.fillna(0.0)
    outside = [(arm, kind, mib) for arm, kept in samples for kind, mib in kept.get("outside_mib", {}).items()]

    total = sizes.sum(axis=1, min_count=1).reindex(page.arms)
    whole = pd.DataFrame({"arm": page.arms, "of": ALL, "value": total.to_numpy()})
    whole["over_dense"] = (total / total.get(DENSE, float("nan"))).to_numpy()
    whole.loc[whole["arm"] == DENSE, "over_dense"] = float("nan")
    by_kind, again = (
        wide.rename_axis(columns="of").melt(ignore_index=False).dropna(subset="value").reset_index()
        for wide in (sizes, apart.where(apart > 0))
    )
    found = {KEPT: [whole, by_kind], FORMED_AGAIN: [again]}
    found[OUTSIDE] = [pd.DataFrame(outside, columns=["arm", "of", "value"])]
    batch = page.kept["batch_size"].iloc[0] if len(page.kept) else 0
    return [
        part.assign(quantity=quantity, unit="MiB", batch_size=batch)
        for quantity, parts in found.items()
        for part in parts
    ]


def _largest(page: ActivationsPage) -> pd.DataFrame:
    """Return the largest batches, with their ratios to dense's."""
    largest = page.largest.rename(columns={"batch_size": "value"})
    of_dense = largest[largest["arm"] == DENSE].set_index("memory_gib")["value"]
    over = largest["value"] / largest["memory_gib"].map(of_dense)
    return pd.DataFrame(
        {
            "arm": largest["arm"],
            "quantity": LARGEST,
            "of": largest["memory_gib"].map("{:g} GiB".format),
            "unit": "examples",
            "value": largest["value"],
            "over_dense": over.where((largest["arm"] != DENSE) & (largest["value"] > 0)),
        }
    )


def _over_plain(page: ActivationsPage, times: Any, allocator: str) -> pd.DataFrame:
    """Return the times of arms over those of the plain ones that they are forms of, by batch size.

    The plain one is, of all records, the newest that took turns with the arm: another day's would compare machines.
    """
    lines: list[dict[str, Any]] = []
    plain = frame.oldest_first(page.records[page.records["status"] == "ok"])
    for arm, batch, record in times.runs.sort_values("batch_size")[[*CELL, "record"]].to_numpy():
        name = plain_arm(arm)
        if arm == name or arm not in page.arms:
            continue
        shown, every = (
            df.loc[(df["arm"] == name) & (df["batch_size"] == batch), "record"] for df in (times.runs, plain)
        )
        bases = [*shown, *(one for one in every if paired_launches(record, one))]
        if ratio := time_ratio(record, bases[-1] if bases else None):
            launches = ratio.launches if ratio.blocks else None
            found = {"arm": arm, "batch_size": batch, "of": name, "launches": launches}
            lines.append(found | bounds("value", ratio))
    columns = ["arm", "batch_size", "of", "value"]
    return pd.DataFrame(lines, columns=None if lines else columns).assign(quantity=OVER_PLAIN + allocator, unit="1")


def shown(page: ActivationsPage, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm: what a block keeps, the largest batches, and the times over the plain arm's."""
    kept = table[(table["quantity"] == KEPT) & (table["of"] == ALL)]
    numbers = [significant(size) if pd.notna(size) else "" for size in kept["value"]]
    found = [kept.assign(heading="kept per block, MiB", text=numbers)]
    largest = table[table["quantity"] == LARGEST].assign(gib=lambda one: one["of"].str.split().str[0].astype(float))
    largest = largest.sort_values("gib", kind="stable")
    found.append(largest.assign(heading="batch in " + largest["of"], text=largest["value"].map("{:,.0f}".format)))
    for quantity in (OVER_PLAIN, OVER_PLAIN + USUAL):
        over = table[table["quantity"] == quantity].sort_values("batch_size", kind="stable")
        heading = f"{OVER_PLAIN}, batch " + over["batch_size"].astype(str) + quantity.removeprefix(OVER_PLAIN)
        found.append(over.assign(heading=heading, text=over["value"].map(significant) + "x"))
    lines = pd.concat(found)
    lines["text"] += [f" ({significant(over)}x)" if pd.notna(over) else "" for over in lines["over_dense"]]
    lines["text"] = lines["text"].where(lines["text"] != "", lines["status"])
    cells = lines.pivot(index="arm", columns="heading", values="text")
    cells = cells.reindex(index=page.arms, columns=lines["heading"].unique()).fillna(NOT_ASKED)
    cells.insert(0, "arm", [f"{arm} {mark}".rstrip() for arm, mark in _marks(page).items()])
    return cells.reset_index(drop=True)


def _marks(page: ActivationsPage) -> dict[str, str]:
    """Return the marks of the records of what arms keep."""
    older = page.kept.loc[page.is_older(page.kept), "arm"]
    return {arm: OLDER if arm in set(older) else "" for arm in page.arms}


def about(page: ActivationsPage, table: pd.DataFrame) -> dict[str, Any]:
    """Return what a block is, what fits, which times there are, and what has no record of what it keeps."""
    samples = [record.samples["kept"] for record in page.kept["record"] if "kept" in record.samples]
    kept = page.kept.sort_values("arm", key=lambda arms: arms.map(by_arm))
    return {
        "blocks": facts.span(one["blocks"] for one in samples),
        "alike": all(one["alike"] == one["blocks"] for one in samples),
        "batch": next(iter(page.kept["batch_size"]), 0),
        "rooms": page.largest.sort_values("memory_gib").set_index("memory_gib")["room_mib"].to_dict(),
        "batches": sorted(set(page.runs.loc[page.runs["status"] == "ok", "batch_size"])),
        "quantities": set(table["quantity"]),
        "marked": table.assign(older_code=bool(page.older_code)),
        "failed": kept[["arm", "batch_size"]].assign(kept_status=kept["status"], kept_message=kept["message"]),
    }


def draw(page: ActivationsPage, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw what is kept by kind of tensor, and the largest batch, peak and time by batch size."""
    footnotes = Footnotes()
    bands = _bands(page, table, footnotes) if len(page.kept) else []
    curves = partial(_draw_curves, page, table) if len(page.plans) else None
    return bars.draw_bars(caption, page.arms, bands, (*footnotes.lines(), *caption.of_picture), 0, curves)


def _bands(page: ActivationsPage, table: pd.DataFrame, footnotes: Footnotes) -> list[bars.Band]:
    """Return bands of what a block keeps, and of the largest batches."""
    fills = {**KINDS, "again": Fill("#ffffff", "....", edge="#6f6f6f")}
    lines = table[table["quantity"].isin([KEPT, FORMED_AGAIN])]
    sizes = lines[lines["quantity"] == KEPT].pivot(index="arm", columns="of", values="value").reindex(page.arms)
    sizes["again"] = lines[lines["quantity"] == FORMED_AGAIN].groupby("arm")["value"].sum()
    over = lines[lines["of"] == ALL].set_index("arm")["over_dense"]
    records, marks = frame.by_cell(page.kept, ["arm"]), _marks(page)
    reasons = []
    for arm, size in sizes[ALL].items():
        record = records.get(arm)
        reason = (record.status, record.message) if record else (NOT_RECORDED, "")
        reasons.append("" if pd.notna(size) else footnotes.words(*reason, marks[str(arm)]))
    known = bars.labels(sizes[ALL], over.reindex(page.arms), pd.Series(marks))
    kept = sizes.assign(label=known, instead=reasons)

    large = sizes.gt(0.001 * sizes[ALL], axis=0)  # a smaller kind needs no entry in the legend
    visible = large.assign(again=sizes["again"].notna()).any()
    words = {"masks": "masks of dropout", "again": "formed again in backward"}
    entries = {kind: words.get(kind, kind) for kind in fills if visible.get(kind, False)}
    device = _DEVICES[page.kept["predicted_for"].iloc[0] or "cuda"]
    batch = page.kept["batch_size"].iloc[0]
    heading = f"Kept for backward by a block at batch {batch}, in MiB, predicted for a {device}"
    found = [bars.Band(heading, {"": kept}, fills, entries)]

    panels = {}
    for gib in sorted(set(page.largest["memory_gib"])):
        room = f"{gib:g} GiB"
        largest = table[(table["quantity"] == LARGEST) & (table["of"] == room)].set_index("arm").reindex(page.arms)
        batches, is_ours = largest["value"], largest.index.map(plain_arm) == COMERA
        compared = [f"  {significant(over)}x" if pd.notna(over) else "" for over in largest["over_dense"]]
        missing = pd.Series(reasons, largest.index).replace("", NOT_RECORDED)
        panels[room] = pd.DataFrame(
            {
                "steps, CoMERA": batches.where(is_ours),
                "steps": batches.where(~is_ours),
                "label": batches.map("{:,.0f}".format) + compared,
                "instead": missing.where(batches.isna(), ""),
            }
        )
    if panels:
        heading = f"Largest batch that fits, in examples, predicted for a {device}"
        found.append(bars.Band(heading, panels, TIME_FILLS, {"steps, CoMERA": "CoMERA", "steps": "other arms"}))
    return found


def _draw_curves(page: ActivationsPage, table: pd.DataFrame, place: Page, part: int) -> None:
    """Peak memory by batch size with what fits the devices, and time by peak memory where anything was timed."""
    known = table[(table["quantity"] == PEAK) & table["value"].notna()]
    of = {target: known[known["of"] == target] for target in TARGETS}
    times = table[(table["quantity"] == f"time per {page.per}") & table["value"].notna()]
    timed = times.merge(of[page.kind][["arm", "batch_size", "value"]], on=["arm", "batch_size"], suffixes=("", "_peak"))
    target = "cuda" if len(of["cuda"]) else "cpu"
    strokes = _strokes(page.arms)
    handles = [stroke_handle(stroke, arm) for arm, stroke in strokes.items()]
    handles += whisker_handles(bounds_kinds(timed, "value"))
    heading = "Peak memory" + " and time" * (len(timed) > 0) + " by batch size"
    columns = 160 // (max(map(len, strokes)) + 7)  # characters of a line, and of an entry beside its words
    legend(place.parts[part], handles, columns, heading, handlelength=3.2)
    [[peaks, *right]] = place.panels(part, 2.6, 1 + (len(timed) > 0))

    points = of[target].astype({"batch_size": int})
    _curves(peaks, points["arm"], points["batch_size"], points["value"], strokes)
    peaks.set_xlabel("batch size")
    peaks.set_ylabel(f"predicted peak on a {_DEVICES[target]}, MiB")
    batches = sorted(set(points["batch_size"]))
    peaks.set_xticks(batches, [f"{batch:,}" for batch in batches])
    for gib, room in page.largest.groupby("memory_gib")["room_mib"].first().items():
        if target == "cuda" and room < peaks.get_ylim()[1]:
            peaks.axhline(room, color=FAINT, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
            look = {"xycoords": peaks.get_yaxis_transform(), "va": "bottom", "fontsize": 6.5, "color": FAINT}
            note(peaks, f"fits {gib:g} GiB", (0.01, room), (0, 1), **look)
    for axes in right:
        unit, scale = unit_of(timed.rename(columns={"value": time_column(page.per)}), page.per)
        bounded = timed.dropna(subset=["value_low", "value_high"])
        whiskers(axes, bounded["value_peak"], bounded["value_low"] * scale, bounded["value_high"] * scale)
        _curves(axes, timed["arm"], timed["value_peak"], timed["value"] * scale, strokes)
        axes.set_xlabel(f"predicted peak on a {_DEVICES[page.kind]}, MiB")
        axes.set_ylabel(f"time per {page.per} on this device, {unit}")


def _strokes(arms: list[str]) -> dict[str, Stroke]:
    """Return the look of each arm: the method decides colour and marker, what it recomputes dashes and filling."""
    known = {
        COMERA: EARLY_STROKE,
        SIZE_RIVAL: STROKES[0],
        RANK_RIVAL: STROKES[2],
        "galore": STROKES[1],
        DENSE: DENSE_STROKE,
    }
    others, spare = sorted({plain_arm(arm) for arm in arms} - set(known)), STROKES[3:]
    known |= {plain: spare[place % len(spare)] for place, plain in enumerate(others)}
    found = {}
    for arm in arms:
        base, mode = known[plain_arm(arm)], arm.removeprefix(plain_arm(arm))
        found[arm] = Stroke(base.colour, MODES.get(mode, "-"), base.marker, filled=mode in ("", ":lean"))
    return found


def _curves(axes: Any, arms: pd.Series, x: pd.Series, y: pd.Series, strokes: Mapping[str, Stroke]) -> None:
    """Draw a line per arm through its points, on logarithmic axes."""
    points = pd.DataFrame({"x": x, "y": y}).sort_values(["x", "y"])
    for arm, stroke in strokes.items():
        mine = points[arms[points.index] == arm]
        if len(mine):
            axes.plot(mine["x"], mine["y"], **stroke.look, linewidth=1.1, markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        number_axis(axis, LogLocator(10, subs=(1, 2, 5)))
    axes.grid(visible=True, axis="both")


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
