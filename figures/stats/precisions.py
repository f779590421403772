"""Training runs of arms in several precisions, per device and dataset: what each reached, and how far apart they are.

FP8's products are compared with the same arm in FP32, storage in FP8 with the same arm that stores nothing so, in the
same precision: what differs is then the arithmetic alone, and seeds and validation examples are paired. An arm that
keeps ranks is a control in FP32: its losses are the plain arm's but for rounding, so that what lower precisions change
is to be seen above what it differs by.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from bench.core.record import Record
from figures import frame
from figures.arms import by_arm, by_precision
from figures.frame import Records
from figures.stats.metric import Metric, Score
from figures.stats.seeds import less
from figures.stats.studies import SAME, Runs, comparable, newest_probes
from figures.stats.training import stages_of
from figures.text import one_line

FP32 = "fp32"

#: The columns of a run.
_RUN = ("arm", "precision", "seed")


@dataclass(frozen=True, kw_only=True, eq=False)
class Precisions(Runs):
    """One page: a device, a dataset and a model."""

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Return a row per arm and precision over its seeds, with the one that it is compared with.

        ``stores``: activations are kept in FP8. ``is_control``: rounding in FP32 is all that differs from the row to
        compare with. ``as_published``: layers start as the paper has it, and not orthogonal or spectral.
        """
        pairs = self.df[["line", "arm", "precision"]].drop_duplicates("line").to_dict("records")
        pairs.sort(key=lambda one: (by_arm(one["arm"]), by_precision(one["precision"])))
        rows = self.over_seeds("line", [one["line"] for one in pairs])
        rows["arm"], rows["precision"] = [one["arm"] for one in pairs], [one["precision"] for one in pairs]
        parts = rows["arm"].str.extract(r"^(?P<plain>[^:]*(?::(?:orthogonal|spectral))?)[:_]?(?P<form>.*)$")
        rows["as_published"], rows["stores"] = ~parts["plain"].str.contains(":"), rows["arm"].str.endswith("_fp8")
        rows["is_control"] = parts["form"].isin(["lean", "lean_block"]) & (rows["precision"] == FP32)
        as_plain = parts["plain"] + ", " + rows["precision"]
        in_fp32 = (rows["arm"] + f", {FP32}").where(rows["precision"] != FP32)
        rows["compared_with"] = as_plain.where(rows["stores"] | rows["is_control"], in_fp32)
        rows["stored_error"], rows["arithmetic"] = None, ""
        for line, runs in rows["finished"].items():
            words = sorted({run.arithmetic for run in runs.values()} - {""})
            errors = [row["error"] for run in runs.values() for row in run.samples.get("stored", ())]
            if errors:
                rows.loc[line, "stored_error"] = max(errors)
                words.append(f"kept in FP8 with an error of {max(errors):.1%}")
            rows.loc[line, "arithmetic"] = "; ".join(words)
        rows["stored_error"] = rows["stored_error"].astype(float)
        said = self.df[self.df["message"] != ""].sort_values("seed", kind="stable")
        remarks = "seed " + said["seed"].astype(str) + ": " + [_outcome(record) for record in said["record"]]
        gathered = remarks.groupby(said["line"]).agg(list)
        rows["remarks_on_runs"] = [gathered.get(line, []) for line in rows.index]
        rows["remarks"] = rows["remarks_on_runs"].map("; ".join)
        return rows

    def less(self, metric: Metric) -> dict[str, Score]:
        """Return by row the paired difference to the row that one is compared with; without those that have none."""
        runs = dict(self.rows["finished"])
        pairs = [(row.Index, row.compared_with) for row in frame.each(self.rows) if row.compared_with in runs]
        apart = {line: less(metric, runs[line], runs[other]) for line, other in pairs}
        return {line: score for line, score in apart.items() if score}


def _outcome(run: Record) -> str:
    return one_line(f"{run.status}: {run.message}" if run.status != "ok" else run.message)


def select(records: Records) -> list[Precisions]:
    """Return a page per device, dataset and model; of runs of several lengths the longest."""
    df = frame.of(records)
    probes, trained = newest_probes(df), df[df["measure"] == "train"]
    models: list[Any] = [_model(record) for record in trained["record"]]
    steps = [sum(int(stage["steps"]) for stage in stages_of(record)) for record in trained["record"]]
    trained = trained.assign(model=models, steps=steps, line=trained["arm"] + ", " + trained["precision"])
    pages = []
    for device, mine in frame.by_device(trained):
        for words, here in frame.groups(mine, "model"):
            workload, dataset, *_ = words
            most = here["steps"].max()
            shorter = int((here["steps"] < most).sum())
            notes = [f"{shorter} run(s) of fewer than {most:,} steps are left out."] if shorter else []
            kept, others = comparable(here[here["steps"] == most], _RUN, (*SAME, "!precision"))
            page = Precisions(
                **device,
                df=frame.oldest_first(frame.newest(kept, _RUN)),
                place=", ".join(words),
                suffix=words,
                left_out=(*notes, *others),
                experiment=here["experiment"].iloc[0],
                dataset=dataset,
                probe=probes.get((dataset, workload)),
            )
            pages.append(page)
    return pages


def _model(record: Record) -> tuple[str, ...]:
    """Return what all runs of a page share, as parts of its file names."""
    model = frame.settings_of(record, "workload_settings")
    size = [f"{model['layers']}x{model['width']}"] if {"layers", "width"} <= set(model) else []
    return record.workload, record.dataset, *size
