"""Heavy imports of a cell's process, paid once by the server that the processes are forked from.

No import may set up a CUDA device here: a process that is forked afterwards could not use it. bitsandbytes, which
galore-torch brings along, would, so to the imports the machine has none.
"""

import contextlib
import importlib
from collections.abc import Iterator

import torch

import baselines.galore
import baselines.lora
import bench.processes.worker  # noqa: F401


@contextlib.contextmanager
def no_device() -> Iterator[None]:
    """Let the block find no CUDA device, and make sure that it has not set up one.

    Raises:
        RuntimeError: it has.
    """
    asked = torch.cuda.is_available, torch.cuda.device_count
    torch.cuda.is_available, torch.cuda.device_count = lambda: False, lambda: 0
    try:
        yield
    finally:
        torch.cuda.is_available, torch.cuda.device_count = asked
    if torch.cuda.is_initialized():
        raise RuntimeError("an import has set up the CUDA device; processes forked from here cannot use it.")


with no_device(), baselines.galore.quiet_import():
    for library in ("galore_torch", "peft"):
        with contextlib.suppress(ImportError):  # the arm that needs it will say so
            importlib.import_module(library)
