"""Fig. 11: the contraction plans chosen for the encoder's layers, as tensor diagrams; one figure per device.

``render`` is a pure function: the same records give the same bytes under the same file names. The paper publishes no
number with this figure, so there is no verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bench.core.record import Record, device_folder
from figures.claims.claims import Claim
from figures.contractions import ONCE, Planned, Slot, mib
from figures.fig11_tables import share, text_table, tidy_table, total, totals
from figures.page.drawn import Caption, Drawn, csv, markdown
from figures.page.layout import INNER, Page
from figures.page.style import TIME_FILLS, house_style, to_bytes
from figures.page.table import NOT_ASKED, OLDER, significant
from figures.plan_grid import Grid, facts, remarks, select_plans
from figures.records.select import by_device
from figures.tensor_diagrams import NETWORK_HEIGHT, TREE_HEIGHT, badge, draw_backward, draw_forward, draw_network

#: The experiment whose records Fig. 11 is made of.
EXPERIMENTS = ("fig11",)
TITLE = "Fig. 11: contraction of a tensorized linear layer, forward and backward, as the planner chose it"
LEFT_ALIGNED = frozenset({"layer", "plan", "pass", "product", "shapes"})

# A plan's place on the page, in inches.
_ROW, _HEADING, _TOTAL, _PANEL_TITLE, _GAP, _BELOW = 0.135, 0.18, 0.17, 0.14, 0.06, 0.2
_NETWORK, _FORWARD, _BACKWARD = 2.25, 1.9, 2.45  # widths of the diagrams; the comparison takes the rest
_DIAGRAMS = max(NETWORK_HEIGHT, TREE_HEIGHT)
_FONT = 6.0

#: Left edges of the columns of products: the product and its two gradients; right edges of the numbers behind them.
_PRODUCTS = (0.0, 2.28, 4.76)
_SHAPES = (1.06, 1.2, 1.2)
_FLOPS, _BAR, _SHARE, _KEPT = 7.65, (7.71, 8.0), 8.3, 8.8


def _notes(grid: Grid) -> tuple[str, ...]:
    notes = [
        "Circles are cores, x the activations (B tokens, N in-features), y the result (M out-features). A line between "
        "two tensors is a mode or rank that they share; the number on it is the product that sums over it. Dashed: "
        "cores merged into one segment.",
        "Shapes are (rows x inner)·(inner x columns). A product Y = A·B takes 2·rows·inner·columns FLOPs, and as many "
        "for each of its gradients dA = dY·Bᵀ and dB = Aᵀ·dY: so there is one column of FLOPs for all three. Share: of "
        "all three in the plan's total.",
        "Between two products activations are only viewed in another shape: nothing is permuted.",
        "Kept: MiB that stay in memory for the backward pass, activations and merged cores, not parameters. "
        "Left-to-right: the plan in which nothing is merged. *: the fastest.",
    ]
    for slot, record in grid.records.items():
        if slot not in grid.planned:
            notes.append(f"{slot.text}: {record.status}: {' '.join(record.message.split())}")
    return (*notes, *remarks(grid))


def _unit(planned: Planned) -> tuple[str, float]:
    """In which FLOPs are written, by the most that any plan or nn.Linear takes."""
    most = max(planned.dense_flops, *(one.flops for one in planned.candidates))
    return ("MFLOP", 1e6) if most < 1e11 else ("GFLOP", 1e9)


def _comparison(planned: Planned) -> list[tuple[str, ...]]:
    """Name, FLOPs, MiB kept, estimated and measured ms of every candidate, the chosen one first, and of nn.Linear."""
    unit, scale = _unit(planned)
    others = [one for one in planned.candidates if one is not planned.chosen]
    lines: list[tuple[str, ...]] = [("", unit, "kept, MiB", "est.", "meas.")]
    for one in (planned.chosen, *others):
        measured = significant(one.time) if one.time else NOT_ASKED
        mark = "*" if one is planned.best else planned.mark(one)
        flops, kept, estimated = (significant(value) for value in (one.flops / scale, one.saved_mib, one.estimated_ms))
        lines.append((one.name, flops, kept, estimated, measured + mark))
    x = mib(planned.slot.tokens * planned.slot.in_features)
    time = significant(planned.dense_time) if planned.dense_time else NOT_ASKED
    lines.append(("nn.Linear", significant(planned.dense_flops / scale), significant(x), NOT_ASKED, time))
    return lines


def _draw_comparison(axes: Any, planned: Planned, width: float) -> None:
    edges = [width - 1.24, width - 0.78, width - 0.42, width - 0.05]
    for row, (name, *numbers) in enumerate(_comparison(planned)):
        y = _DIAGRAMS - 0.06 - row * _ROW
        weight = "bold" if row == 1 else "normal"
        axes.text(0, y, name, fontsize=_FONT, va="center", fontweight=weight)
        for edge, number in zip(edges, numbers, strict=True):
            marked = number.endswith(("*", ONCE))
            axes.text(edge + 0.045 * marked, y, number, fontsize=_FONT, va="center", ha="right", fontweight=weight)


def _draw_products(axes: Any, planned: Planned, height: float) -> None:
    """A line per product of the forward pass, with its two gradients beside it."""
    plan, (unit, scale) = planned.chosen, _unit(planned)
    last = 3 * len(plan.products)
    y = height - _ROW / 2
    heads = ("forward", "gradient of the left operand", "gradient of the right operand")
    for left, head in zip(_PRODUCTS, heads, strict=True):
        axes.text(left, y, head, fontsize=_FONT, va="center", fontweight="bold")
    for edge, head in ((_FLOPS, f"{unit} each"), (_SHARE, "share"), (_KEPT, "kept, MiB")):
        axes.text(edge, y, head, fontsize=_FONT, va="center", ha="right", fontweight="bold")
    kept = plan.kept_mib
    for row, product in enumerate(plan.products):
        y -= _ROW
        numbers = (row + 1, last - 2 * row - 1, last - 2 * row)
        for left, offset, number, one in zip(_PRODUCTS, _SHAPES, numbers, (product, *product.gradients()), strict=True):
            badge(axes, (left + 0.065, y), number)
            axes.text(left + 0.16, y, one.text, fontsize=_FONT, va="center")
            axes.text(left + offset, y, one.shapes, fontsize=_FONT, va="center")
        part = share(product, plan)
        axes.text(_FLOPS, y, significant(product.flops / scale), fontsize=_FONT, va="center", ha="right")
        for length, colour in ((1.0, "#f0f0f0"), (part, TIME_FILLS["steps"].colour)):
            axes.add_patch(Rectangle((_BAR[0], y - 0.045), length * (_BAR[1] - _BAR[0]), 0.09, facecolor=colour))
        axes.text(_SHARE, y, f"{part:.1%}", fontsize=_FONT, va="center", ha="right")
        size = significant(kept[product.result]) if product.result in kept else NOT_ASKED
        axes.text(_KEPT, y, size, fontsize=_FONT, va="center", ha="right")


def _heading(grid: Grid, slot: Slot, planned: Planned) -> tuple[str, str]:
    """What was chosen for what, and how it fares."""
    chosen, best = planned.chosen, planned.best
    mark = f" {OLDER}" if grid.is_older(slot) else ""
    measured = (
        f"measured {significant(chosen.time)}{planned.mark(chosen)} ms"
        if chosen.time
        else f"not measured: {chosen.message}"
    )
    if best is None:
        faster = ""
    elif best is chosen:
        faster = ", the fastest candidate"
    else:
        faster = f"; fastest: {best.name!r}, {significant(best.time or 0)} ms"
    return f"{slot.text}: {chosen.name!r}{mark}", f"estimated {significant(chosen.estimated_ms)} ms, {measured}{faster}"


def _draw_plan(page: Page, grid: Grid, slot: Slot, planned: Planned) -> None:
    chosen = planned.chosen
    heading, times = _heading(grid, slot, planned)
    page.rule(0.07)
    page.text(times, left=INNER, ha="right", fontsize=7.5)
    page.text(heading, _HEADING, fontsize=8.5, fontweight="bold")
    page.text(total(planned), _TOTAL, fontsize=7)
    lefts = (0.0, _NETWORK, _NETWORK + _FORWARD + 0.1, _NETWORK + _FORWARD + _BACKWARD + 0.2)
    titles = ("network", "forward", "backward", "all candidates; times in ms")
    for left, title in zip(lefts, titles, strict=True):
        page.text(title, left=left, fontsize=7, style="italic")
    page.y -= _PANEL_TITLE
    draw_network(page.canvas(lefts[0], _NETWORK - 0.15, _DIAGRAMS), planned, chosen, _NETWORK - 0.15)
    draw_forward(page.canvas(lefts[1], _FORWARD, _DIAGRAMS), chosen, _FORWARD)
    draw_backward(page.canvas(lefts[2], _BACKWARD, _DIAGRAMS), chosen, _BACKWARD)
    _draw_comparison(page.canvas(lefts[3], INNER - lefts[3], _DIAGRAMS), planned, INNER - lefts[3])
    page.y -= _DIAGRAMS + _GAP
    height = _ROW * (1 + len(chosen.products))
    _draw_products(page.canvas(0.0, INNER, height), planned, height)
    page.y -= height + _BELOW


def _draw(grid: Grid, about: Sequence[str], footnotes: Sequence[str]) -> Figure:
    fixed = _HEADING + _TOTAL + _PANEL_TITLE + _DIAGRAMS + _GAP + _BELOW
    body = sum(fixed + _ROW * (1 + len(planned.chosen.products)) for planned in grid.planned.values())
    page = Page(TITLE, about, footnotes, body)
    for slot, planned in grid.planned.items():
        _draw_plan(page, grid, slot, planned)
    return page.finish()


def _drawn(grid: Grid) -> Drawn:
    about, table, footnotes = (facts(grid),), text_table(grid), _notes(grid)
    notes = (*totals(grid), *footnotes)
    stem = f"fig11-{device_folder(grid.device)}"
    with house_style():
        drawing = _draw(grid, about, footnotes)
        images = {f"{stem}.{form}": to_bytes(drawing, form) for form in ("png", "svg")}
    text = markdown(Caption(TITLE, about, notes), f"{stem}.png", table, LEFT_ALIGNED, ())
    files = {**images, f"{stem}.md": text, f"{stem}.csv": csv(tidy_table(grid))}
    return Drawn(
        title=TITLE, device=grid.device, facts=about, notes=notes, table=table, files=files, below=notes,
        left_aligned=LEFT_ALIGNED, section="tokens", records=tuple(grid.shown),
    )  # fmt: skip


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:  # noqa: ARG001 - as every artifact
    """One figure per device that has plans."""
    grids = [select_plans(records, device) for device, _ in by_device(records)]
    return [_drawn(grid) for grid in grids if grid.records]
