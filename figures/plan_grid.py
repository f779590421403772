"""The plans of one device: the newest record of every layer and number of tokens, and what is common to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bench.core.record import Record
from figures.contractions import ONCE, ONCE_WORDS, Planned, Slot, planned_of, slot_of
from figures.page.table import OLDER, OLDER_WORDS


@dataclass(frozen=True)
class Grid:
    """The records of one device, at most one per slot, oldest code and all."""

    device: str
    records: dict[Slot, Record]  # by slot, in its order
    left_out: tuple[str, ...]

    @property
    def shown(self) -> list[Record]:
        """Every record, oldest first."""
        return sorted(self.records.values(), key=lambda record: (record.recorded_at, record.cell_id))

    @cached_property
    def planned(self) -> dict[Slot, Planned]:
        """The plans of every slot whose record is ``ok``."""
        return {slot: planned_of(record) for slot, record in self.records.items() if record.status == "ok"}

    def is_older(self, slot: Slot) -> bool:
        """Whether other code made the slot's record than the newest one shown."""
        return self.records[slot].code_id != self.shown[-1].code_id

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column among the records shown."""
        return sorted({getattr(record, column) for record in self.records.values()})


def select_plans(records: Iterable[Record], device: str) -> Grid:
    """The newest record of each slot of ``device``, in float32 and called plainly; no other device is looked at."""
    mine = [record for record in records if record.device == device]
    fitting = [record for record in mine if record.measure == "plan" and _plain(record)]
    slots: dict[Slot, list[Record]] = {}
    for record in fitting:
        slots.setdefault(slot_of(record), []).append(record)
    notes = []
    if others := len(mine) - len(fitting):
        notes.append(f"{others} record(s) of other measures or settings are left out.")
    if older := len(fitting) - len(slots):
        notes.append(f"{older} further record(s) of the shapes shown are left out; the newest of each is drawn.")
    return Grid(
        device,
        {slot: max(slots[slot], key=lambda r: (r.recorded_at, r.cell_id)) for slot in sorted(slots)},
        tuple(notes),
    )


def _plain(record: Record) -> bool:
    return record.precision == "fp32" and not record.compile and not record.cuda_graph


def facts(grid: Grid) -> str:
    """What was timed, on what and when."""

    def listed(column: str) -> str:
        return ", ".join(str(value) for value in grid.values(column) if value != "")

    days = [grid.shown[0].recorded_at[:10], grid.shown[-1].recorded_at[:10]]
    drivers = f", driver {listed('driver')}" if listed("driver") else ""
    counts = sorted({max(len(one.ms) for one in planned.candidates) for planned in grid.planned.values()})
    blocks = f"{counts[0]}-{counts[-1]}" if len(counts) > 1 else "".join(map(str, counts))
    timing = f"Forward pass and all gradients, medians of {blocks} blocks in turns" if counts else "Nothing timed"
    return (
        f"Device: {grid.device}. torch {listed('torch_version')}{drivers}, {listed('precision')}. "
        f"Recorded {' to '.join(dict.fromkeys(days))}. {timing}."
    )


def remarks(grid: Grid) -> list[str]:
    """What there is to say about the records: marks, code, those left out."""
    notes = []
    if any(planned.mark(one) for planned in grid.planned.values() for one in planned.candidates):
        notes.append(f"{ONCE} {ONCE_WORDS}.")
    if any(grid.is_older(slot) for slot in grid.records):
        notes.append(f"{OLDER} {OLDER_WORDS}.")
    if any(record.git_dirty for record in grid.records.values()):
        notes.append("Some records come from a tree with uncommitted changes.")
    return [*notes, *grid.left_out]
