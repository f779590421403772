"""``python -m figures [draw] FIGURE``, ``claims`` or ``report``: figures, tables, verdicts and the page of all."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from bench.core.record import read_all
from figures.artifact import Artifact, artifacts
from figures.claims.ledger import claims_of, judge
from figures.claims.ledger_text import to_csv, to_markdown_page, to_text
from figures.command import InputError, Parser, exit_status, folder_of_records, folder_to_write, read_folder, write

FORMATS = {"text": to_text, "markdown": to_markdown_page, "csv": to_csv}
REPORT = "report.html"


def _epilog() -> str:
    lines = ["figures and tables (the experiments whose records they are made of):"]
    for name, artifact in artifacts().items():
        text = f"{artifact.summary} (records: {', '.join(artifact.experiments)})."
        lines += textwrap.wrap(text, 110, initial_indent=f"  {name:<21}", subsequent_indent=" " * 23)
    lines += [
        "",
        "Written for each: .png and .svg (figures alone), .md (table and verdicts) and .csv (tidy numbers).",
        "All of it on one page beside the claims: python -m figures report. The verdicts alone: python -m figures",
        "claims. (--help says more.) Records are made by python -m bench; a make target reproduce-… does both: make",
        "help.",
    ]
    return "\n".join(lines)


def _parser(program: str) -> Parser:
    parser = Parser(prog=program, add_help=False)
    commands = parser.add_subparsers(required=True)

    def command(name: str, work: Any, description: str, **more: Any) -> Parser:
        form = argparse.RawDescriptionHelpFormatter
        one: Parser = commands.add_parser(name, formatter_class=form, description=description, **more)
        one.set_defaults(work=work, parser=one)
        one.add_records()
        return one

    drawing = command(
        "draw", draw,
        "Draw a figure or table of the paper from records and print the same as a table, with a verdict\n"
        "on every published claim it touches. Nothing is measured here.",
        prog=program, epilog=_epilog(),
    )  # fmt: skip
    drawing.add_argument("figure", metavar="FIGURE", help=f"what to draw: {', '.join(artifacts())}")
    drawing.add_out()
    drawing.add_argument(
        "--experiment", metavar="NAME",
        help="whose records to show (default: as listed below; those of the small presets: accuracy_small, "
        "ratios_accuracy_small)",
    )  # fmt: skip
    ledger = command(
        "claims", claims,
        "Print every claim published about the method with what decides it and what the records say:\n"
        "reproduced, partly, not reproduced, or not tested here, and why. Nothing is measured here.",
    )  # fmt: skip
    ledger.add_argument("--format", choices=FORMATS, default="text", help="text of 120 columns by default")
    command(
        "report", report,
        "Write one HTML page from records: the verdict on every published claim, then each figure and\n"
        "table beside what was published, how it was measured and what failed. Nothing is measured here.",
    ).add_out()  # fmt: skip
    return parser


def _artifact(name: str, experiment: str | None) -> Artifact[Any, Any]:
    """What was asked for, on the records of ``experiment`` if one is named."""
    if name not in artifacts():
        raise InputError(f"figure is {name!r}; available: {', '.join(artifacts())}.")
    artifact = artifacts()[name]
    if experiment is None:
        return artifact
    if not re.fullmatch(r"[\w-]+", experiment):
        raise InputError(f"--experiment is {experiment!r}; allowed: letters, digits, - and _.")
    return artifact.for_experiment(experiment)


def draw(arguments: argparse.Namespace) -> None:
    """Read, draw, then write and print; whatever is wrong with the input stops it before anything is written."""
    artifact = _artifact(arguments.figure, arguments.experiment)
    root, out = folder_of_records(arguments), folder_to_write(arguments)
    records = artifact.of([record for name in artifact.experiments for record in read_all(root, name)])
    folders = " or ".join(f"{name}/" for name in artifact.experiments)
    if not records:
        kind = {"train": "training record", "run": "timed record"}.get(artifact.measure or "", "record")
        raise InputError(f"{root}: no {kind} below {folders}; make some with: {artifact.command}.")
    pages = artifact.render(records, claims_of(artifacts().values()))
    if not pages:
        raise InputError(
            f"{root}: no record below {folders} is one that {artifact.name} shows; make some with: {artifact.command}."
        )
    for page in pages:
        write(page.files, out)
    for page in pages:
        sys.stdout.write(page.to_text())
        sys.stdout.write("Written: " + ", ".join(str(out / name) for name in page.files) + "\n\n")


def claims(arguments: argparse.Namespace) -> None:
    """Read, judge and print; whatever is wrong with the input stops it before anything is printed."""
    sys.stdout.write(FORMATS[arguments.format](judge(read_folder(folder_of_records(arguments)))))


def report(arguments: argparse.Namespace) -> None:
    """Read, draw, write the page and print where it lies; wrong input stops it before anything is written."""
    from figures.report.page import page

    root, out = folder_of_records(arguments), folder_to_write(arguments)
    records, everything = read_folder(root), artifacts()
    if not any(artifact.of(records) for artifact in everything.values()):
        experiments = dict.fromkeys(name for artifact in everything.values() for name in artifact.experiments)
        first = next(iter(everything.values()))
        raise InputError(
            f"{root}: no record below {', '.join(f'{name}/' for name in experiments)}; make some with: {first.command}."
        )
    write({REPORT: page(records, everything, claims_of(everything.values()))}, out)
    print(out / REPORT)


def main(argv: Sequence[str] | None = None, program: str = "python -m figures", prefix: str = "") -> int:
    """The exit status: 0, or 2 after one sentence, behind ``prefix``, on what is wrong."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] not in (["draw"], ["claims"], ["report"]):
        words.insert(0, "draw")

    def work() -> None:
        arguments, others = _parser(program).parse_known_args(words)
        if others:
            arguments.parser.error(f"unrecognized arguments: {' '.join(others)}")
        arguments.work(arguments)

    return exit_status(work, prefix)


if __name__ == "__main__":
    sys.exit(main())
