"""Where records to be compared come from: a results folder, or a commit of the repository at hand."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

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
    records = _records_in(_git("archive", "--format=tar", revision, REFERENCE), name)
    return _with_records(f"commit {revision[:10]}", records, f"below {REFERENCE}")


def _with_records(name: str, records: list[Record], where: str) -> Source:
    if not records:
        raise SourceError(f"{name} has no record {where}; nothing can be compared with it.")
    return Source(name, tuple(records))


def _records_in(archive: bytes | None, commit: str) -> list[Record]:
    """The records of an archive, in the order of their paths; none where the commit has no such folder."""
    if archive is None:
        return []
    records = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in sorted(members, key=lambda member: member.name):
            path = PurePosixPath(member.name)
            hidden = any(part.startswith(".") for part in path.parts)
            if path.suffix == ".json" and not hidden and (file := members.extractfile(member)):
                records.append(parse(file.read(), f"{commit}: {path}"))
    return records


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
