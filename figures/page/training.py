"""What figures and tables of training have alike: the facts on top, notes below, columns, and marks on axes."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.core.intervals import CONFIDENCE, MIN_LAUNCHES
from figures.page.notes import device_fact, listed, switches
from figures.page.style import WHISKER, nothing_drawn
from figures.records.metric import Metric, Score, score
from figures.records.select import DENSE, method_settings
from figures.records.studies import EXPERIMENT, PROBES, Runs, StudyRow, studies
from figures.records.time_values import workload_words
from figures.records.training import CurvePoint, curve_of, stages_of
from figures.text import NOT_RECORDED, REMARKS, Column, bounds

#: What artifacts of the paper's training runs are made of, and of the same stages on source code.
OF_STUDIES: dict[str, Any] = {
    "experiments": (EXPERIMENT, "code_stages"),
    "measure": "train",
    "lenders": PROBES,
    "select": studies,
}

_CONFIDENT = f"{100 * CONFIDENCE:.0f} %"

#: How tables of training begin a line.
RUN = "run"


def size_words(page: Runs, aimed: bool = True) -> str:
    """What S is and, if runs ``aimed`` at it, S0."""
    aim = f"; S0: what the {page.stages[-1][0]} stage was to reach" if aimed else ""
    return f"S: core entries left, as a share of those before any rank was cut{aim}."


def examples_words(page: Runs) -> str:
    """What the metric has a value of each of, such as ``held-out files`` or ``examples``."""
    words = workload_words(page.shown[0])
    return f"{words['validated'] or words['example']}s"


def validation_words(page: Runs) -> str:
    """The same with the split, where the words do not tell it: ``held-out files``, but ``validation examples``."""
    return ("" if workload_words(page.shown[0])["validated"] else "validation ") + examples_words(page)


def brackets_words(seeds: Iterable[int], over: str, single: str = "bootstrap") -> str:
    """Say what the brackets of a metric hold, by the numbers of seeds on a page; ``over`` are the examples.

    ``single`` is the kind of the interval of one seed.

    >>> brackets_words([1], "examples", "Wilson's")
    "in brackets: of one seed a 95 % interval (Wilson's, over examples alone)"
    """
    counts = {*seeds} - {0}
    words = [f"of one seed a {_CONFIDENT} interval ({single}, over {over} alone)"] if 1 in counts else []
    if any(1 < count < MIN_LAUNCHES for count in counts):
        words.append(
            f"of 2 to {MIN_LAUNCHES - 1} seeds a bootstrap over seeds and {over}, which is no {_CONFIDENT} interval"
        )
    if max(counts, default=0) >= MIN_LAUNCHES:
        words.append(f"of {MIN_LAUNCHES} seeds or more a {_CONFIDENT} interval (bootstrap over seeds and {over})")
    return f"in brackets: {'; '.join(words) or 'nothing'}"


def metric_words(page: Runs, rows: Sequence[StudyRow] = (), wilson: str = "Wilson's") -> str:
    """What the metric is, and what its brackets hold; of ``rows`` a value is over all seeds, else of one run."""
    examples, all_of_them = examples_words(page), validation_words(page)
    seeds = [len(row.finished) for row in rows] or [1]
    single = wilson if page.values_are == "answers" else "bootstrap"
    in_brackets = brackets_words(seeds, examples, single)
    what = {
        "answers": f"share of {all_of_them} answered rightly; {in_brackets}",
        "numbers": f"mean over {all_of_them}; {in_brackets}",
        "none": f"of all {all_of_them} at once; it is no mean over them, so there are no bounds",
    }[page.values_are]
    return f"{page.metric.short}: {what}{'' if page.metric.higher_is_better else '; lower is better'}."


def one_seed_note(page: Runs) -> list[str]:
    """What the intervals of a single seed lack."""
    single = len(page.seeds) == 1 and page.values_are != "none"
    return ["One seed: the intervals do not hold what another seed would change."] if single else []


def dense_note(page: Runs) -> list[str]:
    """That dense training does not surely beat the probe, where no form or setting of it does.

    Where a later stage has other rows, the probe is of the first stage's alone.
    """
    metric, first, by_stage = page.metric, page.stages[0][0], page.model.get("late_length")
    ends: dict[tuple[str, str, int], dict[int, CurvePoint]] = {}
    for run in (run for run in page.finished_runs if run.method == DENSE):
        settings = json.dumps(method_settings(run), sort_keys=True)
        curve = [point for point in curve_of(run) if not by_stage or point.stage == first]
        ends.setdefault((run.arm, settings, len(stages_of(run))), {})[run.seed] = curve[-1]
    if metric.probe is None or not ends or any(score(metric, seeds).beats(metric.probe) for seeds in ends.values()):
        return []
    where = f"in the {first} stage" if by_stage else "here"
    return [
        f"Dense does not surely beat the {metric.probe_text} ({metric.written(metric.probe)}) {where}, so differences "
        "between methods show nothing about what compression costs."
    ]


def _validated(page: Runs) -> str:
    """On how many examples the runs were validated, by stage where stages differ; empty where that is not known."""
    counts: dict[str, int] = {}
    for point in (point for run in page.finished_runs for point in curve_of(run)):
        counts[point.stage] = max(counts.get(point.stage, 0), point.examples or 0)
    alike = len(set(counts.values())) == 1
    known = [f"{count:,}{'' if alike else f' ({stage})'}" for stage, count in counts.items() if count]
    return f", validated on {' and '.join(known[:1] if alike else known)} {examples_words(page)}" if known else ""


def facts(page: Runs) -> tuple[str, ...]:
    """Device, setting and budget of the runs shown, and how large the model is."""
    lengths = listed(page, "sequence_length")
    setting = [listed(page, "precision"), f"batch {listed(page, 'batch_size')}"]
    setting += [f"length up to {lengths}"] if lengths != "1" else []

    def epochs(steps: int) -> str:
        per_epoch = page.steps_per_epoch
        return f" ({steps / per_epoch:.3g} epoch{'' if steps == per_epoch else 's'})" if per_epoch else ""

    (first, steps), *others = page.stages
    budget = f"{steps:,} {first} steps{epochs(steps)}"
    budget += "".join(f", then {steps:,} {stage} ones{epochs(steps)}" for stage, steps in others)
    seeds = f"seed{'s' if len(page.seeds) > 1 else ''} {', '.join(map(str, page.seeds))}"
    model = [f"{page.dense_parameters:,} parameters"] if page.dense_parameters else []
    if model and page.is_papers:
        model.append("of the paper's size" if page.is_full_size else "not the paper's size")
    if model and "classes" in page.model:
        model.append(f"{page.model['classes']} classes")
    return (
        device_fact(page, *setting, switches(page)),
        f"Trained on {page.dataset!r}{_validated(page)}: {budget}, {seeds}.",
        *([f"Dense model: {', '.join(model)}."] if model else []),
    )


def absences(rows: Sequence[StudyRow]) -> list[str]:
    """A sentence on every run that is missing or failed, or has something to say."""
    lines = [f"{row.name}, {remark.rstrip('.')}." for row in rows for remark in row.remarks]
    missing = [row.name for row in rows if row.status == NOT_RECORDED]
    return [*lines, f"{NOT_RECORDED}: {'; '.join(missing)}."] if missing else lines


def reached(met: bool | None) -> str | None:
    """Whether S <= S0, as a cell of a table."""
    return None if met is None else "yes" if met else "NO"


def seeds_of(row: StudyRow) -> str:
    """The seeds that finished, as a cell of the CSV."""
    return " ".join(map(str, row.finished))


def head_column(page: Runs, slot: Callable[[StudyRow], Mapping[str, object]]) -> Column[StudyRow]:
    """What a row is about, and in the CSV how it went; ``slot`` is how the CSV names its run."""

    def tidy(row: StudyRow) -> dict[str, object]:
        return {
            "device": page.device,
            "dataset": page.dataset,
            "arm": row.slot.arm,
            **slot(row),
            "status": row.status,
            "remarks": "; ".join(row.remarks),
            "seeds": seeds_of(row),
            "train_steps": row.steps,
            "validation_examples": row.score and row.score.examples,
        }

    return Column(RUN, lambda row: row.label, tidy, left=True)


def score_column(metric: Metric) -> Column[StudyRow]:
    """What the models reached."""
    return Column(metric.heading, lambda row: str(row.score or row.status), lambda row: bounds(metric.name, row.score))


def less_column(metric: Metric, other: str, less: Callable[[StudyRow], Score | None]) -> Column[StudyRow]:
    """The difference to what another arm reached."""
    column = "_".join(filter(None, ("less", other, re.sub(r"\W+", "_", metric.unit_apart).strip("_"))))

    def text(row: StudyRow) -> str | None:
        found = less(row)
        return found.text(sign=True) if found else None

    heading = f"less {other}, {metric.unit_apart}".removesuffix(", ")
    return Column(heading, text, lambda row: bounds(column, less(row)))


def spread_column(
    name: str, column: str, text: Callable[[StudyRow], object] | None = None, spread: bool = True
) -> Column[StudyRow]:
    """A size or a ratio over seeds; in the CSV with the least and the greatest unless told otherwise."""

    def tidy(row: StudyRow) -> Mapping[str, object]:
        cells = bounds(column, row.spread(column))
        return cells if spread else {column: cells[column]}

    return Column(name, text or (lambda row: row.spread(column)), tidy)


def remarks_column() -> Column[StudyRow]:
    """What happened to single runs."""
    return Column(REMARKS, lambda row: "; ".join(row.remarks), lambda row: {"older_code": bool(row.mark)}, left=True)


def nothing_finished(axes: Any) -> None:
    """Say that there is nothing to draw."""
    nothing_drawn(axes, "no finished run")


def whisker(axes: Any, x: float, span: tuple[float, float], **style: Any) -> None:
    """A vertical range or interval."""
    axes.plot([x, x], span, **{**WHISKER, "solid_capstyle": "butt", **style})
