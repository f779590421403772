"""What a campaign carries from one call to the next: an archive of records, and parts with checkpoints.

``records.tar.gz`` holds every record, where :func:`bench.core.record.path_of` puts it, and the campaign's diary as the
hidden ``.campaign.json``, which a merge leaves alone. ``checkpoints.tar.gz.0``, ``.1``, … are one archive cut in
pieces, since some ways home take small files only. The same contents give the same bytes.
"""

import gzip
import io
import json
import lzma
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.commands.merge import MergeError, merge
from bench.commands.sources import SourceError, opened_archive
from bench.core.files import write_whole
from bench.core.reading import read_regular
from bench.core.record import paths_below
from bench.errors import ConfigError
from bench.runner.checkpoint import FORMER, find

RECORDS, CHECKPOINTS, DIARY = "records.tar.gz", "checkpoints.tar.gz", ".campaign.json"
_CHECKPOINT_FOLDER = ".checkpoints"  # where :class:`bench.runner.results.Results` keeps checkpoints
PART_BYTES = 15 * 2**20  # of a part at most
CARRIED_BYTES = 48 * 2**20  # of all checkpoints that are carried


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk."""

    folder: Path  # of the run, as :class:`bench.training.run.Upkeep` names it
    files: tuple[Path, ...]  # its content, wherever it lies after a kill
    bytes: int


def checkpoints_in(root: Path) -> list[Checkpoint]:
    """The checkpoints of a folder of results, the smallest first."""
    found = []
    entries = (root / _CHECKPOINT_FOLDER).glob("*/*")
    for folder in sorted({path.with_name(FORMER.sub(r"\1", path.name)) for path in entries}):
        if not folder.name.startswith(".") and (place := find(folder)):
            files = tuple(sorted(path for path in place.iterdir() if path.is_file()))
            found.append(Checkpoint(folder, files, sum(path.stat().st_size for path in files)))
    return sorted(found, key=lambda checkpoint: checkpoint.bytes)


def write_records(root: Path, output: Path, diary: Mapping[str, Any]) -> int:
    """Put all records below ``root``, and manifests of their data, into ``output/records.tar.gz``; how many records.

    Without any there is none.
    """
    paths = paths_below(root)
    if paths:
        manifests = [path for path in sorted(root.glob("*/*.csv")) if path.parent.name[0] != "."]
        members = {path.relative_to(root).as_posix(): read_regular(path) for path in [*paths, *manifests]}
        members[DIARY] = json.dumps(diary, indent=1).encode()
        write_whole({output / RECORDS: _packed(members)})
    return len(paths)


def write_checkpoints(root: Path, output: Path, useless: Iterable[Path]) -> list[Checkpoint]:
    """Put the checkpoints below ``root`` but the ``useless`` into parts below ``output``; those that do not fit."""
    useless = {folder.absolute() for folder in useless}
    members: dict[str, bytes] = {}
    left_behind, room = [], CARRIED_BYTES
    for checkpoint in checkpoints_in(root):
        if checkpoint.folder.absolute() in useless:
            continue
        if checkpoint.bytes > room:
            left_behind.append(checkpoint)
            continue
        room -= checkpoint.bytes
        inside = checkpoint.folder.relative_to(root).as_posix()
        members |= {f"{inside}/{path.name}": path.read_bytes() for path in checkpoint.files}
    packed = _packed(members) if members else b""
    parts = [packed[start : start + PART_BYTES] for start in range(0, len(packed), PART_BYTES)]
    write_whole({output / f"{CHECKPOINTS}.{number}": part for number, part in enumerate(parts)})
    for old in _parts_in(output)[len(parts) :]:
        old.unlink()
    return left_behind


def take_in(source: Path, root: Path) -> dict[str, Any]:
    """Bring records, and the checkpoints beside them, into a folder of results; the diary that came along.

    The source is a folder of records, an archive of them, or the output folder of an earlier call. Raises ConfigError:
    it is not there, or its checkpoints cannot be read. MergeError: one of its records cannot be read.
    """
    if not source.exists():
        raise ConfigError(f"records is '{source}', which is not there; name a folder or an archive of records.")
    archive = source / RECORDS if (source / RECORDS).is_file() else source
    merge([archive], root)
    if archive.is_dir():
        return {}
    _take_in_checkpoints(archive.parent, root)
    with opened_archive(archive) as members:
        file = members.extractfile(DIARY) if DIARY in members.getnames() else None
        try:
            diary = json.loads(file.read()) if file else {}
        except (ValueError, RecursionError):
            raise MergeError([f"{archive}: {DIARY} is damaged."]) from None
    return diary if isinstance(diary, dict) else {}


def _take_in_checkpoints(folder: Path, root: Path) -> None:
    """Unpack the parts in ``folder``, but none over a checkpoint that is there."""
    parts = _parts_in(folder)
    if not parts:
        return
    try:
        whole = io.BytesIO(b"".join(read_regular(part) for part in parts))
        with opened_archive(folder / CHECKPOINTS, whole) as members:
            for member in members:
                inside = Path(member.name)
                if inside.parts[:1] != (_CHECKPOINT_FOLDER,) or len(inside.parts) != 4:
                    raise ConfigError(f"{parts[0]}: {member.name!r} is no part of a checkpoint.")
                if not (root / inside).exists():
                    members.extract(member, root, filter="data")
    except (OSError, EOFError, SourceError, lzma.LZMAError, tarfile.TarError, zlib.error) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{folder / CHECKPOINTS}.*: not all parts of a whole archive ({reason}).") from None


def _parts_in(folder: Path) -> list[Path]:
    """The parts of a checkpoint archive, in order."""
    numbered = [(path.suffix[1:], path) for path in folder.glob(f"{CHECKPOINTS}.*")]
    return [path for number, path in sorted((int(n), path) for n, path in numbered if n.isdigit())]


def _packed(members: Mapping[str, bytes]) -> bytes:
    """A compressed tar archive that depends on names and contents alone."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=packed, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(members):
            info = tarfile.TarInfo(name)
            info.size = len(members[name])
            archive.addfile(info, io.BytesIO(members[name]))
    return packed.getvalue()
