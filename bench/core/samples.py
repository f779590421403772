"""The raw samples of a record, checked and decoded: blocks of step times, and validation rows answered rightly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.core.record import Record, RecordError

#: Validation rows answered rightly, in order.
Answers = NDArray[np.bool_]


def _blocks(record: Record) -> list[dict[str, Any]]:
    blocks = record.samples.get("blocks", [])
    if not isinstance(blocks, list):
        raise RecordError(f"record {record.cell_id}: samples.blocks is a {type(blocks).__name__}, expected a list.")
    for block in blocks:
        fits = isinstance(block, dict) and isinstance(block.get("block"), int) and isinstance(block.get("ms"), list)
        if not fits or not all(isinstance(ms, int | float) and ms > 0 for ms in block["ms"]):
            raise RecordError(f"record {record.cell_id}: a block needs 'block' (a number) and 'ms' (times above 0).")
    return blocks


def block_means_ms(record: Record) -> dict[int, float]:
    """Block number to mean step time in ms, over undisturbed blocks only (a repeated block keeps its number)."""
    times: dict[int, list[float]] = {}
    for block in _blocks(record):
        if block["ms"] and not block.get("disturbed", False):
            times.setdefault(block["block"], []).extend(block["ms"])
    return {number: sum(ms) / len(ms) for number, ms in sorted(times.items())}


def disturbed_blocks(record: Record) -> int:
    """How many blocks of the record were flagged as disturbed and are left out of every figure."""
    return sum(bool(block.get("disturbed", False)) for block in _blocks(record))


def calibrations_ms(record: Record) -> list[float]:
    """Times of the calibration product in ms, one of every undisturbed block that has it."""
    blocks = [block for block in _blocks(record) if block["ms"] and not block.get("disturbed", False)]
    return [float(block["calibration_ms"]) for block in blocks if block.get("calibration_ms")]


def answers_of(text: str, examples: int) -> Answers:
    """A bit per validation row from hexadecimal digits, the last of which is filled up with zeros.

    >>> answers_of("b8", 5).tolist()
    [True, False, True, True, True]

    Raises:
        ValueError: digits that are none, or more or fewer than so many rows need.
    """
    if len(text) != math.ceil(examples / 4):
        raise ValueError(f"{len(text)} hexadecimal digits for {examples} rows")
    octets = bytes.fromhex(text + "0" * (len(text) % 2))
    bits = np.unpackbits(np.frombuffer(octets, dtype=np.uint8)).astype(np.bool_)
    if bits[examples:].any():
        raise ValueError("more right answers than rows")
    return bits[:examples]


def as_hexadecimal(flags: Sequence[bool]) -> str:
    """The inverse of :func:`answers_of`: a bit per flag, the last digit filled up with zeros.

    >>> as_hexadecimal([True, False, True, True, True])
    'b8'
    """
    bits = "".join("1" if flag else "0" for flag in flags)
    return "".join(f"{int(bits[i : i + 4].ljust(4, '0'), 2):x}" for i in range(0, len(bits), 4))


def last_answers(record: Record) -> Answers | None:
    """The answers at the end of a training run; None where the record holds none.

    Raises:
        RecordError: a learning curve that cannot be read.
    """
    curve = record.samples.get("curve")
    if not curve:
        return None
    try:
        return answers_of(curve[-1]["correct"], curve[-1]["validation_examples"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"record {record.cell_id}: its learning curve cannot be read ({error!r}).") from None
