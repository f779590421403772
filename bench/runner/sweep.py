"""A sweep: its jobs are resolved once, checked as a whole, then run and recorded one by one.

A job on its way: words ``key=value``, configuration (:mod:`bench.runner.configuration`), cells
(:mod:`bench.runner.resolve`), the cells without a record (:mod:`bench.runner.results`), their outcomes
(:mod:`bench.measures`), records. Jobs run in this process, or each in its own where the launcher says so
(:mod:`bench.runner.launching`).
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from bench.core.cell import Cell
from bench.core.files import check_own_folder
from bench.core.processors import usable_processors
from bench.core.reading import user_path
from bench.core.table import table_path, write_table
from bench.errors import stop_with
from bench.interrupts import on_interrupt
from bench.measures import Measure, named, outcomes_of
from bench.processes.cluster import is_follower
from bench.processes.process import remove_abandoned_temporaries
from bench.protocol import Data, Outcome, Session
from bench.protocol.methods import build_for
from bench.runner.configuration import (
    composed,
    configuration,
    job_configuration,
    one_sentence,
    plain,
    register_resolvers,
)
from bench.runner.launching import JobFailed, Launch, failure_noted, note_busy, without_shared
from bench.runner.preload import prepare_processes
from bench.runner.progress import SweepProgress
from bench.runner.resolve import Job, resolve
from bench.runner.results import Results
from bench.step.unsupported import compile_unsupported, unsupported
from bench.workloads import open_cell_workload
from comera.protocol import Reason

#: A job with the folder of its records.
Work = tuple[Job, Results]


def run(words: Sequence[str]) -> None:
    """Run the sweep that the words ``key=value`` describe.

    Raises ConfigError, RecordError, CheckpointError: a mistake, before any training. SystemExit: another mistake
    (status 2), or cells or jobs that ended in an error (status 1).
    """
    remove_abandoned_temporaries()
    with one_sentence(), configuration():
        config, overrides = composed(words)
        launch = Launch.of(config)
        work = checked([job_configuration(own) for own in overrides], launch.elsewhere)
        if launch.here:
            progress = run_jobs(work)
            _print_tables(work)
            if busy := progress.busy():
                print(busy, file=sys.stderr)
            if failed := progress.failed():
                stop_with(failed, status=1)
        else:
            launch.announce(work)
            launch.run(config, overrides, run_alone)
            _print_tables(work)
            launch.finish()


def _print_tables(work: Sequence[Work]) -> None:
    for table in sorted({table_path(results.root, job.experiment) for job, results in work}):
        if table.exists():
            print(f"table: {table}", file=sys.stderr)


def run_alone(config: DictConfig) -> None:
    """Run a job in its own process, which begins here."""
    if is_follower():
        return
    with failure_noted():
        register_resolvers()
        [(job, results)] = checked([plain(config)])
        progress = run_jobs([(without_shared(job), results)])
        if busy := progress.busy():
            note_busy(busy)
        if failed := progress.failed():
            raise JobFailed(failed)


def checked(configs: Sequence[Mapping[str, Any]], elsewhere: bool = False) -> list[Work]:
    """Resolve jobs and check that their records and checkpoints can be read and written.

    ``elsewhere`` means that they will run on another machine. Raises ConfigError, DataError: see
    :func:`bench.runner.resolve.resolve`. RecordError, CheckpointError: see :meth:`Results.check`.
    """
    jobs = [resolve(config, elsewhere) for config in configs]
    folders: dict[tuple[Path, str], Results] = {}
    work = []
    for config, job in zip(configs, jobs, strict=True):
        root, reuse = user_path("results", config["results"]), config["reuse"]
        check_own_folder("results", root)
        results = folders.setdefault((root, reuse), Results(root, reuse))
        results.check(job)
        work.append((job, results))
    return work


def run_jobs(work: Sequence[Work]) -> SweepProgress:
    """Claim the cells of all jobs, then run the jobs one after another; return their progress.

    Raises ConfigError: another process is measuring one of the cells. OSError: a record cannot be written.
    """
    prepare_processes(cell.method for job, _ in work for cell in job.cells)
    for job, results in work:
        results.claim(job)
        write_table(results.root, job.experiment)  # a kill may have left records that it lacks
    with contextlib.closing(SweepProgress([cell for job, _ in work for cell in job.cells])) as progress:
        on_interrupt(progress.interrupted)
        for job, results in work:
            run_job(job, results, progress)
    return progress


def run_job(job: Job, results: Results, progress: SweepProgress) -> None:
    """Measure the cells of a job that are not done yet and record them."""
    waiting = results.waiting(job)
    for cell in job.cells:
        if cell not in waiting:
            progress.done_before(cell)
    session = Session(
        data=job.data,
        parallel=job.parallel or usable_processors(),
        advance=progress.advance,
        note=progress.note,
        upkeep=lambda cell: results.upkeep(cell, job.data_hash, job.resume),
        needs_rare=lambda cell: results.rare_times(cell) is None,
    )
    for outcomes in _outcomes(job.measure, waiting, session):
        for outcome, record in zip(outcomes, results.record(outcomes, job.data_hash, job.data), strict=True):
            progress.recorded(outcome.cell, record)


def _outcomes(measure: Measure, cells: Sequence[Cell], session: Session) -> Iterator[list[Outcome]]:
    """Yield the outcomes of cells: first of those that cannot be measured, then of the others as they are ready."""
    possible = []
    for cell in cells:
        reason = cell_unsupported(cell, session.data)
        if not reason:
            possible.append(cell)
            continue
        samples: dict[str, Any] = {}
        if cell.compile and reason == compile_unsupported(cell.device):
            samples["lacks"] = "compiler"
        if isinstance(reason, Reason) and reason.reach:
            samples["reach"] = reason.reach
        yield [Outcome(cell, "unsupported", reason, {"samples": samples})]
    if possible:
        yield from outcomes_of(measure, possible, session)


def cell_unsupported(cell: Cell, data: Data) -> str | None:
    """Explain why a cell cannot be measured; None if it can."""
    workload = open_cell_workload(cell, data)
    with torch.device("meta"):
        model = workload.build()
    refusal = named(cell.measure).refusal(cell)
    return refusal or unsupported(cell, build_for(cell), model, workload.targets())
