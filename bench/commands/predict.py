"""``python -m bench predict method=NAME …``: memory, work and least time of a step on a device that need not be there.

The step is the one that the bench would run: same model, method and settings, traced on fake tensors
(:mod:`bench.estimate.memory`). A user's own model, given by its path, can take the place of a workload's.
"""

import functools
import importlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from bench.commands.predict_ranks import MODELLED, Ranks, split
from bench.core.cell import CHECKPOINTED, arm_name, match_of
from bench.core.reading import user_path
from bench.errors import CONF, ConfigError, stop_with
from bench.estimate.any_batch import AnyBatch, smallest_batch
from bench.estimate.communication import LINKS
from bench.estimate.devices import DEVICES, GPUS, Device, device_named, largest_batch
from bench.estimate.memory import CATEGORIES, TOLERANCE, fake_training, predict_memory
from bench.estimate.roofline import FORMS, SHOWN, layer_of, written
from bench.estimate.work import Prediction, bound, predict
from bench.interrupts import on_interrupt
from bench.processes.process import first_line
from bench.protocol import Method, Workload
from bench.protocol.methods import available, build, build_for
from bench.runner.limits import DRAWN_MIB, check_arms, check_batch_memory, ranks_unsupported
from bench.runner.resolve import check_fields, checked_arms, resolve
from bench.runner.sweep import MISTAKES, plain, register_resolvers, register_settings, unsupported
from bench.runner.wording import for_hydra, reworded
from bench.step.low_precision import fp8_unsupported, precision_unsupported
from bench.step.train_step import checkpoint_unsupported
from bench.workloads import available as workloads
from bench.workloads import config_sections, open_cell_workload, open_model, workload_class

#: What may be said about a prediction, beside the sections of workloads.
KEYS = (
    *("method", "batch_size", "device", "precision", "ratio", "sequence_length", "model", "workload", "seed"),
    *("dataset", "data_folder", "fetch", "settings"),
)

#: What a model given by path has no use for, as for the sections of workloads.
_OF_WORKLOADS = ("workload", "dataset", "data_folder", "fetch")

_WIDTH = 110  # of a line of text

_DIGITS = 9  # of a rank at most

_RANK = 30  # of the tensorized layer beside a dense one: the paper's


@dataclass(frozen=True)
class View:
    """What a method may look at beforehand (:class:`bench.protocol.CellView`)."""

    batch_size: int
    sequence_length: int
    precision: str
    device: str


@dataclass(frozen=True)
class Question:
    """A step to be predicted."""

    title: str  # what is trained, and how
    workload: Workload  # with batches of any size
    method: Callable[[], Method]  # a fresh one for every prediction
    view: View
    seed: int  # of the batch
    notes: tuple[str, ...] = ()
    path: Path | None = None  # of the model, where a user has given one
    checkpoint: bool = False  # of the model's blocks


def _sections() -> tuple[str, ...]:
    """Sections of settings, whose keys go on with a dot."""
    return ("settings", *(section for section in config_sections() if section != "training"))


def question_of(words: Sequence[str]) -> tuple[Question, str]:
    """The step that the words ``key=value`` describe, and the name of its device.

    Raises ConfigError, DataError: a wrong value, in one sentence. HydraException, OmegaConfBaseException: words that
    cannot be read.
    """
    given = _by_key(words)
    if "method" not in given:
        raise ConfigError(f"method has no value; allowed: {', '.join(available())}.")
    device = given.get("device", "cpu")
    if device not in DEVICES:
        raise ConfigError(f"device is {device!r}; allowed: {', '.join(DEVICES)}.")
    kind = "cpu" if device == "cpu" else "cuda"
    others = [for_hydra(word) for word in words if word.partition("=")[0] not in ("method", "device", "model")]
    register_resolvers()
    register_settings()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        own = ["~experiment", "name=predict", "measure=predict", f"methods=['{given['method']}']", f"device={kind}"]
        config = plain(compose("config", [*own, *others]))
    return _of_path(config, user_path("model", given["model"]), kind) if "model" in given else _of_workload(
        config
    ), device


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
    _refuse_unused(given)
    for key in given if "model" in given else ():
        if key in _OF_WORKLOADS or (key.partition(".")[0] in sections[1:] and key != "model"):
            raise ConfigError(f"{key} is {given[key]!r}, which a model given by its path has no use for; leave it out.")
    return given


def _refuse_unused(given: Mapping[str, str]) -> None:
    """Raise ConfigError over a setting of another workload or method than the one that is asked for."""
    workload = given.get("workload", "encoder")
    method = given.get("method", "").removesuffix(CHECKPOINTED).partition(":")[0].partition("@")[0]
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


def _of_workload(config: dict[str, Any]) -> Question:
    """A step on one of the bench's own workloads."""
    job = resolve(config, any_batch=True)
    cell = job.cells[0]
    if reason := unsupported(cell, job.data):
        raise ConfigError(reason)
    return Question(
        f"{cell.arm} on the workload {cell.workload}, data {cell.dataset}",
        open_cell_workload(cell, job.data),
        lambda: build_for(cell),
        View(cell.batch_size, cell.sequence_length, cell.precision, cell.device),
        cell.seed,
        checkpoint=cell.checkpoint,
    )


def _of_path(config: dict[str, Any], path: Path, kind: str) -> Question:
    """A step on a user's own model."""
    check_fields(config)
    view = View(config["batch_size"], config["sequence_length"], config["precision"], kind)
    workload, notes = open_model(path, view.sequence_length)
    check_batch_memory(view.batch_size, workload, DRAWN_MIB)
    [(arm, settings)] = arms = checked_arms(config, workload)
    check_arms(arms, config["ratio"], [])
    method = build(arm.method, arm.variant, settings)
    reason = precision_unsupported(view.precision, kind) or method.unsupported(view)
    if not reason:
        with torch.device("meta"):
            model = workload.build()
            reason = checkpoint_unsupported(model, cuda_graph=False) if arm.checkpoint else None
            reason = reason or method.model_unsupported(model, workload.targets())
            reason = reason or ranks_unsupported(method, arm.method, settings, model, workload.targets())
            if not reason and view.precision.startswith("fp8"):
                adapted = method.adapt(model, workload.targets())
                reason = fp8_unsupported(view.precision, adapted, workload.targets())
    if reason:
        raise ConfigError(reason)
    name = arm_name(arm.method, arm.variant, arm.checkpoint, arm.exchange, match_of(arm.method, settings))
    title = f"{name} on {workload.words.model}"
    fresh = functools.partial(build, arm.method, arm.variant, settings)
    return Question(title, workload, fresh, view, config["seed"], notes, path, arm.checkpoint)


def answer_to(question: Question, device: Device, report: Callable[[str], None], ranks: Ranks | None = None) -> str:
    """Predict the step itself, then as many others as it takes to find the largest batch; the answer as text.

    With ``ranks`` each of them has such a step.

    ``report`` receives progress messages. Raises ConfigError: a batch larger than data whose rows cannot be repeated.
    """
    view, workload = question.view, AnyBatch(question.workload)

    def arguments(batch_size: int) -> Any:
        report(f"predicting batch {batch_size:,} ...")
        own = (view.precision, view.device, question.seed, question.checkpoint)
        return workload, question.method(), batch_size, *own

    prediction = predict(*arguments(view.batch_size))
    peak = prediction.memory.mib()["peak"]

    def peak_mib(batch_size: int) -> float:
        return peak if batch_size == view.batch_size else predict_memory(*arguments(batch_size)).mib()["peak"]

    multiple = smallest_batch(question.method(), view)
    rows = [*_memory_rows(question, device, prediction), *_time_rows(view.precision, device, prediction)]
    if ranks:
        with fake_training(*arguments(view.batch_size)) as (step, _):
            rows += ranks.rows(prediction, device, view.precision, step.model)
    width = max(len(label) for label, value in rows if value)
    number = max(len(value) for _, value in rows)
    lines = [f"{label:<{width}}  {value:>{number}}" if value else label for label, value in rows]
    sentences = [_fits(device, peak), _largest(peak_mib, device, multiple, workload.limit)]
    sentences += ["", *question.notes, *_caveats(device)]
    return "\n".join([*lines, "", *(textwrap.fill(one, _WIDTH, subsequent_indent="  ") for one in sentences), ""])


def _memory_rows(question: Question, device: Device, prediction: Prediction) -> list[tuple[str, str]]:
    """What is predicted, and its memory and work."""
    view, memory, sizes = question.view, prediction.memory, prediction.memory.mib()
    length = [f"length {view.sequence_length:,}"] if view.sequence_length > 1 else []
    return [
        (", ".join([question.title, f"batch {view.batch_size:,}", *length, view.precision]), ""),
        (f"on {device.name}", ""),
        *([(prediction.arithmetic, "")] if prediction.arithmetic != view.precision else []),
        ("", ""),
        (f"peak memory, MiB (predicted on the operations of {view.device})", f"{sizes['peak']:,.1f}"),
        *((f"  {name}", f"{sizes[name]:,.1f}") for name in CATEGORIES),
        ("parameters", f"{memory.parameter_count:,}"),
        ("model as stored, MiB", f"{memory.stored / 2**20:,.1f}"),
        ("FLOPs of matrix products per step", f"{prediction.work.flops_per_step:,}"),
    ]


def _time_rows(precision: str, device: Device, prediction: Prediction) -> list[tuple[str, str]]:
    """Bytes and the bound on the time, with what it is made of."""
    times = bound(prediction.work, prediction.traffic, device, precision)
    peak, rate = (device.peak(precision) or 0.0) / 1e12, device.bandwidth / 1e12
    rows = [
        ("time of a step, ms: at least", f"{times.step_ms:,.3f}"),
        (f"  operations at {peak:,.3g} TFLOP/s ({device.rates})", f"{times.operations_ms:,.3f}"),
    ]
    if device.cache is None or times.traffic_ms is None:
        return rows
    moved = f"{prediction.traffic.compulsory(device.cache) / 2**20:,.1f}"
    return [
        (f"MiB that must move, beside {device.cache / 2**20:,.0f} MiB of cache", moved),
        *rows,
        (f"  traffic at {rate:,.3g} TB/s ({device.rates})", f"{times.traffic_ms:,.3f}"),
    ]


def _fits(device: Device, peak_mib: float) -> str:
    """Whether the step fits."""
    verdict = "fits" if peak_mib <= device.room_mib else "does not fit"
    return (
        f"It {verdict}: {device.memory_mib:,.0f} MiB {'free on' if device.kind == 'cpu' else 'of'} the device, less "
        f"{device.reserve_mib:,.0f} MiB and {TOLERANCE[device.kind]:.0%}, leave room for a predicted peak of "
        f"{device.room_mib:,.0f} MiB."
    )


def _largest(peak_mib: Callable[[int], float], device: Device, multiple: int, limit: int) -> str:
    """The largest batch that fits."""
    found = largest_batch(peak_mib, device.room_mib, multiple, limit)
    if not found.batch_size:
        return f"No batch fits: the smallest, {multiple}, takes {found.next_mib:,.0f} MiB."
    sentence = f"Largest batch that fits{f', of multiples of {multiple}' if multiple > 1 else ''}: {found.batch_size:,}"
    if found.next_mib is None:
        return f"{sentence} at least; beyond {limit:,} none is tried."
    following = f"{found.batch_size + multiple:,} would take {found.next_mib:,.0f} MiB"
    return f"{sentence} with {found.peak_mib:,.0f} MiB; {following}."


def _caveats(device: Device) -> list[str]:
    """How the numbers are counted and what they leave out."""
    held = "the CUDA context, the driver" if device.kind == "cuda" else "the interpreter and its libraries"
    return [
        f"Not modelled: the allocator's rounding and fragmentation, workspaces of kernels, {held}; "
        f"{device.reserve_mib:,.0f} MiB and {TOLERANCE[device.kind]:.0%} are set aside for them.",
        "Bytes that must move: weights, optimizer state and batch read once, what the step changes written back once, "
        "what forward keeps for backward written and read once, each less what the caches can hold.",
        "The time is a bound over the whole step, the larger of its two parts; the overheads of kernels and of Python "
        "come on top, and a small step is made of them.",
    ]


def _rooflines_of(words: Sequence[str]) -> str:
    """Bytes and least times of single layers, dense and through a rank, per form and device.

    Raises ConfigError: a wrong word or value.
    """
    given = dict(word.partition("=")[::2] for word in words)
    if unknown := given.keys() - {"shapes", "rank", "device"}:
        raise ConfigError(f"{sorted(unknown)[0]} is no setting of shapes; allowed: shapes, rank, device.")
    rank, device = given.get("rank", str(_RANK)), given.get("device")
    if not rank.isdecimal() or len(rank) > _DIGITS:
        raise ConfigError(f"rank is {rank[:_WIDTH]!r}; allowed: whole numbers from 1 to the shorter side of a layer.")
    if device is not None and device not in GPUS:
        raise ConfigError(f"device is {device!r}; allowed: {', '.join(sorted(GPUS))}.")
    names = SHOWN if device is None else (device,)
    try:
        shapes = [layer_of(text, through) for text in given["shapes"].split(",") for through in (None, int(rank))]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for layer in shapes if "rank" in given else ():
        most = min(layer.in_features, layer.out_features)
        if int(rank) > most:
            raise ConfigError(f"rank is {rank}; allowed for a layer of {layer.in_features}: 1 to {most}.")
    forms = [f"  {name:<12}{form.words}" for name, form in FORMS.items()]
    notes = [
        "",
        "Least times in ms, forward; op: bound by operations, mem: by memory traffic; -: no such products.",
        *forms,
    ]
    return "\n".join([*(written(layer, names) + "\n" for layer in shapes), *notes[1:], ""])


def _predict_all(given: Mapping[str, str], console: Console) -> None:
    """Every arm and several batches of a model given by its path, on the explorer's page."""
    predict_all = importlib.import_module("bench.commands.predict_all")  # which is made of this module
    with console.status("predicting ...") as status:
        content = predict_all.survey(given, status.update if console.is_terminal else console.print)
    predict_all.show(content)


def main(words: Sequence[str]) -> None:
    """Predict as the words say and print the answer; progress goes to the other stream.

    Raises ConfigError: a wrong setting or plug-in.
    """
    if any(word.startswith("shapes=") for word in words):
        print(_rooflines_of(words), end="")
        return
    if not words or {"-h", "--help"} & set(words):
        lists: dict[str, tuple[str, ...]] = {"methods": available(), "devices": DEVICES, "workloads": workloads()}
        lists |= {"links": tuple(LINKS), "exchanges": MODELLED}
        lists["sections"] = tuple(f"{section}.*" for section in _sections()[1:])
        usage = (CONF / "help" / "predict.txt").read_text(encoding="utf-8")
        print(usage.format(**{name: ", ".join(known) for name, known in lists.items()}), end="")
        return
    console = Console(stderr=True)
    on_interrupt(lambda: "nothing was written; the same command starts again")
    try:
        words, ranks = split(words)
        given = _by_key(words)
        if ranks and "method" not in given:
            raise ConfigError(
                f"method has no value, which {ranks.count:,} ranks need; allowed: {', '.join(available())}."
            )
        if "model" in given and "method" not in given:
            _predict_all(given, console)
            return
        question, name = question_of(words)
    except MISTAKES as error:
        stop_with(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        stop_with(reworded(error))
    with console.status("measuring this machine ..." if name == "cpu" else "predicting ...") as status:
        device = device_named(name, question.view.precision)
        if device.peak(question.view.precision) is None:
            stop_with(f"precision is {question.view.precision!r}, in which {device.name} does not multiply; use bf16.")
        try:
            answer = answer_to(question, device, status.update if console.is_terminal else console.print, ranks)
        except ConfigError:
            raise
        except Exception as error:  # of a method, of a size that no tensor has, or of a user's model
            problem = f"training step cannot be traced without data ({first_line(error)})"
            what = f"model is '{question.path}', whose" if question.path else f"{question.title}: its"
            stop_with(f"{what} {problem}.", status=2 if question.path or isinstance(error, ValueError) else 1)
    print(answer, end="")
