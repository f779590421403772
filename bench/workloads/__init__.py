"""The workloads there are, by name: those of this folder, and those of modules that the environment names.

A workload is a class in the form of :class:`bench.protocol.Workload`. It is found in a module that names it in
``WORKLOAD``: one of ``bench/workloads``, or one that the variable ``BENCH_PLUGINS`` of the environment names. No other
module of the bench names a workload.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, get_origin

from bench.core.cell import Cell
from bench.core.checked import build_dataclass
from bench.core.identity import identity
from bench.core.plugins import Registry
from bench.data.corpus import DataError
from bench.errors import ConfigError
from bench.protocol import Data, EarlyLate, Workload

_PROTOCOL = {name: value for name, value in (Workload.__annotations__ | vars(Workload)).items() if name[0] != "_"}

#: Members of an opened workload, the protocol's properties and plain attributes; and those that its class needs.
_OPENED_MEMBERS = [
    name
    for name, value in _PROTOCOL.items()
    if isinstance(value, property) or (name in Workload.__annotations__ and get_origin(value) is not ClassVar)
]
_MEMBERS = [name for name in _PROTOCOL if name not in _OPENED_MEMBERS]


def _missing(workload: type[Any]) -> list[str]:
    missing = [name for name in _MEMBERS if not hasattr(workload, name)]
    return list(dict.fromkeys([*missing, *sorted(getattr(workload, "__abstractmethods__", ()))]))


_REGISTRY: Registry[type[Any]] = Registry("workload", __name__, _missing)
available, workload_class = _REGISTRY.names, _REGISTRY.named

_opened: dict[tuple[str, Any, Data], Workload] = {}


def config_sections() -> dict[str, dict[str, Any]]:
    """Return the sections of a configuration that workloads bring, with their default settings.

    One per workload, where null stands for what follows from its data; and ``training``, with the settings of all
    training plans, where null stands for the default of a plan that is not the usual one. Two workloads with the same
    section raise ConfigError.
    """
    plans: dict[str, Any] = {}
    sections: dict[str, dict[str, Any]] = {}
    for name, kind in _REGISTRY.all().items():
        if kind.section in sections:
            raise ConfigError(f"workload {name!r} has the section {kind.section!r}, which is taken; choose another.")
        sections[kind.section] = {**asdict(kind.Settings()), **dict.fromkeys(kind.from_data)}
        plans |= dict.fromkeys(field.name for field in dataclasses.fields(kind.training_plan))
    return {**sections, "training": {**plans, **asdict(EarlyLate())}}


def checked_settings(name: str, values: Mapping[str, Any], data: Data) -> Any:
    """Return the settings of a workload from its section of a configuration; raises ConfigError or DataError."""
    kind = workload_class(name)
    if any(values.get(field) is None for field in kind.from_data):
        values = {**values, **kind.settings_of(data)}
    return build_dataclass(kind.Settings, values, kind.section)


def open_workload(name: str, settings: Any, data: Data, check: bool) -> Workload:
    """Return the workload for these settings; its data is found and read once per process.

    Raises ConfigError: settings that do not suit the data, or a workload that lacks a member. DataError: see there.
    """
    key = (name, settings, data)
    if key not in _opened:
        kind = workload_class(name)
        try:
            opened = kind.open(settings, data, check)
        except (ConfigError, DataError):
            raise
        except ValueError as error:
            raise ConfigError(f"{kind.section}: {error}.") from None
        # Not by hasattr, which computes properties: a metric's probes take a minute of counting.
        there = {*dir(type(opened)), *vars(opened)}
        if missing := [each for each in _OPENED_MEMBERS if each not in there and not hasattr(opened, each)]:
            raise ConfigError(f"workload {name!r} lacks {', '.join(missing)}; see bench.protocol.Workload.")
        if data.start is not None and getattr(opened, "start", None) is None:
            raise ConfigError(f"start is {data.start}, and workload={name} starts from no trained model; leave it out.")
        _opened[key] = opened
    return _opened[key]


def open_cell_workload(cell: Cell, data: Data) -> Workload:
    """Return the workload of a cell that has been checked."""
    return open_workload(cell.workload, workload_class(cell.workload).Settings(**cell.workload_settings), data, False)


def open_model(path: Path, sequence_length: int) -> tuple[Workload, tuple[str, ...]]:
    """Return a user's own model as a workload, by the path of its configuration, and the limits of its predictions.

    A path or a length that cannot be used raises ConfigError.
    """
    from bench.workloads.hugging_face import HuggingFaceWorkload  # heavy, and seldom needed

    workload = HuggingFaceWorkload(path, sequence_length)
    return workload, workload.notes()


def recorded_words(workload: Workload) -> dict[str, Any]:
    """Return the words for a workload that records hold."""
    metric = None if workload.metric is None else asdict(workload.metric)
    return {**identity(workload.words), "examples_per_epoch": workload.examples_per_epoch, "metric": metric}
