"""The grid of contraction plans as rows, one per shape, and what the whole of it says about the planner."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.core.intervals import Estimate, unpaired_ratio
from figures.contractions import Planned, Slot
from figures.page.table import NOT_RECORDED, OLDER, significant, with_interval
from figures.plan_grid import Grid

#: What is asked of the planner: a choice within ``NEAR`` of the best measured candidate in this share of at least so
#: many shapes, and never beyond ``FAR`` times the best.
NEAR, FAR, SHARE, SHAPES = 1.1, 1.5, 0.9, 60


@dataclass(frozen=True)
class Row:
    """One shape. Without plans, ``status`` and ``message`` say why."""

    slot: Slot
    status: str
    message: str = ""
    planned: Planned | None = None
    ratio: Estimate | None = None  # time of the chosen plan to that of the best measured candidate
    over_dense: Estimate | None = None  # to that of nn.Linear
    mark: str = ""  # of a record made by older code

    @property
    def chose_best(self) -> bool:
        return self.planned is not None and self.planned.chosen is self.planned.best


def _ratio(planned: Planned) -> Estimate | None:
    """Of the medians of two plans; their blocks are resampled apart, which if anything widens the interval."""
    chosen, best = planned.chosen, planned.best
    if best is None or not chosen.ms:
        return None
    if chosen is best:
        return Estimate(1.0, 1.0, 1.0, len(chosen.ms))
    return unpaired_ratio(chosen.ms, best.ms)


def _row(grid: Grid, slot: Slot) -> Row:
    record, planned = grid.records[slot], grid.planned.get(slot)
    mark = OLDER if grid.is_older(slot) else ""
    if planned is None:
        return Row(slot, record.status, " ".join(record.message.split()), mark=mark)
    ratio = _ratio(planned)
    if ratio is None:
        return Row(slot, "no time", f"{planned.chosen.name!r} {planned.chosen.message}", planned, mark=mark)
    dense = unpaired_ratio(planned.chosen.ms, planned.dense_ms) if planned.dense_ms else None
    return Row(slot, "ok", "", planned, ratio, dense, mark)


def rows_of(grid: Grid) -> list[Row]:
    """A row per shape of the grid that the records' own values span, whether it has a record or not."""
    slots = grid.records
    layers = sorted({(slot.in_features, slot.out_features) for slot in slots})
    orders, ranks, tokens = (sorted({getattr(slot, name) for slot in slots}) for name in ("order", "ranks", "tokens"))
    everything = [
        Slot(*layer, order, rank, count) for layer in layers for order in orders for rank in ranks for count in tokens
    ]
    return [_row(grid, slot) if slot in slots else Row(slot, NOT_RECORDED) for slot in everything]


def ratios_of(rows: Sequence[Row]) -> list[float]:
    """Chosen / best of every measured shape, in rising order."""
    return sorted(row.ratio.value for row in rows if row.ratio is not None)


def always(rows: Sequence[Row]) -> dict[str, list[float]]:
    """For each plan that every measured shape offers, its time / best; infinite where memory did not suffice."""
    measured = [row.planned for row in rows if row.ratio is not None and row.planned is not None]
    names = [one.name for one in measured[0].candidates] if measured else []
    found: dict[str, list[float]] = {}
    for name in names:
        offered = [one for planned in measured for one in planned.candidates if one.name == name]
        if len(offered) == len(measured):
            bests = [planned.best.time or math.inf for planned in measured if planned.best]
            found[name] = sorted((one.time or math.inf) / best for one, best in zip(offered, bests, strict=True))
    return found


def share_within(ratios: Sequence[float], limit: float) -> float:
    """Part of the ratios that are at most ``limit``; 0 of none."""
    return sum(ratio <= limit for ratio in ratios) / len(ratios) if ratios else 0.0


def _counted(ratios: Sequence[float], limit: float) -> str:
    within = sum(ratio <= limit for ratio in ratios)
    return f"{share_within(ratios, limit):.1%} of the shapes ({within} of {len(ratios)})"


def _aim(ratios: Sequence[float]) -> str:
    """Whether the planner does what is asked of it."""
    missed = [
        *([f"{len(ratios)} shapes"] if len(ratios) < SHAPES else []),
        *([f"{share_within(ratios, NEAR):.1%} within {NEAR:.2f}"] if share_within(ratios, NEAR) < SHARE else []),
        *([f"{sum(ratio > FAR for ratio in ratios)} beyond {FAR:.2f}"] if ratios[-1] > FAR else []),
    ]
    asked = f"at least {SHAPES} shapes, {SHARE:.0%} of them within {NEAR:.2f}, none beyond {FAR:.2f}"
    return f"Asked: {asked}. {'Missed: ' + ', '.join(missed) if missed else 'Met'}."


def _worst(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if row.ratio is not None and row.planned is not None]
    row = max(measured, key=lambda row: row.ratio.value if row.ratio else 0.0)
    assert row.ratio is not None
    assert row.planned is not None
    assert row.planned.best is not None
    names = f"{row.planned.chosen.name!r} in place of {row.planned.best.name!r}"
    return f"The worst choice: {with_interval(row.ratio)} at {row.slot.text}, {names}."


def _fixed(rows: Sequence[Row]) -> str:
    parts = [
        f"{name!r} {share_within(ratios, NEAR):.0%}, at worst {significant(ratios[-1])}"
        for name, ratios in always(rows).items()
    ]
    return f"One plan for every shape would be within {NEAR:.2f} in: {'; '.join(parts)}." if parts else ""


def _dense(rows: Sequence[Row]) -> str:
    ratios = [row.over_dense.value for row in rows if row.over_dense is not None]
    if not ratios:
        return ""
    faster = sum(ratio < 1 for ratio in ratios)
    return (
        f"The chosen plan is faster than nn.Linear in {faster} of {len(ratios)} shapes; its time over nn.Linear's: "
        f"median {significant(statistics.median(ratios))}, {significant(min(ratios))} to {significant(max(ratios))}."
    )


def left_out(rows: Sequence[Row]) -> list[str]:
    """How many shapes have no ratio, by reason."""
    missing = [row for row in rows if row.ratio is None]
    counts = Counter(f"{row.status}: {row.message}" if row.message else row.status for row in missing)
    reasons = [f"{count} x {reason.rstrip('.')}" for reason, count in counts.items()]
    return [f"{len(missing)} of {len(rows)} shapes are left out: {'; '.join(reasons)}."] if missing else []


def sentences(rows: Sequence[Row]) -> list[str]:
    """What the grid says about the planner, the most important first."""
    ratios = ratios_of(rows)
    if not ratios:
        return ["No shape has been measured.", *left_out(rows)]
    best = sum(row.chose_best for row in rows)
    beyond = [row.ratio for row in rows if row.ratio is not None and row.ratio.value > NEAR]
    doubtful = sum(one.low is not None and one.low <= NEAR for one in beyond)
    said = [
        f"{len(ratios)} shapes measured: the chosen plan is within {NEAR:.2f} of the best measured candidate in "
        f"{_counted(ratios, NEAR)} and within {FAR:.2f} in {_counted(ratios, FAR)}. {_aim(ratios)}",
        f"Chosen / best: median {significant(statistics.median(ratios))}, 90th percentile "
        f"{significant(float(np.quantile(ratios, 0.9)))}; the chosen plan is itself the fastest in {best} shapes. "
        f"{_worst(rows)}",
        f"Of the {len(beyond)} shapes beyond {NEAR:.2f}, {doubtful} have an interval that reaches down to it. The best "
        "is the lowest of several medians, so noise alone puts the ratio of two equal plans above 1."
        if beyond
        else "",
        _fixed(rows),
        _dense(rows),
    ]
    return [*filter(None, said), *left_out(rows)]
