"""Ctrl-C and SIGTERM: one sentence, exit status 130 or 143, and no process left, within five seconds.

The first signal raises :class:`Interrupted` in the main thread, so that whatever it is doing is undone as usual; later
ones are ignored. A thread ends the program where that takes too long, as inside a long call of another library.
Processes of cells ignore Ctrl-C, which a terminal sends to them too (:func:`shielded`): the one that started them ends
them.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE_S = 2.5  # from the signal to the end that the thread makes

#: For PYTHONWARNINGS of the processes that a command starts: Python's tracker of semaphores, which outlives a process
#: that an interrupt kills, removes those that it held and would report each.
_NO_REPORT = "ignore:resource_tracker"

_USUAL = "files that are written are whole; the same command starts again"


class Interrupted(KeyboardInterrupt):
    """A signal that ends the program."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _Ending:
    """Hold what this process prints and does when it ends."""

    state: Callable[[], str] | None = None
    hurry: Callable[[], None] | None = None
    kill: Callable[[], None] | None = None
    is_ours = False  # whether signals are handled here
    lock = threading.Lock()
    told = False


def on_interrupt(
    state: Callable[[], str] | None = None,
    hurry: Callable[[], None] | None = None,
    kill: Callable[[], None] | None = None,
) -> None:
    """Set what an interrupt prints and does.

    ``state`` returns how far the command is, for the sentence. ``hurry`` begins to end other processes, inside the
    signal handler; ``kill`` ends what is left of them before the program ends, perhaps from a thread.
    """
    _Ending.state = state or _Ending.state
    _Ending.hurry = hurry or _Ending.hurry
    _Ending.kill = kill or _Ending.kill


def status_of(error: BaseException) -> int:
    """Return the exit status of a program that this exception ends: 130 after Ctrl-C, 143 after SIGTERM, else 1.

    >>> status_of(Interrupted(signal.SIGTERM)), status_of(KeyboardInterrupt()), status_of(OSError())
    (143, 130, 1)
    """
    if not isinstance(error, KeyboardInterrupt):
        return 1
    return 128 + int(getattr(error, "number", signal.SIGINT))


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """End the program with one sentence if a signal comes while the block runs."""
    if threading.current_thread() is not threading.main_thread() or _Ending.is_ours:
        yield
        return
    _Ending.state, _Ending.told, _Ending.is_ours = None, False, True
    given = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (given, _NO_REPORT)))
    before = {number: signal.signal(number, _raise) for number in _SIGNALS}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    other = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()
    try:
        yield
    except KeyboardInterrupt as error:
        _kill()
        _tell()
        raise SystemExit(status_of(error)) from None
    finally:
        if not _Ending.told:
            signal.set_wakeup_fd(other)
            os.close(writer)  # which ends the thread
            for number, handler in before.items():
                signal.signal(number, handler)
        _Ending.is_ours = False
        if given is None:
            os.environ.pop("PYTHONWARNINGS", None)
        else:
            os.environ["PYTHONWARNINGS"] = given


def end_early() -> None:
    """Have a signal end the program at once, with a sentence, as long as it only imports."""

    def end(number: int, _: FrameType | None) -> None:
        _tell()
        os._exit(128 + number)

    for number in _SIGNALS:
        signal.signal(number, end)


@contextlib.contextmanager
def handled_elsewhere() -> Iterator[None]:
    """Leave signals to handlers that the block sets."""
    ours, _Ending.is_ours = _Ending.is_ours, False
    try:
        yield
    finally:
        _Ending.is_ours = ours


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Have processes that start in the block, and those that they start, ignore Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _raise(number: int, _: FrameType | None) -> NoReturn:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    if _Ending.hurry is not None:
        _Ending.hurry()
    raise Interrupted(number)


def _watch(reader: int) -> None:
    """Wait for a signal, then for the end of the program, and make that end."""
    with contextlib.closing(os.fdopen(reader, "rb", buffering=0)) as numbers:
        while number := numbers.read(1):
            if number[0] in _SIGNALS and _Ending.is_ours:
                break
        else:
            return
    time.sleep(_PATIENCE_S)
    _kill()
    _tell()
    os._exit(128 + number[0])


def _kill() -> None:
    if _Ending.kill is not None:
        _Ending.kill()


def _tell() -> None:
    """Print the sentence, once."""
    with _Ending.lock:
        if _Ending.told:
            return
        _Ending.told = True
    state = _Ending.state() if _Ending.state else _USUAL
    print(f"interrupted: {state}", file=sys.stderr, flush=True)
