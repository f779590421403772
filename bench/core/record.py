"""Records: one JSON file per finished cell, written whole or not at all.

A record is flat and typed; ``results/README.md`` is made of its columns (:mod:`bench.core.table`). Raw samples ride
inside the same file under ``samples``. This module imports neither torch nor Hydra, so that figures can read records.

A column may be added at any time: a reader that lacks it keeps it in ``extra`` and writes it back, and a record that
lacks it has its default. :data:`SCHEMA_VERSION` is raised only where the meaning of a column changes; records of
another schema are refused.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from bench.core.cell import EXCHANGES, Arm, match_of
from bench.core.files import write_whole
from bench.core.reading import loads, read_regular
from bench.errors import Mistake

#: Raised where the meaning of a column changes, never because one is added; no cell's identity depends on it.
SCHEMA_VERSION = 2

#: Measures of the bench itself, in the order of reports; records of a plug-in's measure have another name here.
MEASURES = (
    *("run", "predict", "train", "plan", "allocator_peak", "check", "fp8", "kept", "probe", "operations"),
    "profile",
)
STATUSES = ("ok", "oom", "timeout", "diverged", "unsupported", "error")


#: What to do about a damaged record.
_MEND = "remove the file to measure its cell again"


class RecordError(Mistake):
    """A record file that cannot be read; the message is one sentence naming file and reason."""


def _about(text: str, unit: str = "", least: float | None = None) -> dict[str, Any]:
    return {"text": text, "unit": unit, "least": 0.0 if least is None and unit in ("ms", "s", "MiB") else least}


def _column(text: str, unit: str = "", default: Any = dataclasses.MISSING, least: float | None = None) -> Any:
    """Return a column with what it holds, in which unit and what it is at least: for times and sizes, 0.

    Without a default every record must have it.
    """
    return field(default=default, metadata=_about(text, unit, least))


@dataclass(kw_only=True)
class Record:
    """The outcome of one cell. Columns that were not measured are None or empty, never zero."""

    schema_version: int = _column("version of the meaning of these columns", default=SCHEMA_VERSION)
    cell_id: str = _column("hash of the resolved cell and its data: which measurement this is")
    code_id: str = _column("hash of what the measuring code does")
    recorded_at: str = _column("when the record was written", "ISO 8601, UTC")
    experiment: str = _column("name of the sweep, and of the folder of its records")
    workload: str = _column("model, data and loss, by the name that a configuration has")
    dataset: str = _column("name of the data")
    data_hash: str = _column("hash of the content of the data")
    method: str = _column("what trains the model")
    variant: str = _column("variant of the method; empty for its default")
    ratio: float | None = _column(
        "compression of the whole model that was asked for; a timed arm that takes none stands beside one that does",
        default=None,
    )
    measure: str = _column(
        "predict: computed without the device; allocator_peak: predicted, and run on it for the peak of its allocator; "
        "train: trained on it; all others: measured on it"
    )
    batch_size: int = _column("examples, rows or tokens of a batch", least=1)
    sequence_length: int = _column("tokens of an example; 1 where that means nothing", least=1)
    precision: str = _column("fp32, tf32, bf16, bf16_weights (parameters in BF16 too), or fp8 with how it scales")
    arithmetic: str = _column("what ran: for FP8, natively or emulated, in which layers and by what", default="")
    cuda_graph: bool = _column("whether steps were captured as a CUDA Graph")
    compile: bool = _column("whether the model was compiled")
    checkpoint: bool = _column("whether each block of the model went through torch.utils.checkpoint", default=False)
    seed: int = _column("of initialisation, dropout and order of the data", least=0)
    world_size: int = _column("ranks, each with a batch of batch_size and the model", default=1, least=1)
    exchange: str = _column(f"how gradients travel between ranks: {', '.join(EXCHANGES)}; empty for one", default="")
    backend: str = _column("what carries them: gloo, nccl; empty for one rank", default="")
    bucket_mib: float | None = _column("in older records: size of DDP's buckets, where not its own", "MiB", None)
    local_steps: int | None = _column("in older records: steps between two averages", default=None, least=1)
    link_mbit: float | None = _column(
        "in older records: rate that the link between the ranks was limited to", "Mbit/s", None, least=0
    )
    status: str = _column(", ".join(STATUSES))
    message: str = _column("why the status is what it is, or what else there is to say", default="")

    step_time_median_ms: float | None = _column("step time, median over undisturbed blocks", "ms", None)
    step_time_p20_ms: float | None = _column("step time, 20th percentile", "ms", None)
    step_time_p80_ms: float | None = _column("step time, 80th percentile", "ms", None)
    steps_measured: int | None = _column("steps that these are of", default=None, least=1)
    launches: int | None = _column("launches of fresh processes that these are of", default=None, least=1)
    compile_time_s: float | None = _column(
        "first step less a later one, where the model is compiled on a CPU; in older records on a GPU too",
        "s",
        None,
        least=-math.inf,
    )
    rare_time_ms: float | None = _column("cost of work that is due once every rare_period_steps", "ms", None)
    rare_period_steps: int | None = _column("steps from one such event to the next", default=None, least=1)
    epoch_time_s: float | None = _column(
        "steps per epoch times the mean step: over launches, of undisturbed blocks, rare cost amortised", "s", None
    )
    compute_time_ms: float | None = _column(
        "the step without exchange, median; in the same processes, taking turns with the exchanged one", "ms", None
    )
    gradient_mib: float | None = _column("gradients of one rank's model, of a step", "MiB", None)
    sent_buckets_mib: float | None = _column(
        "sent per step and rank: tensors that a step gave to collectives, counted, times 2(n-1)/n for an all-reduce "
        "over n ranks and (n-1)/n for a gather or scatter",
        "MiB",
        None,
    )
    sent_analytic_mib: float | None = _column("the same from shapes and the rule of the exchange", "MiB", None)
    sent_interface_mib: float | None = _column(
        "in older records: the same by the counters of the rank's network interface, less headers",
        "MiB",
        None,
    )
    exchange_memory_mib: float | None = _column(
        "what the exchange keeps between steps: buckets and error buffers", "MiB", None
    )
    calibration_drift: float | None = _column(
        "slowest over quickest block's calibration product, less 1; a block's is the slower of those before and after "
        "its steps, in older records the one before",
        default=None,
    )
    energy_j: float | None = _column(
        "energy of a step beyond that of the idle GPU, median over launches", "J", None, least=-math.inf
    )
    idle_w: float | None = _column("power of the idle GPU, after a rest of 5 s", "W", None)
    pairing: str = _column("arms that were timed block by block together share this name", default="")

    predicted_for: str = _column("cpu or cuda: whose operations the prediction is of", default="")
    peak_memory_predicted_mib: float | None = _column("peak memory of a step, the sum of the next five", "MiB", None)
    predicted_parameters_mib: float | None = _column("parameters at the peak", "MiB", None)
    predicted_gradients_mib: float | None = _column("gradients at the peak", "MiB", None)
    predicted_optimizer_mib: float | None = _column("optimizer state at the peak", "MiB", None)
    predicted_activations_mib: float | None = _column("activations at the peak", "MiB", None)
    predicted_temporaries_mib: float | None = _column("temporaries at the peak", "MiB", None)
    saved_for_backward_mib: float | None = _column("what forward keeps for backward", "MiB", None)
    peak_memory_allocated_mib: float | None = _column(
        "peak of what the device's allocator had handed out, of a CPU's too", "MiB", None
    )
    peak_memory_reserved_mib: float | None = _column("peak of what the allocator held", "MiB", None)
    workspaces_mib: float | None = _column(
        "of the allocated peak, what cuBLAS keeps for good; predictions do not have it", "MiB", None
    )
    flops_per_step: int | None = _column("floating-point operations of a step's matrix products", default=None, least=0)
    operations: int | None = _column("operations of a step, by measure operations", default=None, least=0)
    moved_mib: float | None = _column("what these read and write", "MiB", None)
    parameters: int | None = _column("numbers that are trained", default=None, least=0)
    stored_mib: float | None = _column("the trained model, as stored for use", "MiB", None)

    contraction: str = _column("measure plan: the plan that was chosen", default="")

    stage: str = _column("training: the last stage, as the workload's training plan names it", default="")
    target_ratio: float | None = _column("its target, a share of the tensorized size at its start", default=None)
    target_mib: float | None = _column("or its target for the whole model in FP32", "MiB", None)
    train_steps: int | None = _column("optimizer steps of all stages", default=None, least=0)
    epochs: float | None = _column("passes over the training data", default=None, least=0)
    train_loss: float | None = _column("mean task loss since the last point of the learning curve", default=None)
    validation_examples: int | None = _column("examples that the metrics are over", default=None, least=0)
    metrics: dict[str, Any] = field(
        default_factory=dict, metadata=_about("validation metrics after the last step, by name; in tables metric_NAME")
    )
    workload_words: dict[str, Any] = field(
        default_factory=dict,
        metadata=_about(
            "what figures call the workload: model, epoch (a sentence), example, validated (what a value of the metric "
            "is of, where that is no example), examples_per_epoch, and metric, the one that leads, with name, text, "
            "unit, higher_is_better, guess, probe and probe_text; not in tables"
        ),
    )
    size_fraction: float | None = _column(
        "S: core entries left, as a fraction of those before any rank was cut", default=None
    )
    size_target: float | None = _column("S0: the target on the same scale", default=None)
    size_at_deadline: float | None = _column("S where ranks had to be closed late in a stage to meet S0", default=None)
    tensorized_mib: float | None = _column("the cores", "MiB", None)
    dense_tensorized_mib: float | None = _column("the weights that the cores stand in for", "MiB", None)
    dense_mib: float | None = _column("the whole dense model", "MiB", None)

    device: str = _column('what the machine calls itself, as in "AMD EPYC, 2 threads"')
    machine: str | None = _column(
        "hash that tells machines of one name apart: of the system's id (in a container of its boot, so that after a "
        "restart it is another), the processor, the size of memory and the GPUs; none in older records",
        default=None,
    )
    driver: str = _column("of a GPU, with its CUDA version", default="")
    threads: int = _column("of PyTorch on the CPU", least=1)
    torch_version: str = _column("version of PyTorch")
    library_versions: str = _column('as in "peft 0.21.2, numpy 2.4.6"', default="")
    git_commit: str = _column("commit of the code")
    git_dirty: bool = _column("whether measuring code differed from that commit")
    config_json: str = _column("the resolved cell")

    #: Timing: "blocks", rows of {"launch": int (0 if absent), "block": int, "ms": [..], "calibration_ms": float,
    #: "calibration_cpu_ms": float (processor time, on a CPU), "best_calibration_ms": float (of this machine, as its
    #: records in the same folder have it), "disturbed": bool}, of ranks also "compute_ms" and, in older records,
    #: "interface_mib" (per step); rare too; "energy", a row per launch (launch, "energy_j", "idle_w", "window_s");
    #: "tensorized", modes and ranks of each distinct shape and how many layers have it.
    #: Training: "curve", a row per epoch and stage end (step, epoch, stage, the columns above, every layer's ranks by
    #: name, "metrics", and "per_example", see :mod:`bench.core.samples`); "ranks_before", those of tensorized layers at
    #: the start, and "factor_ranks", of pairs of plain factors, both by the layer's name; "step_ms", interleaved blocks
    #: of steps at "trained" and at "full" ranks; "trained_by", "code_id" and "git_commit" of each code that did a step.
    #: "lacks": "compiler" or "memory", where the machine had none, or too little that was free, to start the cell.
    #: "reach": the "largest" or "smallest" ratio that the method can reach, where the cell asks for one beyond it.
    #: "plans" and "dense_ms", "checks", "precisions": see the modules of :mod:`bench.measures`.
    samples: dict[str, Any] = field(default_factory=dict)

    #: Columns of a newer writer, by name; in the file they stand among the others.
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise RecordError(f"status is {_shown(self.status)}; allowed: {', '.join(STATUSES)}.")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.measure):
            given = _shown(self.measure)
            raise RecordError(f"measure is {given}; allowed: {', '.join(MEASURES)}, or another such name.")
        for name, value in self.metrics.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise RecordError(f"metrics has {name}={_shown(value)}; allowed: finite numbers.")

    @property
    def arm(self) -> str:
        """The method with what it shares with CoMERA, its variant, checkpointing and exchange where not the default."""
        settings = self.config.get("method_settings")
        match = match_of(self.method, settings if isinstance(settings, dict) else {})
        return str(Arm(self.method, self.variant, self.checkpoint, self.exchange, match))

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved cell by field; empty where ``config_json`` is no JSON object."""
        return _object(self.config_json)

    @property
    def global_batch(self) -> int:
        """Examples that all ranks together take in a step."""
        return self.batch_size * self.world_size

    @property
    def metric(self) -> Mapping[str, Any]:
        """Description of the metric that leads; empty where none does."""
        return self.workload_words.get("metric") or {}

    @property
    def leading(self) -> float | None:
        """The value of the metric that leads."""
        return self.metrics.get(self.metric.get("name", ""))

    def to_json(self) -> str:
        """Return the content of the record's file."""
        content = dataclasses.asdict(self)
        samples, extra = content.pop("samples"), content.pop("extra")
        return json.dumps({**content, **extra, "samples": samples}, indent=1, allow_nan=False) + "\n"


@functools.lru_cache(maxsize=4096)
def _object(text: str) -> Mapping[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


#: The columns, in order; ``samples`` and ``extra`` are none.
COLUMNS: tuple[str, ...] = tuple(f.name for f in dataclasses.fields(Record) if f.metadata)

_FIELDS = {f.name: f for f in dataclasses.fields(Record) if f.name != "extra"}
_TYPES = {name: TypeAdapter(hint, config=ConfigDict(strict=True)) for name, hint in get_type_hints(Record).items()}


#: Characters of a value that a sentence shows.
_SHOWN = 80

#: How far a record's clock may be ahead of this machine's.
_AHEAD = datetime.timedelta(days=1)


class _MetricWords(BaseModel):
    """Words of ``workload_words`` on the metric that leads."""

    name: str
    text: str
    unit: str
    higher_is_better: bool
    guess: float | None = None
    probe: float | None = None
    probe_text: str = ""


class _WorkloadWords(BaseModel):
    """Names in ``workload_words``; further ones are allowed."""

    model: str = ""
    epoch: str = ""
    example: str = ""
    validated: str = ""
    examples_per_epoch: int | None = None
    metric: _MetricWords | None = None


def _allowed(name: str, value: Any) -> str:
    """Name the allowed values of a column of the right type if ``value`` is not one of them; empty if it is."""
    least = _FIELDS[name].metadata.get("least")
    if least is not None and value is not None and value < least:
        return f"at least {least:g}"
    if name == "config_json":
        try:
            return "" if isinstance(loads(value), dict) else "a JSON object"
        except (ValueError, RecursionError):
            return "a JSON object"
    if name == "recorded_at":
        return _time_allowed(value)
    if name == "workload_words":
        try:
            _WorkloadWords.model_validate(value, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            return f"{'.'.join(map(str, first['loc']))} as the bench writes it ({first['msg'].lower()})"
    return ""


def _time_allowed(text: str) -> str:
    """Return what ``recorded_at`` must be, where ``text`` is something else; empty where it is right."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        return "a time in ISO 8601"
    now = datetime.datetime.now(datetime.UTC)
    time = time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
    return "" if time <= now + _AHEAD else f"no time after now, {now:%Y-%m-%d} by this machine's clock"


def device_folder(device: str) -> str:
    """Return a folder name for a device: ``"AMD EPYC, 2 threads"`` becomes ``amd-epyc-2-threads``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "unknown"


def path_of(record: Record, root: Path) -> Path:
    """Return the path of a record below ``root`` (``results/local`` or ``results/reference``).

    Raises RecordError: an experiment or cell whose name would lead elsewhere.
    """
    for column in ("experiment", "cell_id"):
        if not re.fullmatch(r"[\w-][\w.-]*", name := getattr(record, column)):
            raise RecordError(f"{column} is {_shown(name)}; allowed: letters, digits, -, _ and, but in front, dots.")
    return root / record.experiment / device_folder(record.device) / f"{record.cell_id}.json"


def paths_below(root: Path, experiment: str | None = None) -> list[Path]:
    """Return the files of records below ``root``, sorted; hidden folders, as of checkpoints, are skipped."""
    paths = []
    for folder, inner, names in os.walk(root / (experiment or "")):
        inner[:] = [name for name in inner if name[0] != "."]
        paths += [Path(folder, name) for name in names if name[0] != "." and name.endswith(".json")]
    return sorted(paths)


def write(records: Iterable[Record], root: Path) -> list[Path]:
    """Write records below ``root``, whole or not at all; arms that were timed together are also kept together."""
    contents = {path_of(record, root): record.to_json().encode() for record in records}
    write_whole(contents)
    return list(contents)


def read(path: Path) -> Record:
    """Read one record file.

    Raises RecordError: no regular file, not JSON, a newer schema, a missing column, a value of the wrong type, or
    another cell's name.
    """
    try:
        record = parse(read_regular(path), str(path))
    except OSError as error:
        raise RecordError(f"{path}: not a readable JSON record ({error.strerror or error}); {_MEND}.") from None
    if record.cell_id != path.stem:
        raise RecordError(f"{path}: cell_id is {_shown(record.cell_id)}; rename the file to {record.cell_id}.json.")
    return record


def _shown(value: Any) -> str:
    """Return a value as a sentence has it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _line_of(content: bytes, text: str) -> int:
    """Return the line in which a text comes first."""
    return content[: content.lower().find(text.lower().encode()) + 1].count(b"\n") + 1


def parse(content: bytes, path: str) -> Record:
    """Return the record that a file holds; ``path`` is named in errors, which are those of :func:`read`."""
    try:
        raw = loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        named = re.match(r"\S+ is (no|given)", str(error))  # the line is that of what is named
        line = f", line {_line_of(content, named[0].split()[0])}" if named else ""
        raise RecordError(f"{path}{line}: not a readable JSON record ({error}); {_MEND}.") from None
    if not isinstance(raw, dict):
        raise RecordError(f"{path}: a record is a JSON object, this is a {type(raw).__name__}; {_MEND}.")
    version = raw.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RecordError(f"{path}: schema_version is {_shown(version)}; a whole number from 1 is expected; {_MEND}.")
    if version != SCHEMA_VERSION:
        known = f"{SCHEMA_VERSION}; measure the cell again"
        known = known if version < SCHEMA_VERSION else f"up to {SCHEMA_VERSION}; update the program"
        raise RecordError(f"{path}: schema_version is {version}, this program reads {known}.")
    for name, spec in _FIELDS.items():
        try:
            if name in raw:
                _TYPES[name].validate_python(raw[name])
                if allowed := _allowed(name, raw[name]):
                    place = f"{path}, line {_line_of(content, json.dumps(name))}"
                    raise RecordError(
                        f"{place}: column {name!r} holds {_shown(raw[name])}; allowed: {allowed}; {_MEND}."
                    )
            elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
                raise RecordError(f"{path}: column {name!r} is missing; {_MEND}.")
        except ValidationError:
            raise RecordError(
                f"{path}: column {name!r} holds {_shown(raw[name])}, expected {spec.type}; {_MEND}."
            ) from None
    extra = {name: raw.pop(name) for name in [*raw] if name not in _FIELDS}
    try:
        record = Record(**raw, extra=extra)
        path_of(record, Path())
        return record
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None


def read_all(root: Path, experiment: str | None = None) -> list[Record]:
    """Read every record below ``root``, sorted by path, so that the same files give the same list.

    Raises RecordError: as :func:`read`, or a record that lies elsewhere than its content says.
    """
    records = []
    for path in paths_below(root, experiment):
        record = read(path)
        place = path_of(record, Path())
        if path.parts[-3:] != place.parts:
            raise RecordError(f"{path}: its columns are those of {place}; move it there, or measure its cell again.")
        records.append(record)
    return records
