"""Modes: how a dimension is factored, and which ranks the bonds between modes allow.

A dimension ``N`` is written as a product of modes ``n1·n2·…·nd``; the cores of a tensor train carry one mode each.
Between two neighbouring cores lies a bond; its rank can be no larger than the product of the modes on either side.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence


def check_whole(name: str, value: object) -> int:
    """Return a whole number as an int; raise ValueError for anything else, 2.0 included."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"{name} is {value!r}; it must be a whole number.") from None


def _factorizations(number: int, parts: int, smallest: int = 1) -> Iterator[tuple[int, ...]]:
    """Return all ways to write ``number`` as a product of ``parts`` non-decreasing factors from ``smallest`` up."""
    if parts == 1:
        if number >= smallest:
            yield (number,)
        return
    factor = smallest
    while factor**parts <= number:
        if number % factor == 0:
            for rest in _factorizations(number // factor, parts - 1, factor):
                yield (factor, *rest)
        factor += 1


@functools.cache
def balanced_modes(dimension: int, order: int) -> tuple[int, ...]:
    """Factor ``dimension`` into ``order`` modes that are as equal as possible, largest first.

    Among all factorizations the one with the smallest sum is taken, since the parameters of a tensor train at fixed
    rank grow with the sum of its modes.

    Raises:
        ValueError: ``dimension`` or ``order`` is below 1.

    Example:
        >>> balanced_modes(768, 3)
        (12, 8, 8)
        >>> balanced_modes(3072, 3)
        (16, 16, 12)
    """
    dimension, order = check_whole("dimension", dimension), check_whole("order", order)
    if dimension < 1 or order < 1:
        raise ValueError(f"dimension and order must be at least 1, got dimension={dimension} and order={order}.")
    best = min(_factorizations(dimension, order), key=lambda modes: (sum(modes), modes[::-1]))
    return best[::-1]


@functools.cache
def padded_modes(size: int, order: int) -> tuple[int, ...]:
    """Return modes whose product is at least ``size``, for a table whose rows may be padded; largest first.

    Takes modes that are as equal as possible with the smallest sum that reaches ``size``, since the parameters of a
    tensor train at fixed rank grow with the sum of its modes.

    Example:
        >>> padded_modes(30522, 4)
        (14, 13, 13, 13)
        >>> 14 * 13 * 13 * 13
        30758
    """
    size, order = check_whole("size", size), check_whole("order", order)
    if size < 1 or order < 1:
        raise ValueError(f"size and order must be at least 1, got size={size} and order={order}.")
    modes: list[int] = []
    remaining = size
    for parts in range(order, 0, -1):
        root = max(1, round(remaining ** (1 / parts)))
        while root**parts < remaining:
            root += 1
        while root > 1 and (root - 1) ** parts >= remaining:
            root -= 1
        modes.append(root)
        remaining = math.ceil(remaining / root)
    return tuple(sorted(modes, reverse=True))


def check_modes(name: str, modes: Sequence[int], dimension: int) -> tuple[int, ...]:
    """Return ``modes`` as a tuple if they are positive and their product is ``dimension``.

    Raises:
        ValueError: they do not fit; the sentence offers modes that do.
    """
    modes = tuple(check_whole(f"a mode of {name}", mode) for mode in modes)
    if not modes:
        raise ValueError(f"{name} is empty; give at least one mode, for example {(dimension,)}.")
    if min(modes) < 1:
        raise ValueError(f"{name}={modes} holds a mode below 1; modes are at least 1.")
    if math.prod(modes) != dimension:
        raise ValueError(
            f"{name}={modes} multiply to {math.prod(modes)}, not to {dimension}; "
            f"modes that fit: {balanced_modes(dimension, len(modes))}."
        )
    return modes


def bond_limits(modes: Sequence[int]) -> tuple[int, ...]:
    """Return the largest useful rank of every inner bond of a chain with these modes.

    Example:
        >>> bond_limits((12, 8, 8, 8, 8, 12))
        (12, 96, 768, 96, 12)
    """
    return tuple(min(math.prod(modes[:i]), math.prod(modes[i:])) for i in range(1, len(modes)))


def check_ranks(ranks: int | Sequence[int], modes: Sequence[int]) -> tuple[int, ...]:
    """Return one rank per inner bond of a chain with these modes.

    Args:
        ranks: one integer, a cap that is clipped to what each bond allows; or a sequence with one rank per inner bond.
            A rank of 0 means that the chain carries nothing.
        modes: modes of the chain, one per core (for TTM the product of row and column mode).

    Raises:
        ValueError: a rank that is negative or no whole number, a wrong number of ranks, or a rank beyond its bond.

    Example:
        >>> check_ranks(30, (12, 8, 8, 8, 8, 12))
        (12, 30, 30, 30, 12)
    """
    limits = bond_limits(modes)
    if not isinstance(ranks, Iterable):
        ranks = check_whole("ranks", ranks)
        if ranks < 0:
            raise ValueError(f"ranks={ranks} is negative; a rank is 0 or more.")
        return tuple(min(ranks, limit) for limit in limits)
    ranks = tuple(check_whole("one of the ranks", rank) for rank in ranks)
    if len(ranks) != len(limits):
        raise ValueError(f"ranks={ranks} holds {len(ranks)} values; {len(modes)} cores have {len(limits)} inner bonds.")
    for bond, (rank, limit) in enumerate(zip(ranks, limits, strict=True), start=1):
        if not 0 <= rank <= limit:
            raise ValueError(f"ranks={ranks}: the rank of bond {bond} is {rank}; this bond allows 0 to {limit}.")
    return ranks
