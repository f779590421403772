"""The sweep: Hydra's jobs turned into cells, checked as a whole, run, and recorded one by one.

The jobs run in this process, or each in a process of its own where the launcher says so
(:mod:`bench.runner.launching`).

The way of a job: configuration, cells (:mod:`bench.runner.resolve`), those already done left out, predictions, timing
in
interleaved blocks (:mod:`bench.processes.interleave`) or training to the end (:mod:`bench.measures.training`), records
(:mod:`bench.runner.results`).
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.core.cell import Cell
from bench.core.record import RecordError
from bench.data.corpus import DataError
from bench.errors import reworded, stop_with
from bench.measures.allocator_peak import witnessed
from bench.measures.plan import plan_unsupported
from bench.measures.products import products_unsupported
from bench.measures.training import Upkeep
from bench.processes.interleave import Outcome, answered_once, predict_cells, time_cells
from bench.processes.process import CellFailure, CellProcess
from bench.processes.worker import ONCE, measure_once, train_cell
from bench.protocol import Data, Method
from bench.protocol.methods import ConfigError, available, build, default_settings
from bench.runner.checkpoint import CheckpointError
from bench.runner.launching import Launch, failure_noted, without_shared
from bench.runner.progress import SweepProgress
from bench.runner.resolve import Job, resolve
from bench.runner.results import Results
from bench.step.train_step import compile_unsupported, graph_unsupported, precision_unsupported
from bench.workloads import config_sections, open_cell_workload

#: What a configuration, data, records or checkpoints can have wrong; the message is one sentence.
MISTAKES = (CheckpointError, ConfigError, DataError, RecordError)

#: Of a sweep whose jobs run in this process.
_progress: SweepProgress | None = None

#: Records of such a sweep.
_written: set[Path] = set()

#: A sweep whose jobs run in processes of their own, from the moment they are submitted.
_launched: Launch | None = None


def register_resolvers() -> None:
    """Make ``${on_device:device,cpu value,cuda value}`` and ``${gpus:device,measure}`` known to configuration files."""
    from bench.runner.resolve import resolve_device

    OmegaConf.register_new_resolver(
        "on_device",
        lambda device, cpu, cuda: cuda if resolve_device(device, "predict") == "cuda" else cpu,
        replace=True,
    )
    OmegaConf.register_new_resolver(
        "gpus", lambda device, measure: None if device == "cpu" or measure == "predict" else 1, replace=True
    )


def register_settings() -> None:
    """Make the default settings of every method and workload known to configuration files."""
    node = {name: default_settings(name) for name in available()}
    ConfigStore.instance().store(group="settings", name="all_methods", node=node)
    ConfigStore.instance().store(name="workloads", node=config_sections())


def plain(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain containers, Hydra's own node left out.

    Raises:
        ConfigError: a setting without a value.
    """
    missing = sorted(name for name in OmegaConf.missing_keys(config) if not name.startswith("hydra."))
    if missing:
        raise ConfigError(f"{missing[0]} has no value; give one, as in {missing[0]}=….")
    container = OmegaConf.to_container(config, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items() if key != "hydra"}


#: Why a cell cannot be measured, where the measure itself may say so.
_MEASURE_UNSUPPORTED: dict[str, Callable[[Cell], str | None]] = {
    "plan": plan_unsupported,
    "products": products_unsupported,
}


def unsupported(cell: Cell, data: Data) -> str | None:
    """Why a cell cannot be measured, or None; asked before anything is built."""
    method = build(cell.method, cell.variant, cell.method_settings)
    return (
        _toggles_unsupported(cell, method)
        or precision_unsupported(cell.precision, cell.device)
        or method.unsupported(cell)
        or (_ratio_unsupported(cell, data, method) if "ratio" in cell.method_settings else None)
        or (_MEASURE_UNSUPPORTED[cell.measure](cell) if cell.measure in _MEASURE_UNSUPPORTED else None)
    )


def _ratio_unsupported(cell: Cell, data: Data, method: Method) -> str | None:
    """Why the method cannot make this model as small as asked, or None; shapes are all that is looked at."""
    workload = open_cell_workload(cell, data)
    with torch.device("meta"):
        model = workload.build()
    return method.ratio_unsupported(model, workload.targets())


def _toggles_unsupported(cell: Cell, method: Method) -> str | None:
    """Why ``cuda_graph`` or ``compile`` cannot be had in a cell, or None."""
    for toggle in ("cuda_graph", "compile"):
        if getattr(cell, toggle) and cell.measure in ("predict", "witness"):
            return f"{toggle}=true is not modelled in predictions, which are of plain steps; use {toggle}=false."
    if cell.cuda_graph:
        if reason := graph_unsupported(method, cell.device):
            return reason
        if cell.training and not cell.training["static"]:
            return "cuda_graph=true needs batches of one shape; use training.static=true or cuda_graph=false."
    return compile_unsupported(cell.device) if cell.compile else None


def run_job(
    job: Job,
    results: Results,
    parallel: int,
    progress: SweepProgress,
    resume: bool = True,
    stop_after_s: float | None = None,
) -> None:
    """Measure the cells of a job that are not done yet and record them.

    Args:
        job: cells of one measure.
        results: where records lie and go.
        parallel: predictions or checks at a time; 0 for one per processor.
        progress: told of what is finished.
        resume: whether training runs go on from their checkpoints.
        stop_after_s: seconds after which a training run is to leave a checkpoint and stop, or None.
    """
    waiting = [cell for cell in job.cells if not results.is_done(cell, job.data_hash)]
    for cell in job.cells:
        if cell not in waiting:
            progress.finish(cell, "done before")
    possible = []
    for cell in waiting:
        if reason := unsupported(cell, job.data):
            no_compiler = cell.compile and reason == compile_unsupported(cell.device)
            columns = {"samples": {"lacks": "compiler"}} if no_compiler else {}
            _record([Outcome(cell, "unsupported", reason, columns)], job, results, progress)
        else:
            possible.append(cell)
    if not possible:
        return
    parallel = parallel or os.cpu_count() or 1
    measure = possible[0].measure
    if measure == "train":
        for cell in possible:
            upkeep = replace(results.upkeep(cell, job.data_hash, resume), stop_after_s=stop_after_s)
            _record([_trained(cell, job, upkeep, progress)], job, results, progress)
        return
    if measure in ONCE:
        limit = possible[0].timing_settings["time_limit_s"]
        for outcome in answered_once(measure_once, possible, job.data, parallel if measure == "check" else 1, limit):
            _record([outcome], job, results, progress)
        return
    outcomes = []
    for outcome in predict_cells(possible, job.data, parallel):
        if outcome.cell.measure == "predict":
            _record([outcome], job, results, progress)
        outcomes.append(outcome)
    if measure == "predict":
        return
    if measure == "witness":
        for outcome in outcomes:
            _record([witnessed(outcome, job.data)], job, results, progress)
        return
    outcomes.sort(key=lambda outcome: possible.index(outcome.cell))
    time_cells(outcomes, job.data, lambda cell: results.rare_times(cell) is None, progress.advance)
    _record(outcomes, job, results, progress)


def _trained(cell: Cell, job: Job, upkeep: Upkeep, progress: SweepProgress) -> Outcome:
    """Train one cell in a process of its own."""
    outcome = Outcome(cell)
    process = CellProcess(train_cell, cell, job.data, cell.training["time_limit_s"], upkeep)
    done = 0.0
    try:
        while "columns" not in (answer := process.answer()):
            share = answer["step"] / answer["steps"]
            progress.advance(cell, share - done)
            done = share
            if answer["text"]:
                progress.note(cell, answer["text"])
        outcome.columns.update(answer["columns"])
        outcome.message = outcome.columns.pop("message", "")
    except CellFailure as failure:
        outcome.fail(failure)
    finally:
        process.stop()
    return outcome


def _record(outcomes: Sequence[Outcome], job: Job, results: Results, progress: SweepProgress) -> None:
    for outcome, record in zip(outcomes, results.record(outcomes, job.data_hash, job.data), strict=True):
        time_text = f"{record.step_time_median_ms:,.0f} ms per step" if record.step_time_median_ms else ""
        size = record.peak_memory_predicted_mib
        size_text = f"{size:,.0f} MiB predicted for {record.predicted_for}" if size else ""
        if record.measure == "witness":
            size_text += f", {record.peak_memory_allocated_mib or 0:,.0f} MiB measured"
        reached = record.leading
        metric = (
            f"{record.metric['text']} {reached:.4g} {record.metric['unit']}".rstrip() if reached is not None else ""
        )
        accuracy_text = f"{metric}, {record.stored_mib:.2f} MiB stored" if metric else ""
        text = ", ".join(filter(None, (accuracy_text, time_text, size_text)))
        if record.status != "ok":
            text = record.message
        progress.finish(outcome.cell, f"{record.status}: {text}")


class SweepCallback(Callback):
    """Expands a sweep when it starts, checks every cell before the first one runs, and owns the progress bar."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        self._start(lambda: [config])

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        self._start(lambda: expand(config), Launch.of(config))

    def on_run_end(self, config: DictConfig, **_: Any) -> None:  # noqa: ARG002 - Hydra passes it
        self._end()

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:  # noqa: ARG002 - Hydra passes it
        self._end()

    def _start(self, expanded: Callable[[], Sequence[DictConfig]], launch: Launch | None = None) -> None:
        global _progress, _launched
        _progress = _launched = None
        _written.clear()
        try:
            configs = expanded()
            jobs = [_checked(config, elsewhere=launch is not None and launch.elsewhere) for config in configs]
            if launch is not None and not launch.here:
                launch.announce(jobs, [Path(config.results) for config in configs])
                _launched = launch
                return
        except MISTAKES as error:
            stop_with(str(error))
        except (HydraException, OmegaConfBaseException) as error:
            stop_with(reworded(error))
        except Exception:  # Hydra would make a warning of it and go on
            traceback.print_exc()
            raise SystemExit(1) from None
        _progress = SweepProgress([cell for job in jobs for cell in job.cells])

    def _end(self) -> None:
        if _progress is not None:
            _progress.close()
        if _launched is not None:
            _launched.finish()


def expand(config: DictConfig) -> list[DictConfig]:
    """The configurations of all jobs of a sweep, in the order in which they will run."""
    sweeper = Plugins.instance()._instantiate(config.hydra.sweeper)
    axes = [f"{key}={value}" for key, value in config.hydra.sweeper.params.items()]
    given = OmegaConf.to_container(config.hydra.overrides, resolve=False)  # an interpolation is each job's own
    assert isinstance(given, dict)
    overrides = OverridesParser.create().parse_overrides([*axes, *given["task"]])
    [batch] = type(sweeper).split_arguments(overrides, max_batch_size=None)  # type: ignore[attr-defined]
    return [hydra.compose("config", [*job, *given["hydra"]], return_hydra_config=False) for job in batch]


def _checked(config: DictConfig, elsewhere: bool = False) -> Job:
    """A job whose cells are right, and whose records and checkpoints can be read and written."""
    job = resolve(plain(config), elsewhere)
    results = Results(Path(config.results), config.reuse)
    results.check(job.cells[0])
    for cell in job.cells if config.resume else ():
        results.check_checkpoint(cell, job.data_hash)
    return job


def job(config: DictConfig) -> None:
    """One Hydra job: in the process that launched the sweep, or in one of its own, which begins here."""
    if _progress is not None:
        _run(config, resolve(plain(config)), _progress)
        return
    with failure_noted():
        register_resolvers()
        mine = without_shared(_checked(config))
        _run(config, mine, SweepProgress(mine.cells))


def _run(config: DictConfig, job: Job, progress: SweepProgress) -> None:
    run_job(job, Results(Path(config.results), config.reuse, _written), config.parallel, progress, config.resume)


def interrupted(error: BaseException) -> None:
    """End the program over what kept it from waiting for its jobs, if it has submitted any."""
    if _launched is not None:
        _launched.finish(error)
