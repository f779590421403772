"""Training runs as rows, one per slot: accuracy, sizes, step time and memory, gathered over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.core.intervals import Estimate, paired_ratio
from bench.core.record import Record, RecordError
from bench.core.samples import Values
from figures.accuracy import Percent, accuracy, difference
from figures.curve import CurvePoint, curve_of
from figures.page.table import NOT_RECORDED, OLDER, significant
from figures.records.memory import parts_of_peak
from figures.runs import DENSE, DENSE_EARLY, DENSE_RUN, Slot, Study

#: S may exceed S0 by this factor and still count as reached: both are quotients of whole numbers.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Spread:
    """A mean over seeds with the least and the greatest of them."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None where there is no value, or where a seed lacks it."""
        known = list(values)
        numbers = [value for value in known if value is not None]
        if not numbers or len(numbers) < len(known):
            return None
        return cls(sum(numbers) / len(numbers), min(numbers), max(numbers))

    def __str__(self) -> str:
        return significant(self.value)

    def text(self, unit: str) -> str:
        """With its unit and, where rounding leaves a difference, the least and the greatest."""
        low, high = significant(self.low), significant(self.high)
        return f"{self}{unit}" + (f" ({low} to {high})" if low != high else "")


@dataclass(frozen=True)
class StepTimes:
    """Step time at the trained ranks against that at the full ones, in ms; ``ratio`` is paired block by block."""

    trained: float
    full: float
    ratio: Estimate


@dataclass(frozen=True)
class Row:
    """One slot. What is not known is None; ``status`` is "ok" where at least one seed finished."""

    slot: Slot
    status: str
    mark: str  # † where a record of older code is among them
    remarks: tuple[str, ...]
    finished: Mapping[int, Record]  # by seed
    steps: int | None = None
    accuracy: Percent | None = None
    dense_then: Percent | None = None  # dense after as many steps, over the same seeds
    difference: Percent | None = None  # to it, paired
    stored: Spread | None = None  # MiB
    ratio: Spread | None = None
    tensorized: Spread | None = None  # MiB
    tensorized_ratio: Spread | None = None
    size: Spread | None = None  # S
    wished: Spread | None = None  # S0
    size_met: bool | None = None  # S <= S0 for every seed
    nothing_cut: bool = False  # the ranks are still the full ones
    times: StepTimes | None = None
    peak: Spread | None = None  # predicted, MiB
    peak_parts: tuple[tuple[str, float], ...] = ()

    @property
    def label(self) -> str:
        return f"{self.slot.label} {self.mark}".rstrip()


def final_answers(runs: Mapping[int, Record]) -> dict[int, Values]:
    """By seed, the validation examples that the trained model answered rightly."""
    return {seed: curve_of(run)[-1].answers for seed, run in runs.items()}


def _dense_points(study: Study, step: int) -> dict[int, CurvePoint]:
    """By seed, dense after about ``step`` steps: the nearest point of its curve, at most half an epoch away."""
    reach = (study.steps_per_epoch or 0) / 2
    points = {}
    for seed in study.seeds:
        runs = [study.finished(slot).get(seed) for slot in (DENSE_RUN, DENSE_EARLY)]
        curves = [point for run in runs if run is not None for point in curve_of(run)]
        near = min(curves, key=lambda point: abs(point.step - step), default=None)
        if near is not None and abs(near.step - step) <= reach:
            points[seed] = near
    return points


def _block_means(record: Record, name: str) -> list[float]:
    """Mean step time in ms of each block at the ``trained`` or at the ``full`` ranks."""
    times = record.samples["step_ms"]
    blocks = times.get(name) if isinstance(times, dict) else None
    good = isinstance(blocks, list) and all(isinstance(block, list) and block for block in blocks)
    if not blocks or not good or not all(isinstance(ms, int | float) and ms > 0 for block in blocks for ms in block):
        raise RecordError(f"record {record.cell_id}: samples.step_ms.{name} must be blocks of times above 0.")
    return [sum(block) / len(block) for block in blocks]


def _step_times(runs: Mapping[int, Record]) -> StepTimes | None:
    timed = [run for run in runs.values() if run.samples.get("step_ms")]
    if not timed:
        return None
    pairs: list[tuple[float, float]] = []
    for run in timed:
        trained, full = _block_means(run, "trained"), _block_means(run, "full")
        if len(trained) != len(full):
            raise RecordError(f"record {run.cell_id}: samples.step_ms has {len(trained)} and {len(full)} blocks.")
        pairs += zip(trained, full, strict=True)
    ratio = paired_ratio(
        {number: trained for number, (trained, _) in enumerate(pairs)},
        {number: full for number, (_, full) in enumerate(pairs)},
    )
    trained_ms, full_ms = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    return StepTimes(trained_ms, full_ms, ratio)


def size_met(run: Record) -> bool | None:
    """Whether S <= S0; None where the run aimed at no size."""
    if run.size_fraction is None or run.size_target is None:
        return None
    return run.size_fraction <= run.size_target * _ROUNDING


def _peak_parts(runs: Iterable[Record]) -> tuple[tuple[str, float], ...]:
    """Mean peak by category."""
    split: dict[str, float] = {}
    known = [run for run in runs if run.peak_memory_predicted_mib is not None]
    for run in known:
        for name, mib in parts_of_peak(run, run.peak_memory_predicted_mib or 0.0):
            split[name] = split.get(name, 0.0) + mib / len(known)
    return tuple(split.items())


def _quotient(above: float | None, below: float | None) -> float | None:
    """None where one is unknown, or where nothing is left to divide by."""
    return above / below if above and below else None


def _deadline(run: Record) -> str:
    """What had to be done to meet the target of a late stage in time; empty where nothing had."""
    if run.size_at_deadline is None:
        return ""
    return f"S was {run.size_at_deadline:.3f} when S0 had to be met, so ranks were closed, smallest entries first"


def _status(study: Study, slot: Slot) -> tuple[str, tuple[str, ...]]:
    """The status of a slot, and a sentence on every seed that has no finished run or something to say."""
    runs = {seed: study.runs.get((slot, seed)) for seed in study.seeds}
    if all(run is None for run in runs.values()):
        return NOT_RECORDED, ()
    remarks: dict[str, list[str]] = {}
    for seed, run in runs.items():
        status = NOT_RECORDED if run is None else run.status
        said = "" if run is None else "; ".join(filter(None, (run.message, _deadline(run))))
        if status != "ok" or said:
            words = ": ".join(filter(None, ("" if status == "ok" else status, said)))
            remarks.setdefault(words, []).append(str(seed))
    lines = tuple(f"seed {', '.join(seeds)}: {words}" for words, seeds in remarks.items())
    if any(run is not None and run.status == "ok" for run in runs.values()):
        return "ok", lines
    return " / ".join(dict.fromkeys(run.status for run in runs.values() if run is not None)), lines


def _row(study: Study, slot: Slot) -> Row:
    status, remarks = _status(study, slot)
    runs = study.finished(slot)
    older = any(
        study.runs[slot, seed].cell_id in study.older_code for seed in study.seeds if (slot, seed) in study.runs
    )
    mark = OLDER if older else ""
    if not runs:
        return Row(slot, status, mark, remarks, runs)
    records = list(runs.values())
    answers = final_answers(runs)
    ends = [curve_of(run)[-1] for run in records]
    step = max(point.step for point in ends)
    dense = {seed: point for seed, point in _dense_points(study, step).items() if seed in runs}
    if slot.arm == DENSE:
        dense = {}
    apart = sorted({abs(point.step - step) for point in dense.values()} - {0})
    if apart:
        remarks = (*remarks, f"dense is compared up to {apart[-1]} steps before or after")
    if not dense and slot.arm != DENSE and (study.finished(DENSE_RUN) or study.finished(DENSE_EARLY)):
        remarks = (*remarks, "dense has no accuracy after as many steps of the same seed")
    if dense and len(dense) < len(runs):
        remarks = (*remarks, f"compared with dense over seed {', '.join(map(str, sorted(dense)))} only")
    theirs = {seed: point.answers for seed, point in dense.items()}
    met = [size_met(run) for run in records]
    before = [run.samples.get("ranks_before") for run in records]
    return Row(
        slot,
        status,
        mark,
        remarks,
        runs,
        steps=step,
        accuracy=accuracy(answers),
        dense_then=accuracy(theirs) if theirs else None,
        difference=difference(answers, theirs),
        stored=Spread.of(run.stored_mib for run in records),
        ratio=Spread.of(_quotient(run.dense_mib, run.stored_mib) for run in records),
        tensorized=Spread.of(run.tensorized_mib for run in records),
        tensorized_ratio=Spread.of(_quotient(run.dense_tensorized_mib, run.tensorized_mib) for run in records),
        size=Spread.of(run.size_fraction for run in records),
        wished=Spread.of(run.size_target for run in records),
        size_met=None if set(met) <= {None} else False not in met,
        nothing_cut=any(before) and all(
            {name: tuple(ranks) for name, ranks in (was or {}).items()} == dict(end.ranks)
            for was, end in zip(before, ends, strict=True)
        ),
        times=_step_times(runs),
        peak=Spread.of(run.peak_memory_predicted_mib for run in records),
        peak_parts=_peak_parts(records),
    )  # fmt: skip


def rows_of(study: Study) -> list[Row]:
    """Every slot of a study, those without a run too."""
    return [_row(study, slot) for slot in study.slots]
