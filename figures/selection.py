"""Which records one page of Fig. 1 shows, and what it has to say about the others.

A device has a page per precision and toggles that anything was timed with, and one of plain FP32 steps where there are
predictions in FP32. A prediction, which is of plain steps, belongs to every page of its precision.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.core.record import Record
from figures.toggles import Toggles

#: The arms of Fig. 1 in drawing order; an arm found beyond these follows them.
ARMS = ("comera", "low_rank", "low_rank:linear", "lora", "lte", "galore", "dense")

#: The paper's batch sizes, and those timed where there is no GPU.
PAPER_BATCHES = (1, 32, 64, 128)
CPU_BATCHES = (1, 8, 16)

#: The devices that memory is predicted for.
TARGETS = ("cuda", "cpu")

#: Steps in FP32 and nothing else.
PLAIN = Toggles()


@dataclass(frozen=True)
class Selection:
    """The records of one page, at most one per cell of the grid; a cell without record is simply absent."""

    device: str
    kind: str  # "cpu" or "cuda"
    toggles: Toggles
    arms: tuple[str, ...]
    time_batches: tuple[int, ...]
    memory_batches: tuple[int, ...]
    timed: Mapping[tuple[str, int], Record]  # (arm, batch)
    predicted: Mapping[tuple[str, str, int], Record]  # (target, arm, batch)
    uncaptured: Mapping[tuple[str, int], Record]  # times without CUDA Graph of the arms that it is refused
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
    """What a device is: ``cuda`` where a GPU's driver is recorded, or where any timed record ran on such a device.

    The device in the cell of a prediction is the one predicted for, which says nothing about the one that predicted.
    """
    for record in records:
        if record.driver:
            return "cuda"
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
    return json.dumps([_model(record), record.dataset, record.data_hash, allocator])


def method_settings(record: Record) -> str:
    """What must be equal for all records of an arm: the settings of its method, the ratio asked for among them."""
    return json.dumps(config_of(record).get("method_settings"), sort_keys=True)


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


def _slot(record: Record) -> tuple[str, int]:
    return record.arm, record.batch_size


def _own_settings(runs: Sequence[Record], plans: Sequence[Record]) -> dict[str, str]:
    """By arm the settings of its method in most cells: of its times, or of its predictions where it has none."""
    found = {}
    for arm in {record.arm for record in [*runs, *plans]}:
        timed = [record for record in runs if record.arm == arm]
        cells = timed or [record for record in plans if record.arm == arm]
        found[arm] = main_setting(cells, method_settings, lambda record: (record.predicted_for, record.batch_size))
    return found


def _with_own(records: Sequence[Record], own: Mapping[str, str], what: str) -> tuple[list[Record], list[str]]:
    """The records with the settings of their arm, and how many there are with others; ``what`` names one of them."""
    kept = [record for record in records if method_settings(record) == own[record.arm]]
    others = Counter(record.arm for record in records if method_settings(record) != own[record.arm])
    notes = [f"{others[arm]} {what}(s) of {arm} with other settings of its own are left out." for arm in sorted(others)]
    return kept, notes


def _one_setting(runs: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """The timed records of the model and data with the most cells, and what there is to say about others."""
    if not runs:
        return [], []
    setting = main_setting(runs, _timing, _slot)
    notes = []
    for other in sorted({_timing(record) for record in runs} - {setting}):
        those = [record for record in runs if _timing(record) == other]
        one = those[0]
        notes.append(
            f"{len(those)} timed record(s) of another setting are left out ({one.workload}, data {one.dataset}, "
            f"{one.precision}, length {one.sequence_length}, compile {'on' if one.compile else 'off'})."
        )
    return [record for record in runs if _timing(record) == setting], notes


def _newest_timed(fitting: Sequence[Record], notes: Sequence[str]) -> tuple[dict[tuple[str, int], Record], list[str]]:
    """The newest record per cell; what there is to say about the others, after ``notes``."""
    slots: dict[tuple[str, int], list[Record]] = {}
    for record in fitting:
        slots.setdefault(_slot(record), []).append(record)
    notes = [*notes]
    if older := len(fitting) - len(slots):
        notes.append(f"{older} further timed record(s) of the cells shown are left out; the newest of each is drawn.")
    return {slot: newest(candidates) for slot, candidates in slots.items()}, notes


def _newest_predicted(fitting: Sequence[Record]) -> tuple[dict[tuple[str, str, int], Record], list[str]]:
    """The newest prediction per cell; the prediction inside a timed record stands in where there is none."""
    own: dict[tuple[str, str, int], list[Record]] = {}
    inside: dict[tuple[str, str, int], list[Record]] = {}
    for record in fitting:
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
    return chosen, notes


def _uncaptured(timed: Mapping[tuple[str, int], Record], runs: Sequence[Record]) -> dict[tuple[str, int], Record]:
    """By slot that CUDA Graph is refused, the newest record of the same settings that was timed without it."""
    found: dict[tuple[str, int], Record] = {}
    for slot, refused in timed.items():
        if refused.status != "unsupported" or not refused.cuda_graph:
            continue
        eager = replace(Toggles.of(refused), cuda_graph=False)
        alike = [
            record
            for record in runs
            if (_slot(record), Toggles.of(record), record.status) == (slot, eager, "ok")
            and (_timing(record), method_settings(record)) == (_timing(refused), method_settings(refused))
        ]
        if alike:
            found[slot] = newest(alike)
    return found


def devices(records: Iterable[Record]) -> list[str]:
    """The devices that the records come from, sorted by name."""
    return sorted({record.device for record in records})


def _of_model(
    records: Sequence[Record], toggles: Toggles, alike: Sequence[Record]
) -> tuple[list[Record], list[Record], list[str]]:
    """The predictions for the model of the times shown, the timed records that hold one, and a word on the others."""
    runs = [record for record in records if record.measure == "run"]
    plans = [record for record in records if record.measure == "predict" and record.predicted_for in TARGETS]
    here = [record for record in plans if record.precision == toggles.precision]
    models = Counter(map(_model, here))
    model = _model(alike[0]) if alike else max(models, key=lambda one: (models[one], one), default="")
    fitting = [record for record in here if _model(record) == model]
    others = len(here) - len(fitting)
    if toggles == PLAIN:  # those that are on no page are told of here
        drawn = {PLAIN.precision, *(run.precision for run in runs)}
        others += sum(plan.precision not in drawn for plan in plans)
    inside = [record for record in runs if record.predicted_for in TARGETS and _model(record) == model]
    notes = [f"{others} prediction(s) for another model setting or precision are left out."] if others else []
    return fitting, inside, notes


def select(records: Iterable[Record], device: str, toggles: Toggles = PLAIN) -> Selection:
    """Choose what one page of ``device`` shows; records of any other device are never looked at."""
    mine = [record for record in records if record.device == device]
    if not mine:
        raise ValueError(f"no record of device {device!r}.")
    kind, runs = device_kind(mine), [record for record in mine if record.measure == "run"]
    alike, notes = _one_setting([record for record in runs if Toggles.of(record) == toggles])
    fitting, inside, others = _of_model(mine, toggles, alike)
    own = _own_settings(alike, [*fitting, *inside])
    timed, timed_notes = _newest_timed(*_with_own(alike, own, "timed record"))
    inside, _ = _with_own(inside, own, "timed record")
    fitting, plan_notes = _with_own(fitting, own, "prediction")
    predicted, older_plans = _newest_predicted([*fitting, *inside])
    found = {slot[0] for slot in timed} | {slot[1] for slot in predicted}
    grid = PAPER_BATCHES if kind == "cuda" else CPU_BATCHES
    predicted_batches = {batch for (_, _, batch), record in predicted.items() if record.measure == "predict"}
    return Selection(
        device=device,
        kind=kind,
        toggles=toggles,
        arms=(*ARMS, *sorted(found - set(ARMS))),
        time_batches=tuple(sorted({*grid, *(batch for _, batch in timed)})),
        memory_batches=tuple(sorted({*PAPER_BATCHES, *predicted_batches})),
        timed=timed,
        predicted=predicted,
        uncaptured=_uncaptured(timed, runs),
        left_out=(*timed_notes, *notes, *plan_notes, *older_plans, *others),
    )


def pages(records: Sequence[Record], device: str) -> list[Selection]:
    """What every page of ``device`` shows, plain FP32 steps first; other devices are never looked at."""
    mine = [record for record in records if record.device == device]
    found = {Toggles.of(record) for record in mine if record.measure == "run"}
    if any(record.measure == "predict" and record.precision == PLAIN.precision for record in mine):
        found.add(PLAIN)
    chosen = [select(mine, device, toggles) for toggles in sorted(found, key=lambda toggles: toggles.rank)]
    return [page for page in chosen if page.shown]
