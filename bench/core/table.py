"""Records as tables: ``<results>/<experiment>.csv``, a line per record, and what each of its columns is.

A table is made of the records alone, so it can be made anew at any time. It has every column of
:data:`bench.core.record.COLUMNS` but ``workload_words``, in that order, then columns that newer writers have added,
then the validation metrics, ``metric_NAME``. Lines are in the order of the records' files.

``python -m bench.core.table`` prints what the columns are, the content of ``results/README.md``;
``python -m bench.core.table FOLDER`` writes the tables of a results folder.
"""

import contextlib
import csv
import dataclasses
import functools
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.core.files import write_whole
from bench.core.record import COLUMNS, Record, RecordError, paths_below, read
from bench.errors import CONF

#: Tables lack what the metrics are split from, and words that are the same on every line.
_TIDY = tuple(name for name in COLUMNS if name not in ("metrics", "workload_words"))
_KINDS = {"int": "whole number", "float": "number", "str": "text", "bool": "True or False", "dict": "object"}


def table_path(root: Path, experiment: str) -> Path:
    """Return the path of an experiment's table."""
    return root / f"{experiment}.csv"


def write_table(root: Path, experiment: str) -> None:
    """Bring the table of an experiment up to date with its records; without any there is none.

    It appears whole or not at all. Files that this process has read before are read again only if they have changed,
    so it costs little to call this after every record. What cannot be read is left out: whoever needs it will say so.
    """
    lines = []
    for path in paths_below(root, experiment):
        with contextlib.suppress(OSError, RecordError):
            status = path.stat()
            lines.append(_line_in(path, status.st_mtime_ns, status.st_size, status.st_ino))
    target, text = table_path(root, experiment), as_csv(lines)
    if lines and not (target.is_file() and target.read_text(encoding="utf-8") == text):
        write_whole({target: text.encode()})


@functools.cache
def _line_in(path: Path, *_version: int) -> dict[str, Any]:
    return line_of(read(path))


def line_of(record: Record) -> dict[str, Any]:
    """Return a record as a tidy line: plain values by column, metrics under ``metric_NAME``."""
    line = {column: getattr(record, column) for column in _TIDY}
    line |= {name: value for name, value in sorted(record.extra.items()) if not isinstance(value, dict | list)}
    return line | {f"metric_{name}": value for name, value in sorted(record.metrics.items())}


def as_csv(lines: Sequence[dict[str, Any]]) -> str:
    """Return the table of such lines as CSV; empty cells where a record has no value, numbers with all digits."""
    found = {name for line in lines for name in line}.difference(_TIDY)
    metrics = sorted(name for name in found if name.startswith("metric_"))
    return csv_of(lines, [*_TIDY, *sorted(found.difference(metrics)), *metrics])


def csv_of(lines: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """Return lines as CSV with columns in this order; a cell without a value is empty."""
    writer = csv.DictWriter(buffer := io.StringIO(), names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def readme() -> str:
    """Describe the content of a results folder, as Markdown."""

    def kind(annotation: str) -> str:
        kinds = [_KINDS[kind.partition("[")[0]] for kind in annotation.split(" | ") if kind != "None"]
        return " or ".join(kinds) + (" or empty" if "None" in annotation else "")

    rows = [
        f"| `{column.name}` | {kind(str(column.type))} | {column.metadata['unit']} | {column.metadata['text']} |\n"
        for column in dataclasses.fields(Record)
        if column.metadata
    ]
    return (CONF / "help" / "results.txt").read_text(encoding="utf-8") + "".join(rows)


if __name__ == "__main__":
    if not sys.argv[1:]:
        print(readme(), end="")
    for root in map(Path, sys.argv[1:]):
        for experiment in sorted({path.relative_to(root).parts[0] for path in paths_below(root)}):
            write_table(root, experiment)
