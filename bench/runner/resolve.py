"""Typed settings of the user, and the step from a composed configuration to cells.

Hydra composes ``bench/conf``; :func:`resolve` turns one job's configuration into a :class:`Job`: the cells of one
device, batch size, precision and set of toggles, one per method, checked down to the last setting.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

import bench.workloads
from bench.core.cell import EXCHANGES, Arm, Cell
from bench.core.checked import (
    Allowed,
    Blocks,
    BlockSteps,
    ExtraBlocks,
    Flag,
    FromOne,
    FromZero,
    Launches,
    Length,
    Seconds,
    Section,
    Seed,
    build_dataclass,
    checked_fields,
)
from bench.core.identity import LATER, identity
from bench.core.samples import DISTURBED
from bench.errors import ConfigError
from bench.measures import Measure, available, named
from bench.processes.cluster import nodes
from bench.processes.interleave import LAUNCHES
from bench.protocol import Data, Workload
from bench.protocol.methods import build, checked_settings, parse_arm, takes_ratio
from bench.protocol.recipe import Recipe
from bench.step.allocator import free_memory_mib
from bench.step.low_precision import Precision
from bench.step.timing import Allocator
from bench.training.plan import check_recipe, plan_of
from bench.workloads import open_workload, workload_class

Device = Literal["auto", "cpu", "cuda"]

_FEW = 2  # examples from which the size of a batch is told
_BATCH_SHARE = 0.5  # of the free memory, which a batch may take

#: The largest batch that is drawn for a prediction, which keeps nothing of it but its shapes.
DRAWN_MIB = 1024.0

_Folder = Annotated[str, Field(min_length=1), Allowed("the name of a folder")]
_Name = Annotated[str, Field(pattern=r"^[\w-]+$"), Allowed("the name of a folder: letters, digits, - and _")]
_Ratio = Annotated[Annotated[float, Field(ge=1)] | None, Allowed("numbers from 1 (as large as dense) up, or null")]
_Toggles = Annotated[list[dict[str, Any]], Field(min_length=1), Allowed("a list of sets, as in [{},{compile: true}]")]
_Methods = Annotated[list[Any], Field(min_length=1), Allowed("a list of at least one method, as in [comera,dense]")]


@dataclass(frozen=True)
class ToggleSettings:
    """Settings that may vary among the arms of a job."""

    batch_size: FromOne
    precision: Precision
    cuda_graph: Flag
    compile: Flag
    checkpoint: Flag


@dataclass(frozen=True)
class JobSettings(ToggleSettings):
    """All there is to set, as in ``conf/config.yaml``, the sections of workloads aside."""

    name: _Name
    workload: str
    dataset: str
    data_folder: str | None
    fetch: Flag
    start: str | None
    methods: _Methods
    measure: str
    device: Device
    sequence_length: Length
    toggles: _Toggles
    seed: Seed
    ratio: _Ratio
    world_size: Annotated[int, Field(ge=1, le=4096), Allowed("whole numbers from 1 to 4,096")]
    exchange: str
    timing: Section
    training: Section
    settings: Section
    reuse: Literal["exact", "config", "never"]
    resume: Flag
    results: _Folder
    parallel: FromZero


FIELDS = tuple(field.name for field in dataclasses.fields(JobSettings))
TOGGLES = tuple(field.name for field in dataclasses.fields(ToggleSettings))


@dataclass(frozen=True)
class TimingSettings:
    """Settings of timing steps.

    A block counts as disturbed when its calibration product, or its mean step, takes more than ``disturbed`` times the
    median over the arm's blocks of its launch. It does too when the product takes more than ``BUSY`` times the quickest
    one of the job, or ``disturbed`` times if that is larger (:mod:`bench.core.samples`).

    The allocator ``steady`` keeps freed memory, see :func:`bench.step.timing.steady_allocator`; ``system`` is the C
    library's own way, as for most users of PyTorch.
    """

    #: Of fresh processes; 3 or more tell what a range within one leaves out.
    launches: Launches = field(default=LAUNCHES, metadata=LATER)
    blocks: Blocks = 5  # of a launch: rounds in which every arm runs once, in random order
    extra_blocks: ExtraBlocks = 2  # of a launch: disturbed rounds that may be repeated
    block_seconds: Seconds = 1.0  # about how long an arm runs per block; sets the steps per block
    max_steps: BlockSteps = 20  # of a block
    min_steps: BlockSteps = field(default=1, metadata=LATER)  # of a block, however long they take
    warmup_steps: BlockSteps = 2  # before the first block
    disturbed: Annotated[float, Field(gt=1), Allowed("finite factors above 1")] = DISTURBED
    time_limit_s: Seconds = 600.0  # after which a cell is given up and recorded as ``timeout``
    allocator: Allocator = field(default="steady", metadata=LATER)


@dataclass(frozen=True)
class Job:
    """Cells that differ in the method and its settings alone, with what all of them share."""

    experiment: str
    measure: Measure
    cells: tuple[Cell, ...]
    data: Data
    data_hash: str
    parallel: int  # processes at a time, where cells run side by side; 0 for one per usable processor
    resume: bool  # whether training runs go on from their checkpoints


def resolve(config: Mapping[str, Any], elsewhere: bool = False, any_batch: bool = False) -> Job:
    """Check one job's configuration and return its cells.

    ``config`` is the composed one as plain containers, without Hydra's own node; ``elsewhere`` means that the job will
    run on another machine, ``any_batch`` that a batch may be larger than the data. Raises ConfigError, DataError: a
    wrong value, or data that is missing or malformed.
    """
    check_fields(config)
    measure, kind = named(config["measure"]), workload_class(config["workload"])
    device = resolve_device(config["device"], measure.on_device, elsewhere)
    data = Data(config["dataset"], config["data_folder"], config["fetch"], config["start"])
    timing = build_dataclass(TimingSettings, config["timing"], "timing")
    parsed = parsed_methods(config)
    _check_about(measure, config["workload"], [arm.method for arm, _ in parsed])
    recipe = getattr(plan_of(config["training"], kind), "recipe", None)
    ratio = None if config["ratio"] is None else float(config["ratio"])
    check_arms(parsed, ratio, config["toggles"])  # before the data is read, which may take minutes
    settings = bench.workloads.checked_settings(kind.name, config[kind.section], data)
    workload = open_workload(kind.name, settings, data, check=True)
    arms = checked_arms(config, workload)
    if recipe:
        check_recipe(Recipe(**recipe), arms)
    common = {name: config[name] for name in TOGGLES}
    toggle_sets = [{**common, **checked_fields(ToggleSettings, changed, "toggles")} for changed in config["toggles"]]
    batch_sizes = sorted({toggles["batch_size"] for toggles in toggle_sets})
    for batch_size in batch_sizes:
        _check_batch(batch_size, config["world_size"], workload.training_examples, any_batch)
    exchanges = _exchanges(config, measure, [arm for arm, _ in arms], device, elsewhere)
    check_arms(arms, ratio, config["toggles"])  # now with all settings
    for batch_size in batch_sizes:
        check_batch_memory(batch_size, workload, DRAWN_MIB if any_batch else math.inf)
    cells = [
        Cell(
            experiment=config["name"],
            workload=kind.name,
            dataset=workload.dataset,
            method=arm.method,
            variant=arm.variant,
            measure=measure.name,
            device=device,
            **{**toggles, "checkpoint": toggles["checkpoint"] or arm.checkpoint},
            seed=config["seed"],
            # its own, or by the ranks that it takes over; an arm without one stands beside those that have it
            ratio=own.get("ratio") or own.get("ranks_of_ratio") or (ratio if measure.paired else None),
            method_settings=own,
            workload_settings=identity(settings),
            timing_settings=identity(timing) if measure.timed else {},
            training={"recipe": recipe} if recipe else {},
            world_size=config["world_size"],
            exchange=exchange,
        )
        for toggles in toggle_sets
        for (arm, own), exchange in zip(arms, exchanges, strict=True)
    ]
    cells = [one for cell in cells for one in measure.expand(cell, config, workload)]
    return Job(
        experiment=config["name"],
        measure=measure,
        cells=tuple({cell.to_json(): cell for cell in cells}.values()),
        data=data,
        data_hash=workload.data_hash,
        parallel=config["parallel"],
        resume=config["resume"],
    )


def check_fields(config: Mapping[str, Any]) -> None:
    """Check names, types and ranges of a job's own fields; raises ConfigError."""
    sections = bench.workloads.config_sections()
    names = tuple(dict.fromkeys((*FIELDS, *sections)))
    for name in (*config, *names):
        if name not in names or name not in config:
            problem = "has no value" if name in names else "is no setting of the bench"
            raise ConfigError(f"{name} {problem}; a job has: {', '.join(names)}.")
    checked_fields(JobSettings, {name: config[name] for name in FIELDS})
    for section in sections:
        if not isinstance(config[section], Mapping):
            given = config[section]
            raise ConfigError(f"{section} is {given!r}; allowed: single settings, as in {section}.NAME=VALUE.")
    named(config["measure"])
    workload_class(config["workload"])


def _check_batch(batch_size: int, world_size: int, rows: int | None, any_batch: bool) -> None:
    """Raise ConfigError if there are fewer training rows than a step takes."""
    if rows is None or batch_size * world_size <= rows or any_batch:
        return
    if world_size == 1:
        raise ConfigError(f"batch_size is {batch_size}; allowed: 1 to the {rows} training rows.")
    allowed = f"1 to {rows // world_size}" if world_size <= rows else "none, there are fewer rows than ranks"
    raise ConfigError(
        f"batch_size is {batch_size} on each of world_size={world_size} ranks, but {rows} training rows cannot be "
        f"divided so; allowed: {allowed}."
    )


def check_batch_memory(batch_size: int, workload: Workload, most_mib: float = float("inf")) -> None:
    """Make sure that a batch fits into this machine's free memory, and into ``most_mib``.

    Raises ConfigError: it names the largest batch that does.
    """
    rows = workload.training_examples
    if batch_size <= _FEW or (rows is not None and rows < _FEW):
        return
    each_mib = _example_mib(workload)  # type: ignore[arg-type]
    room_mib = min(_BATCH_SHARE * free_memory_mib("cpu"), most_mib)
    if batch_size * each_mib > room_mib:
        raise ConfigError(
            f"batch_size is {batch_size}; allowed: 1 to {int(room_mib / each_mib):,}, whose batch takes the "
            f"{room_mib:,.0f} MiB that there are for one."
        )


@functools.lru_cache(maxsize=64)  # jobs of a sweep share their workload
def _example_mib(workload: Workload) -> float:
    few = next(iter(workload.batches("train", _FEW, 0, True)))
    return sum(tensor.nbytes for tensor in few.values()) / _FEW / 2**20


def check_arms(arms: Sequence[tuple[Arm, Mapping[str, Any]]], ratio: float | None, sets: Sequence[Any]) -> None:
    """Make sure that no arm and no set of toggles is given twice, and that a ratio has a use; raises ConfigError."""
    for number, (arm, settings) in enumerate(arms):
        if (arm, settings) in [(other, own) for other, own in arms[:number]]:
            written = f"{arm.method}:{arm.variant}" if arm.variant else arm.method
            raise ConfigError(f"methods has {written!r} twice with the same settings; give each arm once.")
    for number, toggles in enumerate(sets):
        if toggles in sets[:number]:
            raise ConfigError(f"toggles has {toggles!r} twice; give each set once.")
    if ratio is not None and not any(takes_ratio(arm.method, arm.variant) for arm, _ in arms):
        names = ", ".join(dict.fromkeys(arm.method for arm, _ in arms))
        raise ConfigError(f"ratio is {ratio:g}, which {names} has no use for; leave it out, or add a method that has.")


def _exchanges(config: Mapping[str, Any], measure: Measure, arms: list[Arm], device: str, elsewhere: bool) -> list[str]:
    """Return the exchange of each arm; blank on one rank.

    Raises ConfigError: an exchange that is unknown or given for one rank, or a measure of one rank.
    """
    ranks, common = config["world_size"], config["exchange"]
    if common not in ("", *EXCHANGES):
        raise ConfigError(f"exchange is {common!r}; allowed: {', '.join(EXCHANGES)}.")
    if ranks == 1:
        own = {str(arm): arm.exchange for arm in arms if arm.exchange}
        for name, value in (("exchange", common), *((f"exchange of {name}", value) for name, value in own.items())):
            if value:
                raise ConfigError(f"{name} is {value!r}, which needs several ranks; set world_size to 2 or more.")
        return [""] * len(arms)
    if not measure.on_ranks:
        names = ", ".join(name for name in available() if named(name).on_ranks)
        raise ConfigError(f"world_size is {ranks}, but measure={measure.name} is of one rank; allowed: {names}.")
    if device == "cuda" and not elsewhere and ranks > torch.cuda.device_count() * nodes():
        raise ConfigError(
            f"world_size is {ranks}, but here are {torch.cuda.device_count() * nodes()} CUDA device(s), one per rank."
        )
    return [arm.exchange or common or EXCHANGES[0] for arm in arms]


def _check_about(measure: Measure, workload: str, methods: list[str]) -> None:
    """Raise ConfigError if a measure is about other workloads or methods."""
    about = f"measure={measure.name} is about {measure.about}, allowed"
    if not measure.workloads(workload_class(workload)):
        allowed = [name for name in bench.workloads.available() if measure.workloads(workload_class(name))]
        raise ConfigError(f"workload is {workload!r}; {about}: {', '.join(allowed)}.")
    for method in methods:
        if measure.methods and method not in measure.methods:
            raise ConfigError(f"methods has {method!r}; {about}: {', '.join(measure.methods)}.")


def parsed_methods(config: Mapping[str, Any]) -> list[tuple[Arm, Mapping[str, Any]]]:
    """Parse every entry of ``methods``: a name, or a name with its own settings.

    Raises ConfigError: an unknown method or variant, or settings that are none.
    """
    parsed = []
    for entry in config["methods"]:
        own: Any = {}
        if isinstance(entry, Mapping):
            if len(entry) != 1:
                allowed = "one name each, as in {comera: {ranks: 16}}"
                raise ConfigError(f"methods has {dict(entry)!r}; allowed: {allowed}.")
            [(entry, own)] = entry.items()
        arm = parse_arm(str(entry))
        if not isinstance(own, Mapping):
            allowed = "single settings, as in {comera: {ranks: 16}}"
            raise ConfigError(f"methods.{arm.method} is {own!r}; allowed: {allowed}.")
        parsed.append((arm, own))
    return parsed


def checked_arms(config: Mapping[str, Any], workload: Workload) -> list[tuple[Arm, dict[str, Any]]]:
    """Return every entry of ``methods`` with all settings of its method.

    A ratio goes to the methods that take one and are not given their own. ``low_rank@size`` is as large as CoMERA on
    this workload, ``low_rank@rank`` has its middle ranks.

    Raises ConfigError: an unknown method, variant or setting, of a method that is not asked for too.
    """
    for method, values in config["settings"].items():
        checked_settings(method, values)
    arms = parsed_methods(config)
    ratio = None if config["ratio"] is None else float(config["ratio"])
    comera = {**config["settings"].get("comera", {}), **next((own for arm, own in arms if arm.method == "comera"), {})}
    return [(arm, _settings(arm, own, config["settings"], ratio, comera, workload)) for arm, own in arms]


def _settings(
    arm: Arm,
    own: Mapping[str, Any],
    shared: Mapping[str, Any],
    ratio: float | None,
    comera: Mapping[str, Any],
    workload: Workload,
) -> dict[str, Any]:
    """Return all settings of an arm; ``comera``: the job's settings of CoMERA, which another arm may have to match."""
    values = {**shared.get(arm.method, {}), **own}
    if not takes_ratio(arm.method, arm.variant):
        return checked_settings(arm.method, values)
    given = values.get("ratio")
    if not arm.match:
        return checked_settings(arm.method, {**values, "ratio": ratio if given is None else given})
    if given is not None:
        raise ConfigError(
            f"{arm.method}@{arm.match} has ratio={given!r} of its own; it takes CoMERA's: leave it out, or write "
            f"{arm.method} without @{arm.match}."
        )
    comera = {**comera, "ratio": comera.get("ratio") or ratio}
    if arm.match == "rank":
        return checked_settings(arm.method, {**values, "ranks_of_ratio": comera["ratio"]})
    return checked_settings(arm.method, {**values, "ratio": comera["ratio"] or comera_ratio(workload, comera)})


def comera_ratio(workload: Workload, settings: Mapping[str, Any]) -> float:
    """Return how many times fewer parameters CoMERA trains on a workload than dense training, to six digits."""
    with torch.device("meta"):
        model, targets = workload.build(), workload.targets()
        dense = sum(parameter.numel() for parameter in model.parameters())
        adapted = build("comera", "", checked_settings("comera", settings)).adapt(model, targets)
    return float(f"{dense / sum(parameter.numel() for parameter in adapted.parameters()):.6g}")


def resolve_device(device: str, needed: bool = True, elsewhere: bool = False) -> str:
    """Return the device; ``auto`` is CUDA if present. ``needed``: a cell runs on it; ``elsewhere``: not here.

    Raises ConfigError: CUDA asked for where there is none; ``auto`` for a machine that is not known here.
    """
    if elsewhere:
        if device == "auto":
            raise ConfigError("device is 'auto', but the jobs run on machines not known here; allowed then: cpu, cuda.")
        return device
    has_cuda = torch.cuda.is_available()
    if device == "auto":
        return "cuda" if has_cuda else "cpu"
    if device == "cuda" and needed and not has_cuda:
        raise ConfigError("device is 'cuda', but this machine offers no CUDA device; allowed here: auto, cpu.")
    return device
