"""Where records come from: a results folder, an archive of one, or a commit of the repository at hand."""

import io
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from bench.core.record import Record, parse, paths_below, read_all

REFERENCE = "results/reference"  # what a commit holds of records


class SourceError(ValueError):
    """A source that cannot be read or has no records; the message is one sentence."""


@dataclass(frozen=True)
class Source:
    """Records with where they come from."""

    name: str
    records: tuple[Record, ...]


def read_source(name: str) -> Source:
    """The records of the folder called ``name`` or, where nothing is called so, of that commit's ``results/reference``.

    Raises SourceError: neither a folder nor a commit, or one without records. RecordError: a record that cannot be
    read.
    """
    path, where = Path(name), "below it"
    if path.is_dir():
        called, records = f"folder {name}", read_all(path)
    elif path.exists():
        raise SourceError(f"{name} is a file; a results folder or a commit is expected.")
    elif commit := _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"):
        revision, where = commit.decode().strip(), f"below {REFERENCE}"
        # An archive's paths are taken from the folder that git is called in.
        top = (_git("rev-parse", "--show-toplevel") or b".").decode().strip()
        archive = _git("-C", top, "archive", "--format=tar", revision, REFERENCE)
        contents = archive_contents(name, io.BytesIO(archive)) if archive else ()
        called, records = f"commit {revision[:10]}", [parse(content, of) for of, content in contents]
    else:
        raise SourceError(f"{name} is neither a folder nor a commit of the repository here; name one of these.")
    if not records:
        raise SourceError(f"{called} has no record {where}; nothing can be compared with it.")
    return Source(called, tuple(records))


def folder_contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The record files of a folder, each with its name; hidden ones are none."""
    return ((str(path), path.read_bytes()) for path in paths_below(folder))


def archive_contents(archive: str | Path, file: IO[bytes] | None = None) -> Iterator[tuple[str, bytes]]:
    """The record files of a tar archive, read one by one from ``file`` or the archive's path; nothing is unpacked.

    Raises SourceError: a member that no archive of records has.
    """
    with tarfile.open(archive, fileobj=file) as members:
        for member in members:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts:
                raise SourceError(f"{archive}: {member.name!r} would lie outside of the folder it is unpacked into.")
            if any(part.startswith(".") for part in path.parts):
                continue
            if not (member.isfile() or member.isdir()):
                raise SourceError(
                    f"{archive}: {member.name!r} is neither a file nor a folder; no records are like that."
                )
            if path.suffix == ".json" and (content := members.extractfile(member)):
                yield f"{archive}: {member.name}", content.read()
        while members.fileobj and members.fileobj.read(2**20):
            pass  # the check sum of what is compressed comes last


def _git(*arguments: str) -> bytes | None:
    """What git prints in the folder at hand, or None where it refuses or there is none."""
    try:
        return subprocess.run(["git", *arguments], capture_output=True, timeout=120, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
