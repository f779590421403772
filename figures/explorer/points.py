"""Points of the explorer: one per record, and one per prediction for a model of the user's own."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.commands.reproduce import recorded
from bench.core.reading import loads, read_regular
from bench.core.record import COLUMNS, Record
from figures.explorer.questions import ALIKE, OWN, QUESTIONS, asked
from figures.text import InputError
from figures.times import StepTimes


class Axis(NamedTuple):
    """A column that can be an axis.

    Args:
        words: its name on the page.
        unit: of its values; empty for counts.
        best: heading of the best value; empty for a setting, of which no method has the best.
        less: whether smaller values are better.
    """

    words: str
    unit: str
    best: str
    less: bool = True


#: The axes by column. Metrics come beside these, by name.
AXES: dict[str, Axis] = {
    "step_time_ms": Axis("time of a step", "ms", "Fastest step"),
    "least_time_ms": Axis("least time of a step (a bound)", "ms", "Lowest bound of a step"),
    "peak_memory_predicted_mib": Axis("predicted peak memory", "MiB", "Least predicted memory"),
    "peak_memory_allocated_mib": Axis("allocated peak memory", "MiB", "Least allocated memory"),
    "parameters": Axis("trained parameters", "", "Fewest trained parameters"),
    "stored_mib": Axis("size of the stored model", "MiB", "Smallest stored model"),
    "flops_per_step": Axis("FLOPs of a step's products", "", "Fewest FLOPs"),
    "ratio": Axis("times smaller, as requested", "", "", less=False),
}

#: Columns that filter points, with their labels.
FILTERS: dict[str, str] = {
    "source": "experiment",
    "workload": "workload",
    "dataset": "data",
    "device": "device",
    "precision": "precision",
    "batch_size": "batch",
    "arm": "method",
}

#: Columns that are long or that nobody reads, and a second time of a step.
_LEFT_OUT = {"config_json", "workload_words", "library_versions", "schema_version"}
_LEFT_OUT |= {"step_time_median_ms"}


#: Measures whose experiments have one workload, so that a batch and data can be given.
_BY_BATCH = ("run", "predict", "train", "allocator_peak", "kept", "operations")


class PredictionsError(InputError):
    """A file of predictions that cannot be read."""


def command_of(record: Record) -> str:
    """Return the command that makes the record again: its experiment, at its batch, data and ratio.

    It names the arm only where that is a form of a method, which the experiment may leave out. Arms of one job are
    timed side by side. Where several lines of a target record in one folder, it is that target's.
    """
    line = recorded().get(record.experiment, f"experiment={record.experiment}")
    if line.startswith("reproduce "):
        return f"python -m bench {line}"
    settings: dict[str, Any] = dict(word.split("=", 1) for word in shlex.split(line))
    if record.measure in _BY_BATCH:
        settings["batch_size"] = record.batch_size
        settings["dataset"] = json.loads(record.config_json).get("dataset", record.dataset)
        settings |= {"ratio": f"{record.ratio:g}"} if record.ratio is not None else {}
        is_named = "methods" in settings or record.arm != record.method
        settings |= {"methods": f"['{record.arm}']"} if is_named else {}
        settings |= {"world_size": record.world_size} if record.world_size > 1 else {}
    return shlex.join(["python", "-m", "bench", *(f"{name}={value}" for name, value in settings.items())])


def point_of(record: Record) -> dict[str, Any]:
    """Return the record's columns, without the empty ones; ``source`` is its experiment.

    ``step_time_ms`` is the time that figures show; ``step_time_low_ms`` and ``step_time_high_ms`` are its bounds.
    """
    columns = {name: getattr(record, name) for name in COLUMNS if name not in _LEFT_OUT}
    point = {name: value for name, value in columns.items() if value not in (None, "", {}, False)}
    metrics = {f"metric_{name}": value for name, value in point.pop("metrics", {}).items()}
    times = StepTimes.of(record)
    if times and (step := times.step):
        point["step_time_ms"] = step.value
        if step.low is not None and step.high is not None:
            point |= {"step_time_low_ms": step.low, "step_time_high_ms": step.high}
    device = f"{record.predicted_for}, predicted" if record.measure == "predict" else record.device
    point |= {**metrics, "source": record.experiment, "arm": record.arm, "device": device}
    return point | {"command": command_of(record)}


def metric_axes(records: Iterable[Record]) -> dict[str, Axis]:
    """Return an axis for each metric that leads in a record."""
    found = {}
    for record in records:
        if metric := record.metric:
            text, higher = metric["text"], metric["higher_is_better"]
            best = f"{'Highest' if higher else 'Lowest'} {text}"
            found[f"metric_{metric['name']}"] = Axis(text, metric.get("unit") or "", best, less=not higher)
    return found


def own_points(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the points of a file that ``python -m bench advise --html`` wrote, and its other content.

    Raises PredictionsError where the file is not of that kind.
    """
    try:
        content = loads(read_regular(path).decode("utf-8"))
        points = content["points"]
        rest = {name: content[name] for name in ("model", "largest", "notes")}
        if not all(isinstance(point, dict) and {"arm", "device"} <= point.keys() for point in points):
            raise TypeError
    except OSError as error:
        raise PredictionsError(f"--model is {str(path)!r}, which cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError):
        raise PredictionsError(f"--model is {str(path)!r}, which bench advise --html has not written.") from None
    return points, rest


def content_of(records: Sequence[Record], own: tuple[list[dict[str, Any]], Mapping[str, Any]] | None) -> dict[str, Any]:
    """Return all content of the page, ready for JSON."""
    points = [point_of(record) for record in records if record.status == "ok"]
    points = [point for point in points if sum(axis in point for axis in AXES) > 1]
    points += own[0] if own else []
    known = {name for point in points for name in point}
    every = AXES | metric_axes(records)
    axes = {name: axis._asdict() for name, axis in every.items() if name in known}
    return {
        "axes": axes,
        "filters": FILTERS,
        "alike": ALIKE,
        "questions": asked(points, [OWN, *QUESTIONS]),
        "points": points,
        "failed": sum(record.status != "ok" for record in records),
        "own": own[1] if own else None,
    }
