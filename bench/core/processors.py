"""The number of processors that this process may use, for the number of processes that run side by side."""

import os
from collections.abc import Mapping

from bench.errors import ConfigError

#: Variables that set the number of threads of PyTorch and of the libraries that it multiplies with.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

#: Slurm's processors of this task, and those of the job on this node.
_SLURM = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")


def usable_processors(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processors that this process may use, at least 1.

    The least of joblib's count (affinity, and the quota of a container) and of Slurm's variables, which need not bind a
    process.

    >>> usable_processors({"SLURM_CPUS_PER_TASK": "1"})
    1
    """
    from joblib import cpu_count  # takes long to import

    slurm = [int(environment[name]) for name in _SLURM if environment.get(name, "").isdecimal()]
    return max(1, min([cpu_count(), *slurm]))


def check_threads(environment: Mapping[str, str] = os.environ) -> None:
    """Make sure that the environment asks for no more threads than this machine has processors.

    To be called before torch is imported, which starts the threads. Raises ConfigError: it asks for more, or for
    something that is no number.

    >>> check_threads({"OMP_NUM_THREADS": "1"})
    """
    most = os.cpu_count() or 1
    for name in _THREADS:
        for count in filter(None, environment.get(name, "").split(",")):  # of nested levels, one each
            if not count.strip().isdecimal() or not 1 <= int(count) <= most:
                raise ConfigError(
                    f"{name} is {environment[name]!r}; allowed: 1 to the {most} processors of this machine."
                )
