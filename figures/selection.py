"""Which records one figure of one device shows, and what it has to say about the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.record import Record

#: The arms of Fig. 1 in drawing order; an arm found beyond these follows them.
ARMS = ("comera", "low_rank", "low_rank:linear", "lora", "lte", "galore", "dense")

#: The paper's batch sizes, and those timed where there is no GPU.
PAPER_BATCHES = (1, 32, 64, 128)
CPU_BATCHES = (1, 8, 16)

#: The devices that memory is predicted for.
TARGETS = ("cuda", "cpu")


@dataclass(frozen=True)
class Selection:
    """The records of one device, at most one per cell of the grid; a cell without record is simply absent."""

    device: str
    kind: str  # "cpu" or "cuda"
    arms: tuple[str, ...]
    time_batches: tuple[int, ...]
    memory_batches: tuple[int, ...]
    timed: Mapping[tuple[str, int], Record]  # (arm, batch)
    predicted: Mapping[tuple[str, str, int], Record]  # (target, arm, batch)
    left_out: tuple[str, ...]  # sentences on records of this device that are not shown

    @property
    def shown(self) -> list[Record]:
        """Every record shown, each once, oldest first."""
        return oldest_first([*self.timed.values(), *self.predicted.values()])

    @property
    def older_code(self) -> frozenset[str]:
        """``cell_id`` of the shown records that other code made than the newest one."""
        shown = self.shown
        return frozenset(r.cell_id for r in shown if r.code_id != shown[-1].code_id)

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column among the timed records, or the predicted ones where nothing was timed."""
        records = list(self.timed.values()) or list(self.predicted.values())
        return sorted({getattr(record, column) for record in records})


def oldest_first(records: Iterable[Record]) -> list[Record]:
    """The records, each once, in the order in which they were made."""
    unique = {id(record): record for record in records}
    return sorted(unique.values(), key=lambda record: (record.recorded_at, record.cell_id))


def config_of(record: Record) -> dict[str, Any]:
    """The cell that the record answers, as it was resolved; empty where it cannot be read."""
    try:
        config = json.loads(record.config_json)
    except json.JSONDecodeError:
        return {}
    return config if isinstance(config, dict) else {}


def device_kind(records: Iterable[Record]) -> str:
    """What a device is: ``cuda`` where any timed record ran on, or is predicted for, such a device."""
    for record in records:
        if record.measure != "run":
            continue
        on_cuda = record.peak_memory_allocated_mib is not None or record.predicted_for == "cuda"
        if on_cuda or str(config_of(record).get("device", "")).startswith("cuda"):
            return "cuda"
    return "cpu"


def model_settings(record: Record) -> Any:
    """The settings of the record's workload, without where its data lie: that says nothing about the model."""
    settings = config_of(record).get("workload_settings")
    if isinstance(settings, dict):
        return {name: value for name, value in settings.items() if not name.startswith(("data", "fetch"))}
    return settings


def _model(record: Record) -> str:
    """What must be equal for two records to be about the same model and arithmetic."""
    settings = model_settings(record)
    return json.dumps([record.workload, record.sequence_length, record.precision, settings], sort_keys=True)


def _timing(record: Record) -> str:
    """What must be equal, beyond the model, for two times to stand in one figure."""
    allocator = config_of(record).get("timing_settings", {}).get("allocator")
    return json.dumps([_model(record), record.dataset, record.data_hash, record.compile, allocator])


def newest(records: Iterable[Record]) -> Record:
    """The record made last."""
    return max(records, key=lambda r: (r.recorded_at, r.cell_id))


def main_setting(
    records: Iterable[Record], setting_of: Callable[[Record], str], cell_of: Callable[[Record], Hashable]
) -> str:
    """The setting with the most cells; the newest of those where several have as many."""
    cells: dict[str, set[Hashable]] = {}
    latest: dict[str, str] = {}
    for record in records:
        setting = setting_of(record)
        cells.setdefault(setting, set()).add(cell_of(record))
        latest[setting] = max(latest.get(setting, ""), record.recorded_at)
    return max(cells, key=lambda setting: (len(cells[setting]), latest[setting], setting))


def _select_timed(records: list[Record]) -> tuple[dict[tuple[str, int], Record], list[str]]:
    runs = [record for record in records if record.measure == "run"]
    if not runs:
        return {}, []
    setting = main_setting(runs, _timing, lambda record: (record.arm, record.batch_size))
    fitting = [record for record in runs if _timing(record) == setting]
    graph = Counter(record.cuda_graph for record in fitting).most_common(1)[0][0]
    slots: dict[tuple[str, int], list[Record]] = {}
    for record in fitting:
        slots.setdefault((record.arm, record.batch_size), []).append(record)
    chosen = {}
    for slot, candidates in slots.items():
        alike = [record for record in candidates if record.cuda_graph == graph]
        chosen[slot] = newest(alike or candidates)
    notes = []
    if older := len(fitting) - len(chosen):
        notes.append(f"{older} further timed record(s) of the cells shown are left out; the newest of each is drawn.")
    for other in sorted({_timing(record) for record in runs} - {setting}):
        those = [record for record in runs if _timing(record) == other]
        one = those[0]
        notes.append(
            f"{len(those)} timed record(s) of another setting are left out ({one.workload}, data {one.dataset}, "
            f"{one.precision}, length {one.sequence_length}, compile {'on' if one.compile else 'off'})."
        )
    return chosen, notes


def _select_predicted(records: list[Record], model: str) -> tuple[dict[tuple[str, str, int], Record], list[str]]:
    """The newest prediction per cell; the prediction inside a timed record stands in where there is none."""
    own: dict[tuple[str, str, int], list[Record]] = {}
    inside: dict[tuple[str, str, int], list[Record]] = {}
    others = 0
    for record in records:
        if record.predicted_for not in TARGETS:
            continue
        if _model(record) != model:
            others += record.measure == "predict"
            continue
        slot = (record.predicted_for, record.arm, record.batch_size)
        if record.measure == "predict":
            own.setdefault(slot, []).append(record)
        elif record.status == "ok" and record.peak_memory_predicted_mib is not None:
            inside.setdefault(slot, []).append(record)
    chosen = {}
    for slot in [*own, *(slot for slot in inside if slot not in own)]:
        best = newest(own.get(slot) or inside[slot])
        chosen[slot] = newest(inside[slot]) if best.status != "ok" and slot in inside else best
    notes = []
    if older := sum(len(candidates) - 1 for candidates in own.values()):
        notes.append(f"{older} further prediction(s) of the cells shown are left out; the newest of each is drawn.")
    if others:
        notes.append(f"{others} prediction(s) for another model setting or precision are left out.")
    return chosen, notes


def devices(records: Iterable[Record]) -> list[str]:
    """The devices that the records come from, sorted by name."""
    return sorted({record.device for record in records})


def select(records: Iterable[Record], device: str) -> Selection:
    """Choose what the figure of ``device`` shows; records of any other device are never looked at."""
    mine = [record for record in records if record.device == device]
    if not mine:
        raise ValueError(f"no record of device {device!r}.")
    kind = device_kind(mine)
    timed, notes = _select_timed(mine)
    predictions = [record for record in mine if record.measure == "predict"]
    models = Counter(_model(record) for record in predictions)
    model = _model(next(iter(timed.values()))) if timed else max(models, key=lambda m: (models[m], m))
    predicted, more_notes = _select_predicted(mine, model)
    found = {slot[0] for slot in timed} | {slot[1] for slot in predicted}
    arms = (*ARMS, *sorted(found - set(ARMS)))
    grid = PAPER_BATCHES if kind == "cuda" else CPU_BATCHES
    predicted_batches = {batch for (_, _, batch), record in predicted.items() if record.measure == "predict"}
    return Selection(
        device=device,
        kind=kind,
        arms=arms,
        time_batches=tuple(sorted({*grid, *(batch for _, batch in timed)})),
        memory_batches=tuple(sorted({*PAPER_BATCHES, *predicted_batches})),
        timed=timed,
        predicted=predicted,
        left_out=(*notes, *more_notes),
    )
