"""Records as one DataFrame, and the choice of what a page shows.

A row is a record: its columns, typed, and the settings of its cell, such as ``method.rank``, ``workload.width``,
``timing.allocator`` or ``training.recipe.lr``; ``stages.early`` has the steps of a training's stage, ``depth`` the
number of its stages. ``times`` are the record's times as a value, of class :class:`figures.times.StepTimes`, and
``samples.NAME`` what other measures found; ``training`` is a training as a value, of class
:class:`figures.trainings.RecordedTraining`.

Records of several settings never stand on one page. The setting with the most cells is shown, the newest of those with
as many; within it every arm is shown with one setting of its own, chosen alike; of each cell the newest record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import pandas as pd

from bench.core.record import COLUMNS, Record, read_all
from figures.arms import Toggles
from figures.times import StepTimes
from figures.trainings import RecordedTraining

#: Records, or a frame of them.
Records = Sequence[Record] | pd.DataFrame

#: Columns, or patterns of columns. A pattern with ``!`` in front takes away.
Patterns = Sequence[str]

#: What is equal for two records of one model; where its data lie is no part of it.
MODEL = ("workload", "sequence_length", "workload.*", "!workload.data*", "!workload.fetch*")

#: What is equal for steps and trainings on several ranks.
RANKS = ("world_size", "bucket_mib", "local_steps")

#: What is equal, the model included, for two times on one page.
TIMING = (*MODEL, "dataset", "data_hash", *RANKS, "timing.allocator")

#: What is equal for two records of one arm.
METHOD = ("method.*",)

#: Columns of the newest record, last.
_NEWEST = ["recorded_at", "cell_id"]

#: Sections of a cell whose settings are columns, by the prefix of these.
_SECTIONS = {name: f"{name}_settings" for name in ("method", "workload", "timing")}

#: Samples that are columns: what measures other than timing and training found.
_SAMPLES = (
    *("kept", "largest", "precisions", "rooflines", "checks", "tensorized", "reach"),
    *("shape", "plans", "dense_ms", "probes", "best", "late", "operations", "start"),
)

_OWN = (
    *(*COLUMNS, "arm", "toggles", "times", "training", "cell.device", "stages", "depth"),
    *(f"samples.{name}" for name in _SAMPLES),
)
_DTYPES: Mapping[Any, str] = {bool: "bool", int: "int64", int | None: "Int64"}
_DTYPES = {**_DTYPES, float | None: "float64"}
_HINTS = get_type_hints(Record)
_TYPES = {name: _DTYPES[_HINTS[name]] for name in COLUMNS if _HINTS[name] in _DTYPES}

#: Names of settings in sentences, where these are others than the column's.
_WORDS = {
    "sequence_length": "length",
    "dataset": "data",
    "data_hash": "contents of the data",
    "batch_size": "batch",
    "cuda_graph": "CUDA Graph",
    "world_size": "ranks",
    "bucket_mib": "bucket, MiB",
    "local_steps": "local steps",
    "timing.allocator": "allocator",
    "metric_name": "metric",
    "training.steps_per_epoch": "steps per epoch",
    "training.static": "equal shapes",
}


def load(root: Path, experiments: Sequence[str] | None = None) -> pd.DataFrame:
    """Return a frame of the records below a folder, of all experiments or of some.

    Raises RecordError for a file that is no record.
    """
    names = [None] if experiments is None else list(dict.fromkeys(experiments))
    return of([record for name in names for record in read_all(root, name)])


def of(records: Records) -> pd.DataFrame:
    """Return a frame of records; a frame as it is.

    >>> of([]).columns[:3].tolist()
    ['schema_version', 'cell_id', 'code_id']
    """
    if isinstance(records, pd.DataFrame):
        return records
    rows = [_row(record) for record in records]
    names = dict.fromkeys([*_OWN, *(name for row in rows for name in row)])
    df = pd.DataFrame(rows, columns=list(names), dtype=object).astype(_TYPES)
    return _trained_together(df.copy())  # in one piece


def _trained_together(df: pd.DataFrame) -> pd.DataFrame:
    """Return records with the trainings of all CPUs on the same data as those of the device that made most of them.

    Another processor rounds otherwise, which acts as another seed does; so a page that was begun on one machine goes on
    on others. ``made_on`` keeps the device of each record.
    """
    trained = df["measure"].isin(["train", "probe"]) & (df["driver"] == "")
    trained &= ~df["cell.device"].str.startswith("cuda").astype(bool)
    df = df.assign(made_on=df["device"])
    for _, alike in df[trained].groupby(["workload", "data_hash"], dropna=False):
        counts = alike.loc[alike["measure"] == "train", "device"].value_counts()
        if len(counts) and alike["device"].nunique() > 1:
            df.loc[alike.index, "device"] = min(counts.index, key=lambda device: (-counts[device], device))
    return df


def _row(record: Record) -> dict[str, Any]:
    cell = record.config
    own = {name: getattr(record, name) for name in (*COLUMNS, "arm")}
    own |= {"cell.device": str(cell.get("device", ""))}
    own |= {"toggles": Toggles.of(record), "times": StepTimes.of(record), "training": RecordedTraining.of(record)}
    own |= {f"samples.{name}": record.samples[name] for name in _SAMPLES if name in record.samples}
    words = {"model": record.workload, "epoch": "", "example": "example", "validated": "", "examples_per_epoch": None}
    own["workload_words"] = words | record.workload_words
    for prefix, section in _SECTIONS.items():
        own |= _flat(prefix, cell.get(section))
    training = cell.get("training")
    own |= _flat("training", training)
    own["stages"] = stages = own.pop("training.stages", None)
    stages = [one for one in stages if isinstance(one, dict)] if isinstance(stages, list) else []
    own |= {f"stages.{one.get('name')}": one.get("steps") for one in stages}
    for name in ("target_ratio", "target_mib"):  # a training that did not end has them in its settings alone
        if own[name] is None and stages:
            own[name] = stages[-1].get(name.replace("_ratio", ""))
    return own | {"depth": len(stages)}


def _flat(prefix: str, settings: Any) -> dict[str, Any]:
    """Return settings by the names of their columns, those of inner sections too."""
    if not isinstance(settings, dict):
        return {}
    found: dict[str, Any] = {}
    for name, value in settings.items():
        place = f"{prefix}.{name}"
        found |= _flat(place, value) if isinstance(value, dict) else {place: value}
    return found


def column(df: pd.DataFrame, name: str, default: Any = None) -> pd.Series:
    """Return a setting's column, which need not be there, with a default where a record lacks the setting."""
    found = df[name] if name in df else pd.Series(None, index=df.index, dtype=object)
    return found.where(found.notna(), default)


def matching(df: pd.DataFrame, patterns: Patterns) -> list[str]:
    """Return the columns that patterns name.

    >>> matching(pd.DataFrame(columns=["arm", "method.rank", "method.lr"]), ["method.*", "!method.lr"])
    ['method.rank']
    """
    return list(_matching(tuple(map(str, df.columns)), tuple(patterns)))


@lru_cache(maxsize=512)
def _matching(columns: tuple[str, ...], patterns: tuple[str, ...]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        for name in [name for name in columns if fnmatchcase(name, bare)]:
            found.pop(name, None) if pattern != bare else found.setdefault(name)
    return tuple(found)


def settings(df: pd.DataFrame, same: Patterns) -> pd.Series:
    """Return the settings in some columns as JSON, row by row; what is None or missing is left out."""
    rows = [json.dumps(row, sort_keys=True) for row in dicts(df, *same)]
    return pd.Series(rows, index=df.index, dtype=object)


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or value != value  # NaN differs from itself


def narrow(
    df: pd.DataFrame, same: Patterns, cell: Sequence[str], what: str, like: str | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Keep the rows of one setting, and say in a sentence per other setting how it differs.

    Args:
        df: records, which sentences call ``what``.
        same: the columns of the setting.
        cell: the columns that tell the cells of a page apart.
        like: the setting to keep, as :func:`settings` has it, in place of the one that fills most cells.
    """
    own = settings(df, same)
    if len(set(own)) == 1 and like in (None, own.iloc[0]):  # as on most pages
        return df, []
    cells = own[~df[list(cell)].assign(of=own).duplicated()].value_counts()
    order = pd.DataFrame({"cells": cells, "at": df["recorded_at"].groupby(own).max()}).rename_axis("setting")
    order = order.reset_index().sort_values(["cells", "at", "setting"], ascending=False)
    main = like if like is not None else next(iter(order["setting"]), "")
    notes = []
    for other in order["setting"]:
        if other != main:
            ours, theirs = json.loads(main), json.loads(other)
            apart = [name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)]
            words = [f"{theirs.get(name)}, not {ours.get(name)}" for name in apart]
            named = sorted(zip(map(_words, apart), apart, words, strict=True))
            differing = ", ".join(f"{word} {values}" for word, _, values in named)
            notes.append(f"{(own == other).sum()} {what} are left out, of another setting: {differing}.")
    return df[own == main], notes


def _words(name: str) -> str:
    if name.startswith(("stages.", "first.")):
        return f"{name.partition('.')[2]} steps"
    return _WORDS.get(name) or name.replace("workload.", "model ").replace("method.", "").replace("training.", "")


def narrow_each(
    df: pd.DataFrame,
    key: str,
    same: Patterns,
    cell: Sequence[str],
    what: str,
    own: Mapping[Any, str] | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """Narrow the rows of each value of a column, which ``{}`` in ``what`` stands for.

    ``own`` has the settings to keep, by value, as :func:`own_settings` returns them.
    """
    kept, notes = [df[:0]], list[str]()
    for value, alike in groups(df, key):
        fitting, more = narrow(alike, same, cell, what.format(value), (own or {}).get(value))
        kept.append(fitting)
        notes += more
    return pd.concat(kept), notes


def own_settings(df: pd.DataFrame, key: str, same: Patterns) -> dict[Any, str]:
    """Return the setting of each value of a column, as its last row has it."""
    return dict(zip(df[key], settings(df, same), strict=True))


def newest(df: pd.DataFrame, cell: Sequence[str], prefer: Sequence[str] = ()) -> pd.DataFrame:
    """Return the newest row of each cell, among those with the largest values in the columns ``prefer``."""
    return df.sort_values([*prefer, *_NEWEST], kind="stable").drop_duplicates(list(cell), keep="last")


def repeats(df: pd.DataFrame, cell: Sequence[str], what: str) -> list[str]:
    """Return a sentence on the rows, called ``what``, of cells that have several; none where there are none."""
    older = int(df.duplicated(list(cell)).sum())
    note = f"{older} further {what} of the cells shown are left out; the newest of each is shown."
    return [note] if older else []


def oldest_first(df: pd.DataFrame) -> pd.DataFrame:
    """Return rows, each record once, in the order in which they were made."""
    return df[~df.index.duplicated()].sort_values(_NEWEST, kind="stable")


def in_order(df: pd.DataFrame, column: str, place: Callable[[Any], Any]) -> pd.DataFrame:
    """Return rows by the places of a column's values; rows of equal ones stay in their order."""
    return df.sort_values(column, key=lambda values: values.map(place), kind="stable")


def dicts(df: pd.DataFrame, *columns: str) -> list[dict[str, Any]]:
    """Return the rows as what they have in some columns, or patterns of columns; missing values are left out.

    >>> dicts(pd.DataFrame({"arm": ["comera", "dense"], "method.rank": [30, None]}), "arm", "method.*")
    [{'arm': 'comera', 'method.rank': 30.0}, {'arm': 'dense'}]
    """
    rows = df[matching(df, columns)].to_dict("records")
    return [{str(name): value for name, value in row.items() if not _is_missing(value)} for row in rows]


def each(df: pd.DataFrame) -> list[Any]:
    """Return the rows, whose columns are their attributes; ``Index`` has the row's own name.

    >>> [row.arm for row in each(pd.DataFrame({"arm": ["comera", "dense"]}))]
    ['comera', 'dense']
    """
    return list(df.itertuples())


def groups(df: pd.DataFrame, by: str | list[str]) -> Iterator[tuple[Any, pd.DataFrame]]:
    """Yield the values of one or several columns, sorted, with the rows that have them."""
    yield from df.groupby(by)


def device_kind(df: pd.DataFrame) -> str:
    """Return ``cuda`` where a GPU's driver is recorded, or where a timed record ran on such a device; else ``cpu``.

    The device in the cell of a prediction is the one predicted for, and not the one that predicted.
    """
    on_cuda = (df["predicted_for"] == "cuda") | df["cell.device"].str.startswith("cuda").astype(bool)
    ran = (df["measure"] == "run") & (on_cuda | df["peak_memory_allocated_mib"].notna())
    return "cuda" if (ran | (df["driver"] != "")).any() else "cpu"


def by_device(records: Records) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield device by device the fields of its page and its records."""
    for device, df in groups(of(records), "device"):
        yield {"device": device, "kind": device_kind(df)}, df


@dataclass(frozen=True, kw_only=True, eq=False)
class Page:
    """The records that one page shows, at most one per cell; a cell without record is absent.

    Args:
        device, kind: the one that made the records, and what it is, ``cpu`` or ``cuda``.
        df: the records, oldest first.
        left_out: sentences on records of this device that are not shown.
        place: what tells the page from others of its device, in a sentence; empty where there is one page per device.
        suffix: the same as parts of file names.
    """

    device: str
    kind: str = "cpu"
    df: pd.DataFrame
    left_out: tuple[str, ...] = ()
    place: str = ""
    suffix: tuple[str, ...] = ()

    @property
    def own(self) -> pd.DataFrame:
        """Return the records that the page's facts are about."""
        return self.df

    def values(self, name: str) -> list[Any]:
        """Return the distinct values of a column, sorted."""
        return sorted(set(self.own[name]))

    @cached_property
    def older_code(self) -> frozenset[str]:
        """Return ``cell_id`` of the records that other code made than the newest one."""
        return frozenset(self.df.loc[self.df["code_id"] != self.df["code_id"].iloc[-1], "cell_id"])

    def is_older(self, rows: pd.DataFrame) -> pd.Series:
        """Return which rows have a record that other code made than the newest one shown."""
        return rows["code_id"].notna() & ~rows["code_id"].isin(self.df["code_id"].tail(1))


P = TypeVar("P", bound=Page)


def pages(
    records: Records,
    cell: Sequence[str] = (),
    same: Patterns = (),
    what: str = "record(s)",
    into: Callable[..., P] = Page,  # type: ignore[assignment]
) -> list[P]:
    """Return a page per device.

    Args:
        records: of one or several devices.
        cell: the columns that tell cells apart, of each of which the newest record is shown; by default all records.
        same: the columns of the one setting that is shown.
        what: sentences call the records.
        into: the class of the pages, or a function that takes their fields.
    """
    found = []
    for device, df in by_device(records):
        notes: list[str] = []
        if cell:
            kept, notes = narrow(df, same, cell, what)
            df, notes = newest(kept, cell), notes + repeats(kept, cell, what)
        found.append(into(**device, df=oldest_first(df), left_out=tuple(notes)))
    return found
