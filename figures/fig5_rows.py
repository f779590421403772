"""Fig. 5 as rows: one per kind of step, batch size and variant, for one table and one distribution of its indices."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.intervals import Estimate, mean_interval
from bench.core.record import Record
from bench.core.samples import block_means_ms, disturbed_blocks
from figures.memory import Measured, MemoryCell, measured_peaks, memory_cell
from figures.selection import TARGETS, config_of, device_kind, newest, oldest_first
from figures.tables import DISTURBED, NOT_RECORDED, OLDER, UNPAIRED
from figures.timing import time_ratio

REFERENCE, PLAIN, UNCOMPRESSED = "optimized", "plain", "uncompressed"
VARIANTS = (REFERENCE, "order", "unique", PLAIN, UNCOMPRESSED)
BATCHES = (10_000, 20_000, 40_000)

#: Whether a step ends with the optimizer's, in words.
STEPS = {False: "forward and backward", True: "with the optimizer's step"}

#: Whether with the optimizer's step, batch size, variant.
Slot = tuple[bool, int, str]


@dataclass(frozen=True, order=True)
class Place:
    """What one figure is about beside its device."""

    rows: int
    columns: int
    dataset: str
    allocator: str = "steady"

    @property
    def table(self) -> str:
        return f"{self.rows:,} x {self.columns:,}"


@dataclass(frozen=True)
class Lookups:
    """The records of one device and place, at most one per slot; a cell without record is simply absent."""

    device: str
    kind: str  # "cpu" or "cuda"
    place: Place
    batches: tuple[int, ...]
    timed: Mapping[Slot, Record]
    predicted: Mapping[tuple[str, Slot], Record]  # (target, slot)
    left_out: tuple[str, ...]

    @property
    def shown(self) -> list[Record]:
        """Every record shown, each once, oldest first."""
        return oldest_first([*self.timed.values(), *self.predicted.values()])

    def older(self, record: Record) -> str:
        """The mark of a record that other code made than the newest one."""
        return OLDER if record.code_id != self.shown[-1].code_id else ""

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column among the records shown."""
        return sorted({getattr(record, column) for record in self.shown})


@dataclass(frozen=True)
class TimeCell:
    """Time per step in ms."""

    status: str
    message: str = ""
    step: Estimate | None = None
    ratio: Estimate | None = None  # to the optimized variant
    disturbed: int = 0
    marks: str = ""


@dataclass(frozen=True)
class Row:
    step: bool
    batch: int
    variant: str
    time: TimeCell
    memory: dict[str, MemoryCell]  # by target
    measured: Measured

    @property
    def cells(self) -> list[TimeCell | MemoryCell]:
        return [self.time, *self.memory.values()]


def _variant(record: Record) -> str | None:
    """The row a record belongs to, or None where it is no arm of this figure."""
    if record.method == "dense":
        return UNCOMPRESSED
    found = config_of(record).get("method_settings", {}).get("lookup")
    return found if record.method == "comera" and found in VARIANTS else None


def _place(record: Record) -> Place | None:
    table = config_of(record).get("workload_settings", {})
    if record.workload != "lookup" or not {"rows", "columns", "optimizer_step"} <= set(table):
        return None
    allocator = config_of(record).get("timing_settings", {}).get("allocator", "steady")
    return Place(table["rows"], table["columns"], record.dataset, allocator)


def _slot(record: Record) -> Slot:
    return bool(config_of(record)["workload_settings"]["optimizer_step"]), record.batch_size, str(_variant(record))


def _own_settings(record: Record) -> str:
    """Settings of a record's method beside the look-up: equal for all records of a method in one figure."""
    own = {name: value for name, value in config_of(record).get("method_settings", {}).items() if name != "lookup"}
    return json.dumps([record.variant, own], sort_keys=True)


def _commonest(records: Sequence[Record], key: Callable[[Record], Any]) -> list[Record]:
    """The records that share the commonest key."""
    counts = Counter(key(record) for record in records)
    main = max(counts, key=lambda one: (counts[one], one), default=None)
    return [record for record in records if key(record) == main]


def _fitting(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """The records of the commonest arithmetic and settings, and what there is to say about others."""
    known = [record for record in records if _variant(record) is not None]
    runs = _commonest([r for r in known if r.measure == "run"], lambda r: (r.precision, r.compile, r.cuda_graph))
    plans = [record for record in known if record.measure == "predict"]
    if runs:
        plans = [record for record in plans if record.precision == runs[0].precision]
    both = [*runs, *_commonest(plans, lambda r: r.precision)]
    fitting = [
        record
        for method in ("comera", "dense")
        for record in _commonest([r for r in both if r.method == method], _own_settings)
    ]
    dropped = len(records) - len(fitting)
    return fitting, [f"{dropped} record(s) of other methods or settings are left out."] if dropped else []


def _select(records: Sequence[Record], device: str, kind: str, place: Place) -> Lookups:
    fitting, notes = _fitting(records)
    timed: dict[Slot, list[Record]] = {}
    predicted: dict[tuple[str, Slot], list[Record]] = {}
    for record in fitting:
        if record.measure == "run":
            timed.setdefault(_slot(record), []).append(record)
        if record.predicted_for in TARGETS:
            predicted.setdefault((record.predicted_for, _slot(record)), []).append(record)
    if older := sum(len(candidates) - 1 for candidates in timed.values()):
        notes.append(f"{older} further timed record(s) of the cells shown are left out; the newest of each is drawn.")
    return Lookups(
        device=device,
        kind=kind,
        place=place,
        batches=tuple(sorted({*BATCHES, *(record.batch_size for record in fitting)})),
        timed={slot: newest(candidates) for slot, candidates in timed.items()},
        predicted={slot: _best(candidates) for slot, candidates in predicted.items()},
        left_out=tuple(notes),
    )


def _best(candidates: Sequence[Record]) -> Record:
    """The newest record that holds a prediction, or the newest of those that failed."""
    return newest([record for record in candidates if record.peak_memory_predicted_mib is not None] or candidates)


def select_lookups(records: Iterable[Record], device: str) -> list[Lookups]:
    """What the figures of ``device`` show, one for each table and distribution; other devices are never looked at."""
    mine = [record for record in records if record.device == device]
    kind = device_kind(mine)
    places: dict[Place, list[Record]] = {}
    for record in mine:
        place = _place(record)
        if place is not None:
            places.setdefault(place, []).append(record)
    chosen = [_select(places[place], device, kind, place) for place in sorted(places)]
    return [lookups for lookups in chosen if lookups.shown]


def ratio_of(lookups: Lookups, above: Slot, below: Slot) -> Estimate | None:
    """Ratio of step times of two slots, paired by block where they were timed together; None without both."""
    numerator, denominator = lookups.timed.get(above), lookups.timed.get(below)
    return time_ratio(numerator, denominator) if numerator and denominator else None


def peak_of(lookups: Lookups, target: str, slot: Slot) -> float | None:
    """The predicted peak of a slot in MiB, or None."""
    record = lookups.predicted.get((target, slot))
    return record.peak_memory_predicted_mib if record else None


def _time_cell(lookups: Lookups, slot: Slot) -> TimeCell:
    record = lookups.timed.get(slot)
    if record is None:
        return TimeCell(NOT_RECORDED)
    marks, means = lookups.older(record), list(block_means_ms(record).values())
    if record.status != "ok" or (not means and record.step_time_median_ms is None):
        return TimeCell("no time" if record.status == "ok" else record.status, record.message, marks=marks)
    step = mean_interval(means) if means else Estimate(float(record.step_time_median_ms or 0), None, None, 0)
    ratio = ratio_of(lookups, slot, (*slot[:2], REFERENCE)) if slot[2] != REFERENCE else None
    marks += UNPAIRED if ratio is not None and ratio.paired is False else ""
    marks += "" if means else DISTURBED
    return TimeCell("ok", record.message, step, ratio, disturbed_blocks(record), marks)


def _memory_cell(lookups: Lookups, target: str, slot: Slot) -> MemoryCell:
    record = lookups.predicted.get((target, slot))
    if record is None:
        return MemoryCell(NOT_RECORDED)
    below = peak_of(lookups, target, (*slot[:2], REFERENCE)) if slot[2] != REFERENCE else None
    return memory_cell(record, below, lookups.older(record))


def rows_of(lookups: Lookups) -> list[Row]:
    """Every variant at every batch size, first without the optimizer's step, then with it."""
    rows = []
    for step in STEPS:
        for batch in lookups.batches:
            for variant in VARIANTS:
                slot = (step, batch, variant)
                memory = {target: _memory_cell(lookups, target, slot) for target in TARGETS}
                rows.append(Row(*slot, _time_cell(lookups, slot), memory, measured_peaks(lookups.timed.get(slot))))
    return rows
