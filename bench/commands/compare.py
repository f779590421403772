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
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.commands.comparison import SIZES, Comparison, Pair, compare, described, distinctions
from bench.commands.sources import Source, SourceError, read_source
from bench.core.intervals import CONFIDENCE, Estimate
from bench.core.record import Record, RecordError
from bench.errors import stop_with

#: Columns by which the cell of a row is found.
_SHARED = (
    *("experiment", "device", "measure", "method", "variant", "ratio", "batch_size", "precision", "predicted_for"),
    *("cuda_graph", "compile", "seed", "stage", "target_ratio"),
)

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
    rows = [_row(pair.a, pair) for pair in comparison.pairs]
    rows += [_row(record, None) | {"in": side} for side, several in _alone(comparison) for record in several]
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _alone(comparison: Comparison) -> tuple[tuple[str, tuple[Record, ...]], ...]:
    return ("A", comparison.only_a), ("B", comparison.only_b)


def _row(record: Record, pair: Pair | None) -> dict[str, object]:
    """A tidy row."""
    row: dict[str, object] = {"in": "both", "cell_id": record.cell_id}
    row |= {name: getattr(record, name) for name in _SHARED}
    if pair is None:
        return row
    one, other = pair.times_ms
    row |= {"status_a": pair.a.status, "status_b": pair.b.status, "step_time_ms_a": one, "step_time_ms_b": other}
    row |= {**_bounds("step_time_ratio", pair.time), "calibration_ratio": pair.calibration}
    for name in SIZES:
        one, other = pair.sizes(name)
        row |= {f"{name}_a": one, f"{name}_b": other, f"{name}_ratio": pair.ratio(name)}
    one, other = pair.metrics
    row |= {"metric": pair.a.metric.get("name"), "metric_a": one, "metric_b": other}
    return row | _bounds("metric_difference", pair.difference)


def _bounds(name: str, found: Estimate | None) -> dict[str, float | None]:
    """A value with its interval as columns."""
    ends = (found.value, found.low, found.high) if found else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def as_text(a: Source, b: Source, comparison: Comparison) -> str:
    """Tables by experiment and device, then what only one side has."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=_WIDTH, highlight=False, markup=False)
    console.print(f"A: {a.name}, {len(a.records)} records\nB: {b.name}, {len(b.records)} records\n")
    own = distinctions([pair.a for pair in comparison.pairs])
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in comparison.pairs:
        groups.setdefault((pair.a.experiment, pair.a.device), []).append(pair)
    for (experiment, device), pairs in groups.items():
        console.print(_table(f"{experiment} on {device}", pairs, own))
    for side, several in _alone(comparison):
        if several:
            console.print(_named(side, several), soft_wrap=True)
    if any(pair.time for pair in comparison.pairs):
        for note in _NOTES:
            console.print(note, soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _table(title: str, pairs: Sequence[Pair], own: dict[int, str]) -> Table:
    """The cells of one experiment and device; columns that would be empty are left out."""
    rows = [_cells(pair, own) for pair in pairs]
    names = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(Text(name), justify="left" if name == "cell" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[name]) for name in names))
    return table


def _cells(pair: Pair, own: dict[int, str]) -> dict[str, str]:
    """A row as a person reads it; a dash stands where there is nothing."""
    a, b = pair.a, pair.b
    distinction = own[id(a)]
    row = {"cell": f"{described(a)}{f' ({distinction})' if distinction else ''}"}
    row["status"] = "-" if a.status == b.status == "ok" else " -> ".join(dict.fromkeys((a.status, b.status)))
    time, (one, other) = pair.time, pair.times_ms
    row |= {"ms, A": _number(one), "ms, B": _number(other), "time B/A": "-"}
    if time:
        interval = "" if time.low is None or time.high is None else f" [{time.low:.3f}, {time.high:.3f}]"
        row["time B/A"] = f"{time.value:.3f}{interval}"
    row["calibration B/A"] = "-" if pair.calibration is None else f"{pair.calibration:.3f}"
    for column, words in (
        ("peak_memory_predicted_mib", "MiB"),
        ("peak_memory_allocated_mib", "allocated MiB"),
        ("flops_per_step", "GFLOPs"),
        ("stored_mib", "stored MiB"),
    ):
        one, other = pair.sizes(column)
        scale = 1e-9 if words == "GFLOPs" else 1.0
        row[f"{words}, A"] = _number(None if one is None else scale * one)
        row[f"{words} B/A"] = _ratio(pair.ratio(column))
    row |= {"metric": "-", "metric B-A": "-"}
    if (found := pair.difference) is not None:
        percent = a.metric["unit"] == "%"
        digits, unit = ("+.1f", " points") if percent else ("+.4g", f" {a.metric['unit']}".rstrip())
        interval = "" if found.low is None or found.high is None else f" [{found.low:{digits}}, {found.high:{digits}}]"
        row |= {"metric": a.metric["text"], "metric B-A": f"{found.value:{digits}}{interval}{unit}"}
    return row


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _ratio(value: float | None) -> str:
    """Computed values agree or do not; a difference shows however small."""
    return "-" if value is None else "=" if value == 1 else f"{value:.6g}"


def _named(side: str, records: Sequence[Record]) -> str:
    """The cells that one side alone has, by experiment and device."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.experiment, record.device), []).append(record)
    lines = [f"Only in {side}: {len(records)} cell(s)"]
    for (experiment, device), several in groups.items():
        counts = Counter(described(record) for record in several)
        names = [f"{name} ({count} cells)" if count > 1 else name for name, count in counts.items()][:_NAMED]
        more = f"; and {len(counts) - _NAMED} more names" if len(counts) > _NAMED else ""
        lines.append(f"  {experiment} on {device}: {'; '.join(names)}{more}")
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
