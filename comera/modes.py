"""Modes: how a dimension is factored, and which ranks the bonds between modes allow.

A dimension ``N`` is written as a product of modes ``n1·n2·…·nd``; the cores of a tensor train carry one mode each.
Between two neighbouring cores lies a bond; its rank can be no larger than the product of the modes on either side.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Sequence

import torch

from comera.compatibility.arguments import shown


def check_whole(name: str, value: object) -> int:
    """Return a whole number as an int; raise ValueError for anything else, 2.0 and True included."""
    try:
        if not isinstance(value, bool | torch.Tensor):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise ValueError(f"{name} is {shown(value)}; it must be a whole number.")


def check_size(name: str, value: object) -> int:
    """Return a whole number from 1 up as an int; raise ValueError for anything else."""
    if (size := check_whole(name, value)) < 1:
        raise ValueError(f"{name} is {size}; it must be at least 1.")
    return size


#: The most modes of a dimension: whole numbers of 64 bits have no more prime factors.
MOST_MODES = 64


def check_order(name: str, value: object, least: int = 1, otherwise: str = "") -> int:
    """Return a number of modes as an int; raise ValueError for anything else, ``otherwise`` naming what else fits."""
    if not least <= (order := check_whole(name, value)) <= MOST_MODES:
        raise ValueError(f"{name} is {order}; it must be from {least} to {MOST_MODES}{otherwise}.")
    return order


def _as_tuple(name: str, values: object, of: str) -> tuple[object, ...]:
    """Return the values of a sequence; raise ValueError for a string, a tensor, or what cannot be iterated over."""
    if isinstance(values, str | torch.Tensor) or not isinstance(values, Iterable):
        raise ValueError(f"{name} is {shown(values)}; it must be a sequence of {of}.")
    return tuple(values)


@functools.lru_cache(maxsize=4096)
def prime_factors(number: int) -> tuple[int, ...]:
    """Return the prime factors of a whole number from 1 up, in ascending order, each as often as it divides.

    Small factors by division, large ones by Pollard's rho, so that numbers of 20 digits take milliseconds.

    Example:
        >>> prime_factors(768), prime_factors(1), prime_factors(2**61 - 1)
        ((2, 2, 2, 2, 2, 2, 2, 2, 3), (), (2305843009213693951,))
    """
    found: list[int] = []
    for small in (2, *range(3, 1000, 2)):
        while number % small == 0:
            found.append(small)
            number //= small
    pending = [number] if number > 1 else []
    while pending:
        each = pending.pop()
        if _is_prime(each):
            found.append(each)
        else:
            factor = _factor_of(each)
            pending += [factor, each // factor]
    return tuple(sorted(found))


def _is_prime(number: int) -> bool:
    """Return whether a number without a factor below 1000 is prime, by the test of Miller and Rabin."""
    if number < 10**6:
        return True
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # enough below 3e24
        x = pow(base, odd, number)
        if x not in (1, number - 1) and all((x := x * x % number) != number - 1 for _ in range(twos - 1)):
            return False
    return True


def _factor_of(number: int) -> int:
    """Return a factor of an odd composite number, by Pollard's rho."""
    for shift in itertools.count(1):
        slow = fast = 2
        factor = 1
        while factor == 1:
            slow = (slow * slow + shift) % number
            fast = (fast * fast + shift) % number
            fast = (fast * fast + shift) % number
            factor = math.gcd(slow - fast, number)
        if factor != number:
            return factor
    raise AssertionError


@functools.lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a whole number from 1 up, in ascending order.

    Example:
        >>> divisors(12)
        (1, 2, 3, 4, 6, 12)
    """
    found = {1}
    for prime in prime_factors(number):
        found |= {each * prime for each in found}
    return tuple(sorted(found))


def _least_sum(number: int, parts: int) -> tuple[int, ...]:
    """Return the factors of a number, descending, with the least sum; of several, with the least first factors."""
    best: list[tuple[int, tuple[int, ...]]] = []

    def search(rest: int, parts: int, largest: int, chosen: tuple[int, ...]) -> None:
        """Choose factors from the largest down; what is left is at least as large as that many equal factors."""
        if best and sum(chosen) + parts * rest ** (1 / parts) > best[0][0] + 1e-6 * rest ** (1 / parts):
            return
        if parts == 1:
            if rest <= largest:
                best[:] = [min([*best, (sum(chosen) + rest, (*chosen, rest))])]
            return
        choices = divisors(rest)
        root = bisect.bisect_left(choices, math.floor(rest ** (1 / parts) * (1 - 1e-9)))
        for factor in choices[root:]:
            if factor > largest or (best and sum(chosen) + factor + parts - 1 > best[0][0]):
                return
            rooted = (parts - 1) * (rest // factor) ** (1 / (parts - 1))
            if best and sum(chosen) + factor + rooted > best[0][0] * (1 + 1e-9):
                return
            search(rest // factor, parts - 1, factor, (*chosen, factor))

    search(number, parts, number, ())
    return best[0][1]


def balanced_modes(dimension: int, order: int) -> tuple[int, ...]:
    """Factor ``dimension`` into ``order`` modes that are as equal as possible, largest first.

    Among all factorizations the one with the smallest sum is taken, since the parameters of a tensor train at fixed
    rank grow with the sum of its modes.

    Raises:
        ValueError: ``dimension`` is below 1, or ``order`` not from 1 to 64.

    Example:
        >>> balanced_modes(768, 3)
        (12, 8, 8)
        >>> balanced_modes(3072, 3)
        (16, 16, 12)
    """
    return _balanced_modes(check_size("dimension", dimension), check_order("order", order))


@functools.cache
def _balanced_modes(dimension: int, order: int) -> tuple[int, ...]:
    primes = prime_factors(dimension)
    if order >= len(primes):
        return primes[::-1] + (1,) * (order - len(primes))
    return _least_sum(dimension, order)


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
    return _padded_modes(check_size("size", size), check_order("order", order))


@functools.cache
def _padded_modes(size: int, order: int) -> tuple[int, ...]:
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


def check_modes(name: str, modes: Sequence[int], dimension: int | None) -> tuple[int, ...]:
    """Return ``modes`` as a tuple if they are positive and their product is ``dimension``, or any number with None.

    Raises:
        ValueError: they do not fit; the sentence offers modes that do.
    """
    modes = tuple(check_whole(f"a mode of {name}", mode) for mode in _as_tuple(name, modes, "modes"))
    if not modes:
        raise ValueError(f"{name} is empty; give at least one mode, for example {(dimension or 2,)}.")
    if min(modes) < 1:
        raise ValueError(f"{name}={modes} holds a mode below 1; modes are at least 1.")
    if dimension is not None and math.prod(modes) != dimension:
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
    if isinstance(ranks, str | torch.Tensor):
        raise ValueError(f"ranks is {shown(ranks)}; it must be a whole number or a sequence of them.")
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
