"""The contraction planner judged on a grid of shapes: its choice over the best measured candidate; a page per device.

A figure that the paper lacks, so there is no claim to judge.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator

from bench.core.intervals import Estimate, unpaired_ratio
from figures.artifact import Artifact
from figures.page.drawn import Caption
from figures.page.layout import Page, legend
from figures.page.plan_notes import closing_lines, timing_fact
from figures.page.style import EARLY_STROKE, FAINT, INK, STROKES, Stroke, note, number_axis, stroke_handle, strokes
from figures.records.plans import Grid, MeasuredPlan, Planned, PlannedLayer, select_plans
from figures.text import NOT_RECORDED, REMARKS, Column, bounds, brackets_note, significant, with_bounds

#: What is asked of the planner: a choice within ``NEAR`` of the best measured candidate in this share of at least so
#: many shapes, and never beyond ``FAR`` times the best.
NEAR, FAR, SHARE, SHAPES = 1.1, 1.5, 0.9, 60

_CELL, _PANEL = 0.27, 1.75  # inches: the heights of a cell and of a panel
_COLUMNS = 3  # maps beside one another, and panels of c
_CURVE_END = 4.0

#: Fill and ink of a cell, from the best choice to the worst; lightness alone tells them apart.
_SHADES = (
    (1.0, "#ffffff", INK, "the best is chosen"),
    (NEAR, "#dfe7ef", INK, f"within {NEAR:.2f} of it"),
    (FAR, "#9db4c8", INK, f"within {FAR:.2f}"),
    (math.inf, "#1d2f4f", "#ffffff", f"beyond {FAR:.2f}"),
)
_NOT_MEASURED: Mapping[str, Any] = {"facecolor": "white", "edgecolor": FAINT, "linewidth": 0.4, "hatch": "////"}


@dataclass(frozen=True)
class PlanChoice:
    """A choice of the planner that was measured."""

    planned: Planned
    best: MeasuredPlan
    ratio: Estimate  # time of the chosen plan to that of the best
    over_dense: Estimate | None  # to that of nn.Linear
    is_best: bool


@dataclass(frozen=True)
class PlansRow:
    """One shape; where its choice was not measured, ``status`` and ``message`` say why."""

    slot: PlannedLayer
    status: str = NOT_RECORDED
    message: str = ""
    mark: str = ""  # of a record made by older code
    planned: Planned | None = None
    choice: PlanChoice | None = None


def _choice(planned: Planned) -> PlanChoice | None:
    """Ratios of medians; a range holds every quotient of two plans' blocks, which if anything widens it."""
    chosen, best = planned.chosen, planned.best
    if best is None or not chosen.ms:
        return None
    ratio = Estimate(1.0, 1.0, 1.0, len(chosen.ms)) if chosen is best else unpaired_ratio(chosen.ms, best.ms)
    over_dense = unpaired_ratio(chosen.ms, planned.dense_ms) if planned.dense_ms else None
    return PlanChoice(planned, best, ratio, over_dense, chosen is best)


def _row(grid: Grid, slot: PlannedLayer) -> PlansRow:
    record, planned = grid.records.get(slot), grid.planned.get(slot)
    if record is None:
        return PlansRow(slot)
    if planned is None:
        return PlansRow(slot, record.status, " ".join(record.message.split()), grid.older(record))
    choice, chosen = _choice(planned), planned.chosen
    words = ("ok", "") if choice else ("no time", f"{chosen.name!r} {chosen.message}")
    return PlansRow(slot, *words, grid.older(record), planned, choice)


def rows_of(grid: Grid) -> list[PlansRow]:
    """A row per shape of the grid that the records' own values span, whether it has a record or not."""
    slots = grid.records
    layers = sorted({(slot.in_features, slot.out_features) for slot in slots})
    sizes = [sorted({getattr(slot, name) for slot in slots}) for name in ("order", "ranks", "tokens")]
    return [_row(grid, PlannedLayer(*layer, *size)) for layer in layers for size in itertools.product(*sizes)]


def choices(rows: Sequence[PlansRow]) -> list[PlanChoice]:
    return [row.choice for row in rows if row.choice]


def ratios_of(rows: Sequence[PlansRow]) -> list[float]:
    """Chosen / best of every measured shape, in rising order."""
    return sorted(one.ratio.value for one in choices(rows))


def fixed_plans(rows: Sequence[PlansRow]) -> dict[str, list[float]]:
    """For each plan that every measured shape offers, its time / best; infinite where memory did not suffice."""
    found: dict[str, list[float]] = {}
    measured = choices(rows)
    for one in measured:
        best = statistics.median(one.best.ms)
        for candidate in one.planned.candidates:
            found.setdefault(candidate.name, []).append((candidate.time or math.inf) / best)
    return {name: sorted(ratios) for name, ratios in found.items() if len(ratios) == len(measured)}


def share_within(ratios: Sequence[float], limit: float) -> float:
    """Part of the ratios that are at most ``limit``; 0 of none."""
    return sum(ratio <= limit for ratio in ratios) / len(ratios) if ratios else 0.0


def _aim(ratios: Sequence[float]) -> str:
    near, beyond = share_within(ratios, NEAR), sum(ratio > FAR for ratio in ratios)
    missed = [f"{len(ratios)} shapes"] if len(ratios) < SHAPES else []
    missed += [f"{near:.1%} within {NEAR:.2f}"] if near < SHARE else []
    missed += [f"{beyond} beyond {FAR:.2f}"] if beyond else []
    asked = f"at least {SHAPES} shapes, {SHARE:.0%} of them within {NEAR:.2f}, none beyond {FAR:.2f}"
    return f"Asked: {asked}. {'Missed: ' + ', '.join(missed) if missed else 'Met'}."


def _left_out(rows: Sequence[PlansRow]) -> list[str]:
    missing = [row for row in rows if row.choice is None]
    counts = Counter(f"{row.status}: {row.message}" if row.message else row.status for row in missing)
    reasons = [f"{count} x {reason.rstrip('.')}" for reason, count in counts.items()]
    return [f"{len(missing)} of {len(rows)} shapes are left out: {'; '.join(reasons)}."] if missing else []


def sentences(rows: Sequence[PlansRow]) -> list[str]:
    """What the grid says about the planner, the most important first."""
    measured, ratios = choices(rows), ratios_of(rows)
    if not ratios:
        return ["No shape has been measured.", *_left_out(rows)]

    def counted(limit: float) -> str:
        within = sum(ratio <= limit for ratio in ratios)
        return f"{share_within(ratios, limit):.1%} of the shapes ({within} of {len(ratios)})"

    worst = max(measured, key=lambda one: one.ratio.value)
    beyond = [one.ratio for one in measured if one.ratio.value > NEAR]
    doubtful = sum(one.low is not None and one.low <= NEAR for one in beyond)
    plans = fixed_plans(rows).items()
    fixed = [f"{name!r} {share_within(times, NEAR):.0%}, at worst {significant(times[-1])}" for name, times in plans]
    dense = [one.over_dense.value for one in measured if one.over_dense]
    found = [
        f"{len(ratios)} shapes measured: the chosen plan is within {NEAR:.2f} of the best measured candidate in "
        f"{counted(NEAR)} and within {FAR:.2f} in {counted(FAR)}. {_aim(ratios)}",
        f"Chosen / best: median {significant(statistics.median(ratios))}, 90th percentile "
        f"{significant(float(np.quantile(ratios, 0.9)))}; the chosen plan is itself the fastest in "
        f"{sum(one.is_best for one in measured)} shapes. The worst choice: {with_bounds(worst.ratio)} at "
        f"{worst.planned.slot.text}, {worst.planned.chosen.name!r} in place of {worst.best.name!r}.",
        f"Of the {len(beyond)} shapes beyond {NEAR:.2f}, {doubtful} have a range that reaches down to it. The best "
        "is the lowest of several medians, so noise alone puts the ratio of two equal plans above 1."
        if beyond
        else "",
        f"One plan for every shape would be within {NEAR:.2f} in: {'; '.join(fixed)}." if fixed else "",
        f"The chosen plan is faster than nn.Linear in {sum(one < 1 for one in dense)} of {len(dense)} shapes; its time "
        f"over nn.Linear's: median {significant(statistics.median(dense))}, {significant(min(dense))} to "
        f"{significant(max(dense))}."
        if dense
        else "",
    ]
    return [*filter(None, found), *_left_out(rows)]


def columns(grid: Grid, rows: Sequence[PlansRow]) -> list[Column[Any]]:  # noqa: ARG001 - as every artifact
    """A row of the table per shape, of the CSV per candidate."""

    def name(row: PlansRow, which: str) -> str | None:
        return getattr(getattr(row.planned, which, None), "name", None)

    def time(row: PlansRow, which: str) -> str | None:
        candidate: MeasuredPlan | None = getattr(row.planned, which, None)
        if row.planned is None or candidate is None or candidate.time is None:
            return None
        return f"{significant(candidate.time)} {row.planned.mark(candidate)}".strip()

    def estimated(row: PlansRow) -> str | None:
        chosen = row.planned.chosen if row.planned else None
        return significant(chosen.estimated_ms / chosen.time) if chosen and chosen.time else None

    def tidy(line: tuple[PlansRow, MeasuredPlan | None]) -> dict[str, object]:
        row, candidate = line
        choice = row.choice
        sizes = ("name", "flops", "saved_mib", "largest_mib", "estimated_ms")
        return {
            "device": grid.device,
            **{name: getattr(row.slot, name) for name in ("in_features", "out_features", "cores")},
            "ranks_cap": row.slot.ranks,
            "ranks": " ".join(map(str, row.planned.ranks)) if row.planned else "",
            "tokens": row.slot.tokens,
            "status": row.status,
            "message": row.message,
            "chosen": name(row, "chosen") or "",
            "best": name(row, "best") or "",
            **bounds("chosen_over_best", choice and choice.ratio),
            **bounds("chosen_over_dense", choice and choice.over_dense),
            "dense_ms": getattr(row.planned, "dense_time", None),
            "older_code": bool(row.mark),
            **{f"plan_{size}": getattr(candidate, size, None) for size in sizes},
            "plan_measured_ms": getattr(candidate, "time", None),
            "plan_blocks": len(candidate.ms) if candidate else None,
            "plan_message": getattr(candidate, "message", None),
        }

    return [
        Column("layer", lambda row: row.slot.layer, left=True),
        Column("cores", lambda row: row.slot.cores),
        Column("ranks", lambda row: row.slot.ranks),
        Column("tokens", lambda row: f"{row.slot.tokens:,}"),
        Column("chosen", lambda row: f"{name(row, 'chosen') or row.status} {row.mark}".strip(), left=True),
        Column("best", lambda row: name(row, "best"), left=True),
        Column("chosen, ms", lambda row: time(row, "chosen")),
        Column("best, ms", lambda row: time(row, "best")),
        Column("chosen / best", lambda row: with_bounds(row.choice and row.choice.ratio)),
        Column("chosen / nn.Linear", lambda row: with_bounds(row.choice and row.choice.over_dense)),
        Column("estimated / measured", estimated),
        Column(REMARKS, lambda row: row.message, left=True),
        Column(tidy=tidy),
    ]


def tidy_rows(_: Grid, rows: Sequence[PlansRow]) -> list[tuple[PlansRow, MeasuredPlan | None]]:
    return [(row, one) for row in rows for one in (row.planned.candidates if row.planned else (None,))]


def caption(grid: Grid, rows: Sequence[PlansRow]) -> Caption:
    first, *others = sentences(rows)
    found = [estimate for one in choices(rows) for estimate in (one.ratio, one.over_dense)]
    return Caption(
        title="Contraction plans: the planner's choice against the best measured candidate",
        facts=(timing_fact(grid), first),
        notes=(*others, *brackets_note(found), *closing_lines(grid)),
    )


def _values(rows: Sequence[PlansRow], name: str) -> list[Any]:
    return sorted({getattr(row.slot, name) for row in rows})


def _layers(rows: Sequence[PlansRow]) -> list[tuple[str, int]]:
    """The lines of a map: layers with the cap on their ranks."""
    return list(dict.fromkeys((row.slot.layer, row.slot.ranks) for row in rows))


def _draw_cell(axes: Any, row: PlansRow, left: int, top: int) -> None:
    choice = row.choice
    ratio = choice.ratio.value if choice else 0.0
    fill, ink = next((fill, ink) for limit, fill, ink, _ in _SHADES if ratio <= limit)
    look = {**_NOT_MEASURED, "hatch": "", "facecolor": fill} if choice else _NOT_MEASURED
    axes.add_patch(Rectangle((left, top), 1, 1, clip_on=False, zorder=1, **look))
    if choice is None:
        return
    x, y, rise = left + 0.5, top + 0.5, 0.0 if choice.is_best else 0.2
    style = {"ha": "center", "va": "center", "color": ink, "zorder": 2}
    axes.text(x, y - rise, f"{choice.planned.chosen.initials}{row.mark}", fontsize=6.5, fontweight="bold", **style)
    if not choice.is_best:
        axes.text(x, y + rise, f"{choice.best.initials} {ratio:.3f}", fontsize=5.5, **style)


def _draw_map(axes: Any, rows: Sequence[PlansRow], names: bool) -> None:
    """All shapes of one number of cores: a line per layer and ranks, a column per number of tokens."""
    tokens, layers = _values(rows, "tokens"), _layers(rows)
    axes.set(xlim=(0, len(tokens)), ylim=(len(layers), 0))
    axes.set_title(f"{rows[0].slot.cores} cores", loc="left", fontweight="bold")
    axes.set_xticks([place + 0.5 for place in range(len(tokens))], [f"{count:,}" for count in tokens])
    axes.xaxis.tick_top()
    axes.grid(visible=False)
    axes.tick_params(length=0, labelsize=6.5)
    for row in rows:
        _draw_cell(axes, row, tokens.index(row.slot.tokens), layers.index((row.slot.layer, row.slot.ranks)))
    firsts = [place for place, (layer, _) in enumerate(layers) if place == 0 or layer != layers[place - 1][0]]
    for place in firsts[1:]:
        axes.axhline(place, color=INK, linewidth=0.9, zorder=3)
    lines = [f"{layer if place in firsts else ''}  {ranks:>5,}" for place, (layer, ranks) in enumerate(layers)]
    axes.set_yticks([place + 0.5 for place in range(len(layers))] if names else [], lines if names else [])
    if names:
        style = {"xycoords": "axes fraction", "fontsize": 6, "ha": "right", "color": FAINT}
        note(axes, "layer, ranks | tokens", (0, 1), (-4, 3), **style)


def _draw_maps(page: Page, rows: Sequence[PlansRow]) -> None:
    title = "a  The chosen plan at every shape and, where another was faster, that one and chosen / best"
    initials = {one.name: one.initials for row in rows if row.planned for one in row.planned.candidates}
    handles = [Patch(**{**_NOT_MEASURED, "hatch": "", "facecolor": fill}, label=words) for _, fill, _, words in _SHADES]
    names = Patch(fill=False, linewidth=0, label=", ".join(f"{short}: {name}" for name, short in initials.items()))
    handles += [Patch(**_NOT_MEASURED, label="not measured"), names]
    legend(page.parts[0], handles, len(handles), title)
    orders = _values(rows, "order")
    places = page.panels(0, _CELL * len(_layers(rows)), _COLUMNS, -(-len(orders) // _COLUMNS))
    axes = [one for line in places for one in line]
    for number, (one, order) in enumerate(zip(axes, orders, strict=False)):
        _draw_map(one, [row for row in rows if row.slot.order == order], names=number % _COLUMNS == 0)
    for one in axes[len(orders) :]:
        one.set_axis_off()


def _width(stroke: Stroke) -> float:
    return 2.0 if stroke is EARLY_STROKE else 1.1


def _draw_curves(axes: Any, curves: Mapping[str, Sequence[float]], stroke_of: Mapping[str, Stroke]) -> None:
    """The share of the shapes up to each ratio to the best."""
    for name, ratios in curves.items():
        stroke = stroke_of[name]
        shown = [1.0, *(ratio for ratio in ratios if ratio <= _CURVE_END)]
        shares = [100 * place / max(len(ratios), 1) for place in range(len(shown))]
        axes.step(
            [*shown, _CURVE_END],
            [*shares, shares[-1]],
            where="post",
            color=stroke.colour,
            linestyle=stroke.dashes,
            linewidth=_width(stroke),
            zorder=3 if stroke is EARLY_STROKE else 2,
        )
    for limit in (NEAR, FAR):
        axes.axvline(limit, color=FAINT, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
    axes.set_xscale("log")
    axes.set_xlim(0.98, _CURVE_END)
    axes.set_ylim(0, 103)
    number_axis(axes.xaxis, FixedLocator([1, NEAR, FAR, 2, 3, _CURVE_END]))
    axes.set_xlabel("time / best measured")
    axes.set_ylabel("shapes within, %")


def _draw_over_dense(axes: Any, rows: Sequence[PlansRow], stroke_of: Mapping[str, Stroke]) -> None:
    """Time over nn.Linear against tokens, a line per layer and number of cores."""
    for layer, stroke in stroke_of.items():
        for order in _values(rows, "order"):
            line = [
                (row.slot.tokens, row.choice.over_dense.value)
                for row in rows
                if (row.slot.layer, row.slot.order) == (layer, order) and row.choice and row.choice.over_dense
            ]
            style = {"linewidth": 0.8, "markersize": 3.5, "markeredgewidth": 0.7, **stroke.look}
            axes.plot([tokens for tokens, _ in line], [ratio for _, ratio in line], **style)
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    number_axis(axes.xaxis, FixedLocator(_values(rows, "tokens")))
    number_axis(axes.yaxis, form="g")
    axes.set_xlabel("tokens")


def _draw_panels(page: Page, rows: Sequence[PlansRow]) -> None:
    ranks = _values(rows, "ranks")
    curves = {"planner": ratios_of(rows), **fixed_plans(rows)}
    of_curve = strokes(list(curves))
    of_layer = dict(zip(dict.fromkeys(row.slot.layer for row in rows), itertools.cycle(STROKES), strict=False))
    handles = [stroke_handle(of_curve[name], name, linewidth=_width(of_curve[name]), marker="") for name in curves]
    legend(page.parts[1], handles, 3, "b  The planner, or one plan for all")
    handles = [stroke_handle(stroke, layer, linewidth=0.8) for layer, stroke in of_layer.items()]
    title = "c  Time of the chosen plan over that of nn.Linear; a line per layer and number of cores"
    legend(page.parts[1], handles, 4, title, side="right")
    places = page.panels(1, _PANEL, 1 + _COLUMNS, -(-len(ranks) // _COLUMNS), [1.3, *[1] * _COLUMNS])
    _draw_curves(places[0][0], curves, of_curve)
    axes = [one for _, *of_ranks in places for one in of_ranks]
    for one, rank in zip(axes, ranks, strict=False):
        one.set_title(f"ranks up to {rank:,}", loc="left", fontweight="bold")
        _draw_over_dense(one, [row for row in rows if row.slot.ranks == rank], of_layer)
    shared = axes[: len(ranks)]
    low, high = min(one.get_ylim()[0] for one in shared), max(one.get_ylim()[1] for one in shared)
    for one in shared:
        one.set_ylim(low, high)
        one.grid(visible=True, axis="both")
        one.tick_params(labelsize=6.5)
    for one in (*axes[len(ranks) :], *(first for first, *_ in places[1:])):
        one.set_axis_off()


def draw(grid: Grid, rows: Sequence[PlansRow], caption: Caption) -> Figure:  # noqa: ARG001 - as every artifact
    page = Page(caption.title, caption.facts, caption.notes, parts=2)
    _draw_maps(page, rows)
    _draw_panels(page, rows)
    return page.finish()


ARTIFACT = Artifact(
    name="plans",
    heading="The planner on a grid of shapes",
    summary="the contraction planner's choice over the best measured candidate on a grid of shapes; an image per "
    "device",
    experiments=("contraction",),
    measure="plan",
    made_by="make reproduce-plans",
    order=70,
    select=select_plans,
    rows=rows_of,
    columns=columns,
    tidy_rows=tidy_rows,
    caption=caption,
    draw=draw,
    section="layer",
)
