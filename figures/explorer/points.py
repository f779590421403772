"""What the explorer shows: a point per record, and per prediction for a model of the user's own."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.core.reading import loads, read_regular
from bench.core.record import COLUMNS, Record
from figures.records.time_values import time_of

#: What can be on an axis: its column, label, and whether less is better. Metrics come beside these, by name.
AXES: dict[str, tuple[str, bool]] = {
    "step_time_ms": ("time of a step, ms", True),
    "least_time_ms": ("least time of a step, ms (a bound)", True),
    "peak_memory_predicted_mib": ("peak memory, predicted, MiB", True),
    "peak_memory_allocated_mib": ("peak memory, allocated, MiB", True),
    "parameters": ("parameters trained", True),
    "stored_mib": ("model as stored, MiB", True),
    "flops_per_step": ("FLOPs of a step's products", True),
    "ratio": ("compression asked for", False),
}

#: By what points are filtered, with the words of the form.
FILTERS: dict[str, str] = {
    "source": "records of",
    "workload": "workload",
    "dataset": "data",
    "device": "device",
    "precision": "precision",
    "batch_size": "batch",
    "arm": "method",
}

#: Columns of the record that are long, that nobody reads, or that another time of a step would stand beside.
_LEFT_OUT = {"config_json", "workload_words", "library_versions", "schema_version", "step_time_median_ms"}


#: Measures whose experiments have one workload, so that a batch and data can be given.
_BY_BATCH = ("run", "predict", "train", "allocator_peak", "kept")


class PredictionsError(ValueError):
    """A file of predictions that cannot be read; the message is one sentence."""


def command_of(record: Record) -> str:
    """What makes the record again: its experiment, at its batch, data and ratio, and of forms of a method that the
    experiment may leave out, its arm. Arms of one job are timed side by side.
    """
    words = [f"experiment={record.experiment}"]
    if record.measure in _BY_BATCH:
        dataset = json.loads(record.config_json).get("dataset", record.dataset)
        words += [f"batch_size={record.batch_size}", f"dataset={dataset}"]
        words += [f"ratio={record.ratio:g}"] if record.ratio is not None else []
        words += [f"methods=['{record.arm}']"] if record.arm != record.method else []
        words += [f"world_size={record.world_size}"] if record.world_size > 1 else []
        words += [f"link_mbit={record.link_mbit:g}"] if record.link_mbit is not None else []
    return shlex.join(["python", "-m", "bench", *words])


def point_of(record: Record) -> dict[str, Any]:
    """A record by its columns, without those that are empty; ``source`` is its experiment.

    ``step_time_ms`` is the time that figures show.
    """
    columns = {name: getattr(record, name) for name in COLUMNS if name not in _LEFT_OUT}
    point = {name: value for name, value in columns.items() if value not in (None, "", {}, False)}
    metrics = {f"metric_{name}": value for name, value in point.pop("metrics", {}).items()}
    if time := time_of(record, "step"):
        point["step_time_ms"] = time.total.value
    device = record.device
    if record.measure == "predict":
        device = f"{record.predicted_for}, predicted"
    return (
        point
        | metrics
        | {
            "source": record.experiment,
            "arm": record.arm,
            "device": device,
            "command": command_of(record),
        }
    )


def metric_axes(records: Iterable[Record]) -> dict[str, tuple[str, bool]]:
    """The metrics that lead, as axes."""
    found = {}
    for record in records:
        if metric := record.metric:
            unit = f", {metric['unit']}" if metric.get("unit") else ""
            words = f"{metric['text']}{unit}", not metric["higher_is_better"]
            found[f"metric_{metric['name']}"] = words
    return found


def own_points(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The points of a file that ``python -m bench predict model=PATH`` wrote, and what else it says.

    Raises PredictionsError: a file that is none.
    """
    try:
        content = loads(read_regular(path).decode("utf-8"))
        points, rest = content["points"], {name: content[name] for name in ("model", "largest", "notes")}
        if not all(isinstance(point, dict) and "arm" in point and "device" in point for point in points):
            raise TypeError
    except OSError as error:
        raise PredictionsError(f"--model is {str(path)!r}, which cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError):
        raise PredictionsError(
            f"--model is {str(path)!r}, which python -m bench predict model=… has not written."
        ) from None
    return points, rest


def content_of(records: Sequence[Record], own: tuple[list[dict[str, Any]], Mapping[str, Any]] | None) -> dict[str, Any]:
    """All content of the page, ready for JSON."""
    points = [point_of(record) for record in records if record.status == "ok"]
    points = [point for point in points if sum(axis in point for axis in AXES) > 1]
    points += own[0] if own else []
    metrics = metric_axes(records)
    axes = {
        name: {"label": label, "less": less}
        for name, (label, less) in (AXES | metrics).items()
        if any(name in point for point in points)
    }
    failed = sum(record.status != "ok" for record in records)
    return {"axes": axes, "filters": FILTERS, "points": points, "failed": failed, "own": own[1] if own else None}
