"""``python -m bench claims``: print the claims ledger for a folder of records."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from bench.record import Record, RecordError, read_all
from figures.claims import LedgerError
from figures.ledger import judge
from figures.ledger_tables import to_csv, to_markdown_page, to_text

FORMATS = {"text": to_text, "markdown": to_markdown_page, "csv": to_csv}


class InputError(Exception):
    """Something the user can put right; the message is one sentence."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see python -m bench claims --help.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m bench claims",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Print every claim published about the method with what decides it and what the records say:\n"
        "reproduced, partly, not reproduced, or not tested here, and why. Nothing is measured here.",
    )
    parser.add_argument(
        "--records", metavar="FOLDER", type=Path, default=Path("results") / "local",
        help="where the records lie (default: results/local; the project's own: results/reference)",
    )  # fmt: skip
    parser.add_argument("--format", choices=FORMATS, default="text", help="text of 120 columns by default")
    return parser


def _records(root: Path) -> list[Record]:
    if not root.is_dir():
        raise InputError(f"--records is {str(root)!r}; a folder with records is expected, such as results/reference.")
    records = read_all(root)
    if not records:
        raise InputError(
            f"{root}: no record; make some with python -m bench experiment=NAME, or name results/reference, the "
            "project's own."
        )
    if len(versions := sorted({record.schema_version for record in records})) > 1:
        raise InputError(
            f"{root}: records of schema_version {' and '.join(map(str, versions))}; allowed: of one alone."
        )
    return records


def run(argv: Sequence[str] | None = None) -> None:
    """Read, judge and print; whatever is wrong with the input stops it before anything is printed."""
    arguments = _parser().parse_args(argv)
    sys.stdout.write(FORMATS[arguments.format](judge(_records(arguments.records))))


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one sentence on what is wrong."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        run(argv)
        sys.stdout.flush()
    except (InputError, RecordError, LedgerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
