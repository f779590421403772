"""Parts that several commands share: Python in a new process, a parser of settings, a line of progress, a table."""

import argparse
import contextlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console

from bench.errors import CONF, TERMINAL, Parser
from bench.interrupts import handled_elsewhere, on_interrupt


def settings_parser(command: str, **lists: Sequence[str]) -> Parser:
    """Return the parser of a command of settings, whose help is a file with places for these lists of names."""
    usage, _, about = (CONF / "help" / f"{command}.txt").read_text(encoding="utf-8").partition("\n\n")
    parser = Parser(
        prog=f"python -m bench {command}",
        usage=usage.removeprefix("usage: "),
        description=about.format(**{name: ", ".join(known) for name, known in lists.items()}),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("settings", metavar="key=value", nargs="*", help=argparse.SUPPRESS)
    return parser


def under_a_setting(names: Iterable[str]) -> str:
    """Return names in parentheses, in lines below what the help of a command says of a setting."""
    indent = " " * 20
    return textwrap.fill(f"({', '.join(names)})", TERMINAL, initial_indent=indent, subsequent_indent=indent)


@contextlib.contextmanager
def progress(does: str) -> Iterator[Callable[[str], None]]:
    """Yield a call that shows how far a prediction is: one line of a terminal, else a line each, on stderr."""
    console = Console(stderr=True)
    on_interrupt(lambda: "nothing was written; the same command starts again")
    with console.status(does) as status:
        yield status.update if console.is_terminal else console.print


def status_of(words: Sequence[str]) -> int:
    """Run Python with these arguments and return its exit status; signals that end this program end that one."""
    with handled_elsewhere(), subprocess.Popen([sys.executable, *words], process_group=0) as process:

        def send(number: int, _: object) -> None:
            process.send_signal(number)

        before = {number: signal.signal(number, send) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            status = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return 128 - status if status < 0 else status


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Put columns under each other: the first and last to the left, numbers to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if place in (0, last) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
