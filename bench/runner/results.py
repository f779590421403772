"""The folder of results: cells that are done, places of checkpoints, and the step from an outcome to a record."""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
import functools
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.core.cell import Cell
from bench.core.checkpoint import load, settle
from bench.core.files import check_folder, remove_abandoned, write_whole
from bench.core.provenance import Provenance, provenance
from bench.core.record import Record, RecordError, device_folder, parse, read, write
from bench.core.samples import Machine, best_calibrations_ms, with_best
from bench.core.table import write_table
from bench.core.times import epoch_time_s
from bench.errors import ConfigError
from bench.measures import named
from bench.protocol import Data, Outcome
from bench.runner.resolve import Job
from bench.step.allocator import free_memory_mib
from bench.step.unsupported import compile_unsupported
from bench.training.run import Upkeep
from bench.workloads import open_cell_workload, recorded_words


class Results:
    """Records of one results folder that concern this machine's device.

    A folder of an experiment and device is read once, where it is first needed; records written here join those read.
    A record that another process writes later is not seen; :meth:`claim` keeps others from the cells of this one.

    ``reuse`` selects the records that count as done: ``exact``, ``config`` (older code too) or ``never``.
    """

    def __init__(self, root: Path, reuse: str) -> None:
        self.root, self.reuse = root, reuse
        self._records: dict[Path, dict[str, Record]] = {}  # by folder, then by the id of the cell
        self._written: set[str] = set()  # cells recorded here
        self._best_ms: dict[str, dict[Machine, float]] = {}  # calibration products of all records, by device

    def check(self, job: Job) -> None:
        """Check, before anything runs, that a job can write its records and go on from its checkpoints.

        What kills have left of records, tables and checkpoints is removed. Raises ConfigError: the folder cannot be
        made or written. RecordError: a record of this experiment and device cannot be read, or is of a newer schema.
        CheckpointError: the checkpoint of a run that is not done belongs to another run, or is damaged.
        """
        remove_abandoned(self.root)
        for folder in self._checkpoints.glob("*"):
            settle(folder)
        check_folder("results", self.root, str(self._folder(job.cells[0]).relative_to(self.root)))
        waiting = self.waiting(job)
        for cell in waiting if job.resume and job.measure.resumes else ():
            upkeep = self.upkeep(cell, job.data_hash, resume=True)
            if load(upkeep.folder, upkeep.identity) is None and upkeep.parent_folder is not None:
                load(upkeep.parent_folder, upkeep.parent_identity)

    def _folder(self, cell: Cell) -> Path:
        """Return the folder of the records of a cell's experiment and device."""
        return self.root / cell.experiment / device_folder(_where(cell).device)

    def _beside(self, cell: Cell) -> dict[str, Record]:
        """Return the records of a cell's experiment and device by cell id; raises RecordError: one cannot be read."""
        folder = self._folder(cell)
        if folder not in self._records:
            self._records[folder] = {path.stem: read(path) for path in sorted(folder.glob("*.json"))}
        return self._records[folder]

    def answer(self, cell: Cell, data_hash: str) -> Record | None:
        """Return the record that answers this cell under the reuse rule; None where there is none.

        A cell recorded as lacking a compiler or memory is measured again once the machine has it. Raises RecordError: a
        record of this experiment and device cannot be read, or is of a newer schema.
        """
        record = self._beside(cell).get(cell.cell_id(data_hash))
        if record is None or self.reuse == "never":
            return None
        retried = ("error", "timeout") if named(cell.measure).resumes else ("error",)  # a training goes on where it was
        if record.status in retried or _has_what_it_lacked(record, cell):
            return None
        return record if self.reuse == "config" or _is_of_this_code(record) else None

    def waiting(self, job: Job) -> list[Cell]:
        """Return the cells of a job without an answer; raises RecordError as :meth:`answer`."""
        return [cell for cell in job.cells if self.answer(cell, job.data_hash) is None]

    def claim(self, job: Job) -> None:
        """Keep other processes from measuring the waiting cells of a job as long as this process lives.

        A cell that another process has recorded since this folder was read no longer waits.

        A claim is a locked byte of a hidden file, one for each cell, so that none is left behind by a kill. Where the
        file system has no locks there are no claims. Raises ConfigError: another process has claimed one of them.
        """
        for cell in self.waiting(job):
            handle = _claims_of(self.root.absolute() / ".claims" / device_folder(_where(cell).device))
            cell_id = cell.cell_id(job.data_hash)
            place = int(cell_id, 16) >> 2  # below 2 ** 62, the most that a file's offset may be
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    return
                raise ConfigError(
                    f"results is '{self.root}', where another process is measuring {cell.arm} of {cell.experiment}, "
                    f"batch {cell.batch_size}; wait until it has ended, or name another folder."
                ) from None
            if (path := self._folder(cell) / f"{cell_id}.json").exists():
                self._beside(cell)[cell_id] = read(path)

    def upkeep(self, cell: Cell, data_hash: str, resume: bool) -> Upkeep:
        """Return the folder of a training run's checkpoint, and of the run whose stages are its first."""
        stages = cell.training["stages"]
        parent = dataclasses.replace(cell, training={**cell.training, "stages": stages[:-1]})
        has_parent = len(stages) > 1 and stages[-1] != {**stages[-1], "target": None, "target_mib": None}
        own, early = cell.cell_id(data_hash), parent.cell_id(data_hash)
        return Upkeep(
            folder=self._checkpoints / cell.experiment / own,
            identity=f"{cell.experiment}, {cell.arm}, cell {own}",
            code_id=provenance().code_id,
            git_commit=provenance().git_commit,
            parent_folder=self._checkpoints / cell.experiment / early if has_parent else None,
            parent_identity=f"{cell.experiment}, {cell.arm}, cell {early}",
            resume=resume,
        )

    @property
    def _checkpoints(self) -> Path:
        """Hidden, so that records and checkpoints are never taken for one another."""
        return self.root / ".checkpoints"

    def rare_times(self, cell: Cell) -> Record | None:
        """Return a record of this experiment, device and code with the same arm's rare events, at any batch size.

        Under ``reuse=never`` only a record of this sweep will do.
        """
        for cell_id, record in self._beside(cell).items():
            if record.rare_time_ms is None or not _is_of_this_code(record):
                continue
            if self.reuse == "never" and cell_id not in self._written:
                continue
            if dataclasses.replace(Cell.from_json(record.config_json), batch_size=cell.batch_size) == cell:
                return record
        return None

    def record(self, outcomes: Sequence[Outcome], data_hash: str, data: Data) -> list[Record]:
        """Write the outcomes, each whole or not at all, then the experiment's table; return what was written."""
        records = [self._record_of(outcome, data_hash, data) for outcome in outcomes]
        timed = [record for record in records if record.samples.get("blocks")]
        for record in timed:
            record.samples["blocks"] = with_best(record, self._best_with(record.device, timed))
        write(records, self.root)
        for outcome, record in zip(outcomes, records, strict=True):
            self._beside(outcome.cell)[record.cell_id] = record
            self._written.add(record.cell_id)
        for cell in {outcome.cell.to_json(): outcome.cell for outcome in outcomes}.values():
            files = getattr(open_cell_workload(cell, data), "files", {})
            paths = {self.root / cell.experiment / name: content for name, content in files.items()}
            write_whole({path: content for path, content in paths.items() if not path.exists()})
        for experiment in {record.experiment for record in records}:
            write_table(self.root, experiment)
        return records

    def _best_with(self, device: str, records: Sequence[Record]) -> dict[Machine, float]:
        """Return how fast each machine is known to be by these records and all of a device in this folder."""
        if device not in self._best_ms:
            self._best_ms[device] = best_calibrations_ms(_timed_in(self.root.glob(f"*/{device_folder(device)}/*.json")))
        best = self._best_ms[device]
        for machine, ms in best_calibrations_ms(records).items():
            best[machine] = min(ms, best.get(machine, ms))
        return best

    def _record_of(self, outcome: Outcome, data_hash: str, data: Data) -> Record:
        """Return the flat record of an outcome."""
        cell = outcome.cell
        known = dict(outcome.columns)
        periods = known.pop("rare_periods", {})
        known.pop("step_ms", None)
        samples = known.get("samples", {})
        columns = {
            **known,
            **_time_columns(samples.get("blocks", [])),
            **_energy_columns(samples),
            **dataclasses.asdict(_where(cell)),
        }
        if periods and outcome.status == "ok":
            columns |= _rare_columns(samples, periods, self.rare_times(cell))
        if not named(cell.measure).on_device or columns.get("peak_memory_predicted_mib") is not None:
            columns["predicted_for"] = cell.device
        record = Record(
            **columns,
            **{name: getattr(cell, name) for name in _OF_CELL},
            cell_id=cell.cell_id(data_hash),
            recorded_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            data_hash=data_hash,
            status=outcome.status,
            message=outcome.message,
            workload_words=recorded_words(open_cell_workload(cell, data)),
            config_json=cell.to_json(),
        )
        if record.status == "ok" and named(cell.measure).paired:
            record.epoch_time_s = epoch_time_s(record)
        return record


#: Columns that a record copies from its cell.
_OF_CELL = (
    *("experiment", "workload", "dataset", "method", "variant", "ratio", "measure", "batch_size", "sequence_length"),
    *("precision", "cuda_graph", "compile", "checkpoint", "seed"),
    *("world_size", "exchange", "backend"),
)


def _timed_in(paths: Iterable[Path]) -> Iterator[Record]:
    """Yield the timed records of these files; a damaged one of another experiment does not end a sweep."""
    for path in paths:
        with contextlib.suppress(OSError, RecordError):
            if path.is_file() and b'"calibration_ms"' in (content := path.read_bytes()):
                yield parse(content, str(path))


@functools.cache  # closing a file would give up all claims of this process in it
def _claims_of(path: Path) -> int:
    """Open the file of claims for the rest of this process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _where(cell: Cell) -> Provenance:
    """Return the provenance of a cell. A prediction gets the machine's main device, whose figure it belongs to."""
    return provenance(on_cpu=named(cell.measure).on_device and cell.device == "cpu")


def _has_what_it_lacked(record: Record, cell: Cell) -> bool:
    """Return whether this machine could now do what it was not equipped for when the record was written."""
    lacked = record.samples.get("lacks")
    if lacked == "compiler":
        return compile_unsupported(cell.device) is None
    need = record.peak_memory_predicted_mib
    return lacked == "memory" and need is not None and need <= free_memory_mib(cell.device)


def _is_of_this_code(record: Record) -> bool:
    here = provenance()
    names = ("code_id", "torch_version", "library_versions")
    return all(getattr(record, name) == getattr(here, name) for name in names)


def _time_columns(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return columns of step times over the undisturbed blocks, or over all if every one was disturbed."""
    usable = [block for block in blocks if not block["disturbed"]] or blocks
    times = sorted(ms for block in usable for ms in block["ms"])
    if not times:
        return {}
    calibrations = [block["calibration_ms"] for block in blocks]
    alone = [ms for block in usable for ms in block.get("compute_ms", ())]
    return {
        **({"compute_time_ms": statistics.median(alone)} if alone else {}),
        "step_time_median_ms": statistics.median(times),
        "step_time_p20_ms": times[round(0.2 * (len(times) - 1))],
        "step_time_p80_ms": times[round(0.8 * (len(times) - 1))],
        "steps_measured": len(times),
        "launches": len({block.get("launch", 0) for block in blocks}),
        "calibration_drift": max(calibrations) / min(calibrations) - 1,
    }


def _energy_columns(samples: Mapping[str, Any]) -> dict[str, float]:
    """Return medians over launches of the energy of a step and of idle power; empty where none was measured."""
    rows = samples.get("energy", [])
    return {name: statistics.median(row[name] for row in rows) for name in ("energy_j", "idle_w") if rows}


def _rare_columns(samples: Mapping[str, Any], periods: Mapping[str, int], earlier: Record | None) -> dict[str, Any]:
    """Return rare cost and period, from this cell's samples or an earlier record, whose samples are then copied.

    Of several events the period is the shortest.
    """
    if "rare" not in samples:
        if earlier is None:
            return {}
        rare = {"rare": earlier.samples["rare"]} if "rare" in earlier.samples else {}
        known = {"rare_time_ms": earlier.rare_time_ms, "rare_period_steps": earlier.rare_period_steps}
        return {**known, "samples": {**samples, **rare}}
    shortest = min(periods.values())
    cost = sum(statistics.median(times) * shortest / periods[name] for name, times in samples["rare"].items())
    return {"rare_time_ms": cost, "rare_period_steps": shortest}
