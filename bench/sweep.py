"""The sweep: Hydra's jobs turned into cells, checked as a whole, run, and recorded one by one.

The way of a job: configuration, cells (:mod:`bench.config`), those already done left out, predictions, timing in
interleaved blocks (:mod:`bench.interleave`), records (:mod:`bench.record`).
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.cell import Cell
from bench.checkpoint import CheckpointError, load
from bench.config import Job, resolve
from bench.data.corpus import DataError
from bench.interleave import Outcome, predict_cells, time_cells
from bench.methods import ConfigError, build
from bench.mistakes import reworded, stop_with
from bench.processes import CellFailure, CellProcess
from bench.progress import SweepProgress
from bench.provenance import Provenance, provenance
from bench.record import Record, RecordError, device_folder, read, write
from bench.step import precision_unsupported
from bench.training import Upkeep
from bench.worker import train_cell

#: Failures that are worth trying again; everything else counts as an answer.
_RETRIED = ("error",)

_progress: SweepProgress | None = None

#: Records of this sweep.
_written: set[Path] = set()


def register_resolvers() -> None:
    """Make ``${on_device:device,cpu value,cuda value}`` known to the configuration files."""
    from bench.config import resolve_device

    OmegaConf.register_new_resolver(
        "on_device",
        lambda device, cpu, cuda: cuda if resolve_device(device, "predict") == "cuda" else cpu,
        replace=True,
    )


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


def unsupported(cell: Cell) -> str | None:
    """Why a cell cannot be measured, or None; asked before anything is built."""
    if cell.cuda_graph:
        return "cuda_graph=true is not implemented yet in this version; use cuda_graph=false."
    if cell.compile:
        return "compile=true is not implemented yet in this version; use compile=false."
    return precision_unsupported(cell.precision, cell.device) or build(
        cell.method, cell.variant, cell.method_settings
    ).unsupported(cell)


class Results:
    """The records of one results folder, as far as this machine's device is concerned."""

    def __init__(self, root: Path, reuse: str) -> None:
        self.root = root
        self.reuse = reuse

    def check(self, cell: Cell) -> None:
        """Make sure, before anything runs, that records can be written, and those beside this cell's be read.

        Raises:
            ConfigError: the folder cannot be made or written.
            RecordError: a record of this experiment and device cannot be read, or is of a newer schema.
        """
        folder = self._path(cell, "").parent
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise ConfigError(f"results is '{self.root}', but {there} is no folder that can be written; name another.")
        for path in folder.glob("*.json"):
            read(path)

    def check_checkpoint(self, cell: Cell, data_hash: str) -> None:
        """Make sure that a training run which is not done can go on from its checkpoint, if it has one.

        Raises:
            CheckpointError: the checkpoint is another run's, or damaged.
        """
        if cell.measure == "train" and not self.is_done(cell, data_hash):
            upkeep = self.upkeep(cell, data_hash, resume=True)
            if load(upkeep.folder, upkeep.identity) is None and upkeep.parent_folder is not None:
                load(upkeep.parent_folder, upkeep.parent_identity)

    def _path(self, cell: Cell, data_hash: str) -> Path:
        return self.root / cell.experiment / device_folder(_where(cell).device) / f"{cell.cell_id(data_hash)}.json"

    def is_done(self, cell: Cell, data_hash: str) -> bool:
        """Whether a record answers this cell under the reuse rule.

        Raises:
            RecordError: the cell's file cannot be read, or is of a newer schema.
        """
        path = self._path(cell, data_hash)
        if self.reuse == "never" or not path.exists():
            return False
        record = read(path)
        retried = (*_RETRIED, "timeout") if cell.measure == "train" else _RETRIED  # a run can go on where it was
        return record.status not in retried and (self.reuse == "config" or _is_of_this_code(record))

    def upkeep(self, cell: Cell, data_hash: str, resume: bool) -> Upkeep:
        """Where a training run keeps its checkpoint, and where the run lies whose stages are its first."""
        stages = cell.training["stages"]
        parent = dataclasses.replace(cell, training={**cell.training, "stages": stages[:-1]})
        has_parent = len(stages) > 1 and stages[-1] != {**stages[-1], "target": None, "target_mib": None}
        own, early = cell.cell_id(data_hash), parent.cell_id(data_hash)
        return Upkeep(
            folder=self._checkpoint(cell, own),
            identity=f"{cell.experiment}, {cell.arm}, cell {own}",
            code_id=provenance().code_id,
            parent_folder=self._checkpoint(cell, early) if has_parent else None,
            parent_identity=f"{cell.experiment}, {cell.arm}, cell {early}",
            resume=resume,
        )

    def _checkpoint(self, cell: Cell, cell_id: str) -> Path:
        """Hidden, so that records and checkpoints are never taken for one another."""
        return self.root / ".checkpoints" / cell.experiment / cell_id

    def rare_times(self, cell: Cell) -> Record | None:
        """A record of this experiment, device and code that has the same arm's rare events: they are timed once.

        Under ``reuse=never`` only a record of this sweep will do.
        """
        folder = self._path(cell, "").parent
        for path in sorted(folder.glob("*.json")):
            if self.reuse == "never" and path not in _written:
                continue
            record = read(path)
            if record.rare_time_ms is None or not _is_of_this_code(record):
                continue
            other = Cell.from_json(record.config_json)
            if dataclasses.replace(other, batch_size=cell.batch_size) == cell:
                return record
        return None


def _where(cell: Cell) -> Provenance:
    """Who measures this cell. A prediction stands with the machine's main device, whose figure it belongs to."""
    return provenance(on_cpu=cell.measure != "predict" and cell.device == "cpu")


def _is_of_this_code(record: Record) -> bool:
    here = provenance()
    names = ("code_id", "torch_version", "library_versions")
    return all(getattr(record, name) == getattr(here, name) for name in names)


def run_job(job: Job, results: Results, parallel: int, progress: SweepProgress, resume: bool = True) -> None:
    """Measure the cells of a job that are not done yet and record them."""
    waiting = [cell for cell in job.cells if not results.is_done(cell, job.data_hash)]
    for cell in job.cells:
        if cell not in waiting:
            progress.finish(cell, "done before")
    possible = []
    for cell in waiting:
        if reason := unsupported(cell):
            _record([Outcome(cell, "unsupported", reason)], job, results, progress)
        else:
            possible.append(cell)
    if not possible:
        return
    if possible[0].measure == "train":
        for cell in possible:
            _record([_trained(cell, job, results, progress, resume)], job, results, progress)
        return
    outcomes = []
    for outcome in predict_cells(possible, job.data, parallel or os.cpu_count() or 1):
        if outcome.cell.measure == "predict":
            _record([outcome], job, results, progress)
        outcomes.append(outcome)
    if possible[0].measure == "predict":
        return
    outcomes.sort(key=lambda outcome: possible.index(outcome.cell))
    time_cells(outcomes, job.data, lambda cell: results.rare_times(cell) is None, progress.advance)
    _record(outcomes, job, results, progress)


def _trained(cell: Cell, job: Job, results: Results, progress: SweepProgress, resume: bool) -> Outcome:
    """Train one cell in a process of its own."""
    outcome = Outcome(cell)
    process = CellProcess(
        train_cell, cell, job.data, cell.training["time_limit_s"], results.upkeep(cell, job.data_hash, resume)
    )
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
        process.stop()
    except CellFailure as failure:
        outcome.fail(failure)
    return outcome


def _record(outcomes: Sequence[Outcome], job: Job, results: Results, progress: SweepProgress) -> None:
    records = [_to_record(outcome, job, results) for outcome in outcomes]
    _written.update(write(records, results.root))
    for outcome, record in zip(outcomes, records, strict=True):
        time_text = f"{record.step_time_median_ms:,.0f} ms per step" if record.step_time_median_ms else ""
        size = record.peak_memory_predicted_mib
        size_text = f"{size:,.0f} MiB predicted for {record.predicted_for}" if size else ""
        accuracy = record.validation_accuracy
        accuracy_text = f"{accuracy:.1f} % right, {record.stored_mib:.2f} MiB stored" if accuracy is not None else ""
        text = ", ".join(filter(None, (accuracy_text, time_text, size_text)))
        if record.status != "ok":
            text = record.message
        progress.finish(outcome.cell, f"{record.status}: {text}")


def _to_record(outcome: Outcome, job: Job, results: Results) -> Record:
    """The flat record of an outcome."""
    cell = outcome.cell
    known = dict(outcome.columns)
    periods = known.pop("rare_periods", {})
    known.pop("step_ms", None)
    samples = known.get("samples", {})
    columns = {**known, **_time_columns(samples), **dataclasses.asdict(_where(cell))}
    if periods and outcome.status == "ok":
        columns |= _rare_columns(samples, periods, results.rare_times(cell))
    if cell.measure == "predict" or columns.get("peak_memory_predicted_mib") is not None:
        columns["predicted_for"] = cell.device
    record = Record(
        **columns,
        cell_id=cell.cell_id(job.data_hash),
        recorded_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        data_hash=job.data_hash,
        status=outcome.status,
        message=outcome.message,
        config_json=cell.to_json(),
        **{
            name: getattr(cell, name)
            for name in (
                "experiment",
                "workload",
                "dataset",
                "method",
                "variant",
                "ratio",
                "measure",
                "batch_size",
                "sequence_length",
                "precision",
                "cuda_graph",
                "compile",
                "seed",
            )
        },
    )
    if record.status == "ok" and cell.measure == "run":
        record.epoch_time_s = _epoch_time_s(record, samples)
    return record


def _usable(samples: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Undisturbed blocks, or all of them where every one was disturbed."""
    blocks = samples.get("blocks", [])
    return [block for block in blocks if not block["disturbed"]] or blocks


def _time_columns(samples: Mapping[str, Any]) -> dict[str, Any]:
    """Step time columns from the blocks."""
    times = sorted(ms for block in _usable(samples) for ms in block["ms"])
    if not times:
        return {}
    calibrations = [block["calibration_ms"] for block in samples["blocks"]]
    return {
        "step_time_median_ms": statistics.median(times),
        "step_time_p20_ms": times[round(0.2 * (len(times) - 1))],
        "step_time_p80_ms": times[round(0.8 * (len(times) - 1))],
        "steps_measured": len(times),
        "calibration_drift": max(calibrations) / min(calibrations) - 1,
    }


def _rare_columns(samples: Mapping[str, Any], periods: Mapping[str, int], earlier: Record | None) -> dict[str, Any]:
    """Rare cost and period, from this cell's samples or an earlier record; several events take the shortest period."""
    if "rare" not in samples:
        if earlier is None:
            return {}
        return {"rare_time_ms": earlier.rare_time_ms, "rare_period_steps": earlier.rare_period_steps}
    shortest = min(periods.values())
    cost = sum(statistics.median(times) * shortest / periods[name] for name, times in samples["rare"].items())
    return {"rare_time_ms": cost, "rare_period_steps": shortest}


def _epoch_time_s(record: Record, samples: Mapping[str, Any]) -> float | None:
    """Mean step × steps per epoch, rare cost amortised; the paper's epoch, whatever data was at hand."""
    from bench.workloads.encoder import PAPER_EXAMPLES_PER_EPOCH

    times = [ms for block in _usable(samples) for ms in block["ms"]]
    per_step = statistics.fmean(times)
    if record.rare_time_ms is not None and record.rare_period_steps:
        per_step += record.rare_time_ms / record.rare_period_steps
    return per_step / 1e3 * PAPER_EXAMPLES_PER_EPOCH / record.batch_size


class SweepCallback(Callback):
    """Expands a sweep when it starts, checks every cell before the first one runs, and owns the progress bar."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        self._start(lambda: [config])

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        self._start(lambda: expand(config))

    def on_run_end(self, config: DictConfig, **_: Any) -> None:  # noqa: ARG002 - Hydra passes it
        self._end()

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:  # noqa: ARG002 - Hydra passes it
        self._end()

    def _start(self, expanded: Callable[[], Sequence[DictConfig]]) -> None:
        global _progress
        _written.clear()
        try:
            configs = expanded()
            jobs = [resolve(plain(config)) for config in configs]
            for job, config in zip(jobs, configs, strict=True):
                results = Results(Path(config.results), config.reuse)
                results.check(job.cells[0])
                for cell in job.cells if config.resume else ():
                    results.check_checkpoint(cell, job.data_hash)
        except (CheckpointError, ConfigError, DataError, RecordError) as error:
            stop_with(str(error))
        except (HydraException, OmegaConfBaseException) as error:
            stop_with(reworded(error))
        _progress = SweepProgress([cell for job in jobs for cell in job.cells])

    def _end(self) -> None:
        if _progress is not None:
            _progress.close()


def expand(config: DictConfig) -> list[DictConfig]:
    """The configurations of all jobs of a sweep, in the order in which they will run."""
    sweeper = Plugins.instance()._instantiate(config.hydra.sweeper)
    axes = [f"{key}={value}" for key, value in config.hydra.sweeper.params.items()]
    overrides = OverridesParser.create().parse_overrides([*axes, *config.hydra.overrides.task])
    [batch] = type(sweeper).split_arguments(overrides, max_batch_size=None)  # type: ignore[attr-defined]
    fixed = list(config.hydra.overrides.hydra)
    return [hydra.compose("config", [*job, *fixed], return_hydra_config=False) for job in batch]


def job(config: DictConfig) -> None:
    """One Hydra job."""
    assert _progress is not None
    resolved = resolve(plain(config))
    run_job(resolved, Results(Path(config.results), config.reuse), config.parallel, _progress, config.resume)
