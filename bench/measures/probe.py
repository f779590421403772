"""Probes: simple models on a workload's data that a trained model must beat to have learned anything.

The record's ``metrics`` are those of the best probe; ``samples["probes"]`` has all of them by name, each with its
metrics and whether it answers each validation example rightly, where it answers, and ``samples["best"]`` the best one's
name. Where the workload has other data in a late stage, ``samples["late"]`` has the same of those.
"""

from typing import Any

from bench.core.cell import Cell
from bench.core.samples import packed
from bench.errors import ConfigError
from bench.measures import Measure
from bench.protocol import Stage, Workload
from bench.step.unsupported import toggle_unsupported


def probe(cell: Cell, workload: Workload) -> dict[str, Any]:  # noqa: ARG001 - the same for every arm
    """Return the probes of a workload as columns of a record; raises ConfigError where it has none."""
    columns = _probed(workload)
    late = workload.in_stage(Stage("late", 1))
    if late is not workload:
        columns["samples"]["late"] = _probed(late)["samples"]
    return columns


def _probed(workload: Workload) -> dict[str, Any]:
    found, metric = workload.probes(), workload.metric
    if not found or metric is None:
        raise ConfigError(f"workload={workload.name} has no probe on {workload.dataset}.")
    sign = 1 if metric.higher_is_better else -1
    name = max(found, key=lambda one: sign * found[one].metrics[metric.name])
    best = found[name]
    probes: dict[str, dict[str, Any]] = {one: {"metrics": dict(tried.metrics)} for one, tried in found.items()}
    for one, tried in found.items():
        if tried.per_example is not None:
            probes[one]["per_example"] = packed(tried.per_example)
    examples = best.examples if best.per_example is None else len(best.per_example)
    return {
        "metrics": dict(best.metrics),
        "validation_examples": examples,
        "samples": {"best": name, "probes": probes},
    }


MEASURE = Measure(
    name="probe",
    words="what simple models reach on the data, such as bags of words",
    serve=probe,
    unsupported=lambda cell: toggle_unsupported(cell, "means nothing to a probe", "checkpoint"),
    on_device=False,
    timed=False,
    text=lambda record: ", ".join(f"{name} {value:.4g}" for name, value in record.metrics.items()),
)
