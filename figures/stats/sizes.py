"""Sizes of models, told by the parameters that records hold and never by the name of an arm; and the smallest ones."""

from typing import Any, NamedTuple

#: Parameters of the paper's dense encoder.
FULL_SIZE_PARAMETERS = 66_957_315

#: How far the parameters of two arms may be apart, as a share, that count as of equal size.
TOLERANCE = 0.02


def equal_size(one: float | None, other: float | None) -> bool:
    """Return whether two counts of parameters are known and within 2 % of each other.

    >>> equal_size(1_487_547, 1_490_157), equal_size(3_994_947, 1_490_157), equal_size(None, 1_490_157)
    (True, False, False)
    """
    return bool(one and other) and abs(one / other - 1) <= TOLERANCE  # type: ignore[operator]


class Reach(NamedTuple):
    """A method's compression ratios go at most to this one, or begin at it.

    >>> str(Reach("most", 145.07))
    'at most 145 times smaller'
    """

    side: str  # "most" or "least"
    ratio: float

    def __str__(self) -> str:
        return f"at {self.side} {self.ratio:.3g} times smaller"


def reach_of(*samples: Any) -> Reach | None:
    """Return the end that the first of several records' ``samples.reach`` names; None where none does."""
    for found in (one for one in samples if isinstance(one, dict)):
        for name, side in (("largest", "most"), ("smallest", "least")):
            if name in found:
                return Reach(side, float(found[name]))
    return None
