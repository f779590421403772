"""The contraction planner judged on a grid of shapes: its choice over the best measured candidate; a page per device.

A figure that the paper lacks, so there is no claim to judge.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator

from bench.core.intervals import Estimate, unpaired_ratio
from figures.artifact import Artifact
from figures.draw.captions import Caption
from figures.draw.layout import Paper, legend
from figures.draw.style import EARLY_STROKE, FAINT, INK, STROKES, note, number_axis, stroke_handle, strokes
from figures.frame import each
from figures.stats.plans import SHAPE, Grid, select
from figures.text import NOT_RECORDED, OLDER, bounds, significant

#: What is asked of the planner: a choice within ``NEAR`` of the best measured candidate in this share of at least so
#: many shapes, and never beyond ``FAR`` times the best.
NEAR, FAR, SHARE, SHAPES = 1.1, 1.5, 0.9, 60

_COLUMNS = 3  # maps beside one another, and panels of c
_CURVE_END = 4.0

#: Fill and ink of a cell, from the best choice to the worst; lightness alone tells them apart.
_SHADES = (
    (1.0, "#ffffff", INK, "the best is chosen"),
    (NEAR, "#dfe7ef", INK, f"within {NEAR:.2f} of it"),
    (FAR, "#9db4c8", INK, f"within {FAR:.2f}"),
    (math.inf, "#1d2f4f", "#ffffff", f"beyond {FAR:.2f}"),
)
_CELL: Mapping[str, Any] = {"edgecolor": FAINT, "linewidth": 0.4}
_NOT_MEASURED: Mapping[str, Any] = {**_CELL, "facecolor": "white", "hatch": "////"}


#: The columns that tell shapes apart; of a candidate; and of the ratios of the chosen one.
_SHAPE = ["in_features", "out_features", "cores", "ranks_cap", "tokens"]
_SIZES, _TIMES = ["flops", "saved_mib", "largest_mib"], ["estimated_ms", "measured_ms", "blocks"]
_PLAN = ["name", *_SIZES, *_TIMES, "message"]
_RATIOS = [*bounds("chosen_over_best", None), *bounds("chosen_over_dense", None)]


def table(page: Grid) -> pd.DataFrame:
    """Return a line per candidate of each shape of the grid that the records' own values span, recorded or not.

    Ratios are of medians; a range holds every quotient of two plans' blocks, which if anything widens it.
    """
    names, layers = list(SHAPE.values()), page.layers
    shapes = page.df[names[:2]].drop_duplicates()
    for name in names[2:]:
        shapes = shapes.merge(page.df[[name]].drop_duplicates(), how="cross")
    ratios = []
    for layer in each(layers):
        best = dense = None
        if layer.ms:
            is_best = layer.name == layer.best_name
            equal = Estimate(1.0, 1.0, 1.0, layer.blocks)
            best = equal if is_best else unpaired_ratio(layer.ms, layer.best_ms)
            dense = unpaired_ratio(layer.ms, layer.dense) if layer.dense else None
        ratios.append({**bounds("chosen_over_best", best), **bounds("chosen_over_dense", dense)})
    chosen = layers.assign(
        chosen=layers["name"],
        best=layers["best_name"],
        ranks=[" ".join(map(str, ranks)) for ranks in layers["ranks"]],
        failed=[f"{one.name!r} {one.message}" * (not one.ms) for one in each(layers)],
    ).join(pd.DataFrame(ratios, layers.index, _RATIOS))
    records = page.df.assign(older_code=page.df["cell_id"].isin(page.older_code))
    records = records[[*names, "status", "message", "older_code"]]
    chosen = chosen[[*names, "chosen", "best", "ranks", "failed", "dense_ms", *_RATIOS]]
    plans = page.plans[[*names, *_PLAN]].rename(columns={one: f"plan_{one}" for one in _PLAN})
    df = shapes.sort_values(names)
    for others in (records, chosen, plans):
        df = df.merge(others, how="left", on=names)
    untimed = df["failed"].astype(object).fillna("") != ""
    df["status"] = df["status"].fillna(NOT_RECORDED).mask(untimed, "no time")
    message = df["message"].fillna("").str.split().str.join(" ")
    df["message"] = df["failed"].where(untimed, message)
    df["older_code"] = df["older_code"].eq(True)
    df["device"], df["cores"] = page.device, 2 * df["order"]
    columns = ["device", *_SHAPE[:-1], "ranks", "tokens", "status", "message", "chosen", "best"]
    return df[[*columns, *_RATIOS, "dense_ms", "older_code", *(f"plan_{one}" for one in _PLAN)]]


def shapes(table: pd.DataFrame) -> pd.DataFrame:
    """Return the first line of each shape, with its layer in words."""
    found = table.drop_duplicates(_SHAPE)
    sizes = found[["in_features", "out_features"]].map("{:,}".format)
    return found.assign(layer=sizes["in_features"] + " → " + sizes["out_features"])


def fixed_plans(table: pd.DataFrame) -> dict[str, list[float]]:
    """Return by plan that every measured shape offers its time over the best; infinite where memory did not suffice."""
    measured = table[table["chosen_over_best"].notna()]
    best = measured.groupby(_SHAPE)["plan_measured_ms"].transform("min")
    over_best = (measured["plan_measured_ms"] / best).astype(float).fillna(math.inf)
    by_plan = over_best.groupby(measured["plan_name"], sort=False)
    count = len(measured.drop_duplicates(_SHAPE))
    return {str(name): sorted(found) for name, found in by_plan if len(found) == count}


def shown(_: Grid, table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per layer, cores and ranks, with chosen plan and time over the best by number of tokens."""
    found = shapes(table)
    ratio = found["chosen_over_best"].map(significant, na_action="ignore").astype(object)
    words = (found["chosen"] + " " + ratio + "x").where(ratio.notna(), found["status"])
    words += found["older_code"].map({True: f" {OLDER}", False: ""})
    layer = ["in_features", "out_features", "layer", "cores", "ranks_cap"]
    lines = found.assign(words=words).pivot(index=layer, columns="tokens", values="words")
    lines = lines.rename(columns="{:,} tokens".format).reset_index().rename_axis(columns=None)
    lines["cores"] = lines["cores"].astype(str)
    lines["ranks_cap"] = lines["ranks_cap"].map("{:,}".format)
    lines = lines.drop(columns=["in_features", "out_features"])
    return lines.rename(columns={"ranks_cap": "ranks up to"})


def about(_: Grid, table: pd.DataFrame) -> dict[str, Any]:
    """Return in how many shapes the choice is as good as asked, is doubtful, and beats ``nn.Linear``; the rest why."""
    found = shapes(table)
    measured = found.dropna(subset="chosen_over_best")
    left_out = found.loc[found["chosen_over_best"].isna(), ["status", "message"]].to_numpy()
    ratio, low = (measured[f"chosen_over_best{end}"].astype(float) for end in ("", "_low"))
    near, beyond, dense = ratio <= NEAR, ratio > FAR, measured["chosen_over_dense"].dropna()
    missed = [f"{len(measured)} shapes"] if len(measured) < SHAPES else []
    missed += [f"{near.mean():.1%} within {NEAR:.2f}"] if near.mean() < SHARE else []
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
        "left_out": Counter(": ".join(filter(None, why)).rstrip(".") for why in left_out),
        "shapes": len(found),
    }


def draw(page: Grid, table: pd.DataFrame, caption: Caption) -> Figure:  # noqa: ARG001 - as every artifact
    """Draw the planner's choice over the best candidate, a point per shape."""
    paper = Paper(caption.title, caption.facts, caption.notes, parts=2)
    _draw_maps(paper, table)
    _draw_panels(paper, table)
    return paper.finish()


def _initials(name: str) -> str:
    """Return such as ``HI`` for ``halves in``."""
    return "".join(word[0] for word in name.split()).upper()


def _draw_maps(page: Paper, table: pd.DataFrame) -> None:
    """Draw a map per number of cores, all shapes of it: a line per layer and ranks, a column per number of tokens."""
    title = "a  The chosen plan at every shape and, where another was faster, that one and chosen / best"
    names = table["plan_name"].dropna().unique()
    plans = ", ".join(f"{_initials(name)}: {name}" for name in names)
    handles = [Patch(**_CELL, facecolor=fill, label=words) for _, fill, _, words in _SHADES]
    handles.append(Patch(**_NOT_MEASURED, label="not measured"))
    handles.append(Patch(fill=False, linewidth=0, label=plans))
    legend(page.parts[0], handles, len(handles), title)
    found = shapes(table)
    height = 0.27 * len(found.drop_duplicates(["layer", "ranks_cap"]))
    by_cores = list(found.groupby("cores"))
    panels = page.panels(0, height, _COLUMNS, -(-len(by_cores) // _COLUMNS))
    axes_of = [axes for line in panels for axes in line]
    for axes in axes_of[len(by_cores) :]:
        axes.set_axis_off()
    for number, (axes, (cores, part)) in enumerate(zip(axes_of, by_cores, strict=False)):
        tokens = sorted(set(part["tokens"]))
        layers = list(dict.fromkeys(zip(part["layer"], part["ranks_cap"], strict=True)))
        axes.set(xlim=(0, len(tokens)), ylim=(len(layers), 0))
        axes.set_title(f"{cores} cores", loc="left", fontweight="bold")
        axes.set_xticks(np.arange(len(tokens)) + 0.5, [f"{count:,}" for count in tokens])
        axes.xaxis.tick_top()
        axes.grid(visible=False)
        axes.tick_params(length=0, labelsize=6.5)
        for one in each(part):
            row = layers.index((one.layer, one.ranks_cap))
            _draw_cell(axes, one, tokens.index(one.tokens), row)
        above = ["", *(layer for layer, _ in layers)]
        firsts = [place for place in range(len(layers)) if above[place] != above[place + 1]]
        for place in firsts[1:]:
            axes.axhline(place, color=INK, linewidth=0.9, zorder=3)
        if number % _COLUMNS:
            axes.set_yticks([])
            continue
        lines = [f"  {ranks:>5,}" for _, ranks in layers]
        for place in firsts:
            lines[place] = layers[place][0] + lines[place]
        axes.set_yticks(np.arange(len(layers)) + 0.5, lines)
        style = {"xycoords": "axes fraction", "fontsize": 6, "ha": "right", "color": FAINT}
        note(axes, "layer, ranks | tokens", (0, 1), (-4, 3), **style)


def _draw_cell(axes: Any, one: Any, left: int, top: int) -> None:
    if pd.isna(one.chosen_over_best):
        axes.add_patch(Rectangle((left, top), 1, 1, clip_on=False, zorder=1, **_NOT_MEASURED))
        return
    _, fill, ink, _ = next(shade for shade in _SHADES if one.chosen_over_best <= shade[0])
    axes.add_patch(Rectangle((left, top), 1, 1, clip_on=False, zorder=1, **_CELL, facecolor=fill))
    x, y, rise = left + 0.5, top + 0.5, 0.0 if one.chosen == one.best else 0.2
    style = {"ha": "center", "va": "center", "color": ink, "zorder": 2}
    chosen = f"{_initials(one.chosen)}{OLDER * one.older_code}"
    axes.text(x, y - rise, chosen, fontsize=6.5, fontweight="bold", **style)
    if rise:
        best = f"{_initials(one.best)} {one.chosen_over_best:.3f}"
        axes.text(x, y + rise, best, fontsize=5.5, **style)


def _draw_panels(page: Paper, table: pd.DataFrame) -> None:
    """Draw the share of shapes up to each ratio to the best, then by ranks the time over nn.Linear against tokens."""
    found = shapes(table)
    curves = {"planner": sorted(found["chosen_over_best"].dropna()), **fixed_plans(table)}
    by_ranks = list(found.groupby("ranks_cap"))
    rows = -(-len(by_ranks) // _COLUMNS)
    panels = page.panels(1, 1.75, 1 + _COLUMNS, rows, [1.3, *[1] * _COLUMNS])
    axes = panels[0][0]
    handles = []
    for (name, ratios), stroke in zip(curves.items(), strokes(list(curves)).values(), strict=True):
        width, order = (2.0, 3) if stroke is EARLY_STROKE else (1.1, 2)
        look = {"linewidth": width, "marker": ""}
        shown = [1.0, *(ratio for ratio in ratios if ratio <= _CURVE_END)]
        shares = [100 * place / max(len(ratios), 1) for place in range(len(shown))]
        x, y = [*shown, _CURVE_END], [*shares, shares[-1]]
        axes.step(x, y, where="post", zorder=order, **{**stroke.look, **look})
        handles.append(stroke_handle(stroke, name, **look))
    legend(page.parts[1], handles, 3, "b  The planner, or one plan for all")
    for limit in (NEAR, FAR):
        axes.axvline(limit, color=FAINT, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
    axes.set_xscale("log")
    axes.set_xlim(0.98, _CURVE_END)
    axes.set_ylim(0, 103)
    number_axis(axes.xaxis, FixedLocator([1, NEAR, FAR, 2, 3, _CURVE_END]))
    axes.set_xlabel("time / best measured")
    axes.set_ylabel("shapes within, %")

    stroke_of = dict(zip(dict.fromkeys(found["layer"]), itertools.cycle(STROKES), strict=False))
    handles = [stroke_handle(stroke, layer, linewidth=0.8) for layer, stroke in stroke_of.items()]
    title = "c  Time of the chosen plan over that of nn.Linear; a line per layer and number of cores"
    legend(page.parts[1], handles, 4, title, side="right")
    axes_of = [axes for _, *of_ranks in panels for axes in of_ranks]
    used = axes_of[: len(by_ranks)]
    for axes, (rank, part) in zip(used, by_ranks, strict=True):
        axes.set_title(f"ranks up to {rank:,}", loc="left", fontweight="bold")
        for layer, stroke in stroke_of.items():
            for _, line in part[part["layer"] == layer].groupby("cores"):
                known = line.dropna(subset="chosen_over_dense")
                style = {"linewidth": 0.8, "markersize": 3.5, "markeredgewidth": 0.7, **stroke.look}
                axes.plot(known["tokens"], known["chosen_over_dense"], **style)
        axes.axhline(1, color=INK, linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        number_axis(axes.xaxis, FixedLocator(sorted(set(found["tokens"]))))
        number_axis(axes.yaxis, form="g")
        axes.set_xlabel("tokens")
    low, high = min(axes.get_ylim()[0] for axes in used), max(axes.get_ylim()[1] for axes in used)
    for axes in used:
        axes.set_ylim(low, high)
        axes.grid(visible=True, axis="both")
        axes.tick_params(labelsize=6.5)
    for axes in (*axes_of[len(by_ranks) :], *(first for first, *_ in panels[1:])):
        axes.set_axis_off()


ARTIFACT = Artifact(
    name="plans",
    summary="the contraction planner's choice over the best measured candidate on a grid of shapes; an image per "
    "device",
    experiments=("contraction",),
    measure="plan",
    made_by="make reproduce-plans",
    order=70,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
    section="layer",
)
