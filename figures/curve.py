"""The learning curve inside a training record, checked and decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.core.record import Record, RecordError
from bench.core.samples import Values, unpacked

Ranks = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class CurvePoint:
    """The state of a run after ``step`` steps. Accuracy in percent."""

    epoch: float
    step: int
    stage: str
    accuracy: float
    answers: Values
    ranks: Ranks  # of every tensorized layer; empty for a dense model


def ranks_from(raw: Any) -> dict[str, tuple[int, ...]]:
    """Ranks by layer name, checked.

    Raises:
        TypeError, ValueError: something else.
    """
    if not isinstance(raw, dict):
        raise TypeError(f"ranks are a {type(raw).__name__}")
    return {str(name): tuple(int(rank) for rank in ranks) for name, ranks in raw.items()}


def _point(row: dict[str, Any], metric: str) -> CurvePoint:
    answers = unpacked(row["per_example"])
    accuracy = float(row["metrics"][metric])
    if abs(100 * float(answers.mean()) - accuracy) > 1e-6:
        raise ValueError(f"{answers.sum()} of {answers.size} right answers are not {accuracy:g} %")
    return CurvePoint(
        float(row["epoch"]), int(row["step"]), str(row["stage"]), accuracy, answers, ranks_from(row["ranks"])
    )


def curve_of(record: Record) -> tuple[CurvePoint, ...]:
    """The learning curve of a finished run, first point first.

    Raises:
        RecordError: no curve, or one that cannot be read.
    """
    rows = record.samples.get("curve")
    if not isinstance(rows, list) or not rows:
        raise RecordError(f"record {record.cell_id}: a finished training run needs its learning curve, samples.curve.")
    try:
        return tuple(_point(row, record.metric["name"]) for row in rows)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"record {record.cell_id}: its learning curve cannot be read ({error!r}).") from None


def ranks_before(record: Record) -> Ranks:
    """Ranks at the start of the run; empty for a dense model.

    Raises:
        RecordError: ranks that cannot be read.
    """
    try:
        return ranks_from(record.samples.get("ranks_before", {}))
    except (TypeError, ValueError) as error:
        raise RecordError(f"record {record.cell_id}: samples.ranks_before cannot be read ({error!r}).") from None
