"""``python -m figures fig1``: draw a figure from records, print its table and verdicts."""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from bench.record import Record, RecordError, read_all
from figures import fig1
from figures.claims import LedgerError, read_claims
from figures.tables import to_terminal

FIGURES = {"fig1": fig1}
RENDERED = Path("figures") / "rendered"


class InputError(Exception):
    """Something the user can put right; the message is one sentence."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see python -m figures --help.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m figures",
        description="Draw a figure of the paper from records, one image per device, and print the same as a table, "
        "with a verdict on every published claim it touches. Nothing is measured here.",
        epilog="fig1: time per epoch and peak memory of every arm, by batch size (records: fig1, fig1_memory). "
        "Written per device: .png, .svg, .md (table and verdicts) and .csv (tidy numbers). "
        "Records are made by: python -m bench, or: make reproduce-fig1.",
    )
    parser.add_argument("figure", metavar="FIGURE", help=f"what to draw: {', '.join(FIGURES)}")
    parser.add_argument(
        "--records", metavar="FOLDER", type=Path, default=Path("results") / "local",
        help="where the records lie (default: results/local; the project's own: results/reference)",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="FOLDER", type=Path,
        help="where to write (default: figures/rendered/ and the name of the records' folder)",
    )  # fmt: skip
    return parser


def _records(name: str, root: Path) -> list[Record]:
    if not root.is_dir():
        raise InputError(f"--records is {str(root)!r}; a folder with records is expected.")
    experiments: tuple[str, ...] = FIGURES[name].EXPERIMENTS
    records = [record for experiment in experiments for record in read_all(root, experiment)]
    if not records:
        wanted = " or ".join(f"{experiment}/" for experiment in experiments)
        raise InputError(f"{root}: no record below {wanted}; make some with: make reproduce-{name}.")
    return records


def _write(files: dict[str, bytes], folder: Path) -> None:
    """Write each file whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".partial")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, folder / name)


def _report(drawn: fig1.DeviceFigure) -> str:
    """What the terminal shows about one device."""
    buffer = io.StringIO()
    terminal = Console()
    table = to_terminal(drawn.table.drop(columns="remarks"), fig1.TITLE, fig1.LEFT_ALIGNED, by="batch")
    needed = Measurement.get(terminal, terminal.options.update(max_width=500), table).maximum
    wide = max(terminal.width, needed)  # a pipe or a narrow window gets whole numbers on long lines
    console = Console(file=buffer, width=wide, force_terminal=terminal.is_terminal)
    for line in drawn.facts:
        console.print(Text(line))
    console.print(table)
    remarks = drawn.table.loc[drawn.table["remarks"] != ""]
    batches: dict[tuple[str, str], list[str]] = {}
    for arm, batch, remark in zip(remarks["arm"], remarks["batch"], remarks["remarks"], strict=True):
        batches.setdefault((arm, remark), []).append(batch)
    for (arm, remark), those in batches.items():
        console.print(Text(f"{arm}, batch {', '.join(those)}: {remark}"))
    for note in drawn.notes[1:]:  # the first one explains the bars
        console.print(Text(note))
    console.print(Text("\nClaims", style="bold"))
    for verdict in drawn.verdicts:
        console.print(Text(str(verdict)))
    return buffer.getvalue()


def run(argv: Sequence[str] | None = None) -> None:
    """Read, draw, then write and print; whatever is wrong with the input stops it before anything is written."""
    arguments = _parser().parse_args(argv)
    if arguments.figure not in FIGURES:
        raise InputError(f"figure is {arguments.figure!r}; available: {', '.join(FIGURES)}.")
    root: Path = arguments.records
    out: Path = arguments.out or RENDERED / root.resolve().name
    drawn = FIGURES[arguments.figure].render(_records(arguments.figure, root), read_claims())
    for figure in drawn:
        try:
            _write(figure.files, out)
        except OSError as error:
            raise InputError(f"--out is {str(out)!r}; cannot write there ({error.strerror}).") from None
        sys.stdout.write(_report(figure))
        sys.stdout.write("Written: " + ", ".join(str(out / name) for name in figure.files) + "\n\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 after one sentence on what is wrong."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        run(argv)
    except (InputError, RecordError, LedgerError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
