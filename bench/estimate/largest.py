"""The largest batch that fits: a search over a predicted peak that grows almost in a straight line."""

from collections.abc import Callable
from dataclasses import dataclass

#: Batches beyond this one are not looked at, unless another limit is given.
LIMIT = 65_536

#: The second batch looked at, and how far a next one may lie beyond the largest that is known to fit: at small batches
#: weights and their states make the peak, so the line through them is no guide to large ones.
_REACH = 16


@dataclass(frozen=True)
class Largest:
    """The largest batch that fits, with its peak, and the peak of the next one, which does not.

    ``batch_size`` is 0 where not even the smallest fits; ``next_mib`` is None where the search ended before it met a
    batch that does not.
    """

    batch_size: int
    peak_mib: float
    next_mib: float | None


def largest_batch(peak_mib: Callable[[int], float], room_mib: float, multiple: int = 1, most: int = LIMIT) -> Largest:
    """Find the batch, a ``multiple``, that fits while the next does not, in as few calls of ``peak_mib`` as can be.

    Example:
        >>> largest_batch(lambda batch: 100 + 3.5 * batch, room_mib=1000)
        Largest(batch_size=257, peak_mib=999.5, next_mib=1003.0)
    """
    peaks: dict[int, float] = {0: 0.0}

    def fits(count: int) -> bool:
        peaks[count] = peak_mib(count * multiple)
        return peaks[count] <= room_mib

    if not fits(1):
        return Largest(0, 0.0, peaks[1])
    limit = max(most // multiple, 1)
    below, low, high = 0, 1, limit + 1  # high does not fit, or is beyond the limit
    turn = 0
    while low < limit and high - low > 1:
        if high <= limit:  # between one that fits and one that does not
            share = (room_mib - peaks[low]) / (peaks[high] - peaks[low])
            guess = (low + high) // 2 if turn % 3 == 2 else low + int(share * (high - low))
            guess, turn = min(max(guess, low + 1), high - 1), turn + 1
        else:
            slope = (peaks[low] - peaks[below]) / (low - below) if below else 0.0
            guess = low + int((room_mib - peaks[low]) / slope) if slope > 0 else low * _REACH
            guess = min(max(guess, low + 1), low * _REACH, limit)
        if fits(guess):
            below, low = low, guess
        else:
            high = guess
    return Largest(low * multiple, peaks[low], peaks.get(high))
