"""Which training runs one figure or table shows: those of one device, one dataset and one setting.

A study has at most one run per arm, stage and seed; a search has one per setting of the method besides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from bench.core.record import Record, RecordError
from figures.claims.claims import FULL_SIZE_PARAMETERS
from figures.records.select import config_of

#: The experiment that the figures of training show unless asked for another.
EXPERIMENT = "accuracy"
#: The paper's late stages, which that experiment is expected to have.
PAPER_TARGETS = (0.8, 0.5, 0.2)
#: What everything is compared with, and the arm that the claims are about.
DENSE, COMERA = "dense", "comera"

_MIB = 2**20
_BYTES = 4  # of an FP32 number

_Cell = TypeVar("_Cell", bound=Hashable)


@dataclass(frozen=True)
class Slot:
    """What a run is for: an arm, its last stage, and the size that this stage or the whole model aims at, if any."""

    arm: str
    stage: str  # "early" or "late"
    target: float | None = None  # share of the tensorized size at the stage's start
    target_mib: float | None = None  # or, of the whole model
    ratio: float | None = None  # wished-for compression of the whole model at the start

    @property
    def goal(self) -> str:
        """The stage with what it aims at: ``early``, ``late 0.5`` or ``late 3 MiB``."""
        if self.target is not None:
            return f"{self.stage} {self.target:g}"
        return self.stage if self.target_mib is None else f"{self.stage} {self.target_mib:g} MiB"

    @property
    def label(self) -> str:
        """How tables and legends call it."""
        if self.ratio is not None:
            return f"{self.arm} {self.ratio:g}x" + ("" if self.stage == "early" else f", {self.goal}")
        if self.arm.partition(":")[0] == COMERA or self.goal != self.stage:
            return f"{self.arm}, {self.goal}"
        return self.arm if self.stage == "late" else f"{self.arm}, early stage alone"

    @property
    def rank(self) -> tuple[Any, ...]:
        """Dense, then CoMERA from the largest model to the smallest, then whatever else there is."""
        arm = {DENSE: 0, COMERA: 1}.get(self.arm.partition(":")[0], 2)
        whole = self.target is None and self.target_mib is None
        early = (self.stage == "early") != (self.arm == DENSE)  # dense: the run of the full budget first
        size = -(self.target or self.target_mib or 0)
        return (arm, self.arm, self.ratio or 0, not (whole and early), self.target is None, size)


DENSE_RUN = Slot(DENSE, "late")
DENSE_EARLY = Slot(DENSE, "early")
EARLY = Slot(COMERA, "early")


def stages_of(record: Record) -> list[dict[str, Any]]:
    """The stages of the run's cell, which a failed run has as well.

    Raises:
        RecordError: the cell names none.
    """
    training = config_of(record).get("training")
    stages = training.get("stages") if isinstance(training, dict) else None
    usable = isinstance(stages, list) and all(isinstance(s, dict) and {"name", "steps"} <= set(s) for s in stages)
    if not stages or not usable:
        raise RecordError(f"record {record.cell_id}: a training record needs training.stages in its config_json.")
    return stages


def slot_of(record: Record) -> Slot:
    """What a run was for, failed or not."""
    last = stages_of(record)[-1]
    return Slot(record.arm, last["name"], last.get("target"), last.get("target_mib"), record.ratio)


def _setting(record: Record) -> dict[str, Any]:
    """What must be equal for two runs to stand in one figure, by the names that a note calls it."""
    early_steps = stages_of(record)[0]["steps"]  # first, since it checks what is read below
    config = config_of(record)
    model, training = config.get("workload_settings"), config["training"]
    sizes = {f"model {name}": value for name, value in model.items()} if isinstance(model, dict) else {}
    return {
        "workload": record.workload,
        "data": record.data_hash,
        "precision": record.precision,
        "batch": record.batch_size,
        "length": record.sequence_length,
        "CUDA Graph": record.cuda_graph,
        "compile": record.compile,
        "early steps": early_steps,
        "steps per epoch": training.get("steps_per_epoch"),
        "equal shapes": training.get("static"),
        **sizes,
    }


def _late_steps(record: Record) -> dict[str, Any]:
    return {"late steps": sum(stage["steps"] for stage in stages_of(record)[1:])}


def method_settings(record: Record) -> dict[str, Any]:
    """The settings of the run's method, by name; empty where the record has none."""
    settings = config_of(record).get("method_settings")
    return settings if isinstance(settings, dict) else {}


def _own_settings(record: Record) -> dict[str, Any]:
    """What must be equal for all runs of an arm: its settings but for the ratio, which is what they differ in."""
    return {name: value for name, value in method_settings(record).items() if name != "ratio"}


def _narrow(
    records: list[Record], setting_of: Callable[[Record], dict[str, Any]], whose: str
) -> tuple[list[Record], list[str]]:
    """Keep the setting with the most cells, the newest of those with as many; name what the others do differently."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(json.dumps(setting_of(record), sort_keys=True), []).append(record)

    def weight(key: str) -> tuple[int, str, str]:
        cells = {(slot_of(record), record.seed) for record in groups[key]}
        return len(cells), max(record.recorded_at for record in groups[key]), key

    notes = []
    order = sorted(groups, key=weight, reverse=True)
    for other in order[1:]:
        mine, theirs = json.loads(order[0]), json.loads(other)
        apart = [name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]
        words = ", ".join(f"{name} {theirs.get(name)}, not {mine.get(name)}" for name in apart)
        notes.append(f"{len(groups[other])} training record(s) of {whose} are left out, of another setting: {words}.")
    return groups[order[0]] if order else [], notes


@dataclass(frozen=True)
class Shown:
    """The training records that one figure or table shows, of one experiment, device, dataset and setting."""

    experiment: str
    device: str
    dataset: str
    shown: list[Record]  # oldest first
    left_out: tuple[str, ...]  # sentences on records of this device and dataset that are not shown

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of these records."""
        return tuple(self.values("seed"))

    @property
    def older_code(self) -> frozenset[str]:
        """``cell_id`` of the shown records that other code made than the newest one."""
        return frozenset(r.cell_id for r in self.shown if r.code_id != self.shown[-1].code_id)

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column."""
        return sorted({getattr(record, column) for record in self.shown})

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in one pass over the training rows."""
        return config_of(self.shown[0])["training"].get("steps_per_epoch")

    @property
    def stage_steps(self) -> tuple[int, int]:
        """Steps of the early and of the late stage; 0 where no run has a late one."""
        stages = [stages_of(record) for record in self.shown]
        return stages[0][0]["steps"], max(sum(stage["steps"] for stage in run[1:]) for run in stages)

    @property
    def model(self) -> dict[str, Any]:
        """The encoder's settings."""
        settings = config_of(self.shown[0]).get("workload_settings")
        return settings if isinstance(settings, dict) else {}

    @property
    def dense_parameters(self) -> int | None:
        """Parameters of the dense model, as the finished runs know them."""
        sizes = {r.dense_mib for r in self.shown if r.status == "ok" and r.dense_mib is not None}
        return round(max(sizes) * _MIB / _BYTES) if sizes else None

    @property
    def is_full_size(self) -> bool:
        """Whether the model is the paper's, but for the classes that the data ask for."""
        more_classes = int(self.model.get("classes", 3)) - 3
        class_row = int(self.model.get("width", 768)) + 1
        return self.dense_parameters == FULL_SIZE_PARAMETERS + more_classes * class_row


@dataclass(frozen=True)
class Study(Shown):
    """At most one run per slot and seed; a run that was never made is absent from ``runs``."""

    slots: tuple[Slot, ...]  # those found and those expected, in drawing order
    runs: Mapping[tuple[Slot, int], Record]

    def finished(self, slot: Slot) -> dict[int, Record]:
        """The finished runs of a slot, by seed."""
        runs = ((seed, self.runs.get((slot, seed))) for seed in self.seeds)
        return {seed: run for seed, run in runs if run is not None and run.status == "ok"}


def _comparable(records: list[Record]) -> tuple[list[Record], list[str]]:
    """The records of one setting and budget, whatever their method's settings, and sentences on the others."""
    kept, notes = _narrow(records, _setting, "this device and dataset")
    late, more = _narrow([r for r in kept if len(stages_of(r)) > 1], _late_steps, "this device and dataset")
    return [r for r in kept if len(stages_of(r)) == 1] + late, notes + more


def _newest_of(records: Iterable[Record], cell_of: Callable[[Record], _Cell]) -> tuple[dict[_Cell, Record], list[str]]:
    """The newest record of each cell, oldest first, and a sentence on the others."""
    cells: dict[_Cell, list[Record]] = {}
    for record in records:
        cells.setdefault(cell_of(record), []).append(record)
    runs = {cell: max(candidates, key=lambda r: (r.recorded_at, r.cell_id)) for cell, candidates in cells.items()}
    older = sum(len(candidates) - 1 for candidates in cells.values())
    words = f"{older} further record(s) of the runs shown are left out; the newest of each is shown."
    in_order = sorted(runs.items(), key=lambda run: (run[1].recorded_at, run[1].cell_id))
    return dict(in_order), [words] if older else []


def _expected(experiment: str, found: Collection[Slot]) -> Sequence[Slot]:
    """The slots that an experiment should have: in a sweep of ratios every one of them for every arm that has any."""
    ratios = {slot.ratio for slot in found if slot.ratio is not None}
    if ratios:
        arms = {slot.arm for slot in found if slot.ratio is not None}
        return (DENSE_EARLY, *(Slot(arm, "early", ratio=ratio) for arm in arms for ratio in ratios))
    if experiment == EXPERIMENT:
        return (DENSE_RUN, EARLY, *(Slot(COMERA, "late", target) for target in PAPER_TARGETS))
    return (DENSE_RUN, EARLY)


def _study(experiment: str, device: str, dataset: str, records: list[Record]) -> Study:
    kept, notes = _comparable(records)
    alike = []
    for arm in sorted({record.arm for record in kept}):
        mine, more = _narrow([record for record in kept if record.arm == arm], _own_settings, arm)
        alike += mine
        notes += more
    runs, more = _newest_of(alike, lambda record: (slot_of(record), record.seed))
    found = {slot for slot, _ in runs}
    slots = tuple(sorted({*_expected(experiment, found), *found}, key=lambda slot: slot.rank))
    return Study(experiment, device, dataset, list(runs.values()), (*notes, *more), slots, runs)


def _search(experiment: str, device: str, dataset: str, records: list[Record]) -> Shown:
    kept, notes = _comparable(records)
    runs, more = _newest_of(
        kept, lambda record: (slot_of(record), record.seed, json.dumps(method_settings(record), sort_keys=True))
    )
    return Shown(experiment, device, dataset, list(runs.values()), (*notes, *more))


def _by_dataset(records: Iterable[Record]) -> list[tuple[str, str, str, list[Record]]]:
    """Experiment, device and dataset with their training records, sorted."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if record.measure == "train":
            groups.setdefault((record.experiment, record.device, record.dataset), []).append(record)
    return [(*key, groups[key]) for key in sorted(groups)]


def studies(records: Iterable[Record]) -> list[Study]:
    """One study per experiment, device and dataset, sorted; records of other measures are not looked at."""
    return [_study(*group) for group in _by_dataset(records)]


def searches(records: Iterable[Record]) -> list[Shown]:
    """As :func:`studies`, but the runs differ in the settings of their methods, and each setting has its own."""
    return [_search(*group) for group in _by_dataset(records)]
