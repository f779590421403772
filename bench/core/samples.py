"""The raw samples of a record, checked and decoded: blocks of step times, and the metric of each validation example.

A block is disturbed whose calibration product or mean step took more than a factor times the median over the arm's
blocks of its launch. The rule is applied when blocks are read as well, since some records are older than it.

Slowness that lasts a whole launch changes that median too. It shows in the calibration product alone, against the best
that the machine is known to reach (:func:`busy`).
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bench.core.launches import calls_of, pairing_by_launch
from bench.core.record import Record, RecordError

Array = NDArray[np.float64]

#: A block: its launch and its number there.
Block = tuple[int, int]

#: The factor beyond which a block counts as disturbed, where a record's cell does not say.
DISTURBED = 1.25

#: The factor over a machine's best calibration beyond which other work shared its processors. Medians over the blocks
#: of the reference records reach 1.41, in nine of ten 1.23; a competitor of equal priority for one processor gives 2.
BUSY = 1.5

#: Key under which times of calibration products compare: the machine's hash, or the name of the round of blocks where
#: the record has no hash; the device with its threads, the version of PyTorch, and the number of ranks.
Machine = tuple[str, str, str, int]

#: One value per validation example, in order: whether the answer was right, or a number.
Values = NDArray[np.bool_] | Array


def _blocks(record: Record) -> list[dict[str, Any]]:
    blocks = record.samples.get("blocks", [])
    if not isinstance(blocks, list):
        raise RecordError(f"record {record.cell_id}: samples.blocks is a {type(blocks).__name__}, expected a list.")
    for block in blocks:
        fits = isinstance(block, dict) and isinstance(block.get("block"), int) and isinstance(block.get("ms"), list)
        if not fits or not all(isinstance(ms, int | float) and ms > 0 for ms in block["ms"]):
            raise RecordError(f"record {record.cell_id}: a block needs 'block' (a number) and 'ms' (times above 0).")
    return blocks


def marked(blocks: Sequence[Mapping[str, Any]], factor: float, best_ms: float | None = None) -> list[dict[str, Any]]:
    """Return an arm's blocks with a flag ``disturbed``, by the rule of this module.

    Given the ``best_ms`` that a calibration product took beside this arm, a block beyond :data:`BUSY` times that is
    disturbed too, or beyond ``factor`` times that where the factor is larger.
    """
    found: dict[int, dict[str, Any]] = {}
    too_slow = math.inf if best_ms is None else max(factor, BUSY) * best_ms
    for launch in {block.get("launch", 0) for block in blocks}:
        mine = [place for place, block in enumerate(blocks) if block.get("launch", 0) == launch and block["ms"]]
        steps = [statistics.fmean(blocks[place]["ms"]) for place in mine]
        products = [blocks[place].get("calibration_ms") or 0.0 for place in mine]
        slow = [factor * statistics.median(times) if times else 0.0 for times in (steps, products)]
        for place, step, product in zip(mine, steps, products, strict=True):
            was = blocks[place].get("disturbed", False)
            disturbed = was or step > slow[0] or product > min(slow[1], too_slow)
            found[place] = {**blocks[place], "disturbed": disturbed}
    return [found.get(place, {"disturbed": False, **block}) for place, block in enumerate(blocks)]


def _marked(record: Record) -> list[dict[str, Any]]:
    try:
        factor = float(record.config["timing_settings"]["disturbed"])
    except (ValueError, KeyError, TypeError):
        factor = DISTURBED
    return marked(_blocks(record), factor)


def _undisturbed(record: Record) -> list[dict[str, Any]]:
    return [block for block in _marked(record) if block["ms"] and not block["disturbed"]]


def block_means_ms(record: Record, disturbed: bool = False) -> dict[Block, float]:
    """Return the mean step time in ms of each undisturbed block, or of every block where ``disturbed`` ones count too.

    A repeated block keeps its number.
    """
    times: dict[Block, list[float]] = {}
    for block in _marked(record) if disturbed else _undisturbed(record):
        times.setdefault((block.get("launch", 0), block["block"]), []).extend(block["ms"])
    return {name: sum(ms) / len(ms) for name, ms in sorted(times.items()) if ms}


def disturbed_blocks(record: Record) -> int:
    """Count the disturbed blocks of the record, which every figure leaves out."""
    return sum(block["disturbed"] for block in _marked(record))


#: Times of a block that bound what the product takes on a quiet machine: by the wall clock, by the processor time of
#: its thread, which passes only while it runs, and the best of this machine in the record's folder of results.
_BOUNDS = ("calibration_ms", "calibration_cpu_ms", "best_calibration_ms")


def _machines(record: Record) -> dict[int, Machine]:
    """Return by launch what its calibration products can be compared within."""
    names = [call["machine"] for call in calls_of(record) for _ in range(call["launches"])]
    together = pairing_by_launch(record)
    known = dict(zip(together, names, strict=False))
    alike = record.device, record.torch_version, record.world_size
    return {launch: (known.get(launch) or name or record.cell_id, *alike) for launch, name in together.items()}


def best_calibrations_ms(records: Iterable[Record]) -> dict[Machine, float]:
    """Return the least time in ms that a calibration product is known to take on each machine of these records."""
    best: dict[Machine, float] = {}
    for record in records:
        blocks = _blocks(record)
        machines = _machines(record) if blocks else {}
        for block in blocks:
            machine = machines[block.get("launch", 0)]
            for known in (float(block[name]) for name in _BOUNDS if block.get(name)):
                best[machine] = min(known, best.get(machine, known))
    return best


def with_best(record: Record, best_ms: Mapping[Machine, float]) -> list[dict[str, Any]]:
    """Return the record's blocks with their machine's best calibration, where known, as ``best_calibration_ms``."""
    machines = {launch: best_ms.get(machine) for launch, machine in _machines(record).items()}
    known = ((block, machines[block.get("launch", 0)]) for block in _blocks(record))
    return [block if best is None else {**block, "best_calibration_ms": best} for block, best in known]


def calibrations_ms(record: Record) -> list[tuple[Machine, list[float]]]:
    """Return launch by launch the machine, and the calibration products of the blocks that the times are of."""
    found: dict[int, list[float]] = {}
    blocks = _undisturbed(record) or _blocks(record)
    machines = _machines(record) if blocks else {}
    for block in blocks:
        if block.get("calibration_ms"):
            found.setdefault(block.get("launch", 0), []).append(block["calibration_ms"])
    return [(machines[launch], products) for launch, products in found.items()]


def slowdown(record: Record, best_ms: Mapping[Machine, float]) -> float | None:
    """Return :func:`slowdown_of` of the record's blocks."""
    return slowdown_of(calibrations_ms(record), best_ms)


def slowdown_of(calibrations: Sequence[tuple[Machine, list[float]]], best_ms: Mapping[Machine, float]) -> float | None:
    """Return the time of the calibration product over the machine's best; None where it was not timed.

    The factor is the median over the blocks that the record's times are of. Where one launch with two of them or more
    has a larger median, it is that: slowness of a launch is in the mean over launches.
    """
    factors = {
        place: [ms / best_ms[machine] for ms in products]
        for place, (machine, products) in enumerate(calibrations)
        if best_ms.get(machine)
    }
    if not factors:
        return None
    groups = [[*itertools.chain(*factors.values())], *(found for found in factors.values() if len(found) > 1)]
    return max(map(statistics.median, groups))


def busy(record: Record, best_ms: Mapping[Machine, float]) -> bool:
    """Return whether other work shared the processors while the times were taken: :func:`slowdown` > ``BUSY``."""
    factor = slowdown(record, best_ms)
    return factor is not None and factor > BUSY


def packed(values: Sequence[bool] | Sequence[float]) -> dict[str, Any] | list[float]:
    """Pack one value per example as JSON: bits for right or wrong answers, else numbers of six digits.

    >>> packed([True, False, True, True, True])
    {'bits': 'b8', 'count': 5}
    >>> packed([0.25, 1.23456789])
    [0.25, 1.23457]
    """
    array = np.asarray(values)
    if array.dtype != np.bool_:
        return [float(f"{value:.6g}") for value in array.tolist()]
    digits = -(-array.size // 4)  # the last one is filled up with zeros
    return {"bits": np.packbits(array).tobytes().hex()[:digits], "count": array.size}


def unpacked(content: Any) -> Values:
    """Return the inverse of :func:`packed`.

    >>> unpacked({"bits": "b8", "count": 5}).tolist()
    [True, False, True, True, True]

    Raises ValueError, KeyError, TypeError or AttributeError over what :func:`packed` cannot have made.
    """
    if isinstance(content, list):
        values = np.asarray(content, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("values that are no finite numbers")
        return values
    text, examples = content["bits"], content["count"]
    if len(text) != math.ceil(examples / 4):
        raise ValueError(f"{len(text)} hexadecimal digits for {examples} rows")
    octets = bytes.fromhex(text + "0" * (len(text) % 2))
    bits = np.unpackbits(np.frombuffer(octets, dtype=np.uint8)).astype(np.bool_)
    if bits[examples:].any():
        raise ValueError("more right answers than rows")
    return bits[:examples]


def in_unit(values: Values, unit: str, reached: float) -> Array:
    """Return values per example in the unit of their metric: answers count 100 each where that is percent.

    Raises ValueError where their mean is not what the metric has ``reached``, up to the rounding of :func:`packed`.

    >>> in_unit(np.array([True, False]), "%", 50.0).tolist()
    [100.0, 0.0]
    """
    scaled = (100.0 if values.dtype == np.bool_ and unit == "%" else 1.0) * values.astype(np.float64)
    mean = float(scaled.mean()) if scaled.size else math.nan
    if not abs(mean - reached) <= 1e-5 * float(np.abs(scaled).max(initial=0.0)):
        raise ValueError(f"{scaled.size} values with a mean of {mean:g}, not {reached:g}")
    return scaled


class Led(Protocol):
    """Anything with a metric that leads, such as a record."""

    @property
    def cell_id(self) -> str: ...

    @property
    def metric(self) -> Mapping[str, Any]: ...


def per_example(record: Led, row: Mapping[str, Any]) -> Array | None:
    """Return each example's leading metric at a point of the learning curve; None where it is no mean.

    Raises RecordError: values that cannot be read, or whose mean is not the metric.
    """
    try:
        if row.get("per_example") is None:
            return None
        metric = record.metric
        return in_unit(unpacked(row["per_example"]), metric["unit"], float(row["metrics"][metric["name"]]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"record {record.cell_id}: its learning curve cannot be read ({error!r}).") from None
