"""Trained models as points of size and accuracy: which of them are worth having, and where tensorizing loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from figures.accuracy import Percent, difference
from figures.page.table import significant
from figures.records.ratio_limits import RatioLimit as Reach
from figures.records.ratio_limits import limit_of as reach_of
from figures.records.select import LOW_RANK
from figures.runs import COMERA, Study
from figures.training_rows import Row, final_answers

#: Models count as equally large within the tolerance of the solvers that gave them their ratio.
_SAME_SIZE = 1.02


@dataclass(frozen=True)
class Point:
    """A row that finished."""

    row: Row
    size: float  # MiB
    accuracy: Percent

    @property
    def arm(self) -> str:
        return self.row.slot.arm

    @property
    def words(self) -> str:
        """Name, size and accuracy."""
        return f"{name_of(self.row)} ({significant(self.size)} MiB, {self.accuracy.value:.1f} %)"


def name_of(row: Row) -> str:
    """How the figure calls a row: after the same steps dense needs no stage."""
    return row.slot.label.removesuffix(", early stage alone")


def points_of(rows: Sequence[Row]) -> list[Point]:
    """The rows that have both a size and an accuracy, smallest first."""
    found = [Point(row, row.stored.value, row.accuracy) for row in rows if row.stored and row.accuracy]
    return sorted(found, key=lambda point: point.size)


def dominator(point: Point, points: Sequence[Point]) -> Point | None:
    """The most accurate of the points that beat this one by value: more accurate and no larger, or as accurate and
    smaller; sizes within the solvers' tolerance are equal.
    """

    def beats(other: Point) -> bool:
        ahead = other.accuracy.value - point.accuracy.value
        return (ahead > 0 and other.size <= _SAME_SIZE * point.size) or (
            ahead == 0 and _SAME_SIZE * other.size < point.size
        )

    return max(filter(beats, points), key=lambda other: other.accuracy.value, default=None)


def front_of(points: Sequence[Point]) -> list[Point]:
    """The points that none beats."""
    return [point for point in points if dominator(point, points) is None]


def less(point: Point, other: Point) -> Percent | None:
    """Accuracy less that of another point, paired by seed and validation example."""
    return difference(final_answers(point.row.finished), final_answers(other.row.finished))


def less_low_rank(point: Point, points: Sequence[Point]) -> Percent | None:
    """Accuracy of CoMERA less that of low_rank at the same ratio."""
    ratio = point.row.slot.ratio
    rivals = [other for other in points if other.arm == LOW_RANK and other.row.slot.ratio == ratio]
    return less(point, rivals[0]) if rivals and point.arm == COMERA and ratio is not None else None


def reaches(study: Study) -> dict[str, tuple[Reach, list[float]]]:
    """By arm, the end of its reach and the ratios that lie beyond."""
    found: dict[str, tuple[Reach, list[float]]] = {}
    for slot in study.slots:
        messages = [study.runs[slot, seed].message for seed in study.seeds if (slot, seed) in study.runs]
        reach = next((reach for message in messages if (reach := reach_of(message))), None)
        if reach is not None and slot.ratio is not None:
            found.setdefault(slot.arm, (reach, []))[1].append(slot.ratio)
    return found


@dataclass(frozen=True)
class Entry:
    """A row with how it stands to the others; what it has no size or accuracy for is None."""

    row: Row
    on_front: bool | None
    beaten_by: Point | None
    less_low_rank: Percent | None


def entries_of(rows: Sequence[Row]) -> list[Entry]:
    """An entry per row, also for those that did not finish."""
    points = points_of(rows)
    front, by_slot = front_of(points), {point.row.slot: point for point in points}
    entries = []
    for row in rows:
        point = by_slot.get(row.slot)
        if point is None:
            entries.append(Entry(row, None, None, None))
        else:
            entries.append(Entry(row, point in front, dominator(point, points), less_low_rank(point, points)))
    return entries


def guessing(points: Sequence[Point], study: Study) -> list[str]:
    """A sentence on the runs that have not surely learnt anything."""
    classes = study.model.get("classes")
    names = [name_of(point.row) for point in points if classes and point.accuracy.low <= 100 / classes]
    return [f"Not surely better than guessing one of {classes} classes: {', '.join(names)}."] if names else []


def losses(points: Sequence[Point]) -> list[str]:
    """Where tensorizing loses: runs of CoMERA that another arm's beats, and those that are less accurate than dense."""
    ours = [point for point in points if point.arm == COMERA]
    others = [point for point in points if point.arm != COMERA]
    beaten = [(point, other) for point in ours if (other := dominator(point, others))]
    lines = []
    for point, other in beaten:
        apart = less(point, other)
        lines.append(
            f"Tensorizing loses: {point.words} is dominated by {other.words}"
            f"{f', {apart.signed} points' if apart else ''}."
        )
    if ours and not beaten:
        lines.append("No run of CoMERA is dominated: by value, no other arm's is more accurate and no larger.")
    below = [point.words for point in ours if point.row.difference and point.row.difference.high < 0]
    if below:
        lines.append(f"Surely less accurate than dense after as many steps: {', '.join(below)}.")
    return lines
