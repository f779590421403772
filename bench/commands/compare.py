"""``python -m bench compare A B``: the records of two results folders, or of two commits, side by side.

Two records are of one cell where experiment, device, resolved configuration, data and schema are the same. A ratio is
always B over A. A and B were measured at different times, so a ratio of times carries what the machine did in between;
blocks are resampled on either side. The ratio of the calibration products, timed in the same blocks, stands beside it.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.commands.comparison import SIZES, Both, Comparison, Pair, compare, described, distinctions
from bench.commands.sources import Source, SourceError, read_source
from bench.core.intervals import CONFIDENCE, Estimate
from bench.core.record import Record, RecordError
from bench.errors import stop_with

#: Columns by which the cell of a row is found.
_SHARED = (
    *("experiment", "device", "measure", "method", "variant", "ratio", "batch_size", "precision", "predicted_for"),
    *("cuda_graph", "compile", "seed", "stage", "target_ratio"),
)

#: Sizes of the table for people, by heading.
_PRINTED = {
    "MiB": "peak_memory_predicted_mib",
    "allocated MiB": "peak_memory_allocated_mib",
    "GFLOPs": "flops_per_step",
    "stored MiB": "stored_mib",
}

#: Names of cells that only one side has, per experiment.
_NAMED = 12

#: A terminal or a pipe gets whole lines; no table is wider.
_WIDTH = 500

_NOTES = (
    f"Ratios are B over A, with {CONFIDENCE:.0%} intervals over undisturbed blocks, each side resampled on its own.",
    "A and B are different runs: a ratio of times carries the drift of the machine between them. The ratio of the "
    "calibration product, timed in the same blocks, shows how much that may be.",
)


def as_csv(comparison: Comparison) -> str:
    """A row per cell, of both sides or one: times in ms, sizes in MiB, ratios B over A, metrics in their units."""
    buffer = io.StringIO()
    rows = [_key("both", pair.a) | _values(pair) for pair in comparison.pairs]
    rows += [_key(side, record) for side, several in comparison.alone.items() for record in several]
    writer = csv.DictWriter(buffer, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _key(side: str, record: Record) -> dict[str, object]:
    return {"in": side, "cell_id": record.cell_id} | {name: getattr(record, name) for name in _SHARED}


def _values(pair: Pair) -> dict[str, object]:
    """What a tidy row has of both sides."""

    def both(name: str, values: Both) -> dict[str, object]:
        return dict(zip((f"{name}_a", f"{name}_b"), values, strict=True))

    def bounds(name: str, found: Estimate | None) -> dict[str, object]:
        ends = (found.value, found.low, found.high) if found else (None, None, None)
        return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))

    row: dict[str, object] = {"status_a": pair.a.status, "status_b": pair.b.status}
    row |= both("step_time_ms", pair.times_ms) | bounds("step_time_ratio", pair.time)
    row["calibration_ratio"] = pair.calibration
    for name in SIZES:
        row |= both(name, pair.sizes(name)) | {f"{name}_ratio": pair.ratio(name)}
    row["metric"] = pair.a.metric.get("name")
    return row | both("metric", pair.metrics) | bounds("metric_difference", pair.difference)


def as_text(a: Source, b: Source, comparison: Comparison) -> str:
    """Tables by experiment and device, then what only one side has."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=_WIDTH, highlight=False, markup=False)
    console.print(f"A: {a.name}, {len(a.records)} records\nB: {b.name}, {len(b.records)} records\n")
    own = distinctions([pair.a for pair in comparison.pairs])
    for title, pairs in groupby(comparison.pairs, lambda pair: _title(pair.a)):
        console.print(_table(title, [_cells(pair, own[id(pair.a)]) for pair in pairs]))
    for side, several in comparison.alone.items():
        if several:
            console.print(_named(side, several), soft_wrap=True)
    if any(pair.time for pair in comparison.pairs):
        for note in _NOTES:
            console.print(note, soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _title(record: Record) -> str:
    return f"{record.experiment} on {record.device}"


def _table(title: str, rows: Sequence[dict[str, str]]) -> Table:
    """The cells of one experiment and device; columns that would be empty are left out."""
    names = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(Text(name), justify="left" if name == "cell" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[name]) for name in names))
    return table


def _cells(pair: Pair, distinction: str) -> dict[str, str]:
    """A row as a person reads it; a dash stands where there is nothing."""
    a, b, (one, other) = pair.a, pair.b, pair.times_ms
    row = {"cell": f"{described(a)}{f' ({distinction})' if distinction else ''}"}
    row["status"] = "-" if a.status == b.status == "ok" else " -> ".join(dict.fromkeys((a.status, b.status)))
    row |= {"ms, A": _number(one), "ms, B": _number(other), "time B/A": _interval(pair.time, ".3f")}
    row["calibration B/A"] = "-" if pair.calibration is None else f"{pair.calibration:.3f}"
    for heading, column in _PRINTED.items():
        size, ratio = pair.sizes(column)[0], pair.ratio(column)
        row[f"{heading}, A"] = _number(1e-9 * size if size is not None and heading == "GFLOPs" else size)
        # Computed values agree or do not; a difference shows however small.
        row[f"{heading} B/A"] = "-" if ratio is None else "=" if ratio == 1 else f"{ratio:.6g}"
    row |= {"metric": "-", "metric B-A": "-"}
    if (found := pair.difference) is not None:
        digits, unit = ("+.1f", " points") if a.metric["unit"] == "%" else ("+.4g", f" {a.metric['unit']}".rstrip())
        row |= {"metric": a.metric["text"], "metric B-A": f"{_interval(found, digits)}{unit}"}
    return row


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _interval(found: Estimate | None, digits: str) -> str:
    """A value with its interval, where there are any."""
    if found is None:
        return "-"
    ends = "" if found.low is None or found.high is None else f" [{found.low:{digits}}, {found.high:{digits}}]"
    return f"{found.value:{digits}}{ends}"


def _named(side: str, records: Iterable[Record]) -> str:
    """The cells that one side alone has, by experiment and device."""
    groups = {title: Counter(map(described, several)) for title, several in groupby(records, _title)}
    lines = [f"Only in {side}: {sum(map(Counter.total, groups.values()))} cell(s)"]
    for title, counts in groups.items():
        names = [f"{name} ({count} cells)" if count > 1 else name for name, count in counts.items()][:_NAMED]
        more = f"; and {len(counts) - _NAMED} more names" if len(counts) > _NAMED else ""
        lines.append(f"  {title}: {'; '.join(names)}{more}")
    return "\n".join([*lines, ""])


def run(first: str, second: str, experiment: str | None, form: str) -> None:
    """Compare two sources, of one experiment or all, and print the result as ``text`` or ``csv``."""
    try:
        a, b = read_source(first), read_source(second)
        comparison = compare(a, b, experiment)
        text = as_csv(comparison) if form == "csv" else as_text(a, b, comparison)
    except (SourceError, RecordError) as error:
        stop_with(str(error))
    sys.stdout.write(text)
