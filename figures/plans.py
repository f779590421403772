"""The contraction planner judged on a grid of shapes: its choice over the best measured candidate; one page per device.

``render`` is a pure function: the same records give the same bytes under the same file names. A figure the paper lacks,
so there is no verdict on a claim.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.core.record import Record, device_folder
from figures.claims.claims import Claim
from figures.page.drawn import Caption, Drawn, csv, markdown
from figures.page.layout import INNER, Page
from figures.page.style import EARLY_STROKE, FAINT, INK, STROKES, Stroke, house_style, to_bytes
from figures.page.table import REMARKS
from figures.plan_grid import Grid, facts, remarks, select_plans
from figures.plans_rows import FAR, NEAR, Row, always, ratios_of, rows_of, sentences
from figures.plans_tables import text_table, tidy_table
from figures.records.select import by_device

#: The experiment whose records the grid is made of.
EXPERIMENTS = ("contraction",)
TITLE = "Contraction plans: the planner's choice against the best measured candidate"
LEFT_ALIGNED = frozenset({"layer", "chosen", "best", REMARKS})

# The page, in inches.
_LABELS, _BETWEEN, _CELL = 1.2, 0.12, 0.27
_HEADING, _TOKENS, _LEGEND, _BELOW = 0.2, 0.3, 0.2, 0.16
_PANEL, _PANEL_TITLE, _AXIS, _LEFT, _RIGHT, _CURVE = 1.75, 0.22, 0.42, 0.42, 0.08, 2.2
_COLUMNS = 3  # maps beside one another, and panels of c
_CURVE_END = 4.0

#: Fill and ink of a cell, from the best choice to the worst; lightness alone tells them apart.
_SHADES = (
    (1.0, "#ffffff", INK, "the best is chosen"),
    (NEAR, "#dfe7ef", INK, f"within {NEAR:.2f} of it"),
    (FAR, "#9db4c8", INK, f"within {FAR:.2f}"),
    (float("inf"), "#1d2f4f", "#ffffff", f"beyond {FAR:.2f}"),
)


def _shade(ratio: float) -> tuple[str, str]:
    """Fill and ink of a measured cell."""
    return next((fill, ink) for limit, fill, ink, _ in _SHADES if ratio <= limit)


def _draw_cell(axes: Any, row: Row, left: float, bottom: float, width: float) -> None:
    fill, ink = _shade(row.ratio.value) if row.ratio is not None else ("white", INK)
    hatch = "////" if row.ratio is None else ""
    box = Rectangle((left, bottom), width, _CELL, facecolor=fill, edgecolor=FAINT, linewidth=0.4, hatch=hatch, zorder=1)
    box.set_clip_on(False)
    axes.add_patch(box)
    if row.ratio is None or row.planned is None or row.planned.best is None:
        return
    chosen, best = row.planned.chosen, row.planned.best
    x, y, drop = left + width / 2, bottom + _CELL / 2, 0.0 if row.chose_best else 0.055
    style = {"ha": "center", "va": "center", "color": ink, "zorder": 2}
    axes.text(x, y + drop, f"{chosen.initials}{row.mark}", fontsize=6.5, fontweight="bold", **style)
    if not row.chose_best:
        axes.text(x, y - drop, f"{best.initials} {row.ratio.value:.3f}", fontsize=5.5, **style)


def _draw_map(page: Page, rows: Sequence[Row], left: float, width: float, names: bool) -> None:
    """All shapes of one number of cores: a line per layer and ranks, a column per number of tokens."""
    tokens = sorted({row.slot.tokens for row in rows})
    layers = list(dict.fromkeys((row.slot.layer, row.slot.ranks) for row in rows))
    height, cell = _CELL * len(layers), width / len(tokens)
    page.text(f"{rows[0].slot.cores} cores", left=left, fontsize=8, fontweight="bold")
    top = page.y
    page.y -= _TOKENS
    axes = page.canvas(left, width, height)
    for place, count in enumerate(tokens):
        axes.text((place + 0.5) * cell, height + 0.03, f"{count:,}", fontsize=6, ha="center", va="bottom")
    for row in rows:
        bottom = height - _CELL * (1 + layers.index((row.slot.layer, row.slot.ranks)))
        _draw_cell(axes, row, tokens.index(row.slot.tokens) * cell, bottom, cell)
    for place, (layer, ranks) in enumerate(layers):
        y = height - _CELL * place
        if place and layer != layers[place - 1][0]:
            axes.plot([0, width], [y, y], color=INK, linewidth=0.9, zorder=3)
        if names:
            first = place == 0 or layer != layers[place - 1][0]
            axes.text(-_LABELS + 0.02, y - _CELL / 2, layer if first else "", fontsize=7, va="center")
            axes.text(-0.06, y - _CELL / 2, f"{ranks:,}", fontsize=6.5, va="center", ha="right")
    if names:
        axes.text(-_LABELS + 0.02, height + 0.03, "layer", fontsize=6, va="bottom", color=FAINT)
        axes.text(-0.06, height + 0.03, "ranks | tokens", fontsize=6, va="bottom", ha="right", color=FAINT)
    page.y = top


def _draw_maps(page: Page, rows: Sequence[Row]) -> None:
    page.text("a  The chosen plan at every shape and, where another was faster, that one and chosen / best", _HEADING,
              fontsize=8.5, fontweight="bold")  # fmt: skip
    orders = _orders(rows)
    initials = {one.name: one.initials for row in rows if row.planned for one in row.planned.candidates}
    page.text(", ".join(f"{short}: {name}" for name, short in initials.items()), left=INNER, ha="right", fontsize=7)
    handles: list[Any] = [Patch(facecolor=fill, edgecolor=FAINT, linewidth=0.4, label=words)
                          for _, fill, _, words in _SHADES]  # fmt: skip
    handles.append(Patch(facecolor="white", edgecolor=FAINT, linewidth=0.4, hatch="////", label="not measured"))
    page.legend(handles, columns=len(handles))
    page.y -= _LEGEND
    width = (INNER - _LABELS - _BETWEEN * (_COLUMNS - 1)) / _COLUMNS
    for start in range(0, len(orders), _COLUMNS):
        for place, order in enumerate(orders[start : start + _COLUMNS]):
            left = _LABELS + place * (width + _BETWEEN)
            _draw_map(page, [row for row in rows if row.slot.order == order], left, width, names=place == 0)
        page.y -= _map_height(rows)


def _orders(rows: Sequence[Row]) -> list[int]:
    return sorted({row.slot.order for row in rows})


def _ranks(rows: Sequence[Row]) -> list[int]:
    return sorted({row.slot.ranks for row in rows})


def _map_height(rows: Sequence[Row]) -> float:
    layers = {(row.slot.layer, row.slot.ranks) for row in rows}
    return _TOKENS + _CELL * len(layers) + _BELOW


def _curves(rows: Sequence[Row]) -> list[tuple[str, list[float], Stroke]]:
    """Ratios to the best: the planner's, and those of one plan for all shapes."""
    ratios = {"planner": ratios_of(rows), **always(rows)}
    strokes = itertools.cycle(STROKES)
    return [(name, one, next(strokes) if number else EARLY_STROKE) for number, (name, one) in enumerate(ratios.items())]


def _draw_curves(axes: Any, rows: Sequence[Row]) -> None:
    """The share of the shapes up to each ratio to the best."""
    for _, ratios, stroke in _curves(rows):
        shown = [1.0, *(ratio for ratio in ratios if ratio <= _CURVE_END)]
        shares = [100 * place / max(len(ratios), 1) for place in range(len(shown))]
        axes.step(
            [*shown, _CURVE_END], [*shares, shares[-1]], where="post", color=stroke.colour, linestyle=stroke.dashes,
            linewidth=_width(stroke), zorder=3 if stroke is EARLY_STROKE else 2,
        )  # fmt: skip
    for limit in (NEAR, FAR):
        axes.axvline(limit, color=FAINT, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=1)
    axes.set_xscale("log")
    axes.set_xlim(0.98, _CURVE_END)
    axes.set_ylim(0, 103)
    ticks = [1, NEAR, FAR, 2, 3, _CURVE_END]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("time / best measured")
    axes.set_ylabel("shapes within, %")


def _draw_over_dense(axes: Any, rows: Sequence[Row], strokes: dict[str, Stroke]) -> None:
    """Time over nn.Linear against tokens, a line per layer and number of cores."""
    for layer, stroke in strokes.items():
        for order in _orders(rows):
            line = [row for row in rows if (row.slot.layer, row.slot.order) == (layer, order) and row.over_dense]
            axes.plot(
                [row.slot.tokens for row in line], [row.over_dense.value for row in line if row.over_dense],
                color=stroke.colour, linestyle=stroke.dashes, linewidth=0.8, marker=stroke.marker, markersize=3.5,
                markerfacecolor=stroke.face, markeredgewidth=0.7,
            )  # fmt: skip
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    tokens = sorted({row.slot.tokens for row in rows})
    axes.xaxis.set_major_locator(FixedLocator(tokens))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("tokens")


def _draw_panels(page: Page, rows: Sequence[Row]) -> None:
    ranks = _ranks(rows)
    first = 2 * _LEFT + _CURVE  # left edge of the panels of c
    width = (INNER - _LEFT - _CURVE - _RIGHT) / _COLUMNS - _LEFT
    page.text("b  The planner, or one plan for all", fontsize=8.5, fontweight="bold")
    page.text("c  Time of the chosen plan over that of nn.Linear; a line per layer and number of cores", _HEADING,
              left=first - _LEFT / 2, fontsize=8.5, fontweight="bold")  # fmt: skip
    page.legend([_handle(stroke, name, _width(stroke)) for name, _, stroke in _curves(rows)], columns=3)
    layers = list(dict.fromkeys(row.slot.layer for row in rows))
    strokes = {layer: STROKES[number % len(STROKES)] for number, layer in enumerate(layers)}
    handles = [_handle(stroke, layer, 0.8, stroke.marker) for layer, stroke in strokes.items()]
    page.legend(handles, left=first - _LEFT / 2, columns=4)
    page.y -= _LEGEND * 2
    shared: list[Any] = []
    for place, rank in enumerate(ranks):
        if place % _COLUMNS == 0:
            page.y -= _PANEL_TITLE
        axes = page.axes(first + place % _COLUMNS * (width + _LEFT), width, _PANEL)
        axes.set_title(f"ranks up to {rank:,}", loc="left", fontweight="bold")
        _draw_over_dense(axes, [row for row in rows if row.slot.ranks == rank], strokes)
        shared.append(axes)
        if place == 0:
            _draw_curves(page.axes(_LEFT, _CURVE, _PANEL), rows)
        if place % _COLUMNS == _COLUMNS - 1 or rank == ranks[-1]:
            page.y -= _PANEL + _AXIS
    low, high = min(one.get_ylim()[0] for one in shared), max(one.get_ylim()[1] for one in shared)
    for axes in shared:
        axes.set_ylim(low, high)
        axes.grid(visible=True, axis="both")
        axes.tick_params(labelsize=6.5)


def _handle(stroke: Stroke, words: str, width: float, marker: str = "") -> Line2D:
    return Line2D(
        [], [], color=stroke.colour, linestyle=stroke.dashes, linewidth=width, label=words, marker=marker, markersize=4,
        markerfacecolor=stroke.face,
    )  # fmt: skip


def _width(stroke: Stroke) -> float:
    """Of a curve of panel b; the planner's stands out."""
    return 2.0 if stroke is EARLY_STROKE else 1.1


def _draw(about: Sequence[str], rows: Sequence[Row], footnotes: Sequence[str]) -> Figure:
    maps = -(-len(_orders(rows)) // _COLUMNS)
    panels = -(-len(_ranks(rows)) // _COLUMNS)
    body = 2 * _HEADING + 3 * _LEGEND + maps * _map_height(rows) + panels * (_PANEL_TITLE + _PANEL + _AXIS)
    page = Page(TITLE, about, footnotes, body)
    _draw_maps(page, rows)
    _draw_panels(page, rows)
    return page.finish()


def _drawn(grid: Grid) -> Drawn:
    rows = rows_of(grid)
    said, table = sentences(rows), text_table(rows)
    about = (facts(grid), *said[:1])
    notes = (*said[1:], *remarks(grid))
    stem = f"plans-{device_folder(grid.device)}"
    with house_style():
        drawing = _draw(about, rows, notes)
        images = {f"{stem}.{form}": to_bytes(drawing, form) for form in ("png", "svg")}
    text = markdown(Caption(TITLE, about, notes), f"{stem}.png", table, LEFT_ALIGNED, ())
    files = {**images, f"{stem}.md": text, f"{stem}.csv": csv(tidy_table(grid, rows))}
    return Drawn(
        title=TITLE, device=grid.device, facts=about, notes=notes, table=table, files=files, below=notes,
        left_aligned=LEFT_ALIGNED, section="layer", records=tuple(grid.shown),
    )  # fmt: skip


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:  # noqa: ARG001 - as every artifact
    """One page per device that has plans."""
    grids = [select_plans(records, device) for device, _ in by_device(records)]
    return [_drawn(grid) for grid in grids if grid.records]
