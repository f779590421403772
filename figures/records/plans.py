"""Contraction plans from records of measure ``plan`` (:mod:`bench.measures.plan`): chosen, checked and decoded.

Shapes of products and FLOPs are the planner's own numbers. What is computed here follows from them: the two gradient
products of each product, the bytes it reads and writes, and what is kept for the backward pass.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bench.core.record import Record, RecordError
from figures import frame
from figures.frame import Records, settings_of

#: Marks a time of one call; plans that are far behind at first are not timed further.
ONCE = "§"
ONCE_WORDS = "timed by its first calls alone, in which it took several times as long as the fastest plan"

_CORES = re.compile(r"G(\d+)(?:-(\d+))?")


def mib(numbers: int) -> float:
    """So many numbers in MiB, in float32: the one type in which plans are measured."""
    return numbers * 4 / 2**20


@dataclass(frozen=True)
class PlannedProduct:
    """One matrix product: ``rows × inner`` by ``inner × columns``."""

    left: str
    right: str
    result: str
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inner * self.columns

    @property
    def moved_mib(self) -> float:
        return mib(self.rows * self.inner + self.inner * self.columns + self.rows * self.columns)

    @property
    def text(self) -> str:
        """Such as ``z1 = x · G1-3``."""
        return f"{self.result} = {self.left} · {self.right}"

    @property
    def shapes(self) -> str:
        """Such as ``(128 x 768)·(768 x 30)``."""
        return f"({self.rows} x {self.inner})·({self.inner} x {self.columns})"

    def gradients(self) -> tuple[PlannedProduct, PlannedProduct]:
        """Return the products that carry the gradient of ``A·B = Y`` to its operands: dA = dY·Bᵀ and dB = Aᵀ·dY."""
        d = f"d{self.result}"
        return (
            PlannedProduct(d, f"{self.right}ᵀ", f"d{self.left}", self.rows, self.columns, self.inner),
            PlannedProduct(f"{self.left}ᵀ", d, f"d{self.right}", self.inner, self.rows, self.columns),
        )


def span_of(name: str) -> tuple[int, int] | None:
    """First and last core of ``G3`` or ``G1-3``, counted from 1; None for activations.

    >>> span_of("G1-3"), span_of("G2"), span_of("z1")
    ((1, 3), (2, 2), None)
    """
    found = _CORES.fullmatch(name)
    return (int(found[1]), int(found[2] or found[1])) if found else None


def _is_core(name: str) -> bool:
    return span_of(name) is not None and "-" not in name


@dataclass(frozen=True)
class MeasuredPlan:
    """One way to contract, with its measured times: a mean per block, or a single first call, or none."""

    name: str
    segments: tuple[tuple[int, int], ...]  # first and last core, counted from 1
    products: tuple[PlannedProduct, ...]
    flops: int  # forward and backward
    saved_mib: float
    largest_mib: float
    estimated_ms: float
    ms: tuple[float, ...]
    message: str

    @cached_property
    def time(self) -> float | None:
        return statistics.median(self.ms) if self.ms else None

    @cached_property
    def backward(self) -> tuple[PlannedProduct, ...]:
        return tuple(gradient for product in reversed(self.products) for gradient in product.gradients())

    @cached_property
    def kept_mib(self) -> dict[str, float]:
        """What is kept for the backward pass, by name; cores are parameters and not counted."""
        left = {product.left: mib(product.rows * product.inner) for product in self.products}
        right = {product.right: mib(product.inner * product.columns) for product in self.products}
        return {name: size for name, size in {**left, **right}.items() if not _is_core(name)}


@dataclass(frozen=True, order=True)
class PlannedLayer:
    """A layer and a number of tokens: what a plan is made for."""

    in_features: int
    out_features: int
    order: int  # modes per side
    ranks: int  # cap
    tokens: int

    @property
    def layer(self) -> str:
        return f"{self.in_features:,} → {self.out_features:,}"

    @property
    def cores(self) -> int:
        return 2 * self.order

    @property
    def text(self) -> str:
        """All of it, such as ``768 → 3,072, 6 cores, ranks up to 30, 128 tokens``."""
        tokens = "1 token" if self.tokens == 1 else f"{self.tokens:,} tokens"
        return f"{self.layer}, {self.cores} cores, ranks up to {self.ranks:,}, {tokens}"


def slot_of(record: Record) -> PlannedLayer:
    """Return what a record's plans are made for; raises RecordError without layer, order or ranks."""
    layer, method = settings_of(record, "workload_settings"), settings_of(record, "method_settings")
    try:
        return PlannedLayer(
            layer["in_features"], layer["out_features"], method["order"], method["ranks"], record.batch_size
        )
    except KeyError:
        needed = "in_features, out_features, order and ranks in config_json"
        raise RecordError(f"record {record.cell_id}: plans need {needed}.") from None


@dataclass(frozen=True)
class Planned:
    """All plans of one layer and number of tokens, and the one that was chosen."""

    slot: PlannedLayer
    in_modes: tuple[int, ...]
    out_modes: tuple[int, ...]
    ranks: tuple[int, ...]
    candidates: tuple[MeasuredPlan, ...]
    chosen: MeasuredPlan
    dense_ms: tuple[float, ...]

    @cached_property
    def best(self) -> MeasuredPlan | None:
        measured = [candidate for candidate in self.candidates if candidate.ms]
        return min(measured, key=lambda candidate: (candidate.time, candidate.name), default=None)

    def mark(self, candidate: MeasuredPlan) -> str:
        """Return the mark of a candidate that was timed once while others took turns."""
        return ONCE if len(candidate.ms) == 1 < max(len(one.ms) for one in self.candidates) else ""

    @property
    def left_to_right(self) -> MeasuredPlan | None:
        """The plan in which nothing is merged and cores follow one another."""
        found = (one for one in self.candidates if all(first == last for first, last in one.segments))
        return next(found, None)

    @property
    def dense_flops(self) -> int:
        """Of ``nn.Linear``, forward and backward."""
        return 6 * self.slot.tokens * self.slot.in_features * self.slot.out_features

    @property
    def dense_time(self) -> float | None:
        return statistics.median(self.dense_ms) if self.dense_ms else None


def _times(values: Sequence[float]) -> tuple[float, ...]:
    if not all(value > 0 for value in values):
        raise ValueError("times must be above 0")
    return tuple(float(value) for value in values)


def _candidate(row: Mapping[str, Any]) -> MeasuredPlan:
    products = tuple(PlannedProduct(**product) for product in row["products"])
    formed = {"x"}
    for product in products:
        if not all(name in formed or _is_core(name) for name in (product.left, product.right)):
            raise ValueError(f"{product.text} uses what is not there yet")
        formed.add(product.result)
    if "y" not in formed:
        raise ValueError(f"plan {row['name']!r} forms no y")
    segments = tuple((first + 1, last + 1) for first, last in row["segments"])
    sizes: dict[str, Any] = {name: float(row[name]) for name in ("saved_mib", "largest_mib", "estimated_ms")}
    words: dict[str, Any] = {name: str(row[name]) for name in ("name", "message")}
    return MeasuredPlan(
        segments=segments, products=products, flops=int(row["flops"]), ms=_times(row["ms"]), **sizes, **words
    )


def planned_of(record: Record) -> Planned:
    """Return the plans of a finished record; raises RecordError where they cannot be read."""
    slot, samples = slot_of(record), record.samples
    try:
        shape = samples["shape"]
        candidates = tuple(_candidate(row) for row in samples["plans"])
        chosen = next((one for one in candidates if one.name == record.contraction), None)
        if chosen is None:
            raise ValueError(f"the chosen plan {record.contraction!r} is not among them")
        modes = (tuple(shape["in_modes"]), tuple(shape["out_modes"]), tuple(shape["ranks"]))
        return Planned(slot, *modes, candidates, chosen, _times(samples["dense_ms"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"record {record.cell_id}: its plans cannot be read ({error!r}).") from None


@dataclass(frozen=True, kw_only=True, eq=False)
class Grid(frame.Page):
    """The plans of one device: at most one record per slot, in the order of slots."""

    @cached_property
    def records(self) -> dict[PlannedLayer, Record]:
        return dict(sorted(frame.by_cell(self.df, ["slot"]).items()))

    @cached_property
    def planned(self) -> dict[PlannedLayer, Planned]:
        return {slot: planned_of(record) for slot, record in self.records.items() if record.status == "ok"}

    @property
    def blocks(self) -> list[int]:
        """In how many blocks the plans of each layer were timed."""
        return [max(len(one.ms) for one in planned.candidates) for planned in self.planned.values()]

    @property
    def has_single_calls(self) -> bool:
        """Return whether a plan was timed by its first calls alone."""
        return any(planned.mark(one) for planned in self.planned.values() for one in planned.candidates)


#: The columns of how plans are called, and their values: plainly, in float32.
_CALLED = ("precision", "compile", "cuda_graph")
_PLAINLY = json.dumps(dict(zip(_CALLED, ("fp32", False, False), strict=True)), sort_keys=True)


def select_plans(records: Records) -> list[Grid]:
    """Return a grid per device that has plans, of the newest record of each slot."""
    grids = []
    for device, mine in frame.by_device(records):
        slots: list[Any] = [slot_of(record) for record in mine["record"]]
        mine = mine.assign(slot=slots)
        fitting, notes = frame.narrow(mine, _CALLED, ["slot"], "record(s)", like=_PLAINLY)
        notes += frame.repeats(fitting, ["slot"], "record(s)")
        shown = frame.oldest_first(frame.newest(fitting, ["slot"]))
        grids.append(Grid(**device, df=shown, left_out=tuple(notes)))
    return [grid for grid in grids if len(grid.df)]
