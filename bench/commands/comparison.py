"""Two sets of records, cell by cell: ratios with their intervals, and what only one of the two has."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
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

#: Experiment, device and cell.
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Pair:
    """The two records of one cell."""

    a: Record
    b: Record

    @property
    def time(self) -> Estimate | None:
        """Step time of B over A; None where either has none."""
        times = _times_ms(self.a), _times_ms(self.b)
        return unpaired_ratio(times[1], times[0]) if all(times) else None

    @property
    def times_ms(self) -> tuple[float | None, float | None]:
        """The median step time of each."""
        one, other = (statistics.median(times) if (times := _times_ms(record)) else None for record in (self.a, self.b))
        return one, other

    @property
    def calibration(self) -> float | None:
        """Time of the calibration product of B over A, as the ratio of medians over blocks."""
        one, other = calibrations_ms(self.a), calibrations_ms(self.b)
        return statistics.median(other) / statistics.median(one) if one and other else None

    def sizes(self, column: str) -> tuple[float | None, float | None]:
        """A column of each; only of records that are ``ok``."""
        one, other = (getattr(record, column) if record.status == "ok" else None for record in (self.a, self.b))
        return one, other

    def ratio(self, column: str) -> float | None:
        """A column of B over A."""
        one, other = self.sizes(column)
        return other / one if one and other is not None else None

    @property
    def metrics(self) -> tuple[float | None, float | None]:
        """The metric that leads, of each; None unless both have the same one over as many examples."""
        same = self.a.metric.get("name") == self.b.metric.get("name")
        if not same or self.a.validation_examples != self.b.validation_examples:
            return None, None
        return self.a.leading, self.b.leading

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
    """Pairs in the order of experiment, device and name; the records of cells that only one side has."""

    pairs: tuple[Pair, ...]
    only_a: tuple[Record, ...]
    only_b: tuple[Record, ...]


def compare(a: Source, b: Source, experiment: str | None = None) -> Comparison:
    """Pair the records of two sources.

    Args:
        a, b: the two.
        experiment: the only one to look at, or None for all.

    Raises:
        SourceError: an experiment that neither has, or records of different devices alone.
    """
    one, other = (_by_cell(source, experiment) for source in (a, b))
    if not one and not other:
        known = ", ".join(sorted({record.experiment for record in (*a.records, *b.records)}))
        raise SourceError(f"--experiment is {experiment!r}, which neither has; allowed: {known}.")
    devices = [{device for _, device, _ in cells} for cells in (one, other)]
    if all(devices) and not devices[0] & devices[1]:
        names = [", ".join(sorted(names)) for names in devices]
        raise SourceError(
            f"{a.name} is of {names[0]}, {b.name} of {names[1]}; only records of one device are compared."
        )
    shared = sorted(set(one) & set(other), key=lambda key: (*key[:2], _order(one[key]), key[2]))
    return Comparison(
        tuple(Pair(one[key], other[key]) for key in shared),
        *(tuple(_sorted(mine[key] for key in set(mine) - set(shared))) for mine in (one, other)),
    )


def _by_cell(source: Source, experiment: str | None) -> dict[Key, Record]:
    """The newest record of each cell."""
    found: dict[Key, Record] = {}
    for record in sorted(source.records, key=lambda record: record.recorded_at):
        if experiment in (None, record.experiment):
            found[record.experiment, record.device, record.cell_id] = record
    return found


def _order(record: Record) -> tuple[int, str, str]:
    return record.batch_size, record.arm, described(record)


def _sorted(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda record: (record.experiment, record.device, *_order(record), record.cell_id))


def described(record: Record) -> str:
    """A cell in words: arm, batch and whatever else is not the usual."""
    parts = [f"{record.arm}, batch {record.batch_size:,}"]
    parts += [f"for {record.predicted_for}"] if record.measure == "predict" else []
    parts += [f"ratio {record.ratio:g}"] if record.ratio is not None else []
    parts += [record.precision] if record.precision != "fp32" else []
    parts += [name.replace("_", " ") for name in ("cuda_graph", "compile") if getattr(record, name)]
    if record.stage:
        target = f" to {record.target_ratio:g}" if record.target_ratio is not None else ""
        target = f" to {record.target_mib:g} MiB" if record.target_mib is not None else target
        parts.append(f"{record.stage} stage{target}")
    parts += [f"seed {record.seed}"] if record.seed else []
    return ", ".join(parts)


def distinctions(records: Sequence[Record]) -> dict[int, str]:
    """By identity, the settings in which cells that read alike differ."""
    alike: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        alike.setdefault((record.experiment, record.device, described(record)), []).append(record)
    found = {}
    for several in alike.values():
        settings = [_settings(record) for record in several]
        names = sorted({name for one in settings for name in one})
        differing = [name for name in names if len({json.dumps(one.get(name)) for one in settings}) > 1]
        for record, own in zip(several, settings, strict=True):
            found[id(record)] = ", ".join(f"{name}={own[name]}" for name in differing if name in own)
    return found


def _settings(record: Record) -> dict[str, object]:
    """The settings of a record's workload, method and timing by name, and its data."""
    try:
        config = json.loads(record.config_json)
    except ValueError:
        raise RecordError(f"record {record.cell_id}: its config_json is no JSON.") from None
    parts = [config.get(name) or {} for name in ("workload_settings", "method_settings", "timing_settings", "training")]
    return {"data": record.dataset, "length": record.sequence_length} | {
        n: v for part in parts for n, v in part.items()
    }
