"""Fig. 1: time per epoch and peak memory of every arm, one figure per device.

``render`` is a pure function: the same records and ledger give the same bytes under the same file names.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bench.intervals import CONFIDENCE
from bench.record import Record, device_folder
from figures.bars import Band, Bar, Page, Panel, draw
from figures.claims import Claim
from figures.fig1_claims import verdicts
from figures.fig1_rows import (
    DISTURBED,
    REFERENCE,
    UNPAIRED,
    Row,
    rows_of,
    text_table,
    tidy_table,
    time_unit,
)
from figures.memory import CATEGORIES
from figures.reasons import Reasons
from figures.report import REMARKS, Drawn, csv, markdown
from figures.selection import TARGETS, Selection, devices, select
from figures.style import MEMORY_FILLS, TIME_FILLS, house_style, to_bytes
from figures.tables import OLDER, OLDER_WORDS, significant
from figures.timing import EXAMPLES_PER_EPOCH, block_means_ms

#: The experiments whose records Fig. 1 is made of.
EXPERIMENTS = ("fig1", "fig1_memory")
TITLE = "Fig. 1: time per epoch and peak memory, six-encoder transformer"
LEFT_ALIGNED = frozenset({"arm", REMARKS})

_MARK_WORDS = {
    OLDER: OLDER_WORDS,
    UNPAIRED: "ratio unpaired: the two arms were not timed block by block together",
    DISTURBED: "every block was disturbed: the record's own epoch time, without interval",
}


def _label(value: float, ratio: float | None, marks: str) -> str:
    compared = "" if ratio is None else f"  {significant(ratio)}x"
    return f"{significant(value)}{compared} {marks}".rstrip()


def _time_bar(row: Row, scale: float, reasons: Reasons) -> Bar:
    cell, epoch = row.time, row.time.epoch
    if epoch is None:
        return Bar(instead=reasons.instead(cell))
    total, rare = epoch.total, epoch.rare * scale
    steps = "steps, CoMERA" if row.arm == REFERENCE else "steps"
    parts = [(steps, total.value * scale - rare), *([("rare", rare)] if rare else [])]
    interval = None if total.low is None or total.high is None else (total.low * scale, total.high * scale)
    label = _label(total.value * scale, cell.ratio.value if cell.ratio else None, cell.marks)
    return Bar(tuple(parts), interval, label=label)


def _memory_bar(row: Row, target: str, kind: str, reasons: Reasons) -> Bar:
    cell = row.memory[target]
    peaks = (("allocated", row.allocated), ("reserved", row.reserved)) if target == kind == "cuda" else ()
    marks = tuple((name, size) for name, size in peaks if size is not None)
    if cell.peak is None:
        words = reasons.instead(cell)
        return Bar(marks=marks, label=f"prediction {words}") if marks else Bar(instead=words)
    return Bar(cell.parts, marks=marks, label=_label(cell.peak, cell.ratio, cell.marks))


def _bands(selection: Selection, rows: list[Row], reasons: Reasons) -> tuple[Band, ...]:
    unit, scale = time_unit(rows)

    def panels(batches: Sequence[int], bar_of: object) -> tuple[Panel, ...]:
        assert callable(bar_of)
        return tuple(
            Panel(f"batch {batch}", tuple(bar_of(row) for row in rows if row.batch_size == batch)) for batch in batches
        )

    where = "on the GPU" if selection.kind == "cuda" else "on the CPU"
    time = Band(
        f"Time per epoch {where}, in {unit}",
        panels(selection.time_batches, lambda row: _time_bar(row, scale, reasons)),
        TIME_FILLS,
        (
            ("steps, CoMERA", "training steps, CoMERA"),
            ("steps", "training steps, other arms"),
            ("rare", "rare events, amortised (GaLore's SVD, LTE's merge)"),
            ("interval", f"{CONFIDENCE:.0%} interval over blocks"),
        ),
    )
    bands = [time]
    for target in TARGETS:
        measured = target == selection.kind == "cuda"
        names = {"optimizer": "optimizer state"}
        legend = [(name, names.get(name, name)) for name in CATEGORIES]
        cells = [row.memory[target] for row in rows]
        if any(name == "unsplit" for cell in cells for name, _ in cell.parts):
            legend.append(("unsplit", "not split"))
        if measured:
            legend += [("allocated", "allocated, measured"), ("reserved", "reserved, measured")]
        words = {"cuda": "a CUDA device", "cpu": "a CPU"}[target]
        bands.append(
            Band(
                f"Peak memory predicted for {words}, in MiB{', and measured on this one' if measured else ''}",
                panels(selection.memory_batches, lambda row, t=target: _memory_bar(row, t, selection.kind, reasons)),
                MEMORY_FILLS,
                tuple(legend),
            )
        )
    return tuple(bands)


def _facts(selection: Selection) -> tuple[str, ...]:
    def listed(column: str) -> str:
        return ", ".join(str(value) for value in selection.values(column) if value != "")

    def switch(column: str) -> str:
        return " / ".join("on" if value else "off" for value in selection.values(column))

    shown = selection.shown
    days = [shown[0].recorded_at[:10], shown[-1].recorded_at[:10]]
    timed = [record for record in selection.timed.values() if record.status == "ok"]
    counts = sorted({len(block_means_ms(record)) for record in timed})
    blocks = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else "".join(map(str, counts))
    drivers = f", driver {listed('driver')}" if listed("driver") else ""
    setup = (
        f"torch {listed('torch_version')}{drivers}, {listed('precision')}, "
        f"length {listed('sequence_length')}, CUDA Graph {switch('cuda_graph')}, compile {switch('compile')}."
    )
    data = f"Timed on {listed('dataset')!r} data, {blocks} undisturbed blocks." if timed else "Nothing timed."
    return (
        f"Device: {selection.device}. {setup} Recorded {' to '.join(dict.fromkeys(days))}.",
        f"{data} An epoch is the paper's whatever the data: {EXAMPLES_PER_EPOCH:,} examples padded to 128 tokens.",
    )


def _notes(selection: Selection, rows: list[Row]) -> list[str]:
    notes = ["Bars start at zero; every panel has its own scale. Labels: value, and its ratio to CoMERA's (x)."]
    marks = {mark for row in rows for cell in row.cells for mark in cell.marks}
    notes += [f"{mark} {words}." for mark, words in _MARK_WORDS.items() if mark in marks]
    if disturbed := sum(row.time.disturbed for row in rows):
        notes.append(f"{disturbed} disturbed block(s) in all are left out of times, intervals and ratios.")
    notes += [
        f"{row.arm}, batch {row.batch_size}: the record's epoch time of {significant(said)} s differs from the "
        f"{significant(row.time.epoch.total.value)} s that its undisturbed blocks give, which is what is shown."
        for row in rows
        if row.time.epoch and (said := selection.timed[row.arm, row.batch_size].epoch_time_s) is not None
        if abs(said / row.time.epoch.total.value - 1) > 0.01
    ]
    lengths = selection.values("sequence_length")
    if selection.timed and lengths != [128]:
        notes.append(f"Timed at length {', '.join(map(str, lengths))}, not at the 128 of the paper's epoch.")
    if any(record.git_dirty for record in selection.shown):
        notes.append("Some records come from a tree with uncommitted changes.")
    return notes + list(selection.left_out)


def _below(table: pd.DataFrame, notes: Sequence[str]) -> tuple[str, ...]:
    """Remarks, each once per arm with all of its batch sizes, then the notes but for the one that explains the bars."""
    batches: dict[tuple[str, str], list[str]] = {}
    for arm, batch, remark in zip(table["arm"], table["batch"], table[REMARKS], strict=True):
        if remark:
            batches.setdefault((arm, remark), []).append(batch)
    remarks = (f"{arm}, batch {', '.join(those)}: {remark}" for (arm, remark), those in batches.items())
    return (*remarks, *notes[1:])


def of_device(records: Sequence[Record], device: str, claims: dict[str, Claim]) -> Drawn:
    """The figure of one device, with its tables and verdicts; other devices' records are ignored."""
    selection = select(records, device)
    rows = rows_of(selection)
    reasons = Reasons()
    bands = _bands(selection, rows, reasons)
    facts, notes = _facts(selection), _notes(selection, rows)
    judged = verdicts(selection, claims)
    table = text_table(selection, rows)
    stem = f"fig1-{device_folder(device)}"
    with house_style():
        drawing = draw(Page(TITLE, facts, selection.arms, bands, (*reasons.lines(), *notes)))
        images = {f"{stem}.{form}": to_bytes(drawing, form) for form in ("png", "svg")}
    text = markdown(TITLE, facts, f"{stem}.png", table, LEFT_ALIGNED, notes, judged)
    files = {**images, f"{stem}.md": text, f"{stem}.csv": csv(tidy_table(selection, rows))}
    below = _below(table, notes)
    return Drawn(TITLE, device, facts, tuple(notes), table, tuple(judged), files, below, LEFT_ALIGNED, "batch")


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:
    """One figure per device found, in order of device names."""
    return [of_device(records, device, claims) for device in devices(records)]
