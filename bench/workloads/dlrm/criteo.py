"""The click log of Criteo's Kaggle challenge: from ``train.txt`` to memory-mapped arrays, once, in bounded memory.

A line is a label, 13 counts and 26 categories of eight hexadecimal digits, separated by tabs; a missing value is
empty. Reading has two passes, both of which go on where they were when they are killed:

1. ``train.txt`` is parsed in chunks: labels, ln(1 + count) (zero where a count is missing or negative), and each
   category as a 32-bit number, zero where it is missing, a file per category;
2. every category gets its rank by frequency over the whole log, the most frequent value first, equally frequent ones in
   the order of their first line.

A line that is not of this form is left out; how many those are is in ``state.json``, and ``wrong_lines.txt`` names each
with its number and the reason. The log covers seven days of about as many lines each; the last is split into validation
and test. The first pass needs memory for one chunk, the second about 20 bytes per line, 0.9 GiB for 45 million.

``python -m bench.workloads.dlrm FOLDER`` reads the log of a folder; training does it by itself.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.core.files import locked, write_whole
from bench.data.corpus import DataError
from bench.workloads.dlrm.click_log import SPLITS, Lines
from bench.workloads.dlrm.model import COUNTS, TABLES

SOURCE, DAYS = "train.txt", 7

_CHUNK = 16 * 2**20  # bytes that are parsed together
_FIELDS = 1 + COUNTS + TABLES
_HEX, _COUNT_DIGITS = 8, 10
_MULTIPLIER = np.uint32(2654435761)  # of Knuth's multiplicative hash
_STATE = "state.json"
_NEW: dict[str, Any] = {"version": 1, "offset": 0, "lines": 0, "read": 0, "wrong": 0, "digest": "", "distinct": []}

Report = Callable[[str], None]
Bytes = NDArray[np.uint8]

_VALUE = np.full(256, 255, np.uint8)  # of a hexadecimal digit; 255 where a byte is none
for _value, _digit in enumerate(b"0123456789abcdef"):
    _VALUE[_digit] = _value


class Parsed(NamedTuple):
    """The good lines of a chunk, and the others by place in the chunk with the reason."""

    labels: Bytes  # (lines,)
    counts: NDArray[np.float32]  # (lines, 13)
    categories: NDArray[np.uint32]  # (lines, 26)
    wrong: dict[int, str]


def parse(chunk: bytes) -> Parsed:
    r"""Parse whole lines, the last one with its line end, into arrays.

    >>> good = b"1\t3" + b"\t" * 12 + b"\t0000000a" * 26 + b"\n"
    >>> found = parse(good + b"0\t1\n" + good.replace(b"3", b"x"))
    >>> found.counts[0, :2].astype(float).round(3).tolist(), found.categories[0, 0].item(), found.wrong
    ([1.386, 0.0], 10, {1: '2 fields, not 40', 2: 'count 1 is no whole number'})
    """
    octets = np.frombuffer(chunk, np.uint8)
    ends = np.flatnonzero((octets == ord("\t")) | (octets == ord("\n")))
    is_last = octets[ends] == ord("\n")
    fields = np.diff(np.flatnonzero(is_last), prepend=-1)
    wrong = {int(line): f"{fields[line]} fields, not {_FIELDS}" for line in np.flatnonzero(fields != _FIELDS)}
    kept_lines = np.flatnonzero(fields == _FIELDS)
    kept = np.repeat(fields == _FIELDS, fields)
    stops = ends[kept].reshape(-1, _FIELDS)
    starts = np.concatenate([[0], ends[:-1] + 1])[kept].reshape(-1, _FIELDS)
    lengths = stops - starts
    # Whatever is read beyond a field belongs to the next one, or to the zeros behind the last.
    digits = np.concatenate([_VALUE[octets], np.zeros(max(_HEX, _COUNT_DIGITS + 1), np.uint8)])

    bad = np.zeros(lengths.shape, np.bool_)
    labels = digits[starts[:, 0]]
    bad[:, 0] = (lengths[:, 0] != 1) | (labels > 1)
    counts, bad[:, 1 : 1 + COUNTS] = _counts(octets, digits, starts[:, 1 : 1 + COUNTS], lengths[:, 1 : 1 + COUNTS])
    categories, bad[:, 1 + COUNTS :] = _categories(digits, starts[:, 1 + COUNTS :], lengths[:, 1 + COUNTS :])
    for place in np.flatnonzero(bad.any(axis=1)).tolist():
        wrong[int(kept_lines[place])] = _reason(int(bad[place].argmax()))
    good = ~bad.any(axis=1)
    return Parsed(labels[good], counts[good], categories[good], dict(sorted(wrong.items())))


def _reason(field: int) -> str:
    if field == 0:
        return "the label is neither 0 nor 1"
    if field <= COUNTS:
        return f"count {field} is no whole number"
    return f"category {field - COUNTS} is no number of {_HEX} hexadecimal digits"


def _counts(octets: Bytes, digits: Bytes, starts: Any, lengths: Any) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return ln(1 + count) of decimal fields, and a mask of the fields that are no numbers."""
    negative = (lengths > 0) & (octets[np.minimum(starts, octets.size - 1)] == ord("-"))
    values, bad = np.zeros(starts.shape, np.int64), (lengths > _COUNT_DIGITS) | (negative & (lengths == 1))
    for place in range(min(int(lengths.max(initial=0)), _COUNT_DIGITS)):
        read = (lengths > place) & (~negative if place == 0 else True)
        digit = digits[starts + place]
        bad |= read & (digit > 9)
        values = np.where(read, values * 10 + digit, values)
    return np.log1p(np.where(negative, 0, values)).astype(np.float32), bad


def _categories(digits: Bytes, starts: Any, lengths: Any) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Return the numbers of hexadecimal fields, zero for empty ones, and which fields are neither."""
    values, present = np.zeros(starts.shape, np.uint32), lengths > 0
    bad = present & (lengths != _HEX)
    for place in range(_HEX):
        digit = digits[starts + place]
        bad |= present & (digit > 15)
        values = (values << np.uint32(4)) | digit
    return np.where(present, values, 0).astype(np.uint32), bad


def _names() -> dict[str, int]:
    """Return the files that the first pass appends to, with their bytes per line."""
    return {"labels": 1, "counts": 4 * COUNTS, **{f"value{place + 1}": 4 for place in range(TABLES)}}


def prepare(folder: Path, target: Path, report: Report = lambda _: None) -> dict[str, Any]:
    """Read ``train.txt`` of ``folder`` into arrays in ``target``, or go on with it; the final state.

    Raises DataError: no such file, one that has changed since reading began, or not two lines of the log's form.
    """
    source = folder / SOURCE
    if not source.is_file():
        raise DataError(f"data_folder is '{folder}', which holds no {SOURCE} of Criteo's Kaggle log.")
    target.mkdir(parents=True, exist_ok=True)
    facts = source.stat()
    of_source = {"bytes": facts.st_size, "modified": facts.st_mtime_ns}
    with locked(target / "lock"):
        state = {**_NEW, "source": of_source}
        if (target / _STATE).is_file():
            state = json.loads((target / _STATE).read_text(encoding="utf-8"))
            if state.get("version") != _NEW["version"] or state["source"] != of_source:
                raise DataError(f"{source} has changed since '{target}' was made of it; remove that folder.")
        _parse_all(source, target, state, report)
        if state["lines"] < 2 * DAYS:
            raise DataError(f"{source} has {state['lines']} lines of Criteo's form and {state['wrong']} others.")
        _rank_all(target, state, report)
    return state


def _save(target: Path, state: Mapping[str, Any]) -> None:
    write_whole({target / _STATE: json.dumps(state, indent=1).encode()})


def _parse_all(source: Path, target: Path, state: dict[str, Any], report: Report) -> None:
    """Make the first pass. A file longer than the state covers holds an unfinished chunk, which is cut off."""
    total, begun, at_first = state["source"]["bytes"], time.monotonic(), state["read"]
    if state["offset"] >= total:
        return
    sizes = {name: size * state["lines"] for name, size in _names().items()}
    sizes["wrong_lines.txt"] = state.get("wrong_bytes", 0)
    files = {name: (target / name).open("ab") for name in sizes}
    try:
        for name, file in files.items():
            file.truncate(sizes[name])
            file.seek(0, os.SEEK_END)
        with source.open("rb") as lines:
            lines.seek(state["offset"])
            while chunk := _chunk(lines, source):
                found = parse(chunk if chunk.endswith(b"\n") else chunk + b"\n")
                files["labels"].write(found.labels.tobytes())
                files["counts"].write(found.counts.tobytes())
                for place, column in enumerate(np.ascontiguousarray(found.categories.T)):
                    files[f"value{place + 1}"].write(column.tobytes())
                first = state["read"] + 1
                for place, reason in found.wrong.items():
                    files["wrong_lines.txt"].write(f"line {first + place:,}: {reason}\n".encode())
                for file in files.values():
                    file.flush()
                    os.fsync(file.fileno())
                digest = hashlib.sha256(state["digest"].encode() + chunk).hexdigest()
                state |= {
                    "offset": lines.tell(),
                    "digest": digest,
                    "lines": state["lines"] + found.labels.size,
                    "read": state["read"] + found.labels.size + len(found.wrong),
                    "wrong": state["wrong"] + len(found.wrong),
                    "wrong_bytes": files["wrong_lines.txt"].tell(),
                }
                _save(target, state)
                rate = (state["read"] - at_first) / max(time.monotonic() - begun, 1e-9) * 60 / 1e6
                report(
                    f"{source.name}: {state['offset'] / total:.0%}, {state['read']:,} lines, {rate:.2f} million a "
                    f"minute, {state['wrong']:,} wrong"
                )
    finally:
        for file in files.values():
            file.close()


def _chunk(lines: Any, source: Path) -> bytes:
    """Return the next whole lines; the chunks of a file are always the same."""
    chunk: bytes = lines.read(_CHUNK)
    end = chunk.rfind(b"\n") + 1
    if len(chunk) < _CHUNK or not chunk:
        return chunk
    if not end:
        raise DataError(f"{source} has no line end within {_CHUNK:,} bytes; it is no log of Criteo's form.")
    lines.seek(end - len(chunk), os.SEEK_CUR)
    return chunk[:end]


def _rank_all(target: Path, state: dict[str, Any], report: Report) -> None:
    """Make the second pass; a category whose ranks are not complete is done again."""
    for place in range(len(state["distinct"]), TABLES):
        values = np.fromfile(target / f"value{place + 1}", np.uint32)
        codes, distinct = pd.factorize(values)
        del values
        ranks = np.empty(distinct.size, np.int32)
        ranks[np.argsort(-np.bincount(codes), kind="stable")] = np.arange(distinct.size, dtype=np.int32)
        with (target / f"rank{place + 1}").open("wb") as file:
            for first in range(0, codes.size, _CHUNK):
                file.write(ranks[codes[first : first + _CHUNK]].tobytes())
            file.flush()
            os.fsync(file.fileno())
        state["distinct"] = [*state["distinct"], int(distinct.size)]
        _save(target, state)
        report(f"category {place + 1} of {TABLES}: {distinct.size:,} values")


class CriteoLog:
    """The arrays that :func:`prepare` has made, in the form of :class:`bench.workloads.dlrm.click_log.ClickLog`.

    A category becomes a row by its rank, and ranks beyond the table share its last row; or, with ``hashed``, by its
    value, spread by a multiplicative hash, modulo the rows of the table.
    """

    def __init__(self, name: str, target: Path, rows: tuple[int, ...], hashed: bool) -> None:
        state = json.loads((target / _STATE).read_text(encoding="utf-8"))
        self.name, self._rows, self._hashed, self.content_hash = name, rows, hashed, state["digest"]
        lines = state["lines"]
        days = [lines // DAYS + (day < lines % DAYS) for day in range(DAYS)]
        validation = (days[-1] + 1) // 2
        self._first = dict(zip(SPLITS, (0, lines - days[-1], lines - days[-1] + validation), strict=True))
        self._size = dict(zip(SPLITS, (lines - days[-1], validation, days[-1] - validation), strict=True))
        self._labels = np.memmap(target / "labels", np.uint8, "r")
        self._counts = np.memmap(target / "counts", np.float32, "r").reshape(-1, COUNTS)
        kind, dtype = ("value", np.uint32) if hashed else ("rank", np.int32)
        self._categories = [np.memmap(target / f"{kind}{place + 1}", dtype, "r") for place in range(TABLES)]

    @property
    def ceiling(self) -> dict[str, float]:
        """Return None: the best possible score of a real log is unknown."""
        return {}

    def size(self, split: str) -> int:
        return self._size[split]

    def lines(self, split: str, first: int, last: int) -> Lines:
        """Return the lines from ``first`` to before ``last``."""
        part = slice(self._first[split] + first, self._first[split] + min(last, self._size[split]))
        categories = [
            self._row(np.asarray(one[part]), rows) for one, rows in zip(self._categories, self._rows, strict=True)
        ]
        return Lines(np.array(self._counts[part]), np.stack(categories), np.asarray(self._labels[part]) == 1)

    def _row(self, category: NDArray[Any], rows: int) -> NDArray[np.int64]:
        found = category * _MULTIPLIER % np.uint32(rows) if self._hashed else np.minimum(category, rows - 1)
        return found.astype(np.int64)


def target_of(folder: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of a log's arrays: the log's own, or the user's cache where that cannot be written."""
    own = folder / "arrays"
    if own.is_dir() or (os.access(folder, os.W_OK) and not os.statvfs(folder).f_flag & os.ST_RDONLY):
        return own
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "comera-bench" / hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
