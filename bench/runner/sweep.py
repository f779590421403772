"""The sweep: Hydra's jobs turned into cells, checked as a whole, run, and recorded one by one.

The jobs run in this process, or each in a process of its own where the launcher says so
(:mod:`bench.runner.launching`).

The way of a job: configuration, cells (:mod:`bench.runner.resolve`), those already done left out, what its measure
makes of the others (:mod:`bench.measures`), records (:mod:`bench.runner.results`).
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.core.cell import Cell
from bench.core.files import check_own_folder
from bench.core.processors import usable_processors
from bench.core.reading import user_path
from bench.data.corpus import DataError
from bench.errors import CONF, ConfigError, Mistake, stop_with, unwritten
from bench.interrupts import on_interrupt
from bench.measures import named, outcomes_of
from bench.processes.cluster import is_follower
from bench.processes.process import preload, remove_abandoned_temporaries
from bench.protocol import Data, Outcome, Session
from bench.protocol.methods import available, build_for, default_settings
from bench.runner import ARMS
from bench.runner.launching import JobFailed, Launch, failure_noted, note_busy, without_shared
from bench.runner.progress import SweepProgress
from bench.runner.resolve import Job, resolve, resolve_device
from bench.runner.results import Results
from bench.runner.wording import check_sweep, reworded
from bench.step.unsupported import compile_unsupported, unsupported
from bench.workloads import config_sections, open_cell_workload
from comera.protocol import Reason

#: Progress, records and tables of a sweep whose jobs run in this process.
_progress: SweepProgress | None = None
_written: set[Path] = set()
_tables: set[Path] = set()

#: A sweep whose jobs run in processes of their own, from the moment they are submitted.
_launched: Launch | None = None

preload("bench.runner.preload")


@contextmanager
def one_sentence() -> Iterator[None]:
    """End the program with one sentence over a mistake in a configuration, data, records or checkpoints."""
    try:
        yield
    except (Mistake, DataError) as error:
        _close_progress()
        stop_with(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        stop_with(reworded(error))


def _close_progress() -> None:
    if _progress is not None:
        _progress.close()


def register_resolvers() -> None:
    """Make ``${on_device:device,cpu value,cuda value}`` and ``${gpus:device,measure,ranks}`` known."""
    OmegaConf.register_new_resolver("on_device", _on_device, replace=True)
    OmegaConf.register_new_resolver("gpus", _gpus, replace=True)


# Launchers pickle resolvers: these by their names alone, while a lambda would take the registry of measures along.
def _on_device(device: str, cpu: Any, cuda: Any) -> Any:
    return cuda if resolve_device(device, needed=False) == "cuda" else cpu


def _gpus(device: str, measure: str, ranks: int = 1) -> int | None:
    return ranks if device != "cpu" and named(measure).on_device else None


def register_settings() -> None:
    """Make the default settings of every method and workload known to configuration files."""
    store = ConfigStore.instance()
    store.store(group="settings", name="all_methods", node={name: default_settings(name) for name in available()})
    store.store(group="sections", name="all_workloads", node=config_sections(), package="_global_")


@contextmanager
def configuration() -> Iterator[None]:
    """Make configurations composable in this process, as the command line does for its one."""
    GlobalHydra.instance().clear()
    register_resolvers()
    register_settings()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def plain(config: DictConfig) -> dict[str, Any]:
    """Return the configuration as plain containers, Hydra's own node left out.

    Raises ConfigError: a setting without a value.
    """
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    missing = sorted(OmegaConf.missing_keys(own))
    if missing:
        raise ConfigError(f"{missing[0]} has no value; give one, as in {missing[0]}=….")
    container = OmegaConf.to_container(own, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def cell_unsupported(cell: Cell, data: Data) -> str | None:
    """Explain why a cell cannot be measured; None if it can."""
    workload = open_cell_workload(cell, data)
    with torch.device("meta"):
        model = workload.build()
    refusal = named(cell.measure).refusal(cell)
    return refusal or unsupported(cell, build_for(cell), model, workload.targets())


def run_job(job: Job, results: Results, parallel: int, progress: SweepProgress, resume: bool = True) -> None:
    """Measure the cells of a job that are not done yet and record them.

    ``parallel`` is the number of processes at a time, where cells run side by side; 0 is for one per usable
    processor. With ``resume`` training runs go on from their checkpoints.
    """
    possible = []
    for cell in job.cells:
        if results.is_done(cell, job.data_hash):
            progress.finish(cell, "done before")
        elif reason := cell_unsupported(cell, job.data):
            samples: dict[str, Any] = {}
            if cell.compile and reason == compile_unsupported(cell.device):
                samples["lacks"] = "compiler"
            if isinstance(reason, Reason) and reason.reach:
                samples["reach"] = reason.reach
            _record([Outcome(cell, "unsupported", reason, {"samples": samples})], job, results, progress)
        else:
            possible.append(cell)
    results.claim(possible, job.data_hash)
    session = Session(
        data=job.data,
        parallel=parallel or usable_processors(),
        advance=progress.advance,
        note=progress.note,
        upkeep=lambda cell: results.upkeep(cell, job.data_hash, resume),
        needs_rare=lambda cell: results.rare_times(cell) is None,
    )
    for outcomes in outcomes_of(job.measure, possible, session) if possible else ():
        _record(outcomes, job, results, progress)


def _record(outcomes: Sequence[Outcome], job: Job, results: Results, progress: SweepProgress) -> None:
    for outcome, record in zip(outcomes, results.record(outcomes, job.data_hash, job.data), strict=True):
        text = job.measure.text(record) if record.status == "ok" else record.message
        progress.timed(record)
        progress.finish(outcome.cell, f"{record.status}: {text}", is_error=record.status == "error")


class SweepCallback(Callback):
    """Expands a sweep when it starts, checks every cell before the first one runs, and owns the progress bar."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        self._start(lambda: [config])

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        self._start(lambda: list(expand(config)), Launch.of(config))

    def _start(self, expanded: Callable[[], Sequence[DictConfig]], launch: Launch | None = None) -> None:
        global _progress, _launched
        _progress = _launched = None
        _written.clear()
        _tables.clear()
        remove_abandoned_temporaries()
        try:
            with one_sentence():
                configs = expanded()
                jobs = [_checked(config, elsewhere=launch is not None and launch.elsewhere) for config in configs]
                roots = [_root(config) for config in configs]
                _tables.update(root / f"{config.name}.csv" for root, config in zip(roots, configs, strict=True))
                if launch is not None and not launch.here:
                    launch.announce(jobs, roots)
                    _launched = launch
                    return
                os.environ[ARMS] = ",".join(sorted({cell.method for job in jobs for cell in job.cells}))
                for job, root, config in zip(jobs, roots, configs, strict=True):
                    results = Results(root, config.reuse)
                    waiting = [cell for cell in job.cells if not results.is_done(cell, job.data_hash)]
                    results.claim(waiting, job.data_hash)
        except OSError as error:
            stop_with(unwritten(error), status=1)
        except Exception:  # Hydra would make a warning of it and go on
            traceback.print_exc()
            raise SystemExit(1) from None
        _progress = SweepProgress([cell for job in jobs for cell in job.cells])
        on_interrupt(_progress.interrupted)

    def on_run_end(self, config: DictConfig, **_: Any) -> None:  # noqa: ARG002 - Hydra passes it
        _close_progress()
        for table in sorted(_tables):
            if table.exists():
                print(f"table: {table}", file=sys.stderr)
        if _progress is not None and (busy := _progress.busy()):
            print(busy, file=sys.stderr)
        if _progress is not None and (failed := _progress.failed()):
            stop_with(failed, status=1)
        if _launched is not None:
            _launched.finish()

    on_multirun_end = on_run_end


def expand(config: DictConfig) -> Iterator[DictConfig]:
    """Compose the configurations of all jobs of a sweep, in the order in which they will run."""
    sweeper = Plugins.instance()._instantiate(config.hydra.sweeper)
    axes = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    given = OmegaConf.to_container(config.hydra.overrides, resolve=False)  # an interpolation is each job's own
    assert isinstance(given, dict)
    overrides = OverridesParser.create().parse_overrides([*axes, *given["task"]])
    check_sweep(overrides)
    [batch] = type(sweeper).split_arguments(overrides, max_batch_size=None)  # type: ignore[attr-defined]
    for job in batch:
        yield hydra.compose("config", [*job, *given["hydra"]], return_hydra_config=False)


def _checked(config: DictConfig, elsewhere: bool = False) -> Job:
    """Return a job whose cells are valid, and whose records and checkpoints can be read and written."""
    check_own_folder("results", _root(config))
    job = resolve(plain(config), elsewhere)
    results = Results(_root(config), config.reuse)
    results.tidy()
    results.check(job.cells[0])
    for cell in job.cells if config.resume else ():
        results.check_checkpoint(cell, job.data_hash)
    return job


def _root(config: DictConfig) -> Path:
    """Return the folder of a job's records."""
    return user_path("results", str(config.results))


def job(config: DictConfig) -> None:
    """Run one Hydra job: in the process that launched the sweep, or in its own process, which begins here."""
    if _progress is not None:
        try:
            with one_sentence():  # Hydra would put a line of its own in front
                _run(config, resolve(plain(config)), _progress)
        except OSError as error:
            _progress.close()
            stop_with(unwritten(error), status=1)
        return
    if is_follower():
        return
    with failure_noted():
        register_resolvers()
        own = without_shared(_checked(config))
        progress = SweepProgress(own.cells)
        on_interrupt(progress.interrupted)
        _run(config, own, progress)
        if busy := progress.busy():
            note_busy(busy)
        if failed := progress.failed():
            raise JobFailed(failed)


def _run(config: DictConfig, job: Job, progress: SweepProgress) -> None:
    results = Results(_root(config), config.reuse, _written)
    results.tabulate(job.cells[0].experiment)
    run_job(job, results, config.parallel, progress, config.resume)


def interrupted(error: BaseException) -> None:
    """Take the progress bar down; end the program over what kept it from waiting for jobs that it has submitted."""
    _close_progress()
    if _launched is not None:
        _launched.finish(error)
