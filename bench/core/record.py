"""Records: one JSON file per finished cell, written whole or not at all.

A record is flat and typed; its columns are part of the project's interface (``COLUMNS``). Raw samples ride inside
the same file under ``samples``. Everything that draws or judges reads records through this module, which therefore
imports neither torch nor Hydra.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

#: Raise when the meaning of a column changes. Readers refuse records that are newer than they are.
SCHEMA_VERSION = 1

MEASURES = ("run", "predict", "train", "plan", "witness", "check", "products", "profile")
STATUSES = ("ok", "oom", "timeout", "diverged", "unsupported", "error")


class RecordError(ValueError):
    """A record file that cannot be read; the message is one sentence naming file and reason."""


@dataclass(kw_only=True)
class Record:
    """The outcome of one cell. Times in milliseconds or seconds and sizes in MiB, as the column names say.

    Columns that were not measured are None, never zero.
    """

    schema_version: int = SCHEMA_VERSION
    cell_id: str
    code_id: str
    recorded_at: str  # ISO 8601, UTC
    experiment: str
    workload: str
    dataset: str
    data_hash: str
    method: str
    variant: str
    ratio: float | None = None  # wished-for compression of the whole model; a timed arm that takes none stands beside
    #: "predict": computed without the device; "witness": predicted, and run on it for the peak of its allocator;
    #: "train": trained on it; all others: measured on it.
    measure: str
    batch_size: int
    sequence_length: int
    precision: str
    cuda_graph: bool
    compile: bool
    seed: int
    status: str
    message: str = ""

    step_time_median_ms: float | None = None
    step_time_p20_ms: float | None = None
    step_time_p80_ms: float | None = None
    steps_measured: int | None = None
    compile_time_s: float | None = None
    rare_time_ms: float | None = None
    rare_period_steps: int | None = None
    epoch_time_s: float | None = None
    #: Slowest over quickest block's calibration, less 1. A block's is the slower of those before and after its steps;
    #: older records have the one before.
    calibration_drift: float | None = None
    pairing: str = ""  # arms that were timed block by block together share this name

    predicted_for: str = ""  # "cpu" or "cuda"
    peak_memory_predicted_mib: float | None = None
    predicted_parameters_mib: float | None = None
    predicted_gradients_mib: float | None = None
    predicted_optimizer_mib: float | None = None
    predicted_activations_mib: float | None = None
    predicted_temporaries_mib: float | None = None
    saved_for_backward_mib: float | None = None
    peak_memory_allocated_mib: float | None = None  # bytes that the device's allocator had handed out, of a CPU too
    peak_memory_reserved_mib: float | None = None
    workspaces_mib: float | None = None  # of the allocated peak, what cuBLAS keeps for good; predictions do not have it
    flops_per_step: int | None = None
    parameters: int | None = None
    stored_mib: float | None = None

    contraction: str = ""  # measure "plan": the plan that was chosen

    # Training records (measure "train"): the state after the last step.
    stage: str = ""  # the last stage: "early" or "late"
    target_ratio: float | None = None  # late stage: wished-for share of the tensorized size at the stage's start
    target_mib: float | None = None  # or, of the whole model in FP32
    train_steps: int | None = None
    epochs: float | None = None
    train_loss: float | None = None  # mean task loss since the last point of the learning curve
    validation_accuracy: float | None = None  # percent
    validation_loss: float | None = None
    validation_examples: int | None = None
    size_fraction: float | None = None  # S: core entries left, as a fraction of those before any rank was cut
    size_target: float | None = None  # S0, on the same scale
    size_at_deadline: float | None = None  # S where ranks had to be closed, late in a stage, to meet S0; else null
    tensorized_mib: float | None = None  # the cores
    dense_tensorized_mib: float | None = None  # the weights they stand in for
    dense_mib: float | None = None  # the whole dense model

    device: str  # what the machine calls itself, e.g. "AMD EPYC, 2 threads"
    driver: str = ""
    threads: int
    torch_version: str
    library_versions: str = ""  # "hydra-core 1.3.8, peft 0.21.2, …"
    git_commit: str
    git_dirty: bool
    config_json: str

    #: Timing: "blocks", rows of {"block": int, "ms": [..], "calibration_ms": float, "disturbed": bool}; rare too;
    #: "tensorized", modes and ranks of each distinct shape and how many layers have it (:mod:`bench.measures.shapes`).
    #: Training: "curve", a row per epoch and stage end (step, epoch, stage, the columns above, every layer's ranks by
    #: name, and "correct", the validation rows answered rightly: hexadecimal, a bit per row, first row first, the last
    #: digit filled up with zeros); "step_ms", interleaved blocks of steps at "trained" and at "full" ranks;
    #: "trained_by", "code_id" and "git_commit" of each code that did a step; the columns are of the one that recorded.
    #: "lacks": "compiler" or "memory", where the machine had none, or too little that was free, to start the cell.
    #: Plans: "plans", a row per candidate, and "dense_ms", see :mod:`bench.measures.plan`. Checks: "checks", see
    #: :mod:`bench.measures.check`; products: "products", see :mod:`bench.measures.products`; profiles: see
    #: :mod:`bench.measures.profile`.
    samples: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise RecordError(f"status is {self.status!r}; allowed: {', '.join(STATUSES)}.")

    @property
    def arm(self) -> str:
        """The method, with its variant where that is not the default: ``low_rank:linear``."""
        return f"{self.method}:{self.variant}" if self.variant else self.method


#: The tidy table's columns, in order (``samples`` stays in the JSON file).
COLUMNS: tuple[str, ...] = tuple(f.name for f in dataclasses.fields(Record) if f.name != "samples")

_TYPES = get_type_hints(Record)
_FIELDS = {f.name: f for f in dataclasses.fields(Record)}


def _fits(value: Any, annotation: Any) -> bool:
    allowed = getattr(annotation, "__args__", (annotation,)) if "|" in str(annotation) else (annotation,)
    for kind in allowed:
        kind = getattr(kind, "__origin__", kind)
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return True
        if kind is int and isinstance(value, bool):
            continue
        if isinstance(kind, type) and isinstance(value, kind):
            return True
    return False


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no value of a column")


def device_folder(device: str) -> str:
    """A folder name for a device: ``"AMD EPYC, 2 threads"`` becomes ``amd-epyc-2-threads``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "unknown"


def path_of(record: Record, root: Path) -> Path:
    """Where a record lies below ``root`` (``results/local`` or ``results/reference``).

    Raises:
        RecordError: an experiment or cell whose name would lead elsewhere.
    """
    for column in ("experiment", "cell_id"):
        if not re.fullmatch(r"[\w-][\w.-]*", name := getattr(record, column)):
            raise RecordError(f"{column} is {name!r}; allowed: letters, digits, -, _ and, but in front, dots.")
    return root / record.experiment / device_folder(record.device) / f"{record.cell_id}.json"


def write(records: Iterable[Record], root: Path) -> list[Path]:
    """Write records below ``root``; each file appears whole or not at all, also when the process is killed.

    All contents reach the disk before the first rename, so that arms timed together are also kept together.
    """
    texts = [
        (path_of(record, root), json.dumps(dataclasses.asdict(record), indent=1, allow_nan=False)) for record in records
    ]
    staged: list[tuple[str, Path]] = []
    for target, text in texts:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".partial")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        staged.append((temporary, target))
    for temporary, target in staged:
        os.replace(temporary, target)
    return [target for _, target in staged]


def read(path: Path) -> Record:
    """Read one record file.

    Raises:
        RecordError: not JSON, a newer schema, an unknown or missing column, or a value of the wrong type.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: not a readable JSON record ({error}).") from None
    return parse(content, str(path))


def parse(content: bytes, path: str) -> Record:
    """The record that a file holds; ``path`` is named in errors, which are those of :func:`read`."""
    try:
        raw = json.loads(content.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not a readable JSON record ({error}).") from None
    if not isinstance(raw, dict):
        raise RecordError(f"{path}: a record is a JSON object, this is a {type(raw).__name__}.")
    version = raw.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise RecordError(f"{path}: schema_version is {version!r}; a whole number is expected.")
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"{path}: schema_version is {version}, this program reads up to {SCHEMA_VERSION}; update the program."
        )
    unknown = sorted(set(raw) - set(_FIELDS))
    if unknown:
        raise RecordError(f"{path}: unknown column {unknown[0]!r}.")
    for name, spec in _FIELDS.items():
        if name not in raw:
            if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
                raise RecordError(f"{path}: column {name!r} is missing.")
        elif not _fits(raw[name], _TYPES[name]):
            raise RecordError(f"{path}: column {name!r} holds {raw[name]!r}, expected {spec.type}.")
    try:
        return Record(**raw)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None


def read_all(root: Path, experiment: str | None = None) -> list[Record]:
    """Read every record below ``root``, sorted by path, so that the same files give the same list."""
    folder = root / experiment if experiment else root
    paths = sorted(folder.glob("**/*.json"))
    return [read(path) for path in paths if not any(part[0] == "." for part in path.relative_to(root).parts)]
