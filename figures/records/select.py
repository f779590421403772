"""Which records one page shows: of one device and one setting, the newest of each cell, and words on all others.

Records of several settings never stand on one page. The setting with the most cells is shown, the newest of those with
as many; within it every arm is shown with one setting of its own, chosen alike.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd

from bench.core.record import Record
from figures.page.table import OLDER

#: The arm that claims are about, what it is compared with at the same size, and what everything is.
COMERA, LOW_RANK, DENSE = "comera", "low_rank", "dense"

#: Arms in drawing order; others follow them.
ARMS = ("comera", "low_rank", "low_rank:linear", "lora", "lte", "galore", "dense")

#: The devices that memory is predicted for.
TARGETS = ("cuda", "cpu")

Cell = TypeVar("Cell", bound=Hashable)

#: What must be equal for records to stand together, by the names that a note calls it.
Setting = Mapping[str, Any]


def config_of(record: Record) -> Mapping[str, Any]:
    """The cell that the record answers, as it was resolved; empty where it cannot be read."""
    return _parsed(record.config_json)


@functools.lru_cache(maxsize=4096)
def _parsed(config_json: str) -> Mapping[str, Any]:
    try:
        config = json.loads(config_json)
    except json.JSONDecodeError:
        return {}
    return config if isinstance(config, dict) else {}


def _section(record: Record, name: str) -> dict[str, Any]:
    section = config_of(record).get(name)
    return section if isinstance(section, dict) else {}


def method_settings(record: Record) -> dict[str, Any]:
    """The settings of the record's method, by name; empty where it has none."""
    return _section(record, "method_settings")


def workload_settings(record: Record) -> dict[str, Any]:
    """The settings of the record's workload, by name; empty where it has none."""
    return _section(record, "workload_settings")


def model_setting(record: Record) -> dict[str, Any]:
    """What is equal for two records of the same model. Where the data lie says nothing about it."""
    model = {f"model {k}": v for k, v in workload_settings(record).items() if not k.startswith(("data", "fetch"))}
    return {"workload": record.workload, "length": record.sequence_length, **model}


def timing_setting(record: Record) -> dict[str, Any]:
    """What is equal, beyond the model, for two times that may stand on one page."""
    allocator = _section(record, "timing_settings").get("allocator")
    data = {"data": record.dataset, "contents of the data": record.data_hash}
    return {**model_setting(record), **data, "allocator": allocator}


def oldest_first(records: Iterable[Record]) -> list[Record]:
    """The records, each once, in the order in which they were made."""
    unique = {id(record): record for record in records}
    return sorted(unique.values(), key=lambda record: (record.recorded_at, record.cell_id))


def devices(records: Iterable[Record]) -> list[str]:
    """The devices that the records come from, sorted by name."""
    return sorted({record.device for record in records})


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


def newest(
    records: Iterable[Record], cell: Callable[[Record], Cell], prefer: Callable[[Record], Any] = lambda _: 0
) -> dict[Cell, Record]:
    """By cell the newest record, among those that ``prefer`` ranks highest."""
    table = pd.DataFrame({"record": list(records)}, dtype=object)
    if table.empty:
        return {}
    table["cell"] = pd.Series([cell(record) for record in table["record"]], dtype=object)
    table["rank"] = pd.Series([(prefer(one), one.recorded_at, one.cell_id) for one in table["record"]], dtype=object)
    chosen = table.sort_values("rank", kind="stable").drop_duplicates("cell", keep="last")
    return dict(zip(chosen["cell"], chosen["record"], strict=True))


def _text(setting: Setting) -> str:
    return json.dumps(setting, sort_keys=True)


def narrow(
    records: Sequence[Record],
    setting: Callable[[Record], Setting],
    cell: Callable[[Record], Hashable],
    what: str,
    like: Setting | None = None,
) -> tuple[list[Record], list[str]]:
    """Keep the records of one setting.

    Args:
        records: those to choose from.
        setting: what must be equal for all that are kept.
        cell: what a record fills; the setting that fills most cells is kept, the newest of those with as many.
        what: what a note calls these records, such as ``timed record(s) of lora``.
        like: the setting to keep, where it is not to be chosen.

    Returns:
        The records kept, and a sentence per other setting on how it differs.
    """
    if not records:
        return [], []
    table = pd.DataFrame({"record": list(records)}, dtype=object)
    table["setting"] = [_text(setting(record)) for record in records]
    table["cell"] = pd.Series([cell(record) for record in records], dtype=object)
    table["at"] = [record.recorded_at for record in records]
    groups = table.groupby("setting").agg(cells=("cell", "nunique"), at=("at", "max")).reset_index()
    order = list(groups.sort_values(["cells", "at", "setting"], ascending=False)["setting"])
    main = order[0] if like is None else _text(like)
    notes = []
    for other in order:
        if other != main:
            ours, theirs = json.loads(main), json.loads(other)
            apart = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
            words = ", ".join(f"{name} {theirs.get(name)}, not {ours.get(name)}" for name in apart)
            count = int((table["setting"] == other).sum())
            notes.append(f"{count} {what} are left out, of another setting: {words}.")
    return list(table.loc[table["setting"] == main, "record"]), notes


def repeats(records: Sequence[Record], cell: Callable[[Record], Hashable], what: str) -> list[str]:
    """A sentence on the records of cells that have several."""
    older = len(records) - len({cell(record) for record in records})
    return [f"{older} further {what} of the cells shown are left out; the newest of each is shown."] if older else []


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The records that one page shows, at most one per cell; a cell without record is simply absent.

    Args:
        device: the one that made the records.
        kind: what it is, ``cpu`` or ``cuda``.
        shown: every record shown, each once, oldest first.
        left_out: sentences on records of this device that are not shown.
        place: what tells the page from others of its device, in a sentence; empty where there is one page per device.
        suffix: the same as parts of file names.
    """

    device: str
    kind: str = "cpu"
    shown: Sequence[Record] = ()
    left_out: tuple[str, ...] = ()
    place: str = ""
    suffix: tuple[str, ...] = ()

    @property
    def own(self) -> Sequence[Record]:
        """The records whose columns the page tells of."""
        return self.shown

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column."""
        return sorted({getattr(record, column) for record in self.own})

    @cached_property
    def older_code(self) -> frozenset[str]:
        """``cell_id`` of the shown records that other code made than the newest one."""
        return frozenset(r.cell_id for r in self.shown if r.code_id != self.shown[-1].code_id)

    def older(self, record: Record | None) -> str:
        """The mark of a record that other code made than the newest one; empty for all others."""
        return OLDER if record is not None and record.code_id != self.shown[-1].code_id else ""


def by_device(records: Sequence[Record]) -> list[Selected]:
    """A page per device with all of its records."""
    groups = [oldest_first(record for record in records if record.device == device) for device in devices(records)]
    return [Selected(device=shown[0].device, kind=device_kind(shown), shown=shown) for shown in groups]


@dataclass(frozen=True, kw_only=True)
class TimesAndMemory(Selected):
    """A page of timed records and predictions of memory, by cell; predictions by target too."""

    timed: Mapping[Any, Record] = field(default_factory=dict)
    predicted: Mapping[tuple[str, Any], Record] = field(default_factory=dict)

    @property
    def own(self) -> Sequence[Record]:
        """The timed records, or the predictions where nothing was timed."""
        return list(self.timed.values()) or list(self.predicted.values())

    def peak(self, target: str, cell: Hashable) -> float | None:
        """The predicted peak of a cell in MiB, or None."""
        record = self.predicted.get((target, cell))
        return record.peak_memory_predicted_mib if record else None


Page = TypeVar("Page", bound=TimesAndMemory)


@dataclass(frozen=True)
class Select:
    """How a page of times and predictions is chosen from records of one device.

    Args:
        cell: the cell of the page that a record fills; None for a record that is no part of the page.
        memory_cell: the same for its peak memory, where that is another.
        same: what must be equal for all times of the page.
        same_model: and for its predictions, as the times have it.
        same_per_arm: and for all records of an arm, as its times have it.
        arm: the arm of a record.
    """

    cell: Callable[[Record], Any]
    memory_cell: Callable[[Record], Any] | None = None
    same: Callable[[Record], Setting] = timing_setting
    same_model: Callable[[Record], Setting] = model_setting
    same_per_arm: Callable[[Record], Setting] = method_settings
    arm: Callable[[Record], str] = operator.attrgetter("arm")

    def __call__(self, records: Sequence[Record], into: type[Page], **page: Any) -> Page:
        """The page, of class ``into``, whose own fields are given by name."""
        memory_cell = self.memory_cell or self.cell

        def target_cell(record: Record) -> tuple[str, Any]:
            return record.predicted_for, memory_cell(record)

        placed = [record for record in records if self.cell(record) is not None]
        runs = [record for record in placed if record.measure == "run"]
        plans = [record for record in placed if record.measure == "predict" and record.predicted_for in TARGETS]
        runs, notes = narrow(runs, self.same, self.cell, "timed record(s)")
        model = self.same_model(runs[0]) if runs else None
        plans, more = narrow(plans, self.same_model, target_cell, "prediction(s)", model)
        runs, of_times = self._by_arm(runs, self.cell, "timed record(s)", {})
        own = {self.arm(record): self.same_per_arm(record) for record in runs}
        plans, of_plans = self._by_arm(plans, target_cell, "prediction(s)", own)
        notes += [*more, *of_times, *of_plans]
        notes += repeats(runs, self.cell, "timed record(s)") + repeats(plans, target_cell, "prediction(s)")
        if strangers := len(records) - len(placed):
            notes.append(f"{strangers} record(s) that belong to no cell of this page are left out.")
        timed = newest(runs, self.cell)
        predicting = [*plans, *filter(_tells_of_memory, runs)]
        predicted = newest(predicting, target_cell, _rank_of_prediction)
        shown = oldest_first([*timed.values(), *predicted.values()])
        return into(timed=timed, predicted=predicted, shown=shown, left_out=tuple(notes), **page)

    def _by_arm(
        self, records: Sequence[Record], cell: Callable[[Record], Hashable], what: str, own: Mapping[str, Setting]
    ) -> tuple[list[Record], list[str]]:
        """Narrow the records of each arm to one setting of its own, which is that in ``own`` if there is one."""
        kept, notes = [], []
        for arm in sorted({self.arm(record) for record in records}):
            of_arm = [record for record in records if self.arm(record) == arm]
            fitting, more = narrow(of_arm, self.same_per_arm, cell, f"{what} of {arm}", own.get(arm))
            kept += fitting
            notes += more
        return kept, notes


def _tells_of_memory(run: Record) -> bool:
    """Whether a timed record holds a prediction, or failed before there was one."""
    return run.predicted_for in TARGETS and (run.status != "ok" or run.peak_memory_predicted_mib is not None)


def _rank_of_prediction(record: Record) -> tuple[bool, bool]:
    """A prediction goes before a record without one, and one that was asked for before one beside a time."""
    return record.peak_memory_predicted_mib is not None, record.measure == "predict"
