"""Fig. 11: the contraction plans chosen for the encoder's layers, as tensor diagrams; one figure per device.

The paper publishes no number with this figure, so there is no claim to judge.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bench.core.record import Record
from figures.artifact import Artifact
from figures.page.drawn import Caption
from figures.page.layout import INNER, Page
from figures.page.plan_notes import closing_lines, timing_fact
from figures.page.style import FAINT, TIME_FILLS
from figures.page.tensor_diagrams import HEIGHT, badge, draw_backward, draw_forward, draw_network
from figures.records import plans
from figures.records.plans import ONCE, Grid, Planned, PlannedLayer, PlannedProduct
from figures.text import NOT_ASKED, Column, significant

# What a plan's axes hold, in inches: diagrams and columns of text keep their places whatever the layout.
_ROW, _TOTAL, _PANEL_TITLE, _GAP, _BELOW = 0.135, 0.17, 0.14, 0.06, 0.08
_NETWORK, _FORWARD, _BACKWARD = 2.25, 1.9, 2.45  # widths of the diagrams; the comparison takes the rest

#: Left edges of the columns of products: the product and its two gradients; right edges of the numbers behind them.
_PRODUCTS = (0.0, 2.28, 4.76)
_SHAPES = (1.06, 1.2, 1.2)
_FLOPS, _BAR, _SHARE, _KEPT = 7.65, (7.71, 8.0), 8.3, INNER


@dataclass(frozen=True)
class Fig11Row:
    """A product of a chosen plan; the plan's total, with ``product`` None; or, with ``planned`` None, no plan."""

    slot: PlannedLayer
    record: Record
    planned: Planned | None = None
    product: PlannedProduct | None = None
    side: str | None = None  # the pass
    number: int | None = None
    text: str | None = None
    shapes: str | None = None
    flops: int | None = None
    share: str | None = None  # of the plan's FLOPs
    moved_mib: float | None = None
    kept_mib: float | None = None  # for the backward pass: the product's result, or all


def _rows_of_plan(slot: PlannedLayer, record: Record, planned: Planned | None) -> Iterator[Fig11Row]:
    """The products in the order in which they are run, then the total."""
    if planned is None:
        yield Fig11Row(slot, record)
        return
    plan, moved = planned.chosen, 0.0
    for number, one in enumerate((*plan.products, *plan.backward), start=1):
        side = "forward" if number <= len(plan.products) else "backward"
        share = f"{one.flops / plan.flops:.1%}" if plan.flops else None
        sizes = (one.flops, share, one.moved_mib, plan.kept_mib.get(one.result))
        yield Fig11Row(slot, record, planned, one, side, number, one.text, one.shapes, *sizes)
        moved += one.moved_mib
    total = (plan.flops, "100%", moved, plan.saved_mib)
    yield Fig11Row(slot, record, planned, None, "both", None, "total (x is kept too)", "", *total)


def rows_of(grid: Grid) -> list[Fig11Row]:
    records = grid.records.items()
    return [row for slot, record in records for row in _rows_of_plan(slot, record, grid.planned.get(slot))]


def columns(grid: Grid, rows: Sequence[Fig11Row]) -> list[Column[Fig11Row]]:  # noqa: ARG001 - as every artifact
    """A row of the table per product, total and failure, of the CSV per product."""

    def tidy(row: Fig11Row) -> dict[str, object]:
        slot, planned, product = row.slot, row.planned, row.product
        assert planned is not None
        assert product is not None
        plan, best = planned.chosen, planned.best
        return {
            "device": grid.device,
            **{name: getattr(slot, name) for name in ("in_features", "out_features", "cores")},
            "ranks": " ".join(map(str, planned.ranks)),
            "tokens": slot.tokens,
            "plan": plan.name,
            "pass": row.side,
            "number": row.number,
            **vars(product),
            "flops": product.flops,
            "moved_mib": product.moved_mib,
            "kept_mib": row.kept_mib,
            "plan_flops": plan.flops,
            "plan_saved_mib": plan.saved_mib,
            "plan_estimated_ms": plan.estimated_ms,
            "plan_measured_ms": plan.time,
            "best_plan": best.name if best else "",
            "best_measured_ms": best.time if best else None,
            "dense_flops": planned.dense_flops,
            "dense_ms": planned.dense_time,
            "older_code": bool(grid.older(row.record)),
        }

    return [
        Column("layer", lambda row: row.slot.layer, left=True),
        Column("tokens", lambda row: f"{row.slot.tokens:,}"),
        Column("plan", lambda row: row.planned.chosen.name if row.planned else row.record.status, left=True),
        Column("pass", lambda row: row.side, left=True),
        Column("#", lambda row: row.number),
        Column("product", lambda row: row.text, left=True),
        Column("shapes", lambda row: row.shapes, left=True),
        Column("MFLOP", lambda row: significant(row.flops and row.flops / 1e6)),
        Column("share", lambda row: row.share),
        Column("MiB moved", lambda row: significant(row.moved_mib)),
        Column("result kept, MiB", lambda row: significant(row.kept_mib)),
        Column(tidy=tidy),
    ]


def _total(planned: Planned) -> str:
    """Work and memory of the chosen plan beside those of the dense layer and of the left-to-right order."""
    plan, naive = planned.chosen, planned.left_to_right
    flops = f"{significant(plan.flops / 1e6)} MFLOP, {significant(plan.flops / planned.dense_flops)} of nn.Linear's"
    kept = f"{significant(plan.saved_mib)} MiB kept for backward"
    if naive is not None and naive is not plan:
        flops += f" and {significant(plan.flops / naive.flops)} of the left-to-right order's"
        kept += f", left-to-right {significant(naive.saved_mib)}"
    return f"{flops}; {kept}; largest intermediate {significant(plan.largest_mib)} MiB."


def _footnotes(grid: Grid) -> list[str]:
    failed = [(slot, record) for slot, record in grid.records.items() if slot not in grid.planned]
    return [
        "Circles are cores, x the activations (B tokens, N in-features), y the result (M out-features). A line between "
        "two tensors is a mode or rank that they share; the number on it is the product that sums over it. Dashed: "
        "cores merged into one segment.",
        "Shapes are (rows x inner)·(inner x columns). A product Y = A·B takes 2·rows·inner·columns FLOPs, and as many "
        "for each of its gradients dA = dY·Bᵀ and dB = Aᵀ·dY: so there is one column of FLOPs for all three. Share: of "
        "all three in the plan's total.",
        "Between two products activations are only viewed in another shape: nothing is permuted.",
        "Kept: MiB that stay in memory for the backward pass, activations and merged cores, not parameters. "
        "Left-to-right: the plan in which nothing is merged. *: the fastest.",
        *(f"{slot.text}: {record.status}: {' '.join(record.message.split())}" for slot, record in failed),
        *closing_lines(grid),
    ]


def caption(grid: Grid, rows: Sequence[Fig11Row]) -> Caption:  # noqa: ARG001 - as every artifact
    totals = (f"{slot.text}, {planned.chosen.name!r}: {_total(planned)}" for slot, planned in grid.planned.items())
    return Caption(
        title="Fig. 11: contraction of a tensorized linear layer, forward and backward, as the planner chose it",
        facts=(timing_fact(grid),),
        notes=(*totals, *_footnotes(grid)),
    )


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
    """A line per product of the forward pass, with its two gradients beside it."""
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


def draw(grid: Grid, rows: Sequence[Fig11Row], caption: Caption) -> Figure:  # noqa: ARG001 - as every artifact
    page = Page(caption.title, caption.facts, _footnotes(grid), len(grid.planned))
    for part, (slot, planned) in enumerate(grid.planned.items()):
        [[axes]] = page.panels(part, _BELOW + _heights(planned)[1])
        _draw_plan(axes, planned, grid.older(grid.records[slot]))
    return page.finish()


ARTIFACT = Artifact(
    name="fig11",
    heading="Fig. 11: contraction paths",
    summary="contraction plans chosen for the encoder's layers as tensor diagrams, step by step; an image per device",
    experiments=("fig11",),
    measure="plan",
    made_by="make reproduce-fig11",
    order=50,
    select=plans.select_plans,
    rows=rows_of,
    columns=columns,
    tidy_rows=lambda _, rows: [row for row in rows if row.product],
    caption=caption,
    draw=draw,
    section="tokens",
)
