"""The number of processors that this process may use, for the number of processes that run side by side."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from bench.errors import ConfigError

#: Variables that set the number of threads of PyTorch and of the libraries that it multiplies with.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

#: Slurm's processors of this task, and those of the job on this node.
_SLURM = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")


def usable_processors(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> int:
    """Return the number of processors that this process may use, at least 1.

    The least of four limits counts: the process's affinity, the CPU quotas of its control groups (version 2 and 1),
    ``SLURM_CPUS_PER_TASK`` and ``SLURM_CPUS_ON_NODE``. A quota of part of a processor is rounded down, since a process
    for that part would stop all others whenever the quota is used up. Limits that cannot be read do not count.

    Args:
        environment: variables in the place of ``os.environ``.
        root: folder that holds ``proc`` and ``sys``.

    Example:
        >>> usable_processors({"SLURM_CPUS_PER_TASK": "1"})
        1
    """
    slurm = os.environ if environment is None else environment
    limits = [float(_affinity()), *_quotas(root)]
    limits += [float(slurm[name]) for name in _SLURM if slurm.get(name, "").isdecimal()]
    return max(1, int(min(limits)))


def check_threads(environment: Mapping[str, str] | None = None) -> None:
    """Make sure that the environment asks for no more threads than this machine has processors.

    To be called before torch is imported, which starts the threads. Raises ConfigError: it asks for more, or for
    something that is no number.

    >>> check_threads({"OMP_NUM_THREADS": "1"})
    """
    given = os.environ if environment is None else environment
    most = os.cpu_count() or 1
    for name in _THREADS:
        for count in filter(None, given.get(name, "").split(",")):  # of nested levels, one each
            if not count.strip().isdecimal() or not 1 <= int(count) <= most:
                raise ConfigError(f"{name} is {given[name]!r}; allowed: 1 to the {most} processors of this machine.")


def _affinity() -> int:
    """Return the number of processors that the scheduler may run this process on."""
    if count := getattr(os, "process_cpu_count", None):  # from Python 3.13 on
        return count() or 1
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Yield the quota, in processors, of each control group that this process is in, up to the root group.

    A container often sees the host's path in ``/proc/self/cgroup`` and its own group at the mount's root; the walk up
    the path ends there.
    """
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        group = PurePosixPath(path.lstrip("/"))
        above = [group, *group.parents]
        if number == "0" and not controllers:
            yield from _ratios(_text(mounts / each / "cpu.max").split() for each in above)
        elif "cpu" in controllers.split(","):
            for mount in dict.fromkeys((mounts / controllers, mounts / "cpu")):
                files = [[mount / each / f"cpu.cfs_{name}_us" for name in ("quota", "period")] for each in above]
                yield from _ratios(" ".join(map(_text, pair)).split() for pair in files)


def _ratios(pairs: Iterable[list[str]]) -> Iterator[float]:
    """Yield quota over period of each pair of words that has a quota; ``max`` and -1 stand for none."""
    for pair in pairs:
        if len(pair) == 2 and all(word.isdecimal() and int(word) for word in pair):
            yield int(pair[0]) / int(pair[1])


def _text(file: Path) -> str:
    """Return the content of a file; nothing where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
