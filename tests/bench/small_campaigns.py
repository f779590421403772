"""Campaigns of small cells: stages, a clock that a test sets, and a stand-in for measuring."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from small_cells import MODEL, TIMING

from bench.campaign.stages import Stage
from bench.processes.process import Outcome

#: A block of one step, as it stands in a timed record's samples.
BLOCK = {"block": 0, "ms": [1.0], "calibration_ms": 1.0, "disturbed": False}


def small_stage(name: str, pairs: Path, *words: str) -> Stage:
    """A stage of the small encoder."""
    model = [f"model.{key}={value}" for key, value in MODEL.items()]
    timing = [f"timing.{key}={value}" for key, value in TIMING.items()]
    where = [f"data_folder={pairs}", "dataset=auto", "sequence_length=32", "settings.galore.rank=8"]
    return Stage(name, (*words[:1], *model, *timing, *where, *words[1:]), f"made up: {name}")


def timed(name: str, pairs: Path, *words: str) -> Stage:
    """Two arms, timed together at batch 2."""
    return small_stage(name, pairs, "experiment=fig1", "methods=[dense,low_rank]", "batch_size=2", *words)


@dataclass
class FakeClock:
    """Seconds that pass when a test says so."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class FakeMeasuring:
    """Stands for :func:`bench.runner.sweep.run_job`: records every missing cell as it is told, and takes its time.

    Args:
        clock: moved on by ``takes`` for each call.
        takes: seconds per call.
        fails: experiments at which it raises.
    """

    clock: FakeClock = field(default_factory=FakeClock)
    takes: float = 1.0
    fails: tuple[str, ...] = ()
    started: list[tuple[str, int, str]] = field(default_factory=list)

    def __call__(self, job, results, parallel, progress, resume=True, stop_after_s=None):  # noqa: ARG002
        missing = [cell for cell in job.cells if not results.is_done(cell, job.data_hash)]
        first = missing[0]
        self.started.append((first.experiment, first.batch_size, first.precision))
        if first.experiment in self.fails:
            raise RuntimeError("made up: it broke")
        self.clock.seconds += self.takes
        outcomes = [Outcome(cell, columns={"samples": {"blocks": [BLOCK]}}) for cell in missing]
        results.record(outcomes, job.data_hash, job.data)
