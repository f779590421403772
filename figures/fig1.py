"""Fig. 1: time per epoch and peak memory of every arm, one figure per device, precision and toggles.

``render`` is a pure function: the same records and ledger give the same bytes under the same file names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.core.intervals import CONFIDENCE
from bench.core.record import Record, device_folder
from figures.bars import Band, Bar, Page, Panel
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
from figures.fig1_claims import verdicts
from figures.fig1_rows import REFERENCE, Row, rows_of, text_table, tidy_table
from figures.memory import memory_bar, memory_legend
from figures.reasons import Reasons
from figures.report import REMARKS, Drawn
from figures.selection import TARGETS, Selection, devices, pages
from figures.style import MEMORY_FILLS, TIME_FILLS

#: The experiments whose records Fig. 1 is made of.
EXPERIMENTS = ("fig1", "fig1_memory")
TITLE = "Fig. 1: time per epoch and peak memory, six-encoder transformer"
LEFT_ALIGNED = frozenset({"arm", REMARKS})


def _bands(selection: Selection, rows: list[Row], reasons: Reasons) -> tuple[Band, ...]:
    unit, scale = time_unit(rows)

    def panels(batches: Sequence[int], bar_of: Callable[[Row], Bar]) -> tuple[Panel, ...]:
        return tuple(
            Panel(f"batch {batch}", tuple(bar_of(row) for row in rows if row.batch_size == batch)) for batch in batches
        )

    def of_time(row: Row) -> Bar:
        return time_bar(row.time, "steps, CoMERA" if row.arm == REFERENCE else "steps", scale, reasons)

    where = "on the GPU" if selection.kind == "cuda" else "on the CPU"
    time = Band(
        f"Time per epoch {where}, in {unit}",
        panels(selection.time_batches, of_time),
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

        def of_memory(row: Row, target: str = target, measured: bool = measured) -> Bar:
            return memory_bar(row.memory[target], row.measured if measured else (), reasons)

        words = {"cuda": "a CUDA device", "cpu": "a CPU"}[target]
        bands.append(
            Band(
                f"Peak memory predicted for {words}, in MiB{', and measured on this one' if measured else ''}",
                panels(selection.memory_batches, of_memory),
                MEMORY_FILLS,
                memory_legend((row.memory[target] for row in rows), measured),
            )
        )
    return tuple(bands)


def _plain_note(selection: Selection) -> list[str]:
    """What predictions are of, where the times beside them are not of the same steps."""
    beside = selection.toggles.compile or selection.toggles.cuda_graph
    return ["Predicted memory is that of plain steps, without CUDA Graph and torch.compile."] if beside else []


def _notes(selection: Selection, rows: list[Row]) -> list[str]:
    disagreements = (
        disagreement(f"{row.arm}, batch {row.batch_size}", row.time, selection.timed.get((row.arm, row.batch_size)))
        for row in rows
    )
    return [
        "Bars start at zero; every panel has its own scale. Labels: value, and its ratio to CoMERA's (x).",
        *mark_notes((cell.marks for row in rows for cell in row.cells), MARK_WORDS),
        *disturbed_note(sum(row.time.disturbed for row in rows)),
        *(sentence for sentences in disagreements for sentence in sentences),
        *length_note(selection),
        *_plain_note(selection),
        *last_notes(selection),
    ]


def _stem(selection: Selection) -> str:
    toggles = (name.lower().replace(" ", "-") for name in selection.toggles.names)
    return "-".join(["fig1", device_folder(selection.device), *toggles])


def of_page(selection: Selection, claims: dict[str, Claim]) -> Drawn:
    """One figure, with its tables and verdicts."""
    rows = rows_of(selection)
    reasons = Reasons()
    bands = _bands(selection, rows, reasons)
    facts = (device_fact(selection), f"{data_fact(selection)} {EPOCH_WORDS}")
    notes, judged = _notes(selection, rows), verdicts(selection, claims)
    page = Page(TITLE, facts, selection.arms, bands, (*reasons.lines(), *notes))
    table, tidy = text_table(selection, rows), tidy_table(selection, rows)
    said = remarks_by_arm(table)
    return drawn(_stem(selection), page, selection, notes, table, tidy, judged, said, LEFT_ALIGNED, "batch")


def render(records: Sequence[Record], claims: dict[str, Claim]) -> list[Drawn]:
    """One figure per device, precision and toggles, in this order; a device's records stay apart from another's."""
    return [of_page(selection, claims) for device in devices(records) for selection in pages(records, device)]
