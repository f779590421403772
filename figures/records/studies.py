"""Choose the training runs of one page, of one device, dataset and setting, and gather what each arm reached.

A study has at most one run per arm, stage and seed; a search has one per setting of the method besides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from bench.core.record import Record
from figures import frame
from figures.arms import COMERA, DENSE
from figures.frame import Records
from figures.records.metric import Metric, Score, difference, score
from figures.records.seeds import Seeds
from figures.records.sizes import FULL_SIZE_PARAMETERS
from figures.records.time_values import PAPER_EXAMPLES, workload_words
from figures.records.training import CurvePoint, TrainingSlot, curve_of, metric_of, slot_of, stages_of
from figures.text import NOT_RECORDED

#: The experiment that the figures of training show unless asked for another.
EXPERIMENT = "accuracy"

#: The experiments of the probes that models must beat.
PROBES = ("probe", "probe_code", "probe_dlrm")

#: Its stages, and the targets of its late ones, which it is expected to have.
PAPER_STAGES = ("early", "late")
PAPER_TARGETS = (0.8, 0.5, 0.2)

DENSE_RUN, EARLY = TrainingSlot(DENSE, PAPER_STAGES), TrainingSlot(COMERA, PAPER_STAGES[:1])

#: FP32 numbers in a MiB.
_PER_MIB = 2**20 / 4

#: The columns of a run of a study, and of a search.
_RUN = ("slot", "seed")
_TRY = (*_RUN, "settings")

#: The columns that are equal for all runs of a page, and for the runs of an arm.
_SAME = (
    *("data_hash", "precision", "batch_size", "cuda_graph", "compile", "metric_name", "first.*"),
    *("training.steps_per_epoch", "training.static", *frame.RANKS, *frame.MODEL),
)
_ARM = (*frame.METHOD, "!method.ratio")


def late(target: float) -> TrainingSlot:
    """Return CoMERA's late stage toward a share of the tensorized size."""
    return TrainingSlot(COMERA, PAPER_STAGES, target)


@dataclass(frozen=True, kw_only=True, eq=False)
class Runs(frame.Page):
    """The training records that one page shows, of one experiment, device, workload, dataset and setting.

    Args:
        probe: the newest of these data.
        timed: steps of the same device, data and workload, where another experiment lent them.
    """

    experiment: str
    dataset: str
    probe: Record | None = None
    timed: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def seeds(self) -> list[int]:
        return self.values("seed")

    @cached_property
    def metric(self) -> Metric:
        """Return the metric that leads, with the probe of its own record, where there is one."""
        metric, probe = metric_of(self.shown[-1]), self.probe
        if probe is None or metric.name not in probe.metrics:
            return metric
        return replace(metric, probe=probe.metrics[metric.name], probe_text=str(probe.samples["best"]))

    @property
    def late_probe(self) -> float | None:
        """Return what the best probe reaches on the data of a late stage, where these differ."""
        late = self.probe.samples.get("late") if self.probe else None
        return float(late["probes"][late["best"]]["metrics"][self.metric.name]) if late else None

    @cached_property
    def model(self) -> Mapping[str, Any]:
        return frame.settings_of(self.shown[0], "workload_settings")

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

    @cached_property
    def steps_per_epoch(self) -> int | None:
        return frame.settings_of(self.shown[0], "training").get("steps_per_epoch")

    @cached_property
    def stages(self) -> list[tuple[str, int]]:
        """Return the stages of the longest run, by name, with their steps."""
        runs = [[(str(stage["name"]), int(stage["steps"])) for stage in stages_of(record)] for record in self.shown]
        return max(runs, key=lambda run: (len(run), sum(steps for _, steps in run)))

    @property
    def is_papers(self) -> bool:
        """Return whether the workload has the epoch of the paper's encoder."""
        return all(workload_words(record)["examples_per_epoch"] == PAPER_EXAMPLES for record in self.shown)

    @property
    def dense_parameters(self) -> int | None:
        """Return the parameters of the dense model; None where no run finished."""
        return round(max((run.dense_mib or 0.0 for run in self.finished_runs), default=0.0) * _PER_MIB) or None

    @property
    def is_full_size(self) -> bool:
        """Return whether the model is the paper's, apart from the number of classes."""
        more_classes, class_row = self.model.get("classes", 3) - 3, self.model.get("width", 768) + 1
        return self.dense_parameters == FULL_SIZE_PARAMETERS + more_classes * class_row


@dataclass(frozen=True, eq=False)
class StudyRow(Seeds):
    """One slot of a study over its seeds.

    Args:
        slot: the purpose of the runs.
        name: in tables and legends.
        mark: of a record that older code made, or nothing.
        is_whole_dense: whether these are dense training through all stages.
        dense: by seed the point of dense's curve after as many steps; empty for dense itself.
        remarks: on seeds that failed, are missing or have a message, and on how dense was compared.
    """

    slot: TrainingSlot
    name: str
    mark: str = ""
    is_whole_dense: bool = False
    dense: Mapping[int, CurvePoint] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    @property
    def label(self) -> str:
        return f"{self.name} {self.mark}".rstrip()

    @cached_property
    def dense_score(self) -> Score | None:
        return score(self.metric, self.dense) if self.dense else None

    @cached_property
    def less_dense(self) -> Score | None:
        return difference(self.metric, self.ends(), self.dense)


@dataclass(frozen=True, kw_only=True, eq=False)
class Study(Runs):
    """At most one run per slot and seed; a run that was never made is absent from ``runs``.

    Args:
        slots: those found and those expected, in drawing order.
    """

    slots: tuple[TrainingSlot, ...]
    runs: Mapping[tuple[TrainingSlot, int], Record]

    @cached_property
    def rows(self) -> list[StudyRow]:
        return [self._row(slot) for slot in self.slots]

    def row(self, slot: TrainingSlot) -> StudyRow:
        """Return the row of a slot, also where nothing was expected or recorded for it."""
        return next((row for row in self.rows if row.slot == slot), self._row(slot))

    def _row(self, slot: TrainingSlot) -> StudyRow:
        depth = max(len(slot.stages) for slot in self.slots)
        seeds = Seeds(self.metric, {seed: self.runs.get((slot, seed)) for seed in self.seeds})
        dense = _beside(seeds, self._dense_curves, self.steps_per_epoch) if slot.arm != DENSE else {}
        remarks = _remarks(seeds, dense, slot.arm != DENSE and bool(self._dense_curves))
        whole = slot.arm == DENSE and len(slot.stages) == depth
        mark = max(map(self.older, seeds.runs.values()), default="")
        return StudyRow(self.metric, seeds.runs, slot, slot.name(depth), mark, whole, dense, remarks)

    @cached_property
    def _dense_curves(self) -> dict[int, list[CurvePoint]]:
        """Return the points of all finished runs of dense by seed, slot by slot."""
        curves: dict[int, list[CurvePoint]] = {}
        for slot in self.slots:
            for seed in self.seeds if slot.arm == DENSE else ():
                run = self.runs.get((slot, seed))
                if run is not None and run.status == "ok":
                    curves.setdefault(seed, []).extend(curve_of(run))
        return curves


def _beside(
    seeds: Seeds, dense: Mapping[int, Sequence[CurvePoint]], steps_per_epoch: int | None
) -> dict[int, CurvePoint]:
    """Return by seed the point of dense's curves nearest to the end of the runs, at most half an epoch away."""
    points: dict[int, CurvePoint] = {}
    for seed in seeds.finished:
        apart = {abs(point.step - (seeds.steps or 0)): point for point in reversed(dense.get(seed, ()))}
        if apart and min(apart) <= (steps_per_epoch or 0) / 2:
            points[seed] = apart[min(apart)]
    return points


def _remarks(seeds: Seeds, dense: Mapping[int, CurvePoint], has_dense: bool) -> list[str]:
    """Return a remark per seed that failed, is missing or has a message, then how dense was compared."""
    if seeds.status == NOT_RECORDED:
        return []
    outcomes: dict[str, list[str]] = {}
    for seed, run in seeds.runs.items():
        outcomes.setdefault(_outcome(run), []).append(str(seed))
    lines = [f"seed {', '.join(which)}: {words}" for words, which in outcomes.items() if words]
    if apart := max((abs(point.step - (seeds.steps or 0)) for point in dense.values()), default=0):
        lines.append(f"dense is compared up to {apart} steps before or after")
    if seeds.finished and not dense and has_dense:
        lines.append(f"dense has no {seeds.metric.short} after as many steps of the same seed")
    if 0 < len(dense) < len(seeds.finished):
        lines.append(f"compared with dense over seed {', '.join(map(str, sorted(dense)))} only")
    return lines


def _outcome(run: Record | None) -> str:
    """Return the status and message of one seed's run; empty for a run without anything to report."""
    if run is None:
        return NOT_RECORDED
    messages, at_end = [run.message] if run.message else [], run.size_at_deadline
    if at_end is not None:
        messages.append(f"S was {at_end:.3f} when S0 had to be met, so ranks were closed, smallest entries first")
    return ": ".join(filter(None, ("" if run.status == "ok" else run.status, "; ".join(messages))))


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


def _comparable(df: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Keep the trainings of one setting and budget, with the columns that tell them apart."""
    what, records = "training record(s) of this device and dataset", list(df["record"])
    slots: list[Any] = [slot_of(record) for record in records]  # which checks what is read below
    firsts = [stages_of(record)[0] for record in records]
    first = pd.DataFrame([{f"first.{stage['name']}": stage["steps"]} for stage in firsts], index=df.index, dtype=object)
    metrics = [metric_of(record).name for record in records]
    df = df.assign(slot=slots, metric_name=metrics, settings=frame.settings(df, frame.METHOD)).join(first)
    kept, notes = frame.narrow(df, _SAME, _RUN, what)
    kept, more = frame.narrow_each(kept, "depth", ["stages.*"], _RUN, what)
    return kept, notes + more


def _study(df: pd.DataFrame, about: dict[str, Any]) -> Study:
    kept, notes = _comparable(df)
    kept, more = frame.narrow_each(kept, "arm", _ARM, _RUN, "training record(s) of {}")
    runs, found = frame.newest(kept, _RUN), set(kept["slot"])
    about |= {"df": frame.oldest_first(runs)}
    about |= {"left_out": (*notes, *more, *frame.repeats(kept, _RUN, "training record(s)"))}
    expected = _expected(about["experiment"], Runs(**about).is_papers, found)
    slots = tuple(sorted({*expected, *found}, key=lambda slot: slot.rank))
    return Study(**about, slots=slots, runs=frame.by_cell(runs, _RUN))


def _search(df: pd.DataFrame, about: dict[str, Any]) -> Runs:
    kept, notes = _comparable(df)
    shown = frame.oldest_first(frame.newest(kept, _TRY))
    return Runs(**about, df=shown, left_out=(*notes, *frame.repeats(kept, _TRY, "training record(s)")))


def newest_probes(df: pd.DataFrame) -> dict[tuple[str, str], Record]:
    """Return the newest finished probe by dataset and workload."""
    probes = df[(df["measure"] == "probe") & (df["status"] == "ok")]
    return frame.by_cell(frame.oldest_first(probes), ["dataset", "workload"])


def _by_dataset(records: Records) -> list[tuple[pd.DataFrame, dict[str, Any]]]:
    """Group training records by experiment, device, dataset and workload, with the fields of their page."""
    df = frame.of(records)
    probes, trained = newest_probes(df), df[df["measure"] == "train"]
    steps = frame.oldest_first(df[(df["measure"] == "run") & (df["status"] == "ok")])
    pages = []
    for (experiment, device, dataset), of_data in frame.groups(trained, ["experiment", "device", "dataset"]):
        for workload, found in frame.groups(of_data, "workload"):
            here = (steps["device"] == device) & (steps["dataset"] == dataset) & (steps["workload"] == workload)
            data = (dataset, workload) if of_data["workload"].nunique() > 1 else (dataset,)
            about = {
                "experiment": experiment,
                "device": device,
                "dataset": dataset,
                "kind": frame.device_kind(found),
                "place": ", ".join(data),
                "suffix": (*data, *([experiment] if experiment != EXPERIMENT else [])),
                "probe": probes.get((dataset, workload)),
                "timed": steps[here],
            }
            pages.append((found, about))
    return pages


def studies(records: Records) -> list[Study]:
    """Return a study per experiment, device, dataset and workload, sorted; records of other measures are ignored."""
    return [_study(*group) for group in _by_dataset(records)]


def searches(records: Records) -> list[Runs]:
    """Return pages as :func:`studies` does, with a run per setting of the method."""
    return [_search(*group) for group in _by_dataset(records)]
