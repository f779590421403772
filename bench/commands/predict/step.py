"""``method=NAME …``: memory, work and least time of one training step on a device that need not be there.

The step is the one that the bench would run: same model, method and settings, traced on fake tensors
(:mod:`bench.estimate.memory`). A user's own model, given by its path, can take the place of a workload's.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.core.cell import Arm, Cell, match_of
from bench.core.reading import model_path
from bench.errors import ConfigError
from bench.estimate.any_batch import AnyBatch, smallest_batch
from bench.estimate.devices import DEVICES, Device, Largest, largest_batch
from bench.estimate.memory import predict_memory
from bench.protocol import Method
from bench.protocol.methods import available, build, build_for
from bench.runner.configuration import configuration, job_configuration
from bench.runner.resolve import DRAWN_MIB, check_arms, check_batch_memory, check_fields, checked_arms, resolve
from bench.runner.sweep import cell_unsupported
from bench.runner.wording import by_key, for_hydra
from bench.step.unsupported import StepCell, unsupported
from bench.workloads import available as workloads
from bench.workloads import config_sections, open_cell_workload, open_model, workload_class

#: Settings of a prediction, beside the sections of workloads.
KEYS = (
    *("method", "batch_size", "device", "precision", "ratio", "sequence_length", "model", "workload", "seed"),
    *("dataset", "data_folder", "fetch", "settings"),
)

#: What a model given by path has no use for, as for the sections of workloads.
_OF_WORKLOADS = ("workload", "dataset", "data_folder", "fetch")


@dataclass(frozen=True)
class StepQuestion:
    """A step to be predicted."""

    title: str  # what is trained, and how
    workload: AnyBatch  # with batches of any size
    method: Callable[[], Method]  # makes a fresh one for every prediction
    cell: Cell | StepCell  # what else is asked
    seed: int  # of the batch
    notes: tuple[str, ...] = ()  # limits of the prediction
    path: Path | None = None  # of the model, where a user has given one

    def at(self, batch_size: int) -> Any:
        """Return the arguments of :func:`bench.estimate.work.predict` for a batch."""
        cell = self.cell
        return self.workload, self.method(), batch_size, cell.precision, cell.device, self.seed, cell.checkpoint

    def largest(
        self, device: Device, known: MutableMapping[int, float], report: Callable[[str], None] = lambda _: None
    ) -> Largest:
        """Return the largest batch that fits a device.

        ``known`` has peaks in MiB by batch, and gets those that are found; ``report`` receives progress messages.
        """
        multiple = smallest_batch(self.method(), self.cell)

        def peak_mib(batch_size: int) -> float:
            report(f"predicting batch {batch_size:,} ...")
            return predict_memory(*self.at(batch_size)).mib()["peak"]

        return largest_batch(peak_mib, device.room_mib, multiple, self.workload.limit, known)


def question_of(words: Sequence[str]) -> tuple[StepQuestion, str]:
    """Return the step that the words ``key=value`` describe, and the name of its device.

    Raises ConfigError, DataError: a wrong value, in one sentence. HydraException, OmegaConfBaseException: words that
    cannot be read.
    """
    given = checked_words(words)
    if "method" not in given:
        raise ConfigError(f"method has no value; allowed: {', '.join(available())}.")
    device = given.get("device", "cpu")
    if device not in DEVICES:
        raise ConfigError(f"device is {device!r}; allowed: {', '.join(DEVICES)}.")
    kind = "cpu" if device == "cpu" else "cuda"
    others = [for_hydra(word) for word in words if word.partition("=")[0] not in ("method", "device", "model")]
    own = ["~experiment", "name=predict", "measure=predict", f"methods=['{given['method']}']", f"device={kind}"]
    with configuration():
        config = job_configuration([*own, *others])
    if "model" in given:
        return _of_path(config, model_path(given["model"]), kind), device
    return _of_workload(config), device


def checked_words(words: Sequence[str]) -> dict[str, str]:
    """Return the words by key, each of which must be one of :data:`KEYS` or of a section.

    Raises ConfigError: a word that is no setting, or that the workload or method has no use for.
    """
    known = ("settings", *(section for section in config_sections() if section != "training"))
    allowed = tuple(dict.fromkeys((*KEYS, *known)))
    given = by_key(words)
    for key, value in given.items():
        section, dot, _ = key.partition(".")
        if section not in allowed or (dot and section not in known):
            raise ConfigError(f"{key} is no setting of a prediction; allowed: {', '.join(allowed)}.")
        if key in known and key != "model":  # the name of a section too; a value of its own is a path
            raise ConfigError(f"{key} is {value!r}; allowed: single settings, as in {key}.NAME=VALUE.")
    _refuse_unused(given)
    for key in given if "model" in given else ():
        if key in _OF_WORKLOADS or (key.partition(".")[0] in known[1:] and key != "model"):
            raise ConfigError(f"{key} is {given[key]!r}, which a model given by its path has no use for; leave it out.")
    return given


def _refuse_unused(given: Mapping[str, str]) -> None:
    """Raise ConfigError over a setting of another workload or method than the one that is asked for."""
    workload = given.get("workload", "encoder")
    method = Arm.parse(given.get("method", "")).method
    if workload not in workloads() or method not in available():
        return  # which is what will be said
    own = workload_class(workload).section
    lacks_length = "sequence_length" not in config_sections()[own] and "model" not in given
    for key in given:
        section, dot, name = key.partition(".")
        other = name.partition(".")[0] if section == "settings" else section if dot else own
        if other not in (own, method) or (key == "sequence_length" and lacks_length):
            of = f"method={method}" if section == "settings" else f"workload={workload}"
            raise ConfigError(f"{key} is {given[key]!r}, which {of} has no use for; leave it out.")


def _of_workload(config: dict[str, Any]) -> StepQuestion:
    job = resolve(config, any_batch=True)
    cell = job.cells[0]
    if reason := cell_unsupported(cell, job.data):
        raise ConfigError(reason)
    title = f"{cell.arm} on the workload {cell.workload}, data {cell.dataset}"
    workload = AnyBatch(open_cell_workload(cell, job.data))
    return StepQuestion(title, workload, functools.partial(build_for, cell), cell, cell.seed)


def _of_path(config: dict[str, Any], path: Path, kind: str) -> StepQuestion:
    check_fields(config)
    workload, notes = open_model(path, config["sequence_length"])
    check_batch_memory(config["batch_size"], workload, DRAWN_MIB)
    [(arm, settings)] = arms = checked_arms(config, workload)
    check_arms(arms, config["ratio"], [])
    sizes = (config["batch_size"], config["precision"], kind, config["sequence_length"], arm.checkpoint)
    cell = StepCell(*sizes, method=arm.method, method_settings=settings)
    fresh = functools.partial(build, arm.method, arm.variant, settings)
    with torch.device("meta"):
        model = workload.build()
    if reason := unsupported(cell, fresh(), model, workload.targets()):
        raise ConfigError(reason)
    named = dataclasses.replace(arm, match=match_of(arm.method, settings))
    title = f"{named} on {workload.words.model}"
    return StepQuestion(title, AnyBatch(workload), fresh, cell, config["seed"], notes, path)
