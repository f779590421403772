"""Where records to be compared come from: a results folder, or a commit of the repository at hand."""

from __future__ import annotations

import io
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.commands.merge import in_archive
from bench.core.record import Record, parse, read_all

#: What a commit holds of records.
REFERENCE = "results/reference"


class SourceError(ValueError):
    """A source without records; the message is one sentence."""


@dataclass(frozen=True)
class Source:
    """Records with where they come from."""

    name: str
    records: tuple[Record, ...]


def read_source(name: str) -> Source:
    """The records of the folder called ``name`` or, where nothing is called so, of that commit's ``results/reference``.

    Raises:
        SourceError: neither a folder nor a commit, or one without records.
        RecordError: a record that cannot be read.
    """
    path = Path(name)
    if path.exists():
        if not path.is_dir():
            raise SourceError(f"{name} is a file; a results folder or a commit is expected.")
        return _with_records(f"folder {name}", read_all(path), "below it")
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if commit is None:
        raise SourceError(f"{name} is neither a folder nor a commit of the repository here; name one of these.")
    revision = commit.decode().strip()
    packed = _git("archive", "--format=tar", revision, REFERENCE)  # None where the commit has no such folder
    members = sorted(in_archive(io.BytesIO(packed), name)) if packed else []
    records = [parse(content, path) for path, content in members]
    return _with_records(f"commit {revision[:10]}", records, f"below {REFERENCE}")


def _with_records(name: str, records: list[Record], where: str) -> Source:
    if not records:
        raise SourceError(f"{name} has no record {where}; nothing can be compared with it.")
    return Source(name, tuple(records))


def _git(*arguments: str) -> bytes | None:
    """What git answers in the folder at hand, or None where it refuses or there is none."""
    top = [] if arguments[0] == "rev-parse" else ["-C", _top()]
    try:
        return subprocess.run(["git", *top, *arguments], capture_output=True, timeout=120, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _top() -> str:
    """The folder of the repository, since an archive's paths are taken from where git stands."""
    found = _git("rev-parse", "--show-toplevel")
    return found.decode().strip() if found else "."
