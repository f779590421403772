"""Activations that forward keeps for backward, by kind; the largest batch that fits; peaks and time by batch size.

A page per device and precision. A figure the paper lacks, so there is no verdict on a claim.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from bench.core.cell import Arm
from figures import frame
from figures.arms import ARMS, COMERA, DENSE, RANK_RIVAL, SIZE_RIVAL, Toggles, by_precision
from figures.artifact import Artifact
from figures.artifacts.fig1 import CELL, among
from figures.columns import bounds_kinds, time_column, unit_of
from figures.draw import bars, facts, style
from figures.draw.captions import Caption
from figures.draw.footnotes import Footnotes
from figures.draw.layout import Paper, legend
from figures.draw.lines import lines
from figures.frame import Records
from figures.stats import cells
from figures.stats.cells import TARGETS
from figures.text import NOT_ASKED, NOT_IN_GRID, NOT_RECORDED, OLDER, bounds, significant

EXPERIMENTS = ("activations", "activations_memory", "activations_time")

#: Experiments that time and predict some of the same cells.
LENDERS = ("fig1", "fig1_memory")

#: Endings of arms that form again in backward what the plain arm keeps, with the dashes of their lines.
MODES: dict[str, Any] = {
    ":lean": (0, (5, 1.5)),
    ":lean_block": (0, (1.2, 1.2)),
    "+checkpoint": (0, (5, 1.5, 1, 1.5)),
}

#: Arms in drawing order, each before those that recompute; others follow.
METHODS = (*ARMS[:-1], "galore:per_layer", DENSE)
ORDER = tuple(f"{method}{mode}" for method in METHODS for mode in ("", *MODES))

#: Kinds of kept tensors in drawing order; whatever else a record has is "other".
KINDS = {
    "outputs of linear layers": style.Fill("#1d2f4f", edge="#ffffff"),
    "activation functions": style.Fill("#8fc1d4", "\\\\", edge="#4f8396"),
    "attention": style.Fill("#cf6f33", edge="#ffffff"),
    "norms": style.Fill("#7d4468", "////", edge="#ffffff"),
    "sums": style.Fill("#f3e9bd", "xxx", edge="#8a7d45"),
    "masks": style.Fill("#0f4d3a", edge="#ffffff"),
    "rank-wide products": style.Fill("#c3ccd4", edge="#6f6f6f"),
    "other": style.Fill("#ffffff", edge="#222222"),
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
    parsed = Arm.parse(arm)
    variant = "" if f":{parsed.variant}" in MODES else parsed.variant
    return str(replace(parsed, variant=variant, checkpoint=False))


def by_arm(arm: str) -> tuple[int, str]:
    """Return the place of an arm in drawing order."""
    return ORDER.index(arm) if arm in ORDER else len(ORDER), arm


@dataclass(frozen=True, kw_only=True, eq=False)
class ActivationsPage(cells.TimesAndMemory):
    """Times and predictions, and what is kept.

    Args:
        kept: the records of what each arm keeps.
        usual: the same steps where freed memory goes back to the system, as is usual outside of this bench.
        timed_all: all that were timed, shown or not.
    """

    kept: pd.DataFrame = field(default_factory=pd.DataFrame)
    usual: pd.DataFrame = field(default_factory=pd.DataFrame)
    timed_all: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def own(self) -> pd.DataFrame:
        return self.df

    @property
    def arms(self) -> list[str]:
        return sorted(set(self.df["arm"]), key=by_arm)

    @property
    def largest(self) -> pd.DataFrame:
        """Return the largest batch by arm and memory of the device in GiB, and the MiB that a prediction may take."""
        found = [
            (one["arm"], one.get("samples.largest", [])) for one in frame.dicts(self.kept, "arm", "samples.largest")
        ]
        rooms = [{"arm": arm, **room} for arm, largest in found for room in largest]
        return pd.DataFrame(rooms, columns=["arm", "memory_gib", "room_mib", "batch_size"])


def select(records: Records) -> list[ActivationsPage]:
    """Return a page per device and precision, of plain steps; lent records count for the arms of this figure's own."""
    pages, what = [], "record(s) of kept tensors"
    same = (*frame.MODEL, "batch_size", "predicted_for")
    for device, given in frame.by_device(records):
        df = given[given["arm"].isin(given.loc[~given["experiment"].isin(LENDERS), "arm"])]
        is_usual = frame.column(df, "timing.allocator") == "system"
        usual, rest = df[is_usual], df[~is_usual]
        models = frame.settings(rest, frame.MODEL)
        for precision in sorted(set(rest["precision"]), key=by_precision):
            toggles = Toggles(precision)
            about = {**device, "place": precision, "suffix": toggles.names}
            kept = rest[(rest["measure"] == "kept") & (rest["precision"] == precision)]
            kept, notes = frame.narrow(kept, same, ["arm"], what)
            steps = among(rest, toggles)
            alike = models[steps.index].isin(models[kept.index]) | kept.empty
            if not alike.all():
                notes.append(f"{(~alike).sum()} record(s) of another model are left out.")
            page = cells.choose(steps[alike], ActivationsPage, CELL, **about)
            own, of_arm = frame.own_settings(page.df, "arm", frame.METHOD), f"{what} of {{}}"
            kept, more = frame.narrow_each(kept, "arm", frame.METHOD, ["arm"], of_arm, own)
            notes += [*more, *frame.repeats(kept, ["arm"], what)]
            kept = frame.newest(kept, ["arm"])
            of_usual = cells.choose(among(usual, toggles), cells.TimesAndMemory, CELL, **about)
            page = replace(
                page,
                kept=kept,
                usual=of_usual.runs,
                timed_all=frame.oldest_first(among(df, toggles)),
                df=frame.oldest_first(pd.concat([page.df, kept])),
                left_out=(*page.left_out, *notes),
            )
            pages.append(page)
    return [page for page in pages if len(page.df)]


def table(page: ActivationsPage) -> pd.DataFrame:
    """Return a line per number: what is kept by kind, largest batches, times over the plain arm's, peaks and times."""
    times_over = [_over_plain(page, page.runs), _over_plain(page, page.usual, USUAL)]
    of_arms = frame.in_order(pd.concat([_kept(page), _largest(page), *times_over]), "arm", by_arm)
    status = dict(zip(page.kept["arm"], page.kept["status"], strict=True))
    of_arms["status"] = [status.get(arm, NOT_RECORDED) for arm in of_arms["arm"]]

    grid = pd.concat([page.runs, page.predictions])[list(CELL)].drop_duplicates()
    grid = frame.in_order(grid.sort_values("batch_size"), "arm", by_arm).reset_index(drop=True)
    of_cells, dense = [], {"arm": DENSE}
    for target in TARGETS:
        peaks = page.memory(grid, target, DENSE, dense, asked=False)
        names = {"status": "status", "peak_mib": "value", "over_dense": "over_dense"}
        lines = peaks.rename(columns={f"{target}_{old}": new for old, new in names.items()})
        lines = grid.join(lines[[*names.values()]]).assign(quantity=PEAK, of=target, unit="MiB")
        of_cells.append(lines[lines["status"] != NOT_IN_GRID])
    times, name = page.times(grid, DENSE, dense), time_column(page.per)
    lines = grid.assign(
        quantity=f"time per {page.per}",
        of="this device",
        unit={"epoch": "s", "step": "ms"}[page.per],
        status=times["time_status"],
        launches=times["launches"].where(times["blocks"] > 0),
        over_dense=times[f"time_over_{DENSE}"],
        **{f"value{end}": times[f"{name}{end}"] for end in ("", "_low", "_high", "_bounds")},
    )
    of_cells.append(lines[times["time_status"] != NOT_RECORDED])

    columns = ["device", "arm", "batch_size", "quantity", "of", "unit", "status"]
    columns += ["value", "value_low", "value_high", "value_bounds", "launches", "over_dense"]
    found = pd.concat([of_arms, pd.concat(of_cells).sort_index(kind="stable")], ignore_index=True)
    found = found.assign(device=page.device).reindex(columns=columns)
    return found.astype({"batch_size": "Int64", "launches": "Int64"})


def _kept(page: ActivationsPage) -> pd.DataFrame:
    """Return the MiB that arms keep by kind, per block and outside of blocks, and what the plain arm keeps besides."""
    kept = [(one["arm"], one.get("samples.kept", {})) for one in frame.dicts(page.kept, "arm", "samples.kept")]
    held = [{"arm": arm, **tensor} for arm, found in kept for tensor in found.get("tensors", ())]
    tensors = pd.DataFrame(held, columns=["arm", "kind", "mib"])
    kinds = tensors["kind"].where(tensors["kind"].isin(KINDS), "other")
    sizes = tensors.groupby(["arm", kinds])["mib"].sum().unstack().reindex(columns=list(KINDS))
    sizes = sizes.where(sizes > 0)
    again = sizes.reindex(sizes.index.map(plain_arm)).set_axis(sizes.index) - sizes.fillna(0.0)
    sizes.insert(0, ALL, sizes.sum(axis=1, min_count=1))

    by_kind, again = (
        wide.rename_axis(index="arm", columns="of").melt(ignore_index=False).reset_index()
        for wide in (sizes.reindex(page.arms), again.where(again > 0))
    )
    is_whole, is_dense = by_kind["of"] == ALL, by_kind["arm"] == DENSE
    dense = by_kind.loc[is_whole & is_dense, "value"].max()
    by_kind["over_dense"] = (by_kind["value"] / dense).where(is_whole & ~is_dense)
    apart = [(arm, *one) for arm, found in kept for one in found.get("outside_mib", {}).items()]
    outside = pd.DataFrame(apart, columns=["arm", "of", "value"])
    parts = [
        by_kind[is_whole | by_kind["value"].notna()].assign(quantity=KEPT),
        again.dropna(subset="value").assign(quantity=FORMED_AGAIN),
        outside.assign(quantity=OUTSIDE),
    ]
    return pd.concat(parts).assign(unit="MiB", batch_size=next(iter(page.kept["batch_size"]), 0))


def _largest(page: ActivationsPage) -> pd.DataFrame:
    """Return the largest batches, with their ratios to dense's."""
    largest = page.largest.rename(columns={"batch_size": "value"})
    is_dense, size = largest["arm"] == DENSE, largest.pop("memory_gib")
    over = largest["value"] / size.map(largest["value"][is_dense].set_axis(size[is_dense]))
    over = over.where(~is_dense & (largest["value"] > 0))
    found = largest[["arm", "value"]].assign(quantity=LARGEST, of=size.map("{:g} GiB".format))
    return found.assign(unit="examples", over_dense=over)


def _over_plain(page: ActivationsPage, runs: pd.DataFrame, allocator: str = "") -> pd.DataFrame:
    """Return the times of arms over those of the plain ones that they are forms of, by batch size.

    The plain one is, of all records, the newest that took turns with the arm: another day's would compare machines.
    """
    ratios, places = [], []
    finished = page.timed_all[page.timed_all["status"] == "ok"]
    for one in frame.each(runs[runs["arm"].isin(page.arms)].sort_values("batch_size")):
        name = plain_arm(one.arm)
        bases, every = (
            list(df.loc[(df["arm"] == name) & (df["batch_size"] == one.batch_size), "times"]) for df in (runs, finished)
        )
        bases = [other for other in bases if other] if one.times else []
        bases += [other for other in every if one.times and one.times.together(other)]
        ratio = one.times.over(bases[-1]) if bases and one.arm != name else None
        if ratio is not None:
            launches = ratio.launches if ratio.blocks else None
            places.append((one.arm, one.batch_size, name, launches))
            ratios.append(bounds("value", ratio))
    found = pd.DataFrame(places, columns=["arm", "batch_size", "of", "launches"])
    found = found.join(pd.DataFrame(ratios, columns=[*bounds("value", None)]))
    return found.assign(quantity=OVER_PLAIN + allocator, unit="1")


def shown(page: ActivationsPage, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per arm: what a block keeps, the largest batches, and the times over the plain arm's."""
    kept = table[(table["quantity"] == KEPT) & (table["of"] == ALL)]
    sizes = zip(kept["value"], kept["status"], strict=True)
    sizes_or_why = [significant(size) if pd.notna(size) else status for size, status in sizes]
    found = [kept.assign(heading="kept per block, MiB", text=sizes_or_why)]
    largest = table[table["quantity"] == LARGEST]
    largest = frame.in_order(largest, "of", lambda size: float(size.split()[0]))
    text = largest["value"].map("{:,.0f}".format)
    found.append(largest.assign(heading="batch in " + largest["of"], text=text))
    for allocator in ("", USUAL):
        over = table[table["quantity"] == OVER_PLAIN + allocator]
        heading = (f"{OVER_PLAIN}, batch " + over["batch_size"].astype(str)) + allocator
        over = over.assign(heading=heading, text=over["value"].map(significant) + "x")
        found.append(over.sort_values("batch_size", kind="stable"))
    lines = pd.concat(found)
    lines["text"] += [f" ({significant(over)}x)" if pd.notna(over) else "" for over in lines["over_dense"]]
    cells = lines.pivot(index="arm", columns="heading", values="text")
    cells = cells.reindex(index=page.arms, columns=lines["heading"].unique()).fillna(NOT_ASKED)
    cells.insert(0, "arm", (cells.index + " " + _marks(page)).str.rstrip())
    return cells.reset_index(drop=True)


def _marks(page: ActivationsPage) -> pd.Series:
    older = page.kept.loc[page.is_older(page.kept), "arm"]
    return pd.Series({arm: OLDER if arm in set(older) else "" for arm in page.arms}, dtype=object)


def about(page: ActivationsPage, table: pd.DataFrame) -> dict[str, Any]:
    """Return what a block is, what fits, which times there are, and what has no record of what it keeps."""
    samples = [*page.kept["samples.kept"].dropna()]
    kept = frame.in_order(page.kept, "arm", by_arm)[["arm", "batch_size", "status", "message"]]
    rooms = page.largest.sort_values("memory_gib").set_index("memory_gib")["room_mib"]
    return {
        "blocks": facts.span(one["blocks"] for one in samples),
        "alike": all(one["alike"] == one["blocks"] for one in samples),
        "batch": next(iter(page.kept["batch_size"]), 0),
        "rooms": rooms.to_dict(),
        "workspaces": f"{cells.BEFORE_HOPPER_MIB:.3g} or {cells.ON_HOPPER_MIB:g}",
        "batches": sorted(set(page.runs.loc[page.runs["status"] == "ok", "batch_size"])),
        "quantities": set(table["quantity"]),
        "marked": table.assign(older_code=bool(page.older_code)),
        "failed": kept.rename(columns={"status": "kept_status", "message": "kept_message"}),
    }


def draw(page: ActivationsPage, table: pd.DataFrame, caption: Caption) -> Figure:
    """Draw what is kept by kind of tensor, and the largest batch, peak and time by batch size."""
    footnotes = Footnotes()
    bands = _bands(page, table, footnotes) if len(page.kept) else []
    curves = partial(_draw_curves, page, table) if len(page.predictions) else None
    notes = (*footnotes.lines(), *caption.of_picture)
    return bars.draw_bars(caption, page.arms, bands, notes, below=curves)


def _bands(page: ActivationsPage, table: pd.DataFrame, footnotes: Footnotes) -> list[bars.Band]:
    """Return bands of what a block keeps, and of the largest batches."""
    fills = {**KINDS, "again": style.Fill("#ffffff", "--", edge="#6f6f6f")}
    kept, marks = table[table["quantity"] == KEPT], _marks(page)
    sizes = kept.pivot(index="arm", columns="of", values="value").reindex(page.arms, columns=[ALL, *KINDS])
    sizes["again"] = table[table["quantity"] == FORMED_AGAIN].groupby("arm")["value"].sum()
    whole = kept[kept["of"] == ALL].set_index("arm")
    messages = page.kept.set_index("arm")["message"].reindex(whole.index, fill_value="")
    why = zip(whole["status"], messages, marks, strict=True)
    found = [footnotes.words(*one) if no else "" for one, no in zip(why, whole["value"].isna(), strict=True)]
    reasons = pd.Series(found, whole.index, dtype=object)
    known = bars.labels(sizes[ALL], whole["over_dense"], marks)
    sizes = sizes.assign(label=known, instead=reasons)
    # a smaller kind needs no entry in the legend
    large = sizes[list(KINDS)].gt(0.001 * sizes[ALL], axis=0).any()
    entries = {kind: kind for kind in KINDS if large[kind]}
    if "masks" in entries:
        entries["masks"] = "masks of dropout"
    if sizes["again"].notna().any():
        entries["again"] = "formed again in backward"
    first = page.kept.iloc[0]
    device = _DEVICES[first["predicted_for"] or "cuda"]
    heading = f"Kept for backward by a block at batch {first['batch_size']}, in MiB, predicted for a {device}"
    bands = [bars.Band(heading, {"": sizes}, fills, entries)]

    panels, is_ours = {}, whole.index.map(plain_arm) == COMERA
    every = table[table["quantity"] == LARGEST]
    for gib in sorted(set(page.largest["memory_gib"])):
        room = f"{gib:g} GiB"
        largest = every[every["of"] == room].set_index("arm").reindex(page.arms)
        batches = largest["value"]
        compared = [f"  {significant(over)}x" if over > 0 else "" for over in largest["over_dense"]]
        panels[room] = pd.DataFrame(
            {
                "steps, CoMERA": batches.where(is_ours),
                "steps": batches.where(~is_ours),
                "label": batches.map("{:,.0f}".format) + compared,
                "instead": reasons.replace("", NOT_RECORDED).where(batches.isna(), ""),
            }
        )
    if panels:
        heading = f"Largest batch that fits, in examples, predicted for a {device}"
        entries = {"steps, CoMERA": "CoMERA", "steps": "other arms"}
        bands.append(bars.Band(heading, panels, style.TIME_FILLS, entries))
    return bands


def _draw_curves(page: ActivationsPage, table: pd.DataFrame, place: Paper, part: int) -> None:
    """Peak memory by batch size with what fits the devices, and time by peak memory where anything was timed."""
    known = table.dropna(subset="value")
    peaks, times = (known[known["quantity"] == one] for one in (PEAK, f"time per {page.per}"))
    target = "cuda" if "cuda" in set(peaks["of"]) else "cpu"
    own = peaks.loc[peaks["of"] == page.kind, ["arm", "batch_size", "value"]]
    timed = times.merge(own, on=["arm", "batch_size"], suffixes=("", "_peak"))
    strokes = _strokes(page.arms)
    handles = [style.stroke_handle(stroke, arm) for arm, stroke in strokes.items()]
    handles += style.whisker_handles(bounds_kinds(timed, "value"))
    heading = "Peak memory" + " and time" * (len(timed) > 0) + " by batch size"
    # characters of a line, and of an entry beside its words
    columns = 160 // (max(map(len, strokes)) + 7)
    legend(place.parts[part], handles, columns, heading, handlelength=3.2)
    [[left, *right]] = place.panels(part, 2.6, 1 + (len(timed) > 0))

    points = peaks[peaks["of"] == target].astype({"batch_size": int})
    _curves(left, points, "batch_size", strokes)
    left.set_xlabel("batch size")
    left.set_ylabel(f"predicted peak on a {_DEVICES[target]}, MiB")
    batches = sorted(set(points["batch_size"]))
    left.set_xticks(batches, [f"{batch:,}" for batch in batches])
    for gib, room in page.largest.groupby("memory_gib")["room_mib"].first().items():
        if target == "cuda" and room < left.get_ylim()[1]:
            left.axhline(room, color=style.FAINT, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
            look = {"va": "bottom", "fontsize": 6.5, "color": style.FAINT}
            at_left = left.get_yaxis_transform()
            style.note(left, f"fits {gib:g} GiB", (0.01, room), (0, 1), xycoords=at_left, **look)
    for axes in right:
        unit, scale = unit_of(timed.rename(columns={"value": time_column(page.per)}), page.per)
        timed[["value", "value_low", "value_high"]] *= scale
        _curves(axes, timed, "value_peak", strokes)
        axes.set_xlabel(f"predicted peak on a {_DEVICES[page.kind]}, MiB")
        axes.set_ylabel(f"time per {page.per} on this device, {unit}")


def _strokes(arms: list[str]) -> dict[str, style.Stroke]:
    """Return the look of each arm: the method decides colour and marker, what it recomputes dashes and filling."""
    of_method = dict(zip((SIZE_RIVAL, "galore", RANK_RIVAL), style.STROKES, strict=False))
    of_method |= {COMERA: style.EARLY_STROKE, DENSE: style.DENSE_STROKE}
    others = sorted({plain_arm(arm) for arm in arms} - set(of_method))
    of_method |= dict(zip(others, itertools.cycle(style.STROKES[3:]), strict=False))
    found = {}
    for arm in arms:
        base, mode = of_method[plain_arm(arm)], arm.removeprefix(plain_arm(arm))
        is_filled = mode in ("", ":lean")
        found[arm] = style.Stroke(base.colour, MODES.get(mode, "-"), base.marker, is_filled)
    return found


def _curves(axes: Any, points: pd.DataFrame, x: str, strokes: Mapping[str, style.Stroke]) -> None:
    """Draw a line per arm through the values of its points, on logarithmic axes."""
    lines(axes, points.sort_values([x, "value"]), x, "value", "arm", strokes, linewidth=1.1, markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        style.number_axis(axis, LogLocator(10, subs=(1, 2, 5)))
    axes.grid(visible=True, axis="both")


ARTIFACT = Artifact(
    name="activations",
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
    draw=draw,
)
