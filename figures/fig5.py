"""Fig. 5: time and peak memory of a look-up by each variant; one figure per device, table and distribution.

``render`` is a pure function: the same records and ledger give the same bytes under the same file names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.intervals import CONFIDENCE
from bench.record import Record, device_folder
from figures.bars import Band, Bar, Page, Panel, draw
from figures.claims import Claim
from figures.fig5_claims import against_the_table, verdicts
from figures.fig5_rows import (
    DISTURBED,
    REFERENCE,
    STEPS,
    UNPAIRED,
    VARIANTS,
    Lookups,
    Row,
    rows_of,
    select_lookups,
)
from figures.fig5_tables import text_table, tidy_table
from figures.memory import CATEGORIES
from figures.reasons import Reasons
from figures.report import REMARKS, Drawn, csv, markdown
from figures.selection import devices
from figures.style import MEMORY_FILLS, TIME_FILLS, house_style, to_bytes
from figures.tables import NOT_RECORDED, OLDER, OLDER_WORDS, significant
from figures.timing import block_means_ms

#: The experiments whose records Fig. 5 is made of.
EXPERIMENTS = ("fig5", "fig5_memory")
LEFT_ALIGNED = frozenset({"step", "variant", REMARKS})

_MARK_WORDS = {
    OLDER: OLDER_WORDS,
    UNPAIRED: "ratio unpaired: the two variants were not timed block by block together",
    DISTURBED: "every block was disturbed: the median of all steps, without interval",
}


def _label(value: float, ratio: float | None, marks: str) -> str:
    compared = "" if ratio is None else f"  {significant(ratio)}x"
    return f"{significant(value)}{compared} {marks}".rstrip()


def _time_bar(row: Row, reasons: Reasons) -> Bar:
    cell, step = row.time, row.time.step
    if step is None:
        return Bar(instead=reasons.instead(cell))
    fill = "steps, CoMERA" if row.variant == REFERENCE else "steps"
    interval = None if step.low is None or step.high is None else (step.low, step.high)
    label = _label(step.value, cell.ratio.value if cell.ratio else None, cell.marks)
    return Bar(((fill, step.value),), interval, label=label)


def _memory_bar(row: Row, target: str, reasons: Reasons) -> Bar:
    cell = row.memory[target]
    peaks = (("allocated", row.allocated), ("reserved", row.reserved)) if target == "cuda" else ()
    marks = tuple((name, size) for name, size in peaks if size is not None)
    if cell.peak is None:
        words = reasons.instead(cell)
        return Bar(marks=marks, label=f"prediction {words}") if marks else Bar(instead=words)
    return Bar(cell.parts, marks=marks, label=_label(cell.peak, cell.ratio, cell.marks))


def _target(lookups: Lookups, rows: list[Row]) -> str:
    """The device whose predicted memory is drawn: this one's kind, or the other where only that was predicted."""
    if all(row.memory[lookups.kind].status == NOT_RECORDED for row in rows):
        return "cpu" if lookups.kind == "cuda" else "cuda"
    return lookups.kind


def _bands(lookups: Lookups, rows: list[Row], reasons: Reasons) -> tuple[Band, ...]:
    where = "on the GPU" if lookups.kind == "cuda" else "on the CPU"
    target = _target(lookups, rows)
    goal = {"cuda": "a CUDA device", "cpu": "a CPU"}[target]
    time_legend = (
        ("steps, CoMERA", "optimized"),
        ("steps", "other variants and the uncompressed table"),
        ("interval", f"{CONFIDENCE:.0%} interval over blocks"),
    )
    memory_legend = [(name, {"optimizer": "optimizer state"}.get(name, name)) for name in CATEGORIES]
    if any(name == "unsplit" for row in rows for name, _ in row.memory[target].parts):
        memory_legend.append(("unsplit", "not split"))
    measured = target == "cuda" and any(row.allocated is not None for row in rows)
    if measured:
        memory_legend += [("allocated", "allocated, measured"), ("reserved", "reserved, measured")]

    def panels(step: bool, bar_of: Callable[[Row], Bar]) -> tuple[Panel, ...]:
        return tuple(
            Panel(f"{batch:,} indices", tuple(bar_of(row) for row in rows if (row.step, row.batch) == (step, batch)))
            for batch in lookups.batches
        )

    bands = []
    for step, words in STEPS.items():
        heading = f"Time per step {where}, in ms: {words}"
        bands.append(Band(heading, panels(step, lambda row: _time_bar(row, reasons)), TIME_FILLS, time_legend))
    for step, words in STEPS.items():
        heading = f"Peak memory predicted for {goal}, in MiB{', and measured on this one' if measured else ''}: {words}"
        memory = panels(step, lambda row: _memory_bar(row, target, reasons))
        bands.append(Band(heading, memory, MEMORY_FILLS, tuple(memory_legend)))
    return tuple(bands)


def _title(lookups: Lookups) -> str:
    words = {"uniform": "evenly drawn indices", "zipf": "Zipf-distributed indices"}
    drawn = words.get(lookups.place.dataset, f"indices {lookups.place.dataset}")
    return f"Fig. 5: look-up of a table of {lookups.place.table}, {drawn}"


def _facts(lookups: Lookups) -> tuple[str, ...]:
    def listed(column: str) -> str:
        return ", ".join(str(value) for value in lookups.values(column) if value != "")

    def switch(column: str) -> str:
        return " / ".join("on" if value else "off" for value in lookups.values(column))

    shown = lookups.shown
    days = [shown[0].recorded_at[:10], shown[-1].recorded_at[:10]]
    timed = [record for record in lookups.timed.values() if record.status == "ok"]
    counts = sorted({len(block_means_ms(record)) for record in timed})
    blocks = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else "".join(map(str, counts))
    drivers = f", driver {listed('driver')}" if listed("driver") else ""
    setup = (
        f"torch {listed('torch_version')}{drivers}, {listed('precision')}, CUDA Graph {switch('cuda_graph')}, "
        f"compile {switch('compile')}."
    )
    timing = f"Timed in {blocks} undisturbed blocks." if timed else "Nothing timed."
    return (
        f"Device: {lookups.device}. {setup} Recorded {' to '.join(dict.fromkeys(days))}.",
        f"{timing} Loss: mean square of the rows. With the optimizer's step (AdamW), CoMERA's size term is in.",
        "plain: a gather and a product per core and index; unique: the same for unique indices alone; order: one "
        "product of two halves per index; optimized: that for unique indices alone; uncompressed: nn.Embedding.",
    )


def _notes(lookups: Lookups, rows: list[Row]) -> list[str]:
    notes = [
        "Bars start at zero; every panel has its own scale. Labels: value, and its ratio to the optimized one (x)."
    ]
    marks = {mark for row in rows for cell in row.cells for mark in cell.marks}
    notes += [f"{mark} {words}." for mark, words in _MARK_WORDS.items() if mark in marks]
    notes += against_the_table(lookups)
    if disturbed := sum(row.time.disturbed for row in rows):
        notes.append(f"{disturbed} disturbed block(s) in all are left out of times, intervals and ratios.")
    if any(record.git_dirty for record in lookups.shown):
        notes.append("Some records come from a tree with uncommitted changes.")
    return notes + list(lookups.left_out)


def _below(rows: list[Row], remarks: Sequence[str], notes: Sequence[str]) -> tuple[str, ...]:
    """Remarks with the row they are about, then the notes but for the one that explains the bars."""
    said = (
        f"{row.variant}, {row.batch:,} indices, {STEPS[row.step]}: {remark}"
        for row, remark in zip(rows, remarks, strict=True)
        if remark
    )
    return (*said, *notes[1:])


def _drawn(lookups: Lookups, claims: dict[str, Claim]) -> Drawn:
    rows = rows_of(lookups)
    reasons = Reasons()
    bands = _bands(lookups, rows, reasons)
    title, facts, notes = _title(lookups), _facts(lookups), _notes(lookups, rows)
    judged = verdicts(lookups, claims)
    table = text_table(lookups, rows)
    place = lookups.place
    stem = f"fig5-{device_folder(lookups.device)}-{place.rows}x{place.columns}-{device_folder(place.dataset)}"
    with house_style():
        drawing = draw(Page(title, facts, VARIANTS, bands, (*reasons.lines(), *notes)))
        images = {f"{stem}.{form}": to_bytes(drawing, form) for form in ("png", "svg")}
    text = markdown(title, facts, f"{stem}.png", table, LEFT_ALIGNED, notes, judged)
    files = {**images, f"{stem}.md": text, f"{stem}.csv": csv(tidy_table(lookups, rows))}
    below = _below(rows, list(table[REMARKS]), notes)
    return Drawn(
        title, lookups.device, facts, tuple(notes), table, tuple(judged), files, below, LEFT_ALIGNED, "indices"
    )


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:
    """One figure per device, table and distribution found, in this order."""
    return [_drawn(lookups, claims) for device in devices(records) for lookups in select_lookups(records, device)]
