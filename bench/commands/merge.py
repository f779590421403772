"""``python -m bench merge FOLDER [FOLDER ...]``: copy the records of other results folders into one.

A record is one file at a place that its own columns name, so copying files merges records. Of two records of one cell
the newest good one stays, which ``cp --update`` cannot tell: it would put a later error in the place of a measurement.
"""

from collections.abc import Sequence
from pathlib import Path

from bench.core.files import check_own_folder, remove_abandoned, write_whole
from bench.core.reading import read_regular, user_path
from bench.core.record import Record, RecordError, path_of, read_all
from bench.core.table import write_table
from bench.errors import ConfigError, stop_with


def takes_the_place(record: Record, other: Record) -> bool:
    """Return whether a record replaces another of its cell: a good one replaces a failed one, else the newer one.

    >>> from dataclasses import replace
    >>> [old, *_] = read_all(Path("results/reference"), "fig1")
    >>> takes_the_place(replace(old, recorded_at="2099"), old), takes_the_place(old, old)
    (True, False)
    >>> takes_the_place(replace(old, recorded_at="2099", status="error"), old)
    False
    """

    def merit(one: Record) -> tuple[bool, str, str]:
        return one.status == "ok", one.recorded_at, one.to_json()  # the text decides between two of one second

    return merit(record) > merit(other)


def merge(sources: Sequence[Path], into: Path) -> tuple[list[Path], int]:
    """Copy the records of all sources, and manifests of their data, into a folder.

    Returns the places that were written, and how many records were read and not taken. Everything is read before
    anything is written, so a kill or an error leaves whole records, and the same call goes on. Raises ConfigError: a
    source holds no record. RecordError: a record cannot be read. OSError: ``into`` cannot be written.
    """
    remove_abandoned(into)
    there = {path_of(record, into): record for record in read_all(into)}
    contents: dict[Path, bytes] = {}
    count = 0
    for source in sources:
        records = read_all(source)
        if not records:
            raise ConfigError(f"FOLDER is '{source}', which holds no record; name a results folder (unpack archives).")
        count += len(records)
        for record in records:
            place = path_of(record, into)
            if place not in there or takes_the_place(record, there[place]):
                there[place] = record
                contents[place] = record.to_json().encode()
    taken = list(contents)
    for folder in {place.parents[1] for place in taken}:  # of an experiment
        for source in sources:
            for manifest in sorted((source / folder.name).glob("*.csv")):
                if not (folder / manifest.name).exists():
                    contents.setdefault(folder / manifest.name, read_regular(manifest))
    write_whole(contents)
    for experiment in sorted({record.experiment for record in there.values()}):
        write_table(into, experiment)
    return taken, count - len(taken)


def run(sources: Sequence[Path], into: Path) -> None:
    """Merge and print how many records were copied; one that cannot be read ends the program with status 2.

    Raises ConfigError, OSError: as :func:`merge`.
    """
    into = user_path("--into", into)
    check_own_folder("--into", into)
    try:
        taken, rest = merge([user_path("FOLDER", source) for source in sources], into)
    except RecordError as error:
        stop_with(f"{str(error).removesuffix('.')}; nothing was copied.")
    print(f"{into}: {len(taken)} records copied, {rest} not, since the folder has them or newer good ones")
