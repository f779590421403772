"""Programs of their own that a command starts: Python with arguments, in a new process."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from bench.interrupts import handled_elsewhere


def status_of(words: Sequence[str], seconds: float | None = None) -> int | None:
    """Run Python with these arguments and return its exit status; signals that end this program end that one.

    Args:
        words: arguments of Python.
        seconds: after which it gets SIGTERM, whose end is waited for; None for no limit.

    Returns:
        The exit status, or None where the time was up.
    """
    started = subprocess.Popen([sys.executable, *words], process_group=0)
    with handled_elsewhere(), started as process, _passed_on(process):
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            return None
    return 128 - status if status < 0 else status


@contextlib.contextmanager
def _passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Send the process what would interrupt this program, which waits for its end."""

    def send(number: int, _: object) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, send) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
