"""What a campaign runs, in order of value, and how a stage becomes jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import hydra
from hydra.core.global_hydra import GlobalHydra

from bench.core.cell import Cell
from bench.errors import CONF
from bench.measures import Measure, named
from bench.runner.progress import names_of
from bench.runner.resolve import Job, resolve
from bench.runner.sweep import expand, plain, register_resolvers, register_settings


@dataclass(frozen=True)
class Stage:
    """One sweep of a campaign.

    Args:
        name: by which ``only=`` asks for it.
        arguments: of ``python -m bench``, the device aside. An axis keeps the experiment's values or gets a single one.
        why: what is known once it is done.
    """

    name: str
    arguments: tuple[str, ...]
    why: str


#: CoMERA against what most would pick instead, and the rival that its time claims name.
_RIVALS = "methods=[comera,dense,galore]"

STAGES = (
    Stage(
        "correctness",
        ("experiment=correctness",),
        "layers, look-ups, steps and captured steps compute on this device what float64 computes on a CPU",
    ),
    Stage(
        "fig1",
        ("experiment=fig1",),
        "time per epoch and peak memory, predicted and allocated, of every method in FP32",
    ),
    Stage("prediction", ("experiment=prediction",), "predicted against allocated memory over the very same steps"),
    Stage("fig7", ("experiment=fig7",), "what a CUDA Graph adds, for CoMERA and dense training"),
    Stage("fig1-bf16", ("experiment=fig1", _RIVALS, "precision=bf16"), "whether the ratios hold in BF16"),
    Stage("fig1-tf32", ("experiment=fig1", _RIVALS, "precision=tf32"), "whether the ratios hold in TF32"),
    Stage("sst2", ("experiment=accuracy", "dataset=sst2"), "accuracy, sizes and ranks on SST-2, three seeds in BF16"),
    Stage("nli", ("experiment=accuracy", "dataset=nli_pool"), "the same on about 47 thousand pairs of three NLI sets"),
    Stage("sst2-fp32", ("experiment=accuracy", "dataset=sst2", "precision=fp32", "seed=0"), "SST-2 in FP32, one seed"),
    Stage("nli-fp32", ("experiment=accuracy", "dataset=nli_pool", "precision=fp32", "seed=0"), "NLI in FP32, one seed"),
    Stage("fig5", ("experiment=fig5",), "time and memory of the embedding look-up, by variant"),
    Stage("ratios", ("experiment=ratios",), "time and memory against the compression of the whole model"),
    Stage(
        "contraction", ("experiment=contraction",), "every contraction plan on the grid that the planner is fitted to"
    ),
    Stage("fig11", ("experiment=fig11",), "the plans of the encoder's layers"),
    Stage("tensorization", ("experiment=tensorization",), "the paper's modes and ranks beside the solver's"),
    Stage("products", ("experiment=products",), "what FP8, BF16 and TF32 make of the layers' products"),
    Stage("profile", ("experiment=profile",), "where the time of a step goes, by kind of kernel"),
)


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

    Args:
        stage: one of :data:`STAGES`, or made like one.
        device: auto, cpu or cuda.
        elsewhere: they will run on another machine.

    Raises:
        ConfigError, DataError: arguments or data are wrong, or not for this machine.
        hydra.errors.HydraException, omegaconf.errors.OmegaConfBaseException: arguments that make no configuration.
    """
    config = hydra.compose("config", [*stage.arguments, f"device={device}"], return_hydra_config=True)
    return [resolve(plain(one), elsewhere) for one in expand(config)]


@dataclass(frozen=True)
class Unit:
    """What is started at once or not at all: arms that are timed together, checks that run side by side, or one cell.

    Args:
        stage: its stage's name.
        label: what distinguishes it within the stage, for readers and for estimates.
        job: with the cells of this unit alone.
    """

    stage: str
    label: str
    job: Job

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
        groups = [fresh] if job.measure.together else [[cell] for cell in fresh]
        units += [Unit(stage.name, _label(group, names), replace(job, cells=tuple(group))) for group in groups if group]
    return units


def _label(cells: Sequence[Cell], names: Mapping[str, str]) -> str:
    """Batch and arms of a unit; of a training run its seed and what its last stage aims at, too."""
    first = cells[0]
    parts = [f"batch {first.batch_size}", "for " * (not named(first.measure).on_device) + first.device]
    if first.training:
        last = first.training["stages"][-1]
        aim = last["name"] if last["target"] is None else f"{last['name']} {last['target']:g}"
        parts += [f"seed {first.seed}", aim]
    return ", ".join([*parts, "; ".join(names[cell.to_json()] for cell in cells)])
