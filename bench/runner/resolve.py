"""What a user may set, typed, and the step from a composed configuration to cells.

Hydra composes ``bench/conf``; :func:`resolve` turns one job's configuration into a :class:`Job`: the cells of one
device, batch size, precision and set of toggles, one per method, checked down to the last setting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bench.core.cell import Cell
from bench.core.record import MEASURES
from bench.measures.train import training_cells
from bench.protocol import Data
from bench.protocol.methods import ConfigError, build_dataclass, checked_settings, default_settings, parse_arm
from bench.step.timing import ALLOCATORS
from bench.step.train_step import PRECISIONS
from bench.workloads import available, config_sections, open_workload, workload_class
from bench.workloads import checked_settings as checked_workload_settings

DEVICES = ("auto", "cpu", "cuda")
REUSES = ("exact", "config", "never")

#: What :func:`resolve` may vary among the arms of a job.
TOGGLES = ("precision", "cuda_graph", "compile")

#: Workload and method that some measures are about, and what that is. Either may be any where none is named.
_WANTED = {
    "plan": ("linear", "comera", "tensor trains"),
    "products": ("linear", "dense", "plain products"),
    "profile": ("encoder", "", ""),
}

#: All there is to set, as in ``conf/config.yaml``.
FIELDS = (
    *("name", "workload", "dataset", "data_folder", "fetch", "methods", "measure", "device", "batch_size"),
    *("sequence_length", "precision", "cuda_graph", "compile", "toggles", "seed", "ratio", "model", "table", "linear"),
    *("timing", "training", "settings", "reuse", "resume", "results", "parallel"),
)


@dataclass(frozen=True)
class TimingSettings:
    """How steps are timed.

    Args:
        blocks: rounds in which every arm runs once, in random order; at least 5 give a usable interval.
        extra_blocks: how many disturbed rounds may be repeated.
        block_seconds: about how long an arm runs per block; sets the steps per block.
        max_steps: upper bound on the steps per block.
        warmup_steps: steps before the first block.
        disturbed: a block counts as disturbed when its calibration product, or its mean step, takes more than this many
            times the median over the arm's blocks.
        time_limit_s: seconds after which a cell is given up and recorded as ``timeout``.
        allocator: ``steady`` keeps freed memory (:func:`bench.step.timing.steady_allocator`), ``system`` is the C
        library's
            own way, which most users of PyTorch on a CPU have.
    """

    blocks: int = 5
    extra_blocks: int = 2
    block_seconds: float = 1.0
    max_steps: int = 20
    warmup_steps: int = 2
    disturbed: float = 1.25
    time_limit_s: float = 600.0
    allocator: str = ALLOCATORS[0]

    def __post_init__(self) -> None:
        if self.allocator not in ALLOCATORS:
            raise ValueError(f"allocator is {self.allocator!r}; allowed: {', '.join(ALLOCATORS)}.")
        for field, lowest in (("blocks", 1), ("extra_blocks", 0), ("max_steps", 1), ("warmup_steps", 1)):
            if getattr(self, field) < lowest:
                raise ValueError(f"{field} is {getattr(self, field)}; allowed: whole numbers from {lowest} up.")
        for field in ("block_seconds", "time_limit_s"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} is {getattr(self, field)}; allowed: seconds above 0.")
        if not self.disturbed > 1:
            raise ValueError(f"disturbed is {self.disturbed}; allowed: factors above 1.")


@dataclass(frozen=True)
class Job:
    """Cells that differ in the method and its settings alone, with what all of them share."""

    cells: tuple[Cell, ...]
    data: Data
    data_hash: str


def resolve(config: Mapping[str, Any], elsewhere: bool = False) -> Job:
    """Check one job's configuration and return its cells.

    Args:
        config: the composed configuration as plain containers, without Hydra's own node.
        elsewhere: the job will run on another machine, whose devices are not known here.

    Raises:
        ConfigError: a wrong value, in one sentence.
        DataError: data that is missing or malformed, in one sentence.
    """
    check_fields(config)
    device = resolve_device(config["device"], config["measure"], elsewhere)
    data = build_dataclass(Data, {key: config[key] for key in ("dataset", "data_folder", "fetch")}, "data")
    timing = build_dataclass(TimingSettings, config["timing"], "timing")
    arms = checked_arms(config)
    ratio = None if config["ratio"] is None else float(config["ratio"])
    _check_measurable(config["measure"], config["workload"], [method for method, _, _ in arms])
    section = config[workload_class(config["workload"]).section]
    if config["workload"] == "encoder":
        section = {**section, "sequence_length": config["sequence_length"]}
    model = checked_workload_settings(config["workload"], section, data)
    workload = open_workload(config["workload"], model, data, check=True)
    cells = [
        Cell(
            experiment=config["name"],
            workload=config["workload"],
            dataset=workload.dataset,
            method=method,
            variant=variant,
            measure=config["measure"],
            device=device,
            batch_size=config["batch_size"],
            **toggles,
            seed=config["seed"],
            ratio=settings.get("ratio") or (ratio if config["measure"] == "run" else None),
            method_settings=settings,
            workload_settings=asdict(model),
            timing_settings=_identity(timing) if config["measure"] not in ("predict", "train", "witness") else {},
        )
        for toggles in _toggle_sets(config)
        for method, variant, settings in arms
    ]
    cells = list({cell.to_json(): cell for cell in cells}.values())
    if config["measure"] == "train":
        cells = [run for cell in cells for run in training_cells(cell, config["training"], workload)]
    return Job(tuple(cells), data, workload.data_hash)


def _identity(timing: TimingSettings) -> dict[str, Any]:
    """The settings as cells hold them: without an allocator where it is the usual one, as before there was a choice."""
    settings = asdict(timing)
    if timing.allocator == ALLOCATORS[0]:
        del settings["allocator"]
    return settings


def _toggle_sets(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Precision, graph and compilation of each round of arms: the job's own, with what ``toggles`` puts in their place.

    Raises:
        ConfigError: a set that is none, or a toggle with a wrong value.
    """
    own = {name: config[name] for name in TOGGLES}
    sets = config["toggles"]
    if not isinstance(sets, list) or not sets or not all(isinstance(one, Mapping) for one in sets):
        raise ConfigError(f"toggles is {sets!r}; allowed: a list of sets, such as [{{}},{{compile: true}}].")
    for one in sets:
        for name in one:
            if name not in TOGGLES:
                raise ConfigError(f"toggles has {name!r}; allowed: {', '.join(TOGGLES)}.")
        _check_toggles({**own, **one})
    return [{**own, **one} for one in sets]


def _check_toggles(values: Mapping[str, Any]) -> None:
    if values["precision"] not in PRECISIONS:
        raise ConfigError(f"precision is {values['precision']!r}; allowed: {', '.join(PRECISIONS)}.")
    for field in ("cuda_graph", "compile"):
        if type(values[field]) is not bool:
            raise ConfigError(f"{field} is {values[field]!r}; allowed: true, false.")


def _check_measurable(measure: str, workload: str, methods: Sequence[str]) -> None:
    """Raises ConfigError where a measure is about another workload or method."""
    wanted_workload, wanted_method, about = _WANTED.get(measure, ("", "", ""))
    if wanted_workload and workload != wanted_workload:
        about_workload = "one layer" if wanted_workload == "linear" else "whole steps"
        raise ConfigError(
            f"workload is {workload!r}; measure={measure} is about {about_workload}, allowed: {wanted_workload}."
        )
    for method in methods:
        if wanted_method and method != wanted_method:
            raise ConfigError(f"methods has {method!r}; measure={measure} is about {about}, allowed: {wanted_method}.")


def checked_arms(config: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Method, variant and settings of every entry of ``methods``.

    Raises:
        ConfigError: an unknown method, variant or setting, of a method that is not asked for too.
    """
    for method, values in config["settings"].items():
        checked_settings(method, values)
    ratio = None if config["ratio"] is None else float(config["ratio"])
    return [_arm(entry, config["settings"], ratio) for entry in config["methods"]]


def _arm(entry: Any, shared: Mapping[str, Any], ratio: float | None) -> tuple[str, str, dict[str, Any]]:
    """Method, variant and settings of an entry of ``methods``: a name, or a name with settings of its own.

    A ratio goes to the methods that take one and are not given their own.
    """
    own: Any = {}
    if isinstance(entry, Mapping):
        if len(entry) != 1:
            raise ConfigError(f"methods has {dict(entry)!r}; allowed: one name each, as in {{comera: {{ranks: 16}}}}.")
        [(entry, own)] = entry.items()
    method, variant = parse_arm(str(entry))
    if not isinstance(own, Mapping):
        raise ConfigError(f"methods.{method} is {own!r}; allowed: single settings, as in {{comera: {{ranks: 16}}}}.")
    values = {**shared.get(method, {}), **own}
    if values.get("ratio") is None and "ratio" in default_settings(method):
        values["ratio"] = ratio
    return method, variant, checked_settings(method, values)


def check_fields(config: Mapping[str, Any]) -> None:
    """Names, types and ranges of a job's own fields; raises ConfigError."""
    known = tuple(dict.fromkeys((*FIELDS, *config_sections())))
    for field in (*config, *known):
        if field not in known or field not in config:
            problem = "has no value" if field in known else "is no setting of the bench"
            raise ConfigError(f"{field} {problem}; a job has: {', '.join(known)}.")
    for field, allowed in (
        ("workload", available()),
        ("measure", MEASURES),
        ("device", DEVICES),
        ("reuse", REUSES),
    ):
        if config[field] not in allowed:
            raise ConfigError(f"{field} is {config[field]!r}; allowed: {', '.join(allowed)}.")
    for field, lowest in (("batch_size", 1), ("sequence_length", 5), ("seed", 0), ("parallel", 0)):
        if type(config[field]) is not int or config[field] < lowest:
            raise ConfigError(f"{field} is {config[field]!r}; allowed: whole numbers from {lowest} up.")
    _check_toggles(config)
    for field in ("fetch", "resume"):
        if type(config[field]) is not bool:
            raise ConfigError(f"{field} is {config[field]!r}; allowed: true, false.")
    for field in ("name", "results"):
        if not isinstance(config[field], str) or not config[field]:
            raise ConfigError(f"{field} is {config[field]!r}; allowed: the name of a folder.")
    if not re.fullmatch(r"[\w-]+", config["name"]):
        raise ConfigError(f"name is {config['name']!r}; allowed: letters, digits, - and _.")
    ratio = config["ratio"]
    if ratio is not None and not (type(ratio) in (int, float) and math.isfinite(ratio) and ratio >= 1):
        raise ConfigError(f"ratio is {ratio!r}; allowed: numbers from 1 (as large as dense) up, or null.")
    for field in ("timing", "settings", *config_sections()):
        if not isinstance(config[field], Mapping):
            raise ConfigError(f"{field} is {config[field]!r}; allowed: single settings, as in {field}.NAME=VALUE.")
    methods = config["methods"]
    if not isinstance(methods, list) or not methods:
        raise ConfigError(f"methods is {methods!r}; give a list of at least one method, such as [comera,dense].")


def resolve_device(device: str, measure: str, elsewhere: bool = False) -> str:
    """``auto`` is CUDA where there is one; a prediction needs no device.

    Raises:
        ConfigError: CUDA asked for where there is none; ``auto`` for a machine that is not known here.
    """
    if elsewhere:
        if device == "auto":
            raise ConfigError("device is 'auto', but the jobs run on machines not known here; allowed then: cpu, cuda.")
        return device
    has_cuda = torch.cuda.is_available()
    if device == "auto":
        return "cuda" if has_cuda else "cpu"
    if device == "cuda" and measure != "predict" and not has_cuda:
        raise ConfigError("device is 'cuda', but this machine offers no CUDA device; allowed here: auto, cpu.")
    return device
