"""``python -m bench claims``: print the claims ledger for a folder of records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from figures.command import Parser, exit_status, folder_of_records, read_folder
from figures.ledger import judge
from figures.ledger_tables import to_csv, to_markdown_page, to_text

FORMATS = {"text": to_text, "markdown": to_markdown_page, "csv": to_csv}


def _parser() -> Parser:
    parser = Parser(
        prog="python -m bench claims",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Print every claim published about the method with what decides it and what the records say:\n"
        "reproduced, partly, not reproduced, or not tested here, and why. Nothing is measured here.",
    )
    parser.add_records()
    parser.add_argument("--format", choices=FORMATS, default="text", help="text of 120 columns by default")
    return parser


def run(argv: Sequence[str] | None = None) -> None:
    """Read, judge and print; whatever is wrong with the input stops it before anything is printed."""
    arguments = _parser().parse_args(argv)
    sys.stdout.write(FORMATS[arguments.format](judge(read_folder(folder_of_records(arguments)))))


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one sentence on what is wrong."""
    return exit_status(run, argv, "error: ")


if __name__ == "__main__":
    sys.exit(main())
