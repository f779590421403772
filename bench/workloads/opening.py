"""The workloads there are: settings from a configuration, and each opened once per process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.core.cell import Cell
from bench.data.corpus import DataError
from bench.data.nli import find_corpus
from bench.protocol.methods import ConfigError, build_dataclass
from bench.workloads.encoder import EncoderSettings, EncoderWorkload, encoder_workload
from bench.workloads.linear import LinearSettings, LinearWorkload
from bench.workloads.lookup import LookupSettings, LookupWorkload

WorkloadSettings = EncoderSettings | LinearSettings | LookupSettings
OpenedWorkload = EncoderWorkload | LinearWorkload | LookupWorkload

#: Settings of each workload, by name.
SETTINGS: dict[str, type[WorkloadSettings]] = {
    "encoder": EncoderSettings,
    "linear": LinearSettings,
    "lookup": LookupSettings,
}
WORKLOADS = tuple(SETTINGS)

#: Where the configuration holds them.
SECTIONS = {"encoder": "model", "linear": "linear", "lookup": "table"}

#: By name; None for micro workloads, which have no epoch.
EXAMPLES_PER_EPOCH = {
    "encoder": EncoderWorkload.examples_per_epoch,
    "linear": LinearWorkload.examples_per_epoch,
    "lookup": LookupWorkload.examples_per_epoch,
}


@dataclass(frozen=True)
class Data:
    """Where the data comes from: see :func:`bench.data.nli.find_corpus`; for a micro workload its distribution."""

    dataset: str = "auto"
    data_folder: str | None = None
    fetch: bool = False


def checked_workload_settings(config: Mapping[str, Any], data: Data) -> WorkloadSettings:
    """The settings of a job's workload.

    Raises:
        ConfigError: a wrong value, in one sentence.
        DataError: data that is missing or malformed, in one sentence.
    """
    name = config["workload"]
    section = SECTIONS[name]
    values = config[section]
    if name == "encoder":
        values = {**values, "sequence_length": config["sequence_length"]}
        if values.get("classes") is None:
            values["classes"] = len(find_corpus(data.dataset, data.data_folder, data.fetch, check=False).labels)
    elif data.data_folder is not None or data.fetch:
        field = "data_folder" if data.data_folder is not None else "fetch"
        raise ConfigError(f"{field} is {getattr(data, field)!r}; workload={name} draws its data and reads none.")
    settings: WorkloadSettings = build_dataclass(SETTINGS[name], values, section)
    return settings


_workloads: dict[tuple[WorkloadSettings, Data], OpenedWorkload] = {}


def open_workload(settings: WorkloadSettings, data: Data, check: bool) -> OpenedWorkload:
    """The workload for these settings; its data is found and read once per process.

    Raises:
        ConfigError: settings that do not suit the data.
        DataError: data that is missing or malformed.
    """
    key = (settings, data)
    if key not in _workloads:
        _workloads[key] = _opened(settings, data, check)
    return _workloads[key]


def open_cell_workload(cell: Cell, data: Data) -> OpenedWorkload:
    """The workload of a cell that has been checked."""
    return open_workload(SETTINGS[cell.workload](**cell.workload_settings), data, check=False)


def _opened(settings: WorkloadSettings, data: Data, check: bool) -> OpenedWorkload:
    if isinstance(settings, LinearSettings):
        return LinearWorkload(settings, data.dataset)
    if isinstance(settings, LookupSettings):
        return LookupWorkload(settings, data.dataset)
    try:
        return encoder_workload(settings, data.dataset, data.data_folder, data.fetch, check=check)
    except DataError:
        raise
    except ValueError as error:
        raise ConfigError(f"model: {error}.") from None
