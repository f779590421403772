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

from figures import frame
from figures.arms import by_arm, by_precision
from figures.frame import Records
from figures.stats.metric import LeadingMetric, Score
from figures.stats.seeds import less
from figures.stats.studies import SAME, Runs, comparable, newest_probes, outcome
from figures.stats.training import stages_of
from figures.text import one_line

FP32 = "fp32"

#: An arm with its start, and the form of it.
_PARTS = r"^(?P<plain>[^:]*(?::(?:orthogonal|spectral))?)[:_]?(?P<form>.*)$"

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
        lines = self.df.drop_duplicates("line").set_index("line")[["arm", "precision"]]
        order = sorted(frame.each(lines), key=lambda line: (by_arm(line.arm), by_precision(line.precision)))
        rows = self.over_seeds("line", [line.Index for line in order]).join(lines)
        parts = rows["arm"].str.extract(_PARTS)
        stores = rows["arm"].str.endswith("_fp8")
        is_control = parts["form"].isin(["lean", "lean_block"]) & (rows["precision"] == FP32)
        as_plain = parts["plain"] + ", " + rows["precision"]
        in_fp32 = (rows["arm"] + f", {FP32}").where(rows["precision"] != FP32)
        stored_error, arithmetic = [], []
        for runs in rows["finished"]:
            stored = [one for run in runs.values() for one in run.samples.get("stored", ())]
            error = max((one["error"] for one in stored), default=float("nan"))
            kept = [f"kept in FP8 with an error of {error:.1%}"] * bool(stored)
            ran = sorted({run.arithmetic for run in runs.values()} - {""})
            stored_error.append(error)
            arithmetic.append("; ".join([*ran, *kept]))
        failed = self.df[self.df["message"] != ""].sort_values("seed", kind="stable")
        words = failed["record"].map(outcome).map(one_line)
        remarks = "seed " + failed["seed"].astype(str) + ": " + words
        gathered = remarks.groupby(failed["line"]).agg(list)
        of_lines: Any = [gathered.get(line, []) for line in rows.index]
        return rows.assign(
            as_published=~parts["plain"].str.contains(":"),
            stores=stores,
            is_control=is_control,
            compared_with=as_plain.where(stores | is_control, in_fp32),
            stored_error=stored_error,
            arithmetic=arithmetic,
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
    steps = [sum(int(stage["steps"]) for stage in stages_of(record)) for record in trained["record"]]
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
