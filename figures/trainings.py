"""A training as a value: its outcome, its metrics, and its learning curve as recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from bench.core.record import Record


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedTraining:
    """One training, finished or not.

    Args:
        cell_id: names it in errors.
        status, message, arithmetic, size_at_deadline: the columns of the record.
        metrics: after the last step, by name.
        metric: description of the one that leads; empty where none does.
        curve: the rows of the learning curve, empty where there are none; they are read where a figure shows them.
        ranks_before: ranks of the tensorized layers at the start, by name.
    """

    cell_id: str
    status: str
    message: str
    arithmetic: str
    size_at_deadline: float | None
    metrics: Mapping[str, Any]
    metric: Mapping[str, Any]
    curve: Any
    ranks_before: Any

    @classmethod
    def of(cls, record: Record) -> Self | None:
        """Return the training of a record; None where it is of another measure."""
        if record.measure != "train":
            return None
        return cls(
            cell_id=record.cell_id,
            status=record.status,
            message=record.message,
            arithmetic=record.arithmetic,
            size_at_deadline=record.size_at_deadline,
            metrics=record.metrics,
            metric=record.metric,
            curve=record.samples.get("curve", ()),
            ranks_before=record.samples.get("ranks_before", {}),
        )

    @property
    def leading(self) -> float | None:
        """The value of the metric that leads; None where it is not known."""
        return self.metrics.get(self.metric.get("name", ""))

    @property
    def loss(self) -> float | None:
        """The same such that less is better."""
        return self.leading and (-self.leading if self.metric.get("higher_is_better") else self.leading)
