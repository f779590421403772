"""The ends of the compression ratios that a method can reach."""

from dataclasses import dataclass
from typing import Literal

from bench.core.record import Record


@dataclass(frozen=True)
class Reach:
    """A method's compression ratios go at most to this one, or begin at it.

    >>> str(Reach("most", 145.07))
    'at most 145x'
    """

    side: Literal["most", "least"]
    ratio: float

    def __str__(self) -> str:
        return f"at {self.side} {self.ratio:.3g}x"


def reach_of(*records: Record | None) -> Reach | None:
    """Return the end that the first of the records names, whose ratio lies beyond it; None where none does."""
    for record in records:
        found = record.samples.get("reach", {}) if record else {}
        for name, side in (("largest", "most"), ("smallest", "least")):
            if name in found:
                return Reach(side, float(found[name]))  # type: ignore[arg-type]
    return None
