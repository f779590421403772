"""``python -m figures FIGURE``: draw a figure or table from records, print its table and verdicts; or the report."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.core.record import Record, read_all
from figures import report_command
from figures.artifacts import ARTIFACTS, Artifact
from figures.claims import read_claims
from figures.command import InputError, Parser, exit_status, folder_of_records, folder_to_write, write


def _epilog() -> str:
    lines = ["figures and tables (the experiments whose records they are made of):"]
    for name, artifact in ARTIFACTS.items():
        text = f"{artifact.summary} (records: {', '.join(artifact.experiments)})."
        lines += textwrap.wrap(text, 110, initial_indent=f"  {name:<21}", subsequent_indent=" " * 23)
    lines += [
        "",
        "Written for each: .png and .svg (figures alone), .md (table and verdicts) and .csv (tidy numbers).",
        "All of it on one page beside the claims: python -m figures report (--help says more).",
        "Records are made by python -m bench; a make target reproduce-… does both: make help.",
    ]
    return "\n".join(lines)


def _parser() -> Parser:
    parser = Parser(
        prog="python -m figures",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Draw a figure or table of the paper from records and print the same as a table, with a verdict\n"
        "on every published claim it touches. Nothing is measured here.",
        epilog=_epilog(),
    )
    parser.add_argument("figure", metavar="FIGURE", help=f"what to draw: {', '.join(ARTIFACTS)}")
    parser.add_records()
    parser.add_out()
    parser.add_argument(
        "--experiment", metavar="NAME",
        help="whose training records to show (default: as listed below; those of the small presets: accuracy_small, "
        "ratios_accuracy_small)",
    )  # fmt: skip
    return parser


def _artifact(name: str, experiment: str | None) -> Artifact:
    """What was asked for, on the records of ``experiment`` if one is named."""
    if name not in ARTIFACTS:
        raise InputError(f"figure is {name!r}; available: {', '.join(ARTIFACTS)}.")
    artifact = ARTIFACTS[name]
    if experiment is None:
        return artifact
    if artifact.measure != "train":
        trained = ", ".join(other for other, one in ARTIFACTS.items() if one.measure == "train")
        raise InputError(f"--experiment is {experiment!r}, but {name} shows no training; it is for: {trained}.")
    if not re.fullmatch(r"[\w-]+", experiment):
        raise InputError(f"--experiment is {experiment!r}; allowed: letters, digits, - and _.")
    return replace(artifact, experiments=(experiment,), made_by=f"python -m bench experiment={experiment}")


def _folders(artifact: Artifact) -> str:
    return " or ".join(f"{experiment}/" for experiment in artifact.experiments)


def _records(artifact: Artifact, root: Path) -> list[Record]:
    records = artifact.of([record for name in artifact.experiments for record in read_all(root, name)])
    if not records:
        kind = {"train": "training record", "run": "timed record"}.get(artifact.measure or "", "record")
        raise InputError(f"{root}: no {kind} below {_folders(artifact)}; make some with: {artifact.made_by}.")
    return records


def run(argv: Sequence[str] | None = None) -> None:
    """Read, draw, then write and print; whatever is wrong with the input stops it before anything is written."""
    arguments = _parser().parse_args(argv)
    artifact = _artifact(arguments.figure, arguments.experiment)
    root, out = folder_of_records(arguments), folder_to_write(arguments)
    everything = artifact.render(_records(artifact, root), read_claims())
    if not everything:
        raise InputError(
            f"{root}: no record below {_folders(artifact)} is one that {arguments.figure} shows; make some with: "
            f"{artifact.made_by}."
        )
    for drawn in everything:
        write(drawn.files, out)
    for drawn in everything:
        sys.stdout.write(drawn.to_text())
        sys.stdout.write("Written: " + ", ".join(str(out / name) for name in drawn.files) + "\n\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one sentence on what is wrong."""
    words = sys.argv[1:] if argv is None else argv
    return report_command.main(words[1:]) if words[:1] == ["report"] else exit_status(run, words)


if __name__ == "__main__":
    sys.exit(main())
