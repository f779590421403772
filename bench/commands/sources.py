"""Sources of records: a results folder, an archive of one, or a commit of the repository."""

import bz2
import contextlib
import gzip
import io
import lzma
import subprocess
import tarfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from bench.core.reading import RECORD_BYTES, open_regular, read_regular, user_path
from bench.core.record import Record, parse, paths_below, read_all

MEMBER_BYTES, ARCHIVE_BYTES = (
    RECORD_BYTES,
    2**31,
)  # of a record's file at most, and about those of all that an archive holds
REFERENCE = "results/reference"  # what a commit holds of records

#: How compressed files begin, and what reads them.
_COMPRESSIONS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}


class SourceError(ValueError):
    """A source that cannot be read or has no records; the message is one sentence."""


@dataclass(frozen=True)
class Source:
    """Records with where they come from."""

    name: str
    records: tuple[Record, ...]


def read_source(name: str) -> Source:
    """Return the records of the folder ``name`` or, if there is no such folder, of that commit's ``results/reference``.

    Raises SourceError: neither a folder nor a commit, or one without records. RecordError: a record that cannot be
    read.
    """
    path, where = user_path("SOURCE", name), "below it"
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
    """Return the record files of a folder, each with its name; hidden files do not count."""
    return ((str(path), read_regular(path)) for path in paths_below(folder))


class _Limited:
    """Decompressed content of an archive, up to the largest size that archives of records have."""

    def __init__(self, file: IO[bytes], name: str | Path) -> None:
        self._file, self._name = file, name
        self.tell = file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MEMBER_BYTES:
            raise SourceError(f"{self._name}: a part of it is larger than {MEMBER_BYTES >> 20:,} MiB; no record is.")
        self._stop_beyond(self._file.tell() + size)
        return self._file.read(size)

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        self._stop_beyond(position)
        return self._file.seek(position, whence)

    def _stop_beyond(self, position: int) -> None:
        if position > ARCHIVE_BYTES + MEMBER_BYTES:
            raise SourceError(f"{self._name}: holds more than {ARCHIVE_BYTES >> 20:,} MiB; merge it in parts.")


@contextlib.contextmanager
def opened_archive(archive: str | Path, file: IO[bytes] | None = None) -> Iterator[tarfile.TarFile]:
    """Open a tar archive of any compression, at a path or in ``file``; its content is counted while it is decompressed.

    Raises SourceError: it holds more than archives of records do. OSError, EOFError, tarfile.TarError, lzma.LZMAError,
    zlib.error: it cannot be read.
    """
    with contextlib.ExitStack() as stack:
        packed = file or stack.enter_context(open_regular(archive))
        start = packed.read(6)
        packed.seek(0)
        unpack = next((unpack for magic, unpack in _COMPRESSIONS.items() if start.startswith(magic)), None)
        plain: Any = stack.enter_context(unpack(packed)) if unpack else packed
        yield stack.enter_context(tarfile.open(fileobj=cast(IO[bytes], _Limited(plain, archive)), mode="r:"))
        while len(plain.read(2**20)) == 2**20:
            _Limited(plain, archive).seek(plain.tell())  # the check sum of what is compressed comes last


def archive_contents(archive: str | Path, file: IO[bytes] | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield the record files of a tar archive, one by one, from ``file`` or the archive's path; nothing is unpacked.

    Raises SourceError: a member that no archive of records has.
    """
    with opened_archive(archive, file) as members:
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


def manifests(source: Path, datasets: Collection[str]) -> dict[str, bytes]:
    """Return the manifests ``DATASET.csv`` that workloads left beside records in a folder or an archive, by dataset.

    Raises as :func:`archive_contents`.
    """
    names = {f"{dataset}.csv": dataset for dataset in datasets}
    if source.is_dir():
        found = (path for name in names for path in sorted(source.glob(f"*/{name}")))
        return {names[path.name]: read_regular(path) for path in found if path.parent.name[0] != "."}
    with opened_archive(source) as members:
        files = {PurePosixPath(member.name): member for member in members if member.isfile()}
        read = {names[path.name]: members.extractfile(file) for path, file in files.items() if path.name in names}
        return {dataset: content.read() for dataset, content in read.items() if content}


def _git(*arguments: str) -> bytes | None:
    """Return the output of git in the current folder, or None where it refuses or there is none."""
    try:
        return subprocess.run(["git", *arguments], capture_output=True, timeout=120, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
