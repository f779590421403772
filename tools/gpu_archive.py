"""Carry records and checkpoints to and from a machine whose files do not last, such as a borrowed GPU.

``python tools/gpu_archive.py pack RESULTS FOLDER`` writes ``records.tar.gz``, with every record and manifest below
RESULTS, and the checkpoints as one archive cut into parts of 15 MiB, ``checkpoints.tar.gz.0``, ``.1``, …, since some
ways home take small files only. The newest checkpoints come first, as long as 48 MiB hold them.
``python tools/gpu_archive.py unpack FOLDER RESULTS`` brings them back: of two records of one cell the newest good one
stays, and a checkpoint that is there is kept.
"""

import io
import sys
import tarfile
import tempfile
from pathlib import Path

from bench.commands.merge import merge
from bench.core.checkpoint import FORMER, find
from bench.core.files import write_whole
from bench.core.record import RecordError, paths_below
from bench.errors import ConfigError, Parser, stop_with

RECORDS, CHECKPOINTS = "records.tar.gz", "checkpoints.tar.gz"
PART_BYTES = 15 * 2**20  # of a part at most
CARRIED_BYTES = 48 * 2**20  # of all checkpoints that are carried


def checkpoints_below(results: Path) -> list[tuple[Path, list[Path]]]:
    """Return the folder of each checkpoint with its files, the newest first."""
    entries = (results / ".checkpoints").glob("*/*")
    folders = {path.with_name(FORMER.sub(r"\1", path.name)) for path in entries}
    found = [(folder, place) for folder in folders if folder.name[0] != "." and (place := find(folder))]
    found.sort(key=lambda one: one[1].stat().st_mtime, reverse=True)
    return [(folder, sorted(path for path in place.iterdir() if path.is_file())) for folder, place in found]


def pack(results: Path, folder: Path) -> list[Path]:
    """Write the archives and return the checkpoints for which there was no room.

    Raises ConfigError: ``results`` holds no record.
    """
    if not paths_below(results):
        raise ConfigError(f"RESULTS is '{results}', which holds no record; name a results folder.")
    manifests = [path for path in sorted(results.glob("*/*.csv")) if path.parent.name[0] != "."]
    records = {path.relative_to(results).as_posix(): path for path in [*paths_below(results), *manifests]}
    carried: dict[str, Path] = {}
    left_behind, room = [], CARRIED_BYTES
    for place, files in checkpoints_below(results):
        size = sum(path.stat().st_size for path in files)
        if size > room:
            left_behind.append(place)
            continue
        room -= size
        carried |= {f"{place.relative_to(results).as_posix()}/{path.name}": path for path in files}
    whole = _packed(carried) if carried else b""
    parts = [whole[start : start + PART_BYTES] for start in range(0, len(whole), PART_BYTES)]
    contents = {folder / RECORDS: _packed(records)}
    contents |= {folder / f"{CHECKPOINTS}.{number}": part for number, part in enumerate(parts)}
    write_whole(contents)
    for old in _parts(folder)[len(parts) :]:
        old.unlink()
    return left_behind


def unpack(folder: Path, results: Path) -> None:
    """Bring what :func:`pack` wrote into a folder of results."""
    with tempfile.TemporaryDirectory() as name, tarfile.open(folder / RECORDS) as archive:
        archive.extractall(name, filter="data")
        merge([Path(name)], results)
    if parts := _parts(folder):
        with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts))) as archive:
            for member in archive:
                if Path(member.name).parts[0] == ".checkpoints" and not (results / member.name).exists():
                    archive.extract(member, results, filter="data")


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{CHECKPOINTS}.*"), key=lambda path: int(path.suffix[1:]))


def _packed(files: dict[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, path in sorted(files.items()):
            archive.add(path, name)
    return buffer.getvalue()


def main() -> None:
    """Pack or unpack, as the command line says."""
    parser = Parser(prog="python tools/gpu_archive.py", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path, help="the results folder to pack, or the folder of archives to unpack")
    parser.add_argument("into", type=Path, help="the folder for archives, or the results folder")
    given = parser.parse_args()
    try:
        if given.what == "unpack":
            unpack(given.source, given.into)
        else:
            for checkpoint in pack(given.source, given.into):
                print(f"{checkpoint} was not packed: the checkpoints before it fill the archive", file=sys.stderr)
    except (ConfigError, RecordError, OSError, tarfile.TarError) as error:
        stop_with(str(error))


if __name__ == "__main__":
    main()
