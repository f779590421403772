"""The contraction planner judged on a grid of shapes: its choice over the best measured candidate; a page per device.

A figure that the paper lacks, so there is no claim to judge.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator

from bench.core.intervals import Estimate, unpaired_ratio
from figures.artifact import Artifact
from figures.columns import table_of
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import Page, legend
from figures.page.style import EARLY_STROKE, FAINT, INK, STROKES, Stroke, note, number_axis, stroke_handle, strokes
from figures.records.plans import Grid, MeasuredPlan, PlannedLayer, select_plans
from figures.text import NOT_RECORDED, OLDER, bounds, significant

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


#: The columns that tell shapes apart.
_SHAPE = ["in_features", "out_features", "cores", "ranks_cap", "tokens"]


def _line(page: Grid, slot: PlannedLayer) -> tuple[dict[str, Any], Sequence[MeasuredPlan | None]]:
    """Return what the lines of a shape share, and its candidates.

    Ratios are of medians; a range holds every quotient of two plans' blocks, which if anything widens it.
    """
    record, planned = page.records.get(slot), page.planned.get(slot)
    status, message, ratio, over_dense = NOT_RECORDED, "", None, None
    if planned:
        chosen, best = planned.chosen, planned.best
        if best is not None and chosen.ms:
            status = "ok"
            equal = Estimate(1.0, 1.0, 1.0, len(chosen.ms))
            ratio = equal if chosen is best else unpaired_ratio(chosen.ms, best.ms)
            over_dense = unpaired_ratio(chosen.ms, planned.dense_ms) if planned.dense_ms else None
        else:
            status, message = "no time", f"{chosen.name!r} {chosen.message}"
    elif record:
        status, message = record.status, " ".join(record.message.split())
    shared = {
        "device": page.device,
        **{name: getattr(slot, name) for name in ("in_features", "out_features", "cores")},
        "ranks_cap": slot.ranks,
        "ranks": " ".join(map(str, planned.ranks)) if planned else "",
        "tokens": slot.tokens,
        "status": status,
        "message": message,
        "chosen": planned.chosen.name if planned else "",
        "best": planned.best.name if planned and planned.best else "",
        **bounds("chosen_over_best", ratio),
        **bounds("chosen_over_dense", over_dense),
        "dense_ms": planned and planned.dense_time,
        "older_code": bool(page.older(record)),
    }
    return shared, planned.candidates if planned else (None,)


def table(page: Grid) -> pd.DataFrame:
    """Return a line per candidate of each shape of the grid that the records' own values span, recorded or not."""
    slots, lines = page.records, []
    layers = sorted({(slot.in_features, slot.out_features) for slot in slots})
    sizes = [sorted({getattr(slot, name) for slot in slots}) for name in ("order", "ranks", "tokens")]
    for layer, size in itertools.product(layers, itertools.product(*sizes)):
        shared, candidates = _line(page, PlannedLayer(*layer, *size))
        for one in candidates:
            own = {f"plan_{name}": getattr(one, name, None) for name in ("name", "flops", "saved_mib", "largest_mib")}
            own |= {"plan_estimated_ms": one and one.estimated_ms, "plan_measured_ms": one and one.time}
            lines.append({**shared, **own, "plan_blocks": one and len(one.ms), "plan_message": one and one.message})
    return table_of(lines)


def shapes(table: pd.DataFrame) -> pd.DataFrame:
    """Return the first line of each shape, with its layer in words."""
    found = table.drop_duplicates(_SHAPE)
    sizes = found[["in_features", "out_features"]].map("{:,}".format)
    return found.assign(layer=sizes["in_features"] + " → " + sizes["out_features"])


def fixed_plans(table: pd.DataFrame) -> dict[str, list[float]]:
    """Return by plan that every measured shape offers its time over the best; infinite where memory did not suffice."""
    measured = table[table["chosen_over_best"].notna()]
    best = measured.groupby(_SHAPE)["plan_measured_ms"].transform("min")
    over_best = (measured["plan_measured_ms"] / best).fillna(math.inf).astype(float)
    names = measured["plan_name"]
    found = {str(name): sorted(over_best[names == name]) for name in dict.fromkeys(names)}
    return {name: ratios for name, ratios in found.items() if len(ratios) == len(measured.drop_duplicates(_SHAPE))}


def shown(_: Grid, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per layer, cores and ranks, with chosen plan and time over the best by number of tokens."""
    lines: dict[tuple[str, str, str], dict[str, str]] = {}
    for one in shapes(table).to_dict("records"):
        measured = not pd.isna(one["chosen_over_best"])
        words = f"{one['chosen']} {significant(one['chosen_over_best'])}x" if measured else one["status"]
        key = (one["layer"], f"{one['cores']}", f"{one['ranks_cap']:,}")
        lines.setdefault(key, {})[f"{one['tokens']:,} tokens"] = f"{words} {OLDER * one['older_code']}".rstrip()
    names = ("layer", "cores", "ranks up to")
    return pd.DataFrame([{**dict(zip(names, key, strict=True)), **cells} for key, cells in lines.items()])


def about(_: Grid, table: pd.DataFrame) -> dict[str, Any]:
    """Return in how many shapes the choice is as good as asked, is doubtful, and beats ``nn.Linear``; the rest why."""
    found = shapes(table)
    measured, left_out = found.dropna(subset="chosen_over_best"), found[found["chosen_over_best"].isna()]
    ratio, low = (measured[f"chosen_over_best{end}"].astype(float) for end in ("", "_low"))
    near, beyond, dense = ratio <= NEAR, ratio > FAR, measured["chosen_over_dense"].dropna()
    reasons = Counter(": ".join(filter(None, pair)).rstrip(".") for pair in left_out[["status", "message"]].to_numpy())
    missed = [f"{len(measured)} shapes"] if len(measured) < SHAPES else []
    missed += [f"{near.mean():.1%} within {NEAR:.2f}"] if len(measured) and near.mean() < SHARE else []
    missed += [f"{beyond.sum()} beyond {FAR:.2f}"] if beyond.any() else []
    return {
        "measured": len(measured),
        "near": near.sum(),
        "far": (~beyond).sum(),
        "missed": missed,
        "asked": {"near": NEAR, "far": FAR, "share": SHARE, "shapes": SHAPES},
        "doubtful": (low[~near] <= NEAR).sum(),
        "faster_than_dense": (dense < 1).sum(),
        "beside_dense": len(dense),
        "left_out": reasons,
        "shapes": len(found),
    }


def _initials(name: str) -> str:
    """Return such as ``HI`` for ``halves in``."""
    return "".join(word[0] for word in name.split()).upper()


def _draw_cell(axes: Any, one: Mapping[str, Any], left: int, top: int) -> None:
    ratio = one["chosen_over_best"]
    measured, is_best = not pd.isna(ratio), one["chosen"] == one["best"]
    fill, ink = next((fill, ink) for limit, fill, ink, _ in _SHADES if not measured or ratio <= limit)
    look = {**_NOT_MEASURED, "hatch": "", "facecolor": fill} if measured else _NOT_MEASURED
    axes.add_patch(Rectangle((left, top), 1, 1, clip_on=False, zorder=1, **look))
    if not measured:
        return
    x, y, rise = left + 0.5, top + 0.5, 0.0 if is_best else 0.2
    style = {"ha": "center", "va": "center", "color": ink, "zorder": 2}
    mark = OLDER * one["older_code"]
    axes.text(x, y - rise, f"{_initials(one['chosen'])}{mark}", fontsize=6.5, fontweight="bold", **style)
    if not is_best:
        axes.text(x, y + rise, f"{_initials(one['best'])} {ratio:.3f}", fontsize=5.5, **style)


def _draw_map(axes: Any, part: pd.DataFrame, names: bool) -> None:
    """Draw all shapes of one number of cores: a line per layer and ranks, a column per number of tokens."""
    tokens = sorted(set(part["tokens"]))
    layers = list(dict.fromkeys(zip(part["layer"], part["ranks_cap"], strict=True)))
    axes.set(xlim=(0, len(tokens)), ylim=(len(layers), 0))
    axes.set_title(f"{part['cores'].iloc[0]} cores", loc="left", fontweight="bold")
    axes.set_xticks([place + 0.5 for place in range(len(tokens))], [f"{count:,}" for count in tokens])
    axes.xaxis.tick_top()
    axes.grid(visible=False)
    axes.tick_params(length=0, labelsize=6.5)
    for one in part.to_dict("records"):
        left, top = tokens.index(one["tokens"]), layers.index((one["layer"], one["ranks_cap"]))
        _draw_cell(axes, {str(name): value for name, value in one.items()}, left, top)
    firsts = [place for place, (layer, _) in enumerate(layers) if place == 0 or layer != layers[place - 1][0]]
    for place in firsts[1:]:
        axes.axhline(place, color=INK, linewidth=0.9, zorder=3)
    lines = [f"{layer if place in firsts else ''}  {ranks:>5,}" for place, (layer, ranks) in enumerate(layers)]
    axes.set_yticks([place + 0.5 for place in range(len(layers))] if names else [], lines if names else [])
    if names:
        style = {"xycoords": "axes fraction", "fontsize": 6, "ha": "right", "color": FAINT}
        note(axes, "layer, ranks | tokens", (0, 1), (-4, 3), **style)


def _draw_maps(page: Page, table: pd.DataFrame) -> None:
    title = "a  The chosen plan at every shape and, where another was faster, that one and chosen / best"
    plans = ", ".join(f"{_initials(name)}: {name}" for name in dict.fromkeys(table["plan_name"].dropna()))
    handles = [Patch(**{**_NOT_MEASURED, "hatch": "", "facecolor": fill}, label=words) for _, fill, _, words in _SHADES]
    handles += [Patch(**_NOT_MEASURED, label="not measured"), Patch(fill=False, linewidth=0, label=plans)]
    legend(page.parts[0], handles, len(handles), title)
    found = shapes(table)
    lines = len(found.drop_duplicates(["layer", "ranks_cap"]))
    by_cores = [part for _, part in found.groupby("cores")]
    places = page.panels(0, _CELL * lines, _COLUMNS, -(-len(by_cores) // _COLUMNS))
    axes = [one for line in places for one in line]
    for number, (one, part) in enumerate(zip(axes, by_cores, strict=False)):
        _draw_map(one, part, names=number % _COLUMNS == 0)
    for one in axes[len(by_cores) :]:
        one.set_axis_off()


def _width(stroke: Stroke) -> float:
    return 2.0 if stroke is EARLY_STROKE else 1.1


def _draw_curves(axes: Any, curves: Mapping[str, Sequence[float]], stroke_of: Mapping[str, Stroke]) -> None:
    """Draw the share of the shapes up to each ratio to the best."""
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


def _draw_over_dense(axes: Any, part: pd.DataFrame, stroke_of: Mapping[str, Stroke], tokens: Sequence[int]) -> None:
    """Draw time over nn.Linear against tokens, a line per layer and number of cores."""
    for layer, stroke in stroke_of.items():
        for _, line in part[part["layer"] == layer].groupby("cores"):
            known = line.dropna(subset="chosen_over_dense")
            style = {"linewidth": 0.8, "markersize": 3.5, "markeredgewidth": 0.7, **stroke.look}
            axes.plot(known["tokens"], known["chosen_over_dense"], **style)
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    number_axis(axes.xaxis, FixedLocator(tokens))
    number_axis(axes.yaxis, form="g")
    axes.set_xlabel("tokens")


def _draw_panels(page: Page, table: pd.DataFrame) -> None:
    found = shapes(table)
    curves = {"planner": sorted(found["chosen_over_best"].dropna()), **fixed_plans(table)}
    of_curve = strokes(list(curves))
    of_layer = dict(zip(dict.fromkeys(found["layer"]), itertools.cycle(STROKES), strict=False))
    handles = [stroke_handle(of_curve[name], name, linewidth=_width(of_curve[name]), marker="") for name in curves]
    legend(page.parts[1], handles, 3, "b  The planner, or one plan for all")
    handles = [stroke_handle(stroke, layer, linewidth=0.8) for layer, stroke in of_layer.items()]
    title = "c  Time of the chosen plan over that of nn.Linear; a line per layer and number of cores"
    legend(page.parts[1], handles, 4, title, side="right")
    by_ranks = list(found.groupby("ranks_cap"))
    places = page.panels(1, _PANEL, 1 + _COLUMNS, -(-len(by_ranks) // _COLUMNS), [1.3, *[1] * _COLUMNS])
    _draw_curves(places[0][0], curves, of_curve)
    axes = [one for _, *of_ranks in places for one in of_ranks]
    for one, (rank, part) in zip(axes, by_ranks, strict=False):
        one.set_title(f"ranks up to {rank:,}", loc="left", fontweight="bold")
        _draw_over_dense(one, part, of_layer, sorted(set(found["tokens"])))
    shared = axes[: len(by_ranks)]
    low, high = min(one.get_ylim()[0] for one in shared), max(one.get_ylim()[1] for one in shared)
    for one in shared:
        one.set_ylim(low, high)
        one.grid(visible=True, axis="both")
        one.tick_params(labelsize=6.5)
    for one in (*axes[len(by_ranks) :], *(first for first, *_ in places[1:])):
        one.set_axis_off()


def draw(page: Grid, table: pd.DataFrame, caption: Caption) -> Figure:  # noqa: ARG001 - as every artifact
    """Draw the planner's choice over the best candidate, a point per shape."""
    paper = Page(caption.title, caption.facts, caption.notes, parts=2)
    _draw_maps(paper, table)
    _draw_panels(paper, table)
    return paper.finish()


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
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
    section="layer",
)
