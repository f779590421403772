"""Parts that figures and tables of training share: how metrics are written, facts of captions, and marks on axes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from bench.core.intervals import MIN_LAUNCHES
from figures import frame
from figures.arms import DENSE
from figures.columns import Format
from figures.draw.style import nothing_drawn
from figures.stats import pointer
from figures.stats.curves import curves
from figures.stats.metric import LeadingMetric, Score, score
from figures.stats.studies import EXPERIMENT, PROBES, Runs, Study, studies
from figures.text import NOT_RECORDED

#: What artifacts of the paper's training runs are made of.
OF_STUDIES: dict[str, Any] = {
    "experiments": (EXPERIMENT,),
    "measure": "train",
    "lenders": PROBES,
    "select": studies,
}

#: The same with two-stage training on pointer labels, a bed that tells methods apart.
OF_STUDIES_AND_BED: dict[str, Any] = {
    **OF_STUDIES,
    "experiments": (*OF_STUDIES["experiments"], pointer.EXPERIMENT),
    "lenders": (*PROBES, pointer.SCRATCH, pointer.PROBE),
    "select": pointer.studies_and_bed,
}

#: What became of a run, as columns of a table.
RUN = ("status", "remarks", "seeds", "train_steps", "validation_examples")


def ends(*names: str) -> list[str]:
    """Return the columns of estimates: values, bounds, and what these are.

    >>> ends("nce")
    ['nce', 'nce_low', 'nce_high', 'nce_bounds']
    """
    return [f"{name}{end}" for name in names for end in ("", "_low", "_high", "_bounds")]


def metric_format(metric: LeadingMetric) -> Format:
    """Return how the values of a metric are written."""
    return Format(metric.heading, digits=4, decimals=1 if metric.unit == "%" else None, status="status")


def difference_format(metric: LeadingMetric, heading: str, unit: bool = True) -> Format:
    """Return how differences in a metric are written, with the ``unit`` behind the heading where asked."""
    words = ", ".join(filter(None, (heading, metric.unit_apart if unit else "")))
    return Format(words, decimals=1 if metric.unit == "%" else None, sign=True)


def about(
    page: Runs, counts: Iterable[int] = (1,), remarks: Iterable[tuple[str, str]] = (), missing: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what captions of trainings state; ``training.md.j2`` has the sentences.

    Args:
        page: the runs.
        counts: of the seeds that values on the page are means of.
        remarks: names of runs with what became of them.
        missing: the names of runs that are not recorded.
    """
    seed_counts = {*counts} - {0}
    return {
        "examples": examples_words(page),
        "examples_by_stage": _examples_by_stage(page),
        "seed_counts": seed_counts,
        "few_seeds": any(1 < count < MIN_LAUNCHES for count in seed_counts),
        "many_seeds": any(count >= MIN_LAUNCHES for count in seed_counts),
        "dense_below_probe": _dense_below_probe(page),
        "probed_stage": page.stages[0][0] if page.model.get("late_length") else "",
        "remarks": gathered(remarks),
        "missing": missing,
    }


def about_study(page: Study, table: Any = None, rows: pd.DataFrame | None = None) -> dict[str, Any]:  # noqa: ARG001
    """Return the same of a study, with what became of its runs, or of those in the given ``rows``."""
    rows = page.rows if rows is None else rows
    remarks = [(row.run, remark) for row in frame.each(rows) for remark in row.remarks_on_runs]
    missing = rows.loc[rows["status"] == NOT_RECORDED, "run"]
    return about(page, rows["finished"].map(len), remarks, list(missing))


class Standing(NamedTuple):
    """Which runs surely beat a bound, and which do not."""

    above: list[str]
    below: list[str]


def standing(scores: Mapping[Any, Score | None], bound: float | None) -> Standing:
    """Return where the scores of runs stand beside a bound, all of them above where there is none."""
    found = {name: bound is None or one.beats(bound) for name, one in scores.items() if one}
    above = [name for name, beats in found.items() if beats]
    return Standing(above, [name for name in found if name not in above])


def gathered(remarks: Iterable[tuple[str, str]]) -> list[tuple[list[str], str]]:
    """Return each remark once, with all that it is about.

    >>> gathered([("dense", "diverged."), ("comera", "diverged")])
    [(['dense', 'comera'], 'diverged')]
    """
    found: dict[str, list[str]] = {}
    for name, remark in remarks:
        found.setdefault(" ".join(remark.split()).rstrip("."), []).append(name)
    return [(names, remark) for remark, names in found.items()]


def examples_words(page: Runs) -> str:
    """Return what the metric has a value of each of, such as ``held-out files`` or ``validation examples``."""
    words = page.df["workload_words"].iloc[0]
    return f"{words['validated']}s" if words["validated"] else f"validation {words['example']}s"


def _examples_by_stage(page: Runs) -> list[tuple[int, str]]:
    """Return on how many examples the runs were validated, by stage where stages differ; empty where not known."""
    points = curves(page.finished, "arm").fillna({"examples": 0})
    counts = points.groupby("stage", sort=False)["examples"].max().astype(int)
    stages = counts.index if counts.nunique() > 1 else [""]
    return [(count, stage) for count, stage in zip(counts, stages, strict=False) if count]


def _dense_below_probe(page: Runs) -> bool:
    """Return whether dense training was run and no form or setting of it surely beats the probe.

    Where a later stage has other rows, the probe is of the first stage's alone.
    """
    dense = page.finished[page.finished["method"] == DENSE]
    settings = dense["arm"] + frame.settings(dense, frame.METHOD) + dense["depth"].astype(str)
    points = curves(dense.assign(of=settings), "of")
    if page.model.get("late_length"):
        points = points[points["stage"] == page.stages[0][0]]
    ends = points.drop_duplicates(["of", "seed"], keep="last").groupby("of")
    points_of = {of: dict(zip(one["seed"], one["point"], strict=True)) for of, one in ends}
    scores = {of: score(page.metric, found) for of, found in points_of.items()}
    return bool(scores) and not standing(scores, page.metric.probe).above


def label(axes: Any, x: str, y: str, is_empty: bool) -> None:
    """Name the axes, and say where there is nothing to draw."""
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    if is_empty:
        nothing_drawn(axes, "no finished run")
