"""Imports that each process of a cell needs, and silence where the command that started it has ended.

No import may set up a CUDA device here: a process that is forked afterwards could not use it.
"""

import contextlib
import importlib
import pickle
import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch

import bench.measures
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


#: Errors of a starting process whose command ends: no data, half of them, no line.
_COMMAND_IS_GONE = (EOFError, pickle.UnpicklingError, BrokenPipeError, ConnectionResetError)


def _quiet_without_command(usual: Callable[..., Any]) -> Callable[..., None]:
    """Make a hook that prints no error of starting a process whose command has ended; those of its work never come."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, _COMMAND_IS_GONE):
            usual(kind, error, trace)

    return hook


sys.excepthook = _quiet_without_command(sys.excepthook)
silence()
with no_device():
    importlib.import_module("torch._dynamo")  # which every process would import that predicts
    for package in (bench.workloads, bench.measures):
        with contextlib.suppress(ConfigError):  # a wrong plug-in is reported where the sweep is checked
            package.available()
