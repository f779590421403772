"""What figures and tables of training have alike: the columns of a run, facts of captions, and marks on axes."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bench.core.intervals import MIN_LAUNCHES
from figures.arms import DENSE
from figures.columns import Format
from figures.frame import settings_of
from figures.page.style import WHISKER, nothing_drawn
from figures.records.metric import Metric, Score, score
from figures.records.studies import EXPERIMENT, PROBES, Runs, Study, StudyRow, studies
from figures.records.time_values import workload_words
from figures.records.training import CurvePoint, curve_of, stages_of
from figures.text import NOT_RECORDED, bounds

#: What artifacts of the paper's training runs are made of, and of the same stages on source code.
OF_STUDIES: dict[str, Any] = {
    "experiments": (EXPERIMENT, "code_stages"),
    "measure": "train",
    "lenders": PROBES,
    "select": studies,
}


def run_columns(page: Runs, row: StudyRow, **slot: object) -> dict[str, Any]:
    """Return what a run is and how it went, as columns of a table; ``slot`` has those that name it."""
    score = row.score()
    return {
        "device": page.device,
        "dataset": page.dataset,
        "arm": row.slot.arm,
        **slot,
        "status": row.status,
        "remarks": "; ".join(row.remarks),
        "seeds": seeds_of(row),
        "train_steps": row.steps,
        "validation_examples": score and score.examples,
    }


def seeds_of(row: StudyRow) -> str:
    """Return the seeds that finished, as a cell of a table."""
    return " ".join(map(str, row.finished))


def spread_columns(row: StudyRow, *columns: str) -> dict[str, Any]:
    """Return sizes or ratios over seeds: their mean, the least and the greatest."""
    return {name: value for column in columns for name, value in bounds(column, row.spread(column)).items()}


def less_column(metric: Metric, other: str) -> str:
    """Return the column of the difference to another arm.

    >>> less_column(Metric("accuracy", "validation accuracy", "%"), "dense")
    'less_dense_points'
    """
    return "_".join(filter(None, ("less", other, re.sub(r"\W+", "_", metric.unit_apart).strip("_"))))


def metric_format(metric: Metric) -> Format:
    """Return how the values of a metric are written."""
    return Format(metric.heading, digits=4, decimals=1 if metric.unit == "%" else None, status="status")


def difference_format(metric: Metric, heading: str, unit: bool = True) -> Format:
    """Return how differences in a metric are written, with the ``unit`` behind the heading where asked."""
    words = ", ".join(filter(None, (heading, metric.unit_apart if unit else "")))
    return Format(words, decimals=1 if metric.unit == "%" else None, sign=True)


def about(page: Runs, _: Any = None, counts: Iterable[int] = (1,)) -> dict[str, Any]:
    """Return what captions of trainings state; ``training.md.j2`` has the sentences.

    Args:
        page: the runs.
        counts: of the seeds that values on the page are means of.
    """
    seed_counts = {*counts} - {0}
    by_stage = page.model.get("late_length")
    return {
        "examples": examples_words(page),
        "examples_by_stage": _examples_by_stage(page),
        "seed_counts": seed_counts,
        "few_seeds": any(1 < count < MIN_LAUNCHES for count in seed_counts),
        "many_seeds": any(count >= MIN_LAUNCHES for count in seed_counts),
        "dense_below_probe": _dense_below_probe(page),
        "probed_stage": page.stages[0][0] if by_stage else "",
    }


def about_study(page: Study, table: Any = None, rows: Sequence[StudyRow] | None = None) -> dict[str, Any]:
    """Return the same of a study, with what became of its runs, or of those in the given ``rows``."""
    rows = page.rows if rows is None else rows
    remarks = gathered((row.name, remark) for row in rows for remark in row.remarks)
    missing = [row.name for row in rows if row.status == NOT_RECORDED]
    counts = (len(row.finished) for row in rows)
    return {**about(page, table, counts), "remarks": remarks, "missing": missing}


class Standing(NamedTuple):
    """Which runs surely beat a bound, and which do not."""

    above: list[str]
    below: list[str]


def standing(scores: Mapping[str, Score | None], bound: float | None) -> Standing:
    """Return where the scores of runs stand beside a bound, all of them above where there is none."""
    found = {name: bound is None or one.beats(bound) for name, one in scores.items() if one}
    return Standing([name for name, beats in found.items() if beats], [name for name in found if not found[name]])


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
    words = workload_words(page.shown[0])
    return f"{words['validated']}s" if words["validated"] else f"validation {words['example']}s"


def _examples_by_stage(page: Runs) -> list[tuple[int, str]]:
    """Return on how many examples the runs were validated, by stage where stages differ; empty where not known."""
    counts: dict[str, int] = {}
    for point in (point for run in page.finished_runs for point in curve_of(run)):
        counts[point.stage] = max(counts.get(point.stage, 0), point.examples or 0)
    if len(set(counts.values())) == 1:
        return [(count, "") for count in list(counts.values())[:1] if count]
    return [(count, stage) for stage, count in counts.items() if count]


def _dense_below_probe(page: Runs) -> bool:
    """Return whether dense training was run and no form or setting of it surely beats the probe.

    Where a later stage has other rows, the probe is of the first stage's alone.
    """
    metric, first, by_stage = page.metric, page.stages[0][0], page.model.get("late_length")
    ends: dict[tuple[str, str, int], dict[int, CurvePoint]] = {}
    for run in (run for run in page.finished_runs if run.method == DENSE):
        settings = json.dumps(settings_of(run, "method_settings"), sort_keys=True)
        curve = [point for point in curve_of(run) if not by_stage or point.stage == first]
        ends.setdefault((run.arm, settings, len(stages_of(run))), {})[run.seed] = curve[-1]
    probe = metric.probe
    return probe is not None and bool(ends) and not any(score(metric, end).beats(probe) for end in ends.values())


def nothing_finished(axes: Any) -> None:
    """Say that there is nothing to draw."""
    nothing_drawn(axes, "no finished run")


def whisker(axes: Any, x: float, span: tuple[float, float], **style: Any) -> None:
    """Draw a vertical range or interval."""
    axes.plot([x, x], span, **{**WHISKER, "solid_capstyle": "butt", **style})


def span_of(line: Mapping[str, Any], name: str) -> tuple[float, float]:
    """Return the bounds of a column in a line of a table, or its value twice where there are none."""
    low, high = line.get(f"{name}_low"), line.get(f"{name}_high")
    bare = low is None or high is None or low != low or high != high  # NaN differs from itself
    return (float(line[name]), float(line[name])) if bare else (float(low), float(high))  # type: ignore[arg-type]
