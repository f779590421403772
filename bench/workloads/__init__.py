"""The workloads there are, by name: those of this folder, those of other packages, and those registered by hand.

A workload is a class in the form of :class:`bench.protocol.Workload`. It is found

* in a module or folder of ``bench/workloads`` that names it in ``WORKLOAD``;
* through an entry point of another package, group :data:`ENTRY_POINTS`;
* through :func:`register`, in this process and in those of its cells.

No other module of the bench names a workload.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench.core.cell import Cell
from bench.data.corpus import DataError
from bench.protocol import Data, Workload
from bench.protocol.methods import ConfigError, build_dataclass

#: The group of entry points by which another package offers workloads, each under its name.
ENTRY_POINTS = "comera_bench.workloads"

#: What a workload must have, beside what :class:`bench.workloads.base.BaseWorkload` gives.
_MEMBERS = (
    *("name", "Settings", "section", "examples_per_epoch", "open", "words", "build", "targets", "batches"),
    *("batches_per_epoch", "loss", "evaluate"),
)

#: Workloads that :func:`register` has made known, by name.
_registered: dict[str, type[Any]] = {}

_opened: dict[tuple[str, Any, Data], Workload] = {}


def register(workload: type[Any]) -> type[Any]:
    """Make a workload known by its name; a decorator. Its module must be importable by name, as in any test or script.

    Raises:
        ConfigError: a member is missing, or another workload has this name.
    """
    _checked(workload, f"{workload.__module__}.{workload.__qualname__}")
    other = {**_found(), **_registered}.get(workload.name)
    if other is not None and (other.__module__, other.__qualname__) != (workload.__module__, workload.__qualname__):
        raise ConfigError(
            f"workload {workload.name!r} of {workload.__module__} has a name that is taken; choose another."
        )
    _registered[workload.name] = workload
    return workload


def registered() -> dict[str, type[Any]]:
    """The workloads that were registered by hand: what a process of a cell must be told of (:func:`adopt`)."""
    return dict(_registered)


def adopt(workloads: Mapping[str, type[Any]]) -> None:
    """Make those of another process known in this one."""
    _registered.update(workloads)


@functools.cache
def _found() -> dict[str, type[Any]]:
    """Workloads of this folder and of other packages, by name."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        own = getattr(importlib.import_module(f"{__name__}.{module.name}"), "WORKLOAD", None)
        if own is not None:
            found[own.name] = own
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            other = point.load()
        except Exception as error:
            raise ConfigError(f"workload {point.name!r} of {point.value} cannot be imported ({error}).") from None
        _checked(other, point.value)
        if other.name in found:
            raise ConfigError(f"workload {other.name!r} of {point.value} has a name that is taken; choose another.")
        found[other.name] = other
    return found


def _checked(workload: type[Any], where: str) -> None:
    missing = [name for name in _MEMBERS if not hasattr(workload, name)]
    missing += sorted(getattr(workload, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(f"workload {where} lacks {', '.join(dict.fromkeys(missing))}; see bench.protocol.Workload.")


def available() -> tuple[str, ...]:
    """Names of all workloads."""
    return tuple(sorted({**_found(), **_registered}))


def workload_class(name: str) -> type[Any]:
    """The class of a workload.

    Raises:
        ConfigError: there is none of this name.
    """
    found = {**_found(), **_registered}
    if name not in found:
        raise ConfigError(f"workload is {name!r}; allowed: {', '.join(available())}.")
    return found[name]


def checked_settings(name: str, values: Mapping[str, Any], data: Data) -> Any:
    """The settings of a workload from its section of a configuration.

    Raises:
        ConfigError: a wrong value, in one sentence.
        DataError: data that is missing or malformed, in one sentence.
    """
    kind = workload_class(name)
    values = kind.completed(values, data) if hasattr(kind, "completed") else values
    return build_dataclass(kind.Settings, values, kind.section)


def open_workload(name: str, settings: Any, data: Data, check: bool) -> Workload:
    """The workload for these settings; its data is found and read once per process.

    Raises:
        ConfigError: settings that do not suit the data.
        DataError: data that is missing or malformed.
    """
    key = (name, settings, data)
    if key not in _opened:
        kind = workload_class(name)
        try:
            _opened[key] = kind.open(settings, data, check)
        except (ConfigError, DataError):
            raise
        except ValueError as error:
            raise ConfigError(f"{kind.section}: {error}.") from None
    return _opened[key]


def open_cell_workload(cell: Cell, data: Data) -> Workload:
    """The workload of a cell that has been checked."""
    return open_workload(cell.workload, workload_class(cell.workload).Settings(**cell.workload_settings), data, False)


def config_sections() -> dict[str, dict[str, Any]]:
    """The sections of a configuration that workloads bring, with their default settings."""
    return {kind.section: asdict(kind.Settings()) for kind in {**_found(), **_registered}.values()}
