"""Which records Fig. 12 shows: one sweep over ratios per device, precision and toggles.

Each job of a sweep times one ratio with dense beside it, so a timed record of dense belongs to the ratio of its job.
Otherwise dense is the model of ratio 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.core.record import Record
from figures.runs import COMERA, DENSE
from figures.selection import TARGETS, config_of, device_kind, main_setting, model_settings, newest, oldest_first
from figures.tables import OLDER

#: What CoMERA is compared with at the same size.
LOW_RANK = "low_rank"

#: Arm, batch size, ratio; of a timed dense record the ratio that it was timed beside.
Slot = tuple[str, int, float]

#: Precision, CUDA Graph, compile.
Toggles = tuple[str, bool, bool]


@dataclass(frozen=True)
class Sweep:
    """The records that one figure shows, at most one per slot; a cell without record is simply absent."""

    device: str
    kind: str  # "cpu" or "cuda"
    toggles: Toggles
    arms: tuple[str, ...]  # those that have a ratio
    timed: Mapping[Slot, Record]
    predicted: Mapping[tuple[str, Slot], Record]  # (target, slot); dense at ratio 1
    left_out: tuple[str, ...]  # sentences on records of this device that are not shown

    @property
    def shown(self) -> list[Record]:
        """Every record shown, each once, oldest first."""
        return oldest_first([*self.timed.values(), *self.predicted.values()])

    def older(self, record: Record | None) -> str:
        """The mark of a record that other code made than the newest one."""
        return OLDER if record is not None and record.code_id != self.shown[-1].code_id else ""

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column among the timed records, or the predicted ones where nothing was timed."""
        return sorted({getattr(record, column) for record in self.timed.values() or self.predicted.values()})

    @property
    def slots(self) -> list[Slot]:
        """Those of all records shown."""
        return [*self.timed, *(slot for _, slot in self.predicted)]

    @property
    def time_batches(self) -> list[int]:
        """The batch sizes that were timed."""
        return sorted({batch for _, batch, _ in self.timed})

    def memory_batches(self, target: str) -> list[int]:
        """The batch sizes that memory is predicted at for a target."""
        return sorted({batch for goal, (_, batch, _) in self.predicted if goal == target})

    def ratios(self, batch: int) -> list[float]:
        """The ratios of a batch size that any arm has a record for."""
        return sorted({ratio for arm, size, ratio in self.slots if size == batch and arm != DENSE})


def _own_settings(record: Record) -> dict[str, Any]:
    settings = config_of(record).get("method_settings")
    return settings if isinstance(settings, dict) else {}


def _ratio(record: Record) -> float | None:
    """The ratio of the record's slot, or None where it is no part of a sweep over ratios."""
    if record.arm == DENSE:
        return 1.0 if record.measure == "predict" else record.ratio
    return record.ratio if "ratio" in _own_settings(record) else None


def _slot(record: Record) -> Slot:
    ratio = _ratio(record)
    assert ratio is not None
    return record.arm, record.batch_size, ratio


def _toggles(record: Record) -> Toggles:
    return record.precision, record.cuda_graph, record.compile


def _model(record: Record) -> str:
    return json.dumps([record.workload, record.sequence_length, model_settings(record)], sort_keys=True)


def _timing(record: Record) -> str:
    return json.dumps([_model(record), record.dataset, record.data_hash])


def _arm_settings(record: Record) -> str:
    """The settings of a record's method but for the ratio: equal for all points of a curve."""
    return json.dumps({name: value for name, value in _own_settings(record).items() if name != "ratio"}, sort_keys=True)


def _commonest(records: Sequence[Record], setting_of: Callable[[Record], str]) -> list[Record]:
    """The records of the setting that has the most cells."""
    if not records:
        return []
    main = main_setting(records, setting_of, lambda record: (record.measure, record.predicted_for, _slot(record)))
    return [record for record in records if setting_of(record) == main]


def _fitting(records: Sequence[Record]) -> list[Record]:
    """The records of one model, data, and settings per arm."""
    runs = _commonest([record for record in records if record.measure == "run"], _timing)
    plans = [record for record in records if record.measure == "predict"]
    if runs:
        plans = [record for record in plans if _model(record) == _model(runs[0])]
    both = [*runs, *_commonest(plans, _model)]
    arms = sorted({record.arm for record in both})
    return [r for arm in arms for r in _commonest([one for one in both if one.arm == arm], _arm_settings)]


def _best(candidates: Sequence[Record]) -> Record:
    """The newest record that holds a prediction, or the newest of those that failed."""
    return newest([record for record in candidates if record.peak_memory_predicted_mib is not None] or candidates)


def _sweep(records: Sequence[Record], device: str, kind: str, toggles: Toggles) -> Sweep:
    placed = [record for record in records if _ratio(record) is not None]
    fitting = _fitting(placed)
    timed: dict[Slot, list[Record]] = {}
    predicted: dict[tuple[str, Slot], list[Record]] = {}
    for record in fitting:
        arm, batch, _ = slot = _slot(record)
        if record.measure == "run":
            timed.setdefault(slot, []).append(record)
        if record.predicted_for in TARGETS:
            place = (arm, batch, 1.0) if arm == DENSE else slot
            predicted.setdefault((record.predicted_for, place), []).append(record)
    notes = []
    if older := sum(len(candidates) - 1 for candidates in timed.values()):
        notes.append(f"{older} further timed record(s) of the cells shown are left out; the newest of each is drawn.")
    if others := len(placed) - len(fitting):
        notes.append(f"{others} record(s) of another model, other data or other settings are left out.")
    if strangers := len(records) - len(placed):
        notes.append(f"{strangers} record(s) that belong to no ratio are left out.")
    found = {record.arm for record in fitting} - {DENSE}
    first = [arm for arm in (COMERA, LOW_RANK) if arm in found]
    return Sweep(
        device=device,
        kind=kind,
        toggles=toggles,
        arms=(*first, *sorted(found - set(first))),
        timed={slot: newest(candidates) for slot, candidates in timed.items()},
        predicted={slot: _best(candidates) for slot, candidates in predicted.items()},
        left_out=tuple(notes),
    )


def sweeps(records: Iterable[Record], device: str) -> list[Sweep]:
    """What the figures of ``device`` show, one per precision and toggles; other devices are never looked at.

    A prediction, which knows no toggles, belongs to every figure of its precision.
    """
    mine = [record for record in records if record.device == device]
    runs = [record for record in mine if record.measure == "run"]
    plans = [record for record in mine if record.measure == "predict"]
    timed = {record.precision for record in runs}
    found = {_toggles(record) for record in [*runs, *(plan for plan in plans if plan.precision not in timed)]}
    chosen = [
        _sweep(
            [*(r for r in runs if _toggles(r) == toggles), *(r for r in plans if r.precision == toggles[0])],
            device, device_kind(mine), toggles,
        )
        for toggles in sorted(found)
    ]  # fmt: skip
    return [sweep for sweep in chosen if sweep.shown]
