"""The campaign itself: stage after stage, unit after unit, as long as they fit; the archive after each stage."""

import contextlib
import datetime
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from bench.campaign.archive import Checkpoint, write_checkpoints, write_records
from bench.campaign.clock import Clock
from bench.campaign.stages import Stage, Unit, configuration, jobs_of, units_of
from bench.core.cell import Cell
from bench.core.files import write_whole
from bench.core.provenance import provenance
from bench.core.record import Record, read_all
from bench.estimate.memory import TOLERANCE
from bench.processes.process import WorkProcess, first_line, start_server
from bench.runner.progress import SweepProgress
from bench.runner.resolve import Job
from bench.runner.results import Results
from bench.runner.sweep import MISTAKES, run_job
from bench.runner.wording import reworded

#: A training run stops so many seconds before the end of the budget, to evaluate and to write a checkpoint.
TRAINING_STOPS_S = 15.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)  # what ends a campaign early
EXPERIMENTS = ("fig1", "prediction")  # experiments in which every arm takes steps at every batch size
_LIMIT = TOLERANCE["cuda"]  # a prediction this much off, as a share of what was allocated, is pointed out


class Stopped(BaseException):
    """A signal, or the end of the budget; no part of a stage is to catch it as its own failure."""

    def __init__(self, number: int) -> None:
        super().__init__("the end of the budget" if number == signal.SIGALRM else signal.Signals(number).name)
        self.number = number


@dataclass
class Outcome:
    """What became of a stage."""

    stage: Stage
    units: list[Unit] | None = None  # None until its turn comes
    done_before: int = 0  # cells that were done when its turn came
    ran: int = 0  # cells that were measured since, whatever came of it
    left: int = 0  # cells that another call would run
    skipped: dict[str, float] = field(default_factory=dict)  # units that did not fit, with their estimates in seconds
    failures: list[str] = field(default_factory=list)  # a sentence each

    def report(self) -> dict[str, Any]:
        """As ``campaign.json`` has it."""
        cells = None if self.units is None else sum(len(unit.cells) for unit in self.units)
        counts = {name: getattr(self, name) for name in ("done_before", "ran", "left", "skipped", "failures")}
        return {**asdict(self.stage), "cells": cells, **counts}


class Campaign:
    """One call of the campaign: stages in their order, on a ``device`` (auto, cpu or cuda), within the clock's budget.

    Records and checkpoints lie in the folder ``results``; archives and the report go to ``output``.
    """

    def __init__(self, stages: Sequence[Stage], device: str, results: Path, output: Path, clock: Clock) -> None:
        self.stages, self.device, self.root, self.output, self.clock = stages, device, results, output, clock
        self.outcomes = [Outcome(stage) for stage in stages]
        self.results = Results(results, reuse="config")
        self.stopped = ""
        self.signal = 0  # that has stopped it, unless that was the end of the budget
        self.left_behind: list[Checkpoint] = []
        self._begun_at = _now()
        self._records = 0
        self._trained: list[Job] = []
        self._finished: set[int] = set()  # units, by their identity

    def run(self) -> None:
        """Run what fits; whatever happens, what is finished lies in the archive afterwards."""
        self.results.tidy()
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            with configuration(), _stopping(self.clock.left()):
                start_server()  # no unit's time
                for number, outcome in enumerate(self.outcomes, 1):
                    _report(f"stage {number}/{len(self.outcomes)} {outcome.stage.name}: {self._time_left()}")
                    self._run_stage(outcome)
                    self.write()
        except Stopped as reason:
            self.stopped = str(reason)
            self.signal = 0 if reason.number == signal.SIGALRM else reason.number
            _report(f"stopped by {reason}")
        self.write()
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def _time_left(self) -> str:
        return f"{max(self.clock.left(), 0.0):,.0f} s left"

    def _run_stage(self, outcome: Outcome) -> None:
        """Run a stage's units; a failure is a sentence, and the next unit's or stage's turn."""
        self._look_at(outcome)
        if not outcome.left:
            return
        units = outcome.units or []
        with contextlib.closing(SweepProgress([cell for unit in units for cell in unit.cells])) as progress:
            for unit, missing in [(unit, missing) for unit in units if (missing := self._missing(unit))]:
                estimate = self.clock.estimate(unit, len(missing))
                if estimate > self.clock.left():
                    outcome.skipped[unit.label] = round(estimate)
                else:
                    _report(f"{outcome.stage.name}: {unit.label}, about {estimate:,.0f} s; {self._time_left()}")
                    self._run_unit(unit, missing, outcome, progress)
            if failed := progress.failed():
                self._fail(outcome, failed)
        if outcome.skipped:
            _report(f"{outcome.stage.name}: no time for {len(outcome.skipped)} part(s) of it; {self._time_left()}")

    def _look_at(self, outcome: Outcome) -> None:
        """Find the units of a stage and count what is done of them; a stage that cannot be composed here has none."""
        try:
            units = units_of(outcome.stage, jobs_of(outcome.stage, self.device))
            outcome.left = sum(len(self._missing(unit)) for unit in units)
        except (HydraException, OmegaConfBaseException) as error:
            self._fail(outcome, reworded(error))
        except Exception as error:
            self._fail(outcome, str(error) if isinstance(error, MISTAKES) else first_line(error))
        else:
            outcome.units = units
            outcome.done_before = sum(len(unit.cells) for unit in units) - outcome.left
            self._trained += [unit.job for unit in units if unit.measure.resumes]

    def _missing(self, unit: Unit) -> list[Cell]:
        return [cell for cell in unit.cells if not self.results.is_done(cell, unit.job.data_hash)]

    def _run_unit(self, unit: Unit, missing: Sequence[Cell], outcome: Outcome, progress: SweepProgress) -> None:
        ended = self.clock.time(unit, len(missing))
        stop_after = max(self.clock.left() - TRAINING_STOPS_S, 0.0)
        try:
            run_job(unit.job, self.results, 0, progress, stop_after_s=stop_after)
        except Exception as error:
            self._fail(outcome, f"{unit.label}: {first_line(error)}")
            return
        if not (unit.measure.resumes and self._missing(unit)):  # else it was stopped, and goes on in the next call
            outcome.ran += len(missing)
            self._finished.add(id(unit))
            ended()

    def _fail(self, outcome: Outcome, sentence: str) -> None:
        outcome.failures.append(sentence)
        _report(f"{outcome.stage.name} failed: {sentence}")

    def write(self) -> None:
        """Write archives and report as things stand. What has run to its end and failed is not left to another call."""
        for outcome in self.outcomes:
            waiting = (unit for unit in outcome.units or () if id(unit) not in self._finished)
            outcome.left = sum(len(self._missing(unit)) for unit in waiting)
        self._records = write_records(self.root, self.output, {"runs": [asdict(run) for run in self.clock.runs]})
        self.left_behind = write_checkpoints(self.root, self.output, useless_checkpoints(self._trained, self.results))
        write_whole({self.output / "campaign.json": f"{json.dumps(self.report(), indent=1)}\n".encode()})

    @property
    def recorded(self) -> str:
        """How many cells of the stages that were looked at are recorded, in words."""
        cells = sum(len(unit.cells) for one in self.outcomes for unit in one.units or ())
        return f"{cells - sum(one.left for one in self.outcomes)} of {cells} cells recorded"

    def memory(self) -> list[dict[str, Any]]:
        """Predicted against allocated memory of what has run so far (:func:`memory_rows`)."""
        records = [record for experiment in EXPERIMENTS for record in read_all(self.root, experiment)]
        return memory_rows(records, provenance(on_cpu=self.device == "cpu").device)

    def report(self) -> dict[str, Any]:
        """What ran, what is left, on what, and how predicted and allocated memory compare."""
        return {
            "begun_at": self._begun_at,
            "written_at": _now(),
            "stopped": self.stopped,
            "records": self._records,
            **asdict(provenance(on_cpu=self.device == "cpu")),
            "stages": [one.report() for one in self.outcomes],
            "memory": self.memory(),
            "checkpoints_left_behind": [
                {"folder": str(one.folder), "mib": round(one.bytes / 2**20, 1)} for one in self.left_behind
            ],
        }


def memory_rows(records: Sequence[Record], device: str) -> list[dict[str, Any]]:
    """A row per arm of this device whose allocated peak is known, with the error of the prediction as ``off``.

    Sizes are in MiB, the predicted one with cuBLAS's workspaces.
    """
    rows = []
    for record in records:
        predicted, allocated = record.peak_memory_predicted_mib, record.peak_memory_allocated_mib
        if record.device != device or record.status != "ok" or predicted is None or allocated is None:
            continue
        predicted += record.workspaces_mib or 0.0
        off = predicted / allocated - 1
        row = {name: getattr(record, name) for name in ("experiment", "arm", "batch_size", "precision")}
        sizes = {"predicted_mib": round(predicted, 1), "allocated_mib": round(allocated, 1)}
        rows.append({**row, **sizes, "off": round(off, 4), "within": abs(off) <= _LIMIT})
    return sorted(rows, key=lambda row: (row["experiment"], row["precision"], row["batch_size"], row["arm"]))


def described(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line on how many predictions hold, and one for each that does not."""
    if not rows:
        return []
    wrong = [row for row in rows if not row["within"]]
    wording = (
        "  {experiment}, {arm}, batch {batch_size}, {precision}: "
        "{predicted_mib:,.1f} MiB predicted, {allocated_mib:,.1f} MiB allocated ({off:+.1%})"
    )
    first = f"predicted memory: {len(rows) - len(wrong)} of {len(rows)} within {_LIMIT:.0%} of the allocated peak"
    return [first, *(wording.format(**row) for row in wrong)]


def useless_checkpoints(jobs: Sequence[Job], results: Results) -> set[Path]:
    """Folders of the checkpoints of these training runs that no missing one would go on from."""
    folders: dict[bool, set[Path]] = {False: set(), True: set()}
    for job in jobs:
        for cell in job.cells:
            upkeep = results.upkeep(cell, job.data_hash, resume=True)
            done = results.is_done(cell, job.data_hash)
            folders[done] |= {folder for folder in (upkeep.folder, upkeep.parent_folder) if folder is not None}
    return folders[True] - folders[False]


@contextlib.contextmanager
def _stopping(seconds: float) -> Iterator[None]:
    """Raise :class:`Stopped` at SIGTERM, SIGINT, and after so many seconds; these signals are ignored afterwards."""

    def stop(number: int, _: FrameType | None) -> None:
        if number != signal.SIGALRM:
            WorkProcess.hurry()
        raise Stopped(number)

    for number in _SIGNALS:
        signal.signal(number, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
