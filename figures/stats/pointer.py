"""Choose trainings on pointer labels, each arm at the best of its own rates: a bed that tells methods apart.

Labels on real text that n-grams miss. Two-stage trainings close ranks to a share of their core entries; arms from
scratch of the same size stand beside them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pandas as pd

from bench.core.cell import Arm
from figures import frame
from figures.arms import COMERA, DENSE
from figures.frame import Records
from figures.stats.curves import TrainingSlot, stages_of
from figures.stats.searches import OWN, comparable, searched
from figures.stats.seeds import with_sizes
from figures.stats.sizes import equal_size
from figures.stats.studies import Study, newest_probes, studies
from figures.trainings import RecordedTraining

#: The experiments: of two stages, from scratch, and of simple models.
EXPERIMENT, SCRATCH, PROBE = "pointer_stages", "pointer", "probe_pointer"

#: Experiments of two-stage training, with that of arms from scratch on the same data.
BEDS = {EXPERIMENT: SCRATCH, "text_stages": "formats_small"}

#: How an arm comes to its size, by the setting ``late``; those of studies are compared with the paper's.
PUBLISHED, FROM_SCRATCH = "published late stage", "from scratch"
_WAYS = {
    "saliency": "closed by saliency",
    "saliency_per_parameter": "closed by saliency per parameter",
    "magnitude": "closed by magnitude",
    "paper": PUBLISHED,
}
_AT_ONCE = {"magnitude": "cut at once by magnitude", "recompress": "rounded at once"}

#: A change of the recipe that makes every arm smaller.
TENSORIZED = "tensorized table"

#: From this share of a late stage on, what is kept to train on leaves the curve no more than a step.
_NO_CURVE = 0.99

#: The metric of studies: on data that no rate was chosen by, where no example has a value of its own.
ACCURACY: dict[str, Any] = {
    "name": "test_accuracy",
    "text": "accuracy per token",
    "unit": "%",
    "higher_is_better": True,
    "by_seed": True,
}


def _way(run: Mapping[str, Any]) -> str:
    """Say how the arm of a training comes to its size, and what differs from the recipe."""
    if "target_ratio" not in run:
        words = [FROM_SCRATCH]
    elif run["method"] == DENSE:
        words = ["heads and columns closed"]
    else:
        late = run.get("method.late", "paper")
        at_once = late not in _WAYS or run.get("method.recovery", 0.0) >= _NO_CURVE
        words = [(_AT_ONCE if at_once else _WAYS)[late]]
        words += ["low rank"] * (run.get("method.order") == 1)
    words += ["one block"] * (run.get("workload.layers") == 1)
    words += ["post-LN"] * (run.get("workload.pre_norm") is False)
    words += [TENSORIZED] * bool(run.get("workload.compress_table"))
    optimizer = run["training.recipe.optimizer"]
    words += ["its own optimizer" if optimizer == OWN else "AdamW"] * (optimizer != "muon")
    words += ["constant rates"] * (run["training.schedule.final"] == 1)
    return ", ".join(words)


def searched_by_way(df: pd.DataFrame, experiment: str) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """Return a line per search of one of :data:`BEDS`, the trainings searched, and sentences on those left out.

    A line has the ``way`` that an arm comes to its size and the ``target`` that it closes to, 0 from scratch. There are
    none without a two-stage training.
    """
    has_recipe = frame.column(df, "training.recipe.optimizer").notna()
    runs = df[(df["measure"] == "train") & df["experiment"].isin([experiment, BEDS[experiment]]) & has_recipe]
    if experiment not in set(runs["experiment"]):
        return pd.DataFrame(), runs[:0], []
    way = [_way(run) for run in frame.dicts(runs, "method", "target_ratio", "method.*", "workload.*", "training.*")]
    width = frame.column(runs, "workload.width")
    runs = runs.assign(way=way, target=runs["target_ratio"].astype(float).fillna(0.0), width=width)
    lines, kept, left_out = [], [], list[str]()
    for (way, target, _), alike in frame.groups(runs, ["way", "target", "width"]):
        newest, notes = comparable(alike, f"training(s) {way}")
        lines.append(searched(newest).assign(way=way, target=target))
        kept.append(newest)
        left_out += notes
    return pd.concat(lines, ignore_index=True), pd.concat(kept), left_out


def studies_and_bed(records: Records) -> list[Study]:
    """Return studies of all other experiments, then those of pointer labels."""
    df = frame.of(records)
    return [*studies(df[~df["experiment"].isin([EXPERIMENT, SCRATCH])]), *pointer_studies(df)]


def pointer_studies(records: Records) -> list[Study]:
    """Return a study per device, optimizer and share that ranks close to.

    It has dense, and in the size of the closed arms the narrower dense model and CoMERA at ranks that are kept.
    """
    probes = newest_probes(frame.of(records))
    pages = []
    for device, df in frame.by_device(records):
        lines, kept, left_out = searched_by_way(df, EXPERIMENT)
        if lines.empty:
            continue
        lines = lines[lines["chosen"].map(len) > 0]
        is_scratch = lines["way"] == FROM_SCRATCH
        closed = lines[lines["way"].isin(_WAYS.values())]
        for (optimizer, target), staged in frame.groups(closed, ["optimizer", "target"]):
            alike = lines[
                is_scratch & (lines["optimizer"] == optimizer) & lines["train_steps"].isin(staged["train_steps"])
            ]
            beside = [_stands_beside(line, staged["parameters"]) for line in frame.each(alike)]
            shown = pd.concat([alike[beside], staged])
            runs, remarks = _by_slot(shown, kept, kept.loc[staged["chosen"].iloc[-1][0]])
            last = runs.iloc[-1]
            page = Study(
                **device,
                df=runs,
                left_out=tuple(left_out),
                place=f"pointer labels, ranks closed to {target:g}",
                suffix=(last["dataset"], EXPERIMENT, optimizer, f"{target:g}"),
                experiment=EXPERIMENT,
                dataset=last["dataset"],
                probe=probes.get((last["dataset"], last["workload"])),
                slots=tuple(sorted(remarks, key=lambda slot: slot.rank)),
                searched=remarks,
            )
            pages.append(page)
    return pages


def _stands_beside(line: Any, sizes: pd.Series) -> bool:
    """Return whether a search from scratch is of dense, or of its or CoMERA's kind in one of the sizes."""
    is_kind = Arm.parse(line.arm).method in (DENSE, COMERA)
    known = sizes.dropna() if pd.notna(line.parameters) else sizes[:0]
    return line.arm == DENSE or (is_kind and any(equal_size(line.parameters, size) for size in known))


def _by_slot(
    lines: pd.DataFrame, kept: pd.DataFrame, newest: pd.Series
) -> tuple[pd.DataFrame, dict[TrainingSlot, str]]:
    """Return the trainings at the chosen rates on the data of the newest, with slots; and a remark by slot.

    An arm from scratch has the stages of those beside it, since it trains for as many steps.
    """
    stages = tuple(str(stage["name"]) for stage in stages_of(newest))
    remarks, found = {}, []
    for line in frame.each(lines):
        slot = (
            TrainingSlot(line.arm, stages, ratio=None if pd.isna(line.ratio) else round(line.ratio, 2))
            if line.way == FROM_SCRATCH
            else TrainingSlot(f"{line.arm}, {line.way}", stages, line.target)
        )
        runs = kept.loc[list(line.chosen)]
        runs = runs[runs["data_hash"] == newest["data_hash"]]
        if len(runs):
            remarks[slot] = "best rate at an edge of those tried" if line.at_edge else ""
            found.append(runs.assign(slot=slot, training=runs["training"].map(_led_by_accuracy)))
    return with_sizes(frame.oldest_first(pd.concat(found))), remarks


def _led_by_accuracy(run: RecordedTraining) -> RecordedTraining:
    """Return a training whose leading metric is :data:`ACCURACY`; its count of examples is of other data."""
    curve = [{**row, "validation_examples": None} for row in run.curve]
    return dataclasses.replace(run, metric=ACCURACY, curve=curve)
