"""A cell's own process from the inside: how it begins, how it answers once, and how its failures are reported.

Messages are plain tuples of a word and its content. Whatever goes wrong is answered as
``("failed", (status, message))``, a user's mistake, such as in a plug-in, as ``("mistake", message)``.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch

import bench.measures
import bench.workloads
from bench.core.cell import Cell
from bench.errors import ConfigError
from bench.protocol import Data, Workload
from bench.step.timing import steady_allocator

#: What makes a record's columns from a cell and its workload.
Columns = Callable[[Cell, Workload], dict[str, Any]]

#: Packages with plug-ins, which a process of a cell takes over from the one that starts it.
_PLUGINS = (bench.workloads, bench.measures)


def packed(serve: Callable[..., None], *arguments: Any) -> bytes:
    """What is to run in a cell's process, with the plug-ins that were registered by hand in this one.

    Raises:
        ConfigError: a function or plug-in that another process cannot find by its name and that of its module.
    """
    plugins = [package.registered() for package in _PLUGINS]
    for registered in plugins:
        for name, plugin in registered.items():
            _pickled(plugin, name)
    return _pickled((_pickled(plugins, "plug-ins"), _pickled((serve, arguments), serve.__name__)), "work")


def _pickled(value: object, name: str) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise ConfigError(
            f"{name!r} cannot be handed to the processes of cells ({error}); define it at the top level of a module."
        ) from None


def enter(connection: Connection, content: bytes) -> None:
    """Run what :func:`packed` has made, ``serve(connection, *arguments)``."""
    with failures_reported(connection):
        plugins, work = pickle.loads(content)
        try:
            for package, registered in zip(_PLUGINS, pickle.loads(plugins), strict=True):
                package.adopt(registered)
            serve, arguments = pickle.loads(work)
        except Exception as error:
            raise ConfigError(f"a plug-in cannot be imported by the process of its cell ({error}).") from None
        serve(connection, *arguments)


@contextlib.contextmanager
def failures_reported(connection: Connection) -> Iterator[None]:
    """Answer any exception with a status and one line."""
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the coordinator is gone, so is the reason to go on
    except ConfigError as error:
        connection.send(("mistake", str(error)))
    except Exception as error:
        connection.send(("failed", (status_of(error), first_line(error))))


def status_of(error: BaseException) -> str:
    """The record status that an exception amounts to: its own ``status``, ``oom`` or ``error``."""
    if isinstance(own := getattr(error, "status", None), str):
        return own
    no_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if no_memory or "DefaultCPUAllocator" in str(error) or "can't allocate memory" in str(error):
        return "oom"
    return "error"


def first_line(error: BaseException) -> str:
    """Type and first line of an exception, at most 300 characters."""
    text = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {text}"[:300]


def answer_once(connection: Connection, cell: Cell, data: Data, columns: Columns, one_thread: bool) -> None:
    """Answer ``("done", columns(cell, workload))``, by one thread or as many as PyTorch takes."""
    steady_allocator()
    if one_thread:
        torch.set_num_threads(1)
    connection.send(("done", columns(cell, bench.workloads.open_cell_workload(cell, data))))
