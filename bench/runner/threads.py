"""Choose how many threads trainings on a processor have: small ones are quicker on one."""

import os
import sys
from collections.abc import Iterable

import torch

from bench.core.cell import Cell
from bench.core.processors import THREAD_VARIABLES
from bench.runner.resolve import Job
from bench.workloads import open_cell_workload

#: A dense model with fewer parameters trains on one thread.
SMALL = 2_000_000


def spare_threads(jobs: Iterable[Job]) -> None:
    """Train on one thread where all cells are trainings of small models on a processor, unless a variable says another.

    To be called before the device is named in records, and before the first process of a training begins.
    """
    if torch.get_num_threads() == 1 or any(os.environ.get(name) for name in THREAD_VARIABLES):
        return
    if all(_is_small(job, cell) for job in jobs for cell in job.cells):
        torch.set_num_threads(1)
        os.environ[THREAD_VARIABLES[0]] = "1"  # of the processes to come
        print(f"small models train on one thread; {THREAD_VARIABLES[0]} sets another number.", file=sys.stderr)


def _is_small(job: Job, cell: Cell) -> bool:
    if cell.measure != "train" or cell.device != "cpu":
        return False
    with torch.device("meta"):
        model = open_cell_workload(cell, job.data).build()
    return sum(parameter.numel() for parameter in model.parameters()) < SMALL
