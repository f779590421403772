"""``python -m bench compare A B``: the records of two results folders, or of two commits, side by side.

Two records are of one cell where experiment, device, resolved configuration, data and schema are the same. A ratio is
always B over A. A and B were measured at different times, so a ratio of times carries what the machine did in between;
its bounds hold every quotient of a launch of B and one of A; from six launches on they resample either side. The ratio
of the calibration products, timed in the same blocks, stands beside it.
"""

import io
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.commands.sources import Source, read_source
from bench.core.intervals import CONFIDENCE, MIN_LAUNCHES, Estimate, mean_over_examples, unpaired_ratio
from bench.core.record import Record, RecordError
from bench.core.samples import calibrations_ms, last_per_example
from bench.core.table import csv_of
from bench.core.times import step_means_ms, step_time_ms
from bench.errors import ConfigError

#: Columns by which the cell of a row is found.
_SHARED = (
    *("experiment", "device", "measure", "method", "variant", "ratio", "batch_size", "precision", "predicted_for"),
    *("cuda_graph", "compile", "checkpoint", "seed", "stage", "target_ratio"),
    *("world_size", "exchange", "bucket_mib", "local_steps", "link_mbit"),
)

#: Sizes of the table for people, by heading.
_PRINTED = {
    "MiB": "peak_memory_predicted_mib",
    "allocated MiB": "peak_memory_allocated_mib",
    "GFLOPs": "flops_per_step",
    "stored MiB": "stored_mib",
}

_NAMED = 12  # cells that only one side has, per experiment
_WIDTH = 500  # of the widest table: a terminal or a pipe gets whole lines

_NOTES = (
    f"Ratios are B over A. In brackets: of fewer than {MIN_LAUNCHES} launches the range over launches, of one launch "
    f"over its undisturbed blocks; else a {CONFIDENCE:.0%} interval, each side resampled on its own. "
    f"Of a metric: a {CONFIDENCE:.0%} interval over validation examples.",
    "A and B are different runs: a ratio of times carries the drift of the machine between them. The ratio of the "
    "calibration product, timed in the same blocks, shows how much that may be.",
)

#: Columns of which a pair has the values and their ratio.
SIZES = (
    *("peak_memory_predicted_mib", "peak_memory_allocated_mib", "peak_memory_reserved_mib"),
    *("flops_per_step", "parameters", "stored_mib"),
)

#: A value of A and one of B.
Both = tuple[float | None, float | None]


@dataclass(frozen=True)
class ComparedPair:
    """The two records of one cell; all ratios are of B over A and None where either side has no value."""

    a: Record
    b: Record

    @property
    def time(self) -> Estimate | None:
        """The ratio of the step times."""
        one, other = _times_ms(self.a), _times_ms(self.b)
        return unpaired_ratio(other, one) if one and other else None

    @property
    def times_ms(self) -> Both:
        """The step time of each: that of :mod:`bench.core.times`, or the median of the chosen plan."""
        return _time_ms(self.a), _time_ms(self.b)

    @property
    def calibration(self) -> float | None:
        """The ratio of the times of the calibration product, each the median over blocks."""
        return _quotient(_median(calibrations_ms(self.a)), _median(calibrations_ms(self.b)))

    def sizes(self, column: str) -> Both:
        """Return a column of each; only of records that are ``ok``."""
        one, other = (getattr(record, column) if record.status == "ok" else None for record in (self.a, self.b))
        return one, other

    def ratio(self, column: str) -> float | None:
        """Return the ratio of a column."""
        return _quotient(*self.sizes(column))

    @property
    def metrics(self) -> Both:
        """The metric that leads, of each; None unless both have the same one over as many examples."""
        one, other = ((record.metric.get("name"), record.validation_examples) for record in (self.a, self.b))
        return (self.a.leading, self.b.leading) if one == other else (None, None)

    @property
    def difference(self) -> Estimate | None:
        """The leading metric of B less that of A, with an interval over validation examples where both have them."""
        one, other = self.metrics
        if one is None or other is None:
            return None
        before, after = last_per_example(self.a), last_per_example(self.b)
        if before is None or after is None:
            return Estimate(other - one, None, None, 0)
        return Estimate(*mean_over_examples((after - before)[None, :]), blocks=after.size, paired=True, kind="interval")


def _quotient(one: float | None, other: float | None) -> float | None:
    return other / one if one and other is not None else None


def _median(times: Sequence[float]) -> float | None:
    return statistics.median(times) if times else None


def _time_ms(record: Record) -> float | None:
    if record.measure == "plan":
        return _median([*_times_ms(record).values()])
    time = step_time_ms(record) if record.status == "ok" else None
    return time.value if time else None


def _times_ms(record: Record) -> Mapping[Any, float]:
    """Return repeats of a record's step time: means of undisturbed blocks, or of the plan that was chosen."""
    if record.status != "ok":
        return {}
    if record.measure != "plan":
        return step_means_ms(record)
    try:
        [chosen] = [plan for plan in record.samples["plans"] if plan["name"] == record.contraction]
        return {number: float(ms) for number, ms in enumerate(chosen["ms"])}
    except (KeyError, TypeError, ValueError):
        raise RecordError(f"record {record.cell_id}: its plans cannot be read.") from None


class Comparison(NamedTuple):
    """Pairs in the order of experiment, device and name; the records of cells that only "A" or "B" has, by side."""

    pairs: Sequence[ComparedPair]
    alone: dict[str, list[Record]]


def compare(a: Source, b: Source, experiment: str | None = None) -> Comparison:
    """Pair the records of two sources, of one experiment or all; of several records of a cell the newest counts.

    Raises ConfigError: an experiment that neither has, or records of different devices alone.
    """
    one, other = (
        {
            (record.experiment, record.device, record.cell_id): record
            for record in sorted(source.records, key=lambda record: record.recorded_at)
            if experiment in (None, record.experiment)
        }
        for source in (a, b)
    )
    if not one and not other:
        known = ", ".join(sorted({record.experiment for record in (*a.records, *b.records)}))
        raise ConfigError(f"--experiment is {experiment!r}, which neither has; allowed: {known}.")
    here, there = ({device for _, device, _ in cells} for cells in (one, other))
    if here and there and not here & there:
        left, right = (", ".join(sorted(names)) for names in (here, there))
        raise ConfigError(f"{a.name} is of {left}, {b.name} of {right}; only records of one device are compared.")
    pairs = [ComparedPair(one[key], other[key]) for key in one.keys() & other.keys()]
    alone = {"A": one.keys() - other.keys(), "B": other.keys() - one.keys()}
    return Comparison(
        sorted(pairs, key=lambda pair: _place(pair.a)),
        {side: sorted(((one | other)[key] for key in keys), key=_place) for side, keys in alone.items()},
    )


def _place(record: Record) -> tuple[str | int, ...]:
    return record.experiment, record.device, record.batch_size, record.arm, described(record), record.cell_id


def described(record: Record) -> str:
    """Return a cell in words: arm, batch and whatever else is not the usual."""
    target = "" if record.target_ratio is None else f" to {record.target_ratio:g}"
    target = target if record.target_mib is None else f" to {record.target_mib:g} MiB"
    parts = [
        f"{record.arm}, batch {record.batch_size:,}",
        record.measure == "predict" and f"for {record.predicted_for}",
        record.ratio is not None and f"ratio {record.ratio:g}",
        record.precision != "fp32" and record.precision,
        record.cuda_graph and "cuda graph",
        record.compile and "compile",
        record.stage and f"{record.stage} stage{target}",
        record.seed and f"seed {record.seed}",
    ]
    return ", ".join(part for part in parts if part)


def distinctions(records: Sequence[Record]) -> dict[int, str]:
    """Return, by identity, the settings in which cells of equal wording differ."""
    alike: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        alike.setdefault((record.experiment, record.device, described(record)), []).append(record)
    found = {}
    for several in alike.values():
        settings = [_settings(record) for record in several]
        names = sorted(set().union(*settings))
        differing = [name for name in names if len({json.dumps(one.get(name)) for one in settings}) > 1]
        for record, own in zip(several, settings, strict=True):
            found[id(record)] = ", ".join(f"{name}={own[name]}" for name in differing if name in own)
    return found


def _settings(record: Record) -> dict[str, object]:
    settings: dict[str, object] = {"data": record.dataset, "length": record.sequence_length}
    for name in ("workload_settings", "method_settings", "timing_settings", "training"):
        settings |= record.config.get(name) or {}
    return settings


def as_csv(comparison: Comparison) -> str:
    """Return a row per cell: times in ms, sizes in MiB, ratios B over A, metrics in their units.

    A row holds both sides, or the only one that has the cell.
    """
    rows = [_key("both", pair.a) | _values(pair) for pair in comparison.pairs]
    rows += [_key(side, record) for side, several in comparison.alone.items() for record in several]
    return csv_of(rows, list(dict.fromkeys(name for row in rows for name in row)))


def _key(side: str, record: Record) -> dict[str, object]:
    return {"in": side, "cell_id": record.cell_id} | {name: getattr(record, name) for name in _SHARED}


def _values(pair: ComparedPair) -> dict[str, object]:
    def both(name: str, values: Both) -> dict[str, object]:
        return {f"{name}_a": values[0], f"{name}_b": values[1]}

    def bounds(name: str, found: Estimate | None) -> dict[str, object]:
        ends = (found.value, found.low, found.high, found.kind) if found else (None, None, None, None)
        return dict(zip((name, f"{name}_low", f"{name}_high", f"{name}_bounds"), ends, strict=True))

    row: dict[str, object] = {"status_a": pair.a.status, "status_b": pair.b.status}
    row |= both("step_time_ms", pair.times_ms) | bounds("step_time_ratio", pair.time)
    row["launches"] = pair.time and pair.time.launches
    row["calibration_ratio"] = pair.calibration
    for name in SIZES:
        row |= both(name, pair.sizes(name)) | {f"{name}_ratio": pair.ratio(name)}
    row["metric"] = pair.a.metric.get("name")
    return row | both("metric", pair.metrics) | bounds("metric_difference", pair.difference)


def as_text(a: Source, b: Source, comparison: Comparison) -> str:
    """Return tables by experiment and device, then the cells of only one side."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=_WIDTH, highlight=False, markup=False)
    console.print(f"A: {a.name}, {len(a.records)} records\nB: {b.name}, {len(b.records)} records\n")
    own = distinctions([pair.a for pair in comparison.pairs])
    for title, pairs in groupby(comparison.pairs, lambda pair: _title(pair.a)):
        console.print(_table(title, [_cells(pair, own[id(pair.a)]) for pair in pairs]))
    texts = [_named(side, several) for side, several in comparison.alone.items() if several]
    for text in (*texts, *(_NOTES if any(pair.time for pair in comparison.pairs) else ())):
        console.print(text, soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _title(record: Record) -> str:
    return f"{record.experiment} on {record.device}"


def _table(title: str, rows: Sequence[dict[str, str]]) -> Table:
    names = [name for name in rows[0] if any(row[name] != "-" for row in rows)]  # no empty column
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        table.add_column(Text(name), justify="left" if name == "cell" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[name]) for name in names))
    return table


def _cells(pair: ComparedPair, distinction: str) -> dict[str, str]:
    """Return the texts of a row; a dash marks an empty cell."""
    a, b, (one, other) = pair.a, pair.b, pair.times_ms
    row = {"cell": f"{described(a)}{f' ({distinction})' if distinction else ''}"}
    row["status"] = "-" if a.status == b.status == "ok" else " -> ".join(dict.fromkeys((a.status, b.status)))
    row |= {"ms, A": _number(one), "ms, B": _number(other), "time B/A": _bounded(pair.time, ".3f")}
    row["calibration B/A"] = "-" if pair.calibration is None else f"{pair.calibration:.3f}"
    for heading, column in _PRINTED.items():
        size, ratio = pair.sizes(column)[0], pair.ratio(column)
        row[f"{heading}, A"] = _number(1e-9 * size if size is not None and heading == "GFLOPs" else size)
        # Computed values agree or do not; a difference shows however small.
        row[f"{heading} B/A"] = "-" if ratio is None else "=" if ratio == 1 else f"{ratio:.6g}"
    row |= {"metric": "-", "metric B-A": "-"}
    if (found := pair.difference) is not None:
        digits, unit = ("+.1f", " points") if a.metric["unit"] == "%" else ("+.4g", f" {a.metric['unit']}".rstrip())
        row |= {"metric": a.metric["text"], "metric B-A": f"{_bounded(found, digits)}{unit}"}
    return row


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _bounded(found: Estimate | None, digits: str) -> str:
    if found is None:
        return "-"
    ends = "" if found.low is None or found.high is None else f" [{found.low:{digits}}, {found.high:{digits}}]"
    return f"{found.value:{digits}}{ends}"


def _named(side: str, records: Iterable[Record]) -> str:
    groups = {title: Counter(map(described, several)) for title, several in groupby(records, _title)}
    lines = [f"Only in {side}: {sum(map(Counter.total, groups.values()))} cell(s)"]
    for title, counts in groups.items():
        names = [f"{name} ({count} cells)" if count > 1 else name for name, count in counts.items()][:_NAMED]
        more = f"; and {len(counts) - _NAMED} more names" if len(counts) > _NAMED else ""
        lines.append(f"  {title}: {'; '.join(names)}{more}")
    return "\n".join([*lines, ""])


def run(a: str, b: str, experiment: str | None, format: str) -> None:
    """Compare two sources, of one experiment or all, and print the result as ``text`` or ``csv``."""
    first, second = read_source(a), read_source(b)
    comparison = compare(first, second, experiment)
    sys.stdout.write(as_csv(comparison) if format == "csv" else as_text(first, second, comparison))
