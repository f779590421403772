"""What the commands of this floor share: their folders, how they write, and what becomes of wrong input."""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from bench.core.record import Record, RecordError, read_all
from figures.artifact import ArtifactError
from figures.claims.claims import LedgerError

RENDERED = Path("figures") / "rendered"


class InputError(Exception):
    """Something the user can put right; the message is one sentence."""


class Parser(argparse.ArgumentParser):
    """A parser that raises InputError, with the folders that a command reads and writes."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help.")

    def add_records(self) -> None:
        """Add ``--records``."""
        self.add_argument(
            "--records", metavar="FOLDER", type=Path, default=Path("results") / "local",
            help="where the records lie (default: results/local; the project's own: results/reference)",
        )  # fmt: skip

    def add_out(self) -> None:
        """Add ``--out``."""
        self.add_argument(
            "--out", metavar="FOLDER", type=Path,
            help="where to write (default: figures/rendered/ and the name of the records' folder)",
        )  # fmt: skip


def folder_of_records(arguments: argparse.Namespace) -> Path:
    """What ``--records`` names; raises InputError where that is no folder."""
    root: Path = arguments.records
    if not root.is_dir():
        raise InputError(f"--records is {str(root)!r}; a folder with records is expected.")
    return root


def folder_to_write(arguments: argparse.Namespace) -> Path:
    """What ``--out`` names, or the folder beside the code that is called like that of the records."""
    out: Path = arguments.out or RENDERED / arguments.records.resolve().name
    return out


def read_folder(root: Path) -> list[Record]:
    """Every record of a folder.

    Raises:
        InputError: there is none, or they are of several schema versions.
        RecordError: one of them cannot be read.
    """
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


def write(files: dict[str, bytes], folder: Path) -> None:
    """Write each file whole or not at all, in the place of one that is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".partial")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                    os.fchmod(file.fileno(), 0o644)
                os.replace(temporary, folder / name)
            except BaseException:
                os.unlink(temporary)
                raise
    except OSError as error:
        raise InputError(f"--out is {str(folder)!r}; cannot write there ({error.strerror}).") from None


def exit_status(work: Callable[[], None], prefix: str = "") -> int:
    """Do the work: 0, or 2 after one sentence, behind ``prefix``, on what is wrong with the input."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        work()
        sys.stdout.flush()
    except (InputError, RecordError, LedgerError, ArtifactError) as error:
        print(f"{prefix}{error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as head, has seen enough; all files are written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0
