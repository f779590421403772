"""Fig. 11: the contraction plans chosen for the encoder's layers, as tensor diagrams; one figure per device.

The paper publishes no number with this figure, so there is no claim to judge.
"""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from figures.artifact import Artifact
from figures.columns import readable, table_of
from figures.page.captions import beside
from figures.page.drawn import Caption
from figures.page.layout import INNER, Page
from figures.page.style import FAINT, TIME_FILLS
from figures.page.tensor_diagrams import HEIGHT, badge, draw_backward, draw_forward, draw_network
from figures.records import plans
from figures.records.plans import ONCE, Grid, Planned
from figures.text import NOT_ASKED, significant

# What a plan's axes hold, in inches: diagrams and columns of text keep their places whatever the layout.
_ROW, _TOTAL, _PANEL_TITLE, _GAP, _BELOW = 0.135, 0.17, 0.14, 0.06, 0.08
_NETWORK, _FORWARD, _BACKWARD = 2.25, 1.9, 2.45  # widths of the diagrams; the comparison takes the rest

#: Left edges of the columns of products: the product and its two gradients; right edges of the numbers behind them.
_PRODUCTS = (0.0, 2.28, 4.76)
_SHAPES = (1.06, 1.2, 1.2)
_FLOPS, _BAR, _SHARE, _KEPT = 7.65, (7.71, 8.0), 8.3, INNER


def table(page: Grid) -> pd.DataFrame:
    """Return a line per product of each chosen plan, forward and backward, in the order in which they are run."""
    lines = []
    for slot, planned in page.planned.items():
        plan, best = planned.chosen, planned.best
        for number, product in enumerate((*plan.products, *plan.backward), start=1):
            lines.append(
                {
                    "device": page.device,
                    **{name: getattr(slot, name) for name in ("in_features", "out_features", "cores")},
                    "ranks": " ".join(map(str, planned.ranks)),
                    "tokens": slot.tokens,
                    "plan": plan.name,
                    "pass": "forward" if number <= len(plan.products) else "backward",
                    "number": number,
                    **vars(product),
                    "flops": product.flops,
                    "moved_mib": product.moved_mib,
                    "kept_mib": plan.kept_mib.get(product.result),
                    "plan_flops": plan.flops,
                    "plan_saved_mib": plan.saved_mib,
                    "plan_estimated_ms": plan.estimated_ms,
                    "plan_measured_ms": plan.time,
                    "best_plan": best.name if best else "",
                    "best_measured_ms": best.time if best else None,
                    "dense_flops": planned.dense_flops,
                    "dense_ms": planned.dense_time,
                    "older_code": bool(page.older(page.records[slot])),
                }
            )
    return table_of(lines)


def shown(page: Grid, _: pd.DataFrame) -> pd.DataFrame:
    """Return a line per layer and number of tokens: work, memory and time of the chosen plan beside those of others."""
    lines: list[dict[str, Any]] = []
    for slot, record in page.records.items():
        line = {"layer": slot.layer, "tokens": slot.tokens, "older_code": bool(page.older(record))}
        if planned := page.planned.get(slot):
            plan, best, naive = planned.chosen, planned.best, planned.left_to_right
            line |= {
                "plan": plan.name,
                "plan_mflop": plan.flops / 1e6,
                "flops_over_dense": plan.flops / planned.dense_flops,
                "flops_over_left_to_right": plan.flops / naive.flops if naive else None,
                "plan_saved_mib": plan.saved_mib,
                "plan_estimated_ms": plan.estimated_ms,
                "plan_measured_ms": f"{significant(plan.time)} {planned.mark(plan)}".rstrip(),
                "best_plan": best and best.name,
                "best_measured_ms": best and best.time,
                "dense_ms": planned.dense_time,
            }
        lines.append({"plan": record.status, **line})
    columns = ["layer", "tokens", "plan", "plan_mflop", "flops_over_dense", "flops_over_left_to_right"]
    columns += ["plan_saved_mib", "plan_estimated_ms", "plan_measured_ms", "best_plan", "best_measured_ms", "dense_ms"]
    table = table_of(lines)
    return readable(table, [name for name in columns if name in table])


def about(page: Grid, _: pd.DataFrame) -> dict[str, Any]:
    """Return the layers that have no plan, with their records."""
    return {"failed": {slot.text: record for slot, record in page.records.items() if slot not in page.planned}}


def _total(planned: Planned) -> str:
    """Work and memory of the chosen plan beside those of the dense layer and of the left-to-right order."""
    plan, naive = planned.chosen, planned.left_to_right
    flops = f"{significant(plan.flops / 1e6)} MFLOP, {significant(plan.flops / planned.dense_flops)} of nn.Linear's"
    kept = f"{significant(plan.saved_mib)} MiB kept for backward"
    if naive is not None and naive is not plan:
        flops += f" and {significant(plan.flops / naive.flops)} of the left-to-right order's"
        kept += f", left-to-right {significant(naive.saved_mib)}"
    return f"{flops}; {kept}; largest intermediate {significant(plan.largest_mib)} MiB."


def _unit(planned: Planned) -> tuple[str, float]:
    """In which FLOPs are written, by the most that any plan or nn.Linear takes."""
    most = max(planned.dense_flops, *(one.flops for one in planned.candidates))
    return ("MFLOP", 1e6) if most < 1e11 else ("GFLOP", 1e9)


def _write(axes: Any, x: float, y: float, text: str, **style: Any) -> None:
    axes.text(x, y, text, **{"fontsize": 6.0, "va": "center", **style})


def _draw_comparison(axes: Any, planned: Planned, width: float) -> None:
    """Name, FLOPs, MiB kept, estimated and measured ms of every candidate, the chosen one first, and of nn.Linear."""
    unit, scale = _unit(planned)
    lines = [("", unit, "kept, MiB", "est.", "meas.")]
    for one in sorted(planned.candidates, key=lambda one: one is not planned.chosen):
        time = significant(one.time) + ("*" if one is planned.best else planned.mark(one))
        sizes = significant(one.flops / scale), significant(one.saved_mib), significant(one.estimated_ms)
        lines.append((one.name, *sizes, time))
    flops, kept = planned.dense_flops / scale, plans.mib(planned.slot.tokens * planned.slot.in_features)
    lines.append(("nn.Linear", significant(flops), significant(kept), NOT_ASKED, significant(planned.dense_time)))
    edges = [width - 1.24, width - 0.78, width - 0.42, width - 0.05]
    for row, (name, *numbers) in enumerate(lines):
        y, weight = HEIGHT - 0.06 - row * _ROW, "bold" if row == 1 else "normal"
        _write(axes, 0, y, name, fontweight=weight)
        for edge, number in zip(edges, numbers, strict=True):
            marked = number.endswith(("*", ONCE))
            _write(axes, edge + 0.045 * marked, y, number, ha="right", fontweight=weight)


def _draw_products(axes: Any, planned: Planned, height: float) -> None:
    """Return a line per product of the forward pass, with its two gradients beside it."""
    plan, (unit, scale) = planned.chosen, _unit(planned)
    last = 3 * len(plan.products)
    y = height - _ROW / 2
    heads = ("forward", "gradient of the left operand", "gradient of the right operand")
    for left, head in zip(_PRODUCTS, heads, strict=True):
        _write(axes, left, y, head, fontweight="bold")
    for edge, head in ((_FLOPS, f"{unit} each"), (_SHARE, "share"), (_KEPT, "kept, MiB")):
        _write(axes, edge, y, head, ha="right", fontweight="bold")
    for row, product in enumerate(plan.products):
        y -= _ROW
        numbers = (row + 1, last - 2 * row - 1, last - 2 * row)
        for left, offset, number, one in zip(_PRODUCTS, _SHAPES, numbers, (product, *product.gradients()), strict=True):
            badge(axes, (left + 0.065, y), number)
            _write(axes, left + 0.16, y, one.text)
            _write(axes, left + offset, y, one.shapes)
        share = 3 * product.flops / plan.flops if plan.flops else 0.0
        _write(axes, _FLOPS, y, significant(product.flops / scale), ha="right")
        for length, colour in ((1.0, "#f0f0f0"), (share, TIME_FILLS["steps"].colour)):
            axes.add_patch(Rectangle((_BAR[0], y - 0.045), length * (_BAR[1] - _BAR[0]), 0.09, facecolor=colour))
        _write(axes, _SHARE, y, f"{share:.1%}", ha="right")
        _write(axes, _KEPT, y, significant(plan.kept_mib.get(product.result)), ha="right")


def _times(planned: Planned) -> str:
    """How the chosen plan fares."""
    chosen, best = planned.chosen, planned.best
    faster = f"; fastest: {best.name!r}, {significant(best.time)} ms" if best else ""
    if best is chosen:
        faster = ", the fastest candidate"
    time = f"{significant(chosen.time)}{planned.mark(chosen)} ms"
    measured = f"measured {time}" if chosen.ms else f"not measured: {chosen.message}"
    return f"estimated {significant(chosen.estimated_ms)} ms, {measured}{faster}"


def _inset(axes: Any, left: float, bottom: float, width: float) -> Any:
    """Bare axes for a diagram, one unit of which is an inch as well."""
    box = axes.inset_axes((left, bottom, width, HEIGHT), transform=axes.transData)
    box.set(xlim=(0, width), ylim=(0, HEIGHT))
    box.set_axis_off()
    return box


def _heights(planned: Planned) -> tuple[float, float]:
    """Of the table of products, and of all that a plan's axes hold."""
    table = _ROW * (1 + len(planned.chosen.products))
    return table, _TOTAL + _PANEL_TITLE + HEIGHT + _GAP + table


def _draw_plan(axes: Any, planned: Planned, mark: str) -> None:
    chosen, (table, top) = planned.chosen, _heights(planned)
    axes.set(xlim=(0, INNER), ylim=(-_BELOW, top))
    axes.set_axis_off()
    axes.axhline(top, color=FAINT, linewidth=0.6)
    heading = f"{planned.slot.text}: {chosen.name!r} {mark}".rstrip()
    axes.set_title(heading, loc="left", fontsize=8.5, fontweight="bold")
    axes.set_title(_times(planned), loc="right", fontsize=7.5)
    _write(axes, 0, top - 0.05, _total(planned), fontsize=7, va="top")
    lefts = (0.0, _NETWORK, _NETWORK + _FORWARD + 0.1, _NETWORK + _FORWARD + _BACKWARD + 0.2)
    titles = ("network", "forward", "backward", "all candidates; times in ms")
    for left, title in zip(lefts, titles, strict=True):
        _write(axes, left, top - _TOTAL - 0.03, title, fontsize=7, style="italic", va="top")
    widths = (_NETWORK - 0.15, _FORWARD, _BACKWARD, INNER - lefts[3])
    insets = [_inset(axes, left, table + _GAP, width) for left, width in zip(lefts, widths, strict=True)]
    draw_network(insets[0], planned, chosen, widths[0])
    draw_forward(insets[1], chosen, widths[1])
    draw_backward(insets[2], chosen, widths[2])
    _draw_comparison(insets[3], planned, widths[3])
    _draw_products(axes, planned, table)


def draw(page: Grid, table: pd.DataFrame, caption: Caption) -> Figure:  # noqa: ARG001 - as every artifact
    """Draw the plan of each layer as tensor diagrams, a row per step."""
    paper = Page(caption.title, caption.facts, (*caption.of_picture, *caption.notes), len(page.planned))
    for part, (slot, planned) in enumerate(page.planned.items()):
        [[axes]] = paper.panels(part, _BELOW + _heights(planned)[1])
        _draw_plan(axes, planned, page.older(page.records[slot]))
    return paper.finish()


ARTIFACT = Artifact(
    name="fig11",
    heading="Fig. 11: contraction paths",
    summary="contraction plans chosen for the encoder's layers as tensor diagrams, step by step; an image per device",
    experiments=("fig11",),
    measure="plan",
    made_by="make reproduce-fig11",
    order=50,
    select=plans.select_plans,
    table=table,
    shown=shown,
    about=about,
    caption=beside(__file__),
    draw=draw,
    section="layer",
)
