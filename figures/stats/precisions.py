"""Training runs of arms in several precisions, per device and dataset: what each reached, and how far apart they are.

A lower precision is compared with the same arm in FP32: what differs is then the arithmetic alone, and seeds and
validation examples are paired.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from bench.core.cell import Arm
from figures import frame
from figures.arms import by_arm, by_precision
from figures.frame import Records
from figures.stats.curves import stages_of
from figures.stats.metric import LeadingMetric, Score
from figures.stats.seeds import less
from figures.stats.studies import SAME, Runs, comparable, newest_probes, outcome
from figures.text import one_line

FP32 = "fp32"

#: Variants whose layers start otherwise than the paper's.
_STARTS = re.compile("orthogonal|spectral")

#: The columns of a run.
_RUN = ("arm", "precision", "seed")


@dataclass(frozen=True, kw_only=True, eq=False)
class Precisions(Runs):
    """One page: a device, a dataset and a model."""

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Return a row per arm and precision over its seeds, with the one that it is compared with.

        ``as_published``: layers start as the paper has it, and not orthogonal or spectral.
        """
        lines = self.df.drop_duplicates("line").set_index("line")[["arm", "precision"]]
        order = sorted(frame.each(lines), key=lambda line: (by_arm(line.arm), by_precision(line.precision)))
        rows = self.over_seeds("line", [line.Index for line in order]).join(lines)
        ran = [sorted({run.arithmetic for run in runs.values()} - {""}) for runs in rows["finished"]]
        failed = self.df[self.df["message"] != ""].sort_values("seed", kind="stable")
        words = failed["training"].map(outcome).map(one_line)
        remarks = "seed " + failed["seed"].astype(str) + ": " + words
        gathered = remarks.groupby(failed["line"]).agg(list)
        of_lines: Any = [gathered.get(line, []) for line in rows.index]
        return rows.assign(
            as_published=[not _STARTS.search(Arm.parse(arm).variant) for arm in rows["arm"]],
            compared_with=(rows["arm"] + f", {FP32}").where(rows["precision"] != FP32),
            arithmetic=["; ".join(some) for some in ran],
            remarks_on_runs=of_lines,
            remarks=["; ".join(some) for some in of_lines],
        )

    def less(self, metric: LeadingMetric) -> dict[str, Score]:
        """Return by row the paired difference to the row that one is compared with; without those that have none."""
        runs = dict(self.rows["finished"])
        pairs = [(row.Index, row.compared_with) for row in frame.each(self.rows) if row.compared_with in runs]
        apart = {line: less(metric, runs[line], runs[other]) for line, other in pairs}
        return {line: score for line, score in apart.items() if score}


def select(records: Records) -> list[Precisions]:
    """Return a page per device, dataset and model; of runs of several lengths the longest."""
    df = frame.of(records)
    probes, trained = newest_probes(df), df[df["measure"] == "train"]
    steps = [sum(int(stage["steps"]) for stage in stages_of(run)) for run in frame.each(trained)]
    layers, width = (frame.column(trained, f"workload.{name}") for name in ("layers", "width"))
    size = layers.astype("str") + "x" + width.astype("str")
    trained = trained.assign(
        model_size=size.where(layers.notna() & width.notna(), ""),
        steps=steps,
        line=trained["arm"] + ", " + trained["precision"],
    )
    pages = []
    for device, mine in frame.by_device(trained):
        for model, here in frame.groups(mine, ["workload", "dataset", "model_size"]):
            words = tuple(filter(None, model))
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
                dataset=model[1],
                probe=probes.get((model[1], model[0])),
            )
            pages.append(page)
    return pages
