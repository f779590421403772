"""``python -m bench merge SOURCE [SOURCE ...]``: bring records from other folders and archives into one folder.

Every record goes to the place that its own content names, however a source is laid out. All records are read before the
first one is written: whatever cannot be read stops the merge, and nothing has changed. The outcome does not depend on
the order of the sources, and merging them once more changes nothing.
"""

import dataclasses
import json
import lzma
import sys
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench.commands.sources import SourceError, archive_contents, folder_contents, manifests
from bench.core.files import check_own_folder, remove_abandoned, write_whole
from bench.core.reading import user_path
from bench.core.record import Record, RecordError, parse, path_of, write
from bench.core.table import write_table
from bench.errors import stop_with


class MergeError(ValueError):
    """Failed merge; ``sentences`` names each file with the reason."""

    def __init__(self, sentences: Sequence[str]) -> None:
        super().__init__(" ".join(sentences))
        self.sentences = sentences


class Conflict(NamedTuple):
    """Two different records of one cell: their place, the one that lies there after the merge, and the other."""

    path: Path
    stayed: Record
    lost: Record


@dataclass
class Summary:
    """Summary of a merge: each record that was read is in exactly one of the first four lists."""

    taken: list[Path] = field(default_factory=list)  # places that had been empty
    present: list[Path] = field(default_factory=list)  # places that already held the same record
    replaced: list[Conflict] = field(default_factory=list)  # a record made way for the one that was read
    kept: list[Conflict] = field(default_factory=list)  # it stayed
    unpaired: list[Path] = field(default_factory=list)  # of records that were timed together with one that lost

    def __str__(self) -> str:
        numbers = f"{len(self.taken)} taken, {len(self.present)} already there, {len(self.replaced)} replaced"
        lines = [f"{numbers}, {len(self.kept)} kept, 0 unreadable"]
        for word, conflicts in (("replaced", self.replaced), ("kept", self.kept)):
            for path, *records in conflicts:
                stayed, lost = (f"{record.status} of {record.recorded_at}" for record in records)
                lines.append(f"{word}: {path} is now {stayed}, not {lost}")
        lines += [f"unpaired: {path} was timed together with a record that is not here now" for path in self.unpaired]
        return "\n".join(lines)


def merge(sources: Sequence[Path], into: Path) -> Summary:
    """Bring the records of all sources, folders and tar archives of any compression, into one folder.

    Raises MergeError: a source, or a record in one of them or in ``into``, cannot be read; nothing has changed then.
    OSError: ``into`` cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> first, second = (merge([Path("results/reference")], folder) for _ in range(2))
    >>> len(first.taken) == len(second.present) > 0
    True
    """
    remove_abandoned(into)
    wrong: list[str] = []
    there = {Path(name): record for name, record in _records(into, wrong)} if into.is_dir() else {}
    summary = Summary()
    for source in sources:
        mistakes = len(wrong)
        found = [record for _, record in _records(source, wrong)]
        if not found and len(wrong) == mistakes:
            wrong.append(f"{source}: no record in it; a results folder or an archive of one is expected.")
        for record in found:
            _place(record, path_of(record, into), there, summary)
    if wrong:
        raise MergeError(wrong)
    changed = {*summary.taken, *(conflict.path for conflict in summary.replaced)}
    write([there[path] for path in sorted(changed)], into)
    _take_manifests(sources, [there[path] for path in changed], into)
    for experiment in sorted({record.experiment for record in there.values()}):
        write_table(into, experiment)
    together = defaultdict(set)
    for path, record in there.items():
        together[record.pairing].add(path)
    lost = [(one.path, one.lost.pairing) for one in (*summary.replaced, *summary.kept) if one.lost.pairing]
    summary.unpaired = sorted({other for path, pairing in lost for other in together[pairing] - {path}})
    return summary


def _take_manifests(sources: Sequence[Path], records: Sequence[Record], into: Path) -> None:
    """Bring along what tells of which files a dataset is made, beside the records that were trained on it."""
    experiments = defaultdict(set)
    for record in records:
        experiments[record.dataset].add(record.experiment)
    for source in sources if records else ():
        for dataset, content in manifests(source, experiments).items():
            places = [into / experiment / f"{dataset}.csv" for experiment in sorted(experiments[dataset])]
            write_whole({place: content for place in places if not place.exists()})


def _place(record: Record, path: Path, there: dict[Path, Record], summary: Summary) -> None:
    """Give a record its place among those that are ``there``, or not."""
    other = there.setdefault(path, record)
    if other is record:
        summary.taken.append(path)
    elif other == record:
        summary.present.append(path)
    elif _merit(record) > _merit(other):
        summary.replaced.append(Conflict(path, stayed=record, lost=other))
        there[path] = record
    else:
        summary.kept.append(Conflict(path, stayed=other, lost=record))


def _merit(record: Record) -> tuple[bool, str, str]:
    """Return the key by which a record is preferred.

    The record's text comes last, so that any two different records have an order.
    """
    return record.status == "ok", record.recorded_at, json.dumps(dataclasses.asdict(record), sort_keys=True)


def _records(source: Path, wrong: list[str]) -> Iterator[tuple[str, Record]]:
    """Yield the records of a source, each with its file's name; sentences on what cannot be read go to ``wrong``."""
    try:
        for name, content in folder_contents(source) if source.is_dir() else archive_contents(source):
            try:
                record = parse(content, name)
            except RecordError as error:
                wrong.append(str(error))
            else:
                yield name, record
    except SourceError as error:
        wrong.append(str(error))
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, zlib.error) as error:
        reason = str(error).splitlines()[0].rstrip(":")
        wrong.append(f"{source}: neither a readable folder nor a whole tar archive ({reason}).")


def run(sources: Sequence[Path], into: Path) -> None:
    """Merge and print what became of the records; what keeps it from happening ends the program with status 2.

    Raises ConfigError, OSError: ``into`` cannot be written.
    """
    into = user_path("--into", into)
    check_own_folder("--into", into)
    try:
        summary = merge([user_path("SOURCE", source) for source in sources], into)
    except MergeError as error:
        *others, last = error.sentences
        for sentence in others:
            print(f"error: {sentence}", file=sys.stderr)
        stop_with(f"{last.removesuffix('.')}; nothing was merged, {len(error.sentences)} unreadable.")
    print(f"{into}: {summary}")
