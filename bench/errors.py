"""A user's mistakes: one sentence each, naming what was given and what is allowed, and exit status 2."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

CONF = Path(__file__).parent / "conf"

#: Columns that tables and lists take in a terminal.
TERMINAL = 100

#: What is said where a process that shares the work is gone (``concurrent.futures.BrokenExecutor``).
KILLED = "a process of this command was killed, most likely for want of memory; give the same command again."


class Mistake(ValueError):
    """A mistake of the user; the message is one sentence, and the command line prints it."""


class ConfigError(Mistake):
    """A wrong setting or plug-in; the message is one sentence naming field, value and what is allowed."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        stop_with(f"{message}; see {self.prog} --help.")


def experiments() -> list[str]:
    """Return the names of the experiments."""
    return sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


def stop_with(message: str, status: int = 2) -> NoReturn:
    """End the program; over a user's mistake with status 2."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(status)


@contextlib.contextmanager
def packages_needed() -> Iterator[None]:
    """End the program with one sentence if a package is missing, as under a Python outside of ``.venv``."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "baselines", "bench", "comera", "figures"):
            raise
        stop_with(f"{sys.executable} lacks the package {package}; use .venv/bin/python, which make setup creates.")


def unwritten(
    error: OSError, then: str = "what is recorded is kept, and the same command goes on with the rest"
) -> str:
    """Return one sentence for a refusal of the system, such as to write a file on a full disk.

    ``then`` says what is left and what the same command does when it is given again.
    """
    place = f"{error.filename} cannot be used" if error.filename else "a file cannot be used"
    return f"{place} ({error.strerror or error}); {then}."
