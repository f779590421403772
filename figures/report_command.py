"""``python -m figures report`` and ``python -m bench report``: everything on one page that opens from disk."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from figures.artifacts import ARTIFACTS
from figures.claims import read_claims
from figures.command import InputError, Parser, exit_status, folder_of_records, folder_to_write, read_folder, write
from figures.report_page import page

NAME = "report.html"


def _parser() -> Parser:
    parser = Parser(
        prog="python -m figures report",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Write one HTML page from records: the verdict on every published claim, then each figure and\n"
        "table beside what was published, how it was measured and what failed. Nothing is measured here.",
    )
    parser.add_records()
    parser.add_out()
    return parser


def run(argv: Sequence[str] | None = None) -> None:
    """Read, draw, write the page and print where it lies; wrong input stops it before anything is written."""
    arguments = _parser().parse_args(argv)
    root, out = folder_of_records(arguments), folder_to_write(arguments)
    records = read_folder(root)
    if not any(artifact.of(records) for artifact in ARTIFACTS.values()):
        experiments = dict.fromkeys(name for artifact in ARTIFACTS.values() for name in artifact.experiments)
        raise InputError(
            f"{root}: no record below {', '.join(f'{name}/' for name in experiments)}; make some with: "
            f"{ARTIFACTS['fig1'].made_by}."
        )
    write({NAME: page(records, ARTIFACTS, read_claims())}, out)
    print(out / NAME)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one sentence on what is wrong."""
    return exit_status(run, argv)


if __name__ == "__main__":
    sys.exit(exit_status(run, None, "error: "))  # as every word of the bench says it
