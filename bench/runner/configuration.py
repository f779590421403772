"""Compose configurations from ``bench/conf``: the jobs of a sweep from the words ``key=value`` of a command line."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigLoadError
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.data.corpus import DataError
from bench.errors import CONF, ConfigError, stop_with
from bench.measures import named
from bench.protocol.methods import available, default_settings
from bench.runner.resolve import resolve_device
from bench.runner.wording import axis_values, reworded
from bench.workloads import available as workload_names
from bench.workloads import config_sections, workload_class


@contextmanager
def one_sentence() -> Iterator[None]:
    """End the program with one sentence over missing data, or a mistake that Hydra or OmegaConf found."""
    try:
        yield
    except DataError as error:
        stop_with(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        stop_with(reworded(error))


@contextmanager
def configuration() -> Iterator[None]:
    """Make configurations composable in the block."""
    GlobalHydra.instance().clear()
    register_resolvers()
    _register_settings()
    _register_launchers()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def register_resolvers() -> None:
    """Make ``${on_device:device,cpu value,cuda value}`` and ``${gpus:device,measure,ranks}`` known."""
    OmegaConf.register_new_resolver("on_device", _on_device, replace=True)
    OmegaConf.register_new_resolver("gpus", _gpus, replace=True)


# Launchers pickle resolvers: these by their names alone, while a lambda would take the registry of measures along.
def _on_device(device: str, cpu: Any, cuda: Any) -> Any:
    return cuda if resolve_device(device, needed=False) == "cuda" else cpu


def _gpus(device: str, measure: str, ranks: int = 1) -> int | None:
    return ranks if device != "cpu" and named(measure).on_device else None


def _register_settings() -> None:
    """Make the default settings of every method and workload known to configuration files."""
    store = ConfigStore.instance()
    store.store(group="settings", name="all_methods", node={name: default_settings(name) for name in available()})
    store.store(group="sections", name="all_workloads", node=config_sections(), package="_global_")


def _register_launchers() -> None:
    """Give the launchers of the extra ``slurm`` the defaults of ``conf/launchers.yaml``."""
    Plugins.instance()  # makes those that are installed known
    store = ConfigStore.instance()
    for name, defaults in OmegaConf.load(CONF / "launchers.yaml").items():
        assert isinstance(name, str)
        with contextlib.suppress(ConfigLoadError):
            node = store.load(f"hydra/launcher/{name}.yaml").node
            store.store(group="hydra/launcher", name=name, node=OmegaConf.merge(node, defaults), provider="bench")


def composed(words: Sequence[str]) -> tuple[DictConfig, list[list[str]]]:
    """Compose a sweep: its configuration without swept values, with Hydra's node, and the overrides of each job.

    A word with several values, as ``ratio=2,4``, replaces the experiment's axis. Raises ConfigError: an axis without
    values, with one twice, or of Hydra's own settings; or a setting of another workload. HydraException,
    OmegaConfBaseException: words that cannot be read.
    """
    given = OverridesParser.create().parse_overrides(list(words))
    config = hydra.compose(
        "config", [str(one.input_line) for one in given if not one.is_sweep_override()], return_hydra_config=True
    )
    axes = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    values: dict[str, list[str]] = {}
    for one in (*OverridesParser.create().parse_overrides(axes), *given):
        if one.is_sweep_override():
            values[one.get_key_element()] = axis_values(one)
        elif not one.is_hydra_override():
            values[one.get_key_element()] = [one.get_value_element_as_str()]
    _no_foreign_section([one.get_key_element() for one in given], values.get("workload") or [str(config.workload)])
    choices = [[f"{key}={value}" for value in own] for key, own in values.items()]
    return config, [list(job) for job in itertools.product(*choices)]


def _no_foreign_section(keys: Sequence[str], workloads: Sequence[str]) -> None:
    """Raise ConfigError if one of the keys sets a section that none of the workloads reads."""
    sections = {kind.section: name for name in workload_names() if (kind := workload_class(name))}
    own = [section for section, name in sections.items() if name in workloads]
    for key in keys:
        section = key.lstrip("+~").partition(".")[0]
        if own and section in sections and section not in own:
            raise ConfigError(
                f"{key} is a setting of workload={sections[section]}, which this run has not; those of "
                f"workload={','.join(workloads)} are {', '.join(f'{each}.*' for each in own)}."
            )


def job_configuration(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose the configuration of one job as plain containers, without Hydra's node."""
    return plain(hydra.compose("config", list(overrides)))


def plain(config: DictConfig) -> dict[str, Any]:
    """Return a configuration without Hydra's node as plain containers; raises ConfigError: a setting has no value."""
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ConfigError(f"{missing[0]} has no value; give one, as in {missing[0]}=….")
    container = OmegaConf.to_container(config, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}
