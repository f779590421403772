"""Fig. 12: time, peak memory and FLOPs against the compression of the whole model; one per device and toggles.

``render`` is a pure function: the same records and ledger give the same bytes under the same file names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.core.record import Record, device_folder
from figures.bars_page import data_fact, device_fact, disturbed_note, last_notes, length_note, mark_notes
from figures.claims import FULL_SIZE_PARAMETERS, Claim
from figures.epochs import EPOCH_WORDS, MARK_WORDS, time_unit
from figures.fig12_claims import verdicts
from figures.fig12_panels import Curve, Panel, draw_panel, legend
from figures.fig12_quantities import (
    Quantity,
    against_dense,
    against_low_rank,
    peak_memory,
    rows_of_arm,
    time_per_epoch,
    values,
    work_per_step,
)
from figures.fig12_rows import Row, rows_of
from figures.fig12_selection import Sweep, sweeps
from figures.fig12_tables import LEFT_ALIGNED, remark_lines, text_table, tidy_table
from figures.reasons import Missing, Reasons, in_full
from figures.report import Drawn, csv, markdown
from figures.runs import DENSE
from figures.selection import TARGETS, devices
from figures.sheet import sheet_of_rows
from figures.style import house_style, to_bytes

#: The experiments whose records Fig. 12 is made of.
EXPERIMENTS = ("ratios", "ratios_memory")
TITLE = "Fig. 12: time, memory and FLOPs by whole-model compression, six-encoder transformer"

_TIME_WORDS = "Times are compared with dense block by block within the job that timed both; every job timed dense."
_PANEL_HEIGHT, _COLUMNS, _LEGEND_COLUMNS = 2.1, 4, 4


def _quantities(sweep: Sweep, rows: Sequence[Row]) -> list[Quantity]:
    """Time, work, then memory, for this kind of device first."""
    targets = sorted(TARGETS, key=lambda target: target != sweep.kind)
    memory = [peak_memory(sweep, target) for target in targets if any(row.memory[target].peak for row in rows)]
    return [time_per_epoch(sweep, *time_unit(rows)), work_per_step(sweep), *memory]


def _why(cell: Missing) -> str:
    """Why there is no value."""
    return "timed without dense to compare with" if cell.status == "ok" else in_full(cell)


def _curve(rows: Sequence[Row], arm: str, quantity: Quantity, reasons: Reasons) -> Curve:
    found = values(rows, quantity.value)
    missing = {
        row.ratio: row.reach or reasons.number(_why(quantity.cell(row))) for row in rows if row.ratio not in found
    }
    measured = {row.ratio: dict(row.measured)["allocated"] for row in rows} if quantity.measured else {}
    allocated = {ratio: size for ratio, size in measured.items() if size is not None}
    return Curve(arm, found, values(rows, quantity.over_dense), missing, allocated)


def _panel(sweep: Sweep, rows: Sequence[Row], quantity: Quantity, batch: int, reasons: Reasons) -> Panel:
    [dense] = rows_of_arm(rows, DENSE, batch)
    return Panel(
        title=f"{quantity.title}, batch {batch}",
        axis=quantity.axis,
        curves=tuple(_curve(rows_of_arm(rows, arm, batch), arm, quantity, reasons) for arm in sweep.arms),
        dense=quantity.value(dense),
        dense_words=quantity.dense_words(dense),
        dense_allocated=dict(dense.measured)["allocated"] if quantity.measured else None,
    )


def _lines(panels: Sequence[Sequence[Panel]]) -> list[list[Panel]]:
    """The panels of each quantity as rows of the page; quantities share a row where all of their panels fit."""
    lines: list[list[Panel]] = []
    for mine in panels:
        if lines and len(lines[-1]) + len(mine) <= _COLUMNS:
            lines[-1] += mine
        else:
            lines += [list(mine[start : start + _COLUMNS]) for start in range(0, len(mine), _COLUMNS)]
    return lines


def _notes(sweep: Sweep, rows: Sequence[Row], quantities: Sequence[Quantity]) -> list[str]:
    return [
        "Ratio: parameters of the dense model over those of the arm, as asked for; the table has what was reached.",
        *([_TIME_WORDS] if sweep.timed else []),
        "All axes are logarithmic; crossovers are interpolated on them between the two nearest ratios.",
        *(line for quantity in quantities for arm in sweep.arms for line in against_dense(rows, arm, quantity)),
        *(line for quantity in quantities for line in against_low_rank(rows, quantity)),
        *mark_notes((cell.marks for row in rows for cell in row.cells), MARK_WORDS),
        *disturbed_note(sum(row.time.disturbed for row in rows)),
        *length_note(sweep),
        *last_notes(sweep),
    ]


def _facts(sweep: Sweep, rows: Sequence[Row]) -> list[str]:
    """The data, the epoch and the dense model."""
    count = next((row.parameters for row in rows if row.arm == DENSE and row.parameters), None)
    size = "of the paper's size" if count == FULL_SIZE_PARAMETERS else "not the paper's size"
    return [
        f"{data_fact(sweep)} {EPOCH_WORDS}" if sweep.timed else data_fact(sweep),
        *([f"Dense model: {count:,} parameters, {size}."] if count else []),
    ]


def _stem(sweep: Sweep) -> str:
    precision, graph, compiled = sweep.toggles
    parts = [*([precision] if precision != "fp32" else []), *(["graph"] if graph else [])]
    return "-".join(["fig12", device_folder(sweep.device), *parts, *(["compiled"] if compiled else [])])


def _draw(facts: Sequence[str], lines: Sequence[Sequence[Panel]], sweep: Sweep, footnotes: Sequence[str]) -> Any:
    panels = [panel for line in lines for panel in line]
    titles = [[panel.title for panel in line] for line in lines]
    ratios = sorted({ratio for arm, _, ratio in sweep.slots if arm != DENSE})
    page, axes = sheet_of_rows(
        TITLE, facts, titles, footnotes, _PANEL_HEIGHT, legend(panels, sweep.arms), _LEGEND_COLUMNS
    )
    for one, panel in zip((one for row in axes for one in row), panels, strict=True):
        draw_panel(one, panel, sweep.arms, ratios)
    return page


def of_sweep(sweep: Sweep, claims: dict[str, Claim]) -> Drawn:
    """The figure of one sweep, with its tables and verdict."""
    rows, reasons = rows_of(sweep), Reasons()
    quantities = _quantities(sweep, rows)
    panels = [[_panel(sweep, rows, one, batch, reasons) for batch in one.batches] for one in quantities]
    facts = (device_fact(sweep), *_facts(sweep, rows))
    notes, judged = _notes(sweep, rows, quantities), verdicts(sweep, claims)
    stem, table = _stem(sweep), text_table(sweep, rows)
    with house_style():
        page = _draw(facts, _lines(panels), sweep, (*reasons.lines(), *notes))
        files = {f"{stem}.{form}": to_bytes(page, form) for form in ("png", "svg")}
    files[f"{stem}.md"] = markdown(TITLE, facts, f"{stem}.png", table, LEFT_ALIGNED, notes, judged)
    files[f"{stem}.csv"] = csv(tidy_table(sweep, rows))
    below = (*remark_lines(rows), *notes)
    return Drawn(
        TITLE, sweep.device, facts, tuple(notes), table, tuple(judged), files, below, LEFT_ALIGNED, "batch",
        records=tuple(sweep.shown),
    )  # fmt: skip


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:
    """One figure per device, precision and toggles, in this order."""
    return [of_sweep(sweep, claims) for device in devices(records) for sweep in sweeps(records, device)]
