"""``python -m bench predict model=PATH``, without a method: all arms and batches of a user's model, on a page.

Each is what ``python -m bench predict method=ARM model=PATH batch_size=N`` says of it; the file that is written here is
read by the explorer (``python -m bench explore --model FILE``), which is run by its name.
"""

import functools
import json
import runpy
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from bench.commands.predict import Question, question_of
from bench.core.files import write_whole
from bench.errors import CONF, ConfigError
from bench.estimate.any_batch import AnyBatch, smallest_batch
from bench.estimate.devices import GPUS, Device, device_named, largest_batch
from bench.estimate.memory import predict_memory
from bench.estimate.work import Prediction, bound, predict
from bench.processes.process import first_line

BATCHES = (1, 8, 32, 128)

#: The experiment that has every form of every arm.
_ARMS_OF = CONF / "experiment" / "fig1_all.yaml"

#: The folder of the page and of what it is made from.
FOLDER = Path("figures") / "rendered" / "local"
RECORDS = Path("results") / "reference"


def arms() -> list[str]:
    """Every form of every arm that the bench compares in Fig. 1."""
    names: list[str] = [str(name) for name in OmegaConf.load(_ARMS_OF).methods]
    return names


def survey(given: Mapping[str, str], report: Callable[[str], None]) -> dict[str, Any]:
    """All arms and batches of the model that ``given`` names, on one device or on all GPUs, ready for JSON.

    Raises ConfigError: a wrong setting, or a model that no arm can train.
    """
    others = [f"{key}={value}" for key, value in given.items() if key not in ("device", "batch_size")]
    devices = [given["device"]] if "device" in given else sorted(GPUS)
    sizes = [given["batch_size"]] if "batch_size" in given else [str(size) for size in BATCHES]
    points: list[dict[str, Any]] = []
    largest: list[dict[str, Any]] = []
    notes: dict[str, None] = {}
    question_of([*others, "method=dense", f"batch_size={sizes[-1]}", f"device={devices[0]}"])  # is it a model at all?
    hardware: list[Device] = []
    model = ""
    for arm in arms():
        words = [*others, f"method={arm}", f"batch_size={sizes[-1]}", f"device={devices[0]}"]
        try:
            question, _ = question_of(words)
            model = question.workload.words.model
            hardware = hardware or [device_named(name, question.view.precision) for name in devices]
            own = list(
                _points(arm, map(int, sizes), question, dict(zip(devices, hardware, strict=True)), others, report)
            )
            report(f"{arm}, largest batches ...")
            largest += _largest(arm, question, hardware)
        except Exception as error:  # a method refuses a model in words of its own, or cannot trace it
            reason = str(error) if isinstance(error, ValueError) else first_line(error)
            notes[f"{arm} is left out: {reason}"] = None
            continue
        points += own
        notes |= dict.fromkeys(question.notes)
    if not points:
        raise ConfigError(f"model is {given['model']!r}, which no arm can train: {next(iter(notes))}")
    return {"model": model, "points": points, "largest": largest, "notes": list(notes)}


def _points(
    arm: str,
    batches: Iterable[int],
    question: Question,
    devices: Mapping[str, Device],
    others: Sequence[str],
    report: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """The predictions of an arm at the batches that it takes."""
    for batch in batches:
        if question.method().unsupported(replace(question.view, batch_size=batch)):
            continue
        report(f"{arm}, batch {batch} ...")
        prediction = predict(*_arguments(question, batch))
        words = ["python", "-m", "bench", "predict", *others, f"method={arm}", f"batch_size={batch}"]
        for name, device in devices.items():
            yield _point(arm, batch, question, device, prediction, shlex.join([*words, f"device={name}"]))


def _arguments(question: Question, batch: int) -> Any:
    view = question.view
    own = (view.precision, view.device, question.seed, question.checkpoint)
    return AnyBatch(question.workload), question.method(), batch, *own


def _point(arm: str, batch: int, question: Question, device: Device, made: Prediction, command: str) -> dict[str, Any]:
    """A prediction by the columns of a record, with the least time of a step on the device."""
    memory, view = made.memory, question.view
    sizes = memory.mib()
    return {
        "source": "your model", "arm": arm, "batch_size": batch, "precision": view.precision, "device": device.name,
        "workload": question.workload.words.model, "dataset": "random tokens", "measure": "predict",
        "predicted_for": view.device, "sequence_length": view.sequence_length,
        "least_time_ms": bound(made.work, made.traffic, device, view.precision).step_ms,
        "peak_memory_predicted_mib": sizes.pop("peak"),
        **{f"predicted_{name}_mib": size for name, size in sizes.items()},
        "parameters": memory.parameter_count, "stored_mib": memory.stored / 2**20,
        "flops_per_step": made.work.flops_per_step, "command": command,
    }  # fmt: skip


def _largest(arm: str, question: Question, hardware: Sequence[Device]) -> list[dict[str, Any]]:
    """The largest batch of an arm on each device; a batch is predicted once for all of them."""

    @functools.cache
    def peak_mib(batch: int) -> float:
        return predict_memory(*_arguments(question, batch)).mib()["peak"]

    multiple, limit = smallest_batch(question.method(), question.view), AnyBatch(question.workload).limit
    rows = []
    for device in hardware:
        found = largest_batch(peak_mib, device.room_mib, multiple, limit)
        words = "none fits" if not found.batch_size else f"{found.batch_size:,}"
        words += " at least" if found.batch_size and found.next_mib is None else ""
        rows.append({"arm": arm, "device": device.name, "batch_size": found.batch_size, "peak_mib": found.peak_mib,
                     "words": words})  # fmt: skip
    return rows


def show(content: Mapping[str, Any]) -> None:
    """Write what was predicted, and the explorer's page with it beside the project's own records."""
    file = FOLDER / "predictions.json"
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_whole({file: (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()})
    sys.argv[1:] = ["--records", str(RECORDS), "--model", str(file), "--out", str(FOLDER)]
    runpy.run_module("figures.explorer", run_name="__main__", alter_sys=True)
