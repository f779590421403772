"""Runs that differ in their seed alone: what they reached, and their sizes, as one row of a frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from figures.stats.curves import curve_of, metric_of, reached
from figures.stats.metric import LeadingMetric, MetricValue, Score, difference, score
from figures.text import NOT_RECORDED, bounds, significant
from figures.trainings import RecordedTraining

#: Finished runs by seed.
Finished = Mapping[int, RecordedTraining]

#: Sizes of a trained model, which have the least and the greatest of the seeds too.
SIZES = ["stored_mib", "total_ratio", "tensorized_mib", "tensorized_ratio"]

#: S may exceed S0 by this factor and still count as reached: both are quotients of whole numbers.
_ROUNDING = 1 + 1e-9


def with_sizes(df: pd.DataFrame) -> pd.DataFrame:
    """Return trainings with how many times smaller than dense they are, and whether S <= S0 where they aimed at it."""
    stored, layers = (df[name].where(df[name] > 0) for name in ("stored_mib", "tensorized_mib"))
    aimed = df["size_fraction"].notna() & df["size_target"].notna()
    return df.assign(
        total_ratio=df["dense_mib"].where(df["dense_mib"] > 0) / stored,
        tensorized_ratio=df["dense_tensorized_mib"].where(df["dense_tensorized_mib"] > 0) / layers,
        size_met=(df["size_fraction"] <= df["size_target"] * _ROUNDING).astype(object).where(aimed, None),
    )


def over_seeds(runs: pd.DataFrame, by: str, keys: Sequence[Any], metric: LeadingMetric) -> pd.DataFrame:
    """Return a row for each of ``keys``, values of the column ``by``.

    ``finished`` has the finished records by seed, ``score`` what they reached. Of every number of a record there is the
    mean, which is missing where a seed lacks it.
    """
    runs = runs.sort_values("seed", kind="stable")
    done = runs[runs["status"] == "ok"]
    found = [done[done[by] == key] for key in keys]
    finished = [dict(zip(one["seed"], one["training"], strict=True)) for one in found]
    rows = pd.DataFrame({"finished": finished}, index=pd.Index(keys, dtype=object))
    statuses = runs.groupby(by, sort=False)["status"].agg(lambda found: " / ".join(found.unique()))
    rows["status"] = statuses.reindex(rows.index, fill_value=NOT_RECORDED).where(~rows["finished"].map(bool), "ok")
    rows["seeds"] = [" ".join(map(str, seeds)) for seeds in rows["finished"]]
    numbers, of = done.select_dtypes("number").astype(float), done[by]
    lacks = numbers.isna().groupby(of, sort=False).any()
    rows = rows.join(numbers.groupby(of, sort=False).mean().mask(lacks))
    for end in ("min", "max"):
        bound = numbers[SIZES].groupby(of, sort=False).agg(end).mask(lacks[SIZES])
        rows = rows.join(bound.add_suffix({"min": "_low", "max": "_high"}[end]))
    for name in SIZES:
        rows[f"{name}_bounds"] = rows[name].notna().map({True: "range", False: None})
    met = done.dropna(subset="size_met").groupby(by, sort=False)["size_met"].agg(all)
    rows["size_met"] = met.reindex(rows.index).astype(object)
    ends = [[curve_of(run)[-1] for run in runs.values()] for runs in finished]
    steps: Any = [max((point.step for point in points), default=None) for points in ends]
    scores: Any = [score(metric, dict(enumerate(points))) for points in ends]
    examples = [one and one.examples for one in scores]
    rows = rows.assign(score=scores, train_steps=steps, validation_examples=examples)
    return with_estimates(rows, {metric.name: scores})


def with_estimates(rows: pd.DataFrame, estimates: Mapping[str, Iterable[Any]]) -> pd.DataFrame:
    """Return rows with estimates as columns: by name a value, its bounds and what these are."""
    found = [
        pd.DataFrame([bounds(name, one) for one in of], index=rows.index, columns=list(bounds(name, None)))
        for name, of in estimates.items()
    ]
    return pd.concat([rows, *found], axis=1)


def ends_of(metric: LeadingMetric, runs: Finished) -> dict[int, MetricValue]:
    """Return a metric at the end of runs, which need not be the one that leads."""
    return {
        seed: curve_of(run)[-1] if metric_of(run).name == metric.name else reached(run.curve[-1], metric.name)
        for seed, run in runs.items()
    }


def score_of(metric: LeadingMetric, runs: Finished) -> Score | None:
    """Return a metric over seeds; None without a finished run."""
    return score(metric, ends_of(metric, runs))


def less(metric: LeadingMetric, runs: Finished, others: Finished) -> Score | None:
    """Return the difference of runs to others, paired by seed and example; None where no seed has both."""
    return difference(metric, ends_of(metric, runs), ends_of(metric, others))


def spread_text(values: pd.Series, unit: str = "") -> str:
    """Return a mean over seeds with its unit and, where rounding leaves a difference, the least and the greatest.

    >>> spread_text(pd.Series([2.0, 4.0]), "x")
    '3.00x (2.00 to 4.00)'
    """
    low, high = significant(values.min()), significant(values.max())
    return f"{significant(values.mean())}{unit}" + (f" ({low} to {high})" if low != high else "")
