"""The words of the command as a question, each of them checked before anything is predicted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.advise.arms import ARMS, RATIOS, AdvisedArm, arms_of
from bench.core.reading import model_path
from bench.errors import ConfigError
from bench.estimate.devices import DEVICES, GPUS
from bench.runner.wording import by_key
from bench.step.low_precision import precision_unsupported
from bench.workloads.hugging_face import TASKS

#: The settings, and what each is unless it is given.
DEFAULTS = {
    "model": "",
    "device": "h100",
    "batch_size": "8",
    "sequence_length": "",
    "ratio": ",".join(f"{ratio:g}" for ratio in RATIOS),
    "precision": "",
    "task": "",
    "arms": ",".join(ARMS),
    "memory_gib": "",
}

#: The arithmetic of advice: FP8 needs a model that has been converted.
PRECISIONS = ("fp32", "tf32", "bf16", "bf16_weights")

_MOST_TOKENS = 2**24  # of a batch
_MOST_RATIO = 1000.0
_MOST_GIB = 2.0**20


@dataclass(frozen=True)
class Question:
    """A question about a model, a device and a step."""

    model: Path  # of the configuration
    task: str  # empty for the configuration's own
    device: str  # a name of :data:`bench.estimate.devices.DEVICES`
    batch_size: int  # rows of a step
    sequence_length: int | None  # tokens of a row; None for as many as the model has positions, at most 2,048
    precision: str  # of the steps
    arms: tuple[AdvisedArm, ...]  # in the order of the table
    memory_gib: float | None  # of the device, in place of its own; None for its own

    @property
    def kind(self) -> str:
        """The kind of device, "cpu" or "cuda"."""
        return "cuda" if self.device in GPUS else "cpu"


def question_of(words: Sequence[str]) -> Question:
    """Read the words ``key=value`` of the command.

    Raises ConfigError: a wrong word, in one sentence that names it and what is allowed.

    >>> asked = question_of(["model=config.json", "ratio=4", "arms=dense,btt"])
    >>> asked.device, asked.precision, [str(arm) for arm in asked.arms]
    ('h100', 'bf16', ['dense', 'btt, 1/4'])
    """
    named = by_key(words)
    if unknown := [key for key in named if key not in DEFAULTS]:
        raise ConfigError(f"{unknown[0]} is no setting of advise; allowed: {', '.join(DEFAULTS)}.")
    given = DEFAULTS | named
    if not given["model"]:
        raise ConfigError(
            "model has no value; give a known name or the path of a config.json, as in model=gpt2_medium."
        )
    device = _one_of("device", given["device"], DEVICES)
    kind = "cuda" if device in GPUS else "cpu"
    precision = _one_of("precision", given["precision"] or ("bf16" if kind == "cuda" else "fp32"), PRECISIONS)
    if reason := precision_unsupported(precision, kind):
        raise ConfigError(reason)
    if given["task"]:
        _one_of("task", given["task"], TASKS)
    batch_size = _count("batch_size", given["batch_size"], _MOST_TOKENS)
    length = _count("sequence_length", given["sequence_length"], _MOST_TOKENS) if given["sequence_length"] else None
    if batch_size * (length or 1) > _MOST_TOKENS:
        raise ConfigError(
            f"batch_size is {batch_size} and sequence_length {length}; allowed together: {_MOST_TOKENS:,} tokens, more "
            "than any device here holds."
        )
    ratios = [_number("ratio", each, 1.0, _MOST_RATIO) for each in given["ratio"].split(",")]
    if len(set(ratios)) < len(ratios):
        raise ConfigError(f"ratio is {given['ratio']!r}; give each ratio once.")
    memory = _number("memory_gib", given["memory_gib"], 0.0, _MOST_GIB) if given["memory_gib"] else None
    arms = arms_of(given["arms"].split(","), ratios)
    path = model_path(given["model"])
    return Question(path, given["task"], device, batch_size, length, precision, tuple(arms), memory)


def _one_of(field: str, value: str, allowed: Sequence[str] | Mapping[str, object]) -> str:
    if value not in allowed:
        raise ConfigError(f"{field} is {value!r}; allowed: {', '.join(allowed)}.")
    return value


def _count(field: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and 1 <= int(text) <= most):
        raise ConfigError(f"{field} is {text[:40]!r}; allowed: whole numbers from 1 to {most:,}.")
    return int(text)


def _number(field: str, text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least < value <= most:
        raise ConfigError(f"{field} is {text[:40]!r}; allowed: numbers above {least:g}, up to {most:,g}.")
    return value
