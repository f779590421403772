"""Heavy imports of a cell's process, paid once by the server that the processes are forked from.

No import may set up a CUDA device here: a process that is forked afterwards could not use it. bitsandbytes, which
galore-torch brings along, would, so the machine has none while the imports run.
"""

import contextlib
import importlib
from collections.abc import Iterator

import torch

import bench.measures
import bench.processes.process
import bench.workloads
from baselines._quiet import silence
from bench.errors import ConfigError


@contextlib.contextmanager
def no_device() -> Iterator[None]:
    """Hide CUDA devices from the block, and make sure that none was set up in it. Raises RuntimeError: one was."""
    asked = torch.cuda.is_available, torch.cuda.device_count
    torch.cuda.is_available, torch.cuda.device_count = lambda: False, lambda: 0
    try:
        yield
    finally:
        torch.cuda.is_available, torch.cuda.device_count = asked
    if torch.cuda.is_initialized():
        raise RuntimeError("an import has set up the CUDA device; processes forked from here cannot use it.")


silence()
with no_device():
    for library in ("galore_torch", "peft"):
        with contextlib.suppress(ImportError):  # the arm that needs it is recorded with the reason
            importlib.import_module(library)
    for package in (bench.workloads, bench.measures):
        with contextlib.suppress(ConfigError):  # a wrong plug-in is reported where the sweep is checked
            package.available()
