"""Fig. 7: time per epoch with CUDA Graph off and on, CoMERA against dense, and with other toggles; a figure per device.

``render`` is a pure function: the same records and ledger give the same bytes under the same file names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from bench.core.intervals import CONFIDENCE
from bench.core.record import Record, device_folder
from figures.bars import Band, Bar, Page, Panel, value_label
from figures.bars_page import (
    data_fact,
    device_fact,
    disturbed_note,
    drawn,
    last_notes,
    length_note,
    mark_notes,
    remarks_by_arm,
)
from figures.claims import Claim
from figures.epochs import EPOCH_WORDS, MARK_WORDS, disagreement, time_bar, time_unit
from figures.fig7_claims import verdicts
from figures.fig7_rows import DENSE, NOT_MODELLED, REFERENCE, Row, Steps, name_of, rows_of, select_steps
from figures.fig7_tables import column_notes, gain_notes, text_table, tidy_table
from figures.memory import memory_bar, memory_legend
from figures.reasons import Reasons
from figures.report import REMARKS, Drawn
from figures.selection import devices
from figures.style import MEMORY_FILLS, TIME_FILLS
from figures.tables import significant

#: The experiment whose records Fig. 7 is made of.
EXPERIMENTS = ("fig7",)
LEFT_ALIGNED = frozenset({"arm", REMARKS})

_TITLES = {
    "cuda": "Fig. 7: time per epoch with CUDA Graph off and on",
    "cpu": "Fig. 7 on a CPU: time per epoch with torch.compile off and on, in place of CUDA Graph",
}
_CPU_FACT = (
    "A CPU has no CUDA Graph: torch.compile takes its place, at batch 1, 8 and 16 instead of the paper's 32, 64, 128."
)


def _is_measured(rows: Iterable[Row]) -> bool:
    """Whether the allocator of this device told any peak."""
    return any(size is not None for row in rows for _, size in row.measured)


def _memory_bar(row: Row, measured: bool, reasons: Reasons) -> Bar:
    """The predicted peak as a bar; where peaks are ``measured``, labels are of the allocated ones."""
    bar = memory_bar(row.memory, row.measured, reasons)
    allocated, predicted, marks = dict(row.measured)["allocated"], row.memory.peak, row.memory.marks
    if allocated is not None:
        return replace(bar, label=value_label(allocated, row.measured_ratio, marks))
    if measured and predicted is not None:
        return replace(bar, label=f"({significant(predicted)}) {marks}".rstrip())
    return bar


def _bands(steps: Steps, rows: list[Row], reasons: Reasons) -> tuple[Band, ...]:
    unit, scale = time_unit(rows)
    where = {"cuda": "on the GPU", "cpu": "on the CPU"}[steps.kind]
    goal = {"cuda": "a CUDA device", "cpu": "a CPU"}[steps.kind]
    measured = _is_measured(rows)
    rare = any(row.time.epoch and row.time.epoch.rare for row in rows)

    def panels(bar_of: Callable[[Row], Bar]) -> tuple[Panel, ...]:
        return tuple(
            Panel(f"batch {batch}", tuple(bar_of(row) for row in rows if row.batch == batch)) for batch in steps.batches
        )

    def of_time(row: Row) -> Bar:
        return time_bar(row.time, "steps, CoMERA" if row.arm == REFERENCE else "steps", scale, reasons)

    others = "dense" if {arm for arm, _ in steps.variants} == {REFERENCE, DENSE} else "other arms"
    time_legend = (
        ("steps, CoMERA", "training steps, CoMERA"),
        ("steps", f"training steps, {others}"),
        *((("rare", "rare events, amortised"),) if rare else ()),
        ("interval", f"{CONFIDENCE:.0%} interval over blocks"),
    )
    memory_heading = f"Peak memory predicted for {goal}, in MiB{', and measured on this one' if measured else ''}"
    return (
        Band(f"Time per epoch {where}, in {unit}", panels(of_time), TIME_FILLS, time_legend),
        Band(
            memory_heading,
            panels(lambda row: _memory_bar(row, measured, reasons)),
            MEMORY_FILLS,
            memory_legend((row.memory for row in rows), measured),
        ),
    )


def _notes(steps: Steps, rows: list[Row]) -> list[str]:
    """What holds for the picture and the table alike."""
    notes = [
        "Bars start at zero; every panel has its own scale. Labels: value, and its ratio to CoMERA's with the same "
        "toggles (x)."
    ]
    of_memory = (
        ["Labels of memory: the allocated peak; in parentheses, the predicted one."] if _is_measured(rows) else []
    )
    if any(row.memory.status == NOT_MODELLED for row in rows):
        of_memory.append("Predictions are of steps without CUDA Graph and compile.")
    notes += [" ".join(of_memory)] if of_memory else []
    for row in rows:
        record = steps.timed.get((row.arm, row.toggles, row.batch))
        notes += disagreement(f"{row.name}, batch {row.batch}", row.time, record)
    return [
        *notes,
        *mark_notes((row.marks for row in rows), MARK_WORDS),
        *disturbed_note(sum(row.time.disturbed for row in rows)),
        *length_note(steps),
        *last_notes(steps),
    ]


def of_device(records: Sequence[Record], device: str, claims: dict[str, Claim]) -> Drawn:
    """The figure of one device, with its tables and verdict; other devices' records are ignored."""
    steps = select_steps(records, device)
    rows = rows_of(steps)
    reasons = Reasons()
    bands = _bands(steps, rows, reasons)
    facts = [device_fact(steps), f"{data_fact(steps)} {EPOCH_WORDS}", *([_CPU_FACT] if steps.kind == "cpu" else [])]
    notes, judged = _notes(steps, rows), verdicts(steps, claims)
    names = tuple(name_of(*variant) for variant in steps.variants)
    references = sum(arm == REFERENCE for arm, _ in steps.variants)
    footnotes = (*reasons.lines(), *notes[:1], *gain_notes(steps, rows), *notes[1:])
    page = Page(_TITLES[steps.kind], tuple(facts), names, bands, footnotes, references=references)
    stem, table = f"fig7-{device_folder(device)}", text_table(steps, rows)
    tidy, said = tidy_table(steps, rows), remarks_by_arm(table)
    notes = [*notes[:1], *column_notes(table), *notes[1:]]
    return drawn(stem, page, steps, notes, table, tidy, judged, said, LEFT_ALIGNED, "batch")


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:
    """One figure per device on which steps were timed, in order of device names."""
    timed = [record for record in records if record.measure == "run"]
    return [of_device(timed, device, claims) for device in devices(timed)]
