"""``python -m bench predict method=NAME …``: memory, work and least time of a step on a device that need not be there.

The step is the one that the bench would run: same model, method and settings, traced on fake tensors
(:mod:`bench.estimate.memory`). A user's own model, given by its path, can take the place of a workload's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from bench.commands.prediction import Question, View, answer_to
from bench.errors import CONF, ConfigError, reworded, stop_with
from bench.estimate.devices import DEVICES, device_named
from bench.processes.process import first_line
from bench.protocol.methods import available, build, build_for
from bench.runner.resolve import check_fields, checked_arms, resolve
from bench.runner.sweep import MISTAKES, plain, register_resolvers, register_settings, unsupported
from bench.step.train_step import precision_unsupported
from bench.workloads import available as workloads
from bench.workloads import config_sections, open_cell_workload, open_model

USAGE = """\
usage: python -m bench predict method=NAME [key=value ...]     predict a training step without running it

methods: {methods}
devices: {devices}

  method            the arm, as method or method:variant
  batch_size        (8)
  device            where the step would run (cpu: this machine)
  precision         fp32, tf32, bf16 (fp32)
  ratio             how many times smaller the methods that can make the whole model (null)
  sequence_length   (128)
  model             path of a Hugging Face config.json, or of a folder with one, in place of the bench's own model
  workload          {workloads} (encoder); settings of theirs: {sections}
  settings.METHOD.* of the method, as in a run; also seed, dataset, data_folder

Printed are the peak of memory by category, the work of a step, a lower bound on its time, whether it fits into the
device's memory, and the largest batch that does:
  python -m bench predict method=comera batch_size=64 device=h100 precision=bf16
  python -m bench predict method=lora batch_size=32 device=rtx3090 model=folder/config.json sequence_length=512
"""

#: What may be said about a prediction, beside the sections of workloads.
KEYS = (
    *("method", "batch_size", "device", "precision", "ratio", "sequence_length", "model", "workload", "seed"),
    *("dataset", "data_folder", "fetch", "settings"),
)

#: What a model given by path has no use for, as for the sections of workloads.
_OF_WORKLOADS = ("workload", "dataset", "data_folder", "fetch")


def _sections() -> tuple[str, ...]:
    """Sections of settings, whose keys go on with a dot."""
    return ("settings", *(section for section in config_sections() if section != "training"))


def question_of(words: Sequence[str]) -> tuple[Question, str]:
    """The step that the words ``key=value`` describe, and the name of its device.

    Raises:
        ConfigError, DataError: a wrong value, in one sentence.
        HydraException, OmegaConfBaseException: words that cannot be read.
    """
    given = _by_key(words)
    if "method" not in given:
        raise ConfigError(f"method has no value; allowed: {', '.join(available())}.")
    device = given.get("device", "cpu")
    if device not in DEVICES:
        raise ConfigError(f"device is {device!r}; allowed: {', '.join(DEVICES)}.")
    kind = "cpu" if device == "cpu" else "cuda"
    others = [word for word in words if word.partition("=")[0] not in ("method", "device", "model")]
    register_resolvers()
    register_settings()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        settings = [
            "~experiment",
            "name=predict",
            "measure=predict",
            f"methods=['{given['method']}']",
            f"device={kind}",
        ]
        config = plain(compose("config", [*settings, *others]))
    return _of_path(config, Path(given["model"]), kind) if "model" in given else _of_workload(config), device


def _by_key(words: Sequence[str]) -> dict[str, str]:
    """The words by key, each of which must be one of :data:`KEYS` or of a section and stand alone."""
    sections = _sections()
    allowed = tuple(dict.fromkeys((*KEYS, *sections)))
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        section, dot, _ = key.partition(".")
        if not equals:
            raise ConfigError(f"{word!r} is no setting; settings are given as key=value, such as batch_size=4.")
        if section not in allowed or (dot and section not in sections):
            raise ConfigError(f"{key} is no setting of a prediction; allowed: {', '.join(allowed)}.")
        if key in sections and key != "model":  # the name of a section too; a value of its own is a path
            raise ConfigError(f"{key} is {value!r}; allowed: single settings, as in {key}.NAME=VALUE.")
        if key in given:
            raise ConfigError(f"{key} is {given[key]!r} and {value!r}; give it once.")
        given[key] = value
    for key in given if "model" in given else ():
        if key in _OF_WORKLOADS or (key.partition(".")[0] in sections[1:] and key != "model"):
            raise ConfigError(f"{key} is {given[key]!r}, which a model given by its path has no use for; leave it out.")
    return given


def _of_workload(config: dict[str, Any]) -> Question:
    """A step on one of the bench's own workloads."""
    job = resolve(config)
    cell = job.cells[0]
    if reason := unsupported(cell, job.data):
        raise ConfigError(reason)
    return Question(
        f"{cell.arm} on the workload {cell.workload}, data {cell.dataset}",
        open_cell_workload(cell, job.data),
        lambda: build_for(cell),
        View(cell.batch_size, cell.sequence_length, cell.precision, cell.device),
        cell.seed,
    )


def _of_path(config: dict[str, Any], path: Path, kind: str) -> Question:
    """A step on a user's own model."""
    check_fields(config)
    [(name, variant, settings)] = checked_arms(config)
    view = View(config["batch_size"], config["sequence_length"], config["precision"], kind)
    method = build(name, variant, settings)
    workload, notes = open_model(path, view.sequence_length)
    reason = precision_unsupported(view.precision, kind) or method.unsupported(view)
    if "ratio" in settings and not reason:
        with torch.device("meta"):
            reason = method.ratio_unsupported(workload.build(), workload.targets())
    if reason:
        raise ConfigError(reason)
    title = f"{name}{f':{variant}' if variant else ''} on {workload.words.model}"
    return Question(title, workload, lambda: build(name, variant, settings), view, config["seed"], notes, path)


def main(words: Sequence[str] | None = None) -> None:
    """Predict as the command line says and print the answer; progress goes to the other stream."""
    words = sys.argv[1:] if words is None else words
    if not words or {"-h", "--help"} & set(words):
        try:
            sections = ", ".join(f"{section}.*" for section in _sections()[1:])
        except ConfigError as error:
            stop_with(str(error))
        lists = {"methods": available(), "devices": DEVICES, "workloads": workloads()}
        print(USAGE.format(**{name: ", ".join(known) for name, known in lists.items()}, sections=sections), end="")
        return
    try:
        question, name = question_of(words)
    except MISTAKES as error:
        stop_with(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        stop_with(reworded(error))
    console = Console(stderr=True)
    with console.status("measuring this machine ..." if name == "cpu" else "predicting ...") as status:
        device = device_named(name, question.view.precision)
        try:
            answer = answer_to(question, device, status.update if console.is_terminal else console.print)
        except ConfigError as error:
            stop_with(str(error))
        except Exception as error:
            if question.path is None:
                raise
            problem = f"training step cannot be traced without data ({first_line(error)})"
            stop_with(f"model is '{question.path}', whose {problem}.")
    print(answer, end="")
