"""Sweeps whose jobs run in processes of their own, here or on a cluster: ``hydra/launcher=submitit_slurm``.

The launching process checks all jobs before any is submitted, waits for them, and prints how they ended. A job is given
its configuration alone: it writes its progress to its log, its records where all others do, and, if it fails, one
sentence into the folder that Hydra has made for it.
"""

import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from hydra.types import HydraContext
from omegaconf import DictConfig

from bench.errors import stop_with
from bench.interrupts import status_of
from bench.processes.process import first_line
from bench.runner.resolve import Job
from bench.runner.results import Results

#: Hydra's own launcher, which stands for jobs in this process, and the one that runs them beside it.
_BASIC, _LOCAL = "basic", "submitit_local"

#: In a job's folder: its cells that are left to an earlier job, what it failed of, and that its machine was busy.
_SHARED, _FAILURE, _BUSY = "shared.json", "failed.txt", "busy.txt"


class JobFailed(RuntimeError):
    """A job with cells that ended in an error."""


@dataclass(frozen=True)
class Launch:
    """Place where the jobs of a sweep run."""

    launcher: str  # its name among Hydra's
    folder: Path  # this sweep's own, with the logs and a folder per job

    @classmethod
    def of(cls, config: DictConfig) -> Self:
        """Return the launch of a sweep's configuration, Hydra's own node included."""
        return cls(config.hydra.runtime.choices["hydra/launcher"], Path(config.hydra.sweep.dir))

    @property
    def here(self) -> bool:
        """Return whether the jobs run in this process, one after another."""
        return self.launcher == _BASIC

    @property
    def elsewhere(self) -> bool:
        """Return whether the jobs run on machines whose devices are unknown here."""
        return self.launcher not in (_BASIC, _LOCAL)

    def announce(self, jobs: Sequence[tuple[Job, Results]]) -> None:
        """Print what is going to run and where to look; leave cells that several jobs have to the first of them."""
        owners: dict[tuple[Path, str], int] = {}
        for number, (job, results) in enumerate(jobs):
            cells = [cell.cell_id(job.data_hash) for cell in job.cells]
            shared = [cell for cell in cells if owners.setdefault((results.root.absolute(), cell), number) != number]
            if shared:
                folder = self.folder / str(number)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / _SHARED).write_text(json.dumps(shared), encoding="utf-8")
        counts = f"{len(jobs)} job(s), {len(owners)} cell(s)"
        _report(f"{counts} go to {self.launcher}; they go on even if this process ends")
        _report(
            f"logs: {self.folder / 'logs'}; records: {', '.join(sorted({str(results.root) for _, results in jobs}))}"
        )

    def run(self, config: DictConfig, overrides: Sequence[Sequence[str]], job: Callable[[DictConfig], None]) -> None:
        """Submit a job for each list of overrides, and wait until all have ended.

        ``job`` is called with its configuration, in its own process. What keeps this process from submitting
        all jobs, or from waiting for them, ends the program with one sentence.
        """
        context = HydraContext(GlobalHydra.instance().config_loader(), cast(Any, Callback()))
        try:
            launcher = Plugins.instance().instantiate_launcher(context, job, config)
            for ended in launcher.launch(overrides, initial_job_idx=0):
                _ = ended.return_value  # raises what the job has raised
        except (Exception, KeyboardInterrupt) as error:
            self.finish(error)

    def finish(self, error: BaseException | None = None) -> None:
        """Print how the jobs ended; end the program with status 1 unless all went well.

        ``error`` is what kept this process from submitting all jobs, or from waiting for their end.
        """
        sentences = self._notes(_FAILURE)
        logs, parts = f"logs: {self.folder / 'logs'}", []
        if error is not None:
            reason = " ".join(str(error).splitlines()[:2]) or "an interrupt"
            parts.append(f"the launch was ended by {reason}; jobs already submitted go on")
        if sentences:
            parts.append(f"{len(sentences)} job(s) failed, one of them with: {sentences[0].removesuffix('.')}")
        if parts:
            rest = "all other records are kept, and the same command runs what is missing"
            status = status_of(error) if error is not None else 1
            stop_with(f"{'; '.join([*parts, rest, logs])}.", status)
        _report(f"all jobs have ended; {logs}")
        if busy := self._notes(_BUSY):
            _report(f"{len(busy)} job(s) ran on a busy machine, one of them with: {busy[0]}")

    def _notes(self, name: str) -> list[str]:
        return [path.read_text(encoding="utf-8").strip() for path in sorted(self.folder.glob(f"*/{name}"))]


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _own_folder() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)


def without_shared(job: Job) -> Job:
    """Return the job without the cells left to an earlier one; in a job's own process."""
    path = _own_folder() / _SHARED
    shared = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return replace(job, cells=tuple(cell for cell in job.cells if cell.cell_id(job.data_hash) not in shared))


def note_busy(sentence: str) -> None:
    """Print that the machine was busy, and leave a note for the launching process; in a job's own process."""
    _report(sentence)
    (_own_folder() / _BUSY).write_text(f"{sentence}\n", encoding="utf-8")


@contextlib.contextmanager
def failure_noted() -> Iterator[None]:
    """Leave a failure as a sentence for the launching process, and its traceback in the log; in a job's own process."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        (_own_folder() / _FAILURE).write_text(f"{first_line(error)}\n", encoding="utf-8")
