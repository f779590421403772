"""Fig. 11: the contraction plans chosen for the encoder's layers, as tensor diagrams; one figure per device.

The paper publishes no number with this figure, so there is no claim to judge.
"""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures.artifact import Artifact
from figures.columns import readable
from figures.draw.captions import Caption
from figures.draw.layout import INNER, Paper
from figures.draw.style import FAINT, TIME_FILLS
from figures.draw.tensor_diagrams import HEIGHT, badge, draw_backward, draw_forward, draw_network
from figures.frame import each
from figures.stats.plans import MIB, ONCE, SHAPE, Grid, products_of, select
from figures.text import NOT_ASKED, OLDER, significant

_LAYER = ["in_features", "out_features", "cores", "ranks", "tokens"]
_ROW = 0.135  # inches: the height of a line of text


def table(page: Grid) -> pd.DataFrame:
    """Return a line per product of each chosen plan, forward and backward, in the order in which they are run."""
    layers = page.layers
    if layers.empty:
        return pd.DataFrame()
    steps = pd.concat([products_of(one) for one in layers["products"]], keys=layers.index).droplevel(1)
    found = pd.DataFrame({"device": page.device}, layers.index).join(layers[_LAYER])
    found["ranks"] = [" ".join(map(str, ranks)) for ranks in layers["ranks"]]
    found["plan"] = layers["name"]
    plan = layers[["flops", "saved_mib", "estimated_ms", "measured_ms"]].add_prefix("plan_")
    best = layers[["best_name", "best_measured_ms"]].rename(columns={"best_name": "best_plan"})
    found = found.join(steps).join(plan).join(best)
    return found.join(layers[["dense_flops", "dense_ms", "older_code"]])


def shown(page: Grid, _: pd.DataFrame) -> pd.DataFrame:
    """Return a line per layer and number of tokens: work, memory and time of the chosen plan beside those of others."""
    shapes = page.df.sort_values([*SHAPE.values()])[["shape", "layer", "tokens", "status", "cell_id"]]
    plans = page.layers.set_index("shape").drop(columns=["layer", "tokens"])
    found = shapes.join(plans, on="shape")
    lines = {
        "layer": found["layer"],
        "tokens": found["tokens"],
        "plan": found["name"].fillna(found["status"]),
        "plan_mflop": found["flops"] / 1e6,
        "flops_over_dense": found["flops"] / found["dense_flops"],
        "flops_over_left_to_right": found["flops"] / found["naive_flops"],
        "plan_saved_mib": found["saved_mib"],
        "plan_estimated_ms": found["estimated_ms"],
        "plan_measured_ms": (found["measured_ms"].map(_number) + " " + found["once"]).str.rstrip(),
        "best_plan": found["best_name"],
        "best_measured_ms": found["best_measured_ms"],
        "dense_ms": found["dense_ms"],
        "older_code": found["cell_id"].isin(page.older_code),
    }
    return readable(pd.DataFrame(lines))


def about(page: Grid, _: pd.DataFrame) -> dict[str, Any]:
    """Return the layers that have no plan, with their records."""
    failed = page.df[page.df["status"] != "ok"].sort_values([*SHAPE.values()])
    return {"failed": {one.shape: one for one in each(failed)}}


def draw(page: Grid, table: pd.DataFrame, caption: Caption) -> Figure:  # noqa: ARG001 - as every artifact
    """Draw the plan of each layer as tensor diagrams, a row per step."""
    paper = Paper(caption.title, caption.facts, (*caption.of_picture, *caption.notes), len(page.layers))
    for part, layer in enumerate(each(page.layers)):
        plans, steps = page.plans[page.plans["shape"] == layer.shape], products_of(layer.products)
        most = max(layer.dense_flops, plans["flops"].max())
        unit, scale = ("MFLOP", 1e6) if most < 1e11 else ("GFLOP", 1e9)
        height = _ROW * (1 + len(layer.products))
        top = 0.17 + 0.14 + HEIGHT + 0.06 + height
        [[axes]] = paper.panels(part, 0.08 + top)
        axes.set(xlim=(0, INNER), ylim=(-0.08, top))  # one unit is an inch, whatever the layout
        axes.set_axis_off()
        axes.axhline(top, color=FAINT, linewidth=0.6)
        heading = f"{layer.shape}: {layer.name!r} {OLDER * layer.older_code}".rstrip()
        axes.set_title(heading, loc="left", fontsize=8.5, fontweight="bold")
        time = f"measured {_number(layer.measured_ms)}{layer.once} ms"
        time = time if layer.ms else f"not measured: {layer.message}"
        if layer.best_name == layer.name:
            time += ", the fastest candidate"
        elif not pd.isna(layer.best_name):
            time += f"; fastest: {layer.best_name!r}, {significant(layer.best_measured_ms)} ms"
        axes.set_title(f"estimated {significant(layer.estimated_ms)} ms, {time}", loc="right", fontsize=7.5)
        work = f"{significant(layer.flops / 1e6)} MFLOP, {significant(layer.flops / layer.dense_flops)} of nn.Linear's"
        kept = f"{significant(layer.saved_mib)} MiB kept for backward"
        if layer.naive_name not in (layer.name, None):
            work += f" and {significant(layer.flops / layer.naive_flops)} of the left-to-right order's"
            kept += f", left-to-right {significant(layer.naive_saved_mib)}"
        words = f"{work}; {kept}; largest intermediate {significant(layer.largest_mib)} MiB."
        _write(axes, 0, top - 0.05, words, fontsize=7, va="top")
        insets = []
        titles = ("network", "forward", "backward", "all candidates; times in ms")
        for left, width, title in zip((0, 2.25, 4.25, 6.8), (2.1, 1.9, 2.45, INNER - 6.8), titles, strict=True):
            _write(axes, left, top - 0.2, title, fontsize=7, style="italic", va="top")
            inset = axes.inset_axes((left, height + 0.06, width, HEIGHT), transform=axes.transData)
            inset.set(xlim=(0, width), ylim=(0, HEIGHT))
            inset.set_axis_off()
            insets.append(inset)
        network, forward, backward, candidates = insets
        draw_network(network, layer, steps, 2.1)
        draw_forward(forward, steps, 1.9)
        draw_backward(backward, steps, 2.45)
        _draw_candidates(candidates, layer, plans, unit, scale)
        _draw_products(axes, layer, steps, height, unit, scale)
    return paper.finish()


def _draw_candidates(axes: Any, layer: Any, plans: pd.DataFrame, unit: str, scale: float) -> None:
    """Write a line per candidate, the chosen one first, and one of nn.Linear."""
    lines = [("", unit, "kept, MiB", "est.", "meas.")]
    for one in each(plans.sort_values("chosen", ascending=False, kind="stable")):
        time = _number(one.measured_ms) + ("*" if one.name == layer.best_name else one.once)
        sizes = map(significant, (one.flops / scale, one.saved_mib, one.estimated_ms))
        lines.append((one.name, *sizes, time))
    flops, kept = layer.dense_flops / scale, MIB * layer.tokens * layer.in_features
    lines.append(("nn.Linear", significant(flops), significant(kept), NOT_ASKED, _number(layer.dense_ms)))
    right = axes.get_xlim()[1]
    for row, (name, *numbers) in enumerate(lines):
        y, weight = HEIGHT - 0.06 - row * _ROW, "bold" if row == 1 else "normal"
        _write(axes, 0, y, name, fontweight=weight)
        for edge, number in zip((1.24, 0.78, 0.42, 0.05), numbers, strict=True):
            mark = 0.045 if number.endswith(("*", ONCE)) else 0.0  # stands behind the edge
            _write(axes, right - edge + mark, y, number, ha="right", fontweight=weight)


def _draw_products(axes: Any, layer: Any, steps: pd.DataFrame, height: float, unit: str, scale: float) -> None:
    """Write a line per product of the forward pass, with its two gradients beside it."""
    y = height - _ROW / 2
    for left, head in (
        (0.0, "forward"),
        (2.28, "gradient of the left operand"),
        (4.76, "gradient of the right operand"),
    ):
        _write(axes, left, y, head, fontweight="bold")
    for right, head in ((7.65, f"{unit} each"), (8.3, "share"), (INNER, "kept, MiB")):
        _write(axes, right, y, head, ha="right", fontweight="bold")
    of_result = {one.result: one for one in each(steps)}
    for one in each(steps[steps["pass"] == "forward"]):
        y -= _ROW
        three = (one, of_result[f"d{one.left}"], of_result[f"d{one.right}"])
        for left, offset, step in zip((0.0, 2.28, 4.76), (1.06, 1.2, 1.2), three, strict=True):
            badge(axes, (left + 0.065, y), step.number)
            _write(axes, left + 0.16, y, f"{step.result} = {step.left} · {step.right}")
            shapes = f"({step.rows} x {step.inner})·({step.inner} x {step.columns})"
            _write(axes, left + offset, y, shapes)
        share = 3 * one.flops / layer.flops if layer.flops else 0.0
        _write(axes, 7.65, y, significant(one.flops / scale), ha="right")
        for length, colour in ((1.0, "#f0f0f0"), (share, TIME_FILLS["steps"].colour)):
            axes.add_patch(Rectangle((7.71, y - 0.045), 0.29 * length, 0.09, facecolor=colour))
        _write(axes, 8.3, y, f"{share:.1%}", ha="right")
        _write(axes, INNER, y, _number(one.kept_mib), ha="right")


def _write(axes: Any, x: float, y: float, text: str, **style: Any) -> None:
    axes.text(x, y, text, **{"fontsize": 6.0, "va": "center", **style})


def _number(value: float) -> str:
    return NOT_ASKED if pd.isna(value) else significant(value)


ARTIFACT = Artifact(
    name="fig11",
    summary="contraction plans chosen for the encoder's layers as tensor diagrams, step by step; an image per device",
    experiments=("fig11",),
    measure="plan",
    made_by="make reproduce-fig11",
    order=50,
    select=select,
    table=table,
    shown=shown,
    about=about,
    draw=draw,
    section="layer",
)
