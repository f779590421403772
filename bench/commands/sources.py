"""Where records come from: a results folder, or a commit of the repository at hand."""

import io
import subprocess
import tarfile
from typing import NamedTuple

from bench.core.reading import user_path
from bench.core.record import Record, parse, read_all
from bench.errors import ConfigError

REFERENCE = "results/reference"  # what a commit holds of records


class Source(NamedTuple):
    """Records with where they come from."""

    name: str
    records: tuple[Record, ...]


def read_source(name: str) -> Source:
    """Read the records of the folder ``name`` or, where there is none, of that commit's ``results/reference``.

    Raises ConfigError: neither a folder nor a commit, or one without records. RecordError: a record that cannot be
    read.
    """
    path, where = user_path("SOURCE", name), "below it"
    if path.is_dir():
        called, records = f"folder {name}", read_all(path)
    elif path.exists():
        raise ConfigError(f"{name} is a file; a results folder or a commit is expected.")
    elif commit := _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"):
        revision, where = commit.decode().strip(), f"below {REFERENCE}"
        # An archive's paths are taken from the folder that git is called in.
        top = (_git("rev-parse", "--show-toplevel") or b".").decode().strip()
        archive = _git("-C", top, "archive", "--format=tar", revision, REFERENCE)
        called, records = f"commit {revision[:10]}", _records_in(archive, name)
    else:
        raise ConfigError(f"{name} is neither a folder nor a commit of the repository here; name one of these.")
    if not records:
        raise ConfigError(f"{called} has no record {where}; nothing can be compared with it.")
    return Source(called, tuple(records))


def _records_in(archive: bytes | None, name: str) -> list[Record]:
    if archive is None:  # the commit has no such folder
        return []
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as members:
        files = [member for member in members if member.isfile() and member.name.endswith(".json")]
        shown = [member for member in files if not any(part.startswith(".") for part in member.name.split("/"))]
        return [parse(members.extractfile(one).read(), f"{name}: {one.name}") for one in shown]  # type: ignore[union-attr]


def _git(*arguments: str) -> bytes | None:
    """Return what git prints in the folder at hand, or None where it fails or there is no git."""
    try:
        return subprocess.run(["git", *arguments], capture_output=True, timeout=120, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
