"""``model=PATH`` without a method: all arms and several batches of a user's model, on a page.

Each is the prediction of ``python -m bench predict method=ARM model=PATH batch_size=N``; the file that is written here
is read by the explorer (``python -m bench explore --model FILE``).
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from bench.commands.predict.step import StepQuestion, question_of
from bench.commands.programs import status_of
from bench.core.files import write_whole
from bench.distributed.launch import die_with_parent
from bench.errors import CONF, ConfigError
from bench.estimate.devices import GPUS, Device, device_named
from bench.estimate.work import Prediction, bound, predict
from bench.processes.process import each, first_line, side_by_side
from bench.protocol import CellFailure

BATCHES = (1, 8, 32, 128)

#: The experiment that has every form of every arm.
_ARMS_OF = CONF / "experiment" / "fig1_all.yaml"

#: The folder of the page and of what it is made from.
FOLDER = Path("figures") / "rendered" / "local"
RECORDS = Path("results") / "reference"


def arms() -> list[str]:
    """Return every form of every arm that the bench compares in Fig. 1."""
    names: list[str] = [str(name) for name in OmegaConf.load(_ARMS_OF).methods]
    return names


class _Survey(NamedTuple):
    """Question about every arm: settings as the command has them, batches, devices by their names."""

    others: tuple[str, ...]
    batches: tuple[int, ...]
    devices: Mapping[str, Device]


class _Arm(NamedTuple):
    """Predictions of one arm; nothing but notes where it was left out."""

    points: list[dict[str, Any]]
    largest: list[dict[str, Any]]
    notes: list[str]


def survey(given: Mapping[str, str], report: Callable[[str], None]) -> dict[str, Any]:
    """Return all arms and batches of the model that ``given`` names, on one device or all GPUs, ready for JSON.

    Arms are predicted side by side, one process of one thread for each usable processor; ``report`` takes how far it
    is. Raises ConfigError: a wrong setting, or a model that no arm can train.
    """
    others = tuple(f"{key}={value}" for key, value in given.items() if key not in ("device", "batch_size"))
    names = [given["device"]] if "device" in given else sorted(GPUS)
    sizes = [given["batch_size"]] if "batch_size" in given else [str(size) for size in BATCHES]
    asked = [*others, "method=dense", f"batch_size={sizes[-1]}", f"device={names[0]}"]
    question, _ = question_of(asked)  # is it a model at all?
    devices = {name: device_named(name, question.cell.precision) for name in names}
    made = _made(_Survey(others, tuple(map(int, sizes)), devices), report)
    notes = list(dict.fromkeys(note for arm in made for note in arm.notes))
    points = [point for arm in made for point in arm.points]
    if not points:
        raise ConfigError(f"model is {given['model']!r}, which no arm can train: {notes[0]}")
    largest = [row for arm in made for row in arm.largest]
    return {"model": question.workload.words.model, "points": points, "largest": largest, "notes": notes}


def _made(asked: _Survey, report: Callable[[str], None]) -> list[_Arm]:
    names = arms()
    processes = side_by_side(len(names))
    report(f"{len(names)} arms, {processes} at a time ...")
    made: dict[str, _Arm] = {}
    for name, found in each(_arm, {name: (name, asked) for name in names}, processes):
        made[name] = _left_out(name, f"{found}.") if isinstance(found, CellFailure) else found
        report(f"{len(made)} of {len(names)} arms: {name}{'' if made[name].points else ', left out'}")
    return [made[name] for name in names]


def _arm(name: str, asked: _Survey) -> _Arm:
    """Predict an arm at the batches that it takes, and its largest batch on each device.

    Runs in a process of its own, which ends with the one that asks.
    """
    die_with_parent()
    first = next(iter(asked.devices))
    try:
        question, _ = question_of(
            [*asked.others, f"method={name}", f"batch_size={asked.batches[-1]}", f"device={first}"]
        )
        points: list[dict[str, Any]] = []
        peaks: dict[int, float] = {}
        for batch in asked.batches:
            if question.method().unsupported(replace(question.cell, batch_size=batch)):
                continue
            prediction = predict(*question.at(batch))
            peaks[batch] = prediction.memory.mib()["peak"]
            words = ["python", "-m", "bench", "predict", *asked.others, f"method={name}", f"batch_size={batch}"]
            for key, device in asked.devices.items():
                command = shlex.join([*words, f"device={key}"])
                points.append(_point(name, batch, question, device, prediction, command))
        largest = [_largest(name, question, device, peaks) for device in asked.devices.values()]
    except Exception as error:  # of a method's own over the model, or of its trace
        return _left_out(name, str(error) if isinstance(error, ValueError) else first_line(error))
    return _Arm(points, largest, list(question.notes))


def _left_out(name: str, reason: str) -> _Arm:
    return _Arm([], [], [f"{name} is left out: {reason}"])


def _point(
    arm: str, batch: int, question: StepQuestion, device: Device, made: Prediction, command: str
) -> dict[str, Any]:
    """Return a prediction by the columns of a record, with the least time of a step on the device."""
    memory, cell = made.memory, question.cell
    sizes = memory.mib()
    return {
        "source": "your model",
        "arm": arm,
        "batch_size": batch,
        "precision": cell.precision,
        "device": device.name,
        "workload": question.workload.words.model,
        "dataset": "random tokens",
        "measure": "predict",
        "predicted_for": cell.device,
        "sequence_length": cell.sequence_length,
        "least_time_ms": bound(made.work, made.traffic, device, cell.precision).step_ms,
        "peak_memory_predicted_mib": sizes.pop("peak"),
        **{f"predicted_{name}_mib": size for name, size in sizes.items()},
        "parameters": memory.parameter_count,
        "stored_mib": memory.stored / 2**20,
        "flops_per_step": made.work.flops_per_step,
        "command": command,
    }


def _largest(arm: str, question: StepQuestion, device: Device, peaks: dict[int, float]) -> dict[str, Any]:
    """Return the largest batch of an arm on a device; ``peaks`` has those that are known, and gets those found."""
    found = question.largest(device, peaks)
    words = f"{found.batch_size:,}{' at least' if found.next_mib is None else ''}" if found.batch_size else "none fits"
    sizes = {"batch_size": found.batch_size, "peak_mib": found.peak_mib}
    return {"arm": arm, "device": device.name, **sizes, "words": words}


def show(content: Mapping[str, Any]) -> None:
    """Write what was predicted, and the explorer's page with it beside the project's own records."""
    file = FOLDER / "predictions.json"
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_whole({file: (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()})
    words = ["--records", str(RECORDS), "--model", str(file), "--out", str(FOLDER)]
    if status := status_of(["-m", "figures.explorer", *words]):  # a floor above, which has a program of its own
        raise SystemExit(status)
