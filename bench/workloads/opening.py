"""The workloads there are: settings from a configuration, and each opened once per process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, overload

from bench.data.corpus import DataError
from bench.data.nli import find_corpus
from bench.methods import ConfigError, build_dataclass
from bench.workloads.encoder import EncoderSettings, EncoderWorkload, encoder_workload
from bench.workloads.lookup import LookupSettings, LookupWorkload

#: Settings of each workload, by name.
SETTINGS: dict[str, type[EncoderSettings] | type[LookupSettings]] = {
    "encoder": EncoderSettings,
    "lookup": LookupSettings,
}
WORKLOADS = tuple(SETTINGS)

#: By name; None for micro workloads, which have no epoch.
EXAMPLES_PER_EPOCH = {
    "encoder": EncoderWorkload.examples_per_epoch,
    "lookup": LookupWorkload.examples_per_epoch,
}


@dataclass(frozen=True)
class Data:
    """Where the data comes from: see :func:`bench.data.nli.find_corpus`, and for the look-up its distribution."""

    dataset: str = "auto"
    data_folder: str | None = None
    fetch: bool = False


def checked_workload_settings(config: Mapping[str, Any], data: Data) -> EncoderSettings | LookupSettings:
    """The settings of a job's workload.

    Raises:
        ConfigError: a wrong value, in one sentence.
        DataError: data that is missing or malformed, in one sentence.
    """
    if config["workload"] == "lookup":
        if data.data_folder is not None or data.fetch:
            field = "data_folder" if data.data_folder is not None else "fetch"
            raise ConfigError(f"{field} is {getattr(data, field)!r}; the look-up draws its data and reads none.")
        table: LookupSettings = build_dataclass(LookupSettings, config["table"], "table")
        return table
    sizes = {**config["model"], "sequence_length": config["sequence_length"]}
    if sizes.get("classes") is None:
        sizes["classes"] = len(find_corpus(data.dataset, data.data_folder, data.fetch, check=False).labels)
    model: EncoderSettings = build_dataclass(EncoderSettings, sizes, "model")
    return model


_workloads: dict[tuple[EncoderSettings | LookupSettings, Data], EncoderWorkload | LookupWorkload] = {}


@overload
def open_workload(settings: EncoderSettings, data: Data, check: bool) -> EncoderWorkload: ...
@overload
def open_workload(settings: LookupSettings, data: Data, check: bool) -> LookupWorkload: ...
@overload
def open_workload(
    settings: EncoderSettings | LookupSettings, data: Data, check: bool
) -> EncoderWorkload | LookupWorkload: ...
def open_workload(
    settings: EncoderSettings | LookupSettings, data: Data, check: bool
) -> EncoderWorkload | LookupWorkload:
    """The workload for these settings; its data is found and read once per process.

    Raises:
        ConfigError: settings that do not suit the data.
        DataError: data that is missing or malformed.
    """
    key = (settings, data)
    if key in _workloads:
        return _workloads[key]
    if isinstance(settings, LookupSettings):
        _workloads[key] = LookupWorkload(settings, data.dataset)
        return _workloads[key]
    try:
        _workloads[key] = encoder_workload(settings, data.dataset, data.data_folder, data.fetch, check=check)
    except DataError:
        raise
    except ValueError as error:
        raise ConfigError(f"model: {error}.") from None
    return _workloads[key]
