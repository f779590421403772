"""Which records one page shows: of one device and one setting, the newest of each cell, and words on all others.

Records of several settings never stand on one page. The setting with the most cells is shown, the newest of those with
as many; within it every arm is shown with one setting of its own, chosen alike.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd

from bench.core.record import Record
from figures.text import OLDER

#: The arm that claims are about, the method of two plain factors, and what everything is compared with.
COMERA, LOW_RANK, DENSE = "comera", "low_rank", "dense"

#: Two-factor arms: solved for CoMERA's parameters; with CoMERA's middle ranks, and so with more parameters. What is of
#: equal size is told by :mod:`figures.records.sizes`.
SIZE_RIVAL, RANK_RIVAL = f"{LOW_RANK}@size", f"{LOW_RANK}@rank"

#: Arms in drawing order; others follow them.
ARMS = (COMERA, SIZE_RIVAL, RANK_RIVAL, f"{RANK_RIVAL}:linear", "lora", "lte", "galore", DENSE)

#: What must be equal for records to stand together, by the names that a note calls it.
Setting = Mapping[str, Any]

Cell = TypeVar("Cell", bound=Hashable)


@functools.lru_cache(maxsize=4096)
def _parsed(config_json: str) -> Mapping[str, Any]:
    try:
        config = json.loads(config_json)
    except json.JSONDecodeError:
        return {}
    return config if isinstance(config, dict) else {}


def config_of(record: Record) -> Mapping[str, Any]:
    """The cell that the record answers, as it was resolved; empty where it cannot be read."""
    return _parsed(record.config_json)


def settings_of(record: Record, section: str) -> Mapping[str, Any]:
    """The settings in a section of the record's cell, such as ``method_settings``; empty where it has none."""
    settings = config_of(record).get(section)
    return settings if isinstance(settings, dict) else {}


method_settings = functools.partial(settings_of, section="method_settings")
workload_settings = functools.partial(settings_of, section="workload_settings")


def model_setting(record: Record) -> dict[str, Any]:
    """What is equal for two records of the same model. Where the data lie says nothing about it."""
    model = {f"model {k}": v for k, v in workload_settings(record).items() if not k.startswith(("data", "fetch"))}
    return {"workload": record.workload, "length": record.sequence_length, **model}


def timing_setting(record: Record) -> dict[str, Any]:
    """What is equal, beyond the model, for two times that may stand on one page."""
    allocator = settings_of(record, "timing_settings").get("allocator")
    data = {"data": record.dataset, "contents of the data": record.data_hash}
    return {**model_setting(record), **data, **ranks_setting(record), "allocator": allocator}


def ranks_setting(record: Record) -> dict[str, Any]:
    """What is equal for two steps or runs of as many ranks; the rate of a link is for a figure to vary."""
    alike = {"ranks": record.world_size, "bucket, MiB": record.bucket_mib, "local steps": record.local_steps}
    return alike if record.world_size > 1 else {"ranks": 1}


def oldest_first(records: Iterable[Record]) -> list[Record]:
    """The records, each once, in the order in which they were made."""
    unique = {id(record): record for record in records}
    return sorted(unique.values(), key=operator.attrgetter("recorded_at", "cell_id"))


def by_arm(arm: str) -> tuple[int, str]:
    """The place of an arm in drawing order."""
    return ARMS.index(arm) if arm in ARMS else len(ARMS), arm


def device_kind(records: Iterable[Record]) -> str:
    """What a device is: ``cuda`` where a GPU's driver is recorded, or where any timed record ran on such a device.

    The device in the cell of a prediction is the one predicted for, which says nothing about the one that predicted.
    """
    for record in records:
        on_cuda = record.peak_memory_allocated_mib is not None or record.predicted_for == "cuda"
        on_cuda = on_cuda or str(config_of(record).get("device", "")).startswith("cuda")
        if record.driver or (record.measure == "run" and on_cuda):
            return "cuda"
    return "cpu"


def by_device(records: Sequence[Record]) -> list[tuple[dict[str, Any], list[Record]]]:
    """By device, sorted, name and kind of it as fields of :class:`Selected`, and its records."""
    names = sorted({record.device for record in records})
    found = [(name, [record for record in records if record.device == name]) for name in names]
    return [({"device": name, "kind": device_kind(of_device)}, of_device) for name, of_device in found]


def newest(
    records: Iterable[Record], cell: Callable[[Record], Cell], prefer: Callable[[Record], Any] = lambda _: 0
) -> dict[Cell, Record]:
    """By cell the newest record, among those that ``prefer`` ranks highest."""
    columns = [(cell(one), (prefer(one), one.recorded_at, one.cell_id), one) for one in records]
    table = pd.DataFrame(columns, columns=["cell", "rank", "record"], dtype=object)
    chosen = table.sort_values("rank", kind="stable").drop_duplicates("cell", keep="last")
    return dict(zip(chosen["cell"], chosen["record"], strict=True))


def repeats(records: Sequence[Record], cell: Callable[[Record], Hashable], what: str) -> list[str]:
    """A sentence on the records, called ``what``, of cells that have several."""
    older = len(records) - len({cell(record) for record in records})
    return [f"{older} further {what} of the cells shown are left out; the newest of each is shown."] if older else []


def narrow(
    records: Sequence[Record],
    setting: Callable[[Record], Setting],
    cell: Callable[[Record], Hashable],
    what: str,
    like: Setting | None = None,
) -> tuple[list[Record], list[str]]:
    """Keep the records, called ``what``, of one setting, and say in a sentence per other setting how it differs.

    It is the setting that is ``like`` one, or that which fills most cells, the newest of those with as many.
    """
    columns = [(json.dumps(setting(one), sort_keys=True), cell(one), one.recorded_at, one) for one in records]
    table = pd.DataFrame(columns, columns=["setting", "cell", "at", "record"], dtype=object)
    groups = table.groupby("setting").agg(cells=("cell", "nunique"), at=("at", "max"), count=("at", "size"))
    order = groups.reset_index().sort_values(["cells", "at", "setting"], ascending=False)
    main = json.dumps(like, sort_keys=True) if like is not None else order["setting"].iloc[0] if len(order) else ""
    notes = []
    for other, count in zip(order["setting"], order["count"], strict=True):
        if other != main:
            ours, theirs = json.loads(main), json.loads(other)
            apart = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
            words = ", ".join(f"{name} {theirs.get(name)}, not {ours.get(name)}" for name in apart)
            notes.append(f"{count} {what} are left out, of another setting: {words}.")
    return list(table.loc[table["setting"] == main, "record"]), notes


def narrow_each(
    records: Sequence[Record],
    key: Callable[[Record], Any],
    setting: Callable[[Record], Setting],
    cell: Callable[[Record], Hashable],
    what: str,
    own: Mapping[Any, Setting] | None = None,
) -> tuple[list[Record], list[str]]:
    """As :func:`narrow` for the records of each ``key``, ``{}`` in ``what``; ``own`` has what is not to be chosen."""
    kept: list[Record] = []
    notes: list[str] = []
    for value in sorted({key(record) for record in records}):
        alike = [record for record in records if key(record) == value]
        fitting, more = narrow(alike, setting, cell, what.format(value), (own or {}).get(value))
        kept, notes = kept + fitting, notes + more
    return kept, notes


#: From the most exact to the least.
PRECISIONS = (
    *("fp32", "tf32", "bf16", "bf16_weights"),
    *("fp8_split", "fp8", "fp8_row", "fp8_delayed", "fp8_filtered", "fp8_row_filtered"),
)


@dataclass(frozen=True)
class Toggles:
    """What a step runs with.

    >>> Toggles("bf16", compile=True).names
    ('bf16', 'compile')
    """

    precision: str = "fp32"
    compile: bool = False
    cuda_graph: bool = False

    @classmethod
    def of(cls, record: Record) -> Toggles:
        """Those of a record."""
        return cls(record.precision, record.compile, record.cuda_graph)

    @property
    def names(self) -> tuple[str, ...]:
        precision = () if self.precision == "fp32" else (self.precision,)
        return (*precision, *(("compile",) if self.compile else ()), *(("CUDA Graph",) if self.cuda_graph else ()))

    @property
    def text(self) -> str:
        """Those that are on, or the precision where none is."""
        return ", ".join(self.names) or self.precision

    @property
    def page(self) -> dict[str, Any]:
        """What a page of them is about, as fields of a selection."""
        return {"toggles": self, "place": self.text, "suffix": self.names}

    def among(self, records: Iterable[Record]) -> list[Record]:
        """The timed records with them, and the predictions, which are of plain steps, of their precision."""
        return [
            one
            for one in records
            if (one.measure == "run" and Toggles.of(one) == self)
            or (one.measure == "predict" and one.precision == self.precision)
        ]

    @property
    def without_last(self) -> Toggles | None:
        """The same with the one named last off; None where all are."""
        if self.cuda_graph:
            return replace(self, cuda_graph=False)
        if self.compile:
            return replace(self, compile=False)
        return None if self.precision == "fp32" else Toggles()

    @property
    def rank(self) -> tuple[int, str, bool, bool]:
        place = PRECISIONS.index(self.precision) if self.precision in PRECISIONS else len(PRECISIONS)
        return place, self.precision, self.compile, self.cuda_graph


#: Steps in FP32 and nothing else; and those that claims on time are about.
PLAIN, CAPTURED = Toggles(), Toggles(cuda_graph=True)


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The records that one page shows, at most one per cell; a cell without record is simply absent.

    Args:
        device, kind: the one that made the records, and what it is, ``cpu`` or ``cuda``.
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
        """The records whose columns the page's facts are about."""
        return self.shown

    def values(self, column: str) -> list[Any]:
        """The distinct values of a column."""
        return sorted({getattr(record, column) for record in self.own})

    @cached_property
    def older_code(self) -> frozenset[str]:
        """``cell_id`` of the shown records that other code made than the newest one."""
        return frozenset(r.cell_id for r in self.shown if r.code_id != self.shown[-1].code_id)

    def older(self, record: Record | None) -> str:
        """The mark of a record that other code made before the newest one shown; empty for all others."""
        if record is None or record.recorded_at > self.shown[-1].recorded_at:
            return ""
        return OLDER if record.code_id != self.shown[-1].code_id else ""


def pages_by_device(records: Sequence[Record]) -> list[Selected]:
    """A page per device with all of its records."""
    return [Selected(**device, shown=oldest_first(mine)) for device, mine in by_device(records)]
