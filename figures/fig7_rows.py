"""Fig. 7 as rows: one per arm, set of toggles and batch size, for one device."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.intervals import Estimate
from bench.core.record import Record
from figures.epochs import TimeCell, time_cell
from figures.memory import Measured, MemoryCell, measured_peaks, memory_cell
from figures.selection import device_kind, main_setting, method_settings, model_settings, newest, oldest_first
from figures.tables import NOT_RECORDED, OLDER, UNPAIRED
from figures.timing import time_ratio
from figures.toggles import Toggles

REFERENCE, DENSE = "comera", "dense"

#: The batch sizes of each kind of device: the paper's on CUDA.
BATCHES = {"cuda": (32, 64, 128), "cpu": (1, 8, 16)}

#: Stands for the memory of steps with CUDA Graph or torch.compile, since predictions are of plain ones.
NOT_MODELLED = "not modelled"

#: What each kind of device is expected to have timed.
EXPECTED = {"cuda": (Toggles(), Toggles(cuda_graph=True)), "cpu": (Toggles(), Toggles(compile=True))}

#: An arm with its toggles: what a row of the picture is.
Variant = tuple[str, Toggles]

#: Arm, toggles, batch size.
Slot = tuple[str, Toggles, int]


@dataclass(frozen=True)
class Steps:
    """The timed records of one device, at most one per slot; a cell without record is simply absent."""

    device: str
    kind: str  # "cpu" or "cuda"
    variants: tuple[Variant, ...]  # those found and those expected, in drawing order
    batches: tuple[int, ...]
    timed: Mapping[Slot, Record]
    left_out: tuple[str, ...]

    @property
    def shown(self) -> list[Record]:
        """Every record shown, oldest first."""
        return oldest_first(self.timed.values())

    def older(self, record: Record) -> str:
        """The mark of a record that other code made than the newest one."""
        return OLDER if record.code_id != self.shown[-1].code_id else ""

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column."""
        return sorted({getattr(record, column) for record in self.timed.values()})


@dataclass(frozen=True)
class Row:
    arm: str
    toggles: Toggles
    batch: int
    time: TimeCell  # its ratio is to CoMERA's with the same toggles
    gain: Estimate | None  # time of the same arm without the toggle named last, over its own
    compile_s: float | None
    memory: MemoryCell  # predicted for this kind of device
    measured: Measured
    measured_ratio: float | None  # of allocated peaks, to CoMERA's with the same toggles

    @property
    def name(self) -> str:
        return name_of(self.arm, self.toggles)

    @property
    def marks(self) -> str:
        """The marks of all that is shown of the row."""
        unpaired = self.gain is not None and self.gain.paired is False
        return self.time.marks + self.memory.marks + UNPAIRED * unpaired


def name_of(arm: str, toggles: Toggles) -> str:
    """How a row is called: ``comera, CUDA Graph``."""
    return ", ".join((arm, *toggles.names))


def _slot(record: Record) -> Slot:
    return record.arm, Toggles.of(record), record.batch_size


def _rank(variant: Variant) -> tuple[Any, ...]:
    """CoMERA, dense, then whatever else there is; of each, plain steps first."""
    arm, toggles = variant
    return arm != REFERENCE, arm != DENSE, arm, toggles.rank


def _setting(record: Record) -> str:
    """What must be equal for all records of the figure."""
    what = [record.workload, record.sequence_length, record.dataset, record.data_hash, model_settings(record)]
    return json.dumps(what, sort_keys=True)


def _fitting(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """The records of the setting with the most cells, and of each arm's; what there is to say about others."""
    main = main_setting(records, _setting, _slot)
    alike = [record for record in records if _setting(record) == main]
    fitting, notes = [], []
    if others := len(records) - len(alike):
        notes.append(f"{others} timed record(s) of another model, length or data are left out.")
    for arm in sorted({record.arm for record in alike}):
        mine = [record for record in alike if record.arm == arm]
        own = main_setting(mine, method_settings, _slot)
        kept = [record for record in mine if method_settings(record) == own]
        fitting += kept
        if others := len(mine) - len(kept):
            notes.append(f"{others} timed record(s) of {arm} with other settings of its own are left out.")
    return fitting, notes


def select_steps(records: Iterable[Record], device: str) -> Steps:
    """What the figure of ``device`` shows; records of any other device are never looked at.

    Raises:
        ValueError: nothing was timed on this device.
    """
    mine = [record for record in records if record.device == device and record.measure == "run"]
    if not mine:
        raise ValueError(f"no timed record of device {device!r}.")
    kind = device_kind(mine)
    fitting, notes = _fitting(mine)
    slots: dict[Slot, list[Record]] = {}
    for record in fitting:
        slots.setdefault(_slot(record), []).append(record)
    if older := len(fitting) - len(slots):
        notes.append(f"{older} further timed record(s) of the cells shown are left out; the newest of each is drawn.")
    expected = {(arm, toggles) for arm in (REFERENCE, DENSE) for toggles in EXPECTED[kind]}
    return Steps(
        device=device,
        kind=kind,
        variants=tuple(sorted({*expected, *(slot[:2] for slot in slots)}, key=_rank)),
        batches=tuple(sorted({*BATCHES[kind], *(batch for _, _, batch in slots)})),
        timed={slot: newest(candidates) for slot, candidates in slots.items()},
        left_out=tuple(notes),
    )


def ratio_of(steps: Steps, above: Slot, below: Slot) -> Estimate | None:
    """Ratio of epoch times of two slots, paired by block where they were timed together; None without both."""
    numerator, denominator = steps.timed.get(above), steps.timed.get(below)
    return time_ratio(numerator, denominator) if numerator and denominator else None


def _memory_cell(steps: Steps, record: Record | None, reference: Record | None) -> MemoryCell:
    if record is None:
        return MemoryCell(NOT_RECORDED)
    older = steps.older(record)
    if record.peak_memory_predicted_mib is not None and (record.cuda_graph or record.compile):
        return MemoryCell(NOT_MODELLED, marks=older)
    return memory_cell(record, reference.peak_memory_predicted_mib if reference else None, older)


def _row(steps: Steps, slot: Slot) -> Row:
    arm, toggles, batch = slot
    record = steps.timed.get(slot)
    reference = steps.timed.get((REFERENCE, toggles, batch)) if arm != REFERENCE else None
    plainer = toggles.without_last
    allocated = [one.peak_memory_allocated_mib if one else None for one in (record, reference)]
    return Row(
        *slot,
        time=time_cell(record, reference, steps.older(record) if record else ""),
        gain=ratio_of(steps, (arm, plainer, batch), slot) if plainer else None,
        compile_s=record.compile_time_s if record else None,
        memory=_memory_cell(steps, record, reference),
        measured=measured_peaks(record),
        measured_ratio=allocated[0] / allocated[1] if allocated[0] and allocated[1] else None,
    )


def rows_of(steps: Steps) -> list[Row]:
    """Every batch size with every variant, in this order."""
    return [_row(steps, (*variant, batch)) for batch in steps.batches for variant in steps.variants]
