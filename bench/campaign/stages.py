"""What a campaign runs, in order of value (``conf/campaign.yaml``), and how a stage becomes jobs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from bench.core.cell import Cell
from bench.errors import CONF
from bench.measures import Measure
from bench.runner.progress import names_of
from bench.runner.resolve import Job, resolve
from bench.runner.sweep import expand, plain, register_resolvers, register_settings


@dataclass(frozen=True)
class Stage:
    """One sweep of a campaign."""

    name: str  # by which ``only=`` asks for it
    arguments: Sequence[str]  # of ``python -m bench``, the device aside
    why: str  # what is known once it is done


_CONTENT: Any = OmegaConf.to_container(OmegaConf.load(CONF / "campaign.yaml"))
STAGES = tuple(Stage(**stage) for stage in _CONTENT)


def listed() -> str:
    """The stages with their reasons, a line each."""
    width = max(len(stage.name) for stage in STAGES)
    return "\n".join(f"  {stage.name:{width}}  {stage.why}" for stage in STAGES)


@contextmanager
def configuration() -> Iterator[None]:
    """Make configurations composable in this process, as the command line does for its one."""
    GlobalHydra.instance().clear()
    register_resolvers()
    register_settings()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def jobs_of(stage: Stage, device: str, elsewhere: bool = False) -> list[Job]:
    """The jobs of a stage, every cell of which has been checked; to be called inside :func:`configuration`.

    ``device`` is auto, cpu or cuda; ``elsewhere`` means that they will run on another machine. Raises ConfigError,
    DataError: arguments or data are wrong, or not for this machine. HydraException, OmegaConfBaseException: arguments
    that make no configuration.
    """
    config = hydra.compose("config", [*stage.arguments, f"device={device}"], return_hydra_config=True)
    return [resolve(plain(one), elsewhere) for one in expand(config)]


@dataclass(frozen=True)
class Unit:
    """What is started at once or not at all: arms timed together, checks that run side by side, or one cell."""

    stage: str  # its name
    label: str  # what distinguishes it within the stage, for readers and for estimates
    job: Job  # with the cells of this unit alone

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.job.cells

    @property
    def measure(self) -> Measure:
        return self.job.measure


def units_of(stage: Stage, jobs: Sequence[Job]) -> list[Unit]:
    """The units of a stage, in the order in which they run; a cell that several jobs have is left to the first."""
    names = names_of([cell for job in jobs for cell in job.cells])
    units: list[Unit] = []
    seen: set[str] = set()
    for job in jobs:
        fresh = [cell for cell in job.cells if cell.cell_id(job.data_hash) not in seen]
        seen |= {cell.cell_id(job.data_hash) for cell in job.cells}
        for group in [fresh] if job.measure.together else [[cell] for cell in fresh]:
            if group:
                unit = replace(job, cells=tuple(group))
                units.append(Unit(stage.name, _label(unit, names), unit))
    return units


def _label(job: Job, names: Mapping[str, str]) -> str:
    """Batch and arms of a unit; of a training run its seed and what its last stage aims at, too."""
    first = job.cells[0]
    parts = [f"batch {first.batch_size}", "for " * (not job.measure.on_device) + first.device]
    if "stages" in first.training:
        last = first.training["stages"][-1]
        aim = last["name"] if last["target"] is None else f"{last['name']} {last['target']:g}"
        parts += [f"seed {first.seed}", aim]
    return ", ".join([*parts, "; ".join(names[cell.to_json()] for cell in job.cells)])
