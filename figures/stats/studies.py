"""Choose the training runs of one page, of one device, dataset and setting, and gather what each arm reached.

A study has at most one run per arm, stage and seed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from figures import frame
from figures.arms import COMERA, DENSE
from figures.frame import Records
from figures.stats.curves import CurvePoint, TrainingSlot, curve_of, metric_of, slot_of, stages_of
from figures.stats.metric import LeadingMetric, difference, score
from figures.stats.seeds import ends_of, over_seeds, with_estimates, with_sizes
from figures.stats.sizes import FULL_SIZE_PARAMETERS
from figures.stats.time_values import PAPER_EXAMPLES
from figures.text import NOT_RECORDED, OLDER
from figures.trainings import RecordedTraining

#: The experiment that the figures of training show unless asked for another.
EXPERIMENT = "accuracy"

#: The experiments of the probes that models must beat.
PROBES = ("probe", "probe_code", "probe_dlrm")

#: Its stages, and the targets of its late ones, which it is expected to have.
PAPER_STAGES = ("early", "late")
PAPER_TARGETS = (0.8, 0.5, 0.2)

DENSE_RUN, EARLY = TrainingSlot(DENSE, PAPER_STAGES), TrainingSlot(COMERA, PAPER_STAGES[:1])
LATE = {target: TrainingSlot(COMERA, PAPER_STAGES, target) for target in PAPER_TARGETS}

#: The columns of a run of a study.
_RUN = ("slot", "seed")

#: The columns that are equal for all runs of a page, and for the runs of an arm.
SAME = (
    *("data_hash", "precision", "batch_size", "cuda_graph", "compile", "metric_name", "first.*"),
    *("training.steps_per_epoch", "training.static", *frame.RANKS, *frame.MODEL),
)
_ARM = (*frame.METHOD, "!method.ratio")

#: What of a slot is a column of its row.
_OF_SLOTS = ("arm", "ratio", "stage", "goal", "has_target", "target_mib")


@dataclass(frozen=True, kw_only=True, eq=False)
class Runs(frame.Page):
    """The training records that one page shows, of one experiment, device, workload, dataset and setting.

    Args:
        probe: the newest of these data.
    """

    experiment: str
    dataset: str
    probe: Mapping[str, Any] | None = None

    @property
    def seeds(self) -> list[int]:
        return self.values("seed")

    @cached_property
    def metric(self) -> LeadingMetric:
        """Return the metric that leads, with the probe of its own record, where there is one."""
        metric, probe = metric_of(self.df["training"].iloc[-1]), self.probe
        if probe is None or metric.name not in probe["metrics"]:
            return metric
        return replace(metric, probe=probe["metrics"][metric.name], probe_text=str(probe["samples.best"]))

    @property
    def late_probe(self) -> float | None:
        """Return what the best probe reaches on the data of a late stage, where these differ."""
        late = self.probe.get("samples.late") if self.probe else None
        return float(late["probes"][late["best"]]["metrics"][self.metric.name]) if late else None

    @cached_property
    def model(self) -> Mapping[str, Any]:
        """Return the settings of the workload."""
        [first] = frame.dicts(self.df.head(1), "workload.*")
        return {name.removeprefix("workload."): value for name, value in first.items()}

    @property
    def finished(self) -> pd.DataFrame:
        return self.df[self.df["status"] == "ok"]

    @cached_property
    def has_values(self) -> bool:
        """Return whether every validation example has a value of its own."""
        return all(curve_of(run)[-1].per_example is not None for run in self.finished["training"])

    @property
    def steps_per_epoch(self) -> int | None:
        [first] = frame.dicts(self.df.head(1), "training.steps_per_epoch")
        return first.get("training.steps_per_epoch")

    @cached_property
    def stages(self) -> list[tuple[str, int]]:
        """Return the stages of the longest run, by name, with their steps."""
        runs = [[(str(one["name"]), int(one["steps"])) for one in stages_of(run)] for run in frame.each(self.df)]
        return max(runs, key=lambda run: (len(run), sum(steps for _, steps in run)))

    @property
    def is_papers(self) -> bool:
        """Return whether the workload has the epoch of the paper's encoder."""
        return all(words["examples_per_epoch"] == PAPER_EXAMPLES for words in self.df["workload_words"])

    @property
    def dense_parameters(self) -> int | None:
        """Return the parameters of the dense model in FP32; None where no run finished."""
        largest = self.finished["dense_mib"].max()
        return None if pd.isna(largest) else round(largest * 2**20 / 4) or None

    @property
    def is_full_size(self) -> bool:
        """Return whether the model is the paper's, apart from the number of classes."""
        more_classes, class_row = self.model.get("classes", 3) - 3, self.model.get("width", 768) + 1
        return self.dense_parameters == FULL_SIZE_PARAMETERS + more_classes * class_row

    def over_seeds(self, by: str, keys: Sequence[Any]) -> pd.DataFrame:
        """Return what :func:`figures.stats.seeds.over_seeds` does, with the page and whether code was older."""
        rows = over_seeds(self.df, by, keys, self.metric)
        older = set(self.df.loc[self.is_older(self.df), by])
        return rows.assign(device=self.device, dataset=self.dataset, older_code=rows.index.isin(older))


@dataclass(frozen=True, kw_only=True, eq=False)
class Study(Runs):
    """At most one run per slot and seed; ``slots`` are those found and those expected, in drawing order.

    ``searched`` has by slot a remark on the search of its rate, empty where there is none to make. It is None where
    the experiment sets the rates.
    """

    slots: tuple[TrainingSlot, ...]
    searched: Mapping[TrainingSlot, str] | None = None

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Return a row per slot, over its seeds."""
        return self._rows(self.slots)

    def row(self, slot: TrainingSlot) -> Any:
        """Return the row of a slot, also where nothing was expected or recorded for it."""
        rows = self.rows if slot in self.slots else self._rows((slot,))
        return next(row for row in frame.each(rows) if row.slot == slot)

    def _rows(self, slots: Sequence[TrainingSlot]) -> pd.DataFrame:
        """Return a row per slot: its runs over seeds, beside dense after as many steps, and remarks on single runs."""
        metric, depth = self.metric, max(len(slot.stages) for slot in self.slots)
        of_slots: dict[str, Any] = {name: [getattr(slot, name) for slot in slots] for name in _OF_SLOTS}
        of_slots |= {"slot": list(slots), "target_ratio": [slot.target for slot in slots]}
        of_slots["run"] = [slot.name(depth) for slot in slots]
        of_slots["is_whole_dense"] = [slot.arm == DENSE and len(slot.stages) == depth for slot in slots]
        rows = self.over_seeds("slot", slots).assign(**of_slots)
        rows["label"] = rows["run"].where(~rows["older_code"], rows["run"] + f" {OLDER}")
        dense: dict[int, list[CurvePoint]] = {}
        for runs in rows.loc[rows["arm"] == DENSE, "finished"]:
            for seed, run in runs.items():
                dense.setdefault(seed, []).extend(curve_of(run))
        lines, has_dense = frame.each(rows), bool(dense)
        then: Any = [{} if row.arm == DENSE else self._beside(row, dense) for row in lines]
        remarks = [self._remarks(*pair, has_dense) for pair in zip(lines, then, strict=True)]
        rows["remarks_on_runs"] = pd.Series(remarks, rows.index, dtype=object)
        ends = [ends_of(metric, runs) for runs in rows["finished"]]
        scores: Any = [score(metric, points) for points in then]
        apart: Any = [difference(metric, *pair) for pair in zip(ends, then, strict=True)]
        words = rows["remarks_on_runs"].map("; ".join)
        rows = rows.assign(remarks=words, dense_score=scores, apart=apart)
        estimates = {f"dense_{metric.name}_then": scores, metric.less_column("dense"): apart}
        return with_estimates(rows, estimates)

    def _beside(self, row: Any, curves: Mapping[int, Sequence[CurvePoint]]) -> dict[int, CurvePoint]:
        """Return by seed the point of dense's curves nearest to the end of runs, at most half an epoch away."""
        found = {}
        for seed in row.finished.keys() & curves.keys():
            near = min(curves[seed], key=lambda point: abs(point.step - row.train_steps))
            if abs(near.step - row.train_steps) <= (self.steps_per_epoch or 0) / 2:
                found[seed] = near
        return found

    def _remarks(self, row: Any, then: Mapping[int, CurvePoint], has_dense: bool) -> list[str]:
        """Return a remark per outcome of a seed, then how dense was compared; none where no seed has a record."""
        runs = self.df[self.df["slot"] == row.slot].set_index("seed")["training"]
        if runs.empty:
            return []
        outcomes = {seed: outcome(runs[seed]) if seed in runs else NOT_RECORDED for seed in self.seeds}
        lines = [
            f"seed {', '.join(str(seed) for seed in self.seeds if outcomes[seed] == words)}: {words}"
            for words in dict.fromkeys(outcomes.values())
            if words
        ]
        if remark := (self.searched or {}).get(row.slot):
            lines.append(remark)
        if apart := max((abs(point.step - row.train_steps) for point in then.values()), default=0):
            lines.append(f"dense is compared up to {apart:.0f} steps before or after")
        if row.finished and not then and has_dense and row.arm != DENSE:
            lines.append(f"dense has no {self.metric.short} after as many steps of the same seed")
        if 0 < len(then) < len(row.finished):
            lines.append(f"compared with dense over seed {', '.join(map(str, sorted(then)))} only")
        return lines


def outcome(run: RecordedTraining) -> str:
    """Return the status and message of a run; empty for one without anything to report."""
    closed = ""
    if run.size_at_deadline is not None:
        closed = f"S was {run.size_at_deadline:.3f} when S0 had to be met, so ranks were closed, smallest entries first"
    words = "; ".join(filter(None, (run.message, closed)))
    return ": ".join(filter(None, ("" if run.status == "ok" else run.status, words)))


def _expected(experiment: str, is_papers: bool, found: Collection[TrainingSlot]) -> set[TrainingSlot]:
    """Return the slots that an experiment should have.

    The paper's experiment has all of its own. Any other has, for the arms with records: the stage before each stage
    with a target, every ratio of a sweep, and dense through all stages.
    """
    if experiment == EXPERIMENT and is_papers:
        return {DENSE_RUN, EARLY, *LATE.values()}
    ratios = {slot.ratio for slot in found if slot.ratio is not None}
    later = [slot for slot in found if slot.has_target]
    before = {replace(slot, stages=slot.stages[:-1], target=None, target_mib=None) for slot in later}
    swept = {slot for slot in {*found, *before} if slot.ratio is not None and not slot.has_target}
    expected = before | {replace(slot, ratio=ratio) for slot in swept for ratio in ratios}
    if any(slot.arm == DENSE for slot in found):
        expected.add(TrainingSlot(DENSE, max((slot.stages for slot in found), key=len)))
    return expected


def comparable(
    df: pd.DataFrame, cell: Sequence[str] = _RUN, same: frame.Patterns = SAME
) -> tuple[pd.DataFrame, list[str]]:
    """Keep the trainings of one setting and budget, with the columns that tell them apart, and say what is left out."""
    what = "training record(s) of this device and dataset"
    slots: Any = [slot_of(run) for run in frame.each(df)]  # which checks what is read below
    df = df.assign(slot=slots)
    firsts = [stages[0] for stages in df["stages"]]
    first = pd.DataFrame([{f"first.{one['name']}": one["steps"]} for one in firsts], df.index, dtype=object)
    metrics = [metric_of(run).name for run in df["training"]]
    df = df.assign(metric_name=metrics, settings=frame.settings(df, frame.METHOD)).join(first)
    kept, notes = frame.narrow(with_sizes(df), same, cell, what)
    kept, more = frame.narrow_each(kept, "depth", ["stages.*"], cell, what)
    return kept, notes + more


def newest_probes(df: pd.DataFrame) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the newest finished probe by dataset and workload."""
    probes = frame.oldest_first(df[(df["measure"] == "probe") & (df["status"] == "ok")])
    found = frame.dicts(probes, "dataset", "workload", "metrics", "samples.*")
    return {(one["dataset"], one["workload"]): one for one in found}


def _by_dataset(records: Records) -> Iterator[tuple[pd.DataFrame, dict[str, Any]]]:
    """Yield the training records of each experiment, device, dataset and workload, with the fields of their page."""
    df = frame.of(records)
    probes, trained = newest_probes(df), df[df["measure"] == "train"]
    workloads = trained.groupby(["experiment", "device", "dataset"])["workload"].nunique()
    for page, found in frame.groups(trained, ["experiment", "device", "dataset", "workload"]):
        experiment, device, dataset, workload = page
        data = (dataset, workload) if workloads[page[:3]] > 1 else (dataset,)
        yield (
            found,
            {
                "experiment": experiment,
                "device": device,
                "dataset": dataset,
                "kind": frame.device_kind(found),
                "place": ", ".join(data),
                "suffix": data if experiment == EXPERIMENT else (*data, experiment),
                "probe": probes.get((dataset, workload)),
            },
        )


def _at_best_rates(df: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Keep of each arm the trainings at the recipe's rate that ended its longest run best, and name those tried."""
    rate = pd.to_numeric(frame.column(df, "training.recipe.lr"), errors="coerce")
    if not (rate.groupby(df["arm"]).nunique() > 1).any():
        return df, []
    is_end = (df["status"] == "ok") & (df["train_steps"] == df.groupby("arm")["train_steps"].transform("max"))
    ends = df[is_end].assign(rate=rate, end=df["training"].map(lambda run: run.loss).astype(float))
    ends = ends.dropna(subset=["rate", "end"])
    best = ends.loc[ends.groupby("arm")["end"].idxmin()].set_index("arm")["rate"]
    is_kept = (rate == df["arm"].map(best)) | ~df["arm"].isin(best.index)
    tried = [
        f"{arm} {best[arm]:g} of {', '.join(f'{one:g}' for one in sorted(some.unique()))}"
        for arm, some in ends.groupby("arm")["rate"]
    ]
    left_out = f"{(~is_kept).sum()} training record(s) at other rates of the matrices are left out"
    return df[is_kept], [f"{left_out}; each arm has the one that ended best: {'; '.join(tried)}."]


def studies(records: Records) -> list[Study]:
    """Return a study per experiment, device, dataset and workload, sorted; records of other measures are ignored."""
    pages = []
    for df, about in _by_dataset(records):
        kept, notes = comparable(df)
        kept, more = frame.narrow_each(kept, "arm", _ARM, _RUN, "training record(s) of {}")
        kept, others = _at_best_rates(kept)
        left_out = (*notes, *more, *others, *frame.repeats(kept, _RUN, "training record(s)"))
        about |= {"df": frame.oldest_first(frame.newest(kept, _RUN)), "left_out": left_out}
        found = set(kept["slot"])
        slots = found | _expected(about["experiment"], Runs(**about).is_papers, found)
        pages.append(Study(**about, slots=tuple(sorted(slots, key=lambda slot: slot.rank))))
    return pages
