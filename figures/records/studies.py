"""Choose the training runs of one page, of one device, dataset and setting, and gather what each arm reached.

A study has at most one run per arm, stage and seed; a search has one per setting of the method besides.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

from bench.core.intervals import Estimate, paired_ratio
from bench.core.record import Record, RecordError
from figures.records import select
from figures.records.cells import parts_of_peak, quotient
from figures.records.metric import Metric, Score, difference, score
from figures.records.select import COMERA, DENSE, Setting, config_of, method_settings
from figures.records.sizes import FULL_SIZE_PARAMETERS
from figures.records.time_values import PAPER_EXAMPLES, time_of, workload_words
from figures.records.training import CurvePoint, TrainingSlot, curve_of, metric_of, ranks_before, slot_of, stages_of
from figures.text import NOT_RECORDED, significant

#: The experiment that the figures of training show unless asked for another.
EXPERIMENT = "accuracy"

#: The experiments of the probes that models must beat.
PROBES = ("probe", "probe_code", "probe_dlrm")

#: Its stages, and the targets of its late ones, which it is expected to have.
PAPER_STAGES = ("early", "late")
PAPER_TARGETS = (0.8, 0.5, 0.2)

DENSE_RUN, EARLY = TrainingSlot(DENSE, PAPER_STAGES), TrainingSlot(COMERA, PAPER_STAGES[:1])

#: How many times smaller a trained model is than the dense one, and its layers than the weights they stand in for.
RATIOS = {"total_ratio": ("dense_mib", "stored_mib"), "tensorized_ratio": ("dense_tensorized_mib", "tensorized_mib")}

#: S may exceed S0 by this factor and still count as reached: both are quotients of whole numbers.
_ROUNDING = 1 + 1e-9

#: FP32 numbers in a MiB.
_PER_MIB = 2**20 / 4


def late(target: float) -> TrainingSlot:
    """CoMERA's late stage toward a share of the tensorized size."""
    return TrainingSlot(COMERA, PAPER_STAGES, target)


@dataclass(frozen=True, kw_only=True)
class Runs(select.Selected):
    """The training records that one page shows, of one experiment, device, workload, dataset and setting."""

    experiment: str
    dataset: str
    probe: Record | None = None  # the newest of these data
    timed: Sequence[Record] = ()  # steps of the same device, data and workload, where another experiment lent them

    @property
    def seeds(self) -> list[int]:
        return self.values("seed")

    @property
    def metric(self) -> Metric:
        """The metric that leads, with the probe of its own record, where there is one."""
        metric, probe = metric_of(self.shown[-1]), self.probe
        if probe is None or metric.name not in probe.metrics:
            return metric
        return replace(metric, probe=probe.metrics[metric.name], probe_text=str(probe.samples["best"]))

    @property
    def late_probe(self) -> float | None:
        """Return what the best probe reaches on the data of a late stage, where these differ."""
        late = self.probe.samples.get("late") if self.probe else None
        return float(late["probes"][late["best"]]["metrics"][self.metric.name]) if late else None

    @property
    def model(self) -> Mapping[str, Any]:
        return select.workload_settings(self.shown[0])

    @property
    def finished_runs(self) -> list[Record]:
        return [record for record in self.shown if record.status == "ok"]

    @cached_property
    def values_are(self) -> Literal["answers", "numbers", "none"]:
        """Return the kind of values that each validation example has; without a finished run, answers."""
        found = [curve_of(run)[-1].per_example for run in self.finished_runs]
        known = [values for values in found if values is not None]
        if len(known) < len(found):
            return "none"
        return "answers" if all(map(self.metric.are_answers, known)) else "numbers"

    @property
    def steps_per_epoch(self) -> int | None:
        return config_of(self.shown[0])["training"].get("steps_per_epoch")

    @cached_property
    def stages(self) -> list[tuple[str, int]]:
        runs = [[(str(stage["name"]), int(stage["steps"])) for stage in stages_of(record)] for record in self.shown]
        return max(runs, key=lambda run: (len(run), sum(steps for _, steps in run)))

    @property
    def is_papers(self) -> bool:
        """Return whether the workload has the epoch of the paper's encoder."""
        return all(workload_words(record)["examples_per_epoch"] == PAPER_EXAMPLES for record in self.shown)

    @property
    def dense_parameters(self) -> int | None:
        """Parameters of the dense model; None where no run finished."""
        return round(max((run.dense_mib or 0.0 for run in self.finished_runs), default=0.0) * _PER_MIB) or None

    @property
    def is_full_size(self) -> bool:
        """Return whether the model is the paper's, apart from the number of classes."""
        more_classes, class_row = self.model.get("classes", 3) - 3, self.model.get("width", 768) + 1
        return self.dense_parameters == FULL_SIZE_PARAMETERS + more_classes * class_row


@dataclass(frozen=True, kw_only=True)
class Study(Runs):
    """At most one run per slot and seed; a run that was never made is absent from ``runs``."""

    slots: tuple[TrainingSlot, ...]  # those found and those expected, in drawing order
    runs: Mapping[tuple[TrainingSlot, int], Record]

    @property
    def depth(self) -> int:
        """Stages of the longest run."""
        return max(len(slot.stages) for slot in self.slots)

    @cached_property
    def rows(self) -> list[StudyRow]:
        return [StudyRow(self, slot) for slot in self.slots]

    def row(self, slot: TrainingSlot) -> StudyRow:
        """Return the row of a slot, also where nothing was expected or recorded for it."""
        return next((row for row in self.rows if row.slot == slot), StudyRow(self, slot))


def _setting(record: Record) -> Setting:
    """Return the settings that all runs of a page share, by their names in notes."""
    first = stages_of(record)[0]  # which checks what is read below
    training = config_of(record)["training"]
    return {
        "data": record.data_hash,
        "precision": record.precision,
        "batch": record.batch_size,
        "CUDA Graph": record.cuda_graph,
        "compile": record.compile,
        "metric": metric_of(record).name,
        f"{first['name']} steps": first["steps"],
        "steps per epoch": training.get("steps_per_epoch"),
        "equal shapes": training.get("static"),
        **select.ranks_setting(record),
        **select.model_setting(record),
    }


def _budget(record: Record) -> Setting:
    return {f"{stage['name']} steps": stage["steps"] for stage in stages_of(record)}


def _but_for_the_ratio(record: Record) -> Setting:
    return {name: value for name, value in method_settings(record).items() if name != "ratio"}


def _run(record: Record) -> tuple[TrainingSlot, int]:
    return slot_of(record), record.seed


def _comparable(records: list[Record]) -> tuple[list[Record], list[str]]:
    """Keep the records of one setting and budget; return them with sentences on the others."""
    what = "training record(s) of this device and dataset"
    kept, notes = select.narrow(records, _setting, _run, what)
    kept, more = select.narrow_each(kept, lambda record: len(stages_of(record)), _budget, _run, what)
    return kept, notes + more


def _expected(experiment: str, is_papers: bool, found: Collection[TrainingSlot]) -> set[TrainingSlot]:
    """Return the slots that an experiment should have.

    The paper's experiment has all of its own. Any other has, for the arms with records: the stage before each stage
    with a target, every ratio of a sweep, and dense through all stages.
    """
    if experiment == EXPERIMENT and is_papers:
        return {DENSE_RUN, EARLY, *map(late, PAPER_TARGETS)}
    ratios = {slot.ratio for slot in found if slot.ratio is not None}
    before = {replace(slot, stages=slot.stages[:-1], target=None, target_mib=None) for slot in found if slot.has_target}
    swept = {slot for slot in {*found, *before} if slot.ratio is not None and not slot.has_target}
    expected = before | {replace(slot, ratio=ratio) for slot in swept for ratio in ratios}
    if any(slot.arm == DENSE for slot in found):
        expected.add(TrainingSlot(DENSE, max((slot.stages for slot in found), key=len)))
    return expected


def _study(records: list[Record], about: dict[str, Any]) -> Study:
    kept, notes = _comparable(records)
    kept, more = select.narrow_each(
        kept, lambda record: record.arm, _but_for_the_ratio, _run, "training record(s) of {}"
    )
    runs, found = select.newest(kept, _run), {slot_of(record) for record in kept}
    about["shown"] = select.oldest_first(runs.values())
    about["left_out"] = (*notes, *more, *select.repeats(kept, _run, "training record(s)"))
    expected = _expected(about["experiment"], Runs(**about).is_papers, found)
    return Study(**about, slots=tuple(sorted({*expected, *found}, key=lambda slot: slot.rank)), runs=runs)


def _search(records: list[Record], about: dict[str, Any]) -> Runs:
    def cell(record: Record) -> Hashable:
        return *_run(record), json.dumps(method_settings(record), sort_keys=True)

    kept, notes = _comparable(records)
    shown = select.oldest_first(select.newest(kept, cell).values())
    return Runs(**about, shown=shown, left_out=(*notes, *select.repeats(kept, cell, "training record(s)")))


def newest_probes(records: Iterable[Record]) -> dict[tuple[str, str], Record]:
    """Return the newest finished probe by dataset and workload."""
    found = [one for one in select.oldest_first(records) if one.measure == "probe" and one.status == "ok"]
    return {(one.dataset, one.workload): one for one in found}


def _by_dataset(records: Iterable[Record]) -> list[tuple[list[Record], dict[str, Any]]]:
    """Group training records by experiment, device, dataset and workload, with the fields of their page."""
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    records = list(records)
    probes = newest_probes(records)
    timed: dict[tuple[str, str, str], list[Record]] = {}
    for one in select.oldest_first(records):
        if one.measure == "run" and one.status == "ok":
            timed.setdefault((one.device, one.dataset, one.workload), []).append(one)
        elif one.measure == "train":
            groups.setdefault((one.experiment, one.device, one.dataset, one.workload), []).append(one)
    pages = []
    for key, found in sorted(groups.items(), key=lambda group: group[0]):
        experiment, device, dataset, workload = key
        several = sum(other[:3] == key[:3] for other in groups) > 1
        data = (dataset, workload) if several else (dataset,)
        about = {"experiment": experiment, "device": device, "dataset": dataset, "kind": select.device_kind(found)}
        suffix = (*data, *([experiment] if experiment != EXPERIMENT else []))
        place = {"place": ", ".join(data), "suffix": suffix, "probe": probes.get((dataset, workload))}
        pages.append((found, {**about, **place, "timed": timed.get(key[1:], ())}))
    return pages


def studies(records: Iterable[Record]) -> list[Study]:
    """Return a study per experiment, device, dataset and workload, sorted; records of other measures are ignored."""
    return [_study(*group) for group in _by_dataset(records)]


def searches(records: Iterable[Record]) -> list[Runs]:
    """Return pages as :func:`studies` does, with a run per setting of the method."""
    return [_search(*group) for group in _by_dataset(records)]


@dataclass(frozen=True)
class Spread:
    """A mean over seeds with the least and the greatest of them."""

    value: float
    low: float
    high: float
    kind: ClassVar = "range"

    @classmethod
    def of(cls, values: Collection[float | None]) -> Spread | None:
        """Return the spread of values; None without any, or where a seed lacks it."""
        numbers = [value for value in values if value is not None]
        if not numbers or len(numbers) < len(values):
            return None
        return cls(sum(numbers) / len(numbers), min(numbers), max(numbers))

    def __str__(self) -> str:
        return significant(self.value)

    def text(self, unit: str) -> str:
        """With its unit and, where rounding leaves a difference, the least and the greatest."""
        low, high = significant(self.low), significant(self.high)
        return f"{self}{unit}" + (f" ({low} to {high})" if low != high else "")


class StepTimes(NamedTuple):
    """Step time at the trained ranks against that at the full ones, in ms; ``ratio`` is paired block by block."""

    trained: float
    full: float
    ratio: Estimate


def _block_means(record: Record, name: str) -> list[float]:
    """Mean step time in ms of each block at the ``trained`` or at the ``full`` ranks."""
    times = record.samples["step_ms"]
    blocks = times.get(name) if isinstance(times, dict) else None
    good = isinstance(blocks, list) and all(isinstance(block, list) and block for block in blocks)
    if not blocks or not good or not all(isinstance(ms, int | float) and ms > 0 for block in blocks for ms in block):
        raise RecordError(f"record {record.cell_id}: samples.step_ms.{name} must be blocks of times above 0.")
    return [sum(block) / len(block) for block in blocks]


def size_met(run: Record) -> bool | None:
    """Return whether S <= S0; None where the run aimed at no size."""
    size, target = run.size_fraction, run.size_target
    return None if size is None or target is None else size <= target * _ROUNDING


def _outcome(run: Record | None) -> str:
    """Return the status and message of one seed's run; empty for a run without anything to report."""
    if run is None:
        return NOT_RECORDED
    messages, at_end = [run.message] if run.message else [], run.size_at_deadline
    if at_end is not None:
        messages.append(f"S was {at_end:.3f} when S0 had to be met, so ranks were closed, smallest entries first")
    return ": ".join(filter(None, ("" if run.status == "ok" else run.status, "; ".join(messages))))


@dataclass(frozen=True, eq=False)
class StudyRow:
    """One slot of a study over its seeds; unknown values are None."""

    study: Study
    slot: TrainingSlot

    @cached_property
    def runs(self) -> dict[int, Record | None]:
        return {seed: self.study.runs.get((self.slot, seed)) for seed in self.study.seeds}

    @cached_property
    def finished(self) -> dict[int, Record]:
        return {seed: run for seed, run in self.runs.items() if run is not None and run.status == "ok"}

    @property
    def status(self) -> str:
        """``ok`` where at least one seed finished."""
        found = [run.status for run in self.runs.values() if run is not None]
        return "ok" if self.finished else " / ".join(dict.fromkeys(found)) or NOT_RECORDED

    @property
    def mark(self) -> str:
        return max(map(self.study.older, self.runs.values()), default="")

    @property
    def is_whole_dense(self) -> bool:
        return self.slot.arm == DENSE and len(self.slot.stages) == self.study.depth

    @property
    def name(self) -> str:
        """Return the name in tables and legends."""
        slot, is_part = self.slot, len(self.slot.stages) < self.study.depth
        arm = slot.arm if slot.ratio is None else f"{slot.arm} {slot.ratio:g}x"
        if slot.has_target or (is_part and slot.arm.partition(":")[0] == COMERA):
            return f"{arm}, {slot.goal}"
        return f"{arm}, {slot.stage} stage alone" if is_part else arm

    @property
    def label(self) -> str:
        return f"{self.name} {self.mark}".rstrip()

    @cached_property
    def remarks(self) -> list[str]:
        """Return a remark per seed that failed, is missing or has a message, then how dense was compared."""
        if self.status == NOT_RECORDED:
            return []
        seeds: dict[str, list[str]] = {}
        for seed, run in self.runs.items():
            seeds.setdefault(_outcome(run), []).append(str(seed))
        lines = [f"seed {', '.join(which)}: {words}" for words, which in seeds.items() if words]
        dense = self._dense_points
        if apart := max((abs(point.step - (self.steps or 0)) for point in dense.values()), default=0):
            lines.append(f"dense is compared up to {apart} steps before or after")
        if self.finished and not dense and self.slot.arm != DENSE and self._dense_runs:
            lines.append(f"dense has no {self.study.metric.short} after as many steps of the same seed")
        if 0 < len(dense) < len(self.finished):
            lines.append(f"compared with dense over seed {', '.join(map(str, sorted(dense)))} only")
        return lines

    @cached_property
    def _ends(self) -> dict[int, CurvePoint]:
        return {seed: curve_of(run)[-1] for seed, run in self.finished.items()}

    @property
    def steps(self) -> int | None:
        return max((point.step for point in self._ends.values()), default=None)

    @cached_property
    def score(self) -> Score | None:
        return score(self.study.metric, self._ends) if self._ends else None

    @property
    def _dense_runs(self) -> list[dict[int, Record]]:
        return [row.finished for row in self.study.rows if row.slot.arm == DENSE and row.finished]

    @cached_property
    def _dense_points(self) -> dict[int, CurvePoint]:
        """Return by seed the nearest point of dense's curve, at most half an epoch away."""
        points: dict[int, CurvePoint] = {}
        for seed in self.finished if self.slot.arm != DENSE else ():
            curves = [point for runs in self._dense_runs if seed in runs for point in curve_of(runs[seed])]
            apart = {abs(point.step - (self.steps or 0)): point for point in reversed(curves)}
            if apart and min(apart) <= (self.study.steps_per_epoch or 0) / 2:
                points[seed] = apart[min(apart)]
        return points

    @cached_property
    def dense_score(self) -> Score | None:
        return score(self.study.metric, self._dense_points) if self._dense_points else None

    @cached_property
    def less_dense(self) -> Score | None:
        return difference(self.study.metric, self._ends, self._dense_points)

    def less(self, other: StudyRow) -> Score | None:
        """Return the difference to another row, paired by seed and example."""
        return difference(self.study.metric, self._ends, other._ends)

    def spread(self, column: str) -> Spread | None:
        """Return a column of the finished runs' records, or one of :data:`RATIOS`, over seeds."""
        runs = self.finished.values()
        if column not in RATIOS:
            return Spread.of([getattr(run, column) for run in runs])
        above, below = RATIOS[column]
        return Spread.of([quotient(getattr(run, above), getattr(run, below)) for run in runs])

    def mean(self, column: str) -> float | None:
        """Return the mean of a column over seeds."""
        spread = self.spread(column)
        return spread.value if spread else None

    @cached_property
    def timed(self) -> list[Record]:
        """Return the records that time a step of this arm apart, on the study's model and batch."""
        shown = self.study.shown[0]
        return [
            one
            for one in self.study.timed
            if (one.arm, one.batch_size, one.precision) == (self.slot.arm, shown.batch_size, shown.precision)
            and (self.slot.ratio is None or one.ratio == self.slot.ratio)
            and select.model_setting(one) == select.model_setting(shown)
        ]

    @cached_property
    def step(self) -> Estimate | None:
        """Return the step time in ms, where it was timed apart; the median of several such times."""
        times = [time.total for one in self.timed if (time := time_of(one, "step"))]
        return sorted(times, key=lambda time: time.value)[len(times) // 2] if times else None

    @property
    def size_met(self) -> bool | None:
        """Return whether S <= S0 for every seed."""
        met = {size_met(run) for run in self.finished.values()}
        return None if met <= {None} else False not in met

    @property
    def nothing_cut(self) -> bool:
        """Return whether the ranks are still the full ones."""
        before = {seed: ranks_before(run) for seed, run in self.finished.items()}
        return any(before.values()) and all(before[seed] == end.ranks for seed, end in self._ends.items())

    @cached_property
    def times(self) -> StepTimes | None:
        """Return step times over the blocks of all seeds."""
        pairs: list[tuple[float, float]] = []
        for run in self.finished.values():
            if run.samples.get("step_ms"):
                trained, full = _block_means(run, "trained"), _block_means(run, "full")
                if len(trained) != len(full):
                    blocks = f"{len(trained)} and {len(full)} blocks"
                    raise RecordError(f"record {run.cell_id}: samples.step_ms has {blocks}.")
                pairs += zip(trained, full, strict=True)
        if not pairs:
            return None
        above, below = zip(*pairs, strict=True)
        ratio = paired_ratio(dict(enumerate(above)), dict(enumerate(below)))
        return StepTimes(sum(above) / len(pairs), sum(below) / len(pairs), ratio)

    @property
    def peak_parts(self) -> dict[str, float]:
        """Return the mean predicted peak memory in MiB, by category."""
        peaks = [(run, run.peak_memory_predicted_mib) for run in self.finished.values()]
        known = [(run, peak) for run, peak in peaks if peak is not None]
        split: dict[str, float] = {}
        for name, mib in (part for run, peak in known for part in parts_of_peak(run, peak)):
            split[name] = split.get(name, 0.0) + mib / len(known)
        return split
