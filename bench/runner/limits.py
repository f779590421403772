"""Limits that values have: by this machine's memory, and by what a method has a use for.

They are checked before any work starts.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override

from bench.errors import ConfigError
from bench.protocol import Workload
from bench.protocol.methods import Arm, takes_ratio
from bench.step.allocator import free_memory_mib

_FEW = 2  # examples from which the size of a batch is told
_BATCH_SHARE = 0.5  # of the free memory, which a batch may take
DRAWN_MIB = 1024.0  #: The largest batch that is drawn for a prediction, which keeps nothing of it but its shapes.


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


def check_sweep(overrides: Sequence[Override]) -> None:
    """Make sure that each axis of a sweep has values, and each of them once; raises ConfigError."""
    for override in overrides:
        if not override.is_sweep_override():
            continue
        key, values = override.get_key_element(), list(override.sweep_string_iterator())
        if not values:
            given = override.input_line.partition("=")[2] if override.input_line else ""
            raise ConfigError(f"{key} is {given!r}, which holds no value; give at least one.")
        for value, count in Counter(values).items():
            if count > 1:
                raise ConfigError(f"{key} has the value {value} {count} times; give each value once.")


def check_arms(arms: Sequence[tuple[Arm, Mapping[str, Any]]], ratio: float | None, sets: Sequence[Any]) -> None:
    """Make sure that no arm and no set of toggles is given twice, and that a ratio has a use; raises ConfigError."""
    for number, (arm, settings) in enumerate(arms):
        if (arm, settings) in [(other, own) for other, own in arms[:number]]:
            raise ConfigError(f"methods has {_written(arm)!r} twice with the same settings; give each arm once.")
    for number, toggles in enumerate(sets):
        if toggles in sets[:number]:
            raise ConfigError(f"toggles has {toggles!r} twice; give each set once.")
    if ratio is not None and not any(takes_ratio(arm.method, arm.variant) for arm, _ in arms):
        names = ", ".join(dict.fromkeys(arm.method for arm, _ in arms))
        raise ConfigError(f"ratio is {ratio:g}, which {names} has no use for; leave it out, or add a method that has.")


def _written(arm: Arm) -> str:
    return f"{arm.method}:{arm.variant}" if arm.variant else arm.method
