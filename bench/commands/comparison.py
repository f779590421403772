"""Two sets of records, cell by cell: ratios with their intervals, and what only one of the two has."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.commands.sources import Source, SourceError
from bench.core.intervals import Estimate, mean_over_examples, unpaired_ratio
from bench.core.record import Record, RecordError
from bench.core.samples import block_means_ms, calibrations_ms, last_per_example

#: Columns of which a pair has the values and their ratio.
SIZES = (
    *("peak_memory_predicted_mib", "peak_memory_allocated_mib", "peak_memory_reserved_mib"),
    *("flops_per_step", "parameters", "stored_mib"),
)

#: A value of A and one of B.
Both = tuple[float | None, float | None]


@dataclass(frozen=True)
class Pair:
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
        """The median step time of each."""
        one, other = (statistics.median(times) if (times := _times_ms(record)) else None for record in (self.a, self.b))
        return one, other

    @property
    def calibration(self) -> float | None:
        """The ratio of the times of the calibration product, each the median over blocks."""
        one, other = calibrations_ms(self.a), calibrations_ms(self.b)
        return statistics.median(other) / statistics.median(one) if one and other else None

    def sizes(self, column: str) -> Both:
        """A column of each; only of records that are ``ok``."""
        one, other = (getattr(record, column) if record.status == "ok" else None for record in (self.a, self.b))
        return one, other

    def ratio(self, column: str) -> float | None:
        """The ratio of a column."""
        one, other = self.sizes(column)
        return other / one if one and other is not None else None

    @property
    def metrics(self) -> Both:
        """The metric that leads, of each; None unless both have the same one over as many examples."""
        one, other = ((record.metric.get("name"), record.validation_examples) for record in (self.a, self.b))
        return (self.a.leading, self.b.leading) if one == other else (None, None)

    @property
    def difference(self) -> Estimate | None:
        """The leading metric of B less that of A, with an interval where both have it for every validation example."""
        one, other = self.metrics
        if one is None or other is None:
            return None
        before, after = last_per_example(self.a), last_per_example(self.b)
        if before is None or after is None:
            return Estimate(other - one, None, None, 0)
        return Estimate(*mean_over_examples((after - before)[None, :]), blocks=after.size, paired=True)


def _times_ms(record: Record) -> list[float]:
    """What repeats of a record's step time: means of undisturbed blocks, or those of the plan that was chosen."""
    if record.status != "ok":
        return []
    if record.measure != "plan":
        return list(block_means_ms(record).values())
    try:
        [chosen] = [plan for plan in record.samples["plans"] if plan["name"] == record.contraction]
        return [float(ms) for ms in chosen["ms"]]
    except (KeyError, TypeError, ValueError):
        raise RecordError(f"record {record.cell_id}: its plans cannot be read.") from None


@dataclass(frozen=True)
class Comparison:
    """Pairs in the order of experiment, device and name; the records of cells that only "A" or "B" has, by side."""

    pairs: Sequence[Pair]
    alone: dict[str, list[Record]]


def compare(a: Source, b: Source, experiment: str | None = None) -> Comparison:
    """Pair the records of two sources, of one experiment or all; of several records of a cell the newest counts.

    Raises:
        SourceError: an experiment that neither has, or records of different devices alone.
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
        raise SourceError(f"--experiment is {experiment!r}, which neither has; allowed: {known}.")
    here, there = ({device for _, device, _ in cells} for cells in (one, other))
    if here and there and not here & there:
        left, right = (", ".join(sorted(names)) for names in (here, there))
        raise SourceError(f"{a.name} is of {left}, {b.name} of {right}; only records of one device are compared.")
    shared = sorted((one[key] for key in one if key in other), key=_place)
    return Comparison(
        [Pair(record, other[record.experiment, record.device, record.cell_id]) for record in shared],
        {
            side: sorted((record for key, record in own.items() if key not in rest), key=_place)
            for side, own, rest in (("A", one, other), ("B", other, one))
        },
    )


def _place(record: Record) -> tuple[str | int, ...]:
    return record.experiment, record.device, record.batch_size, record.arm, described(record), record.cell_id


def described(record: Record) -> str:
    """A cell in words: arm, batch and whatever else is not the usual."""
    return ", ".join(_parts(record))


def _parts(record: Record) -> Iterator[str]:
    yield f"{record.arm}, batch {record.batch_size:,}"
    if record.measure == "predict":
        yield f"for {record.predicted_for}"
    if record.ratio is not None:
        yield f"ratio {record.ratio:g}"
    if record.precision != "fp32":
        yield record.precision
    yield from (name.replace("_", " ") for name in ("cuda_graph", "compile") if getattr(record, name))
    if record.stage and record.target_mib is not None:
        yield f"{record.stage} stage to {record.target_mib:g} MiB"
    elif record.stage:
        yield f"{record.stage} stage" + (f" to {record.target_ratio:g}" if record.target_ratio is not None else "")
    if record.seed:
        yield f"seed {record.seed}"


def distinctions(records: Sequence[Record]) -> dict[int, str]:
    """By identity, the settings in which cells that read alike differ."""
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
    """The settings of a record's workload, method, timing and training by name, and its data."""
    try:
        config = json.loads(record.config_json)
    except ValueError:
        raise RecordError(f"record {record.cell_id}: its config_json is no JSON.") from None
    settings: dict[str, object] = {"data": record.dataset, "length": record.sequence_length}
    for name in ("workload_settings", "method_settings", "timing_settings", "training"):
        settings |= config.get(name) or {}
    return settings
