"""A process per cell, forked from a server that has paid for the heavy imports once; one at a time or side by side.

What a process answers are plain tuples of a word and its content: ``("failed", (status, message))`` for whatever goes
wrong in it, ``("mistake", message)`` for a user's mistake, such as in a plug-in.
"""

import contextlib
import functools
import math
import multiprocessing
import os
import pickle
import tempfile
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import psutil
import torch

from bench.core.cell import Cell
from bench.core.files import partial_folder, remove_abandoned
from bench.core.processors import usable_processors
from bench.core.record import COLUMNS
from bench.errors import ConfigError
from bench.interrupts import on_interrupt, shielded
from bench.protocol import CellFailure, Data, Outcome, Workload
from bench.step.allocator import free_memory_mib
from bench.step.timing import steady_allocator
from bench.workloads import open_cell_workload

_SIGKILL = 9

#: Seconds for a process to end by itself, for one that must end its ranks, and for all of these together after an
#: interrupt.
_POLITE_S, _POLITE_RANKS_S, _POLITE_INTERRUPTED_S = 0.5, 30.0, 1.5

_Work = TypeVar("_Work")

#: Function that makes a record's columns from a cell and its workload.
Columns = Callable[[Cell, Workload], dict[str, Any]]

#: Modules with heavy imports, which :func:`preload` adds to.
_PRELOADED: list[str] = []

_PREDICTING_MIB = 2048  # that a process takes which predicts
TIME_LIMIT_S = 600.0  # seconds that a cell may take where its settings have no limit
_TEMPORARY = "bench-"  # how the folder of a run's temporary files begins


def status_of(error: BaseException) -> str:
    """Return the record status of an exception: its own ``status``, ``oom`` or ``error``."""
    if isinstance(own := getattr(error, "status", None), str):
        return own
    no_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if no_memory or "DefaultCPUAllocator" in str(error) or "can't allocate memory" in str(error):
        return "oom"
    return "error"


def first_line(error: BaseException) -> str:
    """Return type and first line of an exception, at most 300 characters."""
    text = (str(error).strip() or "no message").splitlines()[0]
    return f"{type(error).__name__}: {text}"[:300]


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


def packed(serve: Callable[..., None], *arguments: Any) -> bytes:
    """Pack the function to run in a cell's process. Raises ConfigError: an argument that cannot be handed over."""
    try:
        return pickle.dumps((serve, arguments))
    except Exception as error:
        reason = f"({error}); define it at the top level of a module"
        raise ConfigError(f"{serve.__name__!r} cannot be handed to the processes of cells {reason}.") from None


def _enter(connection: Connection, content: bytes) -> None:
    with failures_reported(connection):
        run_packed(connection, content)


def run_packed(connection: Connection, content: bytes) -> None:
    """Run what :func:`packed` has made, ``serve(connection, *arguments)``. Raises ConfigError, and what it raises."""
    try:
        serve, arguments = pickle.loads(content)
    except Exception as error:
        raise ConfigError(f"a plug-in cannot be imported by the process of its cell ({error}).") from None
    serve(connection, *arguments)


def remove_abandoned_temporaries() -> None:
    """Remove what runs that were killed have left in the system's temporary folder."""
    remove_abandoned(Path(tempfile.gettempdir()), _TEMPORARY, below=False)


def _keep_temporaries_together() -> None:
    """Give sockets and the processes of cells a temporary folder of this run's own, removed at its end."""
    remove_abandoned_temporaries()
    shared = tempfile.gettempdir()
    stack = contextlib.ExitStack()
    tempfile.tempdir = os.environ["TMPDIR"] = str(stack.enter_context(partial_folder(Path(shared), _TEMPORARY)))
    util.get_temp_dir()  # made now, and kept
    tempfile.tempdir = shared
    util.Finalize(None, stack.close, exitpriority=-200)  # after that folder's own


@functools.cache
def _context() -> ForkServerContext:
    _keep_temporaries_together()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler would report its own start and end
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    with shielded():
        forkserver.ensure_running()
    on_interrupt(hurry=WorkProcess.hurry, kill=kill_all)
    return context


def kill_all() -> None:
    """Kill the server and all processes that come from it, whatever they are doing."""
    with contextlib.suppress(psutil.Error, ValueError, TypeError):  # there is none any more
        server = psutil.Process(forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]
        server.suspend()  # it starts no other
        for process in (*server.children(recursive=True), server):
            with contextlib.suppress(psutil.Error):
                process.kill()


def preload(module: str) -> None:
    """Have the server of processes import a module once for all of them; no use after the first has started."""
    _PRELOADED.append(module)


def side_by_side(pieces: int) -> int:
    """Return how many processes predict at a time: as many as there are pieces, usable processors, and memory for."""
    return max(1, min(usable_processors(), pieces, int(free_memory_mib("cpu") // _PREDICTING_MIB)))


def start_server() -> None:
    """Start the server that processes are forked from and wait until its imports are done; else the first cell does."""
    process = _context().Process(target=_nothing, daemon=True)
    process.start()
    process.join()


def _nothing() -> None:
    pass


class WorkProcess:
    """A process that runs what :func:`packed` has made, and the line to it.

    After ``time_limit_s`` seconds for all answers together the work is given up as ``timeout``; None is for no limit.
    """

    _living: ClassVar[weakref.WeakSet["WorkProcess"]] = weakref.WeakSet()
    _end_by = math.inf  # all are ended by this moment of the monotonic clock

    def __init__(self, content: bytes, time_limit_s: float | None = None) -> None:
        WorkProcess._end_by = math.inf
        self.time_limit_s = time_limit_s
        self._left_s = math.inf if time_limit_s is None else time_limit_s
        self._polite_s = _POLITE_S
        self._asked_at = time.monotonic()
        self._connection, theirs = _context().Pipe()
        self._process = _context().Process(target=_enter, args=(theirs, content), daemon=True)
        self._process.start()
        self._living.add(self)
        theirs.close()

    def _waits_s(self) -> float | None:
        """Return the seconds until the time is up; None for ever."""
        return None if self._left_s == math.inf else max(self._asked_at + self._left_s - time.monotonic(), 0.0)

    def answered(self) -> bool:
        """Return whether :meth:`answer` need not wait: for an answer, the process's end, or the end of its time."""
        return self._connection.poll() or self._waits_s() == 0

    def answer(self) -> Any:
        """Wait for the next answer and return its content.

        Raises CellFailure: the work failed, the process ended, or the time limit passed. ConfigError: a mistake that
        showed there alone, such as a workload's metric that is no number.
        """
        in_time = self._connection.poll(self._waits_s())
        now = time.monotonic()
        self._left_s -= now - self._asked_at
        self._asked_at = now  # the wait for a further answer to the same request begins here
        if not in_time:
            self.stop()
            raise CellFailure("timeout", f"not finished after time_limit_s={self.time_limit_s:g}")
        try:
            word, content = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(10)
            code = self._process.exitcode
            self.stop()
            if code == -_SIGKILL:
                raise CellFailure("oom", "the process was killed (signal 9), most likely for want of memory") from None
            raise CellFailure("error", f"the process ended unexpectedly (exit code {code})") from None
        if word == "mistake":
            self.stop()
            raise ConfigError(content)
        if word == "failed":
            self.stop()
            raise CellFailure(*content)
        return content

    def ask(self, word: str, content: Any = None) -> Any:
        """Send a request and wait for its answer; raises as :meth:`answer` does."""
        with contextlib.suppress(BrokenPipeError):  # the answer will say why
            self._connection.send((word, content))
        self._asked_at = time.monotonic()
        return self.answer()

    def stop(self) -> None:
        """End the process, politely first."""
        with contextlib.suppress(OSError):
            self._connection.send(("finish", None))
        self._process.join(min(self._polite_s, max(WorkProcess._end_by - time.monotonic(), 0.0)))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()
        self._living.discard(self)

    @classmethod
    def hurry(cls) -> None:
        """End all processes at once, politely only those that have ranks to end; for an interrupt."""
        WorkProcess._end_by = min(WorkProcess._end_by, time.monotonic() + _POLITE_INTERRUPTED_S)
        for process in list(cls._living):
            with contextlib.suppress(OSError, AttributeError, ValueError):  # it may just be starting or ending
                if process._polite_s > _POLITE_S and time.monotonic() < WorkProcess._end_by:
                    process._connection.send(("finish", None))
                else:
                    process._process.kill()

    @staticmethod
    def wait_for_any(processes: Collection["WorkProcess"]) -> None:
        """Wait until one of them has answered or ended, or its time is up."""
        limits = [limit for process in processes if (limit := process._waits_s()) is not None]
        wait([process._connection for process in processes], min(limits, default=None))


class CellProcess(WorkProcess):
    """A cell's own process, which runs ``serve(connection, cell, data, *more)``.

    ``serve`` can be imported. Raises ConfigError: a plug-in that cannot be handed to another process.
    """

    def __init__(self, serve: Callable[..., None], cell: Cell, data: Data, time_limit_s: float, *more: Any) -> None:
        super().__init__(packed(serve, cell, data, *more), time_limit_s)
        self._polite_s = _POLITE_S if cell.world_size == 1 else _POLITE_RANKS_S


def _side_by_side(
    start: Callable[[_Work], WorkProcess], work: Iterable[_Work], parallel: int
) -> Iterator[tuple[_Work, WorkProcess]]:
    """Run pieces of work with their processes, ``parallel`` at a time; yield them once they have answered."""
    waiting, running = list(work), list[tuple[_Work, WorkProcess]]()
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                running.append((waiting[0], start(waiting.pop(0))))
            WorkProcess.wait_for_any([process for _, process in running])
            for one in [one for one in running if one[1].answered()]:
                running.remove(one)
                yield one
    finally:
        for _, process in running:
            process.stop()


def _answer(connection: Connection, cell: Cell, data: Data, columns: Columns, one_thread: bool) -> None:
    """Answer once, with the result of ``columns``; called in a cell's process."""
    steady_allocator()
    if one_thread:
        torch.set_num_threads(1)
    connection.send(("done", columns(cell, open_cell_workload(cell, data))))


def answers(
    columns: Columns,
    cells: Sequence[Cell],
    data: Data,
    parallel: int | None = None,
    time_limit_s: float | None = None,
) -> Iterator[Outcome]:
    """Yield outcomes of cells that answer once, as they are ready, each with its columns from its own process.

    Of ``parallel`` processes at a time each has one thread; None is for one after another, of as many as PyTorch takes.
    ``time_limit_s`` is that of a cell's timing settings unless it is given.
    """

    def start(cell: Cell) -> WorkProcess:
        limit = time_limit_s or cell.timing_settings.get("time_limit_s", TIME_LIMIT_S)
        return CellProcess(_answer, cell, data, limit, columns, parallel is not None)

    for cell, process in _side_by_side(start, cells, parallel or 1):
        yield _answered(cell, process)


def each(function: Callable[..., Any], jobs: Mapping[str, tuple[Any, ...]], parallel: int) -> Iterator[tuple[str, Any]]:
    """Apply a function to the arguments of each job and yield the results by the job's name, as they are ready.

    Every job has a process of its own with one thread, ``parallel`` of them at a time. What failed is a CellFailure in
    place of a result. Raises ConfigError: a mistake that showed there, or a function that cannot be handed over.
    """

    def start(name: str) -> WorkProcess:
        return WorkProcess(packed(_one_answer, function, *jobs[name]))

    for name, process in _side_by_side(start, jobs, parallel):
        try:
            found = process.answer()
            process.stop()
        except CellFailure as failure:
            found = failure
        yield name, found


def _one_answer(connection: Connection, function: Callable[..., Any], *arguments: Any) -> None:
    torch.set_num_threads(1)
    connection.send(("done", function(*arguments)))


def _answered(cell: Cell, process: WorkProcess) -> Outcome:
    """Return the outcome of a cell whose process has answered."""
    outcome = Outcome(cell)
    try:
        found = process.answer()
        process.stop()
        failure = found.pop("failure", "")
        if unknown := [name for name in found if name not in (*COLUMNS, "samples")]:
            found, failure = {}, f"records have no column {unknown[0]!r}; a measure's own values lie in samples"
        outcome.columns.update(found)
        if failure:
            outcome.fail(CellFailure("error", failure))
    except CellFailure as failed:
        outcome.fail(failed)
    return outcome
