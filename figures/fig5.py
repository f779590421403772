"""Fig. 5: time and peak memory of a look-up by each variant; one figure per device, table and distribution.

``render`` is a pure function: the same records and ledger give the same bytes under the same file names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.core.intervals import CONFIDENCE
from bench.core.record import Record, device_folder
from figures.bars import Band, Bar, Page, Panel, value_label
from figures.bars_page import blocks_timed, device_fact, disturbed_note, drawn, last_notes, mark_notes
from figures.claims import Claim
from figures.fig5_claims import against_the_table, verdicts
from figures.fig5_rows import REFERENCE, STEPS, VARIANTS, Lookups, Row, rows_of, select_lookups
from figures.fig5_tables import text_table, tidy_table
from figures.memory import memory_bar, memory_legend
from figures.reasons import Reasons
from figures.report import REMARKS, Drawn
from figures.selection import devices
from figures.style import MEMORY_FILLS, TIME_FILLS
from figures.tables import DISTURBED, NOT_RECORDED, OLDER, OLDER_WORDS, UNPAIRED

#: The experiments whose records Fig. 5 is made of.
EXPERIMENTS = ("fig5", "fig5_memory")
LEFT_ALIGNED = frozenset({"step", "variant", REMARKS})

_MARK_WORDS = {
    OLDER: OLDER_WORDS,
    UNPAIRED: "ratio unpaired: the two variants were not timed block by block together",
    DISTURBED: "every block was disturbed: the median of all steps, without interval",
}


def _time_bar(row: Row, reasons: Reasons) -> Bar:
    cell, step = row.time, row.time.step
    if step is None:
        return Bar(instead=reasons.instead(cell))
    fill = "steps, CoMERA" if row.variant == REFERENCE else "steps"
    interval = None if step.low is None or step.high is None else (step.low, step.high)
    label = value_label(step.value, cell.ratio.value if cell.ratio else None, cell.marks)
    return Bar(((fill, step.value),), interval, label=label)


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
    measured = target == "cuda" and any(dict(row.measured)["allocated"] is not None for row in rows)
    legend = memory_legend((row.memory[target] for row in rows), measured)

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
        memory = panels(step, lambda row: memory_bar(row.memory[target], row.measured if measured else (), reasons))
        bands.append(Band(heading, memory, MEMORY_FILLS, legend))
    return tuple(bands)


def _title(lookups: Lookups) -> str:
    words = {"uniform": "evenly drawn indices", "zipf": "Zipf-distributed indices"}
    drawn = words.get(lookups.place.dataset, f"indices {lookups.place.dataset}")
    allocator = "" if lookups.place.allocator == "steady" else f", {lookups.place.allocator} allocator"
    return f"Fig. 5: look-up of a table of {lookups.place.table}, {drawn}{allocator}"


def _facts(lookups: Lookups) -> tuple[str, ...]:
    blocks = blocks_timed(lookups)
    timing = f"Timed in {blocks} undisturbed blocks." if blocks else "Nothing timed."
    if lookups.place.allocator == "system":
        timing += " Freed memory goes back to the system, as is usual outside of this bench, which keeps it elsewhere."
    return (
        device_fact(lookups, length=False),
        f"{timing} The gradient of the rows is given. With the optimizer's step (AdamW), CoMERA's size term is in.",
        "plain: a gather and a product per core and index; unique: the same for unique indices alone; order: one "
        "product of two halves per index; optimized: that for unique indices alone; uncompressed: nn.Embedding.",
    )


def _notes(lookups: Lookups, rows: list[Row]) -> list[str]:
    return [
        "Bars start at zero; every panel has its own scale. Labels: value, and its ratio to the optimized one (x).",
        *mark_notes((cell.marks for row in rows for cell in row.cells), _MARK_WORDS),
        *against_the_table(lookups),
        *disturbed_note(sum(row.time.disturbed for row in rows)),
        *last_notes(lookups),
    ]


def _of_lookups(lookups: Lookups, claims: dict[str, Claim]) -> Drawn:
    rows = rows_of(lookups)
    reasons = Reasons()
    bands = _bands(lookups, rows, reasons)
    notes, judged = _notes(lookups, rows), verdicts(lookups, claims)
    page = Page(_title(lookups), _facts(lookups), VARIANTS, bands, (*reasons.lines(), *notes))
    place, table = lookups.place, text_table(lookups, rows)
    parts = [lookups.device, f"{place.rows}x{place.columns}", place.dataset]
    parts += [place.allocator] if place.allocator != "steady" else []
    stem = "-".join(["fig5", *map(device_folder, parts)])
    said = [
        f"{row.variant}, {row.batch:,} indices, {STEPS[row.step]}: {remark}"
        for row, remark in zip(rows, table[REMARKS], strict=True)
        if remark
    ]
    tidy = tidy_table(lookups, rows)
    return drawn(stem, page, lookups, notes, table, tidy, judged, said, LEFT_ALIGNED, "indices")


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:
    """One figure per device, table and distribution found, in this order."""
    return [_of_lookups(lookups, claims) for device in devices(records) for lookups in select_lookups(records, device)]
